"""Group commit: whatever waits when the disk is free goes into one transaction and one snapshot.

`CommitQueue.submit` runs a piece of work inside a `Commit` and returns when it is durable. The thread
that finds nobody leading commits for all who wait, then hands over to the first who came meanwhile:
nobody waits longer than the commit in progress and their own. One piece failing undoes only itself.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream.catalog import stats
from millstream.catalog.records import Snapshot, StreamState, TableStats
from millstream.catalog.store import savepoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from millstream.catalog.store import Connection

T = TypeVar("T")
MOST_IN_ONE_COMMIT = 512


class Commit:
    """A snapshot under construction: the connection, the ids it hands out, what it changed."""

    def __init__(self, connection: Connection, base: Snapshot, now: datetime) -> None:
        self.connection = connection
        self.base = base
        self.snapshot_id = base.id + 1
        self.now = max(now, base.time)
        self.schema_version = base.schema_version
        self.next_catalog_id = base.next_catalog_id
        self.next_file_id = base.next_file_id
        self.changes: list[str] = []
        self.table_stats: dict[int, TableStats] = {}
        self.stream_states: dict[int, StreamState] = {}

    def changed(self, what: str) -> None:
        """Note a change in DuckLake's words; a commit without any makes no snapshot."""
        if what not in self.changes:
            self.changes.append(what)

    def schema_changed(self) -> int:
        """Every change of a definition makes a new schema version, one a snapshot."""
        self.schema_version = self.base.schema_version + 1
        return self.schema_version

    def new_catalog_id(self) -> int:
        self.next_catalog_id += 1
        return self.next_catalog_id - 1

    def new_file_id(self) -> int:
        self.next_file_id += 1
        return self.next_file_id - 1

    def stats_of(self, table_id: int, types: stats.ColumnTypes) -> TableStats:
        if table_id not in self.table_stats:
            self.table_stats[table_id] = stats.load(self.connection, table_id, types)
        return self.table_stats[table_id]

    def savepoint(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["changes"] = list(self.changes)
        state["table_stats"] = dict(self.table_stats)
        state["stream_states"] = dict(self.stream_states)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def finish(self) -> Snapshot:
        """Write the snapshot row, the statistics and the stream states that changed."""
        snapshot = Snapshot(
            self.snapshot_id, self.now, self.schema_version, self.next_catalog_id, self.next_file_id
        )
        if not self.changes:
            return self.base
        execute = self.connection.execute
        execute(
            "INSERT INTO ducklake_snapshot VALUES (?, ?, ?, ?, ?)",
            (
                snapshot.id,
                time_text(snapshot.time),
                snapshot.schema_version,
                snapshot.next_catalog_id,
                snapshot.next_file_id,
            ),
        )
        execute(
            "INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) VALUES (?, ?)",
            (snapshot.id, ",".join(self.changes)),
        )
        return snapshot


def time_text(time: datetime) -> str:
    """A snapshot's time: fixed width, so that text order is time order."""
    return time.isoformat(sep=" ", timespec="microseconds").replace("+00:00", "+00")


@dataclass
class _Work(Generic[T]):
    run: Callable[[Commit], T]
    shareable: bool
    woken: threading.Event = field(default_factory=threading.Event)
    done: bool = False
    result: T | None = None
    error: BaseException | None = None

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class CommitQueue:
    """Pieces of work on their way into the catalogue; see the module's contract."""

    def __init__(self, transact: Callable[[Callable[[Commit], None]], None]) -> None:
        self._transact = transact
        self._waiting: deque[_Work[Any]] = deque()
        self._has_leader = False
        self._lock = threading.Lock()

    def submit(self, run: Callable[[Commit], T], *, shareable: bool) -> T:
        work = _Work(run, shareable)
        with self._lock:
            self._waiting.append(work)
            leads = not self._has_leader
            self._has_leader = True
        if not leads:
            work.woken.wait()
        if not work.done:
            self._lead()
        return work.outcome()

    def _lead(self) -> None:
        """Commit what waits, one's own work first, then hand over to the next who came meanwhile."""
        with self._lock:
            batch = self._take()
        try:
            self._transact(lambda commit: _run_all(commit, batch))
        except BaseException as error:
            for work in batch:
                work.error = work.error or error
        with self._lock:
            successor = self._waiting[0] if self._waiting else None
            self._has_leader = successor is not None
        for work in batch:
            work.done = True
            work.woken.set()
        if successor is not None:
            successor.woken.set()

    def _take(self) -> list[_Work[Any]]:
        batch = [self._waiting.popleft()]
        while (
            batch[0].shareable and self._waiting and self._waiting[0].shareable and len(batch) < MOST_IN_ONE_COMMIT
        ):
            batch.append(self._waiting.popleft())
        return batch


def _run_all(commit: Commit, batch: list[_Work[Any]]) -> None:
    alone = len(batch) == 1
    for work in batch:
        before = commit.savepoint()
        try:
            with nullcontext() if alone else savepoint(commit.connection):
                work.result = work.run(commit)
        except BaseException as error:
            if alone:
                raise
            work.error = error
            commit.restore(before)
