"""Many instants at once: groups as arrays with a row for each instant and a column for each group.

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

from millstream.rewrite.panes import E, U
from millstream.views import merging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from millstream.plan.incremental import Part

LEAST_INSTANTS = 8
"""Fewer are not worth it."""
MOST_CELLS = 4_194_304
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
    keys, codes = _groups(part, rows)
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


def _groups(part: Part, rows: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A row of each group, and the group of each row."""
    codes = np.zeros(rows.num_rows, np.int64)
    for number, key in enumerate(part.keys):
        encoded = rows.column(key).combine_chunks().dictionary_encode("encode")
        codes = codes * len(encoded.dictionary) + np.asarray(
            encoded.indices.to_numpy(zero_copy_only=False), np.int64
        )
        if number:
            codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return first, codes
