"""What the names in fragments stand for: the database at a moment, with place-holders beside its tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from millstream.schema import ObjectKind
from millstream.storage.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from millstream.catalog.records import Snapshot, TableInfo
    from millstream.plan.bind import BoundQuery
    from millstream.storage.prune import Comparison
    from millstream.storage.reader import Reader


@dataclass(frozen=True)
class Overlay:
    """A source for binding (see `plan.bind.Source`) in which some names stand for scans of our choice."""

    reader: Reader
    scans: Mapping[str, Scan] = field(default_factory=dict)
    is_blank: bool = False
    """Whether continuous views have no rows: for those who ask for columns alone."""

    def snapshot(self, version: int | None = None, time: datetime | None = None) -> Snapshot:
        return self.reader.snapshot(version, time)

    def tables(self, snapshot: Snapshot) -> Mapping[str, TableInfo]:
        own = {name.lower(): replace(scan.table, name=name) for name, scan in self.scans.items()}
        return {**self.reader.tables(snapshot), **own}

    def scan(self, table: TableInfo, snapshot: Snapshot, comparisons: Sequence[Comparison]) -> Scan:
        found = self.scans.get(table.name)
        return found if found is not None else self.reader.scan(table, snapshot, comparisons)

    def view(self, table: TableInfo) -> Scan | BoundQuery:
        found: Scan | BoundQuery = no_rows(table, self.snapshot()) if self.is_blank else self.reader.view(table)
        return found

    def row_count(self, table: TableInfo) -> int:
        return self.reader.row_count(table)

    def horizon(self, table: TableInfo) -> int | None:
        return None if table.name in self.scans else self.reader.horizon(table)


def table_name(table_id: int) -> str:
    """The place-holder of a hidden table."""
    return f"__ms_table_{table_id}__"


def as_table(stream: TableInfo) -> TableInfo:
    """A stream as a fragment reads it: an ordinary table."""
    plain = stream.kind not in (ObjectKind.STREAM, ObjectKind.CONTINUOUS_VIEW, ObjectKind.CONTINUOUS_QUERY)
    return stream if plain else replace(stream, kind=ObjectKind.TABLE)


def is_view(table: TableInfo) -> bool:
    return table.kind is ObjectKind.CONTINUOUS_VIEW


def no_rows(table: TableInfo, snapshot: Snapshot) -> Scan:
    """The table without its rows."""
    return Scan(as_table(table), snapshot.id, ())


def new_rows(scan: Scan) -> Scan:
    """A scan of a stream's new rows, whose table has the number of each row as a column."""
    return replace(scan, table=replace(as_table(scan.table), period=None))


def no_new_rows(stream: TableInfo, snapshot: Snapshot) -> Scan:
    return Scan(replace(as_table(stream), period=None), snapshot.id, (), since=0)
