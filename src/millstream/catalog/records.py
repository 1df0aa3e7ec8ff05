"""What the catalogue holds, as frozen records; the rest of the house sees only these."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.catalog import types
from millstream.schema import Column, Duration, ObjectKind, Schema, instant, is_nested

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

INLINE_SYSTEM_COLUMNS = frozenset({"row_id", "begin_snapshot", "end_snapshot"})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed state of the whole database."""

    id: int
    time: datetime
    schema_version: int
    next_catalog_id: int
    next_file_id: int
    changes: str = ""


@dataclass(frozen=True, slots=True)
class StreamTime:
    """A stream's time: its column, and how far behind the newest row the watermark stays."""

    column: str
    delay: Duration
    is_arrival: bool = False


@dataclass(frozen=True, slots=True)
class ContinuousInfo:
    """A continuous view's plan, as text, and the ids of the tables that hold its states and its static parts."""

    plan: str
    states: tuple[int, ...] = ()
    statics: tuple[int, ...] = ()
    has_history: bool = False


@dataclass(frozen=True, slots=True)
class StandingInfo:
    """A continuous query's plan, as text, and the id of the table that its results go to, if any."""

    plan: str
    target: int | None = None


@dataclass(frozen=True)
class TableInfo:
    """A table or stream at one schema version."""

    id: int
    name: str
    kind: ObjectKind
    schema: Schema
    column_ids: tuple[int, ...]
    path: str
    schema_version: int
    time: StreamTime | None = None
    comment: str | None = None
    period: Duration | None = None
    """How long a streaming table keeps its rows; None for ever."""
    definition: str | None = None
    """A view's query, as it was written."""
    continuous: ContinuousInfo | None = None
    """What a continuous view is kept by."""
    standing: StandingInfo | None = None
    """What a continuous query is answered by."""

    @property
    def time_column_id(self) -> int | None:
        return None if self.time is None else self.column_ids[self.schema.names.index(self.time.column)]

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of its Parquet files, field ids included."""
        fields = zip(self.schema.arrow, self.column_ids, strict=True)
        return pa.schema([types.with_field_ids(f, first) for f, first in fields])

    @cached_property
    def inlined_table(self) -> str | None:
        """Where its small inserts go; None if they cannot be inlined and become files."""
        if self.kind is ObjectKind.STATE:
            return None
        if any(is_nested(c.type) or c.name.lower() in INLINE_SYSTEM_COLUMNS for c in self.schema.columns):
            return None
        return f"ducklake_inlined_data_{self.id}_{self.schema_version}"

    def column(self, column_id: int) -> Column:
        return self.schema.columns[self.column_ids.index(column_id)]


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """What is known of one column's values; bounds leave out nulls and NaN."""

    values: int = 0
    nulls: int = 0
    low: Any = None
    high: Any = None
    has_nan: bool | None = None

    def merged(self, other: ColumnStats) -> ColumnStats:
        return ColumnStats(
            values=self.values + other.values,
            nulls=self.nulls + other.nulls,
            low=_extreme(min, self.low, other.low),
            high=_extreme(max, self.high, other.high),
            has_nan=self.has_nan if other.has_nan is None else bool(self.has_nan) or other.has_nan,
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot, and where every stream was when it was the newest."""

    snapshot: Snapshot
    streams: Mapping[int, StreamState]


def _extreme(pick: Any, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    return pick(left, right)


@dataclass(frozen=True, slots=True)
class TableStats:
    """Row counts, the next row id and the columns' bounds, by column id."""

    rows: int = 0
    next_row_id: int = 0
    bytes: int = 0
    columns: dict[int, ColumnStats] = field(default_factory=dict)

    def plus(self, rows: int, row_ids: int, size: int, columns: dict[int, ColumnStats]) -> TableStats:
        """With more rows counted, row ids taken, bytes stored and column values seen."""
        merged = dict(self.columns)
        for column_id, stats in columns.items():
            merged[column_id] = merged[column_id].merged(stats) if column_id in merged else stats
        return TableStats(self.rows + rows, self.next_row_id + row_ids, self.bytes + size, merged)


@dataclass(frozen=True, slots=True)
class Segment:
    """A Parquet file that has been written but belongs to no snapshot yet.

    `row_id_start` is None for new rows (ids are given at commit); for rewritten rows it is the first
    id, and the file carries the rest in its row id column unless they are consecutive.
    """

    path: str
    rows: int
    bytes: int
    footer_bytes: int
    columns: dict[int, ColumnStats]
    row_id_start: int | None = None

    def times(self, table: TableInfo) -> tuple[int, int]:
        """The bounds of its time column, which has no nulls."""
        stats = self.columns[table.time_column_id or 0]
        return instant(stats.low), instant(stats.high)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a snapshot; one that a transaction has staged has a negative id.

    Rows that are new in a transaction have no row ids before it commits. `low` and `high` are the bounds of
    the time column of a streaming table.
    """

    id: int
    path: str
    rows: int
    bytes: int
    row_id_start: int
    begin_snapshot: int
    has_row_ids: bool = True
    low: int | None = None
    high: int | None = None


class IndexMethod(StrEnum):
    """What an index serves: HASH equality and IN, BTREE ranges too."""

    BTREE = "BTREE"
    HASH = "HASH"


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """A value index: one column of one table."""

    id: int
    name: str
    table_id: int
    column_id: int
    method: IndexMethod


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Some rows of an index copy: how many, and what is known of the indexed column in them."""

    rows: int
    stats: ColumnStats


@dataclass(frozen=True, slots=True)
class IndexCopy:
    """A data file's rows once more, sorted by the indexed column; lives as long as the file does."""

    index_id: int
    file_id: int
    path: str
    bytes: int
    groups: tuple[RowGroup, ...]


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where a stream is: times are integers (microseconds for TIMESTAMP)."""

    max_time: int | None = None
    advanced_to: int | None = None
    late_rows: int = 0
    received_rows: int = 0
    dropped_to: int = 0
    refused_rows: int = 0

    def watermark(self, delay: int) -> int | None:
        """The largest time seen minus the delay, or what ADVANCE said if that is larger."""
        seen = None if self.max_time is None else self.max_time - delay
        candidates = [w for w in (seen, self.advanced_to) if w is not None]
        return max(candidates, default=None)
