"""Which operator a batch goes to next: the eddy's policy.

Operators hold tickets: for every row that they consume they earn one for each query that they serve, and lose them
again for what they give back. Tickets are counted per row given back, since that is what is left for others to do:
one that lets a row in a thousand pass saves thirty times the work of one that lets a row in thirty pass, though
both consume nearly all. So an operator that mostly gets what others have left may still be the better one to begin
with. The next is drawn by lot, with the squares of the tickets as lots: a wrong draw costs as much as many right
ones save. What was long ago counts less and less, so that a policy follows when selectivities drift, and every
operator keeps some lots, or nobody would find out that it has become the better one. One that comes first though
others have far more tickets is only tried, and a policy says so: a few rows are enough to learn from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

DECAY = 0.3
"""What all batches before count for when the next one has come."""
LEAST = 0.002
"""An operator's least share in the lottery."""
FEWEST = 1e-6
"""The least share of rows that an operator is taken to give back."""
TRUSTED = 0.5
"""An operator with that share of the most tickets is one of those to begin with."""


class Policy(Protocol):
    """Chooses, and hears what became of it."""

    def choose(self, ready: Sequence[str]) -> str:
        """One of the operators that a batch has not been through."""
        ...

    def trusts(self, operator: str, /) -> bool:
        """Whether many rows may begin with an operator; else it is tried with few."""
        ...

    def observe(self, operator: str, queries: int, taken: int, returned: int) -> None:
        """What an operator that serves some queries took and gave back, in pairs of a row and a query."""
        ...


def drawn(policy: Policy, operators: Sequence[str]) -> list[str]:
    """An order for a batch that can go to any operator at any time."""
    ready, order = list(operators), []
    while ready:
        order.append(policy.choose(ready))
        ready.remove(order[-1])
    return order


class Tickets:
    """The lottery."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self.tickets: dict[str, float] = {}
        self.selectivity: dict[str, float] = {}

    def choose(self, ready: Sequence[str]) -> str:
        lots = [self.tickets.get(o, 0.0) ** 2 for o in ready]
        least = max(LEAST * sum(lots), 1e-9)
        return self._random.choices(ready, [max(own, least) for own in lots])[0]

    def trusts(self, operator: str, /) -> bool:
        most = max(self.tickets.values(), default=0.0)
        return operator in self.tickets and self.tickets[operator] >= TRUSTED * most

    def observe(self, operator: str, queries: int, taken: int, returned: int) -> None:
        if not taken:
            return
        share = returned / taken
        before = self.selectivity.get(operator, share)
        self.selectivity[operator] = now = DECAY * before + (1 - DECAY) * share
        self.tickets[operator] = queries * (1 - now) / max(now, FEWEST)


class Fixed:
    """Always in one order."""

    def __init__(self, order: Sequence[str] = ()) -> None:
        self._order = list(order)

    def choose(self, ready: Sequence[str]) -> str:
        known = [o for o in self._order if o in ready]
        return known[0] if known else ready[0]

    def trusts(self, _operator: str) -> bool:
        return True

    def observe(self, operator: str, queries: int, taken: int, returned: int) -> None:
        """Nothing is learnt."""


class Shuffled:
    """Any operator, each as likely."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, ready: Sequence[str]) -> str:
        return self._random.choice(ready)

    def trusts(self, _operator: str) -> bool:
        return True

    def observe(self, operator: str, queries: int, taken: int, returned: int) -> None:
        """Nothing is learnt."""


TICKETS, FIXED, RANDOM = "tickets", "fixed", "random"
POLICIES: dict[str, Callable[[], Policy]] = {TICKETS: Tickets, FIXED: Fixed, RANDOM: Shuffled}
"""By the names that users know them by; a fixed order is that of the attributes' names unless one is given."""
