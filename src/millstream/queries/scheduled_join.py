"""A join that is scheduled: who is in it, where it is, and what it has begun.

Nothing is read, joined or delivered here; whoever does that (`scheduled`) holds the lock of the queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.plan.sharing import Equality

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.queries.joining import Family
    from millstream.queries.response import Responses
    from millstream.queries.run import Run
    from millstream.queries.turns import Front, Turn
    from millstream.schedule.eddy import Policy
    from millstream.schedule.join_policies import Measured
    from millstream.schedule.joins import JoinSchedule

Key = tuple[tuple[int, int], tuple[Equality, ...], bool]
"""The streams that queries join, what is to be equal, whether windows are counted in rows."""


def size_of(run: Run) -> int:
    """The size of a query's windows, in time or in rows."""
    return run.plan.windows[0].length or run.plan.windows[0].rows


@dataclass(eq=False)
class Join:
    """A shared join: who is in it, where it is, and what it has begun."""

    streams: tuple[int, int]
    equalities: tuple[Equality, ...]
    is_counted: bool
    """Whether windows are counted in rows."""
    schedule: JoinSchedule
    cost: Measured
    front: Front
    runs: dict[int, Run] = field(default_factory=dict)
    """Its queries as they are now; turns know whom they are for."""
    cast: Family | None = None
    """Its queries as newer turns know them, with their grouped filters; None when somebody has come or gone."""
    filters: Sequence[Policy] = ()
    """By whom grouped filters were ordered in the cast before."""
    turns: list[Turn] = field(default_factory=list)
    of_batch: dict[int, Turn] = field(default_factory=dict)
    responses: dict[int, Responses] = field(default_factory=dict)
    widths: dict[int, float] = field(default_factory=dict)
    """By stream: how many bytes a row has, as far as the join reads it."""
    most_extra: int = 0
    jobs: int = 0
    units: int = 0

    @property
    def key(self) -> Key:
        return self.streams, self.equalities, self.is_counted

    @property
    def window(self) -> int:
        return max((size_of(r) for r in self.runs.values()), default=0)

    @property
    def buffered(self) -> dict[int, int]:
        """By stream: how many rows may still be needed."""
        streams = self.front.place.streams.items()
        lows = [(i, s.position, [r.place.streams[i].low for r in self.runs.values()]) for i, s in streams]
        return {i: position - min(low, default=position) for i, position, low in lows}

    @property
    def buffer_bytes(self) -> int:
        return int(sum(rows * self.widths.get(i, 0.0) for i, rows in self.buffered.items()))

    @property
    def extra_bytes(self) -> int:
        """What is held beside the buffers."""
        return self.front.bytes + sum(t.bytes for t in self.turns)

    def leave(self, query: int) -> None:
        """Serve a query no more."""
        if self.runs.pop(query, None) is None:
            return
        self.schedule.remove(str(query))
        self.front.unanswered.pop(query, None)
        self.recast()
        for turn in self.turns:
            turn.waiting.discard(query)
        self.tidy()

    def recast(self) -> None:
        """Somebody has come or gone; what was learnt of grouped filters is kept."""
        if self.cast is not None:
            self.filters = self.cast.filters
        self.cast = None

    def decide_by(self, make_policy: Callable[[], Policy]) -> None:
        """Let other policies choose the order of grouped filters from now on."""
        self.filters = ()
        if self.cast is not None:
            self.cast.decide_by(make_policy)

    def tidy(self) -> None:
        """Forget turns that nobody waits for, and put away what the others are about."""
        self.turns = [t for t in self.turns if t.waiting]
        self.of_batch = {n: t for t in self.turns for n in t.batches}
        for turn in self.turns:
            for batch in turn.batches.values():
                batch.parcel.put_away()
