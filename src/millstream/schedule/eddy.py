"""Which operator a batch goes to next: the eddy's policy.

Operators hold tickets: for every row that they take they earn one for each query that they serve, and lose them
again for what they give back; so one that rejects much, for many queries, holds many. Tickets are counted per row
taken: an operator that mostly gets what others have left may still be the better one to begin with. The next is
drawn by lot, a ticket a lot. What was long ago counts less and less, so that a policy follows when selectivities
drift, and every operator keeps some lots, or nobody would find out that it has become the better one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

DECAY = 0.7
"""What a batch counts for when the next one comes."""
LEAST = 0.02
"""An operator's least share in the lottery."""


class Policy(Protocol):
    """Chooses, and hears what became of it."""

    def choose(self, ready: Sequence[str]) -> str:
        """One of the operators that a batch has not been through."""
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
        held = [self.tickets.get(o, 0.0) for o in ready]
        least = max(LEAST * sum(held), 1e-9)
        return self._random.choices(ready, [max(h, least) for h in held])[0]

    def observe(self, operator: str, queries: int, taken: int, returned: int) -> None:
        if not taken:
            return
        share = returned / taken
        before = self.selectivity.get(operator, share)
        self.selectivity[operator] = now = DECAY * before + (1 - DECAY) * share
        self.tickets[operator] = queries * (1 - now)


class Fixed:
    """Always in one order."""

    def __init__(self, order: Sequence[str] = ()) -> None:
        self._order = list(order)

    def choose(self, ready: Sequence[str]) -> str:
        known = [o for o in self._order if o in ready]
        return known[0] if known else ready[0]

    def observe(self, operator: str, queries: int, taken: int, returned: int) -> None:
        """Nothing is learnt."""


class Shuffled:
    """Any operator, each as likely."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, ready: Sequence[str]) -> str:
        return self._random.choice(ready)

    def observe(self, operator: str, queries: int, taken: int, returned: int) -> None:
        """Nothing is learnt."""


TICKETS, FIXED, RANDOM = "tickets", "fixed", "random"
POLICIES: dict[str, Callable[[], Policy]] = {TICKETS: Tickets, FIXED: Fixed, RANDOM: Shuffled}
"""By the names that users know them by; a fixed order is that of the attributes' names unless one is given."""
