"""Which files can hold a row that matches, judged by the catalogue's statistics.

A `Comparison` is one conjunct `column op value`. All of them reject nulls, so a file whose column is
all null cannot match. Float bounds leave NaN out; NaN is larger than any number, as in Spark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.catalog.records import ColumnStats, TableInfo


class Operator(StrEnum):
    EQ = "="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IN = "IN"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`values` has one value, but for IN; they are of the Python type of the column's bounds."""

    column: str
    operator: Operator
    values: tuple[Any, ...]

    def __str__(self) -> str:
        shown = ", ".join(str(v) for v in self.values)
        return f"{self.column} {self.operator} {f'({shown})' if self.operator is Operator.IN else shown}"


def can_match(stats: ColumnStats, comparison: Comparison) -> bool:
    """Whether a file with these statistics can hold a row for which the comparison is true."""
    if stats.values == 0:
        return False
    if any(_is_nan(v) for v in comparison.values):
        return True
    if stats.has_nan and comparison.operator in (Operator.GT, Operator.GE):
        return True
    if stats.low is None or stats.high is None:
        return not stats.has_nan or any(_is_nan(v) for v in comparison.values)
    return any(_in_bounds(stats, comparison.operator, v) for v in comparison.values)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _in_bounds(stats: ColumnStats, operator: Operator, value: Any) -> bool:
    match operator:
        case Operator.LT:
            return bool(stats.low < value)
        case Operator.LE:
            return bool(stats.low <= value)
        case Operator.GT:
            return bool(stats.high > value)
        case Operator.GE:
            return bool(stats.high >= value)
    return bool(stats.low <= value <= stats.high)


def keep(table: TableInfo, stats: dict[int, ColumnStats], comparisons: Iterable[Comparison]) -> bool:
    """Whether a file with these column statistics may hold a row for which all comparisons are true."""
    ids = dict(zip((n.lower() for n in table.schema.names), table.column_ids, strict=True))
    for comparison in comparisons:
        known = stats.get(ids[comparison.column.lower()])
        if known is not None and not can_match(known, comparison):
            return False
    return True
