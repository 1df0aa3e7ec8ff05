"""Small states in the driver: merged with Arrow, and stored.

Merges sums, least and largest values, all and any: gives what `Part.merged` gives on Spark, or nothing where Arrow
cannot: other merges, sums that might overflow, keys that Spark compares differently (floating numbers) or that
Arrow does not group by (nested ones), more rows than the driver should hold.
"""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.execute.write import remove_others
from millstream.storage import segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.catalog.records import DataFile, Segment, TableInfo
    from millstream.plan.incremental import Part
    from millstream.storage.lake import Lake

MOST_ROWS = 4_194_304
LEAST_MERGED_ROWS = 16_384
MERGED_TIMES = 4
"""A state of up to so many times the rows of a basket is merged with it: to write it again costs less than reads
that find it in pieces."""
SIMPLE = re.compile(r"(sum|min|max|bool_and|bool_or)\((\w+)\)")
KERNELS = {"sum": "sum", "min": "min", "max": "max", "bool_and": "all", "bool_or": "any"}
OPTIONS = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
SAFE = 2**62
INCOMPARABLE = ("float", "double", "array", "struct", "map")


@dataclass(frozen=True)
class Done:
    """What was made of a part: new pieces of its state, the old ones that they replace, whether that is all."""

    new: tuple[Segment, ...] = ()
    gone: tuple[DataFile, ...] = ()
    is_whole: bool = False


def is_worth_it(old: Sequence[DataFile], basket: int) -> bool:
    """Whether the pieces of a state are to be merged with what a basket of so many rows gives."""
    return bool(old) and sum(f.rows for f in old) <= max(MERGED_TIMES * basket, LEAST_MERGED_ROWS)


def store(lake: Lake, wanted: Sequence[tuple[Part, TableInfo, pa.Table | None, Sequence[DataFile]]]) -> list[Done]:
    """Write new partial rows of states, merged with the old pieces given where that can be done here."""
    token = uuid.uuid4().hex[:12]
    touched = [lake.folder(t) for _, t, rows, _ in wanted if rows is not None]
    try:
        with ThreadPoolExecutor(segment.WRITERS) as pool:
            stored = list(pool.map(lambda w: _store(lake, token, *w), wanted))
    except BaseException:
        for folder in touched:
            remove_others(folder, token, set())
        raise
    for folder in touched:
        segment.sync_folder(folder)
    return stored


def _store(
    lake: Lake, token: str, part: Part, table: TableInfo, rows: pa.Table | None, old: Sequence[DataFile]
) -> Done:
    if rows is None:
        return Done()
    folder, whole = lake.folder(table), None
    if old and can_merge(part) and rows.num_rows + sum(f.rows for f in old) <= MOST_ROWS:
        whole = merged(part, [*(segment.read(folder, table, f)[0] for f in old), rows])
    data = rows if whole is None else whole
    written = tuple(segment.write(folder, table, p, token=token) for p in segment.sliced(data))
    return Done(written) if whole is None else Done(written, tuple(old), is_whole=True)


def can_merge(part: Part) -> bool:
    """Whether Arrow knows all merges of a part."""
    simple = all(SIMPLE.fullmatch(p.merge) for p in part.partials)
    return bool(part.partials) and not part.prepared and can_compare_keys(part) and simple


def can_compare_keys(part: Part) -> bool:
    """Whether Arrow groups by the keys of a part, and as Spark does."""
    return not any(t.startswith(INCOMPARABLE) for k, t in part.types if k in part.keys)


def merged(part: Part, pieces: Sequence[pa.Table]) -> pa.Table | None:
    """One row for each group of the pieces' rows; None if Arrow cannot."""
    rows = pa.concat_tables(pieces)
    if not all(is_safe(rows, p.merge) for p in part.partials):
        return None
    wanted = [(p.name, KERNELS[function_of(p.merge)], OPTIONS) for p in part.partials]
    try:
        found = rows.group_by(list(part.keys)).aggregate(wanted)
    except pa.ArrowNotImplementedError:
        return None
    columns = [found.column(k) for k in part.keys]
    columns += [found.column(f"{name}_{kernel}") for name, kernel, _ in wanted]
    return pa.table(columns, names=list(rows.column_names)).cast(rows.schema)


def function_of(merge: str) -> str:
    """The function by which a partial result is merged."""
    return merge.partition("(")[0]


def is_safe(rows: pa.Table, merge: str) -> bool:
    """Whether Arrow gives what Spark gives: it tells no overflow of a sum, and NaN is no largest number to it."""
    column = rows.column(merge.partition("(")[2].removesuffix(")"))
    if function_of(merge) != "sum":
        return not (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
    if not pa.types.is_integer(column.type):
        return bool(pa.types.is_floating(column.type))
    bounds = pc.min_max(column).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    return bool(largest * max(1, rows.num_rows) < SAFE)
