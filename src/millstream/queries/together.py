"""The groups of a database: stepped, joined, left, and asked what they have delivered.

Whoever steps, joins or leaves holds the lock of the queries, and so does who makes a group be in force: two copies
of one would deliver the same rows. Those who read deliveries need none.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from millstream.catalog import groups, queries, streams, views
from millstream.execute.faults import own_fault
from millstream.queries.blocks import Blocks
from millstream.queries.groups import join, key_of, load, welcome
from millstream.queries.known import may_share
from millstream.queries.sharing import Sharer, StaleError, check_in_force, take_out
from millstream.schedule.eddy import POLICIES, TICKETS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import TableInfo
    from millstream.execute.session import Spark
    from millstream.plan.standing import QueryPlan
    from millstream.queries.answering import Answers
    from millstream.queries.groups import Group
    from millstream.queries.known import Known
    from millstream.queries.place import Place
    from millstream.queries.run import Look
    from millstream.queries.running import Stepper
    from millstream.schedule.eddy import Policy
    from millstream.storage.lake import Lake

MOST_ROWS = 524_288
"""A step of a group takes in so many rows at most: each may be for many queries."""


class Together:
    """See the module's contract."""

    def __init__(
        self, lake: Lake, known: Known, answers: Answers, spark: Spark, stepper: Stepper, lock: threading.RLock
    ) -> None:
        self.lock = lock
        self._lake = lake
        self._known = known
        self._answers = answers
        self._stepper = stepper
        self._sharer = Sharer(lake, known, answers, spark, stepper.feeder)
        self._groups: dict[int, Group] = {}
        self._blocks: dict[int, Blocks] = {}
        self._policy = TICKETS
        self._apart: set[int] | None = None

    # Steps

    @property
    def policy(self) -> str:
        return self._policy

    @policy.setter
    def policy(self, name: str) -> None:
        """How the order of operators is chosen from now on."""
        with self.lock:
            self._policy = name
            for group in self._groups.values():
                group.policy = self.new_policy()

    def new_policy(self) -> Policy:
        """A policy of the kind that is wanted, which has learnt nothing yet."""
        return POLICIES[self._policy]()

    def streams(self) -> list[int]:
        """The streams that groups are on, those that everybody has left included."""
        with self._lake.catalog.read() as connection:
            return [int(key) for key in groups.every(connection)]

    def step(self, stream_id: int) -> int | None:
        """Bring a group up to date; the number of deliveries, None if nothing was to do."""
        group = self.group(stream_id)
        if group is None:
            return None
        with self._stepper.looking(group.place, most=MOST_ROWS) as look:
            if look is None or look.upto[stream_id] <= group.seen.position:
                return None
            # Behind the look: whoever joins later has none of these rows.
            welcome(self._lake.catalog, group, self._known.plan)
            return self._step(group, look) if group.plans else None

    def _step(self, group: Group, look: Look) -> int:
        try:
            with self._answers.at(look.reader):
                made, failed = self._sharer.step(group, look)
                self.apart.update(failed)
        except BaseException as error:
            # What is stored counts.
            self._groups.pop(group.stream, None)
            if isinstance(error, StaleError):
                return 0
            if own_fault(error) is None:
                raise
            return self._part(group)
        if not group.plans:
            self._groups.pop(group.stream, None)
        return made

    def _part(self, group: Group) -> int:
        """Let all go on by themselves from where the group is: what it cannot do, some of them may."""
        everyone = list(group.plans)

        def work(commit: Commit) -> None:
            check_in_force(commit, group)
            for query in everyone:
                take_out(commit, group, query, group.seen.position)

        with suppress(StaleError):
            self._lake.catalog.commit(work)
            self.apart.update(everyone)
        return 0

    def group(self, stream_id: int) -> Group | None:
        """The group on a stream with all who are in it; None if nobody is."""
        known = self._groups.get(stream_id)
        return self._loaded(stream_id) if known is None else known

    def _loaded(self, stream_id: int) -> Group | None:
        with self.lock:
            known, catalog = self._groups.get(stream_id), self._lake.catalog
            stream, blocks = catalog.table(stream_id), self._stored_blocks(stream_id)
            if known is None and stream is not None and blocks is not None:
                known = load(catalog, stream, blocks, self.new_policy())
                if known is not None:
                    welcome(catalog, known, self._known.plan)
                    self._groups[stream_id] = known
            return known

    def refresh(self) -> None:
        """Before people are shown groups: where another process steps them, they are to be loaded anew."""
        if self._lake.read_only:
            with self.lock:
                self._groups.clear()
                for blocks in self._blocks.values():
                    blocks.refresh()

    def forget(self, stream_id: int) -> None:
        """A stream has gone."""
        self._groups.pop(stream_id, None)
        self._blocks.pop(stream_id, None)

    # Coming and going

    @staticmethod
    def enter(commit: Commit, query: TableInfo, place: Place) -> bool:
        """Let a new query, or one that has caught up, be in its group from its place on; False if it cannot."""
        if not views.is_there(commit.connection, query.id):
            return False
        [(stream_id, seen)] = place.streams.items()
        if not join(commit, stream_id, query.id, seen, place.sequence):
            return False
        streams.remove_consumer(commit, stream_id, queries.consumer(query.id))
        return True

    def leave(self, query: TableInfo, plan: QueryPlan, also: Callable[[Commit], None]) -> None:
        """Take a query out at the group's place, in one commit with something else."""
        group = self.group(plan.streams[0]) if self.has(query) else None
        if group is None:
            self._lake.catalog.commit(also)
            return
        welcome(self._lake.catalog, group, self._known.plan)

        def work(commit: Commit) -> None:
            take_out(commit, group, query.id, group.seen.position)
            also(commit)

        with self.stored_counts(group.stream):
            self._lake.catalog.commit(work)
            self._let_go(query.id, plan)
            self.apart.add(query.id)

    @contextmanager
    def stored_counts(self, stream_id: int) -> Iterator[None]:
        """Should the body be broken off while it changes who is in a group, what is stored of that counts."""
        try:
            yield
        except BaseException:
            self._groups.pop(stream_id, None)
            self._apart = None
            raise

    def has(self, query: TableInfo) -> bool:
        """Whether a query is in a group."""
        with self._lake.catalog.read() as connection:
            return groups.membership(connection, query.id) is not None

    @property
    def apart(self) -> set[int]:
        """Those who could be in a group, and are not: they are paused, have failed, or are catching up."""
        with self.lock:
            if self._apart is None:
                # In this order: who is made in between is a member, and not yet among those who could be one.
                could = {q.id for q in self._known.every()} - {q.id for q in self._known.loners()}
                with self._lake.catalog.read() as connection:
                    self._apart = could - groups.every_member(connection)
            return self._apart

    def is_apart(self, query: TableInfo) -> bool:
        """Whether a query is in no group, be it that it could not be."""
        return query.id in self.apart or not may_share(query, self._known.plan_of(query))

    def has_caught_up(self, place: Place) -> bool:
        """Whether a query is as far as its group, so that it can be in it."""
        [(stream_id, seen)] = place.streams.items()
        group = self.group(stream_id)
        return group is None or group.seen.position <= seen.position

    def dropped(self, query_id: int, plan: QueryPlan) -> None:
        """A query has gone: serve it no more, nor keep deliveries that nobody is left to ask for."""
        self._let_go(query_id, plan)
        for stream_id in plan.streams:
            blocks = self._stored_blocks(stream_id)
            if blocks is not None:
                blocks.dropped(query_id, lambda other: self._known.get(other) is not None)

    def _let_go(self, query_id: int, plan: QueryPlan) -> None:
        self.apart.discard(query_id)
        for stream_id in plan.streams:
            group = self._groups.get(stream_id)
            if group is not None:
                group.remove(query_id)
                if not group.plans:
                    del self._groups[stream_id]

    # What was delivered

    def blocks(self, stream_id: int) -> Blocks | None:
        """The blocks of the group on a stream; None if there was never one."""
        group = self._groups.get(stream_id)
        if group is not None and not self._lake.read_only:
            return group.blocks
        found = self._stored_blocks(stream_id)
        if found is not None:
            found.refresh()
        return found

    def _stored_blocks(self, stream_id: int) -> Blocks | None:
        if stream_id not in self._blocks:
            with self._lake.catalog.read() as connection:
                stored = groups.find(connection, key_of(stream_id))
            if stored is None:
                return None
            made = Blocks(self._lake.catalog, stored.id)
            made.refresh()
            return self._blocks.setdefault(stream_id, made)
        return self._blocks[stream_id]

    def total(self, query: TableInfo, plan: QueryPlan) -> int:
        """How many deliveries a query has had in groups; 0 if it was in none."""
        if not may_share(query, plan):
            return 0
        group = self._groups.get(plan.streams[0])
        if group is not None and not self._lake.read_only and (number := group.counters.get(query.id)) is not None:
            return number
        found = self.blocks(plan.streams[0])
        return 0 if found is None else found.last_of(query.id)

    def last(self, query: TableInfo, plan: QueryPlan) -> tuple[int, str]:
        """The number of the last delivery that a query has had in groups, and when that was; for people."""
        group, found = self._groups.get(plan.streams[0]), self._stored_blocks(plan.streams[0])
        if group is not None and (number := group.counters.get(query.id)) is not None:
            return number, group.answered_at.get(query.id, "")
        return (0, "") if found is None else found.last_numbers().get(query.id, (0, ""))
