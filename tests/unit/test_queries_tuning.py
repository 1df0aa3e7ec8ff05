"""Self-tuning learns from scripted costs: the best number of chunks, the cheaper plan, and again after a shift."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millstream.queries.tuning import AGAIN, INCREMENTAL, Choice, Chunks

if TYPE_CHECKING:
    from collections.abc import Callable


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
