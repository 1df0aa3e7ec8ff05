"""The schedule of a shared window join, alone: the paper's walk-throughs, and that no query can see the sharing.

A small join in Python stands in for the caller. Rows are named as in the paper's figures: a11 is the row of stream
A with time 11, and rows join where their symbols are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.schedule.join_policies import GREEDY, LWO, POLICIES, SWF, Measured, Slice
from millstream.schedule.joins import Arrival, JoinSchedule, Release, Work

TIME, ROWS = "time", "rows"
ANY = "·"


@dataclass(frozen=True)
class Row:
    """`order` is its place among all rows, by time and then by arrival."""

    stream: str
    time: int
    symbol: str
    order: int

    def __str__(self) -> str:
        return f"{self.stream.lower()}{self.time}"


@dataclass(frozen=True)
class Pair:
    """A result: the row that came later, its partner, and how far that one is away."""

    later: Row
    other: Row
    distance: int

    def __str__(self) -> str:
        return " ".join(sorted(map(str, (self.later, self.other))))


@dataclass
class Step:
    """A unit of work, what it found, and what every query got after it, in words."""

    unit: str
    found: list[str]
    got: dict[str, list[str]]


@dataclass
class Caller:
    """Joins what the schedule tells it to, holds the results, and hands them over when they are released."""

    schedule: JoinSchedule
    window: str = TIME
    piecewise: bool = True
    rows: list[Row] = field(default_factory=list)
    batches: dict[int, list[Row]] = field(default_factory=dict)
    held: dict[int, list[Pair]] = field(default_factory=dict)
    got: dict[str, list[Pair]] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    turns: dict[Row, tuple[int, ...]] = field(default_factory=dict)
    scanned: dict[int, int] = field(default_factory=dict)

    def add(self, query: str, window: int) -> None:
        self.schedule.add(query, window)
        self.got[query], self.since[query] = [], len(self.rows)

    def arrive(self, *rows: tuple[str, int, str]) -> None:
        """A turn: the rows of each stream are a batch."""
        turn = [Row(*row, order) for order, row in enumerate(rows, len(self.rows))]
        self.rows += turn
        streams = sorted({r.stream for r in turn})
        by_stream = [[r for r in turn if r.stream == s] for s in streams]
        arrivals = [Arrival(s, len(b), self.piecewise) for s, b in zip(streams, by_stream, strict=True)]
        batches = self.schedule.arrive(*arrivals)
        for batch, members in zip(batches, by_stream, strict=True):
            self.batches[batch.number], self.held[batch.number] = members, []
        numbers = tuple(b.number for b in batches)
        self.turns |= dict.fromkeys(turn, numbers)

    def partners(self, later: Row) -> list[Pair]:
        """All rows that are earlier, from the nearest; in a window of rows the newest of them is 1 away."""
        other = [r for r in reversed(self.rows[: later.order]) if r.stream != later.stream]
        away = [later.time - r.time for r in other] if self.window == TIME else range(1, len(other) + 1)
        found = [Pair(later, r, d) for r, d in zip(other, away, strict=True)]
        return [p for p in found if p.later.symbol == p.other.symbol]

    def in_order(self, pairs: list[Pair]) -> list[Pair]:
        """Nearest first where results go piecewise; otherwise as the design has it: by the other row's arrival."""
        sign = -1 if self.piecewise else 1
        return sorted(pairs, key=lambda p: (p.later.order, sign * p.other.order))

    def join(self, work: Work) -> list[Pair]:
        pairs = [p for row in self.batches[work.batch.number] for p in self.partners(row)]
        return [p for p in pairs if lies_in(p, work.part)]

    def finish(self, work: Work) -> list[Pair]:
        found = self.join(work)
        self.held[work.batch.number] += found
        self.scanned[work.batch.number] = work.part.high
        self.schedule.finish(work)
        return found

    def hand_over(self) -> dict[str, list[Pair]]:
        got: dict[str, list[Pair]] = {}
        for release in self.schedule.release():
            got.setdefault(release.query, []).extend(self.released(release))
        for query, pairs in got.items():
            self.got[query] += pairs
        pending = {b.number for b in self.schedule.pending}
        self.held = {n: pairs for n, pairs in self.held.items() if n in pending}
        return got

    def released(self, release: Release) -> list[Pair]:
        pairs = [p for b in release.batches for p in self.held[b.number] if lies_in(p, release.part)]
        return self.in_order(pairs)

    def step(self) -> Step:
        (work,) = self.schedule.take()
        found = self.finish(work)
        (row,) = self.batches[work.batch.number]
        unit = f"{row} ({work.part.low}, {work.part.high}]"
        return Step(unit, words(found), {q: words(pairs) for q, pairs in self.hand_over().items() if pairs})

    def drain(self) -> None:
        self.hand_over()
        while works := self.schedule.take():
            for work in works:
                self.finish(work)
            self.hand_over()

    def scanned_for(self, row: Row) -> int:
        """The window that all batches of the row's turn have scanned."""
        return min(self.scanned.get(n, 0) for n in self.turns[row])

    def alone(self, query: str, window: int) -> list[Pair]:
        """What the query would get if it were the only one: the plain join, in order."""
        pairs = [p for row in self.rows[self.since[query] :] for p in self.partners(row)]
        return self.in_order([p for p in pairs if p.distance <= window])


def lies_in(pair: Pair, part: Slice) -> bool:
    return part.low < pair.distance <= part.high or (part.low == 0 and pair.distance == 0)


def words(pairs: list[Pair]) -> list[str]:
    return [str(p) for p in pairs]


def figure(policy: str, windows: tuple[int, int, int], symbols: dict[str, str]) -> Caller:
    """The streams of the figures before a11 and b12: odd times in A, even times in B; three queries."""
    caller = Caller(JoinSchedule(POLICIES[policy]))
    for time in range(11):
        stream = "AB"[time % 2 == 0]
        name = f"{stream.lower()}{time}"
        caller.arrive((stream, time, symbols.get(name, name)))
    for query, window in zip(("Q1", "Q2", "Q3"), windows, strict=True):
        caller.add(query, window)
    return caller


# Figures 2 and 4 are lost in the scan but for the names of rows in the prose: a11 matches b8, b4 and b0, one in
# each slice, and b12 matches a9, a5 and a1; a11's scan of w1 ends before b6. Times as in the names, and windows of
# 4, 8 and 12, give just that. "(a11, b6)" in the prose, released to Q3 in step 10, has to be (a11, b0).
MATCHES = {"b8": "●", "b4": "●", "b0": "●", "a9": "✚", "a5": "✚", "a1": "✚"}
A11, B12 = ("A", 11, "●"), ("B", 12, "✚")


def test_figure_2_lwo_finishes_a_row_before_it_takes_the_next() -> None:
    caller = figure(LWO, (4, 8, 12), MATCHES)
    caller.arrive(A11)
    caller.arrive(B12)
    found = ["a11 b8", "a11 b4", "a11 b0"]
    assert caller.step() == Step("a11 (0, 12]", found, {"Q1": found[:1], "Q2": found[:2], "Q3": found})
    found = ["a9 b12", "a5 b12", "a1 b12"]
    assert caller.step() == Step("b12 (0, 12]", found, {"Q1": found[:1], "Q2": found[:2], "Q3": found})
    assert caller.schedule.take() == ()


def test_figure_4_swf_turns_to_the_newer_row_and_back_for_each_window() -> None:
    caller = figure(SWF, (4, 8, 12), MATCHES)
    caller.arrive(A11)
    in_all = {"Q1": ["a11 b8"], "Q2": ["a11 b8"], "Q3": ["a11 b8"]}
    assert caller.step() == Step("a11 (0, 4]", ["a11 b8"], in_all)  # steps 1 and 2
    caller.arrive(B12)
    assert caller.step() == Step("b12 (0, 4]", ["a9 b12"], {"Q1": ["a9 b12"]})  # 3 and 4
    assert caller.step() == Step("a11 (4, 8]", ["a11 b4"], {"Q2": ["a11 b4"], "Q3": ["a11 b4"]})  # 5 and 6
    assert caller.step() == Step("b12 (4, 8]", ["a5 b12"], {"Q2": ["a9 b12", "a5 b12"]})  # 7 and 8
    assert caller.step() == Step("a11 (8, 12]", ["a11 b0"], {"Q3": ["a11 b0"]})  # 9 and 10
    last = {"Q3": ["a9 b12", "a5 b12", "a1 b12"]}
    assert caller.step() == Step("b12 (8, 12]", ["a1 b12"], last)  # 11 and 12
    assert caller.schedule.take() == ()
    assert caller.schedule.pending == ()


def test_figure_4_a_row_waits_in_the_queue_of_its_next_window() -> None:
    caller = figure(SWF, (4, 8, 12), MATCHES)
    caller.arrive(A11)
    caller.step()
    caller.arrive(B12)
    a11, b12 = caller.schedule.pending
    before = caller.schedule.queues
    caller.step()
    assert before == ((Slice(0, 4), (b12,)), (Slice(4, 8), (a11,)))
    assert caller.schedule.queues == ((Slice(4, 8), (a11, b12)),)


# Figure 6 is lost too. The prose has w1 larger than w2 − w1, the largest step from w2 to w3, and every pair
# matching: windows of 4, 7 and 12. It skips b12's scan of w2 − w1, which has the highest priority and so comes
# before a11's last slice, and calls b12's last slice w3 − w1. "(a0, b12)" has to be (a9, b12).
EVERY = dict.fromkeys([f"{s}{t}" for s in "ab" for t in range(13)], ANY)


def test_figure_6_greedy_takes_the_smallest_step_first_and_releases_early() -> None:
    caller = figure(GREEDY, (4, 7, 12), EVERY)
    caller.arrive(("A", 11, ANY))
    near = ["a11 b10", "a11 b8"]
    assert caller.step() == Step("a11 (0, 4]", near, {"Q1": near, "Q2": near, "Q3": near})
    caller.arrive(("B", 12, ANY))
    a11, b12 = caller.schedule.pending
    assert caller.schedule.queues == ((Slice(4, 7), (a11,)), (Slice(0, 4), (b12,)))
    middle = ["a11 b6", "a11 b4"]
    assert caller.step() == Step("a11 (4, 7]", middle, {"Q2": middle, "Q3": middle})
    # a11 is through with w2, so Q2 has these before b12 is.
    near = ["a11 b12", "a9 b12"]
    assert caller.step() == Step("b12 (0, 4]", near, {"Q1": near, "Q2": near})
    middle = ["a7 b12", "a5 b12"]
    assert caller.step() == Step("b12 (4, 7]", middle, {"Q2": middle})
    # With a11's last slice nothing stands before what b12 has found; Q3 has that before b12's last slice.
    far = ["a11 b2", "a11 b0"]
    assert caller.step() == Step("a11 (7, 12]", far, {"Q3": [*far, *near, *middle]})
    far = ["a3 b12", "a1 b12"]
    assert caller.step() == Step("b12 (7, 12]", far, {"Q3": far})
    assert caller.schedule.pending == ()


def test_swf_holds_back_until_the_row_itself_gets_on_where_greedy_does_not() -> None:
    """Uniform windows: the same order of units, but Greedy lets go of what no longer waits for anything older."""
    steps = {}
    for policy in (SWF, GREEDY):
        caller = figure(policy, (4, 8, 12), MATCHES)
        caller.arrive(A11)
        caller.arrive(B12)
        steps[policy] = [caller.step() for _ in range(6)]
    assert [s.unit for s in steps[SWF]] == [s.unit for s in steps[GREEDY]]
    assert steps[SWF][2].got == {"Q2": ["a11 b4"], "Q3": ["a11 b4"]}
    assert steps[GREEDY][2].got == {"Q2": ["a11 b4", "a9 b12"], "Q3": ["a11 b4"]}
    assert steps[GREEDY][4].got == {"Q3": ["a11 b0", "a9 b12", "a5 b12"]}


# Units of work


def scheduled(policy: str = SWF, **windows: int) -> JoinSchedule:
    schedule = JoinSchedule(POLICIES[policy])
    for query, window in windows.items():
        schedule.add(query, window)
    return schedule


def test_small_units_share_a_job_in_the_order_in_which_they_would_come() -> None:
    schedule = scheduled(q1=1, q2=5, q3=100)
    first, second = schedule.arrive(Arrival("A", 2), Arrival("B", 3))
    works = schedule.take(share=12)
    assert works == (Work(first, Slice(0, 1)), Work(second, Slice(0, 1)), Work(first, Slice(1, 5)))
    for work in works:
        schedule.finish(work)
    assert schedule.take() == (Work(second, Slice(1, 5)),)


def test_a_unit_that_costs_more_than_the_share_comes_alone() -> None:
    schedule = scheduled(LWO, q=100)
    first, second = schedule.arrive(Arrival("A"), Arrival("B"))
    assert schedule.take(share=50) == (Work(first, Slice(0, 100)),)
    assert schedule.take(share=10) == (Work(second, Slice(0, 100)),)
    assert schedule.take(share=10) == ()


def test_a_unit_given_back_is_taken_again_with_what_followed_it() -> None:
    schedule = scheduled(q1=1, q2=5)
    (batch,) = schedule.arrive(Arrival("A"))
    taken = schedule.take(share=10)
    assert [w.part for w in taken] == [Slice(0, 1), Slice(1, 5)]
    schedule.give_back(taken[0])
    assert schedule.release() == []
    with pytest.raises(ValueError, match="not out"):
        schedule.finish(taken[1])
    assert schedule.take(share=10) == taken
    schedule.finish(taken[0])
    schedule.give_back(taken[1])
    assert schedule.take() == (Work(batch, Slice(1, 5)),)


def test_units_of_a_batch_finish_in_order_and_once() -> None:
    schedule = scheduled(q1=1, q2=5)
    schedule.arrive(Arrival("A"))
    near, far = schedule.take(share=10)
    with pytest.raises(ValueError, match="not the next"):
        schedule.finish(far)
    schedule.finish(near)
    with pytest.raises(ValueError, match="not the next"):
        schedule.finish(near)


def test_what_no_query_waits_for_is_not_scheduled() -> None:
    schedule = scheduled()
    schedule.arrive(Arrival("A"))
    assert schedule.take() == ()
    assert schedule.pending == ()


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_holds_something(window: int) -> None:
    with pytest.raises(ValueError, match="larger than 0"):
        scheduled(q=window)


def test_a_query_is_there_once_and_a_batch_has_rows() -> None:
    schedule = scheduled(q=1)
    with pytest.raises(ValueError, match="already here"):
        schedule.add("q", 2)
    with pytest.raises(ValueError, match="at least one row"):
        schedule.arrive(Arrival("A", 0))


# Release


def test_batches_of_one_turn_are_released_together() -> None:
    schedule = scheduled(q1=1, q2=5)
    batches = schedule.arrive(Arrival("A", 2), Arrival("B", 3))
    released = []
    while works := schedule.take():
        schedule.finish(*works)
        released.append(schedule.release())
    assert released == [[], [Release("q1", batches, Slice(0, 1))], [], [Release("q2", batches, Slice(0, 5))]]


def test_a_batch_that_overtook_another_is_held_back() -> None:
    # The window of 5 came after the first batch, which therefore scans 100 at once; the second does the rest of
    # 100 before it, as that is cheaper.
    schedule = scheduled(GREEDY, large=100)
    (first,) = schedule.arrive(Arrival("A", piecewise=True))
    schedule.add("small", 5)
    (second,) = schedule.arrive(Arrival("B", piecewise=True))
    seen = []
    while works := schedule.take():
        schedule.finish(*works)
        seen.append((works[0].batch, schedule.release()))
    assert seen == [
        (second, [Release("small", (second,), Slice(0, 5))]),
        (second, []),
        (first, [Release("large", (first,), Slice(0, 100)), Release("large", (second,), Slice(0, 100))]),
    ]


# Queries come and go


def test_a_new_query_changes_nothing_for_batches_that_are_here() -> None:
    schedule = scheduled(q1=10)
    schedule.arrive(Arrival("A"))
    schedule.add("q2", 50)
    schedule.add("q0", 5)
    (work,) = schedule.take()
    assert work.part == Slice(0, 10)
    schedule.finish(work)
    assert [r.query for r in schedule.release()] == ["q1"]
    assert schedule.take() == ()
    schedule.arrive(Arrival("A"))
    assert [w.part for w in schedule.take(share=100)] == [Slice(0, 5), Slice(5, 10), Slice(10, 50)]


def test_nothing_is_scanned_for_a_query_that_is_gone() -> None:
    schedule = scheduled(q1=1, q2=5, q3=9)
    schedule.arrive(Arrival("A"))
    (work,) = schedule.take()
    schedule.finish(work)
    schedule.remove("q2")
    assert [part for part, _ in schedule.queues] == [Slice(1, 9)]
    schedule.remove("q3")
    assert schedule.queues == ()
    assert [r.query for r in schedule.release()] == ["q1"]
    assert schedule.pending == ()


def test_a_unit_may_be_finished_when_its_query_is_gone() -> None:
    schedule = scheduled(q=5)
    (batch,) = schedule.arrive(Arrival("A"))
    (work,) = schedule.take()
    schedule.remove("q")
    assert schedule.pending == (batch,)
    schedule.finish(work)
    assert schedule.release() == []
    assert not schedule.pending


def test_units_may_be_given_back_when_their_query_is_gone() -> None:
    schedule = scheduled(q1=1, q2=5)
    schedule.arrive(Arrival("A"))
    taken = schedule.take(share=10)
    schedule.remove("q1")
    schedule.remove("q2")
    for work in taken:
        schedule.give_back(work)
    assert schedule.take() == ()
    assert schedule.pending == ()


def test_a_policy_can_be_changed_between_units() -> None:
    schedule = scheduled(SWF, q1=1, q2=5)
    first, second = schedule.arrive(Arrival("A"), Arrival("B"))
    (work,) = schedule.take()
    schedule.finish(work)
    schedule.policy = POLICIES[LWO]
    assert schedule.take() == (Work(first, Slice(1, 5)),)
    assert schedule.take() == (Work(second, Slice(0, 5)),)


# Costs


def test_slices_share_a_job_that_take_less_time_than_one() -> None:
    cost = Measured()
    schedule = JoinSchedule(POLICIES[GREEDY], cost)
    for query, window in {"q1": 10, "q2": 15, "q3": 100}.items():
        schedule.add(query, window)
    for _ in range(20):
        cost.observe([Slice(0, 10)], spent=6.0)
        cost.observe([Slice(15, 100)], spent=13.5)
    schedule.arrive(Arrival("A", 7), Arrival("B", 5))
    shared = [[(w.batch.stream, w.part) for w in schedule.take(cost.job, alike=True)] for _ in range(3)]
    near, middle, far = ([(stream, part) for stream in "AB"] for part in map(Slice, (0, 10, 15), (10, 15, 100)))
    assert shared == [near + middle, far, []]


def test_jobs_cost_something_and_slices_by_their_size() -> None:
    cost = Measured(job=5.0)
    assert cost.job == 5.0
    for _ in range(20):
        cost.observe([Slice(0, 10), Slice(10, 40)], spent=9.0)
        cost.observe([Slice(0, 10)], spent=6.0)
    assert cost.job == pytest.approx(5.0)
    assert cost(Slice(0, 10)) == pytest.approx(1.0)
    assert cost(Slice(40, 60)) == pytest.approx(2.0)


def test_costs_are_never_below_nothing() -> None:
    cost = Measured(job=5.0)
    cost.observe([Slice(0, 10)], spent=1.0)
    assert (cost.job, cost(Slice(0, 10))) == (3.0, 0.0)


# The law

STREAMS = st.sampled_from("AB")
SYMBOLS = st.sampled_from("xy")
ROWS_OF_A_TURN = st.lists(st.tuples(st.integers(0, 4), STREAMS, SYMBOLS), min_size=1, max_size=6)
WINDOWS = st.integers(1, 20)
EVENTS = st.one_of(
    st.tuples(st.just("arrive"), ROWS_OF_A_TURN),
    st.tuples(st.just("arrive"), ROWS_OF_A_TURN),
    st.tuples(st.just("work"), st.floats(0, 60)),
    st.tuples(st.just("work"), st.just(0.0)),
    st.tuples(st.just("take"), st.floats(0, 60)),
    st.tuples(st.just("fail"), st.floats(0, 60)),
    st.tuples(st.just("add"), WINDOWS),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("policy"), st.sampled_from(sorted(POLICIES))),
)


@dataclass
class Run:
    """A caller to whom things happen; checks after every unit that nothing is held back without need."""

    caller: Caller
    windows: dict[str, int] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    out: list[Work] = field(default_factory=list)
    now: int = 0

    def add(self, window: int) -> None:
        query = f"q{len(self.windows)}"
        self.windows[query] = window
        self.caller.add(query, window)

    def remove(self, which: int) -> None:
        here = [q for q in self.windows if q not in self.removed]
        if here:
            query = here[which % len(here)]
            self.caller.schedule.remove(query)
            self.removed.add(query)

    def policy(self, name: str) -> None:
        self.caller.schedule.policy = POLICIES[name]

    def arrive(self, gaps: list[tuple[int, str, str]]) -> None:
        turn: list[tuple[str, int, str]] = []
        for gap, stream, symbol in gaps:
            self.now += gap
            turn.append((stream, self.now, symbol))
        for rows in [[r] for r in turn] if self.caller.piecewise else [turn]:
            self.caller.arrive(*rows)

    def take(self, share: float) -> None:
        """Units that stay out while other things happen."""
        self.out += self.caller.schedule.take(share)

    def work(self, share: float) -> None:
        self.take(share)
        for work in self.out:
            self.caller.finish(work)
        self.out = []
        self.caller.hand_over()
        self.check_nothing_is_held_back_without_need()

    def fail(self, share: float) -> None:
        """All that is out fails; nothing of it counts."""
        self.take(share)
        for work in self.out:
            self.caller.schedule.give_back(work)
        self.out = []

    def check_nothing_is_held_back_without_need(self) -> None:
        caller = self.caller
        for query, window in caller.schedule.windows.items():
            missing = caller.alone(query, window)[len(caller.got[query]) :]
            assert not missing or self.must_wait(missing[0], query, window)

    def must_wait(self, pair: Pair, query: str, window: int) -> bool:
        """Something older is not complete, or the result is not found, or has to wait for others of its turn."""
        older = self.caller.rows[self.caller.since[query] : pair.later.order]
        if any(self.caller.scanned_for(row) < window for row in older):
            return True
        goes_in_part = self.caller.piecewise and self.caller.schedule.policy.early
        return self.caller.scanned_for(pair.later) < (max(pair.distance, 1) if goes_in_part else window)

    def check_answers(self) -> None:
        for query, window in self.windows.items():
            expected = self.caller.alone(query, window)
            got = self.caller.got[query]
            assert got == expected[: len(got)]
            if query not in self.removed:
                assert len(got) == len(expected)

    def end(self) -> None:
        self.work(0.0)
        self.caller.drain()
        self.check_answers()
        assert self.caller.schedule.pending == ()
        assert self.caller.schedule.queues == ()
        assert self.caller.held == {}


@pytest.mark.parametrize("piecewise", [True, False], ids=["rows", "batches"])
@pytest.mark.parametrize("window", [TIME, ROWS])
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(first=st.lists(WINDOWS, min_size=1, max_size=4), events=st.lists(EVENTS, max_size=25))
def test_every_query_gets_what_it_would_alone_in_the_same_order_and_once(
    policy: str, window: str, piecewise: bool, first: list[int], events: list[tuple[str, object]]
) -> None:
    run = Run(Caller(JoinSchedule(POLICIES[policy]), window, piecewise))
    for size in first:
        run.add(size)
    for what, value in events:
        getattr(run, what)(value)
    run.end()


SMALL_LARGE = (1, 5, 15, 60, 100)


def random_row(random: Random) -> tuple[int, str, str]:
    return random.randint(0, 2), random.choice("AB"), random.choice("xyz")


@pytest.mark.parametrize("policy", POLICIES)
def test_long_runs_with_bursts_and_many_queries(policy: str) -> None:
    random = Random(6)
    run = Run(Caller(JoinSchedule(POLICIES[policy]), TIME, piecewise=False))
    for window in SMALL_LARGE:
        run.add(window)
    for _ in range(100):
        match random.random():
            case luck if luck < 0.3:
                run.arrive([random_row(random) for _ in range(int(random.paretovariate(1.25)) % 20 + 1)])
            case luck if luck < 0.4:
                run.add(random.choice(SMALL_LARGE))
            case luck if luck < 0.45:
                run.remove(random.randrange(10))
            case _:
                run.work(random.choice((0.0, 100.0)))
    run.end()
    assert sum(map(len, run.caller.got.values())) > 1_000
