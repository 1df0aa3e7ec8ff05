"""A database directory, opened: its catalogue, its files, its lock.

catalog.sqlite    the DuckLake catalogue
data/             Parquet segments, a folder for each table
index/            sorted copies of segments, for the value indices
scratch/          inlined rows handed to Spark as Parquet; emptied on every opening
lock              held by the one process that writes
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from millstream.catalog.catalog import Catalog
from millstream.catalog.records import StreamState
from millstream.errors import Condition, MachineError
from millstream.storage import index, period, segment, upkeep, watermark
from millstream.storage.continuous.access import Access
from millstream.storage.index import Chooser
from millstream.storage.lock import DirectoryLock
from millstream.storage.scan import Scan, plan
from millstream.storage.segment import storage_errors, sync_folder
from millstream.storage.transaction import Transaction, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from millstream.catalog.records import DataFile, Moment, Snapshot, TableInfo
    from millstream.clock import Clock
    from millstream.storage.prune import Comparison

CATALOG, DATA, INDEX, SCRATCH, LOCK = "catalog.sqlite", "data", "index", "scratch", "lock"
SCHEMA_FOLDER = "main"


class Lake:
    """See the module's contract. Safe for many threads; a `Transaction` is for one."""

    def __init__(self, root: Path, clock: Clock, *, read_only: bool = False) -> None:
        self.root = root
        self.clock = clock
        self.read_only = read_only
        self._listeners: list[Callable[[Sequence[Written]], None]] = []
        self._before_removal: list[Callable[[int], None]] = []
        self._open_transactions: WeakSet[Transaction] = WeakSet()
        self._arriving: WeakKeyDictionary[Transaction, dict[int, datetime]] = WeakKeyDictionary()
        """When rows that are on their way have arrived: the first of each transaction in each table.

        A transaction that its thread has left open when it ended holds nobody up.
        """
        self._lock = threading.Lock()
        self._directory_lock = self._claim()
        try:
            self.catalog = Catalog(root / CATALOG, root / DATA, clock, read_only=read_only)
            self.scratch = self._make_scratch()
            self.chooser = Chooser(self)
            self.access = Access(self)
            if not read_only:
                upkeep.remove_orphans(self)
                index.remove_orphans(self)
        except BaseException:
            self._release()
            raise

    def _claim(self) -> DirectoryLock | None:
        if self.root.is_file():
            raise not_a_database(self.root, "It is a file, and a database is a directory.")
        exists = (self.root / CATALOG).exists()
        if self.read_only:
            if not exists:
                raise not_a_database(self.root, "There is no catalogue in it.")
            return None
        if self.root.exists() and not exists and not _is_ours_or_empty(self.root):
            raise not_a_database(self.root, "The directory has files in it that are not a database's.")
        with storage_errors():
            (self.root / DATA / SCHEMA_FOLDER).mkdir(parents=True, exist_ok=True)
        return DirectoryLock(self.root / LOCK)

    def _make_scratch(self) -> Path:
        if self.read_only:
            return Path(tempfile.mkdtemp(prefix="millstream-"))
        scratch = self.root / SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        return scratch

    def _release(self) -> None:
        if self._directory_lock is not None:
            self._directory_lock.release()

    def close(self) -> None:
        self.catalog.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._release()

    @property
    def data(self) -> Path:
        return self.root / DATA

    def folder(self, table: TableInfo) -> Path:
        """Where a table's segments are; made when first asked for by one who may write."""
        folder = self.data / SCHEMA_FOLDER / table.path
        if not self.read_only and not folder.exists():
            with storage_errors():
                folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
        return folder

    @property
    def indexes(self) -> Path:
        return self.root / INDEX

    def index_folder(self, table: TableInfo) -> Path:
        """Where the index copies of a table's segments are; made when first asked for."""
        folder = self.indexes / table.path
        if not folder.exists():
            with storage_errors():
                folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
        return folder

    def path_of(self, scan: Scan, file: DataFile) -> Path:
        """The Parquet file to read: the data file itself, or the index copy chosen for it."""
        choice = scan.choices.get(file.id)
        return self.folder(scan.table) / file.path if choice is None else self.indexes / choice.copy.path

    def transaction(self, *, is_long: bool = False) -> Transaction:
        """A new transaction on the current snapshot; upkeep leaves all rows in place for a long one."""
        self.catalog.check_writable()
        return Transaction(self, is_long=is_long)

    def began(self, transaction: Transaction) -> None:
        with self._lock:
            self._open_transactions.add(transaction)

    def finished(self, transaction: Transaction) -> None:
        with self._lock:
            self._open_transactions.discard(transaction)
            self._arriving.pop(transaction, None)

    def is_being_changed(self, table: TableInfo) -> bool:
        """Whether an open transaction takes rows from the table, or may, so that upkeep must wait."""
        with self._lock:
            return any(t.is_long or t.removes_from(table) for t in self._open_transactions)

    def stamp(self, transaction: Transaction, table: TableInfo) -> datetime:
        """The time at which a transaction's rows arrive; until it has ended, nobody takes that time for past."""
        with self._lock:
            now = self.clock.now()
            self._arriving.setdefault(transaction, {}).setdefault(table.id, now)
            return now

    def arrived_until(self, table_id: int) -> datetime:
        """A time such that every row that is committed to a table from now on arrives then or later."""
        with self._lock:
            stamps = [s[table_id] for s in self._arriving.values() if table_id in s]
            return min((self.clock.now(), *stamps))

    def on_removal(self, settle: Callable[[int], None]) -> None:
        """Have `settle` called, with the table's id, before rows are taken from a table."""
        self._before_removal.append(settle)

    def settle(self, table_id: int) -> None:
        """Let all who read a table continuously see what is in it, before some of it goes."""
        for settle in (self.access.settle, *self._before_removal):
            settle(table_id)

    def on_commit(self, listener: Callable[[Sequence[Written]], None]) -> None:
        self._listeners.append(listener)

    def committed(self, written: Sequence[Written]) -> None:
        for listener in self._listeners:
            listener(written)

    def scan(
        self,
        table: TableInfo,
        snapshot: Snapshot,
        comparisons: Sequence[Comparison] = (),
        horizon: int | None = None,
        *,
        use_indexes: bool = True,
    ) -> Scan:
        """The table at a snapshot from its horizon on, without the files that cannot match.

        Index copies are kept for files of the newest snapshots alone, so time travel does without.
        """
        chooser = self.chooser if use_indexes else None
        with self.catalog.read() as connection:
            return plan(connection, table, snapshot.id, comparisons, horizon, chooser)

    def horizon(self, table: TableInfo, moment: Moment) -> int | None:
        """The oldest time of a streaming table that is visible at a moment."""
        return period.horizon(table, moment.streams.get(table.id, StreamState()), self.clock.now())

    def count(self, found: Scan) -> int:
        """How many visible rows a scan holds: only files that lie across the horizon are looked into."""
        rows = found.rows
        if found.horizon is None or found.table.time is None:
            return rows
        for file in found.files:
            if file.low is None or file.low < found.horizon:
                column = segment.read_column(self.folder(found.table), file.path, found.table.time.column)
                rows -= int((watermark.times_of(column) < found.horizon).sum())
        return rows


def _is_ours_or_empty(root: Path) -> bool:
    return {p.name for p in root.iterdir()} <= {CATALOG, DATA, INDEX, SCRATCH, LOCK}


def not_a_database(root: Path, detail: str) -> MachineError:
    return MachineError(
        Condition.NOT_A_DATABASE,
        f"{str(root)!r} is not a Millstream database",
        detail=detail,
        hint="Give the directory of a database, or a new or empty directory to create one in.",
    )
