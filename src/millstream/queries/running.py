"""One step of one query: new rows in, the answers of all instants that are due out, one commit.

A step looks at each of the query's streams once, at one snapshot; it answers from the rows seen so far and leaves
the query at a new place. A step that was killed has not been.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from millstream.catalog import queries, snapshots
from millstream.catalog.queries import unpacked
from millstream.catalog.views import read_arrow_schema
from millstream.plan.incremental import merged_name, stream_name
from millstream.plan.standing import N, QueryPlan, Sampling, WindowKind
from millstream.queries import emitting, instants
from millstream.queries.answering import Feed
from millstream.queries.feeding import Feeder, enter, first_on_time
from millstream.queries.held import Held
from millstream.queries.instants import Instant
from millstream.queries.panes import Panes, UnmergeableError, can_merge
from millstream.queries.piles import FAN, Piles
from millstream.queries.place import Place
from millstream.queries.run import STATES, Look, Run, Step
from millstream.queries.storing import Store
from millstream.queries.tuning import INCREMENTAL
from millstream.queries.windows import HELD, enter_of, last_of
from millstream.rewrite.panes import E, U
from millstream.rewrite.panes import merged as merged_text
from millstream.schema import instant
from millstream.storage import period
from millstream.storage.continuous.block import AFTER_ALL
from millstream.storage.watermark import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from millstream.catalog.records import TableInfo
    from millstream.execute.session import Spark
    from millstream.plan.incremental import Part
    from millstream.plan.standing import Answering
    from millstream.queries.answering import Answers
    from millstream.queries.arrivals import Arrived
    from millstream.storage.lake import Lake

AnyState = TypeVar("AnyState", Panes, Piles)

MOST_ROWS = 4_194_304
"""A step takes in so many rows of a stream at most, however many wait."""
MOST_INSTANTS = 1_000
"""So many instants are answered at once."""


class Stepper:
    """Steps queries; not for several threads on one query at once."""

    def __init__(
        self, lake: Lake, answers: Answers, spark: Spark, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._lake = lake
        self._answers = answers
        self._timer = timer
        self.chunks: int | None = None
        """In how many chunks a slide is pre-processed; None to find out."""
        self.plan: str | None = None
        """Which plan answers, where both can; None to find out."""
        self.feeder = Feeder(lake)
        self.store = Store(lake, spark)

    # Beginnings

    def load(self, query: TableInfo) -> Run:
        """A query as the catalogue has it."""
        assert query.standing is not None
        plan = QueryPlan.from_json(query.standing.plan)
        with self._lake.catalog.read() as connection:
            stored = queries.standing(connection, query.id)
            pieces = queries.pieces(connection, query.id)
            assert stored is not None
            run = Run(query, plan, Place.from_json(stored.place))
            kept = {w.stream for w in plan.windows if w.is_kept}
            run.note_saved()
            run.removals = snapshots.removals(connection, kept, run.place.snapshot)
        run.answer = None if stored.answer is None else unpacked(stored.answer)
        parts: dict[int, list[pa.Table]] = {}
        for piece in pieces:
            parts.setdefault(piece.part, []).append(unpacked(piece.data))
            run.pieces.setdefault(piece.part, Counter())[piece.tier] += 1
        for number, window in enumerate(plan.windows):
            if window.kind in HELD and STATES + number in parts:
                run.held[number] = Held(window, pa.concat_tables(parts[STATES + number]))
        run.schemas = tuple(read_arrow_schema(text) for text in plan.schemas)
        if run.is_split:
            for number in range(len(plan.parts)):
                for rows in parts.get(number, []):
                    keep(run, number, rows)
        return run

    # A step

    @contextmanager
    def looking(self, place: Place, tables: Sequence[str] = (), most: int = MOST_ROWS) -> Iterator[Look | None]:
        """The streams that a place is in as they are now, up to `most` rows behind it; None if one has gone.

        All that is seen stays where it is as long as the body runs.
        """
        catalog = self._lake.catalog
        known = {s: catalog.table(s) for s in place.streams}
        # Before the rows are counted: what is on its way now must not be late.
        arrived_until = {s: instant(self._lake.arrived_until(s)) for s in known}
        ends = {s: catalog.table_stats(t).next_row_id for s, t in known.items() if t is not None}
        upto = {s: min(n, place.streams[s].position + most) for s, n in ends.items()}
        # Behind the rows: a view that is read at an instant has all that the query has.
        self._answers.catch_up(tables)
        with catalog.pinned_now() as moment:
            reader = self._answers.reader(moment)
            found = {s: t for s in upto if (t := catalog.table(s, moment.snapshot)) is not None}
            is_whole = len(found) == len(known)
            yield Look(arrived_until, moment.snapshot, found, upto, reader) if is_whole else None

    def look(self, place: Place, most: int = MOST_ROWS) -> Look | None:
        """The same; the caller pins the snapshot as long as it reads."""
        with self.looking(place, most=most) as found:
            return found

    def removed(self, run: Run) -> set[int]:
        """The streaming tables that rows were taken from behind a query's place, be it behind a look as well."""
        catalog = self._lake.catalog
        if not run.removals and not catalog.has_removals:
            return set()
        last = {s: max(run.removals.get(s, -1), catalog.removed_at(s)) for s in run.place.streams}
        return {s for s, snapshot in last.items() if run.place.snapshot < snapshot}

    def has_work(self, run: Run, look: Look) -> bool:
        """Whether there is something to do: rows enough to be worth it, time that has moved on, an instant due."""
        moment = self._lake.catalog.now
        waiting = 0
        for stream_id, seen in run.place.streams.items():
            table, now = look.tables[stream_id], moment.streams.get(stream_id)
            waiting += look.upto[stream_id] - seen.position
            if table.time is not None and table.time.is_arrival:
                if run.place.next is not None or run.place.pending or run.held:
                    return True
            elif now is not None and now.advanced_to != seen.advanced_to:
                return True
        if self.removed(run):
            return True
        return waiting > 0 and (waiting >= self._chunk(run) or self._may_be_due(run, look, waiting))

    def _chunk(self, run: Run) -> int:
        """How many rows are worth to be pre-processed."""
        if not run.is_split or not run.rows_an_answer:
            return 1
        m = self.chunks or run.chunks.m
        return max(1, min(MOST_ROWS, run.rows_an_answer // m))

    def _may_be_due(self, run: Run, look: Look, waiting: int) -> bool:
        place, sample = run.place, run.plan.sample
        if sample.kind is Sampling.ROWS:
            return (place.accepted + waiting) // sample.step > place.accepted // sample.step
        if place.next is None or sample.kind not in (Sampling.INTERVAL, Sampling.ENDS):
            return True
        states = self._lake.catalog.now.streams
        is_strict = not (sample.is_half_open or run.plan.is_early)
        for stream_id in run.plan.streams:
            table, state = look.tables[stream_id], states.get(stream_id)
            mark = None if state is None else period.stream_time(table, state, self._lake.clock.now())
            if mark is None or mark < place.next + is_strict:
                return False
        return True

    def step(self, run: Run) -> int | None:
        """Take in what has come and answer what is due; the number of deliveries, None if nothing was to do."""
        with self.looking(run.place, run.plan.tables) as look:
            if look is None or not self.has_work(run, look):
                return None
            waiting = sum(look.upto[s] - seen.position for s, seen in run.place.streams.items())
            started, before = self.time(), positions(run)
            with self._answers.at(look.reader):
                made = self._step(run, look)
        if not made and positions(run) == before:
            # Nothing has moved, so there is no use in trying again.
            return None
        self.learn(run, waiting, made or 0, self.time() - started)
        return made

    def time(self) -> float:
        return self._timer()

    def learn(self, run: Run, waiting: int, made: int, taken: float) -> None:
        """Note what came before some answers, and what they cost."""
        run.rows_waited += waiting
        if not made or run.plan.sample.kind is Sampling.COMMIT:
            return
        run.rows_an_answer, run.rows_waited = run.rows_waited // made, 0
        if self.chunks is None and made == 1 and run.is_split:
            run.chunks.observe(taken)
        if self.plan is None and run.has_choice and not run.company:
            run.choice.observe(taken / made)

    def _step(self, run: Run, look: Look) -> int | None:
        if stale := self.removed(run):
            self._make_anew(run, look, stale)
        rewritten = self._change_plan(run, look)
        place = run.place.copy()
        came = [self.feeder.arrived(place, look, s) for s in run.plan.streams]
        step = Step(place, rewritten=rewritten)
        counted = place.accepted
        step.came = came = first_on_time(run.plan, place, came)
        if run.is_split and _is_disordered(run.plan, came):
            self._give_up_panes(run, step, look)
        instants.take_in(run.plan, place, came)
        if run.plan.sample.kind is not Sampling.COMMIT:
            self.note_late(place, came)
        self._hold(run, step, look, came, counted)
        if run.plan.sample.kind is Sampling.COMMIT:
            self._on_commit(run, step, look, came)
        else:
            self._keep_panes(run, step, look, came, counted)
            due = self.due(run, place, came)
            self._answer(run, step, look, due, came, counted)
            if look.is_idle([due], came):
                return None
        self.store.commit(run, step, look)
        return len(step.deliveries)

    def note_late(self, place: Place, came: Sequence[Arrived]) -> None:
        """Remember late rows as long as an instant that they have missed waits, or none has followed them."""
        for found in came:
            known = place.late.get(found.stream, [])
            until = min(-AFTER_ALL if m is None else m for m in (place.passed, place.answered))
            missed = [x for x in known if x[1] >= until]
            place.late[found.stream] = [*missed, *found.late]

    # Windows that move row by row

    def _hold(
        self,
        run: Run,
        step: Step,
        look: Look,
        came: Sequence[Arrived],
        counted: int,
        seen: Place | None = None,
    ) -> None:
        by_stream = {a.stream: a for a in came}
        for number, window in enumerate(run.plan.windows):
            if window.kind not in HELD or run.is_split or window.stream not in by_stream:
                continue
            table, found = look.tables[window.stream], by_stream[window.stream]
            if run.place.is_counted and number not in run.held and seen is None:
                self._hold_again(run, look)
            held = run.held.setdefault(number, Held.empty(window, table.schema.arrow))
            if not len(found.ids):
                continue
            rows = self.feeder.rows(table, look, found)
            marked = held.marked(rows, found.ids, found.times, enter(run.plan, found, counted, seen))
            held.add(marked)
            if window.kind is WindowKind.SESSION:
                held.drop_missed(found.late)
            if not run.place.is_counted:
                step.new.setdefault(STATES + number, []).append(marked)

    def _hold_again(self, run: Run, look: Look) -> None:
        """Hold the rows of windows that are kept in streams."""
        came = [self.feeder.arrived_before(run.place, look, s, is_stale=False) for s in run.plan.streams]
        self._hold(run, Step(run.place), look, came, 0, run.place)

    # Instants

    def due(self, run: Run, place: Place, came: Sequence[Arrived]) -> list[Instant]:
        plan = run.plan
        if plan.sample.kind is Sampling.SESSION:
            mark = instants.mark_of(place)
            ends = next(iter(run.held.values())).ends() if run.held else np.empty(0, np.int64)
            ends = ends[ends <= (mark if mark is not None else -AFTER_ALL)]
            before = max((m for m in (place.answered, place.created_at) if m is not None), default=-AFTER_ALL)
            return [Instant(int(e), int(e)) for e in ends if e > before]
        by_stream = {a.stream: a for a in came}
        found = [(w, by_stream[w.stream].rows.moments) for w in plan.windows]
        instants.fill(plan, place, [(enter_of(plan.sample, e), last_of(w, t)) for w, (e, t) in found])
        return instants.due(plan, place, came)

    # Panes

    def _keep_panes(
        self,
        run: Run,
        step: Step,
        look: Look,
        came: Sequence[Arrived],
        counted: int,
        wanted: Iterable[int] | None = None,
    ) -> None:
        """Make partial results of new rows, where the query is answered from these."""
        rows = sum(len(a.ids) for a in came)
        if not run.is_split or not rows:
            return
        numbers = sorted(range(len(run.plan.parts)) if wanted is None else wanted)
        paired = [n for n in numbers if run.plan.pairs_of(run.plan.parts[n]) is not None]
        for some, is_new in (([n for n in numbers if n not in paired], True), (paired, False)):
            if not some:
                continue
            feed = self.feeder.feed(
                run, step.place, look, came, counted, is_new=is_new, most_here=self._answers.most_here
            )
            parts, read = [run.plan.parts[n] for n in some], rows
            if some is paired:
                read = sum(a.seen.position - min(a.before.position, a.before.low) for a in came)
                self.feeder.tell_new_from_old(feed, run, step.place, look, came, counted, self._answers.most_here)
                parts = [_over_new_pairs(run.plan, p) for p in parts]
            made = self._answers.partials(parts, [run.schemas[n] for n in some], feed, read)
            for number, new in zip(some, made, strict=True):
                if new.num_rows:
                    keep(run, number, new)
                    step.new.setdefault(number, []).append(new)

    # Answers

    def _answer(
        self,
        run: Run,
        step: Step,
        look: Look,
        due: Sequence[Instant],
        came: Sequence[Arrived],
        counted: int,
    ) -> None:
        for start in range(0, len(due), MOST_INSTANTS):
            some = due[start : start + MOST_INSTANTS]
            self._answer_some(run, step, look, some, came, counted)
            step.place.answered = some[-1].x
        step.place.passed = instants.mark_of(step.place)

    def _answer_some(
        self,
        run: Run,
        step: Step,
        look: Look,
        due: Sequence[Instant],
        came: Sequence[Arrived],
        counted: int,
    ) -> None:
        plan, types = run.plan, _types(run)
        if run.is_split:
            assert plan.split is not None
            self.deliver(run, step, due, self._merged_answers(run, due), plan.split)
            return
        most = self._answers.most_here
        feed = self.feeder.feed(run, step.place, look, came, counted, is_new=False, due=due, most_here=most)
        if plan.deltas is not None:
            by_stream = {a.stream: a.before for a in came}
            seen = [by_stream[plan.windows[i].stream].position for i in plan.deltas.leaves]
            rows = self._answers.derivations(plan, due, feed, seen, step.place, types)
            for at, found in zip(due, rows, strict=True):
                if found.num_rows:
                    step.deliveries.append((at, self.shaped(run, emitting.in_order(found, plan.deltas))))
            return
        self.deliver(run, step, due, self._answers.answers(plan, plan.whole, due, feed, types), plan.whole)

    def _merged_answers(self, run: Run, due: Sequence[Instant]) -> list[pa.Table]:
        """Answers from states: the driver merges what it can, Spark the rest."""
        plan, feed = run.plan, Feed()
        assert plan.split is not None
        text = plan.split.text
        for number, part in enumerate(plan.parts):
            if merged_name(number) not in text:
                continue
            here = self.merged_here(run, number, due)
            if here is not None:
                feed.put(merged_name(number), here)
                continue
            text = text.replace(merged_name(number), merged_text(part, number))
            merge = partial(self._answers.merged, part, run.schemas[number])
            covers = self.piles(run, number).at_each([i.x for i in due], merge)
            self._answers.put_state(feed, number, run.schemas[number], due, covers)
        return self._answers.answers(plan, replace(plan.split, text=text), due, feed, _types(run))

    def merged_here(self, run: Run, number: int, due: Sequence[Instant]) -> pa.Table | None:
        """The groups of each instant, merged in the driver; None if it cannot, or shall not."""
        part, state = run.plan.parts[number], run.states.get(number)
        if not self._answers.merges_here or not can_merge(part) or number in run.unmergeable:
            return None
        if not isinstance(state, Panes):
            run.states[number] = state = _refilled(Panes(part, run.schemas[number]), state)
        try:
            return numbered(state.at_each([i.x for i in due]), part)
        except UnmergeableError:
            run.unmergeable.add(number)
            return None

    @staticmethod
    def piles(run: Run, number: int, fan: int = FAN) -> Piles:
        """A state for merges of many at once."""
        state = run.states.get(number)
        if not isinstance(state, Piles) or state.fan != fan:
            run.states[number] = state = _refilled(Piles(run.schemas[number], fan), state)
        return state

    def deliver(
        self,
        run: Run,
        step: Step,
        due: Sequence[Instant],
        rows: Sequence[pa.Table],
        answering: Answering | None,
    ) -> None:
        last = run.answer if step.answer is None else step.answer
        for at, found in zip(due, rows, strict=True):
            ordered = found if answering is None else emitting.in_order(found, answering)
            answer = self.shaped(run, ordered)
            emitted = answer
            if run.plan.emit == "NEW":
                emitted = emitting.new_rows(answer, last)
            elif run.plan.emit == "CHANGES":
                emitted = emitting.changes(answer, last)
            step.deliveries.append((at, emitted))
            last = answer
        step.answer = last

    @staticmethod
    def shaped(run: Run, rows: pa.Table) -> pa.Table:
        """The query's own columns under their own names."""
        schema = run.query.schema.arrow
        own = rows.columns[: len(schema)]
        if [c.type for c in own] == schema.types:
            return pa.Table.from_arrays(own, schema=schema)
        return pa.Table.from_arrays(own, names=schema.names).cast(schema)

    def _on_commit(self, run: Run, step: Step, look: Look, came: Sequence[Arrived]) -> None:
        """Deliver what a selection makes of new rows: a delivery for each run of rows with one time."""
        if not len(came[0].ids):
            return
        assert run.plan.deltas is not None
        most = self._answers.most_here
        feed = self.feeder.feed(run, step.place, look, came, 0, is_new=True, most_here=most)
        rows = emitting.in_order(self._answers.committed(run.plan, feed, _types(run)), run.plan.deltas)
        if not rows.num_rows:
            return
        times = np.asarray(rows.column("__ms_t0").to_numpy(), np.int64)
        edges = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist(), rows.num_rows]
        for low, high in pairwise(edges):
            at = int(times[low])
            step.deliveries.append((Instant(at, at), self.shaped(run, rows.slice(low, high - low))))

    def wants_other_plan(self, run: Run) -> bool:
        """Whether a query is to be answered in the other way from now on."""
        # With others it is one pass and one commit for all, which re-evaluation of each by itself does not beat.
        wanted = self.plan or (INCREMENTAL if run.company else run.choice.plan)
        return run.has_choice and run.is_split != (wanted == INCREMENTAL)

    def _change_plan(self, run: Run, look: Look) -> set[int]:
        """Go over to the plan that is wanted, if it is another one; returns the states to be stored anew."""
        if not self.wants_other_plan(run):
            return set()
        run.place.is_split = not run.place.is_split
        run.states.clear()
        if run.is_split:
            came = [self.feeder.arrived_before(run.place, look, s, is_stale=False) for s in run.plan.streams]
            self._keep_panes(run, Step(run.place), look, came, 0)
        return set(range(len(run.plan.parts)))

    def _give_up_panes(self, run: Run, step: Step, look: Look, *, is_stale: bool = False) -> None:
        """Go on with the rows themselves: which are the newest is no longer the order in which they came."""
        step.place.is_split = run.place.is_split = False
        run.states.clear()
        step.rewritten |= set(range(len(run.plan.parts)))
        came = [self.feeder.arrived_before(run.place, look, s, is_stale=is_stale) for s in run.plan.streams]
        seen = Step(run.place)
        self._hold(run, seen, look, came, 0, run.place)
        step.rewritten |= set(seen.new)

    # Anew

    def _make_anew(self, run: Run, look: Look, stale: AbstractSet[int]) -> None:
        """Make states anew from the rows that are stored: some that they were made of have gone or changed."""
        place, step = run.place, Step(run.place)
        if run.is_split and any(w.kind is WindowKind.ROWS for w in run.plan.windows):
            self._give_up_panes(run, step, look, is_stale=True)
            self.store.commit(run, step, look, is_anew=True)
            return
        came = [self.feeder.arrived_before(place, look, s, is_stale=s in stale) for s in run.plan.streams]
        for number, window in enumerate(run.plan.windows):
            if window.stream in stale:
                run.held.pop(number, None)
                step.rewritten.add(STATES + number)
        self._hold(run, step, look, [a for a in came if a.stream in stale], 0, place)
        if run.is_split:
            windows = run.plan.windows
            touched = {
                i for i, p in enumerate(run.plan.parts) if any(windows[s].stream in stale for s in p.streams)
            }
            for number in touched:
                run.states.pop(number, None)
            self._keep_panes(run, step, look, came, 0, touched)
            step.rewritten |= touched
        step.new = {}
        self.store.commit(run, step, look, is_anew=True)


def keep(run: Run, number: int, rows: pa.Table) -> None:
    """Take partial results into a query's state."""
    if number not in run.states:
        run.states[number] = Piles(run.schemas[number])
    run.states[number].add(rows)


def _over_new_pairs(plan: QueryPlan, part: Part) -> Part:
    pairs = plan.pairs_of(part)
    assert pairs is not None
    return replace(part, source=part.source.replace(stream_name(pairs.number), f"({pairs.new()})"))


def _refilled(new: AnyState, old: Panes | Piles | None) -> AnyState:
    for rows in () if old is None else old.tables():
        new.add(rows)
    return new


def positions(run: Run) -> list[tuple[int, int | None]]:
    return [(seen.position, seen.advanced_to) for seen in run.place.streams.values()]


def _types(run: Run) -> list[pa.DataType]:
    return [c.type for c in run.query.schema.columns]


def numbered(answers: Sequence[pa.Table], part: Part) -> pa.Table:
    """The merged groups of each instant; without keys one row for each, whether or not there are panes."""
    made = []
    for number, rows in enumerate(answers):
        if not rows.num_rows and not any(k not in (E, U) for k in part.keys):
            rows = pa.table([pa.nulls(1, f.type) for f in rows.schema], schema=rows.schema)
        made.append(rows.add_column(0, N, pa.array(np.full(rows.num_rows, number), pa.int64())))
    return pa.concat_tables(made)


def _is_disordered(plan: QueryPlan, came: Sequence[Arrived]) -> bool:
    """Whether rows have come out of order, where the newest rows are taken to be those that came last."""
    if not any(w.kind is WindowKind.ROWS for w in plan.windows):
        return False
    for found in came:
        start = found.before.max_time if found.before.max_time is not None else NEVER
        new, old = found.times[found.ids >= found.before.born], found.times[found.ids < found.before.born]
        if len(new) and int(new[0]) < start:
            return True
        if any(bool(np.any(times[1:] < times[:-1])) for times in (new, old)):
            return True
    return False
