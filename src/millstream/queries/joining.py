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

from millstream.errors import MillstreamError
from millstream.execute.shared.selections import Selections
from millstream.execute.shared.stems import SteM, Words
from millstream.plan.sharing import column_name
from millstream.plan.standing import FOR_EVER, ROW_NUMBER, TIME, Sampling, WindowKind
from millstream.queries import emitting, instants
from millstream.queries.chorus import AloneError
from millstream.queries.evaluating import Asked, evaluate
from millstream.queries.matching import lowered
from millstream.queries.place import Place
from millstream.queries.run import Step
from millstream.schedule.eddy import drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.plan.sharing import Equality, Shared
    from millstream.queries.answering import Answers
    from millstream.queries.arrivals import Arrived
    from millstream.queries.instants import Instant
    from millstream.queries.run import Look, Run
    from millstream.queries.running import Stepper
    from millstream.schedule.eddy import Policy
    from millstream.storage.lake import Lake

    Numbers = NDArray[np.int64]
    Bits = NDArray[np.uint8]
    Key = tuple[object, ...]

MOST_FOUND = 2_097_152
"""More combinations of rows than this in one step are for Spark."""


def key_of(run: Run, most_here: int) -> Key | None:
    """What queries have to agree in to be stepped together: streams and places; None if it cannot be."""
    plan, place = run.plan, run.place
    if plan.shared is None or len(plan.shared.leaves) < 2 or not plan.is_early or not most_here or run.stale:
        return None
    if any(w.kind is not WindowKind.INTERVAL or w.is_kept for w in plan.windows):
        return None
    if run.query.standing is None or run.query.standing.target is not None:
        return None
    if plan.sample.kind is Sampling.INTERVAL and place.next is None:
        return None
    seen = sorted(place.streams.items())
    return tuple((i, s.position, s.max_time, s.advanced_to, s.mark) for i, s in seen)


def shared_of(run: Run) -> Shared:
    assert run.plan.shared is not None
    return run.plan.shared


@dataclass(eq=False)
class Family:
    """See the module's contract; `alive` has for each leaf and row of its SteM a bit for each query."""

    streams: tuple[int, ...]
    equalities: tuple[Equality, ...]
    runs: list[Run]
    policy: Policy
    selections: list[Selections] = field(default_factory=list)
    filters: list[Policy] = field(default_factory=list)
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

    def bits(self, leaf: int, rows: pa.Table, ids: Numbers) -> Bits:
        """For whom rows of a leaf may be."""
        matcher, policy = self.selections[leaf].ready(), self.filters[leaf]
        found = matcher.match(rows, drawn(policy, matcher.operators))
        for passed in found.passed:
            policy.observe(passed.operator, passed.terms, passed.taken, passed.returned)
        made = np.zeros((len(ids), len(self.runs)), bool)
        made[found.rows, found.queries] = True
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
        self._answers = answers
        self._stepper = stepper
        self._make_policy = make_policy
        self._words = Words()
        self._stems: dict[int, SteM] = {}
        self.families: dict[Key, Family] = {}

    # A step

    def step(self, runs: Sequence[Run], look: Look) -> list[int]:
        """One step of queries that agree in `key_of`; the number of deliveries of each."""
        streams = sorted(runs[0].place.streams)
        before = {s: runs[0].place.streams[s].position for s in streams}
        found = {s: self._stepper.feeder.arrived(runs[0].place, look, s) for s in streams}
        steps = [self._began(run, found) for run in runs]
        due = [self._stepper.due(run, s.place, s.came) for run, s in zip(runs, steps, strict=True)]
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
            if own_due:
                step.place.answered = own_due[-1].x
            step.place.passed = instants.mark_of(step.place)
        self._stepper.store.commit_all(list(zip(runs, steps, strict=True)), look)
        self._forget_others(streams, families)
        for family in families:
            mark = instants.mark_of(runs[0].place)
            family.mark = -FOR_EVER if mark is None else mark
        self._give_up(streams)
        return [len(s.deliveries) for s in steps]

    def _began(self, run: Run, found: Mapping[int, Arrived]) -> Step:
        place, came = Place.from_json(run.place.to_json()), []
        for stream in run.plan.streams:
            before, now = place.streams[stream], found[stream].seen
            seen = replace(
                before, position=now.position, max_time=now.max_time, advanced_to=now.advanced_to, mark=now.mark
            )
            came.append(replace(found[stream], before=before, seen=seen))
        instants.take_in(run.plan, place, came)
        self._stepper.note_late(place, came)
        return Step(place, came)

    # SteMs

    def _take_in(self, stream: int, runs: Sequence[Run], look: Look, found: Arrived) -> None:
        """Bring a stream's SteM up to where the queries are going: from what it has, or from what is stored."""
        low = min(r.place.streams[stream].low for r in runs)
        table, stem = look.tables[stream], self._stems.get(stream)
        schema = lowered(table.schema.arrow.empty_table()).schema
        reached = None if stem is None else stem.upto
        is_usable = reached in (found.before.position, found.seen.position)
        if stem is None or not is_usable or stem.since > low or stem.rows.schema.names != schema.names:
            low = low if stem is None else min(low, stem.since)
            stem = self._stems[stream] = SteM(schema, self._words, low)
            self.families = {k: f for k, f in self.families.items() if stream not in f.streams}
            self._refill(stem, stream, runs, look)
        if stem.upto < found.seen.position:
            rows = lowered(self._stepper.feeder.rows(table, look, found))
            stem.insert(rows, found.ids, found.times, found.enter, found.seen.position)

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
            for family in self.families.values():
                for leaf, own in enumerate(family.streams):
                    if own == stream:
                        family.alive[leaf] = family.alive[leaf][needed[: len(family.alive[leaf])]]

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
        for leaf, stream in enumerate(family.streams):
            fields = self._stems[stream].rows.schema
            chosen = Selections({f.name: f.type for f in fields})
            for number, run in enumerate(runs):
                chosen.add(number, shared_of(run).leaves[leaf].selection)
            family.selections.append(chosen)
            family.filters.append(self._make_policy())
            family.alive.append(np.zeros((0, -(-len(runs) // 8)), np.uint8))
        return family

    # Results

    def _derive(
        self,
        family: Family,
        own: Sequence[tuple[Run, Step, Sequence[Instant]]],
        before: Mapping[int, int],
    ) -> None:
        """Deliver the results that are new."""
        active = [self._active(stream, own, before[stream]) for stream in family.streams]
        parts = [self._from(family, leaf, active) for leaf in range(len(family.streams))]
        leaves = range(len(family.streams))
        places = {i: np.concatenate([p.places[i] for p in parts]) for i in leaves}
        alive = np.concatenate([p.alive for p in parts])
        who = np.unpackbits(alive, axis=1, count=len(own)).astype(bool)
        for number, (run, step, due) in enumerate(own):
            mine = np.flatnonzero(who[:, number])
            if due and len(mine):
                self._deliver(family, run, step, due, {i: places[i][mine] for i in leaves}, before)

    def _active(
        self, stream: int, own: Sequence[tuple[Run, Step, Sequence[Instant]]], position: int
    ) -> NDArray[np.bool_]:
        stem = self._stems[stream]
        passed = min((-FOR_EVER if r.place.passed is None else r.place.passed) for r, _, _ in own)
        answered = min((-FOR_EVER if r.place.answered is None else r.place.answered) for r, _, _ in own)
        return (stem.ids >= position) | (stem.times > passed) | (stem.enter > answered)

    def _from(self, family: Family, leaf: int, active: Sequence[NDArray[np.bool_]]) -> Found:
        """The combinations whose first active row is a leaf's: probed for in the order that the eddy chooses."""
        start = np.flatnonzero(active[leaf] & family.alive[leaf].any(axis=1))
        found = Found({leaf: start}, family.alive[leaf][start])
        left = set(range(len(family.streams))) - {leaf}
        family.order = []
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
        keys = self._stems[family.streams[known]].keys(column)[found.places[known]]
        probing, rows = stem.probe(other, keys)
        if len(rows) > MOST_FOUND:
            raise AloneError
        alive = found.alive[probing] & family.alive[reached][rows]
        made = Found({leaf: p[probing] for leaf, p in found.places.items()} | {reached: rows}, alive)
        kept = alive.any(axis=1) & self._may_meet(family, made)
        for more in family.equalities:
            if more is not equality and {more.left, more.right} <= made.places.keys() and reached in (
                more.left, more.right
            ):  # fmt: skip
                left = self._stems[family.streams[more.left]].keys(more.left_column)[made.places[more.left]]
                right = self._stems[family.streams[more.right]].keys(more.right_column)[made.places[more.right]]
                kept &= left == right
        return made.only(kept), reached

    def _may_meet(self, family: Family, found: Found) -> NDArray[np.bool_]:
        """Whether rows are in the longest windows together at some time."""
        stems = [(leaf, self._stems[family.streams[leaf]]) for leaf in found.places]
        enter = np.max([s.enter[found.places[leaf]] for leaf, s in stems], axis=0)
        leave = np.min([s.times[found.places[leaf]] + family.lengths[leaf] for leaf, s in stems], axis=0)
        return np.asarray(enter <= leave)

    # One query's share

    def _deliver(
        self,
        family: Family,
        run: Run,
        step: Step,
        due: Sequence[Instant],
        places: Mapping[int, Numbers],
        before: Mapping[int, int],
    ) -> None:
        """Deliver what a query makes of combinations, each at the first instant that has it."""
        at = self._first_instants(family, run, step, due, places, before)
        mine = np.flatnonzero(at >= 0)
        if not len(mine):
            return
        places = {leaf: p[mine] for leaf, p in places.items()}
        rows, kept = self._shaped(family, run, places)
        at = at[mine][kept]
        for number in np.unique(at).tolist():
            own = rows.take(pa.array(np.flatnonzero(at == number)))
            ordered = emitting.in_order(own, run.plan.deltas)  # type: ignore[arg-type]
            step.deliveries.append((due[number], self._stepper.shaped(run, ordered)))

    def _first_instants(
        self,
        family: Family,
        run: Run,
        step: Step,
        due: Sequence[Instant],
        places: Mapping[int, Numbers],
        before: Mapping[int, int],
    ) -> Numbers:
        """Which of the instants that are due has each combination first; -1 for none. As `Answers.derivations`."""
        plan, place, shared = run.plan, step.place, shared_of(run)
        lengths = [plan.windows[leaf.window].length for leaf in shared.leaves]
        stems = [(leaf, self._stems[family.streams[leaf]]) for leaf in sorted(places)]
        ids = np.stack([s.ids[places[leaf]] for leaf, s in stems])
        times = np.stack([s.times[places[leaf]] for leaf, s in stems])
        enter = np.max([s.enter[places[leaf]] for leaf, s in stems], axis=0)
        last = np.min(times + np.array(lengths, np.int64)[:, None], axis=0)
        leave, time = last, times.max(axis=0)
        if plan.sample.kind is Sampling.INTERVAL:
            enter = enter + -(enter - plan.sample.offset) % plan.sample.step
            leave = last - (last - plan.sample.offset) % plan.sample.step
        xs = np.array([i.x for i in due], np.int64)
        taus = np.array([i.tau for i in due], np.int64)
        found = np.searchsorted(xs, enter)
        at = np.minimum(found, len(xs) - 1)
        is_repeated = (
            plan.sample.kind is Sampling.INTERVAL or run.place.answered is None or xs[0] <= run.place.answered
        )
        first = -FOR_EVER if is_repeated or run.place.answered is None else run.place.answered
        good = (found < len(xs)) & (np.concatenate([[first], xs[:-1]])[at] < enter)
        good &= (xs[at] <= leave) & (taus[at] <= last)
        mark = instants.mark_of(place)
        good &= time <= (-FOR_EVER if mark is None else mark)
        if run.place.passed is not None:
            fresh = time > run.place.passed
            for row, stream in enumerate(family.streams):
                fresh |= ids[row] >= before[stream]
            if plan.sample.kind is Sampling.REALTIME:
                fresh |= xs[at] > run.place.passed
            good &= fresh
        return np.where(good, at, -1)

    def _shaped(
        self, family: Family, run: Run, places: Mapping[int, Numbers]
    ) -> tuple[pa.Table, NDArray[np.bool_]]:
        """A query's columns of combinations, with what they are ordered by; those alone that pass its test."""
        shared, leaves = shared_of(run), len(places)
        count = len(places[0])
        kept = np.ones(count, bool)
        if shared.test is not None:
            asked = [Asked(f"coalesce({shared.test}, false)", pa.bool_(), np.arange(count))]
            [values] = self._evaluated(family, shared, places, asked, [shared.test])
            kept = np.asarray(values.to_numpy(), bool)
            places = {leaf: p[kept] for leaf, p in places.items()}
        schema, columns = run.query.schema.arrow, dict[str, pa.ChunkedArray]()
        texts = [(o.text, f) for o, f in zip(shared.outputs, schema, strict=True) if o.text]
        asked = [Asked(text, f.type, np.arange(int(kept.sum()))) for text, f in texts]
        values = self._evaluated(family, shared, places, asked, [t for t, _ in texts]) if kept.any() else []
        made = iter(values)
        for output, named in zip(shared.outputs, schema, strict=True):
            if output.text:
                columns[named.name] = next(made) if kept.any() else pa.array([], named.type)
            else:
                stem = self._stems[family.streams[output.leaf]]
                columns[named.name] = stem.rows.column(output.column).take(pa.array(places[output.leaf]))
        table = pa.table(list(columns.values()), names=list(columns))
        for leaf in range(leaves):
            stem = self._stems[family.streams[leaf]]
            table = table.append_column(f"{TIME}{leaf}", pa.array(stem.times[places[leaf]]))
            table = table.append_column(f"{ROW_NUMBER}{leaf}", pa.array(stem.ids[places[leaf]]))
        return table, kept

    def _evaluated(
        self,
        family: Family,
        shared: Shared,
        places: Mapping[int, Numbers],
        asked: Sequence[Asked],
        texts: Sequence[str],
    ) -> list[pa.ChunkedArray]:
        """The values of expressions over combinations; what fails is left to be told by the query alone."""
        if not asked:
            return []
        words, columns = " ".join(texts), dict[str, pa.ChunkedArray]()
        for leaf, stream in enumerate(family.streams):
            rows = self._stems[stream].rows
            for column in rows.column_names:
                name = column_name(leaf, column, len(shared.leaves))
                if f"`{name}`" in words:
                    columns[name] = rows.column(column).take(pa.array(places[leaf]))
        columns[ROW_NUMBER] = pa.chunked_array([pa.array(np.arange(len(places[0])))])
        found = evaluate(self._answers, pa.table(columns), asked)
        for values in found:
            if isinstance(values, MillstreamError):
                raise AloneError
        return found


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
