"""The eddy's policies by themselves: who comes first, what they learn, and how much work that saves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from millstream.execute.shared.selections import Selections
from millstream.plan.selection import Domain, Selection, Term
from millstream.queries.matching import FEW, SOME, by_policy, some_by_policy
from millstream.schedule import eddy
from millstream.schedule.eddy import POLICIES, Fixed, Policy, Shuffled, Tickets, drawn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.execute.shared.selections import Matcher

OPERATORS = ("a", "b", "c")
DRAWS = 4_000


def told(*shares: float, queries: Sequence[int] = (10, 10, 10), seed: int = 0) -> Tickets:
    """A lottery that has heard which share each operator gives back."""
    policy = Tickets(seed)
    for name, number, share in zip(OPERATORS, queries, shares, strict=False):
        policy.observe(name, number, 1_000, round(1_000 * share))
    return policy


def firsts(policy: Policy) -> Counter[str]:
    return Counter(drawn(policy, OPERATORS)[0] for _ in range(DRAWS))


# The lottery


def test_lots_are_the_squares_of_tickets() -> None:
    policy = told(0.5, 0.25, 0.2)
    assert [policy.tickets[o] for o in OPERATORS] == pytest.approx([10.0, 30.0, 40.0])
    found = firsts(policy)
    for name, lots in zip(OPERATORS, (1, 9, 16), strict=True):
        assert found[name] / DRAWS == pytest.approx(lots / 26, abs=0.02), name


def test_the_second_is_drawn_among_those_that_are_left() -> None:
    policy = told(0.5, 0.25, 0.2)
    orders = [drawn(policy, OPERATORS) for _ in range(DRAWS)]
    assert all(sorted(order) == list(OPERATORS) for order in orders)
    seconds = Counter(order[1] for order in orders if order[0] == "c")
    assert seconds["b"] / seconds.total() == pytest.approx(0.9, abs=0.03)


def test_one_that_serves_more_queries_has_as_many_tickets_more() -> None:
    policy = told(0.5, 0.5, 0.5, queries=(10, 20, 40))
    assert [policy.tickets[o] for o in OPERATORS] == pytest.approx([10.0, 20.0, 40.0])
    found = firsts(policy)
    assert found["a"] < found["b"] < found["c"]


def test_tickets_are_counted_by_row_given_back() -> None:
    policy = told(0.03, 0.001)
    assert policy.tickets["b"] / policy.tickets["a"] == pytest.approx(30, rel=0.05)
    nothing = told(0.0, 1.0)
    assert nothing.tickets["a"] < float("inf")
    assert nothing.tickets["b"] == 0.0


def test_every_operator_keeps_some_lots() -> None:
    found = firsts(told(0.001, 1.0, 1.0))
    assert all(0 < found[name] < DRAWS / 100 for name in "bc"), found


def test_where_nothing_is_known_all_are_as_likely() -> None:
    found = firsts(Tickets())
    assert all(found[name] / DRAWS == pytest.approx(1 / 3, abs=0.03) for name in OPERATORS), found


def test_only_those_with_about_the_most_tickets_are_trusted_with_many_rows() -> None:
    assert not Tickets().trusts("a"), "where nothing is known"
    policy = told(0.01, 0.011, 0.9)
    assert [policy.trusts(o) for o in (*OPERATORS, "new")] == [True, True, False, False]
    assert all(POLICIES[name]().trusts("a") for name in ("fixed", "random"))


def test_what_was_long_ago_counts_less_and_less() -> None:
    policy, share = Tickets(), 0.1
    policy.observe("a", 1, 100, 10)
    for _ in range(5):
        policy.observe("a", 1, 100, 90)
        share = eddy.DECAY * share + (1 - eddy.DECAY) * 0.9
        assert policy.selectivity["a"] == pytest.approx(share)
        assert policy.tickets["a"] == pytest.approx((1 - share) / share)
    assert policy.selectivity["a"] == pytest.approx(0.9, abs=0.01)


def test_tickets_follow_when_selectivities_drift() -> None:
    policy = told(0.01, 0.9, 0.9)
    assert firsts(policy).most_common(1)[0][0] == "a"
    for _ in range(4):
        policy.observe("a", 10, 1_000, 900)
        policy.observe("b", 10, 1_000, 10)
    assert firsts(policy).most_common(1)[0][0] == "b"


def test_a_batch_of_which_nothing_came_teaches_nothing() -> None:
    policy = told(0.5, 0.25, 0.2)
    before = dict(policy.tickets), dict(policy.selectivity)
    policy.observe("a", 10, 0, 0)
    policy.observe("new", 10, 0, 0)
    assert (policy.tickets, policy.selectivity) == before


# The others


def test_a_fixed_order_is_that_which_was_given_then_that_of_the_operators() -> None:
    policy = Fixed(("c", "gone", "a"))
    policy.observe("b", 10, 1_000, 0)
    assert [drawn(policy, OPERATORS) for _ in range(3)] == [["c", "a", "b"]] * 3
    assert drawn(POLICIES["fixed"](), OPERATORS) == list(OPERATORS)


def test_random_orders_are_all_as_likely_whatever_is_told() -> None:
    policy = Shuffled()
    policy.observe("a", 10, 1_000, 0)
    found = Counter(tuple(drawn(policy, OPERATORS)) for _ in range(DRAWS))
    assert found.keys() == set(permutations(OPERATORS))
    assert all(number / DRAWS == pytest.approx(1 / 6, abs=0.03) for number in found.values()), found


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_draws_the_same_orders(name: str) -> None:
    def orders() -> list[list[str]]:
        policy, made, random = POLICIES[name](), [], Random(1)
        for _ in range(50):
            made.append(drawn(policy, OPERATORS))
            for operator in made[-1]:
                policy.observe(operator, 10, 100, random.randrange(101))
        return made

    assert orders() == orders()


@pytest.mark.parametrize("kind", [Tickets, Shuffled])
def test_another_seed_draws_other_orders(kind: type[Tickets] | type[Shuffled]) -> None:
    one, other = kind(1), kind(2)
    assert [drawn(one, OPERATORS) for _ in range(20)] != [drawn(other, OPERATORS) for _ in range(20)]


# What it saves: counted in rows times terms that operators took, so that it is the same on every machine

QUERIES, ROWS, BATCHES = 60, 1_000, 60
IDLE, OTHERS = 0.98, 0.1
"""The share of rows with a value that interests nobody: of the attribute that is telling, and of the others."""


def matcher() -> Matcher:
    """Queries with a broad range of each attribute; nobody asks for the value -1."""
    selections, random = Selections(dict.fromkeys(OPERATORS, pa.int64())), Random("ranges")
    for query in range(QUERIES):
        lows = {name: random.randrange(100) for name in OPERATORS}
        ranges = {n: Domain.comparing(">=", low) & Domain.comparing("<", low + 900) for n, low in lows.items()}
        selections.add(query, Selection((Term(ranges),)))
    return selections.ready()


def batch(telling: str, random: np.random.Generator) -> pa.Table:
    made = {}
    for name in OPERATORS:
        idle = random.random(ROWS) < (IDLE if name == telling else OTHERS)
        made[name] = np.where(idle, -1, random.integers(0, 1_000, ROWS))
    return pa.table(made)


@dataclass
class Trusting(Fixed):
    """A fixed order that is trusted from the third draw on."""

    asked: int = 0

    def __post_init__(self) -> None:
        super().__init__(OPERATORS)

    def trusts(self, _operator: str) -> bool:
        self.asked += 1
        return self.asked > 2


def test_an_order_that_is_only_tried_gets_few_rows_and_all_rows_get_through() -> None:
    rows = pa.concat_tables(batch("a", np.random.default_rng(1)) for _ in range(6))
    operators = matcher()
    found = list(some_by_policy(operators, rows, Trusting()))
    first = [sum(p.taken for p in one.passed[:1]) // QUERIES for _, one in found]
    assert first == [FEW, FEW, SOME, rows.num_rows - 2 * FEW - SOME]
    together, _ = by_policy(operators, rows, Trusting())
    at_once = operators.match(rows, OPERATORS)
    assert together.rows.tobytes() == at_once.rows.tobytes()
    assert together.queries.tobytes() == at_once.queries.tobytes()


def test_the_lottery_is_near_the_best_order_in_each_phase_and_the_worst_is_far() -> None:
    fixed: dict[str, Policy] = {" ".join(order): Fixed(order) for order in permutations(OPERATORS)}
    policies = {"tickets": Tickets(), "random": Shuffled(), **fixed}
    operators, random, work = matcher(), np.random.default_rng(12), Counter[tuple[str, str]]()
    for phase in OPERATORS:
        for _ in range(BATCHES):
            rows, found = batch(phase, random), set()
            for name, policy in policies.items():
                matches, _ = by_policy(operators, rows, policy)
                work[name, phase] += sum(p.taken for p in matches.passed)
                found.add((matches.rows.tobytes(), matches.queries.tobytes()))
            assert len(found) == 1
    totals = {name: sum(work[name, phase] for phase in OPERATORS) for name in policies}
    for phase in OPERATORS:
        best = min(work[name, phase] for name in fixed)
        assert work["tickets", phase] <= 1.2 * best, (phase, work["tickets", phase] / best)
    assert max(totals[name] for name in fixed) >= 1.5 * totals["tickets"], totals
    assert totals["tickets"] < totals["random"]
