"""A table at a snapshot: the files that can hold a match and the rows inlined in the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import files, inlined, stats
from millstream.catalog.records import DataFile, TableInfo
from millstream.storage import inline, prune

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.catalog.records import ColumnStats
    from millstream.catalog.store import Connection

    FileStats = dict[int, dict[int, ColumnStats]]


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

    @property
    def rows(self) -> int:
        """How many rows the files and the inlined part hold together."""
        return sum(f.rows for f in self.files) + (self.inlined.num_rows if self.inlined else 0)


def plan(
    connection: Connection,
    table: TableInfo,
    snapshot_id: int,
    comparisons: Sequence[prune.Comparison] = (),
) -> Scan:
    """Find the files of a snapshot that may match, and its inlined rows."""
    every = files.live(connection, table.id, snapshot_id)
    kept = _prune(connection, table, snapshot_id, every, comparisons)
    rows = inlined.live(connection, table, snapshot_id) if table.inlined_table else []
    data, ids = inline.from_rows(table, rows) if rows else (None, None)
    return Scan(table, snapshot_id, tuple(kept), len(every) - len(kept), data, ids, tuple(comparisons))


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
    known = stats.of_files(connection, table, snapshot_id, ids)
    return [f for f in every if prune.keep(table, known.get(f.id, {}), comparisons)]
