"""Joins of two streams whose windows are large, shared by queries with windows of any length, and scheduled.

Queries with the same equalities between the same two streams are one join. What has come since the last look is a
*turn*: the active rows of each stream are a batch, joined with the other stream slice by slice, from the nearest
to the furthest; a slice lies between two neighbouring windows. Which unit of work is next the join's policy says
(`schedule.joins`), and between any two units new rows make a new turn. A query gets a turn when its own window is
done, and never before an earlier one; then it is stepped from its own place, and its results are told apart just
as if it were alone.

The driver holds the batches, packed if large, and results that somebody still waits for. What has been released is
committed, the queries of one turn together; whatever else is known here can be made anew from their places at any
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.plan.sharing import Equality, column_name
from millstream.plan.standing import Sampling, WindowKind
from millstream.queries import slices
from millstream.queries.chorus import AloneError
from millstream.queries.combining import Combining, Share, answered, began, shared_of
from millstream.queries.joining import Family
from millstream.queries.response import Arrivals, Responses
from millstream.queries.scheduled_join import Join, Key, size_of
from millstream.queries.slicing import Slicer, is_small
from millstream.queries.turns import Batch, Combinations, Front, Marked, Result, Turn, spot_of
from millstream.schedule.join_policies import GREEDY, POLICIES, Measured
from millstream.schedule.joins import Arrival, JoinSchedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from millstream.execute.session import Spark
    from millstream.queries.answering import Answers
    from millstream.queries.run import Look, Run
    from millstream.queries.running import Stepper
    from millstream.schedule.eddy import Policy
    from millstream.schedule.joins import Work
    from millstream.storage.lake import Lake
    from millstream.storage.transaction import Written

    Numbers = NDArray[np.int64]
    Times = NDArray[np.float64]

MANY_ROWS = 131_072
"""A join is scheduled when so many rows of one stream are in its windows; SteMs serve smaller ones."""
MOST_ROWS = 2_097_152
"""A turn takes in so many rows of a stream at most: nobody gets anything of it sooner than its nearest slice, but
each turn more is a scan of all windows more."""
MOST_TURNS = 64
"""While so many are open, what comes waits in the streams."""
MOST_OPEN = 8_388_608
"""And while they have so many rows, which are held in memory."""


def key_of(run: Run, most_here: int) -> Key | None:
    """The streams that a query joins, what is to be equal, whether windows are counted in rows; None if it cannot
    be scheduled."""
    plan, shared = run.plan, run.plan.shared
    if shared is None or len(shared.leaves) != 2 or not plan.is_monotone or not most_here or run.is_stale:
        return None
    if plan.sample.kind is not Sampling.REALTIME or len({(w.length, w.rows) for w in plan.windows}) > 1:
        return None
    if any(w.kind is not WindowKind.INTERVAL or w.is_kept for w in plan.windows) and not run.place.is_counted:
        return None
    if run.query.standing is None or run.query.standing.target is not None:
        return None
    first, second = (plan.windows[leaf.window].stream for leaf in shared.leaves)
    equalities = tuple(sorted({_from_first(e) for e in shared.equalities}, key=str))
    return (first, second), equalities, run.place.is_counted


def _from_first(equality: Equality) -> Equality:
    if equality.left == 0:
        return equality
    return Equality(0, equality.right_column, 1, equality.left_column)


class Scheduled:
    """See the module's contract. Whoever steps holds the lock of the queries."""

    def __init__(
        self,
        lake: Lake,
        answers: Answers,
        stepper: Stepper,
        spark: Spark,
        make_policy: Callable[[], Policy],
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._lake = lake
        self._answers = answers
        self._stepper = stepper
        self._make_policy = make_policy
        self._timer = timer
        self._combining = Combining(answers, stepper)
        self._slicer = Slicer(lake, spark, stepper.feeder)
        self._policy = GREEDY
        self._own_policies: dict[Key, str] = {}
        self._arrivals: dict[int, Arrivals] = {}
        self.joins: dict[Key, Join] = {}

    @property
    def policy(self) -> str:
        return self._policy

    @policy.setter
    def policy(self, name: str) -> None:
        """How all joins are scheduled from now on that have no policy of their own."""
        self._policy = name
        self._apply_policies()

    def policy_of(self, key: Key) -> str:
        return self._own_policies.get(key, self._policy)

    def choose(self, key: Key, policy: str | None) -> None:
        """Give one join a policy of its own, or take it back."""
        self._own_policies.pop(key, None)
        if policy is not None:
            self._own_policies[key] = policy
        self._apply_policies()

    def _apply_policies(self) -> None:
        for key, join in self.joins.items():
            join.schedule.policy = POLICIES[self.policy_of(key)]

    def came(self, written: Sequence[Written]) -> None:
        """Note when rows were committed, for response times."""
        for one in written:
            known = self._arrivals.get(one.table.id)
            if known is not None and one.rows:
                known.note(self._lake.catalog.table_stats(one.table).next_row_id, self._now())

    def _now(self) -> float:
        return self._lake.clock.now().timestamp()

    # Who is in a join

    def takes(self, key: Key, runs: Sequence[Run]) -> bool:
        """Whether queries with a key are for this module now; what is small has a better place elsewhere."""
        if not key[1]:
            return True
        join = self.joins.get(key)
        if join is not None and join.turns:
            return True
        rows = max(self._rows(run, stream) for run in runs for stream in key[0])
        return rows > (MANY_ROWS if join is None else MANY_ROWS // 2)

    def _rows(self, run: Run, stream: int) -> int:
        table = self._lake.catalog.table(stream)
        end = 0 if table is None else self._lake.catalog.table_stats(table).next_row_id
        return end - run.place.streams[stream].low

    def keep_only(self, keys: Iterable[Key]) -> None:
        for key in self.joins.keys() - set(keys):
            del self.joins[key]

    def forget(self, key: Key) -> None:
        self.joins.pop(key, None)

    def step(self, key: Key, runs: Sequence[Run]) -> tuple[int | None, list[Run]]:
        """Take in what has come, do one piece of work, release what is complete.

        Returns the number of deliveries, None if nothing was to do; and the queries that have to be stepped alone.
        """
        here = {run.query.id: run for run in runs}
        join = self.joins.get(key)
        if join is not None:
            self._see_who_is_there(join, here)
        if join is None or not join.runs:
            join = self.joins[key] = self._made(key, runs)
        outside = self._admit(join, here)
        has_begun = self._begin_turn(join, outside) if join.runs else False
        works = self._take(join)
        failed = self._work(join, works) if works else set()
        for query in failed:
            join.leave(query)
        join.most_extra = max(join.most_extra, join.extra_bytes)
        made, more = self._release(join)
        alone = [here[q] for q in failed | more]
        if not has_begun and not works and made is None:
            return made, alone + outside
        # Who is behind comes up meanwhile.
        return made or 0, alone + [r for r in outside if not _is_ahead(r, join.front)]

    def _made(self, key: Key, runs: Sequence[Run]) -> Join:
        """A join that begins where those are that have seen the least."""
        first = min(runs, key=lambda r: sum(s.position for s in r.place.streams.values()))
        spot = self._spot(first)
        members = [r for r in runs if self._spot(r) == spot and _is_in_line(r)]
        look = self._stepper.look(first.place)
        if look is None or not members:
            raise AloneError
        with self._lake.catalog.pinned(look.snapshot.id):
            front = Front.of(members, look, self._stepper.feeder)
        cost = Measured()
        join = Join(*key, JoinSchedule(POLICIES[self.policy_of(key)], cost), cost, front)
        for stream in key[0]:
            self._arrivals.setdefault(stream, Arrivals())
        for run in members:
            self._enter(join, run)
        return join

    @staticmethod
    def _enter(join: Join, run: Run) -> None:
        join.runs[run.query.id] = run
        # From now on the stream's own rows serve it.
        run.held.clear()
        for seen in run.place.streams.values():
            seen.born_time = None
        join.schedule.add(str(run.query.id), size_of(run))
        join.responses.setdefault(run.query.id, Responses())
        join.recast()

    def _by_clock(self, streams: Iterable[int]) -> list[int]:
        """The streams whose time is the time of arrival."""
        found = {s: self._lake.catalog.table(s) for s in streams}
        return [s for s, t in found.items() if t is not None and t.time is not None and t.time.is_arrival]

    def _spot(self, run: Run) -> tuple[tuple[int | None, ...], ...]:
        return spot_of(run.place, self._by_clock(run.place.streams))

    def _see_who_is_there(self, join: Join, here: Mapping[int, Run]) -> None:
        """Let go of queries that have gone, and of those that somebody else has stepped."""
        front = spot_of(join.front.place, self._by_clock(join.streams))
        for query in list(join.runs):
            run = here.get(query)
            expected = next((t.spot for t in join.turns if query in t.waiting), front)
            if run is None or self._spot(run) != expected:
                join.leave(query)
            else:
                join.runs[query] = run

    def _admit(self, join: Join, here: Mapping[int, Run]) -> list[Run]:
        """Let those in who are at the front; returns the others."""
        front = spot_of(join.front.place, self._by_clock(join.streams))
        others = [r for q, r in here.items() if q not in join.runs]
        new = [r for r in others if self._spot(r) == front and _is_in_line(r)]
        for run in new:
            self._enter(join, run)
            join.front.admit(run)
        if any(run.place.answered is not None or run.place.late for run in new):
            # It may need rows that nobody here has asked for.
            look = self._stepper.look(join.front.place)
            assert look is not None
            with self._lake.catalog.pinned(look.snapshot.id):
                join.front.refill(list(join.runs.values()), look, self._stepper.feeder)
        return [r for r in others if r not in new]

    # Turns

    def _begin_turn(self, join: Join, outside: Sequence[Run]) -> bool:
        """Take in what has come since the front, up to where the next of the others is; False for nothing."""
        place = join.front.place
        is_full = len(join.turns) >= MOST_TURNS or sum(t.rows for t in join.turns) >= MOST_OPEN
        look = None if is_full else self._stepper.look(place, most=MOST_ROWS)
        if look is None:
            return False
        self._check_whole(join)
        ahead = [r.place.streams for r in outside if _is_ahead(r, join.front)]
        upto = {s: min(n, *(a[s].position for a in ahead), n) for s, n in look.upto.items()}
        look = replace(look, upto=upto)
        with self._lake.catalog.pinned(look.snapshot.id):
            found = {s: self._stepper.feeder.arrived(place, look, s) for s in place.streams}
            by_clock = self._by_clock(join.streams)
            if not join.front.moves(found, by_clock):
                return False
            if join.is_counted and any(join.front.late(came) for came in found.values()):
                # They change who is among the newest at instants that nobody here knows.
                raise AloneError
            spot = spot_of(place, by_clock)
            lows = {s: min(r.place.streams[s].low for r in join.runs.values()) for s in place.streams}
            taken = join.front.take(found, lows)
            turn = Turn.of(spot, look, found, taken, self._cast(join, look), set(join.runs))
            self._note_arrivals(found)
            self._batches(join, turn, {s: t.active for s, t in taken.items()})
        join.turns.append(turn)
        return True

    def _check_whole(self, join: Join) -> None:
        """Raise if rows have been taken away that somebody may have counted on."""
        if any(map(self._stepper.removed, join.runs.values())):
            raise AloneError

    def _cast(self, join: Join, look: Look) -> Family:
        """The queries that are there, with their grouped filters."""
        if join.cast is None:
            join.cast = Family(join.streams, join.equalities, list(join.runs.values()), self._make_policy())
            schemas = [look.tables[s].schema.arrow for s in join.streams]
            lowered = [pa.schema([f.with_name(f.name.lower()) for f in schema]) for schema in schemas]
            join.cast.select(lowered, self._make_policy, join.filters)
        return join.cast

    def _note_arrivals(self, found: Mapping[int, object]) -> None:
        for stream in found:
            table = self._lake.catalog.table(stream)
            if table is not None:
                self._arrivals[stream].note(self._lake.catalog.table_stats(table).next_row_id, self._now())

    def _batches(self, join: Join, turn: Turn, active: Mapping[int, Marked]) -> None:
        """Read the active rows of each leaf, and let the schedule know of them."""
        leaves = [(leaf, active[stream]) for leaf, stream in enumerate(join.streams) if len(active[stream].ids)]
        with ThreadPoolExecutor(len(join.streams)) as pool:
            made = [b for b in pool.map(lambda own: self._batch(join, turn, *own), leaves) if b is not None]
        numbered = join.schedule.arrive(*(Arrival(str(b.leaf), len(b)) for b in made))
        turn.batches = {n.number: b for n, b in zip(numbered, made, strict=True)}
        join.of_batch.update(dict.fromkeys(turn.batches, turn))

    def _batch(self, join: Join, turn: Turn, leaf: int, active: Marked) -> Batch | None:
        """The active rows of a leaf that somebody may want."""
        stream = join.streams[leaf]
        table, reach = turn.look.tables[stream], turn.taken[stream].reach
        rows = self._slicer.rows(table, turn.look, active, reach, columns_of(turn.cast, turn.look, leaf))
        join.widths[stream] = rows.rows.nbytes / max(1, len(rows))
        rows = rows.of(asked_of(turn.cast, turn.look, leaf))
        bits = turn.cast.bits(leaf, rows.rows, rows.ids)
        wanted = np.flatnonzero(bits.any(axis=1))
        if not len(wanted):
            return None
        if len(wanted) < len(rows):
            rows, bits = rows.only(wanted), bits[wanted]
        return Batch(leaf, self._slicer.parcel(rows), bits)

    # Units

    @staticmethod
    def _take(join: Join) -> tuple[Work, ...]:
        """The next units, with all that wait for the same slices: what one scan can do is not done twice.

        What takes less time than a job shares the one before.
        """
        return join.schedule.take(join.cost.job, alike=True)

    def _work(self, join: Join, works: Sequence[Work]) -> set[int]:
        """Do some units, in one job at most; returns the queries whose tests fail."""
        started, failed = self._timer(), set[str]()

        def by_spark(unit: slices.Unit, found: slices.Pairs) -> NDArray[np.bool_]:
            passed = np.zeros(len(found), bool)
            for test, values in zip(
                unit.tests, self._combining.tested(unit.tests, *slices.sides(unit, found)), strict=True
            ):
                if isinstance(values, MillstreamError):
                    failed.add(test)
                else:
                    passed |= values
            return passed

        look = self._stepper.look(join.front.place)
        if look is None:
            raise AloneError
        with self._lake.catalog.pinned(look.snapshot.id):
            every = self._slicer.portions([self._unit(join, work, look) for work in works], look)
            works, portions = self._small_first(join, works, every)
            found, jobs = self._slicer.run(portions, by_spark)
        for work, pairs in zip(works, found, strict=True):
            self._hold(join, work, pairs)
            join.schedule.finish(work)
        if jobs:
            join.cost.observe({w.part for w in works}, self._timer() - started)
        join.jobs += jobs
        join.units += len(works)
        return {q for q, r in join.runs.items() if shared_of(r).test in failed}

    @staticmethod
    def _small_first(
        join: Join, works: Sequence[Work], portions: Sequence[slices.Portion]
    ) -> tuple[Sequence[Work], Sequence[slices.Portion]]:
        """Units for the driver do not wait for a job: what comes behind them is taken again."""
        end = next((n for n, p in enumerate(portions) if not is_small(p)), 0) or len(works)
        for work in works[: end - 1 : -1]:
            join.schedule.give_back(work)
        return works[:end], portions[:end]

    def _unit(self, join: Join, work: Work, look: Look) -> slices.Unit:
        turn = join.of_batch[work.batch.number]
        batch = turn.batches[work.batch.number]
        other = 1 - batch.leaf
        stream = join.streams[other]
        # It may have got columns since the turn began, and its rows new places with them.
        table = look.tables[stream]
        tests = [shared_of(r).test for r in turn.cast.runs]
        wanted = () if join.equalities or None in tests else tuple(sorted({t for t in tests if t is not None}))
        return slices.Unit(
            batch.parcel, batch.leaf, join.equalities, turn.taken[stream].reach,
            work.part.low, work.part.high, table, columns_of(turn.cast, turn.look, other), wanted,
            turn.ruler(join.streams[batch.leaf], stream),
        )  # fmt: skip

    @staticmethod
    def _hold(join: Join, work: Work, pairs: slices.Pairs) -> None:
        """Keep those of a unit's results that somebody may want until they are released."""
        turn = join.of_batch[work.batch.number]
        batch = turn.batches[work.batch.number]
        if len(pairs) > slices.MOST_FOUND:
            raise AloneError
        if not len(pairs):
            return
        theirs = turn.cast.bits(1 - batch.leaf, pairs.rows.rows, pairs.rows.ids)
        alive = batch.bits[pairs.mine] & theirs[pairs.theirs]
        kept = np.asarray(alive.any(axis=1))
        if kept.any():
            own = pairs.only(kept)
            rows = own.rows.of(asked_of(turn.cast, turn.look, 1 - batch.leaf))
            turn.results.append(Result(batch, replace(own, rows=rows), alive[kept]))

    # Results

    def _release(self, join: Join) -> tuple[int | None, set[int]]:
        """Deliver what is complete, the queries of a turn in one commit.

        Returns the number of deliveries, None if no query has moved on; and those that could not be answered.
        """
        for released in join.schedule.release():
            join.of_batch[released.batches[0].number].ready.add(int(released.query))
        made, failed = None, set[int]()
        behind = set[int]()
        for turn in list(join.turns):
            due = [q for q in sorted(turn.waiting) if q not in behind and turn.is_ready(q)]
            if due:
                delivered, own = self._release_turn(join, turn, due)
                failed |= own
                made = delivered + (made or 0)
            behind |= turn.waiting
        for query in failed:
            join.leave(query)
        join.tidy()
        return made, failed

    def _release_turn(self, join: Join, turn: Turn, queries: Sequence[int]) -> tuple[int, set[int]]:
        look = self._stepper.look(join.front.place)
        assert look is not None
        self._check_whole(join)
        with self._lake.catalog.pinned(look.snapshot.id), self._answers.at(look.reader):
            found = turn.combinations() if turn.results else None
            released = self._stepped_by_all(join, turn, queries, found)
            if released:
                self._stepper.store.commit_all([(share.run, share.step) for share, _ in released], look)
        now, got = self._now(), {share.run.query.id for share, _ in released}
        for share, came in released:
            join.responses[share.run.query.id].add(np.asarray(now - came, np.float64))
        turn.waiting -= got
        return sum(len(share.step.deliveries) for share, _ in released), set(queries) - got

    def _stepped_by_all(
        self, join: Join, turn: Turn, queries: Sequence[int], found: Combinations | None
    ) -> list[tuple[Share, Times]]:
        """The steps of queries, together; if that fails, of those that can be stepped."""
        try:
            return self._stepped(join, turn, queries, found)
        except AloneError:
            if len(queries) == 1:
                return []
            return [one for query in queries for one in self._stepped_by_all(join, turn, [query], found)]

    def _stepped(
        self, join: Join, turn: Turn, queries: Sequence[int], found: Combinations | None
    ) -> list[tuple[Share, Times]]:
        """The steps that a turn leads queries to, and when the later row of each of their results came."""
        shares = [self._share(turn, join.runs[query], found) for query in queries]
        fed = [share for share in shares if len(share.mine)]
        came = {share.run.query.id: np.empty(0, np.float64) for share in shares}
        if found is not None and fed:
            kept = self._combining.deliver_all(fed, found.sides, found.places, turn.before)
            for share, mine in zip(fed, kept, strict=True):
                times = [
                    self._arrivals[join.streams[leaf]].of(found.sides[leaf].ids[places[mine]])
                    for leaf, places in sorted(found.places.items())
                ]
                came[share.run.query.id] = np.maximum(*times)
        for share in shares:
            answered(share.step, share.due)
        return [(share, came[share.run.query.id]) for share in shares]

    def _share(self, turn: Turn, run: Run, found: Combinations | None) -> Share:
        """A step of a query with what it is due, and which of the results may be for it."""
        step, rows = began(self._stepper, run, turn.found), run.plan.windows[0].rows
        due = self._stepper.due(run, step.place, step.came)
        if run.place.is_counted:
            # Rows from before a query are in the line, and not in its windows.
            born = {stream: seen.born for stream, seen in run.place.streams.items()}
            step.lows = {stream: max(low, born[stream]) for stream, low in turn.lows(rows).items()}
        if not due or found is None:
            return Share(run, step, due, np.empty(0, np.int64))
        return Share(run, step, due, found.of(turn.cast.queries.index(run.query.id), rows))


def columns_of(cast: Family, look: Look, leaf: int) -> tuple[str, ...]:
    """The columns of a leaf that are read, in lower case: those that somebody asks for, and its time."""
    table, asked = look.tables[cast.streams[leaf]], asked_of(cast, look, leaf)
    assert table.time is not None
    return tuple(c for c in map(str.lower, table.schema.names) if c in {*asked, table.time.column.lower()})


def asked_of(cast: Family, look: Look, leaf: int) -> tuple[str, ...]:
    """The columns of a leaf that somebody asks for, in lower case; of the time there is an array anyhow."""
    table = look.tables[cast.streams[leaf]]
    assert table.time is not None
    names = {*cast.selections[leaf].ready().filters}
    names |= {e.left_column if leaf == 0 else e.right_column for e in cast.equalities}
    words = set[str]()
    for run in cast.runs:
        shared = shared_of(run)
        names |= {o.column for o in shared.outputs if not o.text and o.leaf == leaf}
        words |= {*shared.texts, shared.test or ""}
    said = " ".join(words)
    every = [c.lower() for c in table.schema.names]
    asked = tuple(c for c in every if c in names or f"`{column_name(leaf, c, 2)}`" in said)
    # A table without columns has no rows.
    return asked or (table.time.column.lower(),)


def _is_in_line(run: Run) -> bool:
    """Whether rows from before a query have no say in which of its own are the newest."""
    for number, window in enumerate(run.plan.windows):
        seen = run.place.streams[window.stream]
        if seen.born_time is not None and (
            number not in run.held
            or seen.mark is None
            or seen.born_time >= min(seen.mark, run.held[number].oldest)
        ):
            return False
    return True


def _is_ahead(run: Run, front: Front) -> bool:
    return all(s.position >= front.place.streams[i].position for i, s in run.place.streams.items())
