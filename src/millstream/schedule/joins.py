"""A shared window join: which unit of work is next, and which results may go to which query.

One join of two streams serves queries that differ only in their windows. New rows come as batches; what is done
for a batch is cut into slices of the other stream's window, between neighbouring window sizes. A unit of work is a
batch and a slice; a batch takes its slices from the nearest to the furthest, and between two units the policy may
turn to another batch. A query with window w gets, of every batch that came after the query did, the results of the
slices up to w.

    arrive ─► batches ─► queues, one a slice ─► take ─► units ─► (the caller joins) ─► finish ─► release ─► results

Batches that arrive in one call make a *turn*. Turns arrive in the order of their rows' times: no result of a turn
may have a larger time than one of a later turn. The caller sees to that, and within a turn it brings the results
in order itself. In return every query gets its turns one after the other, each result once, as if it ran alone:

- a turn's results go to a query when all its batches have finished the query's window, and so have all before it;
- a *piecewise* turn is one batch whose results all have the same time and come nearest first, such as a single
  row. Its results may go slice by slice once everything before it has gone. A policy that releases early lets
  those that are held back go at that moment; otherwise they go with the batch's own next unit.

Nothing here joins rows, reads a clock or waits. Not safe for threads: the caller has a lock of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.schedule.join_policies import Slice, by_size

if TYPE_CHECKING:
    from millstream.schedule.join_policies import Cost, Policy


@dataclass(frozen=True, slots=True)
class Arrival:
    """New rows of one stream. `piecewise`: all of one time, and their results may go nearest first."""

    stream: str
    rows: int = 1
    piecewise: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that arrived together, numbered in order of arrival."""

    number: int
    stream: str
    rows: int


@dataclass(frozen=True, slots=True)
class Work:
    """Join the rows of a batch with those of the other stream that lie in the slice."""

    batch: Batch
    part: Slice


@dataclass(frozen=True, slots=True)
class Release:
    """The results of these batches that lie in the slice go to the query now, merged in order of time."""

    query: str
    batches: tuple[Batch, ...]
    part: Slice


@dataclass(slots=True, eq=False)
class _Query:
    """A query, the turns that it has not got in full, and how far it has got the first of them."""

    name: str
    window: int
    turns: deque[_Turn] = field(default_factory=deque)
    released: int = 0


@dataclass(slots=True, eq=False)
class _Progress:
    """How far a batch has been handed out and how far it has been joined, as window sizes."""

    batch: Batch
    turn: _Turn
    taken: int = 0
    done: int = 0


@dataclass(slots=True, eq=False)
class _Turn:
    """Batches whose results are released together, and the queries that wait for them."""

    number: int
    piecewise: bool
    waiting: set[_Query]
    members: list[_Progress] = field(default_factory=list)

    @property
    def done(self) -> int:
        return min(m.done for m in self.members)

    @property
    def is_settled(self) -> bool:
        return not self.waiting and all(m.taken == m.done for m in self.members)


class JoinSchedule:
    """The queues and the routing of one shared join."""

    def __init__(self, policy: Policy, cost: Cost = by_size) -> None:
        self._policy = policy
        self._cost = cost
        self._queries: dict[str, _Query] = {}
        self._turns: dict[int, _Turn] = {}
        self._progress: dict[int, _Progress] = {}
        self._queues: dict[Slice, deque[_Progress]] = {}
        self._progressed: set[_Turn] = set()
        self._arrived = 0

    # Queries

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        """Units that are out stay as they are."""
        self._policy = policy
        self._requeue()

    @property
    def windows(self) -> dict[str, int]:
        """The window of each query."""
        return {q.name: q.window for q in self._queries.values()}

    def add(self, query: str, window: int) -> None:
        """The query gets results from the next arrival on; batches already here do nothing for it."""
        if window <= 0:
            raise ValueError(f"a window must be larger than 0, not {window}")
        if query in self._queries:
            raise ValueError(f"query {query} is already here")
        self._queries[query] = _Query(query, window)

    def remove(self, query: str) -> None:
        """Slices that nobody else needs are no longer scanned; units that are out may still be finished."""
        gone = self._queries.pop(query)
        for turn in gone.turns:
            turn.waiting.discard(gone)
            self._forget_if_settled(turn)
        self._requeue()

    # Batches and units

    @property
    def pending(self) -> tuple[Batch, ...]:
        """Batches whose results somebody waits for, or a unit of which is out; the oldest first.

        What the caller holds for other batches can go, and the join buffers need to reach back by the largest
        window from the oldest batch here.
        """
        return tuple(p.batch for p in self._progress.values())

    @property
    def queues(self) -> tuple[tuple[Slice, tuple[Batch, ...]], ...]:
        """The batches that wait for each slice, the next to be served first."""
        ordered = sorted(self._queues, key=self._priority)
        return tuple((part, tuple(p.batch for p in self._queues[part])) for part in ordered)

    def arrive(self, *arrivals: Arrival) -> tuple[Batch, ...]:
        """A turn. With no query there is nothing to do for it."""
        if any(a.rows <= 0 for a in arrivals):
            raise ValueError("a batch has at least one row")
        first = self._arrived
        batches = tuple(Batch(n, a.stream, a.rows) for n, a in enumerate(arrivals, first))
        self._arrived += len(batches)
        if batches and self._queries:
            piecewise = len(arrivals) == 1 and arrivals[0].piecewise
            self._begin(_Turn(first, piecewise, set(self._queries.values())), batches)
        return batches

    def _begin(self, turn: _Turn, batches: Sequence[Batch]) -> None:
        turn.members = [_Progress(b, turn) for b in batches]
        self._turns[turn.number] = turn
        for query in turn.waiting:
            query.turns.append(turn)
        for member in turn.members:
            self._progress[member.batch.number] = member
            self._enqueue(member)

    def take(self, share: float = 0.0, *, alike: bool = False) -> tuple[Work, ...]:
        """The next unit, and as many after it as are expected to cost no more than `share` together.

        `alike`: a unit brings along all others that wait for its slice, at no cost, since they scan the same rows.
        Later units come in the order in which they would be next if nothing arrived in between. Empty: nothing is
        to be done. Every unit taken is finished or given back.
        """
        works: list[Work] = []
        total = 0.0
        while self._queues:
            part = min(self._queues, key=self._priority)
            queue = self._queues[part]
            if works:
                total += self._cost(part) * (1 if alike else queue[0].batch.rows)
                if total > share:
                    break
            works += [self._hand_out(part) for _ in range(len(queue) if alike else 1)]
        return tuple(works)

    def finish(self, work: Work) -> None:
        """The unit's results are there. The units of a batch finish in the order in which they were taken."""
        progress = self._progress.get(work.batch.number)
        if progress is None or progress.done != work.part.low or progress.taken < work.part.high:
            raise ValueError(f"not out, or not the next of its batch: {work}")
        progress.done = work.part.high
        self._progressed.add(progress.turn)
        self._forget_if_settled(progress.turn)

    def give_back(self, work: Work) -> None:
        """The unit failed and is to be taken again, and so are later units of its batch."""
        progress = self._progress.get(work.batch.number)
        if progress is None:
            return
        progress.taken = max(progress.done, min(progress.taken, work.part.low))
        self._forget_if_settled(progress.turn)
        self._requeue()

    # Results

    def release(self) -> list[Release]:
        """What may go to the queries now and has not gone yet; for each query in order. Ask after every unit."""
        ordered = sorted(self._queries.values(), key=lambda q: q.window)
        released = [r for query in ordered for r in self._release_to(query)]
        self._progressed.clear()
        return released

    def _release_to(self, query: _Query) -> Iterator[Release]:
        while query.turns:
            turn = query.turns[0]
            done = min(turn.done, query.window)
            if done < query.window and not self._goes_in_part(turn):
                return
            if done > query.released:
                yield Release(query.name, tuple(m.batch for m in turn.members), Slice(query.released, done))
            query.released = done
            if done < query.window:
                return
            self._close(query, turn)

    def _goes_in_part(self, turn: _Turn) -> bool:
        return turn.piecewise and (self._policy.early or turn in self._progressed)

    def _close(self, query: _Query, turn: _Turn) -> None:
        query.turns.popleft()
        query.released = 0
        turn.waiting.discard(query)
        self._forget_if_settled(turn)

    def _forget_if_settled(self, turn: _Turn) -> None:
        if turn.is_settled and self._turns.pop(turn.number, None) is not None:
            for member in turn.members:
                del self._progress[member.batch.number]

    # Queues

    def _priority(self, part: Slice) -> tuple[tuple[float, ...], int]:
        return self._policy.rank(part), self._queues[part][0].batch.number

    def _next_part(self, progress: _Progress) -> Slice | None:
        ahead = [q.window for q in progress.turn.waiting if q.window > progress.taken]
        if not ahead:
            return None
        return Slice(progress.taken, max(ahead) if self._policy.whole else min(ahead))

    def _enqueue(self, progress: _Progress) -> None:
        part = self._next_part(progress)
        if part is not None:
            self._queues.setdefault(part, deque()).append(progress)

    def _hand_out(self, part: Slice) -> Work:
        queue = self._queues[part]
        progress = queue.popleft()
        if not queue:
            del self._queues[part]
        progress.taken = part.high
        self._enqueue(progress)
        return Work(progress.batch, part)

    def _requeue(self) -> None:
        self._queues.clear()
        for progress in self._progress.values():
            self._enqueue(progress)
