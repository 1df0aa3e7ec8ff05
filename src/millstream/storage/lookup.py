"""The rows of a scan that satisfy comparisons, read in the driver: for queries over few rows.

Of an index copy only the row groups that can match are read, of a segment those that its own bounds leave.
Rows come file by file, inlined ones last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.storage import segment
from millstream.storage.continuous import match
from millstream.storage.prune import Comparison, Operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.catalog.records import DataFile
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan


def find(lake: Lake, scan: Scan, comparisons: Sequence[Comparison], columns: Sequence[str]) -> pa.Table:
    """The rows, within a streaming table's period, for which every comparison is true: these columns of them."""
    wanted = (*comparisons, *_period(scan))
    read = list(dict.fromkeys([*columns, *(c.column for c in wanted)]))
    parts = [_matching(part, wanted).select(list(columns)) for part in _parts(lake, scan, read)]
    schema = pa.schema([scan.table.schema.arrow.field(n) for n in columns])
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _period(scan: Scan) -> Iterator[Comparison]:
    if scan.needs_horizon and scan.table.time is not None:
        yield Comparison(scan.table.time.column, Operator.GE, (scan.horizon,))


def _parts(lake: Lake, scan: Scan, columns: Sequence[str]) -> Iterator[pa.Table]:
    wanted = pa.schema([scan.table.schema.arrow.field(n) for n in columns])
    for file in scan.files:
        yield segment.completed(wanted, _read(lake, scan, file, columns))
    if scan.inlined is not None:
        yield scan.inlined.select(columns)


def _read(lake: Lake, scan: Scan, file: DataFile, columns: Sequence[str]) -> pa.Table:
    choice = scan.choices.get(file.id)
    with segment.storage_errors(), pq.ParquetFile(lake.path_of(scan, file), memory_map=True) as source:
        present = [n for n in columns if n in source.schema_arrow.names]
        if choice is None:
            return source.read(present)
        return source.read_row_groups(list(choice.groups), present)


def _matching(rows: pa.Table, comparisons: Sequence[Comparison]) -> pa.Table:
    return rows.filter(pa.array(match.mask(rows, (tuple(comparisons),)))) if comparisons else rows
