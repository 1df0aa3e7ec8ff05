"""The net that keeps a database in shape: inlined rows, small segments, baskets, snapshots.

inlined rows ──flush──► small segments ──compact──► (old files) ──expire──► nothing
baskets ──drop──► nothing            snapshots ──expire──► nothing
segments without an index copy ──index──► copies
expired compartments, compartments in use ──retain──► nothing
commits, the clock ──push──► deliveries of continuous scans
rows new to views ──advance──► states of views, baskets that nobody needs
rows new to queries, the clock ──answer──► deliveries, rows of streaming views
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from millstream.schedule.net import Firing, Net
from millstream.schema import ObjectKind
from millstream.storage import index, retention, upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.catalog.records import TableInfo
    from millstream.clock import Clock
    from millstream.storage.lake import Lake
    from millstream.storage.transaction import Written

INLINED, SMALL, BASKETS, SNAPSHOTS = "inlined rows", "small segments", "baskets", "snapshots"
UNINDEXED, EXPIRED, AGEING = "segments to index", "expired compartments", "ageing compartments"
PUSHES, CLOCKED = "scans to push", "scans that wait for the clock"
UNSEEN, ADVANCE = "rows new to views", "advance views"
UNANSWERED, ANSWER = "rows new to queries", "answer queries"
WAITING, WAIT = "queries that wait for the clock", "answer queries by the clock"
FLUSH, COMPACT, DROP, EXPIRE, INDEX = "flush", "compact", "drop", "expire", "index"
RETAIN, AGE, PUSH, TICK = "retain", "retain by age", "push", "push by the clock"
COPIES_AT_ONCE = 4
"""So many index copies are made before other upkeep gets its turn."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When upkeep happens."""

    flush: Firing = Firing(tokens=10_000, age=timedelta(minutes=1))
    compact: Firing = Firing(tokens=16, age=timedelta(minutes=5))
    drop: Firing = Firing(tokens=100_000, age=timedelta(seconds=10))
    expire: Firing = Firing(tokens=10_000, age=timedelta(minutes=10))
    index: Firing = Firing(tokens=1)
    retain: Firing = Firing(tokens=1)
    age: Firing = Firing(age=timedelta(seconds=10))
    push: Firing = Firing(tokens=1)
    advance: Firing = Firing(tokens=262_144, age=timedelta(seconds=2))
    answer: Firing = Firing(tokens=1)
    clock: Firing = Firing(age=timedelta(seconds=1))
    keep_snapshots: timedelta = timedelta(hours=1)


def upkeep_net(lake: Lake, clock: Clock, policy: Policy | None = None) -> Net:
    """The net for a database that is open for writing, told of every commit."""
    policy = policy or Policy()
    net = Net(clock)
    net.transition(PUSH, PUSHES, policy.push, lambda _: _push(net, lake))
    net.transition(TICK, CLOCKED, policy.clock, lambda _: _push(net, lake))
    lake.access.wake = lambda: net.put(PUSHES)
    net.transition(DROP, BASKETS, policy.drop, lambda _: _ignore(upkeep.drop_consumed(lake)))
    net.transition(FLUSH, INLINED, policy.flush, lambda _: net.put(SMALL, upkeep.flush(lake) and 1))
    net.transition(COMPACT, SMALL, policy.compact, lambda _: net.put(UNINDEXED, upkeep.compact(lake)))
    net.transition(RETAIN, EXPIRED, policy.retain, lambda _: _retain(net, lake))
    net.transition(AGE, AGEING, policy.age, lambda _: _retain(net, lake))
    net.transition(INDEX, UNINDEXED, policy.index, lambda _: _index(net, lake))
    net.transition(EXPIRE, SNAPSHOTS, policy.expire, lambda _: _expire(net, lake, policy))

    kept: dict[int, int] = {}

    def committed(written: Sequence[Written]) -> None:
        net.put(SNAPSHOTS)
        for part in written:
            if part.table.kind is ObjectKind.STREAM:
                net.put(BASKETS, part.rows)
            else:
                net.put(INLINED, part.inlined_rows)
                net.put(SMALL, part.segments)
                net.put(UNINDEXED, part.segments and int(bool(lake.catalog.indexes())))
            if part.table.period is not None and _has_slid(lake, part.table, kept):
                net.put(EXPIRED)

    lake.on_commit(committed)
    for place in (INLINED, SMALL, BASKETS, SNAPSHOTS, UNINDEXED, EXPIRED):
        # An earlier process may have left something to do.
        net.put(place)
    return net


def advance_views(net: Net, lake: Lake, advance: Callable[[], None], policy: Policy | None = None) -> None:
    """Have continuous views follow their streams; `advance` brings all of them up to date."""

    def run(_: int) -> None:
        advance()
        net.put(BASKETS)

    net.transition(ADVANCE, UNSEEN, (policy or Policy()).advance, run)

    def committed(written: Sequence[Written]) -> None:
        streams = (ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
        net.put(UNSEEN, sum(part.rows for part in written if part.table.kind in streams))

    lake.on_commit(committed)
    net.put(UNSEEN)


class Queries(Protocol):
    """Those who answer continuous queries."""

    def advance_all(self) -> int: ...

    def reads(self, table: TableInfo) -> bool: ...

    def waits_for_clock(self) -> bool: ...


def answer_queries(net: Net, lake: Lake, queries: Queries, policy: Policy | None = None) -> None:
    """Have continuous queries answer as rows come, time is advanced, or the clock moves on."""
    policy = policy or Policy()

    def run(_: int) -> None:
        if queries.advance_all():
            net.put(BASKETS)
        if queries.waits_for_clock():
            net.put(WAITING)

    net.transition(ANSWER, UNANSWERED, policy.answer, run)
    net.transition(WAIT, WAITING, policy.clock, run)

    def committed(written: Sequence[Written]) -> None:
        if any(queries.reads(part.table) for part in written):
            net.put(UNANSWERED)

    lake.on_commit(committed)
    net.put(UNANSWERED)


def _ignore(_: int) -> None:
    return


def _has_slid(lake: Lake, table: TableInfo, kept: dict[int, int]) -> bool:
    """Whether the table's period has left another compartment behind."""
    first = retention.first_kept(lake, table)
    if first is None or kept.get(table.id) == first:
        return False
    kept[table.id] = first
    return True


def _retain(net: Net, lake: Lake) -> None:
    done = retention.drop_expired(lake)
    # What lay across the edge of a compartment has been written anew.
    net.put(UNINDEXED)
    by_clock = any(t.period and t.time and t.time.is_arrival for t in lake.catalog.tables().values())
    if by_clock or not done:
        # The clock moves on without a commit, and so do readers.
        net.put(AGEING)


def _push(net: Net, lake: Lake) -> None:
    lake.access.push_due()
    if lake.access.next_due() is not None:
        net.put(CLOCKED)


def _index(net: Net, lake: Lake) -> None:
    net.put(UNINDEXED, index.build_some(lake, COPIES_AT_ONCE))


def _expire(net: Net, lake: Lake, policy: Policy) -> None:
    upkeep.expire(lake, policy.keep_snapshots)
    if upkeep.has_old_snapshots(lake):
        net.put(SNAPSHOTS)
