"""Which unit of a shared window join comes first: the policies LWO, SWF and Greedy, and what a unit costs.

A slice is the part of the other stream's window that lies between two neighbouring window sizes. Sizes are whole
numbers, of rows or of the smallest step of time; nothing here knows which. A policy sees slices and what they cost
for each new row, never rows or queries. It says in which order the slices come, whether a batch takes its slices
one by one, and when results that are held back may go; among equals the nearer slice and then the older batch come
first, so that the same calls always give the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

DECAY = 0.7
"""What the costs so far count for when the next one is observed."""
SLICES_REMEMBERED = 1_000
"""Windows come and go; what slices of long ago cost is of no use."""


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """Everything further away than `low` and at most `high`; the first slice, with `low` 0, includes 0 itself."""

    low: int
    high: int

    @property
    def size(self) -> int:
        return self.high - self.low


class Cost(Protocol):
    """What a slice is expected to cost, in any one unit: for each new row, or where a scan serves all, for it."""

    def __call__(self, part: Slice, /) -> float: ...


def by_size(part: Slice) -> float:
    """As the paper has it: a slice costs as much as it is wide."""
    return part.size


class Measured:
    """Costs as observed. A slice that has not run yet is taken to cost as much for its size as others did."""

    def __init__(self, rate: float = 1.0) -> None:
        self._rate = rate
        self._seen: dict[Slice, float] = {}

    def __call__(self, part: Slice) -> float:
        return self._seen.get(part, self._rate * part.size)

    def observe(self, units: Sequence[tuple[Slice, int]], spent: float) -> None:
        """What slices, with so many new rows each, cost in one job; each is charged by what it was expected to."""
        expected = sum(self(part) * rows for part, rows in units)
        if expected <= 0 or spent <= 0:
            return
        factor = spent / expected
        charged = {part: self(part) * factor for part, _ in units}
        self._rate *= DECAY + (1 - DECAY) * factor if self._seen else factor
        for part, cost in charged.items():
            self._learn(part, cost)

    def _learn(self, part: Slice, cost: float) -> None:
        before = self._seen.pop(part, cost)
        self._seen[part] = DECAY * before + (1 - DECAY) * cost
        if len(self._seen) > SLICES_REMEMBERED:
            del self._seen[next(iter(self._seen))]


class Policy(Protocol):
    """How a shared join is scheduled."""

    @property
    def whole(self) -> bool:
        """A batch takes all its slices in one unit."""
        ...

    @property
    def early(self) -> bool:
        """What is held back goes as soon as nothing older is missing, not only with its batch's next unit."""
        ...

    def rank(self, part: Slice) -> tuple[float, ...]:
        """The queue of the slice with the smallest rank is served first."""
        ...


@dataclass(frozen=True, slots=True)
class LargestWindowOnly:
    """LWO: one batch after the other, each with the largest window; there is nothing to hold back."""

    whole: bool = True
    early: bool = True

    def rank(self, part: Slice) -> tuple[float, ...]:  # noqa: ARG002 - a policy may do without
        return ()


@dataclass(frozen=True, slots=True)
class SmallestWindowFirst:
    """SWF: no batch goes on to a larger window while another waits for a smaller one."""

    whole: bool = False
    early: bool = False

    def rank(self, part: Slice) -> tuple[float, ...]:
        return (part.high,)


@dataclass(frozen=True, slots=True)
class Greedy:
    """The smallest slice first.

    Where all slices match equally often, each gives as many results for its cost as the next; what differs is how
    soon they are complete. So the priority is the inverse of the size, as in the paper: fixed for some windows,
    where what was measured would let neighbours change places for no reason.
    """

    whole: bool = False
    early: bool = True

    def rank(self, part: Slice) -> tuple[float, ...]:
        return (part.size, part.high)


LWO, SWF, GREEDY = "lwo", "swf", "greedy"
POLICIES: dict[str, Policy] = {LWO: LargestWindowOnly(), SWF: SmallestWindowFirst(), GREEDY: Greedy()}
"""By the names that users know them by."""
