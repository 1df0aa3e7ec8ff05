"""The law tests of continuous queries notice what they are there for.

A database that is none delivers what the model says; then the deliveries are spoilt, or the model behind them errs
in one of the ways a database could. Every such mistake has to be told, and none where there is none. No Spark
is involved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.law.pieces import Kind, Match
from tests.law.windows import expected, model
from tests.law.windows.coverage import Coverage
from tests.law.windows.expected import Delivery, Oracle
from tests.law.windows.feed import Run
from tests.law.windows.grammar import Emit
from tests.law.windows.model import Arrival, Flow, History, Interval, Landmark, Last, LastOfEach, Seen
from tests.law.windows.steps import a_feed

if TYPE_CHECKING:
    from tests.law.windows.grammar import Query
    from tests.law.windows.steps import Feed

SEED, QUERIES, LENGTH = 10, 40, 40

Given = dict[int, list[Delivery]]
Spoil = Callable[["Query", list[Delivery]], list[Delivery]]


@cache
def the_feed() -> Feed:
    return a_feed(SEED, QUERIES, LENGTH)


@cache
def the_oracle() -> Oracle:
    return Oracle(the_feed())


@dataclass(frozen=True, slots=True)
class Delivered:
    """A delivery as far as a feed can tell."""

    query: str
    instant: Any
    sequence: int
    table: pa.Table
    skipped: int = 0

    def to_arrow(self) -> pa.Table:
        return self.table


class Imagined:
    """A database as far as a feed can tell; it delivers what it is given."""

    def __init__(self, given: Given, numbered: Callable[[int], int] = lambda n: n) -> None:
        self._given = given
        self._numbered = numbered

    def results(self, name: str, since: int = 0) -> list[Delivered]:
        del since
        query = the_feed().query(int(name[1:]))
        ticks = query.slots[0].stream.ticks
        return [
            Delivered(name, ticks.value(d.instant), self._numbered(i + 1), table(query, d))
            for i, d in enumerate(self._given[query.number])
        ]

    def sql(self, text: str) -> None: ...

    def insert(self, name: str, rows: Any) -> None: ...

    def create_function(self, name: str, function: Any, returns: str) -> None: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


def table(query: Query, delivery: Delivery) -> pa.Table:
    outs = query.delivered
    columns = list(zip(*delivery.rows, strict=True)) if delivery.rows else [()] * len(outs)
    made = [[one_of(out.match, v) for v in column] for out, column in zip(outs, columns, strict=True)]
    return pa.table([pa.array(column) for column in made], [out.name for out in outs])


def one_of(match: Match, value: Any) -> Any:
    """What a database might say where the reference has all the values that it is judged by."""
    if match.kind is Kind.MODE and value:
        return max(value, key=value.count)
    if match.kind is Kind.QUANTILE and value:
        return sorted(value)[int(match.rank * len(value))]
    return value or None if match.kind in (Kind.MODE, Kind.QUANTILE) else value


def given(oracle: Oracle, spoil: Spoil = lambda _, deliveries: deliveries) -> Given:
    return {q.number: spoil(q, list(oracle.deliveries(q))) for q in the_feed().queries}


def run(database: Imagined) -> Run:
    opened: Any = database
    found = Run(the_feed(), lambda: opened, Coverage(), the_oracle())
    found.run()
    return found


def broken(database: Imagined) -> set[int]:
    """The queries that are told to have broken the law."""
    found = run(database)
    assert found.ended is None, found.ended
    return set(found.failures)


def test_a_lawful_database_passes() -> None:
    found = run(Imagined(given(the_oracle())))
    assert found.is_lawful, found.report()


# Spoilt deliveries


def changed(delivery: Delivery, rows: list[Any]) -> Delivery:
    return replace(delivery, rows=rows, runs=(len(rows),))


def without_a_row(_: Query, deliveries: list[Delivery]) -> list[Delivery]:
    place = next((i for i, d in enumerate(deliveries) if d.rows), None)
    if place is not None:
        deliveries[place] = changed(deliveries[place], deliveries[place].rows[1:])
    return deliveries


def with_a_row_twice(_: Query, deliveries: list[Delivery]) -> list[Delivery]:
    place = next((i for i, d in enumerate(deliveries) if d.rows), None)
    if place is not None:
        deliveries[place] = changed(deliveries[place], [*deliveries[place].rows, deliveries[place].rows[-1]])
    return deliveries


def without_empty_answers(query: Query, deliveries: list[Delivery]) -> list[Delivery]:
    return deliveries if query.is_monotonic else [d for d in deliveries if d.rows]


def without_the_last(_: Query, deliveries: list[Delivery]) -> list[Delivery]:
    return deliveries[:-1]


def too_late(_: Query, deliveries: list[Delivery]) -> list[Delivery]:
    return [replace(d, instant=d.instant + 1) for d in deliveries]


def out_of_order(_: Query, deliveries: list[Delivery]) -> list[Delivery]:
    return [replace(d, rows=d.rows[::-1]) for d in deliveries]


@pytest.mark.parametrize(
    "spoil",
    [without_a_row, with_a_row_twice, without_empty_answers, without_the_last, too_late, out_of_order],
    ids=lambda spoil: spoil.__name__,
)
def test_spoilt_deliveries_are_told(spoil: Spoil) -> None:
    found = run(Imagined(given(the_oracle(), spoil)))
    assert found.failures
    assert f"of seed {SEED} broke the law" in found.report()
    assert f"--first-seed {SEED} --cases 1 --view" in found.report()


def test_every_missing_row_is_told() -> None:
    has_rows = {n for n, deliveries in given(the_oracle()).items() if any(d.rows for d in deliveries)}
    assert broken(Imagined(given(the_oracle(), without_a_row))) == has_rows


def test_gaps_in_the_sequence_are_told() -> None:
    several = {n for n, deliveries in given(the_oracle()).items() if len(deliveries) > 1}
    assert broken(Imagined(given(the_oracle()), lambda n: 2 * n - 1)) == several


def test_deliveries_of_select_project_joins_may_be_cut_anywhere() -> None:
    def cut(query: Query, deliveries: list[Delivery]) -> list[Delivery]:
        if not query.is_monotonic:
            return deliveries
        return [changed(d, [row]) for d in deliveries for row in d.rows]

    assert any(q.is_monotonic for q in the_feed().queries)
    assert not broken(Imagined(given(the_oracle(), cut)))


# A model that errs

Plant = Callable[[pytest.MonkeyPatch], None]


def _open_below(patch: pytest.MonkeyPatch) -> None:
    def rows(self: Interval, entered: Any, instant: int, key: Any) -> list[Arrival]:
        del key
        return [r for r in entered if instant - self.length < r.time <= instant]

    patch.setattr(Interval, "rows", rows)


def _oldest_of_ties(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model, "newest_first", lambda row: (-row.time, row.number))


def _null_is_no_key(patch: pytest.MonkeyPatch) -> None:
    rows = LastOfEach.rows

    def wrong(self: LastOfEach, entered: Any, instant: int, key: Any) -> list[Arrival]:
        return rows(self, [r for r in entered if None not in key(r, self.columns)], instant, key)

    patch.setattr(LastOfEach, "rows", wrong)


def _late_rows_enter_at_their_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seen, "enters", lambda _, row: row.time)


def _late_rows_are_lost(patch: pytest.MonkeyPatch) -> None:
    enters = Seen.enters
    patch.setattr(Seen, "enters", lambda self, row: 2**60 if self.is_late(row) else enters(self, row))


def _never_reset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Landmark, "rows", lambda _, entered, *__: list(entered))


def _one_row_less(patch: pytest.MonkeyPatch) -> None:
    rows = Last.rows
    patch.setattr(
        Last, "rows", lambda self, entered, i, k: rows(replace(self, count=self.count - 1), entered, i, k)
    )


def _tables_as_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "table_version", lambda *_: 0)


def _deleted_rows_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flow, "is_there", lambda *_: True)


def _no_stored_rows(patch: pytest.MonkeyPatch) -> None:
    def rows(self: Seen, flow: Flow) -> list[Arrival]:
        return [r for r in flow.arrivals if r.event > self.query.created]

    patch.setattr(Seen, "_rows", rows)


def _rows_before_creation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seen, "_rows", lambda _, flow: list(flow.arrivals))


def _ends_belong_to_windows(patch: pytest.MonkeyPatch) -> None:
    def rows(self: model.Hop, entered: Any, instant: int, key: Any) -> list[Arrival]:
        del key
        return [r for r in entered if instant - self.length <= r.time <= instant]

    patch.setattr(model.Hop, "rows", rows)
    patch.setattr(model.Hop, "is_half_open", False)


def _everything_is_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(expected, "less", lambda rows, _: list(rows))


PLANTS: tuple[Plant, ...] = (
    _open_below,
    _oldest_of_ties,
    _null_is_no_key,
    _late_rows_enter_at_their_time,
    _late_rows_are_lost,
    _never_reset,
    _one_row_less,
    _tables_as_they_were,
    _deleted_rows_stay,
    _no_stored_rows,
    _rows_before_creation,
    _ends_belong_to_windows,
    _everything_is_new,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_an_erring_database_is_told(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    the_oracle()
    with monkeypatch.context() as patch:
        plant(patch)
        wrong = given(Oracle(the_feed(), the_oracle()))
    assert wrong != given(the_oracle()), "the mistake makes no difference in this feed"
    assert broken(Imagined(wrong))


def test_the_feed_has_what_mistakes_are_made_of() -> None:
    queries = the_feed().queries
    assert {q.emit for q in queries} == set(Emit)
    assert any(q.is_on_commit for q in queries)
    assert any(q.is_ordered for q in queries)
