"""How long results take from the arrival of the later of their rows to their release: in a few numbers a query.

Times are counted in classes, each a tenth wider than the one before, so that what is kept does not grow with the
results; a percentile is right to that tenth, average and maximum are exact.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHORTEST, WIDER, CLASSES = 0.001, 1.1, 200
"""In seconds; the last class is for all that is longer than two days."""
EDGES = SHORTEST * WIDER ** np.arange(CLASSES - 1)
MOST_ARRIVALS = 4_096


@dataclass
class Responses:
    """The response times of one query's results, in seconds."""

    number: int = 0
    total: float = 0.0
    longest: float = 0.0
    classes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(CLASSES, np.int64))

    def add(self, seconds: NDArray[np.float64]) -> None:
        if not len(seconds):
            return
        seconds = np.maximum(seconds, 0.0)
        self.number += len(seconds)
        self.total += float(seconds.sum())
        self.longest = max(self.longest, float(seconds.max()))
        self.classes += np.bincount(np.searchsorted(EDGES, seconds), minlength=CLASSES)

    @property
    def average(self) -> float | None:
        return self.total / self.number if self.number else None

    @property
    def most(self) -> float | None:
        return self.longest if self.number else None

    def percentile(self, share: float) -> float | None:
        """The time that such a share of the results did not exceed."""
        if not self.number:
            return None
        place = bisect_left(list(accumulate(self.classes.tolist())), share * self.number)
        edge = float(EDGES[place]) if place < len(EDGES) else self.longest
        return min(edge, self.longest)


@dataclass
class Arrivals:
    """When the rows of a stream came: below each of some numbers, at the latest at some time, in seconds."""

    ends: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Those who insert note, and whoever steps asks."""

    def note(self, end: int, now: float) -> None:
        """Rows up to a number are there now."""
        with self.lock:
            if self.ends and end <= self.ends[-1]:
                return
            self.ends.append(end)
            self.times.append(now)
            if len(self.ends) > MOST_ARRIVALS:
                del self.ends[: MOST_ARRIVALS // 2], self.times[: MOST_ARRIVALS // 2]

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """When rows came; of those before all that is known, when these were there at the latest."""
        with self.lock:
            ends, times = np.array(self.ends), np.array(self.times)
        if not len(ends):
            return np.full(len(ids), -np.inf)
        places = np.minimum(np.searchsorted(ends, ids, "right"), len(ends) - 1)
        return np.asarray(times[places], np.float64)
