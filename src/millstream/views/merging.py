"""Merging small states in the driver with Arrow: sums, least and largest values, all and any.

Gives what `Part.merged` gives on Spark, or nothing where Arrow cannot: other merges, sums that might overflow,
keys that Spark compares differently (floating numbers), more rows than the driver should hold.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.plan.incremental import Part

MOST_ROWS = 1_048_576
SIMPLE = re.compile(r"(sum|min|max|bool_and|bool_or)\((\w+)\)")
KERNELS = {"sum": "sum", "min": "min", "max": "max", "bool_and": "all", "bool_or": "any"}
OPTIONS = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
SAFE = 2**62


def can_merge(part: Part) -> bool:
    """Whether Arrow knows all merges of a part."""
    floating = any(t in ("float", "double") for k, t in part.types if k in part.keys)
    return bool(part.partials) and not floating and all(SIMPLE.fullmatch(p.merge) for p in part.partials)


def merged(part: Part, pieces: Sequence[pa.Table]) -> pa.Table | None:
    """One row for each group of the pieces' rows; None if Arrow cannot."""
    rows = pa.concat_tables(pieces)
    if rows.num_rows > MOST_ROWS or not all(_is_safe(rows, p.merge) for p in part.partials):
        return None
    wanted = [(p.name, KERNELS[_function(p.merge)], OPTIONS) for p in part.partials]
    try:
        found = rows.group_by(list(part.keys)).aggregate(wanted)
    except pa.ArrowNotImplementedError:
        return None
    columns = [found.column(k) for k in part.keys]
    columns += [found.column(f"{name}_{kernel}") for name, kernel, _ in wanted]
    return pa.table(columns, names=list(rows.column_names)).cast(rows.schema)


def _function(merge: str) -> str:
    return merge.partition("(")[0]


def _is_safe(rows: pa.Table, merge: str) -> bool:
    """Whether a sum of whole numbers cannot overflow, which Arrow would not tell."""
    column = rows.column(merge.partition("(")[2].removesuffix(")"))
    if _function(merge) != "sum" or not pa.types.is_integer(column.type):
        return _function(merge) != "sum" or bool(pa.types.is_floating(column.type))
    bounds = pc.min_max(column).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    return bool(largest * max(1, rows.num_rows) < SAFE)
