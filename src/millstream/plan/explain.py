"""EXPLAIN: what a query will read, before Spark sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from millstream.plan.bind import BoundQuery, BoundTable


def logical(bound: BoundQuery) -> str:
    """The tables a query reads: at which version, which files, why others are left out."""
    lines = ["Query (runs on Spark as written)"]
    for table in bound.tables:
        lines += [f"  {line}" for line in _table(table)]
    if not bound.tables:
        lines.append("  reads no table")
    return "\n".join(lines)


def _table(bound: BoundTable) -> list[str]:
    scan = bound.scan
    alias = f" as {bound.reference.alias}" if bound.reference.alias else ""
    total = len(scan.files) + scan.skipped_files
    lines = [f"Read {scan.table.kind.value} {scan.table.name}{alias} at version {scan.snapshot_id}"]
    lines.append(f"  files: {len(scan.files)} of {total}, {sum(f.rows for f in scan.files)} rows")
    if scan.inlined is not None:
        lines.append(f"  inlined: {scan.inlined.num_rows} rows")
    if scan.comparisons:
        lines.append(f"  pruned by: {' AND '.join(str(c) for c in scan.comparisons)}")
    return lines


def as_table(text: str) -> pa.Table:
    return pa.table({"plan": text.splitlines()})
