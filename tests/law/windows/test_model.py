"""The model of continuous queries says what the contract says. No Spark is involved."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from millstream import sql
from tests.law.windows.expected import Oracle
from tests.law.windows.grammar import WAYS
from tests.law.windows.model import (
    AfterRows,
    Ends,
    Every,
    Flow,
    History,
    Hop,
    Interval,
    Landmark,
    Last,
    LastOfEach,
    Realtime,
    Seen,
    Session,
    SessionEnds,
    Source,
    Standing,
    content,
    instants,
)
from tests.law.windows.steps import a_feed
from tests.law.windows.variants import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.law.windows.model import Slide, Window

Answers = list[tuple[int, list[int]]]


def history(times: Sequence[int], *, delay: int = 0, kept: bool = False, period: int | None = None) -> History:
    """A stream `s` with rows at these times."""
    found = History([Flow("s", delay, kept, period), Flow("r")])
    found.insert("s", times)
    return found


def answers(past: History, window: Window, slide: Slide, created: int = 0) -> Answers:
    """What a query over `s` answers: instants, and the times of the rows in the window."""
    source = Source("s", window)
    seen = Seen(past, Standing((source,), slide, created))
    return [(i.time, [r.time for r in content(seen, source, i)]) for i in instants(seen)]


def times_of(found: Answers) -> list[int]:
    return [time for time, _ in found]


# The published example

REPORTS = [(1, 0, 0), (2, 32, 1), (2, 0, 3), (4, 0, 4), (4, 32, 6)]
"""VID, SPD, T of figure 1."""


def reports(until: int) -> History:
    found = History([Flow("s")])
    found.insert("s", [t for _, _, t in REPORTS], [{"vid": vid, "spd": spd} for vid, spd, _ in REPORTS])
    found.advance("s", until)
    return found


@pytest.mark.parametrize(
    ("window", "times"),
    [
        (Interval(3), [4, 6]),
        (Last(3), [3, 4, 6]),
        (LastOfEach(("vid",), 1), [0, 3, 6]),
        (Landmark(), [0, 1, 3, 4, 6]),
    ],
)
def test_the_windows_of_figure_1(window: Window, times: list[int]) -> None:
    assert dict(answers(reports(8), window, Every(7)))[7] == times


def test_the_continuous_query_of_figure_1() -> None:
    source = Source("s", Interval(4))
    past = reports(7)
    seen = Seen(past, Standing((source,), Every(2), 0))
    found = {}
    for instant in instants(seen):
        rows = [past.flows["s"].versions[r.number] for r in content(seen, source, instant)]
        found[instant.time] = sorted(row["vid"] for row in rows if row["spd"] == 0)
    assert found == {0: [1], 2: [1], 4: [1, 2, 4], 6: [2, 4]}


# Instants


def test_instants_are_multiples_from_the_first_row_on_and_wait_for_a_later_time() -> None:
    past = history([7, 12, 15])
    assert times_of(answers(past, Interval(5), Every(5))) == [10]
    past.insert("s", [16])
    assert times_of(answers(past, Interval(5), Every(5))) == [10, 15]


def test_multiples_go_on_below_zero() -> None:
    assert times_of(answers(history([-13, 1]), Interval(5), Every(5))) == [-10, -5, 0]
    assert times_of(answers(history([-13, 1]), Hop(5, 5), Ends(5, 5))) == [-10, -5, 0]


def test_the_delay_holds_instants_back() -> None:
    assert times_of(answers(history([0, 10, 11], delay=5), Interval(5), Every(5))) == [0, 5]


def test_advance_answers_what_rows_do_not() -> None:
    past = history([3])
    past.advance("s", 21)
    assert answers(past, Interval(5), Every(5)) == [(5, [3]), (10, []), (15, []), (20, [])]


def test_instants_of_a_query_created_later_are_past_the_watermark() -> None:
    past = history([1, 10])
    created = past.happened()
    past.insert("s", [10, 12, 16])
    assert answers(past, Interval(5), Every(5), created) == [(15, [10, 12])]


def test_realtime_answers_every_time_of_an_accepted_row() -> None:
    past = history([1, 4, 4, 9, 7, 11], delay=3)
    past.advance("s", 20)
    assert answers(past, Interval(2), Realtime()) == [(1, [1]), (4, [4, 4]), (7, [7]), (9, [9, 7]), (11, [9, 11])]


def test_after_rows_counts_accepted_rows_and_never_goes_back() -> None:
    past = history([5, 3, 8, 6, 7, 20], delay=4)
    assert answers(past, Interval(3), AfterRows(2)) == [(5, [5, 3]), (8, [5, 8, 6]), (20, [20])]


def test_after_rows_leaves_late_rows_uncounted_but_in_the_window() -> None:
    past = history([5, 3, 8])
    assert answers(past, Landmark(), AfterRows(2)) == [(8, [5, 3, 8])]


def test_two_streams_are_answered_when_both_have_passed() -> None:
    past = History([Flow("s"), Flow("r")])
    past.insert("s", [0, 30])
    sources = (Source("s", Interval(5)), Source("r", Interval(5)))
    seen = Seen(past, Standing(sources, Every(10), 0))
    assert instants(seen) == []
    past.insert("r", [2, 11])
    seen = Seen(past, Standing(sources, Every(10), 0))
    assert [i.time for i in instants(seen)] == [0, 10]


def test_a_paused_query_answers_when_it_is_resumed() -> None:
    past = history([0])
    paused = past.happened()
    past.insert("s", [10])
    resumed = past.happened()
    source = Source("s", Interval(5))
    lasting = Standing((source,), Every(5), 0, ((paused, None),))
    assert instants(Seen(past, lasting)) == []
    ended = Standing((source,), Every(5), 0, ((paused, resumed),))
    assert [(i.time, i.answered) for i in instants(Seen(past, ended))] == [(0, resumed), (5, resumed)]


# Windows


def test_both_ends_of_an_interval_belong_to_it() -> None:
    found = dict(answers(history([0, 4, 5, 10, 11]), Interval(5), Every(10)))
    assert found == {0: [0], 10: [5, 10]}


def test_of_rows_at_one_time_the_later_is_the_newer() -> None:
    past = history([1, 2, 2, 2, 9])
    source = Source("s", Last(2))
    seen = Seen(past, Standing((source,), Every(5), 0))
    assert [r.number for r in content(seen, source, instants(seen)[0])] == [2, 3]


def test_null_is_a_key() -> None:
    past = History([Flow("s")])
    past.insert("s", [1, 2, 3, 4, 9], [{"k": k} for k in (None, 1, None, 1, None)])
    assert dict(answers(past, LastOfEach(("k",), 1), Every(5)))[5] == [3, 4]


def test_a_landmark_is_set_anew_at_multiples() -> None:
    past = history([1, 4, 5, 6, 9, 10, 12])
    assert answers(past, Landmark(5), Every(3)) == [(3, [1]), (6, [5, 6]), (9, [5, 6, 9])]
    assert dict(answers(past, Landmark(5), Realtime()))[10] == [10]


def test_tumbling_windows_have_no_end_and_are_all_answered() -> None:
    found = answers(history([3, 9, 10, 31]), Hop(10, 10), Ends(10, 10))
    assert found == [(10, [3, 9]), (20, [10]), (30, [])]


def test_hopping_windows_overlap_or_leave_gaps() -> None:
    past = history([3, 9, 12, 20])
    assert answers(past, Hop(5, 10), Ends(5, 10)) == [(5, [3]), (10, [3, 9]), (15, [9, 12]), (20, [12])]
    assert answers(past, Hop(10, 4), Ends(10, 4)) == [(4, [3]), (14, [12])]


def test_sessions_end_a_gap_after_their_last_row() -> None:
    past = history([1, 3, 8, 10, 12, 17, 40])
    assert answers(past, Session(5), SessionEnds(5)) == [(8, [1, 3]), (17, [8, 10, 12]), (22, [17])]


def test_sessions_of_each_key_end_by_themselves() -> None:
    past = History([Flow("s")])
    past.insert("s", [1, 3, 4, 8, 9, 40], [{"k": k} for k in ("a", None, "a", None, "b", "a")])
    window, slide = Session(5, ("k",)), SessionEnds(5, ("k",))
    assert answers(past, window, slide) == [(8, [3]), (9, [1, 4]), (13, [8]), (14, [9])]


def test_what_a_streaming_table_keeps_no_longer_is_in_no_session() -> None:
    past = history([1, 4, 7, 10, 30], kept=True, period=8)
    assert answers(past, Session(5), SessionEnds(5)) == [(15, [7, 10])]


def test_a_session_is_answered_as_soon_as_the_watermark_reaches_its_end() -> None:
    past = history([1, 3])
    past.advance("s", 7)
    assert answers(past, Session(5), SessionEnds(5)) == []
    past.advance("s", 8)
    assert answers(past, Session(5), SessionEnds(5)) == [(8, [1, 3])]


# Late rows


def test_a_late_row_misses_what_was_answered_and_enters_later_instants() -> None:
    past = history([0, 4, 12, 3, 16, 22])
    assert answers(past, Interval(20), Every(5)) == [
        (0, [0]),
        (5, [0, 4]),
        (10, [0, 4]),
        (15, [0, 4, 12, 3]),
        (20, [0, 4, 12, 3, 16]),
    ]


def test_a_late_row_is_in_tumbling_windows_that_are_open() -> None:
    past = history([0, 14, 8, 11, 22])
    assert answers(past, Hop(10, 10), Ends(10, 10)) == [(10, [0]), (20, [14, 11])]


def test_a_late_row_misses_what_its_own_stream_has_passed_even_if_another_holds_it_back() -> None:
    past = History([Flow("s"), Flow("r")])
    past.insert("s", [0, 20, 4])
    past.insert("r", [0, 30])
    source = Source("s", Landmark())
    seen = Seen(past, Standing((source, Source("r", Landmark())), Every(5), 0))
    found = {i.time: [r.time for r in content(seen, source, i)] for i in instants(seen)}
    assert found == {0: [0], 5: [0], 10: [0], 15: [0]}
    past.insert("s", [31])
    seen = Seen(past, seen.query)
    assert {i.time: len(content(seen, source, i)) for i in instants(seen)}[20] == 3


def test_the_first_row_is_on_time_even_if_advance_has_passed_it() -> None:
    past = History([Flow("s")])
    past.advance("s", 21)
    past.insert("s", [8])
    assert answers(past, Interval(5), Every(5), created=0) == [(10, [8]), (15, []), (20, [])]


# Streaming tables


def test_a_streaming_table_brings_its_stored_rows_and_a_stream_does_not() -> None:
    past = history([1, 4, 7], kept=True)
    created = past.happened()
    past.insert("s", [9, 16])
    assert answers(past, Interval(5), Every(5), created) == [(10, [7, 9]), (15, [])]
    past = history([1, 4, 7])
    created = past.happened()
    past.insert("s", [9, 16])
    assert answers(past, Interval(5), Every(5), created) == [(10, [9]), (15, [])]


def test_a_streaming_table_holds_its_period() -> None:
    past = history([1, 6, 7, 12, 21], kept=True, period=5)
    assert answers(past, Landmark(), Every(10)) == [(10, [6, 7]), (20, [])]


def test_deleting_and_updating_affect_unanswered_instants() -> None:
    past = History([Flow("s", is_kept=True)])
    past.insert("s", [1, 2, 6], [{"k": k} for k in "abc"])
    past.delete("s", [0])
    past.update("s", [1], {"k": "c"})
    past.insert("s", [11], [{"k": "a"}])
    assert answers(past, Landmark(), Every(5)) == [(5, [1, 2]), (10, [2, 6])]
    assert dict(answers(past, LastOfEach(("k",), 1), Every(5))) == {5: [1, 2], 10: [6]}


# Feeds


@pytest.mark.parametrize("feed", range(5))
def test_every_generated_statement_can_be_read(feed: int) -> None:
    for query in a_feed(feed).queries:
        statement = sql.parse_one(query.statement)
        assert type(statement).__name__ == "CreateContinuousQuery"
        assert query.sql.duck is not None


def test_the_same_seed_gives_the_same_feed() -> None:
    assert a_feed(3).steps == a_feed(3).steps
    assert [q.statement for q in a_feed(3).queries] == [q.statement for q in a_feed(3).queries]


def test_six_feeds_have_every_window_with_every_slide_and_half_of_them_group_over_time() -> None:
    queries = [q for seed in range(6) for q in a_feed(seed).queries]
    assert len(queries) == 300
    ways = {(window, q.covers("slide")[0]) for q in queries for window in q.covers("window")}
    assert ways == set(WAYS)
    halves = [q for q in queries if q.slots[0].label in ("INTERVAL", "TUMBLE", "HOP") and "GROUP" in q.text]
    assert len(halves) > 100
    assert {q.emit.value for q in queries} == {"ALL", "NEW", "CHANGES"}


@pytest.mark.parametrize("variant", ["one batch", "row by row", "other batches", "restarts", "delivered at once"])
def test_variants_of_a_feed_ought_to_deliver_the_same(variant: str) -> None:
    feed = a_feed(1_000_003, 12, 20)
    other = Oracle(VARIANTS[variant](feed, Random(variant)))
    first = Oracle(feed)
    for query in feed.queries:
        assert other.deliveries(query) == first.deliveries(query), query.text
