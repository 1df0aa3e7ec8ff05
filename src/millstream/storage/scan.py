"""A table at a snapshot: the files that can hold a match and the rows inlined in the catalogue.

The interval index gives a streaming table's segments for a span of time, the bounds of other columns
rule out more, and where a value index has a sorted copy of a segment in which fewer rows can match, the
copy is read in its place. `horizon` is the oldest visible time; whoever reads leaves older rows out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.catalog import files, inlined, stats
from millstream.catalog.files import AFTER_ALL, BEFORE_ALL
from millstream.catalog.records import DataFile, TableInfo
from millstream.schema import ObjectKind, instant
from millstream.storage import inline, prune, watermark
from millstream.storage.prune import Operator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from millstream.catalog.records import ColumnStats
    from millstream.catalog.store import Connection
    from millstream.storage.index import Choice, Chooser

    FileStats = dict[int, dict[int, ColumnStats]]

ROW = "__row"
UNTIL = (Operator.LT, Operator.LE)
SINCE = (Operator.GT, Operator.GE)


@dataclass(frozen=True)
class Scan:
    """What to read, and how much was left out. `inlined` is None where there is nothing inlined."""

    table: TableInfo
    snapshot_id: int
    files: tuple[DataFile, ...]
    skipped_files: int = 0
    inlined: pa.Table | None = None
    inlined_ids: pa.Array | None = None
    comparisons: tuple[prune.Comparison, ...] = ()
    horizon: int | None = None
    choices: Mapping[int, Choice] = field(default_factory=dict)
    since: int | None = None
    """Of a stream's new rows: the first row id that is wanted. The rows then carry their numbers, in `ROW`."""
    token: str | None = None
    """What tells the rows of a materialised view from all others."""

    @property
    def rows(self) -> int:
        """How many rows the files and the inlined part hold together."""
        return sum(f.rows for f in self.files) + (self.inlined.num_rows if self.inlined else 0)

    @property
    def rows_to_read(self) -> int:
        """How many rows are left when index copies skip the row groups that cannot match."""
        read = sum(self.choices[f.id].rows if f.id in self.choices else f.rows for f in self.files)
        return read + (self.inlined.num_rows if self.inlined else 0)

    @property
    def rows_in_groups(self) -> int:
        """How many rows whole row groups leave: what a reader has to take that cannot skip pages."""
        read = sum(self.choices[f.id].rows_in_groups if f.id in self.choices else f.rows for f in self.files)
        return read + (self.inlined.num_rows if self.inlined else 0)

    @property
    def needs_horizon(self) -> bool:
        """Whether some file may hold rows that are not visible any more."""
        return self.horizon is not None and any(f.low is None or f.low < self.horizon for f in self.files)


def plan(
    connection: Connection,
    table: TableInfo,
    snapshot_id: int,
    comparisons: Sequence[prune.Comparison] = (),
    horizon: int | None = None,
    chooser: Chooser | None = None,
) -> Scan:
    """Find the files of a snapshot that may match, and its inlined rows."""
    if chooser is not None and not chooser.enabled:
        comparisons = ()
    total = files.count(connection, table.id, snapshot_id)
    low, high = time_range(table, comparisons, horizon)
    kept = _overlapping(connection, table, snapshot_id, low, high)
    kept = _prune(connection, table, snapshot_id, kept, comparisons)
    choices: Mapping[int, Choice] = {}
    if chooser is not None:
        choices = chooser.choose(connection, table, kept, comparisons, (low, high))
        kept = [f for f in kept if f.id not in choices or choices[f.id].groups]
    rows = inlined.live(connection, table, snapshot_id) if table.inlined_table else []
    data, ids = inline.from_rows(table, rows) if rows else (None, None)
    found = Scan(
        table, snapshot_id, tuple(kept), total - len(kept), data, ids, tuple(comparisons), horizon, choices
    )
    return visible(found)


def time_range(table: TableInfo, comparisons: Sequence[prune.Comparison], horizon: int | None) -> tuple[int, int]:
    """The first and last time that can match."""
    low, high = BEFORE_ALL if horizon is None else horizon, AFTER_ALL
    for comparison in comparisons:
        if table.time is None or comparison.column != table.time.column:
            continue
        times = [_time(v) for v in comparison.values]
        if None in times:
            continue
        known = [t for t in times if t is not None]
        if comparison.operator not in UNTIL:
            low = max(low, min(known))
        if comparison.operator not in SINCE:
            high = min(high, max(known))
    return low, high


def _time(value: int | datetime | object) -> int | None:
    is_time = not isinstance(value, bool) and (isinstance(value, int) or hasattr(value, "tzinfo"))
    return instant(value) if is_time else None  # type: ignore[arg-type]


def _overlapping(
    connection: Connection, table: TableInfo, snapshot_id: int, low: int, high: int
) -> list[DataFile]:
    if table.kind is ObjectKind.STREAMING_TABLE:
        return files.overlapping(connection, table.id, snapshot_id, low, high)
    return files.live(connection, table.id, snapshot_id)


def _prune(
    connection: Connection,
    table: TableInfo,
    snapshot_id: int,
    every: list[DataFile],
    comparisons: Sequence[prune.Comparison],
) -> list[DataFile]:
    if not comparisons or not every:
        return every
    wanted = {c.column.lower() for c in comparisons}
    ids = [i for i, n in zip(table.column_ids, table.schema.names, strict=True) if n.lower() in wanted]
    known = stats.of_files(connection, table, snapshot_id, ids, [f.id for f in every])
    return [f for f in every if prune.keep(table, known.get(f.id, {}), comparisons)]


def visible(scan: Scan) -> Scan:
    """Without the inlined rows that are older than the horizon."""
    if scan.horizon is None or scan.inlined is None or scan.inlined_ids is None or scan.table.time is None:
        return scan
    times = watermark.times_of(scan.inlined.column(scan.table.time.column))
    keep = pa.array(times >= scan.horizon)
    if pc.all(keep).as_py():
        return scan
    data = scan.inlined.filter(keep)
    ids = scan.inlined_ids.filter(keep)
    return replace(scan, inlined=data if data.num_rows else None, inlined_ids=ids if data.num_rows else None)
