"""Self-tuning learns from scripted costs: the best number of chunks, the cheaper plan, and again after a shift.

First by itself, then in a database whose timer says what a script says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from millstream.queries.tuning import AGAIN, INCREMENTAL, Choice, Chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.database import Database
    from millstream.queries.run import Run


def bowl(best: int, rows: float = 1_000.0) -> Callable[[int], float]:
    """What is left of a slide in m chunks, and what each chunk costs beside that; least at `best`."""
    each = rows / best**2
    return lambda m: rows / m + each * m


def settle(chunks: Chunks, cost: Callable[[int], float], most: int = 200) -> int:
    for _ in range(most):
        chunks.observe(cost(chunks.m))
    assert chunks.is_settled
    return chunks.m


@pytest.mark.parametrize("best", [1, 2, 4, 16, 64, 256])
def test_the_best_number_of_chunks_is_found(best: int) -> None:
    assert settle(Chunks(), bowl(best)) == best


def test_sixteen_chunks_are_found_and_found_again_after_the_costs_shift() -> None:
    chunks = Chunks()
    assert settle(chunks, bowl(16)) == 16
    assert settle(chunks, bowl(2, rows=400.0)) == 2
    assert settle(chunks, bowl(64, rows=90_000.0)) == 64
    assert settle(chunks, bowl(16)) == 16


def test_small_changes_of_the_costs_change_nothing() -> None:
    chunks = Chunks()
    settle(chunks, bowl(16))
    for factor in (0.9, 1.1, 1.3, 0.8):
        assert settle(chunks, lambda m, f=factor: f * bowl(16)(m)) == 16  # type: ignore[misc]


def test_one_slow_answer_is_not_a_shift() -> None:
    chunks = Chunks()
    settle(chunks, bowl(16))
    chunks.observe(1e6)
    assert settle(chunks, bowl(16)) == 16


def plans(choice: Choice, costs: dict[str, float], answers: int) -> list[str]:
    found = []
    for _ in range(answers):
        found.append(choice.plan)
        choice.observe(costs[choice.plan])
    return found


def test_the_cheaper_plan_is_chosen() -> None:
    for cheaper, other in ((INCREMENTAL, AGAIN), (AGAIN, INCREMENTAL)):
        choice = Choice()
        plans(choice, {cheaper: 1.0, other: 2.0}, 40)
        assert choice.plan == cheaper
        assert choice.costs == {cheaper: 1.0, other: 2.0}


def test_the_choice_is_checked_again_when_costs_change() -> None:
    choice = Choice()
    plans(choice, {INCREMENTAL: 1.0, AGAIN: 2.0}, 60)
    assert choice.plan == INCREMENTAL
    plans(choice, {INCREMENTAL: 5.0, AGAIN: 2.0}, 120)
    assert choice.plan == AGAIN
    plans(choice, {INCREMENTAL: 1.0, AGAIN: 2.0}, 300)
    assert choice.plan == INCREMENTAL


def test_the_dearer_plan_is_tried_ever_more_rarely() -> None:
    tried = plans(Choice(), {INCREMENTAL: 1.0, AGAIN: 2.0}, 4_000)
    assert tried.count(AGAIN) <= 30


def test_the_same_costs_lead_to_the_same_choices() -> None:
    costs = [(i * 7919 % 101) / 10 for i in range(500)]
    one, other = Chunks(), Chunks()
    for cost in costs:
        one.observe(cost)
        other.observe(cost)
        assert one == other


# In a database

SLIDE = 16
WINDOW = 2 * SLIDE - 1
SUMS = f"SELECT k, sum(v) AS total FROM s [INTERVAL {WINDOW}] WHERE v >= {{}} GROUP BY k SAMPLE INTERVAL {SLIDE}"


@dataclass
class Scripted:
    """A database with a row a time, and what answers are said to cost.

    `steps` has, for each answer, how many rows were taken in by each of the steps up to it.
    """

    db: Database
    monkeypatch: pytest.MonkeyPatch
    row: float = 1.0
    """What a row costs that is there when an answer is due."""
    piece: float = 0.0
    """What each piece costs in which the rows before an answer were taken in."""
    plans: dict[str, float] = field(default_factory=lambda: {INCREMENTAL: 0.0, AGAIN: 0.0})
    now: float = 0.0
    at: int = 0
    waiting: list[int] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.db.sql("CREATE STREAM s (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t")
        queries = self.db._engine.queries
        alone, together = queries._stepper._answer, queries.chorus._answer

        def answered(run: Any, step: Any, look: Any, due: Any, *rest: Any) -> None:
            alone(run, step, look, due, *rest)
            self._note(step.came, [due], INCREMENTAL if run.is_split else AGAIN)

        def answered_together(runs: Any, steps: Any, due: Any) -> None:
            together(runs, steps, due)
            self._note(steps[0].came, due, INCREMENTAL)

        self.monkeypatch.setattr(queries._stepper, "_answer", answered)
        self.monkeypatch.setattr(queries.chorus, "_answer", answered_together)
        self.monkeypatch.setattr(queries._stepper, "_timer", lambda: self.now)

    def _note(self, came: Any, due: Sequence[Any], plan: str) -> None:
        self.waiting.append(sum(len(a.ids) for a in came))
        if any(due):
            self.now += self.row * self.waiting[-1] + self.piece * len(self.waiting) + self.plans[plan]
            self.steps.append(self.waiting)
            self.waiting = []

    def queries(self, count: int) -> None:
        for number in range(count):
            self.db.sql(f"CREATE CONTINUOUS QUERY q{number} AS {SUMS.format(number)}")

    def feed(self, slides: int = 1, size: int = 1, rows: int | None = None) -> None:
        for _ in range((rows or slides * SLIDE) // size):
            self.db.insert("s", [(t % 3, t, t) for t in range(self.at, self.at + size)])
            self.at += size
            self.db._engine.queries.advance_all()

    def runs(self) -> list[Run]:
        return list(self.db._engine.queries._runs.values())

    def begin(self, count: int) -> None:
        """Queries that have answered, so that they know how many rows there are to an answer."""
        self.queries(count)
        self.db.sql("SET chunks = 1")
        self.feed(rows=2, size=2)
        self.feed(size=SLIDE)
        self.db.sql("SET chunks = auto")

    def settle(self) -> list[int]:
        """Until the number of chunks is found; each chunk comes in two inserts. Which numbers were tried?"""
        tried: list[int] = []
        while not tried or not all(run.chunks.is_settled for run in self.runs()):
            m = max(run.chunks.m for run in self.runs())
            tried += [m] if m not in tried[-1:] else []
            self.feed(size=max(1, SLIDE // m // 2))
            assert len(self.steps) < 100
        return tried

    def explained(self, name: str) -> str:
        return "\n".join(line for (line,) in self.db.sql(f"EXPLAIN {name}").fetchall())

    def check(self, count: int) -> None:
        """All answers are right, whatever was tuned."""
        for number in range(count):
            for delivery in self.db.results(f"q{number}"):
                assert isinstance(delivery.instant, int)
                within = range(max(number, delivery.instant - WINDOW), delivery.instant + 1)
                expected = [(k, sum(t for t in within if t % 3 == k)) for k in sorted({t % 3 for t in within})]
                assert sorted(delivery.fetchall()) == expected


@pytest.fixture
def scripted(db: Database, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(db, monkeypatch)


@pytest.mark.parametrize("count", [1, 2])
def test_a_database_finds_sixteen_chunks_and_others_after_the_costs_shift(count: int, scripted: Scripted) -> None:
    scripted.db.sql("SET incremental = on")
    scripted.begin(count)
    scripted.piece = 1 / 16
    assert scripted.settle() == [1, 2, 4, 8, 16, 32]
    scripted.feed()
    assert [run.chunks.m for run in scripted.runs()] == [16] * count
    assert scripted.steps[-1] == [SLIDE // 16] * 16
    others = ", with 1 other query" if count > 1 else ""
    assert f"Pre-processed in chunks: 16 (2000.0 ms an answer{others})" in scripted.explained("q0")

    scripted.piece = 4
    while all(run.chunks.is_settled for run in scripted.runs()):
        scripted.feed()
    assert scripted.settle() == [32, 8, 4, 2, 1]
    scripted.feed(size=SLIDE // 4)
    assert [run.chunks.m for run in scripted.runs()] == [2] * count
    assert scripted.steps[-1] == [SLIDE // 2] * 2
    assert f"Pre-processed in chunks: 2 (16000.0 ms an answer{others})" in scripted.explained("q0")
    scripted.check(count)


@pytest.mark.parametrize("count", [1, 2])
def test_with_four_chunks_a_slide_is_taken_in_in_pieces(count: int, scripted: Scripted) -> None:
    scripted.begin(count)
    scripted.db.sql("SET chunks = 4")
    scripted.feed(slides=2)
    assert scripted.steps[-2:] == [[SLIDE // 4] * 4] * 2
    assert "Pre-processed in chunks: 4 (SET chunks)" in scripted.explained("q0")
    scripted.db.sql("SET chunks = 1")
    scripted.feed()
    assert scripted.steps[-1] == [SLIDE]
    scripted.check(count)


def test_queries_that_go_together_have_no_choice_until_one_is_alone(scripted: Scripted) -> None:
    """One pass and one commit for all are not compared with what each would cost by itself."""
    scripted.plans = {INCREMENTAL: 500.0, AGAIN: 100.0}
    scripted.begin(2)
    scripted.feed(slides=15, size=SLIDE)
    assert all(run.is_split for run in scripted.runs())
    assert "Not chosen by cost: incremental, with 1 other query" in scripted.explained("q0")
    assert "Shared with 1 other query" in "".join(x for (x,) in scripted.db.sql("EXPLAIN SHARED q0").fetchall())

    scripted.db.sql("DROP CONTINUOUS QUERY q1")
    scripted.feed(slides=13, size=SLIDE)
    [run] = scripted.runs()
    assert not run.is_split
    text = scripted.explained("q0")
    assert "Re-evaluated: the windows' rows" in text
    assert "Chosen by cost: re-evaluated (incremental 516000.0 ms, re-evaluated 116000.0 ms an answer)" in text

    scripted.db.sql(f"CREATE CONTINUOUS QUERY q2 AS {SUMS.format(2)}")
    scripted.feed(slides=4, size=SLIDE)
    assert all(run.is_split for run in scripted.runs())
    assert "Shared with 1 other query" in "".join(x for (x,) in scripted.db.sql("EXPLAIN SHARED q0").fetchall())
    scripted.check(1)


@pytest.mark.parametrize(("said", "plan"), [("on", INCREMENTAL), ("off", AGAIN)])
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_set_is_done_whatever_it_costs(count: int, said: str, plan: str, scripted: Scripted) -> None:
    scripted.begin(count)
    seen = len(scripted.steps)
    scripted.db.sql(f"SET incremental = {said}")
    scripted.db.sql("SET chunks = 4")
    for number in range(12):
        scripted.plans = {INCREMENTAL: float(number * 7919 % 101), AGAIN: float(number * 104_729 % 97)}
        scripted.feed(size=SLIDE // 4)
        assert [run.is_split for run in scripted.runs()] == [plan == INCREMENTAL] * count
        assert f"Chosen by SET incremental: {plan}" in scripted.explained("q0")
    assert [run.chunks for run in scripted.runs()] == [Chunks()] * count
    if plan == INCREMENTAL:
        assert scripted.steps[seen:] == [[SLIDE // 4] * 4] * 12
    scripted.check(count)
