"""Queries over windows of one stream that are stepped together: they share passes, panes, answers and the commit.

Where a row's pane begins for one window another's may end; cut at all of these places, the rows of a basket come
in *fine panes*, which are alike for every query. A part that several queries have in common, whatever their
windows, slides and predicates (`spreading`), is computed in one pass, for fine panes, and then merged for each
window to its own panes. The cuts are made anew for each basket, from the windows that there are, so queries come
and go without a word to others. Those whose answers are the same text are answered by one run of it, each instant
of each under its own number.

What the kernel does not know is one job of Spark for all who ask it, and so is a merge that Arrow does not know.
Every query keeps its own place and state, and can be stepped alone at any time; it is, where something goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.errors import Condition, DataError, StatementError
from millstream.execute.passes import renamed_source
from millstream.plan.incremental import merged_name, stream_name
from millstream.plan.standing import ENTER, LEAVE, N, Sampling, WindowKind
from millstream.queries import dense, here, instants, tasks
from millstream.queries.answering import Feed, apart
from millstream.queries.panes import are_in_order, changes
from millstream.queries.run import Run, Step
from millstream.queries.running import MOST_INSTANTS, Stepper, keep, numbered
from millstream.queries.spreading import likeness, passes
from millstream.queries.tasks import Large, with_marks
from millstream.queries.windows import HELD, Marking
from millstream.rewrite.panes import E, U
from millstream.storage.watermark import times_of
from millstream.views import merging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.execute.session import Spark
    from millstream.plan.incremental import Part
    from millstream.plan.standing import Sample, Window
    from millstream.queries.answering import Answers
    from millstream.queries.arrivals import Arrived
    from millstream.queries.instants import Instant
    from millstream.queries.run import Look
    from millstream.queries.spreading import Filters, Passes
    from millstream.queries.tasks import Portion
    from millstream.schedule.eddy import Policy
    from millstream.storage.lake import Lake

    Numbers = NDArray[np.int64]
    Key = tuple[int | None, ...]
    Shape = tuple[Window, Sample]
    Wanted = tuple[str, Shape]
    Merge = Callable[[Part, pa.Table, Numbers, int], pa.Table]

PANE, P = "__ms_p", "p"
"""The number of a fine pane: of a row, and as a key of partial results."""
FAN_HERE = 4
"""So many pieces of a state become one: merges for all queries at once are cheap."""
MOST_TOGETHER = 4_096
"""So many instants of queries that are alike are answered by one run of their text."""


class AloneError(Exception):
    """Queries cannot be stepped together this time; each can be alone."""


class UntouchedError(AloneError):
    """Nor has anything been changed: some of them may still be stepped together."""


def key_of(run: Run, most_here: int) -> Key | None:
    """What queries have to agree in to be stepped together: stream and place; None if it cannot be."""
    if run.is_stale or run.place.next is None or why_alone(run, most_here) is not None:
        return None
    [(stream, seen)] = run.place.streams.items()
    return stream, seen.position, seen.max_time, seen.advanced_to, seen.mark


def may_join(run: Run, most_here: int) -> bool:
    """Whether a query can be stepped together with others, now or once it is answered incrementally."""
    return (run.is_split or run.has_choice) and why_alone(run, most_here, if_split=True) is None


def why_alone(run: Run, most_here: int, *, if_split: bool = False) -> str | None:
    """What keeps a query from being stepped together with others, for people; None if nothing does."""
    plan, standing = run.plan, run.query.standing
    if not most_here:
        return "the executor is spark_sql"
    if len(plan.windows) != 1 or plan.pairs:
        return "it joins windows"
    if not (run.is_split or if_split) or plan.windows[0].kind in HELD:
        return "it is answered from the rows of its windows"
    if plan.sample.kind not in (Sampling.INTERVAL, Sampling.ENDS):
        return "its instants are not at times that are known before"
    if plan.tables:
        return "it reads tables at each instant"
    if standing is None or standing.target is not None:
        return "it feeds a table"
    if not all(p.partials for p in plan.parts):
        return "it has no aggregate"
    if any(p.grouping != ", ".join(p.keys) for p in plan.parts):
        # They would have to be cut by fine panes one by one.
        return "it has grouping sets"
    return None


@dataclass(frozen=True)
class Cuts:
    """Where the fine panes of a basket part; `late` rows have panes of their own, behind the others."""

    edges: Numbers
    late: Mapping[int, int]

    def marks(self, ids: Numbers, times: Numbers) -> dict[str, Numbers]:
        """The pane of each of some rows, as a mark of it; all are in some window for all that is known here."""
        found = np.searchsorted(self.edges, times, "right")
        for place in np.flatnonzero(np.isin(ids, list(self.late))) if self.late else ():
            found[place] = self.late[int(ids[place])]
        none = np.zeros(len(ids), np.int64)
        return {PANE: found, ENTER: none, LEAVE: none}


@dataclass(frozen=True)
class Fine:
    """The fine panes of a basket: their numbers, and a row of each that stands for all of its rows."""

    cuts: Cuts
    numbers: Numbers
    ids: Numbers
    times: Numbers
    met: Mapping[int, int]

    def of(self, window: Window, sample: Sample) -> tuple[Numbers, Numbers]:
        """When the rows of each pane enter a window and when they leave it."""
        marks = Marking(window, sample, self.met).marks(self.ids, self.times)
        return marks[ENTER], marks[LEAVE]


def cut(found: Arrived, shapes: Sequence[tuple[Window, Sample]]) -> Fine:
    """The fine panes of a basket for the windows of some queries."""
    low, high = int(found.times.min()), int(found.times.max())
    edges = np.unique(np.concatenate([_edges(w, s, low, high) for w, s in shapes]))
    late = {i: (int(found.times[np.searchsorted(found.ids, i)]), met) for i, met in found.late}
    pairs = {pair: len(edges) + 1 + n for n, pair in enumerate(sorted(set(late.values())))}
    cuts = Cuts(edges, {i: pairs[pair] for i, pair in late.items()})
    panes = cuts.marks(found.ids, found.times)[PANE]
    numbers, first = np.unique(panes, return_index=True)
    return Fine(cuts, numbers, found.ids[first], found.times[first], dict(found.late))


def _edges(window: Window, sample: Sample, low: int, high: int) -> Numbers:
    """The times between two at which rows begin to enter, or to leave, later than those before."""
    lengths = [0 if sample.is_half_open else -1]
    lengths += [window.length] if window.kind in (WindowKind.INTERVAL, WindowKind.CUT) else []
    lengths += [window.period] if window.period else []
    found = []
    for length in lengths:
        first = low + -(low - sample.offset + length) % sample.step
        found.append(np.arange(first, high + 1, sample.step, dtype=np.int64))
    if window.kind is WindowKind.LANDMARK and window.length:
        found.append(np.arange(low - low % window.length, high + 1, window.length, dtype=np.int64))
    return np.concatenate(found)


def _is_too_fine(run: Run, found: Arrived) -> bool:
    """Whether a query would have a basket cut at too many places, or answered at too many instants at once."""
    if not len(found.times):
        return False
    window, step = run.plan.windows[0], run.plan.sample.step
    if window.kind is WindowKind.LANDMARK and window.length:
        step = min(step, window.length)
    low = int(found.times.min()) if run.place.next is None else min(int(found.times.min()), run.place.next)
    return (int(found.times.max()) - low) // step > MOST_INSTANTS


def _portions(numbers: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Neighbours of not too many instants together."""
    some, total = list[int](), 0
    for number, size in zip(numbers, sizes, strict=True):
        if some and total + size > MOST_TOGETHER:
            yield some
            some, total = [], 0
        some.append(number)
        total += size
    if some:
        yield some


class Chorus:
    """See the module's contract."""

    def __init__(
        self, lake: Lake, answers: Answers, stepper: Stepper, spark: Spark, make_policy: Callable[[], Policy]
    ) -> None:
        self._lake = lake
        self._answers = answers
        self._stepper = stepper
        self._spark = spark
        self._make_policy = make_policy
        self.filters: dict[tuple[int, bool], Filters] = {}
        """By stream, and whether Spark is needed: the predicates of the last basket."""

    def step(self, runs: Sequence[Run], look: Look) -> list[int]:
        """One step of queries that agree in `key_of`; the number of deliveries of each."""
        started = self._stepper.time()
        [stream] = runs[0].place.streams
        found = self._stepper.feeder.arrived(runs[0].place, look, stream)
        runs = [run for run in runs if not _is_too_fine(run, found)]
        steps = [self._began(run, found) for run in runs]
        due = [self._stepper.due(run, s.place, s.came) for run, s in zip(runs, steps, strict=True)]
        few = [n for n, own in enumerate(due) if len(own) <= MOST_INSTANTS]
        runs, steps, due = [runs[n] for n in few], [steps[n] for n in few], [due[n] for n in few]
        if look.is_idle(due, [found]):
            return []
        if len(found.ids):
            self._keep_panes(runs, steps, look, found)
        self._answer(runs, steps, due)
        self._stepper.store.commit_due(list(zip(runs, steps, strict=True)), look)
        waiting, taken = found.seen.position - found.before.position, self._stepper.time() - started
        for run, step in zip(runs, steps, strict=True):
            self._stepper.learn(run, waiting, len(step.deliveries), taken)
        return [len(s.deliveries) for s in steps]

    def decide_by(self, make_policy: Callable[[], Policy]) -> None:
        """Let other policies, which have learnt nothing yet, choose from now on."""
        for filters in self.filters.values():
            filters.policy = make_policy()

    def keep_only(self, streams: set[int]) -> None:
        """Forget the filters of streams on which nobody is stepped together any more."""
        self.filters = {choir: filters for choir, filters in self.filters.items() if choir[0] in streams}

    def takes(self, run: Run) -> bool:
        """Whether the kernel knows all that a query asks of new rows; else Spark does."""
        if run.is_proven is None:
            table = self._lake.catalog.table(run.plan.streams[0])
            if table is None:
                return False
            none = np.empty(0, np.int64)
            rows = with_marks(table.schema.arrow.empty_table(), Cuts(none, {}).marks(none, none))
            parts = [by_pane(p) for p in run.plan.parts]
            made = here.partials(parts, [_by_pane(s) for s in run.schemas], {stream_name(0): rows})
            run.is_proven = made is not None
        return run.is_proven

    def needs_spark(self, run: Run) -> bool:
        """Whether passes or merges of a query are jobs of Spark."""
        return bool(run.unmergeable) or not run.can_merge or not self.takes(run)

    def _began(self, run: Run, found: Arrived) -> Step:
        """A step of one of the queries, in which what has come is noted."""
        place = run.place.copy()
        before, now = place.streams[found.stream], found.seen
        seen = replace(
            before, position=now.position, max_time=now.max_time, advanced_to=now.advanced_to, mark=now.mark
        )
        came = [replace(found, before=before, seen=seen)]
        instants.take_in(run.plan, place, came)
        self._stepper.note_late(place, came)
        return Step(place, came)

    # Passes and panes

    def _keep_panes(self, runs: Sequence[Run], steps: Sequence[Step], look: Look, found: Arrived) -> None:
        fine = cut(found, list({_shape(run): None for run in runs}))
        alike = _alike(runs)
        every = {text: own[text, shape] for own in alike.values() for text, shape in own}
        parts = [(by_pane(part), _by_pane(schema)) for part, schema in every.values()]
        is_proven = all(self.takes(run) for run in runs)
        choir = found.stream, any(map(self.needs_spark, runs[:1]))
        tables = self._passed(choir, parts, look, found, fine, is_proven=is_proven)
        known = self._in_windows(alike, dict(zip(every, tables, strict=True)), fine)
        # Only now: up to here a query can still be stepped alone as if nothing had been.
        for run, step in zip(runs, steps, strict=True):
            for number, part in enumerate(run.plan.parts):
                rows = known[by_pane(part).fragment, _shape(run)]
                if rows.num_rows:
                    keep(run, number, rows)
                    step.new.setdefault(number, []).append(rows)

    def _in_windows(
        self,
        alike: Mapping[Part, Mapping[Wanted, tuple[Part, pa.Schema]]],
        made: Mapping[str, pa.Table],
        fine: Fine,
    ) -> dict[Wanted, pa.Table]:
        """Partial results of fine panes, as those of the panes of each window."""
        shapes = {shape for own in alike.values() for _, shape in own}
        bounds = {shape: Bounds.between(*fine.of(*shape)) for shape in shapes}
        known: dict[Wanted, pa.Table] = {}
        for own in alike.values():
            part, schema = next(iter(own.values()))
            asked = [(made[text], bounds[shape]) for text, shape in own]
            known |= zip(own, in_panes(self._merged, part, schema, fine.numbers, asked), strict=True)
        return known

    def _merged(self, part: Part, rows: pa.Table, of: Numbers, lists: int) -> pa.Table:
        """One row for each group of each list, with the list's number before it; `of` is the list of each row."""
        found = dense.merged(part, part.keys, rows, of, lists) if merging.can_merge(part) else None
        if found is not None:
            return found
        numbered_rows = rows.add_column(0, N, pa.array(of, pa.int64()))
        by_list = replace(part, keys=(N, *part.keys))
        found = merging.merged(by_list, [numbered_rows]) if merging.can_merge(by_list) else None
        return self._answers.merged_rows(by_list, numbered_rows) if found is None else found

    def _passed(
        self,
        choir: tuple[int, bool],
        parts: Sequence[tuple[Part, pa.Schema]],
        look: Look,
        found: Arrived,
        fine: Fine,
        *,
        is_proven: bool,
    ) -> list[pa.Table]:
        """What parts make of the new rows, for each fine pane: here if these are few, else in tasks of one job."""
        is_small = found.seen.position - found.before.position <= self._answers.most_here
        if not is_proven:
            if not is_small:
                raise AloneError
            return self._passed_by_spark(parts, self._rows(look, found, fine))
        table = look.tables[found.stream]
        types = tuple((f.name.lower(), f.type) for f in table.schema.arrow)
        last = self.filters.get(choir)
        made = passes([p for p, _ in parts], [s for _, s in parts], types, last, self._make_policy)
        self.filters[choir] = made.filters
        done: Sequence[list[pa.Table] | None]
        if is_small:
            done = [made.over(self._rows(look, found, fine))]
        else:
            large = Large(self._stepper.feeder.new(table, look, found), fine.cuts, found.seen.position)
            work = partial(_passed_in_task, made, large)
            done = tasks.in_tasks(self._spark.session, work, tasks.portions(self._lake, large.scan))
        if any(tables is None for tables in done):
            raise UntouchedError
        return [pa.concat_tables(own) for own in zip(*(t for t in done if t is not None), strict=True)]

    def _rows(self, look: Look, found: Arrived, fine: Fine) -> pa.Table:
        """The new rows with their fine panes."""
        table = look.tables[found.stream]
        rows = self._stepper.feeder.rows(table, look, found)
        assert table.time is not None
        return with_marks(rows, fine.cuts.marks(found.ids, times_of(rows.column(table.time.column))))

    def _passed_by_spark(self, parts: Sequence[tuple[Part, pa.Schema]], rows: pa.Table) -> list[pa.Table]:
        """The same for parts that the kernel does not know, in one job."""
        feed = Feed()
        feed.put(stream_name(0), rows)
        try:
            return self._answers.partials([p for p, _ in parts], [s for _, s in parts], feed, rows.num_rows)
        except (StatementError, DataError) as error:
            if error.condition is Condition.CANCELLED:
                raise
            raise UntouchedError from error

    # Answers

    def _answer(self, runs: Sequence[Run], steps: Sequence[Step], due: Sequence[Sequence[Instant]]) -> None:
        alike: dict[tuple[object, ...], list[int]] = {}
        for number, (run, own) in enumerate(zip(runs, due, strict=True)):
            if own:
                assert run.plan.split is not None
                key = (run.plan.split, run.query.schema, run.schemas, _merges(run), run.plan.is_integer_time)
                alike.setdefault(key, []).append(number)
        for numbers in alike.values():
            for some in _portions(numbers, [len(due[n]) for n in numbers]):
                self._answer_alike([(runs[n], steps[n], due[n]) for n in some])
        for step, own in zip(steps, due, strict=True):
            if own:
                step.place.answered = own[-1].x
            step.place.passed = instants.mark_of(step.place)

    def _answer_alike(self, asked: Sequence[tuple[Run, Step, Sequence[Instant]]]) -> None:
        """Answer queries that differ in their windows and predicates alone."""
        plan, every, feed = asked[0][0].plan, [i for _, _, own in asked for i in own], Feed()
        assert plan.split is not None
        for number in range(len(plan.parts)):
            if merged_name(number) in plan.split.text:
                feed.put(merged_name(number), self._states(asked, number))
        types = [c.type for c in asked[0][0].query.schema.columns]
        rows = iter(self._answers.answers(plan, plan.split, every, feed, types))
        for run, step, own in asked:
            self._stepper.deliver(run, step, own, [next(rows) for _ in own], run.plan.split)

    def _states(self, asked: Sequence[tuple[Run, Step, Sequence[Instant]]], number: int) -> pa.Table:
        """The merged state of every query at each of its instants, under one numbering; two merges for all."""
        if not self._answers.merges_here:
            raise AloneError
        part, schema = asked[0][0].plan.parts[number], asked[0][0].schemas[number]
        own_schema = pa.schema([f for f in schema if f.name not in (E, U)])
        own_part = _without_panes(part)
        merge = partial(merged_each, self._merged, own_part, own_schema)
        piles = [(self._stepper.piles(run, number, FAN_HERE), [i.x for i in own]) for run, _, own in asked]
        covers = [(pile, pile.covers(instants)) for pile, instants in piles]
        unmade = [node for pile, found in covers for node in pile.unmade(found)]
        for node, rows in zip(unmade, merge([list(n.pieces()) for n in unmade]), strict=True):
            node.settle(rows)
        found = [[rows for node in cover for rows in node.pieces()] for _, own in covers for cover in own]
        # Without keys there is one row for each instant, whether or not there are panes.
        if not own_part.keys:
            return numbered(merge(found), part)
        return merged_together(self._merged, own_part, own_schema, found)


def _shape(run: Run) -> Shape:
    return run.plan.windows[0], run.plan.sample


def _alike(runs: Sequence[Run]) -> dict[Part, dict[Wanted, tuple[Part, pa.Schema]]]:
    """What queries ask of new rows: the parts that are one pass, each by its text and its window."""
    found: dict[Part, dict[Wanted, tuple[Part, pa.Schema]]] = {}
    for run in runs:
        for part, schema in zip(run.plan.parts, run.schemas, strict=True):
            made = by_pane(part)
            found.setdefault(likeness(made), {})[made.fragment, _shape(run)] = part, schema
    return found


def _merges(run: Run) -> tuple[object, ...]:
    """How the states of a query are merged, which the text of its answers does not say."""
    return tuple(
        (p.keys, p.prepared, p.types, tuple((x.name, x.merge) for x in p.partials)) for p in run.plan.parts
    )


def _passed_in_task(made: Passes, large: Large, portion: Portion) -> list[pa.Table] | None:
    return made.over(large.rows(portion))


@lru_cache(maxsize=4_096)
def by_pane(part: Part) -> Part:
    """A part that groups by fine panes instead of by when rows enter and leave."""
    part = renamed_source(part)
    text = dict(part.projections)[E].replace(ENTER, PANE)
    projections = ((P, text), *(x for x in part.projections if x[0] not in (E, U)))
    keys = (P, *(k for k in part.keys if k not in (E, U)))
    return replace(
        part, source=part.source.replace(ENTER, PANE), projections=projections, keys=keys, grouping=", ".join(keys)
    )


def _by_pane(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(P, pa.int64()), *(f for f in schema if f.name not in (E, U))])


@dataclass(frozen=True)
class Bounds:
    """The panes of a window, in order, and which of them each fine pane is in; -1 for none."""

    enter: Numbers
    leave: Numbers
    of: Numbers

    @staticmethod
    def between(enter: Numbers, leave: Numbers) -> Bounds:
        is_open = leave >= enter
        enter, leave, made = enter[is_open], leave[is_open], np.full(len(enter), -1, np.int64)
        if are_in_order(enter, leave):
            firsts = np.concatenate([[0] if len(enter) else [], changes(enter, leave)]).astype(np.int64)
            made[is_open] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(enter)))
            return Bounds(enter[firsts], leave[firsts], made)
        panes, of = np.unique(np.stack([enter, leave]), axis=1, return_inverse=True)
        made[is_open] = of.reshape(-1)
        return Bounds(panes[0], panes[1], made)


def _without_panes(part: Part) -> Part:
    return replace(part, keys=tuple(k for k in part.keys if k not in (E, U)))


def in_panes(
    merge: Merge, part: Part, schema: pa.Schema, numbers: Numbers, wanted: Sequence[tuple[pa.Table, Bounds]]
) -> list[pa.Table]:
    """Partial results of fine panes, each as those of a window's panes, in one go."""
    own = [f.name for f in schema if f.name not in (E, U)]
    firsts = np.cumsum([0, *(len(b.enter) for _, b in wanted)])
    fine = {id(rows): np.searchsorted(numbers, rows.column(P).to_numpy()) for rows, _ in wanted}
    panes = [b.of[fine[id(rows)]] for rows, b in wanted]
    of = np.concatenate([np.where(p < 0, p, p + first) for p, first in zip(panes, firsts, strict=False)])
    rows = pa.concat_tables([rows.select(own) for rows, _ in wanted])
    if (of < 0).any():
        rows, of = rows.filter(pa.array(of >= 0)), of[of >= 0]
    found = merge(_without_panes(part), rows, of, int(firsts[-1]))
    pane = found.column(N).to_numpy()
    bounds = {
        E: np.concatenate([b.enter for _, b in wanted])[pane],
        U: np.concatenate([b.leave for _, b in wanted])[pane],
    }
    columns = [pa.array(bounds[f.name]) if f.name in bounds else found.column(f.name) for f in schema]
    lists = pa.array(np.searchsorted(firsts, pane, "right") - 1)
    return _copied(apart(pa.table([lists, *columns], names=[N, *schema.names]), len(wanted)))


def merged_each(
    merge: Merge, part: Part, schema: pa.Schema, wanted: Sequence[Sequence[pa.Table]]
) -> list[pa.Table]:
    """Partial results merged by a part's keys, each of some lists of pieces to one row a group, in one go."""
    return _copied(apart(merged_together(merge, part, schema, wanted), len(wanted)))


def _copied(found: Sequence[pa.Table]) -> list[pa.Table]:
    """Each by itself, not as a slice: what one query keeps must not hold what all others had."""
    return [rows.take(pa.array(np.arange(rows.num_rows))) for rows in found]


def merged_together(merge: Merge, part: Part, schema: pa.Schema, wanted: Sequence[Sequence[pa.Table]]) -> pa.Table:
    """The same as one table, with the number of its list before each group."""
    counts = [sum([p.num_rows for p in pieces]) for pieces in wanted]
    rows = pa.concat_tables([schema.empty_table(), *chain.from_iterable(wanted)]).combine_chunks()
    return merge(part, rows, np.repeat(np.arange(len(wanted)), counts), len(wanted))
