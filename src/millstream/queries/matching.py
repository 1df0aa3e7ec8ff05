"""A basket against the selections of all queries on its stream: in the driver if it is small, else in tasks.

Either way each row is read once, and what comes back is the rows that some query wants, and whose they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.execute.shared.selections import Matches, Passed
from millstream.plan.standing import ROW_NUMBER
from millstream.queries.tasks import Portion, in_tasks, portions
from millstream.schedule.eddy import drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from millstream.execute.shared.selections import Matcher
    from millstream.queries.tasks import Large
    from millstream.schedule.eddy import Policy
    from millstream.storage.lake import Lake

    Numbers = NDArray[np.int64]

SOME, FEW = 4_096, 256
"""So many rows go through the operators in one order, few enough to follow when selectivities shift; so many where
the order is only tried."""


@dataclass(frozen=True)
class Matched:
    """The rows of a basket that queries want, in the order of their numbers, and whose they are."""

    rows: pa.Table
    matches: Matches


def here(matcher: Matcher, rows: pa.Table, policy: Policy) -> tuple[Matched, list[str]]:
    """Match rows in this process; also the last order in which they went through the operators."""
    rows = lowered(rows)
    found, order = by_policy(matcher, rows, policy)
    return _used(rows, found), order


def by_policy(matcher: Matcher, rows: pa.Table, policy: Policy) -> tuple[Matches, list[str]]:
    """Match rows some at a time, in an order that the policy draws anew from what became of those before."""
    orders, found = zip(*some_by_policy(matcher, rows, policy), strict=True)
    return _one_after_the_other(found), orders[-1]


def _one_after_the_other(found: Sequence[Matches]) -> Matches:
    """The matches of some rows, then of those behind them, and so on."""
    if len(found) == 1:
        return found[0]
    queries = np.concatenate([m.queries for m in found])
    # Small numbers are sorted in one pass over them.
    is_small = not len(queries) or queries.max() <= np.iinfo(np.uint16).max
    by_query = np.argsort(queries.astype(np.uint16) if is_small else queries, kind="stable")
    places = np.concatenate([m.rows for m in found])
    return Matches(places[by_query], queries[by_query], _summed(p for m in found for p in m.passed))


def some_by_policy(matcher: Matcher, rows: pa.Table, policy: Policy) -> Iterator[tuple[list[str], Matches]]:
    """The same as it comes: the matches of some rows, in the order of queries, and the order of the operators."""
    start = 0
    while start == 0 or start < rows.num_rows:
        order = drawn(policy, matcher.operators)
        count = SOME if not order or policy.trusts(order[0]) else FEW
        one = matcher.match(rows.slice(start, count), order)
        learn(policy, one.passed)
        yield order, replace(one, rows=one.rows + start)
        start += count


def learn(policy: Policy, passed: Iterable[Passed]) -> None:
    """Tell a policy what became of a batch."""
    for one in passed:
        policy.observe(one.operator, one.terms, one.taken, one.returned)


def _used(rows: pa.Table, found: Matches) -> Matched:
    used, places = used_places(found.rows, rows.num_rows)
    return Matched(rows.take(pa.array(used)), Matches(places, found.queries, found.passed))


def in_spark(
    lake: Lake, session: Callable[[], SparkSession], matcher: Matcher, large: Large, order: Sequence[str]
) -> Matched:
    """Match rows in tasks of one job."""
    found = in_tasks(session, partial(_task, matcher, large, tuple(order)), portions(lake, large.scan))
    return _together(found)


def used_places(places: Numbers, rows: int) -> tuple[Numbers, Numbers]:
    """The places that occur, in order, and where among them each of the given ones is."""
    is_used = np.zeros(rows, bool)
    is_used[places] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[places]


def lowered(rows: pa.Table) -> pa.Table:
    """The rows under names in lower case, as selections speak of them."""
    return rows.rename_columns([name.lower() for name in rows.column_names])


def _task(matcher: Matcher, large: Large, order: tuple[str, ...], portion: Portion) -> Matched:
    rows = lowered(large.rows(portion))
    starts = range(0, max(1, rows.num_rows), SOME)
    found = [(start, matcher.match(rows.slice(start, SOME), order)) for start in starts]
    return _used(rows, _one_after_the_other([replace(m, rows=m.rows + start) for start, m in found]))


def _together(found: Sequence[Matched]) -> Matched:
    """What tasks have found, as if one had."""
    offsets = np.cumsum([0, *(m.rows.num_rows for m in found)])[:-1]
    rows = pa.concat_tables([m.rows for m in found])
    places = np.concatenate([m.matches.rows + o for m, o in zip(found, offsets, strict=True)])
    queries = np.concatenate([m.matches.queries for m in found])
    by_number = np.argsort(rows.column(ROW_NUMBER).to_numpy(), kind="stable")
    place_of = np.empty(len(by_number), np.int64)
    place_of[by_number] = np.arange(len(by_number))
    places = place_of[places]
    order = np.lexsort((places, queries))
    passed = _summed(p for m in found for p in m.matches.passed)
    return Matched(rows.take(pa.array(by_number)), Matches(places[order], queries[order], passed))


def _summed(passed: Iterable[Passed]) -> tuple[Passed, ...]:
    made: dict[str, Passed] = {}
    for one in passed:
        known = made.get(one.operator, Passed(one.operator, one.terms, 0, 0))
        made[one.operator] = Passed(
            one.operator, one.terms, known.taken + one.taken, known.returned + one.returned
        )
    return tuple(made.values())
