"""Selections on one stream that are answered together: who is among them, how far they are, what they have had.

A group has one place. A query that joins has the rows from its own position on; one that leaves takes the group's
place along, so that it can go on by itself, and come back when it has caught up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.catalog import groups, streams, views
from millstream.execute.shared.selections import Selections
from millstream.plan.standing import QueryPlan
from millstream.queries.place import Place
from millstream.queries.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.catalog.catalog import Catalog
    from millstream.catalog.commits import Commit
    from millstream.catalog.groups import Member
    from millstream.catalog.records import TableInfo
    from millstream.plan.sharing import Shared
    from millstream.queries.blocks import Block, Blocks
    from millstream.queries.place import Seen
    from millstream.schedule.eddy import Policy


def key_of(stream_id: int) -> str:
    """What a group is called in the catalogue."""
    return str(stream_id)


@dataclass
class Group:
    """See the module's contract. `since` has those whose rows begin behind the group's position."""

    id: int
    stream: int
    place: Place
    selections: Selections
    blocks: Blocks
    policy: Policy
    plans: dict[int, QueryPlan] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)
    counters: dict[int, int] = field(default_factory=dict)
    """How many deliveries each query has had."""
    answered_at: dict[int, str] = field(default_factory=dict)
    last_member: int = 0
    order: Sequence[str] = ()
    """The order of operators for the last basket."""
    tested: set[int] = field(default_factory=set)
    asking: set[int] = field(default_factory=set)
    """Those with tests, and with expressions, that no operator knows."""
    columns: Counter[str] = field(default_factory=Counter)
    """How many queries have a column of the stream in their results, by name in lower case."""

    def shared(self, query: int) -> Shared:
        found = self.plans[query].shared
        assert found is not None
        return found

    def as_run(self, stream: TableInfo) -> Run:
        """The group as if it were one query: they all read the same window."""
        return Run(stream, next(iter(self.plans.values())), self.place)

    @property
    def seen(self) -> Seen:
        return self.place.streams[self.stream]

    def add(self, member: Member, plan: QueryPlan) -> None:
        self.plans[member.query] = plan
        self.selections.add(member.query, self.shared(member.query).leaves[0].selection)
        self.columns.update(o.column for o in self.shared(member.query).outputs)
        if self.shared(member.query).test is not None:
            self.tested.add(member.query)
        if self.shared(member.query).texts:
            self.asking.add(member.query)
        number, at = self.blocks.last_numbers().get(member.query, (0, ""))
        self.counters[member.query] = max(member.sequence, number)
        if number:
            self.answered_at[member.query] = at
        if member.since[self.stream] > self.seen.position:
            self.since[member.query] = member.since[self.stream]

    def had(self, block: Block) -> None:
        """Count what a block delivers."""
        last = (block.before + block.counts()).tolist()
        self.counters |= dict(zip(block.queries.tolist(), last, strict=True))
        self.answered_at |= dict.fromkeys(block.queries.tolist(), block.at)

    def remove(self, query: int) -> None:
        if query in self.plans:
            self.selections.drop(query)
            self.columns.subtract(o.column for o in self.shared(query).outputs)
            self.tested.discard(query)
            self.asking.discard(query)
            del self.plans[query], self.counters[query]
            self.since.pop(query, None)
            self.answered_at.pop(query, None)


def load(catalog: Catalog, stream: TableInfo, blocks: Blocks, policy: Policy) -> Group | None:
    """The group on a stream as the catalogue has it, with nobody in it yet; None if nobody is to be in it."""
    with catalog.read() as connection:
        stored = groups.find(connection, key_of(stream.id))
        if stored is None or groups.is_empty(connection, stored.id):
            return None
    blocks.refresh()
    return Group(stored.id, stream.id, Place.from_json(stored.place), Selections({}), blocks, policy)


def welcome(catalog: Catalog, group: Group, plan_of: Callable[[int], QueryPlan | None]) -> None:
    """Take in those who have joined since; what has come before this is called is not lost to them.

    One who is in the group already, and not yet known here, has joined after all rows that are known here: it is
    left, with those behind it, for the next time.
    """
    stream = catalog.table(group.stream)
    if stream is not None:
        group.selections.types = {c.name.lower(): c.type for c in stream.schema.columns}
    with catalog.read() as connection:
        found = groups.members(connection, group.id, group.last_member)
    for member in found:
        plan = plan_of(member.query)
        if plan is not None:
            group.add(member, plan)
        elif not _has_gone(catalog, member):
            return
        group.last_member = member.id


def _has_gone(catalog: Catalog, member: Member) -> bool:
    """Whether one who is not known was dropped since, instead of being too new."""
    with catalog.read() as connection:
        return not views.is_there(connection, member.query)


def join(commit: Commit, stream_id: int, query: int, seen: Seen, sequence: int) -> bool:
    """Let a query be in its stream's group from a position on; the group begins there if nobody is in it.

    False for a query that the group has left behind.
    """
    stored = groups.find(commit.connection, key_of(stream_id))
    place = Place(streams={stream_id: seen}).to_json()
    if stored is None:
        stored = groups.create(commit, key_of(stream_id), place)
    elif groups.is_empty(commit.connection, stored.id):
        groups.moved_on(commit, stored.id, place)
    elif Place.from_json(stored.place).streams[stream_id].position > seen.position:
        return False
    if groups.is_empty(commit.connection, stored.id):
        streams.set_consumer(commit, stream_id, groups.consumer(stored.id), seen.position)
    groups.join(commit, stored.id, query, {stream_id: seen.position}, sequence)
    return True
