"""Who shares what with whom, for people: EXPLAIN SHARED, SHOW EDDY, and a line of DESCRIBE.

Selections share grouped filters, joins of windows share these and SteMs, aggregates over windows share passes and
panes. What keeps a query from all of that is said.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millstream.deliver.render import counted
from millstream.queries import chorus, joining
from millstream.queries.known import may_share, shown_name
from millstream.queries.scheduled_join import size_of
from millstream.queries.spreading import likeness
from millstream.schedule.eddy import Tickets
from millstream.schema import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from millstream.catalog.records import TableInfo
    from millstream.execute.shared.selections import Matcher
    from millstream.plan.selection import Selection
    from millstream.plan.sharing import Shared
    from millstream.plan.standing import QueryPlan
    from millstream.queries.answering import Answers
    from millstream.queries.joining import Family, Joining
    from millstream.queries.known import Known
    from millstream.queries.run import Run
    from millstream.queries.scheduled import Scheduled
    from millstream.queries.scheduled_join import Join
    from millstream.queries.together import Together
    from millstream.schedule.eddy import Policy
    from millstream.storage.lake import Lake

    Shown = tuple[str, str, str, int, int, float, float | None]
    Joined = tuple[str, str, str, str, int, float | None, float | None, float | None, int, int, int, int]

NOBODY = "with nobody yet"
NESTED = "no column of one stream is to be equal to one of the other, so every pair in the windows is tested"


@dataclass(frozen=True)
class Operator:
    """What a policy chooses among: its name, how many terms or queries it serves, and what was learnt of it."""

    name: str
    serves: str
    number: int
    tickets: float
    selectivity: float | None

    def __str__(self) -> str:
        passes = "unknown" if self.selectivity is None else f"{self.selectivity:.1%}"
        return f"{self.name}: {counted(self.number, self.serves)}, tickets {self.tickets:.1f}, passes {passes}"


@dataclass
class Company:
    """See the module's contract; `runs` are the queries that have been stepped since the database was opened."""

    lake: Lake
    known: Known
    together: Together
    joining: Joining
    scheduled: Scheduled
    choirs: chorus.Chorus
    answers: Answers
    runs: Mapping[int, Run]

    # One query

    def of(self, query: TableInfo) -> str:
        """For DESCRIBE: with how many others a query is answered; `no` if it is alone."""
        with self.together.lock:
            return self._of(query)

    def _of(self, query: TableInfo) -> str:
        plan = self.known.plan_of(query)
        group = self.together.group(plan.streams[0]) if may_share(query, plan) else None
        if group is not None and query.id in group.plans:
            return _others(len(group.plans))
        join, family = self._scheduled(query), self._family(query)
        if join is not None:
            return _others(len(join.runs))
        if family is not None:
            return _others(len(family.runs))
        choir = self._choir(query)
        return _others(len(choir)) if choir else "no"

    def explained(self, query: TableInfo) -> str:
        """For EXPLAIN SHARED: what a query asks in the form that it shares, with whom, and in which order."""
        self.together.refresh()
        with self.together.lock:
            return self._explained(query)

    def _explained(self, query: TableInfo) -> str:
        plan, first = self.known.plan_of(query), f"Continuous query {shown_name(query)}"
        if plan.shared is not None and may_share(query, plan):
            return "\n".join([first, *self._selection(query, plan, plan.shared)])
        if plan.shared is not None and len(plan.shared.leaves) > 1:
            return "\n".join([first, *self._join(query, plan, plan.shared)])
        return "\n".join([first, *self._windows(query, plan)])

    def _selection(self, query: TableInfo, plan: QueryPlan, shared: Shared) -> Iterator[str]:
        yield from self._asked(plan, shared)
        group = self.together.group(plan.streams[0])
        if group is None or query.id not in group.plans:
            yield "Alone for now: it is paused, has failed, or catches up"
            return
        yield f"Shared {_others(len(group.plans))}: one pass and one block for each basket"
        yield from _numbered(_filters(group.selections.ready(), group.policy, group.order))

    def _join(self, query: TableInfo, plan: QueryPlan, shared: Shared) -> Iterator[str]:
        names = self._leaves([plan.windows[leaf.window].stream for leaf in shared.leaves])
        yield from (
            f"Join: {names[e.left]}.{e.left_column} = {names[e.right]}.{e.right_column}" for e in shared.equalities
        )
        yield from self._asked(plan, shared)
        if plan.is_nested:
            yield f"Warning: {NESTED}"
        join, family = self._scheduled(query), self._family(query)
        if join is not None:
            yield from self._slices(query, join)
            return
        if family is None:
            yield "Alone: " + (plan.alone or "it has not been stepped together with others yet")
            return
        yield f"Shared {_others(len(family.runs))}: one SteM for each stream, one commit for each basket"
        yield from _numbered(self._probes(family))
        yield from _filtered(family, names)

    def _slices(self, query: TableInfo, join: Join) -> Iterator[str]:
        windows = sorted({size_of(r) for r in join.runs.values()})
        yield f"Shared {_others(len(join.runs))}: one join, cut into {counted(len(windows), 'slice')}"
        yield f"  Scheduled by {self.scheduled.policy_of(join.key)}: {_span(windows, join)}"
        if join.cast is not None:
            yield from _filtered(join.cast, self._leaves(join.streams))
        held = f"{counted(sum(join.buffered.values()), 'row')}, {join.buffer_bytes:,} bytes"
        yield f"  Buffers: {held}; beside them {join.extra_bytes:,} bytes"
        told = join.responses[query.id]
        if told.number:
            yield (
                f"  Response: {told.average:.3f} s on average, {told.percentile(0.95):.3f} s for 95% of"
                f" {counted(told.number, 'result')}, {told.longest:.3f} s at most"
            )

    def _windows(self, query: TableInfo, plan: QueryPlan) -> Iterator[str]:
        choir = self._choir(query)
        if not choir:
            yield f"Alone: {plan.alone or self._reason(query, plan)}"
            return
        stream = self._name(plan.streams[0])
        every = [chorus.by_pane(part) for run in choir for part in run.plan.parts]
        texts, wheres = Counter(likeness(p) for p in every), Counter((likeness(p), p.where) for p in every)
        shapes = len({(run.plan.windows[0], run.plan.sample) for run in choir})
        yield f"Panes on {stream}, cut for {counted(shapes, 'kind')} of window"
        by = "" if all(run.is_proven is not False for run in choir) else " in one Spark job"
        by += "" if all(run.can_merge for run in choir) else ", merged by Spark"
        yield f"Shared {_others(len(choir))}: one commit for each basket, {_passes(len(texts))} over its rows{by}"
        for part in map(chorus.by_pane, plan.parts):
            alike = likeness(part)
            predicates = len({where for other, where in wheres if other == alike})
            yield f"  {_others(texts[alike])}: {part.fragment if predicates == 1 else alike.fragment}"
            if predicates > 1:
                own = f"rows with {part.where}" if part.where else "every row"
                yield f"    of {own}, {_others(wheres[alike, part.where])}; {predicates:,} predicates in all"
        asked = self.choirs.filters.get((plan.streams[0], self.choirs.needs_spark(choir[0])))
        if asked is not None:
            yield from _numbered(_filters(asked.matcher, asked.policy, asked.order))

    def _reason(self, query: TableInfo, plan: QueryPlan) -> str:
        run = self.runs.get(query.id)
        if plan.is_selection:
            return "it feeds a table"
        found = None if run is None else chorus.why_alone(run, self.answers.most_here)
        return found or "it has not been stepped together with others yet"

    def _asked(self, plan: QueryPlan, shared: Shared) -> Iterator[str]:
        names = self._leaves([plan.windows[leaf.window].stream for leaf in shared.leaves])
        for name, leaf in zip(names, shared.leaves, strict=True):
            yield from (f"Selection on {name}: {term}" for term in _terms(leaf.selection))
        if shared.test is not None:
            yield f"Then tested, one text for all who ask it: {shared.test}"
        yield from (f"Expression: {text}" for text in shared.texts)

    # All of them

    def eddy(self) -> list[Shown]:
        """For SHOW EDDY: stream, operator, policy, place in the order, terms, tickets, selectivity."""
        self.together.refresh()
        with self.together.lock:
            return self._eddy()

    def _eddy(self) -> list[Shown]:
        found = []
        for stream_id in self.together.streams():
            group, name = self.together.group(stream_id), self._name(stream_id)
            if group is not None:
                found += self._shown(name, _filters(group.selections.ready(), group.policy, group.order))
        for (stream_id, _), asked in self.choirs.filters.items():
            found += self._shown(self._name(stream_id), _filters(asked.matcher, asked.policy, asked.order))
        for family in self.joining.families.values():
            found += self._shown(", ".join(self._leaves(family.streams)), self._probes(family))
            found += self._shown_filters(family)
        for join in self.scheduled.joins.values():
            found += self._shown_filters(join.cast) if join.cast is not None else []
        return found

    def _shown_filters(self, family: Family) -> list[Shown]:
        names = enumerate(self._leaves(family.streams))
        return [shown for leaf, name in names for shown in self._shown(name, _filters_of(family, leaf))]

    def joins(self) -> list[Joined]:
        """For SHOW JOINS: each query of a join that is scheduled, with its response times in seconds."""
        with self.together.lock:
            return self._joins()

    def _joins(self) -> list[Joined]:
        found: list[Joined] = []
        for join in self.scheduled.joins.values():
            rows = sum(join.buffered.values())
            sizes = (rows, join.buffer_bytes, join.extra_bytes, join.most_extra)
            for run in sorted(join.runs.values(), key=size_of):
                told = join.responses[run.query.id]
                times = (_short(told.average), _short(told.percentile(0.95)), _short(told.most))
                window = _length(run)
                policy = self.scheduled.policy_of(join.key)
                own = (self._joined(join), policy, shown_name(run.query), window, told.number)
                found.append((*own, *times, *sizes))
        return found

    def _joined(self, join: Join) -> str:
        """A join as people say it."""
        names = self._leaves(join.streams)
        equal = [f"{names[0]}.{e.left_column} = {names[1]}.{e.right_column}" for e in join.equalities]
        return " AND ".join(equal) or ", ".join(names)

    def _shown(self, stream: str, operators: Sequence[Operator]) -> list[Shown]:
        policy = self.together.policy
        return [
            (stream, o.name, policy, place, o.number, o.tickets, o.selectivity)
            for place, o in enumerate(operators, start=1)
        ]

    # Who is there

    def _family(self, query: TableInfo) -> Family | None:
        return next((f for f in self.joining.families.values() if query.id in f.queries), None)

    def _scheduled(self, query: TableInfo) -> Join | None:
        return next((j for j in self.scheduled.joins.values() if query.id in j.runs), None)

    def _choir(self, query: TableInfo) -> list[Run]:
        """Those over windows of the same stream that are stepped together when they are in the same place."""
        run = self.runs.get(query.id)
        if run is None or not self._sings(run):
            return []
        alike = (r for r in self.runs.values() if r.plan.streams == run.plan.streams)
        needs = self.choirs.needs_spark
        return [r for r in alike if self._sings(r) and needs(r) == needs(run)]

    def _sings(self, run: Run) -> bool:
        return chorus.key_of(run, self.answers.most_here) is not None

    def _probes(self, family: Family) -> list[Operator]:
        """The SteMs that a family probes, in the order of the last basket, then those that were not needed."""
        names = self._leaves(family.streams)
        known = dict.fromkeys([*family.order, *joining.probes(family)])
        made = []
        for name in known:
            leaf, column = joining.probed(name)
            tickets, share = _learnt(family.policy, name)
            made.append(Operator(f"SteM of {names[leaf]} on {column}", "query", len(family.runs), tickets, share))
        return made

    def _leaves(self, streams: Sequence[int]) -> list[str]:
        """Streams by name; those that are there again with a number."""
        seen, made = Counter[int](), []
        for stream in streams:
            seen[stream] += 1
            name = self._name(stream)
            made.append(name if seen[stream] == 1 else f"{name} ({seen[stream]})")
        return made

    def _name(self, stream_id: int) -> str:
        stream = self.lake.catalog.table(stream_id)
        return "?" if stream is None else stream.name


def _numbered(operators: Sequence[Operator]) -> Iterator[str]:
    yield from (f"  {place}. {operator}" for place, operator in enumerate(operators, start=1))


def _length(run: Run) -> str:
    """The window of a query, as it is shown."""
    if run.plan.windows[0].rows:
        return f"ROWS {run.plan.windows[0].rows}"
    return Duration(run.plan.windows[0].length, run.plan.is_integer_time).sql()


def _span(windows: Sequence[int], join: Join) -> str:
    by_size = {size_of(r): r for r in join.runs.values()}
    shown = [_length(by_size[w]) for w in windows]
    if len(shown) == 1:
        return f"all windows are {shown[0]}"
    return f"windows from {shown[0]} to {shown[-1]}"


def _others(all_of_them: int) -> str:
    return others(all_of_them - 1)


def others(number: int) -> str:
    if not number:
        return NOBODY
    return "with 1 other query" if number == 1 else f"with {number:,} other queries"


def _passes(number: int) -> str:
    return "1 pass" if number == 1 else f"{number:,} passes"


def _filters(matcher: Matcher, policy: Policy, last: Sequence[str]) -> list[Operator]:
    """Grouped filters, in the order of the last basket."""
    order = [o for o in last if o in matcher.filters]
    order += [o for o in matcher.operators if o not in order]
    return [
        Operator(f"grouped filter on {name}", "term", len(matcher.filters[name].terms), *_learnt(policy, name))
        for name in order
    ]


def _filters_of(family: Family, leaf: int) -> list[Operator]:
    """The grouped filters of a leaf of a join."""
    return _filters(family.selections[leaf].ready(), family.filters[leaf], family.orders[leaf])


def _filtered(family: Family, names: Sequence[str]) -> Iterator[str]:
    """The grouped filters of all leaves, which have names."""
    for leaf, name in enumerate(names):
        yield from (f"  {name}: {operator}" for operator in _filters_of(family, leaf))


def _learnt(policy: Policy, name: str) -> tuple[float, float | None]:
    if not isinstance(policy, Tickets):
        return 0.0, None
    return policy.tickets.get(name, 0.0), policy.selectivity.get(name)


def _short(seconds: float | None) -> float | None:
    """To the millisecond: more is noise."""
    return None if seconds is None else round(seconds, 3)


def _terms(selection: Selection) -> list[str]:
    return [str(replace(term, rest=())) for term in selection.terms] or ["no row"]
