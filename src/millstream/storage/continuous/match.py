"""A predicate on rows in memory: which rows satisfy it, by looking at each or through a sorted column.

A predicate is a DNF: a row satisfies it if it satisfies all comparisons of some conjunction; without any
conjunction it holds for every row. Comparisons are Spark's: null satisfies none, NaN equals itself and is
above every number, text is ordered by its bytes. A constant need not be of the column's type (1.5 beside
integers); it is compared exactly, but with floating columns as DOUBLE. Both ways give the same answer.
"""

from __future__ import annotations

import bisect
import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.storage.prune import Comparison, Operator

if TYPE_CHECKING:
    from numpy.typing import NDArray

Predicate = tuple[tuple[Comparison, ...], ...]

KERNELS = {
    Operator.EQ: pc.equal,
    Operator.LT: pc.less,
    Operator.LE: pc.less_equal,
    Operator.GT: pc.greater,
    Operator.GE: pc.greater_equal,
}
BELOW, ABOVE = (Operator.LT, Operator.LE), (Operator.GT, Operator.GE)
WIDEST_DECIMAL = 38


def mask(rows: pa.Table, predicate: Predicate) -> NDArray[np.bool_]:
    """For each row whether it satisfies the predicate."""
    if not predicate:
        return np.ones(rows.num_rows, dtype=np.bool_)
    found = np.zeros(rows.num_rows, dtype=np.bool_)
    for conjunction in predicate:
        found |= _all_hold(rows, conjunction)
    return found


def _all_hold(rows: pa.Table, conjunction: tuple[Comparison, ...]) -> NDArray[np.bool_]:
    found = np.ones(rows.num_rows, dtype=np.bool_)
    for comparison in conjunction:
        found &= _holds(rows.column(comparison.column), comparison)
    return found


def _holds(column: pa.ChunkedArray, comparison: Comparison) -> NDArray[np.bool_]:
    operator = Operator.EQ if comparison.operator is Operator.IN else comparison.operator
    compare = _compare_floats if pa.types.is_floating(column.type) else _compare
    found = np.zeros(len(column), dtype=np.bool_)
    for value in comparison.values:
        found |= compare(column, operator, value)
    return found


def _compare(column: pa.ChunkedArray, operator: Operator, value: Any) -> NDArray[np.bool_]:
    fitted = _fit(column.type, operator, value)
    if fitted is None:
        return np.zeros(len(column), dtype=np.bool_)
    found = pc.is_valid(column) if fitted is _EVERY else KERNELS[operator](column, fitted)
    return np.asarray(found.fill_null(False).to_numpy(), dtype=np.bool_)


def _compare_floats(column: pa.ChunkedArray, operator: Operator, value: Any) -> NDArray[np.bool_]:
    values = np.asarray(column.cast(pa.float64()).fill_null(0.0).to_numpy())
    nan = np.isnan(values)
    constant = float(value)
    if math.isnan(constant):
        found = {Operator.LT: ~nan, Operator.LE: np.ones_like(nan), Operator.GT: np.zeros_like(nan)}.get(
            operator, nan
        )
    else:
        kernel = {Operator.EQ: np.equal, Operator.LT: np.less, Operator.LE: np.less_equal}.get(operator)
        above = np.greater if operator is Operator.GT else np.greater_equal
        found = kernel(values, constant) if kernel is not None else above(values, constant) | nan
    return np.asarray(found & np.asarray(pc.is_valid(column).to_numpy(), dtype=np.bool_))


class _Every:
    """Stands for a constant that every value but null compares well with."""


_EVERY = _Every()


def _fit(type_: pa.DataType, operator: Operator, value: Any) -> Any:
    """The constant as one of the column's own type that gives the same answers.

    `_EVERY` if every value but null satisfies the comparison, None if none does.
    """
    if pa.types.is_integer(type_):
        fitted = _whole(operator, value, -(2**63), 2**63 - 1)
        return pa.scalar(fitted, pa.int64()) if isinstance(fitted, int) else fitted
    if pa.types.is_decimal(type_):
        most = 10**WIDEST_DECIMAL - 1
        fitted = _whole(operator, _scaled(value, type_.scale), -most, most)
        return _decimal(fitted, type_.scale) if isinstance(fitted, int) else fitted
    return pa.scalar(value, type_)


def _scaled(value: Any, scale: int) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return Fraction(value) * 10**scale


def _decimal(unscaled: int, scale: int) -> pa.Scalar:
    with decimal.localcontext(prec=2 * WIDEST_DECIMAL):
        return pa.scalar(decimal.Decimal(unscaled).scaleb(-scale), pa.decimal128(WIDEST_DECIMAL, scale))


def _whole(operator: Operator, value: Any, lowest: int, highest: int) -> int | _Every | None:
    """The whole number that compares with whole numbers as `value` does."""
    if isinstance(value, float) and not math.isfinite(value):
        wins = BELOW if math.isnan(value) or value > 0 else ABOVE
        return _EVERY if operator in wins else None
    fitted = int(math.ceil(value) if operator in (Operator.LT, Operator.GE) else math.floor(value))
    if operator is Operator.EQ and fitted != value:
        return None
    if fitted > highest:
        return _EVERY if operator in BELOW else None
    if fitted < lowest:
        return _EVERY if operator in ABOVE else None
    return fitted


class _Keys(Sequence[Any]):
    """Sorted Arrow values as Python's, one at a time: a search looks at few of them."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        return _key(self._values[place].as_py())


def _key(value: Any) -> tuple[bool, Any]:
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0 if is_nan else value


@dataclass(frozen=True)
class ValueIndex:
    """A column's values in order, nulls left out, and the places of their rows."""

    values: pa.Array
    places: NDArray[np.int64]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> ValueIndex:
        order = np.asarray(pc.sort_indices(column).to_numpy(), dtype=np.int64)
        order = order[: len(column) - column.null_count]
        values = column.take(pa.array(order))
        return cls(values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values, order)

    def find(self, comparison: Comparison) -> NDArray[np.int64]:
        """The places of the rows that satisfy a comparison with this column, in no order."""
        operator = Operator.EQ if comparison.operator is Operator.IN else comparison.operator
        ranges = {self._range(operator, value) for value in comparison.values}
        parts = [self.places[start:end] for start, end in ranges]
        return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))

    def _range(self, operator: Operator, value: Any) -> tuple[int, int]:
        key = _key(self._constant(value))
        keys = _Keys(self.values)
        match operator:
            case Operator.LT:
                return 0, bisect.bisect_left(keys, key)
            case Operator.LE:
                return 0, bisect.bisect_right(keys, key)
            case Operator.GT:
                return bisect.bisect_right(keys, key), len(keys)
            case Operator.GE:
                return bisect.bisect_left(keys, key), len(keys)
        start = bisect.bisect_left(keys, key)
        return start, bisect.bisect_right(keys, key, lo=start)

    def _constant(self, value: Any) -> Any:
        type_ = self.values.type
        if pa.types.is_floating(type_):
            return float(value)
        is_number = pa.types.is_integer(type_) or pa.types.is_decimal(type_)
        return value if is_number else pa.scalar(value, type_).as_py()


def serves(predicate: Predicate, column: str) -> bool:
    """Whether an index on the column finds all matches: every conjunction must compare it with something."""
    return bool(predicate) and all(any(c.column == column for c in part) for part in predicate)


def find(rows: pa.Table, predicate: Predicate, column: str, index: ValueIndex) -> NDArray[np.int64]:
    """The places of the rows that satisfy a predicate which the index serves, in order."""
    parts = [_find_one(rows, conjunction, column, index) for conjunction in predicate]
    return np.unique(np.concatenate(parts))


def _find_one(
    rows: pa.Table, conjunction: tuple[Comparison, ...], column: str, index: ValueIndex
) -> NDArray[np.int64]:
    places, *more = (index.find(c) for c in conjunction if c.column == column)
    for other in more:
        places = np.intersect1d(places, other)
    rest = tuple(c for c in conjunction if c.column != column)
    if not rest or not len(places):
        return places
    names = list(dict.fromkeys(c.column for c in rest))
    return places[_all_hold(rows.select(names).take(pa.array(places)), rest)]
