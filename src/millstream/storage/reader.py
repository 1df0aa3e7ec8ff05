"""A statement's view of the database: one moment of it, plus an open transaction's own changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.schema import ObjectKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack
    from datetime import datetime

    from millstream.catalog.records import Moment, Snapshot, TableInfo
    from millstream.storage.lake import Lake
    from millstream.storage.prune import Comparison
    from millstream.storage.scan import Scan
    from millstream.storage.transaction import Transaction

    Views = Callable[[TableInfo, "Reader"], Any]


class Reader:
    """Every table it gives is at the same moment; of streaming tables only what is within their period.

    Older versions stay as long as `pins`, where they are given.
    """

    def __init__(
        self,
        lake: Lake,
        transaction: Transaction | None = None,
        views: Views | None = None,
        moment: Moment | None = None,
        pins: ExitStack | None = None,
    ) -> None:
        self._lake = lake
        self._views = views
        self._transaction = transaction
        self._moment = transaction.moment if transaction is not None else moment or lake.catalog.now
        self._horizons: dict[int, int | None] = {}
        self._pins = pins

    @property
    def is_at_a_commit(self) -> bool:
        """Whether all it gives is committed."""
        return self._transaction is None

    def snapshot(self, version: int | None = None, time: datetime | None = None) -> Snapshot:
        if version is None and time is None:
            return self._moment.snapshot
        if self._pins is None:
            return self._lake.catalog.snapshot(version, time)
        found = self._lake.catalog.pin_version(version, time)
        self._pins.callback(self._lake.catalog.unpin, found.id)
        return found

    def tables(self, snapshot: Snapshot) -> Mapping[str, TableInfo]:
        if self._transaction is not None and self._is_now(snapshot):
            return self._transaction.tables()
        return self._lake.catalog.tables(snapshot)

    def view(self, table: TableInfo) -> Any:
        """The rows of a continuous view, from those who keep it."""
        if self._views is None:
            raise AssertionError("this reader reads no continuous views")
        return self._views(table, self)

    def _is_now(self, snapshot: Snapshot) -> bool:
        return snapshot.id == self._moment.snapshot.id

    def horizon(self, table: TableInfo) -> int | None:
        """The oldest visible time, the same for every version: what has left the period is gone from all."""
        if table.kind is not ObjectKind.STREAMING_TABLE:
            return None
        if table.id not in self._horizons:
            known = self._lake.catalog.tables(self._moment.snapshot).get(table.name.lower(), table)
            self._horizons[table.id] = self._lake.horizon(known if known.id == table.id else table, self._moment)
        return self._horizons[table.id]

    def scan(self, table: TableInfo, snapshot: Snapshot, comparisons: Sequence[Comparison]) -> Scan:
        horizon = self.horizon(table)
        if not self._is_now(snapshot):
            return self._lake.scan(table, snapshot, comparisons, horizon, use_indexes=False)
        if self._transaction is not None:
            return self._transaction.read(table, comparisons, horizon)
        return self._lake.scan(table, snapshot, comparisons, horizon)

    def row_count(self, table: TableInfo) -> int:
        if self._transaction is None and self.horizon(table) is None:
            return self._lake.catalog.row_count(table)
        return self._lake.count(self.scan(table, self._moment.snapshot, ()))
