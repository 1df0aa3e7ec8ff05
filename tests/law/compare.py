"""Answers, and whether two of them are the same.

Rows are a multiset unless the query orders them. Each column is judged in its own way (`pieces.Kind`): floats with
a relative tolerance of 1e-9, sums of squares of 1e-6, approximate answers within their stated error. A
difference says what is missing and what is there instead.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.law.pieces import Kind, Match, Out

Row = tuple[Any, ...]

RANK_ERROR = 0.03
"""Twice what a KLL sketch of the usual size allows; exact below a few hundred values."""
COUNT_ERROR = 0.2
"""Four standard deviations of HyperLogLog with Spark's default of 5 %."""
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[Row]

    @classmethod
    def of(cls, table: pa.Table) -> Answer:
        columns = [column.to_pylist() for column in table.columns]
        rows = list(zip(*columns, strict=True)) if columns else []
        return cls(tuple(table.column_names), tuple(named(f.type) for f in table.schema), rows)


def named(type_: pa.DataType) -> str:
    """An Arrow type without its flags."""
    return f"list<{named(type_.value_type)}>" if pa.types.is_list(type_) else str(type_)


def difference(found: Answer, expected: Answer, outs: Sequence[Out], *, is_ordered: bool) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    if found.names != expected.names:
        return f"columns {found.names} instead of {expected.names}"
    if is_ordered:
        return ordered_difference(found.rows, expected.rows, outs)
    missing, left = matched(found.rows, expected.rows, outs)
    if not missing and not left:
        return None
    return f"{told('missing', missing)}\n{told('instead', left)}"


def ordered_difference(found: list[Row], expected: list[Row], outs: Sequence[Out]) -> str | None:
    pairs = zip(found, expected, strict=False)
    if len(found) == len(expected) and all(row_agrees(outs, f, e) for f, e in pairs):
        return None
    return f"{told('expected in this order', expected)}\n{told('found', found)}"


def told(word: str, rows: Sequence[Row]) -> str:
    shown = "".join(f"\n      {row}" for row in rows[:SHOWN])
    more = f"\n      … and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"    {word}: {len(rows)} rows{shown}{more}"


def matched(found: list[Row], expected: list[Row], outs: Sequence[Out]) -> tuple[list[Row], list[Row]]:
    """Expected rows that no found row agrees with, and found rows left over."""
    exact = [i for i, out in enumerate(outs) if out.match.kind is Kind.EXACT]
    buckets: dict[Row, list[Row]] = defaultdict(list)
    for row in found:
        buckets[tuple(row[i] for i in exact)].append(row)
    missing = []
    for row in expected:
        bucket = buckets[tuple(row[i] for i in exact)]
        place = next((i for i, candidate in enumerate(bucket) if row_agrees(outs, candidate, row)), None)
        if place is None:
            missing.append(row)
        else:
            del bucket[place]
    return missing, [row for bucket in buckets.values() for row in bucket]


def row_agrees(outs: Sequence[Out], found: Row, expected: Row) -> bool:
    return all(agrees(out.match, f, e) for out, f, e in zip(outs, found, expected, strict=True))


def agrees(match: Match, found: Any, expected: Any) -> bool:
    """Whether a value is as good as the reference's."""
    if expected is None:
        return found is None
    return JUDGES[match.kind](match, found, expected)


def exactly(match: Match, found: Any, expected: Any) -> bool:
    del match
    return bool(found == expected)


def closely(match: Match, found: Any, expected: Any) -> bool:
    if found is None:
        return False
    if math.isnan(expected) or math.isnan(found):
        return math.isnan(expected) and math.isnan(found)
    if match.kind is Kind.VARIANCE:
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-5)
    return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)


def in_any_order(match: Match, found: Any, expected: Any) -> bool:
    del match
    return found is not None and Counter(map(countable, found)) == Counter(map(countable, expected))


def countable(value: Any) -> Any:
    """NaN as something that equals itself."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def among_the_most_frequent(match: Match, found: Any, expected: Any) -> bool:
    del match
    counts = Counter(expected)
    if not counts:
        return found is None
    return found is not None and counts[found] == max(counts.values())


def among_all(match: Match, found: Any, expected: Any) -> bool:
    del match
    return countable(found) in map(countable, expected) if expected else found is None


def near_the_rank(match: Match, found: Any, expected: Any) -> bool:
    """A value of the data whose ranks reach the wanted one, give or take the error."""
    values = sorted(expected)
    if not values:
        return found is None
    if found is None or found not in values:
        return False
    wanted, slack = match.rank * len(values), RANK_ERROR * len(values) + 1
    return bisect_left(values, found) <= wanted + slack and bisect_right(values, found) >= wanted - slack


def near_the_count(match: Match, found: Any, expected: Any) -> bool:
    del match
    return found is not None and abs(found - expected) <= max(2, COUNT_ERROR * expected)


JUDGES: dict[Kind, Callable[[Match, Any, Any], bool]] = {
    Kind.EXACT: exactly,
    Kind.FLOAT: closely,
    Kind.VARIANCE: closely,
    Kind.BAG: in_any_order,
    Kind.ANY: among_all,
    Kind.MODE: among_the_most_frequent,
    Kind.QUANTILE: near_the_rank,
    Kind.SKETCH: near_the_count,
}

BETWEEN_REFERENCES = {Kind.ANY: Kind.BAG, Kind.MODE: Kind.BAG, Kind.QUANTILE: Kind.BAG, Kind.SKETCH: Kind.EXACT}


def as_references(outs: Sequence[Out]) -> tuple[Out, ...]:
    """The columns as two references are to agree on them: what approximate answers are judged by is exact."""
    return tuple(
        Out(o.name, o.type, Match(BETWEEN_REFERENCES.get(o.match.kind, o.match.kind)), o.is_key) for o in outs
    )


def type_difference(found: Answer, expected: Answer, outs: Sequence[Out]) -> str | None:
    """Columns whose types differ, but for those where the reference computes something else."""
    wrong = [
        f"{out.name} is {f} instead of {e}"
        for out, f, e in zip(outs, found.types, expected.types, strict=True)
        if f != e and out.match.kind not in (Kind.ANY, Kind.MODE, Kind.QUANTILE)
    ]
    return "    types: " + ", ".join(wrong) if wrong else None
