"""What the benchmark of grouped filters compares: ways to find a value's code; operators and Spark's expressions.

A code found by a table is raced against one found by binary search, over the same constants. The selections that
`_sharing` makes go through the operators in this process; on Spark they are one query, of which every predicate is
an expression, and which gives a row for each match.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from _sharing import VALUES_OF, Asking
from pyspark.sql import SparkSession

from millstream.execute.shared.codes import Codes, Sorted, Words, codes_among
from millstream.execute.shared.selections import Matcher, Selections
from millstream.plan.selection import Domain, Selection, Term
from millstream.queries.matching import SOME, by_policy
from millstream.schedule.eddy import Tickets

NEAR, FAR, TEXT = "numbers near each other", "numbers far apart", "text"
SPREAD = {NEAR: 1_000_000, FAR: 1 << 50, TEXT: 1_000_000}
Ways = tuple[Codes, Codes]


def constants(kind: str, count: int, rows: int) -> tuple[Ways, pa.ChunkedArray]:
    """The way that is taken for equality with some constants; binary search; and values, some of which occur."""
    random = np.random.default_rng(21)
    known = np.unique(random.integers(0, SPREAD[kind], count))
    values = random.integers(0, SPREAD[kind], rows)
    values[::3] = random.choice(known, len(values[::3]))
    if kind == TEXT:
        words = sorted(f"w{n}" for n in known.tolist())
        asked = pa.chunked_array([pa.array([f"w{n}" for n in values.tolist()])])
        return (codes_among(words, pa.string(), is_equality=True), Words(words, is_equality=False)), asked
    numbers = known.tolist()
    searched = Sorted(known, pa.int64())
    return (codes_among(numbers, pa.int64(), is_equality=True), searched), pa.chunked_array([values])


def looked_up(codes: Codes, values: pa.ChunkedArray) -> float:
    """The CPU time that it takes to find all codes, as many at a time as operators take."""
    started = time.process_time()
    for start in range(0, len(values), SOME):
        codes.of(values.slice(start, SOME))
    return time.process_time() - started


def operators(asked: Sequence[Asking]) -> Matcher:
    """The operators for some selections."""
    made = Selections(dict.fromkeys(VALUES_OF, pa.int32()))
    for number, one in enumerate(asked):
        tests = [Term({t.column: _between(t.low, t.high)}) for t in one.tests]
        term = tests[0]
        for other in tests[1:]:
            term &= other
        made.add(number, Selection((term,)))
    return made.ready()


def _between(low: int, high: int) -> Domain:
    return Domain.comparing(">=", low) & Domain.comparing("<=", high)


def in_numpy(matcher: Matcher, baskets: Sequence[pa.Table]) -> Callable[[int], int]:
    """Matches of a basket, found here."""
    policy = Tickets()
    return lambda number: len(by_policy(matcher, baskets[number], policy)[0].rows)


def in_spark(spark: SparkSession, asked: Sequence[Asking], files: Sequence[Path]) -> Callable[[int], int]:
    """Matches of a basket, found by expressions of Spark in one job."""
    tests = ", ".join(f"IF({one.where}, {number}, NULL)" for number, one in enumerate(asked))
    text = f"SELECT id, explode(array_compact(array({tests}))) AS query FROM {{rows}}"

    def match(number: int) -> int:
        return int(spark.sql(text, rows=spark.read.parquet(str(files[number]))).toArrow().num_rows)

    return match
