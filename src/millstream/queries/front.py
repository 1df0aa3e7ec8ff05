"""The engine's door to continuous queries: stepped, paused, resumed.

`defining` makes them, `handing` gives their deliveries, `listing` tells people of them, `known` finds them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from millstream.catalog import queries
from millstream.catalog.records import TableInfo
from millstream.deliver.subscription import Board
from millstream.errors import Condition, MillstreamError, StatementError
from millstream.execute.faults import own_fault
from millstream.queries import chorus, joining, scheduled, tuning
from millstream.queries.answering import Answers
from millstream.queries.company import Company
from millstream.queries.defining import Defining
from millstream.queries.handing import Handing
from millstream.queries.known import Known, may_share
from millstream.queries.listing import Listing
from millstream.queries.making import Maker
from millstream.queries.place import Place
from millstream.queries.run import Look, Run
from millstream.queries.running import Stepper, positions
from millstream.queries.sharing import told
from millstream.queries.together import Together
from millstream.schema import ObjectKind
from millstream.sql import statements as st
from millstream.storage.transaction import Written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from millstream.execute.relation import Relations
    from millstream.execute.session import Spark
    from millstream.plan.standing import QueryPlan
    from millstream.queries.scheduled_join import Key as JoinKey
    from millstream.storage.lake import Lake

MOST_BEHIND = 8_388_608
"""Inserts wait while a query that runs is so many rows behind."""
MOST_WAIT = 1.0
AUTO, ON, OFF = INCREMENTAL = ("auto", "on", "off")
PLANS = {AUTO: None, ON: tuning.INCREMENTAL, OFF: tuning.AGAIN}


class ContinuousQueries:
    """Safe for many threads; one steps at a time."""

    def __init__(self, lake: Lake, spark: Spark, relations: Relations) -> None:
        self._lake = lake
        self.answers = Answers(lake, spark, relations)
        self._stepper = Stepper(lake, self.answers, spark)
        self._runs: dict[int, Run] = {}
        self._in_joins: set[int] = set()
        """The queries whose joins are scheduled."""
        self._room: dict[int, tuple[int, int]] = {}
        """By stream: up to which row nobody can be far behind, as long as nobody else begins to read it."""
        self._resumed = 0
        """How many queries have begun to run again."""
        self._settled: set[int] = set()
        """Those who have been stepped together, or had nothing to do, the last time."""
        self._lock = threading.RLock()
        self._is_closed = False
        self.board = Board()
        self.known = Known(lake.catalog)
        self.together = Together(lake, self.known, self.answers, spark, self._stepper, self._lock)
        maker = Maker(lake, spark, relations, self.answers)
        self.defining = Defining(lake, self.known, self.together, maker, self._stepper)
        self.chorus = chorus.Chorus(lake, self.answers, self._stepper, spark, self.together.new_policy)
        self.joining = joining.Joining(lake, self.answers, self._stepper, self.together.new_policy)
        self.scheduled = scheduled.Scheduled(lake, self.answers, self._stepper, spark, self.together.new_policy)
        self.handing = Handing(lake, self.known, self.together, self.board, lambda: self._is_closed)
        self.company = Company(
            lake, self.known, self.together, self.joining, self.scheduled, self.chorus, self.answers, self._runs
        )
        self.listing = Listing(lake, self.known, self.together, self._runs, self.company, self._stepper)
        self.has_scheduler = False
        """Whether somebody else steps queries; who inserts may then have to wait for them."""
        lake.on_removal(self.settle)
        lake.on_commit(self.scheduled.came)

    # Coming and going

    def readers_of(self, table: TableInfo) -> list[TableInfo]:
        """The queries that cannot do without a table or stream, each as its users know it."""
        found = []
        for query in self.known.readers(table):
            target = self.listing.target(query)
            found.append(query if target is None or self.known.plan_of(query).into else target)
        return found

    def dropped(self, gone: Sequence[TableInfo]) -> None:
        with self._lock:
            for table in gone:
                self._runs.pop(table.id, None)
                self.together.forget(table.id)
                if table.kind is ObjectKind.CONTINUOUS_QUERY:
                    self.together.dropped(table.id, self.known.plan_of(table))
        self.board.tell()

    # Steps

    @property
    def incremental(self) -> str:
        return next(name for name, plan in PLANS.items() if plan == self._stepper.plan)

    @incremental.setter
    def incremental(self, said: str) -> None:
        self._stepper.plan = PLANS[said]

    @property
    def chunks(self) -> int | None:
        return self._stepper.chunks

    @chunks.setter
    def chunks(self, number: int | None) -> None:
        self._stepper.chunks = number

    @property
    def eddy(self) -> str:
        return self.together.policy

    @eddy.setter
    def eddy(self, name: str) -> None:
        """How the order of shared operators is chosen from now on."""
        with self._lock:
            self.together.policy = name
            for family in self.joining.families.values():
                family.decide_by(self.together.new_policy)
            for join in self.scheduled.joins.values():
                join.decide_by(self.together.new_policy)
            self.chorus.decide_by(self.together.new_policy)

    @property
    def join_policy(self) -> str:
        return self.scheduled.policy

    @join_policy.setter
    def join_policy(self, name: str) -> None:
        """How joins are scheduled from now on that have no policy of their own."""
        with self._lock:
            self.scheduled.policy = name

    def schedule_join(self, name: st.Name, policy: str | None) -> None:
        """How the join that a query is in is scheduled from now on; None: as all others are."""
        query = self.known.find(name)
        with self._lock:
            # One that is in a group has no run, and its place is the group's.
            run = self._runs.get(query.id) or self._stepper.load(query)
            key = scheduled.key_of(run, self.answers.most_here)
            if key is None:
                raise StatementError(
                    Condition.INVALID_ARGUMENT,
                    f"{query.name!r} is not a join that is scheduled",
                    hint="Only joins of two streams with windows of one size are; SHOW JOINS lists them.",
                    span=name.span,
                )
            self.scheduled.choose(key, policy)

    def reads(self, table: TableInfo) -> bool:
        """Whether a query reads a stream or streaming table."""
        return self.known.is_read(table.id)

    def waits_for_clock(self) -> bool:
        """Whether a query answers by the clock alone: its stream's time is the time of arrival."""
        found = (self._lake.catalog.table(s) for s in self.known.streams())
        return any(t is not None and t.time is not None and t.time.is_arrival for t in found)

    def settle(self, table_id: int) -> None:
        """Before rows are taken from a streaming table: what is due has been answered with them."""
        if self._lake.read_only:
            return
        # Rows of streams that joins are scheduled on stay until they are not needed any more.
        for query in self._alone(table_id):
            if query.id not in self._in_joins:
                self.step(query)
        self._step_group(table_id)

    def _alone(self, stream_id: int | None = None) -> list[TableInfo]:
        """The queries that are stepped by themselves; of those on one stream, if it is said."""
        apart = (self.known.get(query_id) for query_id in sorted(self.together.apart))
        found = [*self.known.loners(), *(q for q in apart if q is not None)]
        return [q for q in found if stream_id is None or stream_id in self.known.plan_of(q).streams]

    def advance_all(self) -> int:
        """Answer everything that is due, chains of streaming views included; returns the number of deliveries.

        What feeds a stream waits for those who are far behind in it; they go on meanwhile.
        """
        delivered = 0
        while (made := self._step_all()) is not None:
            delivered += made
        return delivered

    def _step_all(self) -> int | None:
        """Step everything once; the number of deliveries, None if nothing was to do."""
        made = self._step_choirs()
        alone = [q for q in self._alone() if q.id not in self._in_joins | self._settled]
        running = self._running() if alone else set()
        made += [self.step(q) for q in alone if q.id in running and not self._has_to_wait(q)]
        made += [self._step_group(stream_id) for stream_id in self.together.streams()]
        return None if all(m is None for m in made) else sum(m or 0 for m in made)

    def step(self, query: TableInfo) -> int | None:
        """Bring one query up to date; a query that fails is marked, and the others go on."""
        with self._lock:
            # It may have come to be in a group since it was found to be alone.
            if self._status(query.id) != queries.RUNNING or not self.together.is_apart(query):
                return None
            try:
                run = self._run(query)
                made = self._stepper.step(run)
                self._join_group(run)
            except BaseException as error:
                # What is stored counts.
                self._runs.pop(query.id, None)
                if isinstance(error, Exception) and not self._is_closed and self._has_gone(query):
                    return None
                own = None if self._is_closed else own_fault(error)
                if own is None:
                    # It may have delivered something all the same.
                    self.board.tell()
                    raise
                self._fail(query, own)
                return None
        if made is not None:
            self.board.tell()
        return made

    def _running(self) -> set[int]:
        with self._lake.catalog.read() as connection:
            return queries.every_with_status(connection, queries.RUNNING)

    def _step_choirs(self) -> list[int | None]:
        """Step those together that are in the same place; what cannot be done so is left to be done alone."""
        with self._lock:
            loners = self.known.loners()
            running = self._running() if loners else set()
            runs = [run for q in loners if q.id in running and (run := self._run_if_there(q)) is not None]
            for run in runs:
                run.is_stale = bool(self._stepper.removed(run))
            self._settled = set()
            made: list[int | None] = []
            try:
                for key, own in self._joins(runs):
                    made.append(self._step_join(key, own))
                self._note_company(runs)
                for choir, own in self._choirs(runs):
                    made.append(self._step_choir(choir, own))
            except BaseException:
                # What one of them has delivered before it was broken off is stored, too.
                self.board.tell()
                raise
        if any(m is not None for m in made):
            self.board.tell()
        return made

    def _choirs(self, runs: Sequence[Run]) -> Iterator[tuple[chorus.Chorus | joining.Joining, list[Run]]]:
        """Those who are to be stepped together; whom one choir has moved on the next may find in another place."""
        for choir, key_of in ((self.chorus, chorus.key_of), (self.joining, joining.key_of)):
            alike: dict[object, list[Run]] = {}
            for run in runs:
                key = None if run.query.id in self._in_joins else key_of(run, self.answers.most_here)
                if key is not None and (choir is self.joining or not self._stepper.wants_other_plan(run)):
                    # Those that need Spark have a job of their own: the others do without.
                    needs = choir is self.chorus and self.chorus.needs_spark(run)
                    alike.setdefault((key, needs), []).append(run)
            together = [own for own in alike.values() if len(own) > 1]
            if choir is self.joining:
                self.joining.keep_only({run.query.id for own in together for run in own})
            else:
                self.chorus.keep_only({stream for own in together for stream in own[0].plan.streams})
            yield from ((choir, own) for own in together)

    def _note_company(self, runs: Sequence[Run]) -> None:
        """Count for each query with whom it could be stepped together."""
        found: dict[object, list[Run]] = {}
        for run in runs:
            run.company = 0
            if run.query.id not in self._in_joins and chorus.may_join(run, self.answers.most_here):
                found.setdefault(run.plan.streams, []).append(run)
        for own in found.values():
            needs = [self.chorus.needs_spark(run) for run in own] if len(own) > 1 else [False]
            for run, need in zip(own, needs, strict=True):
                run.company = needs.count(need) - 1

    def _joins(self, runs: Sequence[Run]) -> list[tuple[JoinKey, list[Run]]]:
        """The joins that are scheduled, each with those who are in it."""
        alike: dict[JoinKey, list[Run]] = {}
        for run in runs:
            key = scheduled.key_of(run, self.answers.most_here)
            if key is not None:
                alike.setdefault(key, []).append(run)
        alike = {key: own for key, own in alike.items() if self.scheduled.takes(key, own)}
        self.scheduled.keep_only(alike)
        self._in_joins = {run.query.id for own in alike.values() for run in own}
        return list(alike.items())

    def _step_join(self, key: JoinKey, runs: list[Run]) -> int | None:
        try:
            made, alone = self.scheduled.step(key, runs)
        except BaseException as error:
            # What is stored counts.
            self.scheduled.forget(key)
            for run in runs:
                self._runs.pop(run.query.id, None)
            if not isinstance(error, chorus.AloneError) and own_fault(error) is None:
                raise
            made, alone = None, runs
        found = [made, *(self.step(run.query) for run in alone)]
        return None if all(m is None for m in found) else sum(m or 0 for m in found)

    def _step_choir(self, choir: chorus.Chorus | joining.Joining, runs: list[Run]) -> int | None:
        with self._stepper.looking(runs[0].place) as look:
            # Those that rows have been taken from since they were found to be alike go on by themselves.
            if look is None or any(map(self._stepper.removed, runs)):
                return None
            if not any(self._stepper.has_work(run, look) for run in runs):
                self._settled |= {run.query.id for run in runs}
                return None
            return self._step_alike(choir, runs, look)

    def _step_alike(self, choir: chorus.Chorus | joining.Joining, runs: list[Run], look: Look) -> int | None:
        before = positions(runs[0])
        try:
            with self.answers.at(look.reader):
                made = sum(choir.step(runs, look))
            self._settled |= {r.query.id for r in runs if dict(look.upto) == _upto(r)}
            # Where nothing has moved there is no use in trying again.
            return None if not made and positions(runs[0]) == before else made
        except chorus.UntouchedError:
            return self._step_halves(choir, runs)
        except BaseException as error:
            # What is stored counts.
            for run in runs:
                self._runs.pop(run.query.id, None)
            if isinstance(error, chorus.AloneError) or own_fault(error) is not None:
                return None
            raise

    def _step_halves(self, choir: chorus.Chorus | joining.Joining, runs: list[Run]) -> int | None:
        """Let as many as can be go on together; who is left by itself is stepped alone, where it may fail."""
        half = len(runs) // 2
        made = [self._step_choir(choir, own) for own in (runs[:half], runs[half:]) if len(own) > 1]
        return None if all(m is None for m in made) else sum(m or 0 for m in made)

    def _step_group(self, stream_id: int) -> int | None:
        made: int | None = 0
        try:
            with self._lock:
                made = self.together.step(stream_id)
        finally:
            if made is not None:
                self.board.tell()
        return made

    def _join_group(self, run: Run) -> None:
        """Let a query that could go with others, and is as far as they are, do so."""
        if not may_share(run.query, run.plan) or not self.together.has_caught_up(run.place):
            return
        place = run.place
        with self.together.stored_counts(run.plan.streams[0]):
            if self._lake.catalog.commit(lambda commit: self.together.enter(commit, run.query, place)):
                self.together.apart.discard(run.query.id)
                self._runs.pop(run.query.id, None)

    def make_room(self, table: TableInfo) -> None:
        """Hold an insert back as long as a running query is too far behind; does nothing without a scheduler."""
        while self.has_scheduler and not self._is_closed:
            version = self.board.version
            if not self._is_someone_far_behind(table):
                return
            self.board.wait(version, MOST_WAIT)

    def _has_to_wait(self, query: TableInfo) -> bool:
        """Whether what a query would store is more than those who read it can follow."""
        target = self.listing.target(query)
        return target is not None and self._is_someone_far_behind(target)

    def _is_someone_far_behind(self, stream: TableInfo) -> bool:
        if not self.known.is_read(stream.id):
            return False
        end, begun = self._lake.catalog.table_stats(stream).next_row_id, self.known.version + self._resumed
        known = self._room.get(stream.id)
        if known is not None and known[0] == begun and end <= known[1]:
            return False
        with self._lock:
            group = self.together.group(stream.id)
            places = [] if group is None else [group.place]
            places += self._running_places(self._alone(stream.id))
        room = min((p.streams[stream.id].position for p in places), default=end) + MOST_BEHIND
        self._room[stream.id] = begun, room
        return end > room

    def _running_places(self, asked: Sequence[TableInfo]) -> list[Place]:
        """Where those of some queries are that run."""
        with self._lake.catalog.read() as connection:
            stored = queries.every_standing(connection) if asked else {}
        running = [q.id for q in asked if q.id in stored and stored[q.id].status == queries.RUNNING]
        runs = {query_id: self._runs.get(query_id) for query_id in running}
        return [Place.from_json(stored[i].place) if run is None else run.place for i, run in runs.items()]

    def _run(self, query: TableInfo) -> Run:
        known = self._runs.get(query.id)
        if known is None:
            known = self._runs[query.id] = self._stepper.load(query)
        return known

    def _run_if_there(self, query: TableInfo) -> Run | None:
        """A query in force; None if it was dropped since it was found."""
        try:
            return self._run(query)
        except Exception:
            if not self._has_gone(query):
                raise
            return None

    def _has_gone(self, query: TableInfo) -> bool:
        """Whether a query was dropped, or what it feeds."""
        assert query.standing is not None
        target = query.standing.target
        is_fed = target is None or self._lake.catalog.table(target) is not None
        return self._status(query.id) is None or not is_fed

    def _status(self, query_id: int) -> str | None:
        with self._lake.catalog.read() as connection:
            found = queries.standing(connection, query_id)
        return None if found is None else found.status

    def _fail(self, query: TableInfo, error: MillstreamError) -> None:
        message = told(error)
        self._lake.catalog.commit(lambda c: queries.set_status(c, query.id, queries.FAILED, message))
        self._runs.pop(query.id, None)
        self.board.tell()

    def pause(self, query: TableInfo) -> None:
        """Answer what is due, then stop."""
        plan = self.known.plan_of(query)
        ends = self._ends(plan)
        with self._lock:
            if self.together.has(query):
                # Others may insert all the time.
                while self._is_behind(query, ends) and self.together.step(plan.streams[0]) is not None:
                    pass
            else:
                self.step(query)
            self.together.leave(query, plan, lambda c: queries.pause(c, query.id))
        self.board.tell()

    def resume(self, query: TableInfo) -> None:
        """Go on where the query was, paused or failed."""
        self._lake.catalog.commit(lambda c: queries.set_status(c, query.id, queries.RUNNING))
        self._resumed += 1
        plan = self.known.plan_of(query)
        ends = self._ends(plan)
        while self._step_all() is not None and self._is_behind(query, ends):
            pass
        # Whoever steps queries in the background goes on from here.
        streams_read = (self._lake.catalog.table(s) for s in plan.streams)
        self._lake.committed([Written(t, 0, 0, 0) for t in streams_read if t is not None])

    def _ends(self, plan: QueryPlan) -> dict[int, int]:
        """Where the rows of a query's streams end now."""
        tables = {s: self._lake.catalog.table(s) for s in plan.streams}
        return {s: self._lake.catalog.table_stats(t).next_row_id for s, t in tables.items() if t is not None}

    def _is_behind(self, query: TableInfo, ends: Mapping[int, int]) -> bool:
        """Whether a query has rows before it that end somewhere."""
        with self._lock:
            run, plan = self._runs.get(query.id), self.known.plan_of(query)
            group = self.together.group(plan.streams[0]) if run is None and may_share(query, plan) else None
            place = run.place if run is not None else None if group is None else group.place
            if place is None or self._status(query.id) != queries.RUNNING:
                return False
        return any(place.streams[s].position < end for s, end in ends.items())

    def close(self) -> None:
        self._is_closed = True
        self.handing.close()


def _upto(run: Run) -> dict[int, int]:
    return {stream: seen.position for stream, seen in run.place.streams.items()}
