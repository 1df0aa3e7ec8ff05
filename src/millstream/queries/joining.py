"""Queries that join windows of the same streams, stepped together: they share SteMs, grouped filters, the commit.

Queries with the same equalities between the same streams are a *family*, whatever their windows, their tests on
single streams and their columns. New rows of a family go through a grouped filter for each stream, which tells for
whom each row may be, and then from SteM to SteM, in the order that the eddy chooses, losing on the way those whom
no query wants. What comes out is told apart by windows and instants as for each query alone.

A row is *active* in a step if it has come since the last one, or could not have been in a result before: its time
was ahead of the watermark, or no instant had followed. Results are made of at least one active row, each found
once, from the first of its leaves that has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.execute.shared.selections import Selections
from millstream.execute.shared.stems import LONG_AGO, SteM, TooManyError, Words
from millstream.plan.standing import FOR_EVER, Sampling, WindowKind
from millstream.queries import instants
from millstream.queries.chorus import AloneError
from millstream.queries.combining import Combining, Share, answered, began, shared_of
from millstream.queries.matching import lowered, some_by_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.plan.sharing import Equality
    from millstream.queries.answering import Answers
    from millstream.queries.arrivals import Arrived
    from millstream.queries.instants import Instant
    from millstream.queries.run import Look, Run, Step
    from millstream.queries.running import Stepper
    from millstream.schedule.eddy import Policy
    from millstream.storage.lake import Lake

    Numbers = NDArray[np.int64]
    Bits = NDArray[np.uint8]
    Key = tuple[object, ...]

MOST_FOUND = 2_097_152
"""More combinations of rows than this in one step are for Spark."""
WORDS_A_ROW, FEW_WORDS = 4, 10_000
"""How many words more than rows are known before text is numbered anew."""


def key_of(run: Run, most_here: int) -> Key | None:
    """What queries have to agree in to be stepped together: streams and places; None if it cannot be."""
    plan, place = run.plan, run.place
    if plan.shared is None or len(plan.shared.leaves) < 2 or not plan.is_early or not most_here or run.is_stale:
        return None
    if not plan.shared.equalities or any(w.kind is not WindowKind.INTERVAL or w.is_kept for w in plan.windows):
        return None
    if run.query.standing is None or run.query.standing.target is not None:
        return None
    if plan.sample.kind is Sampling.INTERVAL and place.next is None:
        return None
    if place.first_late is not None and _is_needed(run, place.first_late):
        return None
    seen = sorted(place.streams.items())
    return tuple((i, s.position, s.max_time, s.advanced_to, s.mark) for i, s in seen)


def _is_needed(run: Run, time: int) -> bool:
    """Whether rows of a time may be in a window to come."""
    mark = instants.mark_of(run.place)
    return mark is None or time + max(w.length for w in run.plan.windows) >= mark


@dataclass(eq=False)
class Family:
    """See the module's contract; `alive` has for each leaf and row of its SteM a bit for each query."""

    streams: tuple[int, ...]
    equalities: tuple[Equality, ...]
    runs: list[Run]
    policy: Policy
    selections: list[Selections] = field(default_factory=list)
    filters: list[Policy] = field(default_factory=list)
    """For each leaf: who chooses the order of its grouped filters."""
    orders: list[list[str]] = field(default_factory=list)
    """And the last order in which rows went through them."""
    alive: list[Bits] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """The SteMs in the order of the last probes."""
    mark: int = -FOR_EVER
    """The watermark of its streams."""

    @property
    def queries(self) -> tuple[int, ...]:
        return tuple(r.query.id for r in self.runs)

    @property
    def lengths(self) -> list[int]:
        """The longest window of each leaf."""
        leaves = range(len(self.streams))
        return [max(r.plan.windows[shared_of(r).leaves[i].window].length for r in self.runs) for i in leaves]

    def select(
        self, schemas: Sequence[pa.Schema], make_policy: Callable[[], Policy], known: Sequence[Policy] = ()
    ) -> None:
        """Make the grouped filters; `schemas` are those of the leaves' rows, `known` is who chose so far."""
        for leaf, schema in enumerate(schemas):
            chosen = Selections({f.name: f.type for f in schema})
            for number, run in enumerate(self.runs):
                chosen.add(number, shared_of(run).leaves[leaf].selection)
            self.selections.append(chosen)
        self.filters = list(known) or [make_policy() for _ in schemas]
        self.orders = [[] for _ in schemas]

    def forget_rows(self, stream: int) -> None:
        """A stream's SteM is filled anew."""
        for leaf, own in enumerate(self.streams):
            if own == stream:
                self.alive[leaf] = self.alive[leaf][:0]

    def decide_by(self, make_policy: Callable[[], Policy]) -> None:
        """Let other policies, which have learnt nothing yet, choose from now on."""
        self.policy = make_policy()
        self.filters = [make_policy() for _ in self.filters]

    def bits(self, leaf: int, rows: pa.Table, ids: Numbers) -> Bits:
        """For whom rows of a leaf may be."""
        matcher, made = self.selections[leaf].ready(), np.zeros((len(ids), len(self.runs)), bool)
        if matcher.filters:
            for order, found in some_by_policy(matcher, rows, self.filters[leaf]):
                made[found.rows, found.queries] = True
                self.orders[leaf] = order
        else:
            # Nobody looks at any value, so one row is like the next.
            made[:, matcher.match(rows.slice(0, 1), ()).queries] = True
        born = [r.place.streams[self.streams[leaf]].born for r in self.runs]
        made &= ids[:, None] >= np.array(born, np.int64)[None, :]
        return np.packbits(made, axis=1)


@dataclass(frozen=True)
class Found:
    """Combinations of rows, one of each leaf that was reached, by their places in SteMs; and who wants them."""

    places: dict[int, Numbers]
    alive: Bits

    def __len__(self) -> int:
        return len(self.alive)

    def only(self, kept: NDArray[np.bool_] | Numbers) -> Found:
        return Found({leaf: p[kept] for leaf, p in self.places.items()}, self.alive[kept])


class Joining:
    """See the module's contract."""

    def __init__(self, lake: Lake, answers: Answers, stepper: Stepper, make_policy: Callable[[], Policy]) -> None:
        self._lake = lake
        self._stepper = stepper
        self._combining = Combining(answers, stepper)
        self._make_policy = make_policy
        self._words = Words()
        self._stems: dict[int, SteM] = {}
        self._ends: dict[int, int] = {}
        """By stream: how many rows of its SteM a step may see; some may have come since, for others."""
        self.families: dict[Key, Family] = {}

    # A step

    def step(self, runs: Sequence[Run], look: Look) -> list[int]:
        """One step of queries that agree in `key_of`; the number of deliveries of each."""
        streams = sorted(runs[0].place.streams)
        before = {s: runs[0].place.streams[s].position for s in streams}
        found = {s: self._stepper.feeder.arrived(runs[0].place, look, s) for s in streams}
        steps = [began(self._stepper, run, found) for run in runs]
        due = [self._stepper.due(run, s.place, s.came) for run, s in zip(runs, steps, strict=True)]
        if look.is_idle(due, found.values()):
            return []
        for stream in streams:
            self._take_in(stream, runs, look, found[stream])
        families = self._families(runs)
        by_id = {run.query.id: n for n, run in enumerate(runs)}
        for family in families:
            members = [by_id[q] for q in family.queries]
            own = [(runs[n], steps[n], due[n]) for n in members]
            if any(d for _, _, d in own):
                self._derive(family, own, before)
        for step, own_due in zip(steps, due, strict=True):
            answered(step, own_due)
        self._stepper.store.commit_due(list(zip(runs, steps, strict=True)), look)
        self._forget_others(streams, families)
        for family in families:
            mark = instants.mark_of(runs[0].place)
            family.mark = -FOR_EVER if mark is None else mark
        self._give_up(streams)
        return [len(s.deliveries) for s in steps]

    # SteMs

    def _take_in(self, stream: int, runs: Sequence[Run], look: Look, found: Arrived) -> None:
        """Bring a stream's SteM up to where the queries are going: from what it has, or from what is stored."""
        table, stem = look.tables[stream], self._stems.get(stream)
        schema = lowered(table.schema.arrow.empty_table()).schema
        if stem is None or not _serves(stem, stream, runs, found) or stem.rows.schema.names != schema.names:
            others = [r for f in self.families.values() if stream in f.streams for r in f.runs]
            low = min(r.place.streams[stream].low for r in (*runs, *others))
            stem = self._stems[stream] = SteM(schema, self._words, low)
            for family in self.families.values():
                family.forget_rows(stream)
            self._refill(stem, stream, runs, look)
        if stem.upto < found.seen.position:
            new = found.ids >= stem.upto
            rows = lowered(self._stepper.feeder.between(table, look, stem.upto, found.seen.position))
            stem.insert(rows, found.ids[new], found.times[new], found.enter[new], found.seen.position)
        self._ends[stream] = int(np.searchsorted(stem.ids, found.seen.position))

    def _refill(self, stem: SteM, stream: int, runs: Sequence[Run], look: Look) -> None:
        """Take in the rows that were there before."""
        seen, feeder = runs[0].place.streams[stream], self._stepper.feeder
        place = replace(runs[0].place, streams={stream: replace(seen, low=stem.since)}, late=_late(runs))
        old = feeder.arrived_before(place, look, stream, is_stale=False)
        rows = lowered(feeder.between(look.tables[stream], look, stem.since, seen.position))
        stem.insert(rows, old.ids, old.times, old.enter, seen.position)

    def _give_up(self, streams: Sequence[int]) -> None:
        """Let go of rows that no instant to come can need."""
        for stream in streams:
            stem = self._stems[stream]
            needed = np.zeros(len(stem), bool)
            for family in self.families.values():
                for own, length in zip(family.streams, family.lengths, strict=True):
                    if own == stream:
                        needed |= stem.times + length >= family.mark
            if np.count_nonzero(~needed) * 2 <= len(needed):
                continue
            stem.keep(needed)
            self._forget_words()
            for family in self.families.values():
                for leaf, own in enumerate(family.streams):
                    if own == stream:
                        family.alive[leaf] = family.alive[leaf][needed[: len(family.alive[leaf])]]

    def _forget_words(self) -> None:
        """Number text anew when most of what is numbered has gone."""
        if len(self._words.known) > WORDS_A_ROW * sum(len(s) for s in self._stems.values()) + FEW_WORDS:
            self._words = Words()
            for stem in self._stems.values():
                stem.rename(self._words)

    def keep_only(self, queries: set[int]) -> None:
        """Forget families that nobody is in any more, and the SteMs that none needs."""
        self.families = {k: f for k, f in self.families.items() if not queries.isdisjoint(f.queries)}
        used = {stream for family in self.families.values() for stream in family.streams}
        self._stems = {stream: stem for stream, stem in self._stems.items() if stream in used}

    def _families(self, runs: Sequence[Run]) -> list[Family]:
        """The families of some queries, with who is in them now, up to date with their SteMs."""
        alike: dict[Key, list[Run]] = {}
        for run in runs:
            shared = shared_of(run)
            streams = tuple(run.plan.windows[leaf.window].stream for leaf in shared.leaves)
            alike.setdefault((streams, shared.equalities), []).append(run)
        made = []
        for key, own in alike.items():
            family = self.families.get(key)
            if family is None or family.queries != tuple(r.query.id for r in own):
                family = self._made(key, own, family)
                self.families[key] = family
            family.runs = own
            for leaf, stream in enumerate(family.streams):
                stem, known = self._stems[stream], len(family.alive[leaf])
                if known < len(stem):
                    new = family.bits(leaf, stem.rows.slice(known), stem.ids[known:])
                    family.alive[leaf] = np.concatenate([family.alive[leaf], new])
            made.append(family)
        return made

    def _forget_others(self, streams: Sequence[int], there: Sequence[Family]) -> None:
        """Families on just these streams that nobody is in any more."""
        gone = [k for k, f in self.families.items() if set(f.streams) == set(streams) and f not in there]
        for key in gone:
            del self.families[key]

    def _made(self, key: Key, runs: list[Run], known: Family | None) -> Family:
        streams, equalities = key
        policy = self._make_policy() if known is None else known.policy
        family = Family(streams, equalities, runs, policy)  # type: ignore[arg-type]
        schemas = [self._stems[stream].rows.schema for stream in family.streams]
        family.select(schemas, self._make_policy, () if known is None else known.filters)
        family.alive = [np.zeros((0, -(-len(runs) // 8)), np.uint8) for _ in family.streams]
        return family

    # Results

    def _derive(
        self,
        family: Family,
        own: Sequence[tuple[Run, Step, Sequence[Instant]]],
        before: Mapping[int, int],
    ) -> None:
        """Deliver the results that are new."""
        family.order = []
        active = [self._active(stream, own, before[stream]) for stream in family.streams]
        parts = [self._from(family, leaf, active) for leaf in range(len(family.streams))]
        leaves = range(len(family.streams))
        places = {i: np.concatenate([p.places[i] for p in parts]) for i in leaves}
        alive = np.concatenate([p.alive for p in parts])
        who = np.unpackbits(alive, axis=1, count=len(own)).astype(bool)
        sides = {leaf: self._stems[stream] for leaf, stream in enumerate(family.streams)}
        shares = [
            Share(run, step, due, mine)
            for number, (run, step, due) in enumerate(own)
            if due and len(mine := np.flatnonzero(who[:, number]))
        ]
        self._combining.deliver_all(shares, sides, places, before)

    def _active(
        self, stream: int, own: Sequence[tuple[Run, Step, Sequence[Instant]]], position: int
    ) -> NDArray[np.bool_]:
        stem = self._stems[stream]
        passed = min((-FOR_EVER if r.place.passed is None else r.place.passed) for r, _, _ in own)
        answered = min((-FOR_EVER if r.place.answered is None else r.place.answered) for r, _, _ in own)
        active = (stem.ids >= position) | (stem.times > passed) | (stem.enter > answered)
        active[self._ends[stream] :] = False
        return active

    def _from(self, family: Family, leaf: int, active: Sequence[NDArray[np.bool_]]) -> Found:
        """The combinations whose first active row is a leaf's: probed for in the order that the eddy chooses."""
        start = np.flatnonzero(active[leaf] & family.alive[leaf].any(axis=1))
        found = Found({leaf: start}, family.alive[leaf][start])
        left = set(range(len(family.streams))) - {leaf}
        while left:
            ready = {
                _probe_name(*_other_side(e, found.places)): e for e in family.equalities if _leads(e, found.places)
            }
            name = family.policy.choose(sorted(ready))
            family.order.append(name)
            taken = len(found)
            found, reached = self._probed(family, found, ready[name])
            if reached < leaf:
                found = found.only(~active[reached][found.places[reached]])
            family.policy.observe(name, len(family.runs), taken, min(taken, len(found)))
            left.discard(reached)
        return found

    def _probed(self, family: Family, found: Found, equality: Equality) -> tuple[Found, int]:
        """What a SteM adds to combinations of rows, and the leaf that it stands for."""
        known, column, reached, other = equality.left, equality.left_column, equality.right, equality.right_column
        if known not in found.places:
            known, column, reached, other = reached, other, known, column
        stem = self._stems[family.streams[reached]]
        keys = self._stems[family.streams[known]].keys(column).at(found.places[known])
        try:
            probing, rows = stem.probe(other, keys, MOST_FOUND)
        except TooManyError as error:
            raise AloneError from error
        alive = found.alive[probing] & family.alive[reached][rows]
        made = Found({leaf: p[probing] for leaf, p in found.places.items()} | {reached: rows}, alive)
        kept = alive.any(axis=1) & (rows < self._ends[family.streams[reached]]) & self._may_meet(family, made)
        for more in family.equalities:
            sides = {more.left, more.right}
            if more is not equality and reached in sides and sides <= made.places.keys():
                left = self._stems[family.streams[more.left]].keys(more.left_column).at(made.places[more.left])
                right = self._stems[family.streams[more.right]].keys(more.right_column)
                kept &= left.equal(right.at(made.places[more.right]))
        return made.only(kept), reached

    def _may_meet(self, family: Family, found: Found) -> NDArray[np.bool_]:
        """Whether rows are in the longest windows together at some time."""
        stems = [(leaf, self._stems[family.streams[leaf]]) for leaf in found.places]
        enter = np.max([s.enter[found.places[leaf]] for leaf, s in stems], axis=0)
        leave = np.min([s.times[found.places[leaf]] + family.lengths[leaf] for leaf, s in stems], axis=0)
        return np.asarray(enter <= leave)


def probes(family: Family) -> list[str]:
    """The names of all probes that a family may make."""
    sides = {(e.left, e.left_column) for e in family.equalities}
    sides |= {(e.right, e.right_column) for e in family.equalities}
    return [_probe_name(*side) for side in sorted(sides)]


def probed(name: str) -> tuple[int, str]:
    """The leaf that a probe leads to, and the column that it asks."""
    leaf, column = name.split(".", 1)
    return int(leaf), column


def _probe_name(leaf: int, column: str) -> str:
    return f"{leaf}.{column}"


def _serves(stem: SteM, stream: int, runs: Sequence[Run], found: Arrived) -> bool:
    """Whether a SteM has all rows that queries may need: none came before it, or was given up for others."""
    if stem.upto < found.before.position or any(r.place.streams[stream].low < stem.since for r in runs):
        return False
    if stem.lost == LONG_AGO:
        return True
    marks = [(r.plan.windows, instants.mark_of(r.place)) for r in runs]
    return all(
        mark is not None and stem.lost + window.length < mark
        for windows, mark in marks
        for window in windows
        if window.stream == stream
    )


def _leads(equality: Equality, places: Mapping[int, Numbers]) -> bool:
    """Whether an equality leads from leaves that were reached to one that was not."""
    return (equality.left in places) != (equality.right in places)


def _other_side(equality: Equality, places: Mapping[int, Numbers]) -> tuple[int, str]:
    """The leaf that an equality leads to, and its column."""
    if equality.left in places:
        return equality.right, equality.right_column
    return equality.left, equality.left_column


def _late(runs: Sequence[Run]) -> dict[int, list[tuple[int, int]]]:
    """The late rows that any of some queries remembers."""
    made: dict[int, dict[int, int]] = {}
    for run in runs:
        for stream, late in run.place.late.items():
            made.setdefault(stream, {}).update(late)
    return {stream: sorted(late.items()) for stream, late in made.items()}
