"""Self-tuning, as in DataCell: in how many chunks the newest slide is pre-processed, and which plan answers.

Both learn from measured costs alone, which the caller gives; nothing here reads a clock. The same costs lead to
the same choices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

SAMPLES = 3
"""So many costs make a measurement."""
BETTER = 0.95
"""A number of chunks must cost less than this part of the best so far to be the better one."""
SHIFTED = 1.5
"""Costs that are so many times what they were, or as much less, mean that the world has changed."""
MOST_CHUNKS = 1_024
FIRST_TRIAL, NEXT_TRIAL = 8, 64
"""After so many answers the other plan is tried for the first time, and then again and again, ever more rarely."""


@dataclass
class Chunks:
    """In how many chunks to pre-process: doubled as long as answers get cheaper, halved first if they do not.

    When the costs at the number found have shifted, the search begins anew from there.
    """

    m: int = 1
    best: int = 1
    _costs: list[float] = field(default_factory=list)
    _known: dict[int, float] = field(default_factory=dict)
    _is_settled: bool = False

    @property
    def is_settled(self) -> bool:
        return self._is_settled

    @property
    def cost(self) -> float | None:
        """What an answer costs at the best number found."""
        return self._known.get(self.best)

    def observe(self, cost: float) -> None:
        """Take in what an answer has cost with `m` chunks."""
        self._costs.append(cost)
        if len(self._costs) < SAMPLES:
            return
        measured, self._costs = median(self._costs), []
        if self._is_settled:
            self._watch(measured)
        else:
            self._search(measured)

    def _watch(self, measured: float) -> None:
        expected = self._known[self.best]
        if expected / SHIFTED <= measured <= expected * SHIFTED:
            return
        self._known, self._is_settled = {self.m: measured}, False
        self._go_on()

    def _search(self, measured: float) -> None:
        self._known[self.m] = measured
        if measured < self._known.get(self.best, float("inf")) * BETTER or self.best not in self._known:
            self.best = self.m
        self._go_on()

    def _go_on(self) -> None:
        """Look at the neighbours of the best number that are not known, the larger one first."""
        for m in (self.best * 2, self.best // 2):
            if 1 <= m <= MOST_CHUNKS and m not in self._known:
                self.m = m
                return
        self.m, self._is_settled = self.best, True


INCREMENTAL, AGAIN = "incremental", "re-evaluated"


@dataclass
class Choice:
    """Which of two plans answers: the cheaper one, the other being tried now and then."""

    plan: str = INCREMENTAL
    costs: dict[str, float] = field(default_factory=dict)
    _samples: list[float] = field(default_factory=list)
    _answers: int = 0
    _trial_at: int = FIRST_TRIAL
    _pause: int = NEXT_TRIAL
    _is_trial: bool = False

    def observe(self, cost: float) -> None:
        """Take in what an answer of the plan has cost; `plan` may be another one after that."""
        self._answers += 1
        self._samples = [*self._samples, cost][-SAMPLES:]
        if len(self._samples) == SAMPLES:
            self.costs[self.plan] = median(self._samples)
        if self._is_trial:
            if len(self._samples) == SAMPLES:
                self._decide()
        elif self._answers >= self._trial_at:
            self._switch(is_trial=True)

    def _switch(self, *, is_trial: bool) -> None:
        self.plan = AGAIN if self.plan == INCREMENTAL else INCREMENTAL
        self._samples, self._is_trial = [], is_trial

    def _decide(self) -> None:
        other = AGAIN if self.plan == INCREMENTAL else INCREMENTAL
        self._trial_at = self._answers + self._pause
        self._pause *= 2
        if self.costs[self.plan] < self.costs[other]:
            self._is_trial = False
        else:
            self._switch(is_trial=False)
