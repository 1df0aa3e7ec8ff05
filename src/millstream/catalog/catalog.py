"""The catalogue's front: the current snapshot, names → records, and commits.

Definitions are cached by schema version. A read-only catalogue looks for a newer snapshot on every
call; a writing one knows, since only it writes.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from millstream.catalog import files, indexes, inlined, layout, snapshots, stats, streams, tables, views
from millstream.catalog.commits import Commit, CommitQueue, time_text
from millstream.catalog.records import Moment
from millstream.catalog.store import Store
from millstream.errors import Condition, StatementError
from millstream.schema import ObjectKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime
    from pathlib import Path

    from millstream.catalog.commits import Receipt
    from millstream.catalog.records import IndexInfo, Snapshot, TableInfo, TableStats
    from millstream.catalog.store import Connection
    from millstream.clock import Clock

T = TypeVar("T")
Tables = dict[str, "TableInfo"]
Indexes = dict[str, "IndexInfo"]
CACHED_SCHEMA_VERSIONS = 64


@dataclass(frozen=True)
class _Definitions:
    """What is defined at a snapshot: all by id, and what users see by name and by id."""

    snapshot_id: int = -1
    base: tuple[int, ...] = ()
    """The tables and streams among them."""
    every: dict[int, TableInfo] = field(default_factory=dict)
    tables: Tables = field(default_factory=dict)
    by_id: dict[int, TableInfo] = field(default_factory=dict)
    hidden: dict[int, TableInfo] = field(default_factory=dict)
    indexes: Indexes = field(default_factory=dict)

    def followed(
        self, snapshot_id: int, base: list[TableInfo], born: list[TableInfo], gone: list[int], found: Indexes
    ) -> _Definitions:
        """What is defined later: `base` are all tables and streams, `born` views that are new, `gone` those ended.

        There may be many views and few tables, so what is the same is copied and not made again.
        """
        made = _Definitions(
            snapshot_id, tuple(t.id for t in base), self.every.copy(), self.tables.copy(), self.by_id.copy(),
            self.hidden.copy(), found,
        )  # fmt: skip
        for table_id in (*gone, *self.base):
            made._take_out(table_id)
        for table in (*base, *born):
            made._put_in(table)
        return made

    def _take_out(self, table_id: int) -> None:
        table = self.every.pop(table_id, None)
        self.by_id.pop(table_id, None)
        self.hidden.pop(table_id, None)
        if table is not None and self.tables.get(table.name.lower()) is table:
            del self.tables[table.name.lower()]

    def _put_in(self, table: TableInfo) -> None:
        self.every[table.id] = table
        is_feed = table.standing is not None and table.standing.target is not None
        if is_feed or table.kind is ObjectKind.STATE:
            self.hidden[table.id] = table
        else:
            self.by_id[table.id] = self.tables[table.name.lower()] = table


class Catalog:
    """One database's catalogue, open for reading and, unless `read_only`, for writing."""

    def __init__(self, path: Path, data_path: Path, clock: Clock, *, read_only: bool = False) -> None:
        self.read_only = read_only
        self._clock = clock
        self._store = Store(path, read_only=read_only)
        self._definitions: dict[int, _Definitions] = {}
        self._stats: dict[int, TableStats] = {}
        self._pins: dict[int, int] = {}
        self._unpinned: deque[int] = deque()
        """Pins that have been given back and still count: garbage is collected anywhere, also under a lock."""
        self._old = threading.Lock()
        self._removals: dict[int, int] = {}
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        """Held from before a commit is durable until `now` tells of it."""
        self._queue = CommitQueue(self._transact)
        try:
            self._now = self._prepare(str(data_path.absolute()) + "/")
        except BaseException:
            self._store.close()
            raise

    def _prepare(self, data_path: str) -> Moment:
        if not self.read_only:
            with self._store.write() as connection:
                if layout.is_empty(connection):
                    layout.create(connection, time_text(self._clock.now()), data_path)
                layout.upgrade(connection)
                if layout.data_path(connection) != data_path:
                    layout.set_data_path(connection, data_path)
        with self._store.read() as connection:
            layout.check_current(connection)
            return _moment(connection)

    def close(self) -> None:
        self._queue.close()
        self._store.close()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent look at the catalogue's tables."""
        with self._store.read() as connection:
            yield connection

    @property
    def now(self) -> Moment:
        """The newest committed snapshot and the streams' states that belong to it."""
        if self.read_only:
            with self.read() as connection:
                return _moment(connection)
        return self._now

    @property
    def current(self) -> Snapshot:
        """The newest committed snapshot."""
        return self.now.snapshot

    def snapshot(self, version: int | None = None, time: datetime | None = None) -> Snapshot:
        """The snapshot with this number, or the newest one at this time, or the current one."""
        if version is None and time is None:
            return self.current
        with self.read() as connection:
            if version is not None:
                found = snapshots.by_id(connection, version)
            elif time is not None:
                found = snapshots.by_time(connection, time)
            oldest = snapshots.oldest_id(connection)
        if found is not None:
            return found
        raise StatementError(
            Condition.UNKNOWN_VERSION,
            f"no version {version}" if version is not None else f"no version as old as {time}",
            detail=f"Versions {oldest} to {self.current.id} are kept.",
            hint="SHOW SNAPSHOTS lists the versions and their times.",
        )

    def tables(self, snapshot: Snapshot | None = None) -> Tables:
        """All tables, streams and views at a snapshot, by lower-case name."""
        return self._defined(snapshot or self.current).tables

    def table(self, table_id: int, snapshot: Snapshot | None = None) -> TableInfo | None:
        """A table, stream or view that users see, by id."""
        return self._defined(snapshot or self.current).by_id.get(table_id)

    def hidden(self, snapshot: Snapshot | None = None) -> dict[int, TableInfo]:
        """What users do not see, by ids: the states of standing queries, the queries that feed streaming views."""
        return self._defined(snapshot or self.current).hidden

    def indexes(self, snapshot: Snapshot | None = None) -> Indexes:
        """All value indices at a snapshot, by lower-case name."""
        return self._defined(snapshot or self.current).indexes

    def _defined(self, snapshot: Snapshot) -> _Definitions:
        with self._lock:
            known = self._definitions.get(snapshot.schema_version)
            if known is not None:
                return known
            earlier = [d for v, d in self._definitions.items() if v < snapshot.schema_version]
        with self.read() as connection:
            last = max(earlier, key=lambda d: d.snapshot_id, default=None)
            if last is not None and snapshots.oldest_id(connection) <= last.snapshot_id < snapshot.id:
                born, gone = views.load_since(connection, last.snapshot_id, snapshot.id)
            else:
                last, born, gone = _Definitions(), views.load(connection, snapshot.id), []
            loaded = last.followed(
                snapshot.id,
                list(tables.load(connection, snapshot.id).values()),
                list(born.values()),
                gone,
                indexes.load(connection, snapshot.id),
            )
        with self._lock:
            while len(self._definitions) >= CACHED_SCHEMA_VERSIONS:
                self._definitions.pop(next(iter(self._definitions)))
            self._definitions[snapshot.schema_version] = loaded
        return loaded

    def table_stats(self, table: TableInfo) -> TableStats:
        """The table's statistics at the current snapshot: never of one that `current` does not tell of yet."""
        known = self._stats.get(table.id)
        if known is not None and not self.read_only:
            return known
        with self._telling, self.read() as connection:
            return stats.load(connection, table.id, stats.column_types(table))

    def row_count(self, table: TableInfo, snapshot_id: int | None = None) -> int:
        """How many rows the table has at a snapshot, the current one by default."""
        at = self.current.id if snapshot_id is None else snapshot_id
        with self.read() as connection:
            rows = files.row_count(connection, table.id, at)
            return rows + (inlined.count(connection, table, at) if table.inlined_table else 0)

    def commit(self, work: Callable[[Commit], T], *, shareable: bool = False, receipt: Receipt | None = None) -> T:
        """Run `work` in a transaction that makes one snapshot; durable when this returns.

        Shareable work may find itself in one snapshot with other threads' work.
        """
        self.check_writable()
        return self._queue.submit(work, shareable=shareable, receipt=receipt)

    def check_writable(self) -> None:
        if self.read_only:
            raise StatementError(
                Condition.READ_ONLY,
                "the database is open for reading only",
                hint="Open it without read_only to change it.",
            )

    def _transact(self, run: Callable[[Commit], None]) -> None:
        with ExitStack() as until_told:
            with self._store.write() as connection:
                commit = Commit(connection, self._now.snapshot, self._clock.now())
                commit.table_stats = dict(self._stats)
                run(commit)
                for table_id, after in commit.table_stats.items():
                    before = self._stats.get(table_id)
                    if before is not after:
                        stats.save(connection, table_id, before, after)
                snapshot = commit.finish()
                until_told.enter_context(self._telling)
            self._removals |= dict.fromkeys(commit.removed_from, snapshot.id)
            self._now = Moment(snapshot, {**self._now.streams, **commit.stream_states})
            # After the snapshot: statistics are never of a later one.
            self._stats = commit.table_stats

    def maintain(self, work: Callable[[Connection], T]) -> T:
        """Run housekeeping that makes no snapshot, between two commits."""
        outcome: list[T] = []

        def run(commit: Commit) -> None:
            outcome.append(work(commit.connection))

        self._queue.submit(run, shareable=False)
        return outcome[0]

    @contextmanager
    def pinned(self, snapshot_id: int) -> Iterator[None]:
        """Keep a snapshot, and so its files, from being expired."""
        self.pin(snapshot_id)
        try:
            yield
        finally:
            self.unpin(snapshot_id)

    @contextmanager
    def pinned_now(self) -> Iterator[Moment]:
        """What is there now, kept from the instant on at which it is looked at."""
        moment = self.pin_now()
        try:
            yield moment
        finally:
            self.unpin(moment.snapshot.id)

    def pin_now(self) -> Moment:
        """The same, until the caller gives the pin back."""
        stored = self.now if self.read_only else None
        with self._lock:
            # Whoever asks for the pins behind a commit finds this one, or it is of that commit or a later one.
            moment = stored or self._now
            self._take_back_pins()
            self._pins[moment.snapshot.id] = self._pins.get(moment.snapshot.id, 0) + 1
        return moment

    def pin_all(self, snapshot_ids: Iterable[int]) -> ExitStack:
        """Keep several snapshots that somebody has pinned; closing what this returns gives them back."""
        pins = ExitStack()
        for snapshot_id in snapshot_ids:
            self.pin(snapshot_id)
            pins.callback(self.unpin, snapshot_id)
        return pins

    def pin_version(self, version: int | None, time: datetime | None) -> Snapshot:
        """A snapshot as `snapshot` finds it, kept until the caller gives the pin back."""
        with self._old:
            found = self.snapshot(version, time)
            self.pin(found.id)
        return found

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """While old snapshots are forgotten nobody begins to read one."""
        with self._old:
            yield

    def pin(self, snapshot_id: int) -> None:
        with self._lock:
            self._take_back_pins()
            self._pins[snapshot_id] = self._pins.get(snapshot_id, 0) + 1

    def unpin(self, snapshot_id: int) -> None:
        self._unpinned.append(snapshot_id)

    def pins(self) -> list[int]:
        """The snapshots that someone reads."""
        with self._lock:
            self._take_back_pins()
            return sorted(self._pins)

    def oldest_pin(self) -> int | None:
        with self._lock:
            self._take_back_pins()
            return min(self._pins, default=None)

    def _take_back_pins(self) -> None:
        while self._unpinned:
            snapshot_id = self._unpinned.popleft()
            self._pins[snapshot_id] -= 1
            if not self._pins[snapshot_id]:
                del self._pins[snapshot_id]

    @property
    def has_removals(self) -> bool:
        """Whether rows were taken from any table before their time since the database was opened."""
        return bool(self._removals)

    def removed_at(self, table_id: int) -> int:
        """The newest snapshot that took rows from a table before their time; -1: none since it was opened.

        What a snapshot took is told of before the snapshot is.
        """
        return self._removals.get(table_id, -1)


def _moment(connection: Connection) -> Moment:
    return Moment(snapshots.newest(connection), streams.load_all(connection))
