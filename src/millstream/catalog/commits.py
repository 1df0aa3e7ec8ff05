"""Group commit: whatever waits when the disk is free goes into one transaction and one snapshot.

`CommitQueue.submit` runs a piece of work inside a `Commit` and returns when it is durable. One thread
commits for all who wait, again and again: nobody waits longer than the commit in progress and their
own, and no interrupt of a caller can hit a commit half-way. One piece failing undoes only itself.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream.catalog import stats
from millstream.catalog.records import Snapshot, StreamState, TableStats
from millstream.catalog.store import closed, savepoint, translated

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
        self.removed_from: set[int] = set()
        """Tables that rows were taken from before their time."""

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
        state["removed_from"] = set(self.removed_from)
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
    return time.astimezone(UTC).isoformat(sep=" ", timespec="microseconds").replace("+00:00", "+00")


@dataclass
class Receipt:
    """Whether a piece of work is durable; right even for a caller whose wait was interrupted."""

    committed: bool = False


@dataclass
class _Work(Generic[T]):
    run: Callable[[Commit], T]
    shareable: bool
    receipt: Receipt
    done: threading.Event = field(default_factory=threading.Event)
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
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, run: Callable[[Commit], T], *, shareable: bool, receipt: Receipt | None = None) -> T:
        """Run a piece of work and wait for it; an interrupt comes out when its fate is known."""
        work = _Work(run, shareable, receipt or Receipt())
        with self._changed:
            if self._closed:
                raise closed()
            self._waiting.append(work)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="millstream-commit", daemon=True)
                self._thread.start()
        self._await(work)
        return work.outcome()

    def _await(self, work: _Work[Any]) -> None:
        try:
            work.done.wait()
        except BaseException:
            while not self._withdraw(work) and not work.done.is_set():
                with suppress(BaseException):
                    work.done.wait()
            raise

    def _withdraw(self, work: _Work[Any]) -> bool:
        with self._changed:
            if work not in self._waiting:
                return False
            self._waiting.remove(work)
            return True

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._transact(partial(_run_all, batch=batch))
            except BaseException as error:
                for work in batch:
                    work.error = work.error or error
            for work in batch:
                work.receipt.committed = work.error is None
                work.done.set()

    def _next(self) -> list[_Work[Any]]:
        """The next pieces that go together; empty at the end."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting:
                return []
            batch = [self._waiting.popleft()]
            while self._goes_with(batch):
                batch.append(self._waiting.popleft())
            return batch

    def _goes_with(self, batch: list[_Work[Any]]) -> bool:
        if not self._waiting or len(batch) >= MOST_IN_ONE_COMMIT:
            return False
        return batch[0].shareable and self._waiting[0].shareable

    def close(self) -> None:
        """Take no more work, and return when all that was taken is done."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()


def _run_all(commit: Commit, batch: list[_Work[Any]]) -> None:
    alone = len(batch) == 1
    for work in batch:
        before = commit.savepoint()
        try:
            with translated(), nullcontext() if alone else savepoint(commit.connection):
                work.result = work.run(commit)
        except BaseException as error:
            if alone or not commit.connection.in_transaction:
                raise
            work.error = error
            commit.restore(before)
