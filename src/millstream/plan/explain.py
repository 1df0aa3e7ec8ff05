"""EXPLAIN: what a query will read, before Spark sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog.files import AFTER_ALL, BEFORE_ALL
from millstream.plan import define
from millstream.schema import ObjectKind
from millstream.storage.scan import time_range

if TYPE_CHECKING:
    from millstream.plan.bind import BoundQuery, BoundTable
    from millstream.storage.scan import Scan


def logical(bound: BoundQuery) -> str:
    """The tables a query reads: at which version, which files, why others are left out."""
    by_storage = "few rows and plain comparisons: looked up without a Spark job"
    lines = [f"Query ({by_storage if bound.lookup is not None else 'runs on Spark as written'})"]
    for table in every_table(bound):
        lines += [f"  {line}" for line in _table(table)]
    if not every_table(bound):
        lines.append("  reads no table")
    return "\n".join(lines)


def every_table(bound: BoundQuery) -> list[BoundTable]:
    """The tables of the query and of the views in it."""
    return [*bound.tables, *(t for view in bound.views for t in every_table(view.query))]


def _table(bound: BoundTable) -> list[str]:
    scan = bound.scan
    alias = f" as {bound.reference.alias}" if bound.reference.alias else ""
    total = len(scan.files) + scan.skipped_files
    lines = [f"Read {scan.table.kind.value} {scan.table.name}{alias} at version {scan.snapshot_id}"]
    lines.append(f"  files: {len(scan.files)} of {total}, {sum(f.rows for f in scan.files)} rows")
    lines += [f"  {line}" for line in (*_time(scan), *_indices(scan))]
    if scan.inlined is not None:
        lines.append(f"  inlined: {scan.inlined.num_rows} rows")
    if scan.comparisons:
        lines.append(f"  pruned by: {' AND '.join(str(c) for c in scan.comparisons)}")
    return lines


def _time(scan: Scan) -> list[str]:
    """What the interval index did for a streaming table."""
    if scan.table.kind is not ObjectKind.STREAMING_TABLE:
        return []
    low, high = time_range(scan.table, scan.comparisons, scan.horizon)
    first = "the first" if low == BEFORE_ALL else define.time_text(scan.table, low)
    last = "the last" if high == AFTER_ALL else define.time_text(scan.table, high)
    lines = [f"interval index: times from {first} to {last}, segments skipped: {scan.skipped_files}"]
    if scan.needs_horizon:
        lines.append("rows beyond the period are left out")
    return lines


def _indices(scan: Scan) -> list[str]:
    """For each index in use: how many segments are read through it, and how many row groups of them."""
    lines = []
    for index in dict.fromkeys(c.index for c in scan.choices.values()):
        used = [c for c in scan.choices.values() if c.index == index]
        segments = sum(1 for c in used if c.groups)
        total, read = sum(len(c.copy.groups) for c in used), sum(len(c.groups) for c in used)
        column = scan.table.column(index.column_id).name
        lines.append(
            f"index: {index.name} on {column} ({index.method.value}), segments read through it: {segments},"
            f" row groups: {read} of {total}"
        )
    return lines


def as_table(text: str) -> pa.Table:
    return pa.table({"plan": text.splitlines()})
