"""Which unit of a shared window join comes first: the policies LWO, SWF and Greedy, and what a unit costs.

A slice is the part of the other stream's window that lies between two neighbouring window sizes. Sizes are whole
numbers, of rows or of the smallest step of time; nothing here knows which. A policy sees slices and what they cost
for each new row, never rows or queries. It says in which order the slices come, whether a batch takes its slices
one by one, and when results that are held back may go; among equals the nearer slice and then the older batch come
first, so that the same calls always give the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

DECAY = 0.7
"""What the costs so far count for when the next one is observed."""
JOB = 0.2
"""What a job of Spark is taken to cost before any was seen, in seconds."""


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
    """Costs as observed: so much for a job, whatever it does, and so much for the size of each slice in it.

    A line through what was seen, the last jobs above all; until sizes differ, a guess says what is the job's own.
    """

    def __init__(self, job: float = JOB) -> None:
        self._guess = job
        self._rate = 1.0
        self._job = job
        self._jobs = self._sizes = self._spent = self._squares = self._products = 0.0

    @property
    def job(self) -> float:
        """What a job costs that scans nothing."""
        return self._job

    def __call__(self, part: Slice) -> float:
        return self._rate * part.size

    def observe(self, parts: Iterable[Slice], spent: float) -> None:
        """What a job took that scanned some slices."""
        size = sum(part.size for part in parts)
        self._jobs = DECAY * self._jobs + 1
        self._sizes = DECAY * self._sizes + size
        self._spent = DECAY * self._spent + spent
        self._squares = DECAY * self._squares + size * size
        self._products = DECAY * self._products + size * spent
        self._fit()

    def _fit(self) -> None:
        """Least squares; the guess counts as one job without a slice."""
        jobs, spent = self._jobs + 1, self._spent + self._guess
        self._rate = max(0.0, jobs * self._products - self._sizes * spent) / (
            jobs * self._squares - self._sizes * self._sizes
        )
        self._job = max(0.0, (spent - self._rate * self._sizes) / jobs)


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
