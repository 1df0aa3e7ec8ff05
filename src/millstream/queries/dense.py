"""Many instants, or many lists of rows, at once: groups as arrays with a row for each and a column for each group.

Rows that are there from the first instant on and leave are accumulated from the last instant backwards, rows that
enter and stay from the first one forwards; nothing is subtracted. For sums, least and largest values of numbers;
everything else, and rows that both enter and leave in between, gives None.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.plan.standing import N
from millstream.rewrite.panes import E, U
from millstream.views import merging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from millstream.plan.incremental import Part

LEAST_INSTANTS = 8
"""Fewer are not worth it."""
MOST_CELLS = 4_194_304
CELLS_A_ROW = 4
"""Arrays with more cells than this for each row are mostly empty."""
MOST_SPREAD = 256
"""Whole numbers in a range of so many need no dictionary."""
UFUNCS: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class _Grid:
    """Where rows are: at which instant each counts first, going forwards or backwards, and for which group."""

    shape: tuple[int, int]
    starts: NDArray[np.int64]
    is_backwards: NDArray[np.bool_]
    codes: NDArray[np.int64]

    def accumulated(
        self, ufunc: Any, values: NDArray[Any], chosen: NDArray[np.bool_], nothing: Any
    ) -> NDArray[Any]:
        """What a function makes of the values up to each instant, for each group."""
        sides = []
        for wanted, turn in ((~self.is_backwards, 1), (self.is_backwards, -1)):
            rows = chosen & wanted
            grid = np.full(self.shape, nothing, dtype=values.dtype)
            ufunc.at(grid, (self.starts[rows], self.codes[rows]), values[rows])
            sides.append(ufunc.accumulate(grid[::turn], axis=0)[::turn])
        return np.asarray(ufunc(*sides))


def at_each(part: Part, rows: pa.Table, instants: Sequence[int]) -> list[pa.Table] | None:
    """The groups of some instants in order, merged, from rows that enter and leave; None if it cannot."""
    places = np.asarray(instants, np.int64)
    first = np.searchsorted(places, _numbers(rows.column(E)))
    end = np.searchsorted(places, _numbers(rows.column(U)), side="right")
    open_rows = first < end
    is_backwards = end < len(places)
    if bool(np.any(open_rows & is_backwards & (first > 0))) or not _are_numbers(part, rows):
        return None
    keys, codes = _groups(part.keys, rows)
    if len(places) * len(keys) > MOST_CELLS:
        return None
    grid = _Grid((len(places), len(keys)), np.where(is_backwards, end - 1, first), is_backwards, codes)
    yes = np.ones(rows.num_rows, np.bool_)
    present = grid.accumulated(np.logical_or, yes, open_rows, False)
    numbers, groups = np.nonzero(present)
    columns = {k: rows.column(k).take(pa.array(keys[groups])) for k in part.keys}
    for partial in part.partials:
        columns[partial.name] = _column(grid, partial.merge, rows.column(partial.name), open_rows, present)
    schema = pa.schema([f for f in rows.schema if f.name not in (E, U)])
    made = pa.table([columns[f.name].cast(f.type) for f in schema], schema=schema)
    edges = np.searchsorted(numbers, np.arange(len(places) + 1)).tolist()
    return [made.slice(a, b - a) for a, b in pairwise(edges)]


def merged(part: Part, keys: Sequence[str], rows: pa.Table, of: NDArray[np.int64], lists: int) -> pa.Table | None:
    """One row for each group of some lists, behind the list's number; `of` is the list of each row.

    None if it cannot. Sums of floating numbers are not for it: Arrow adds them up in another order.
    """
    floating = any(p.merge.startswith("sum") and pa.types.is_floating(rows.schema.field(p.name).type)
                   for p in part.partials)  # fmt: skip
    if floating or not _are_numbers(part, rows):
        return None
    first, codes = _groups(keys, rows)
    if lists * len(first) > min(MOST_CELLS, CELLS_A_ROW * rows.num_rows):
        return None
    cells, size = of * len(first) + codes, lists * len(first)
    there = np.flatnonzero(np.bincount(cells, minlength=size))
    numbers, groups = np.divmod(there, max(1, len(first)))
    columns = {k: rows.column(k).take(pa.array(first[groups])) for k in keys}
    for partial in part.partials:
        columns[partial.name] = _in_cells(partial.merge, rows.column(partial.name), cells, size, there)
    made = [columns[f.name].cast(f.type) for f in rows.schema]
    return pa.table([pa.array(numbers), *made], schema=pa.schema([pa.field(N, pa.int64()), *rows.schema]))


def _in_cells(
    merge: str, column: pa.ChunkedArray, cells: NDArray[np.int64], size: int, there: NDArray[np.int64]
) -> pa.Array:
    """What a function makes of the values in each cell that there is."""
    function, kind = merging.function_of(merge), np.float64 if pa.types.is_floating(column.type) else np.int64
    mask = None
    if column.null_count:
        valid = np.asarray(column.is_valid().to_numpy(), np.bool_)
        column, cells = column.drop_null(), cells[valid]
        mask = np.bincount(cells, minlength=size)[there] == 0
    found = np.full(size, _nothing(function, kind), dtype=kind)
    UFUNCS[function].at(found, cells, np.asarray(column.to_numpy(), kind))
    return pa.array(found[there], mask=mask)


def _column(
    grid: _Grid, merge: str, column: pa.ChunkedArray, open_rows: NDArray[np.bool_], present: NDArray[np.bool_]
) -> pa.Array:
    valid = np.asarray(column.is_valid().to_numpy(), np.bool_)
    kind = np.float64 if pa.types.is_floating(column.type) else np.int64
    values = np.asarray(pc.fill_null(column, 0).to_numpy(), kind)
    found = grid.accumulated(
        UFUNCS[merging.function_of(merge)], values, open_rows & valid, _nothing(merging.function_of(merge), kind)
    )
    known = grid.accumulated(np.logical_or, valid, open_rows & valid, False)
    return pa.array(found[present], mask=~known[present])


def _nothing(function: str, kind: Any) -> Any:
    """What changes no other value."""
    if function == "sum":
        return 0
    least, most = (-np.inf, np.inf) if kind is np.float64 else (np.iinfo(kind).min, np.iinfo(kind).max)
    return most if function == "min" else least


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy(), np.int64)


def _are_numbers(part: Part, rows: pa.Table) -> bool:
    for partial in part.partials:
        kind = rows.schema.field(partial.name).type
        if merging.function_of(partial.merge) not in UFUNCS or not (
            pa.types.is_signed_integer(kind) or pa.types.is_float64(kind)
        ):
            return False
    return all(merging.is_safe(rows, p.merge) for p in part.partials)


def _groups(keys: Sequence[str], rows: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A row of each group, and the group of each row."""
    codes = np.zeros(rows.num_rows, np.int64)
    for number, key in enumerate(keys):
        own, different = _coded(rows.column(key))
        codes = codes * different + own
        if number:
            codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return first, codes


def _coded(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], int]:
    """A number for each value, and how many there are; whole numbers near each other stand for themselves."""
    if pa.types.is_integer(column.type) and not column.null_count and len(column):
        values = _numbers(column)
        low, high = int(values.min()), int(values.max())
        if high - low < MOST_SPREAD:
            return values - low, high - low + 1
    encoded = column.combine_chunks().dictionary_encode("encode")
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64), len(encoded.dictionary)
