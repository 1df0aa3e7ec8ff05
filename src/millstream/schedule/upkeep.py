"""The net that keeps a database in shape: inlined rows, small segments, baskets, snapshots.

inlined rows ──flush──► small segments ──compact──► (old files) ──expire──► nothing
baskets ──drop──► nothing            snapshots ──expire──► nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream.schedule.net import Firing, Net
from millstream.schema import ObjectKind
from millstream.storage import upkeep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.clock import Clock
    from millstream.storage.lake import Lake
    from millstream.storage.transaction import Written

INLINED, SMALL, BASKETS, SNAPSHOTS = "inlined rows", "small segments", "baskets", "snapshots"
FLUSH, COMPACT, DROP, EXPIRE = "flush", "compact", "drop", "expire"


@dataclass(frozen=True, slots=True)
class Policy:
    """When upkeep happens."""

    flush: Firing = Firing(tokens=10_000, age=timedelta(minutes=1))
    compact: Firing = Firing(tokens=16, age=timedelta(minutes=5))
    drop: Firing = Firing(tokens=100_000, age=timedelta(seconds=10))
    expire: Firing = Firing(tokens=10_000, age=timedelta(minutes=10))
    keep_snapshots: timedelta = timedelta(hours=1)


def upkeep_net(lake: Lake, clock: Clock, policy: Policy | None = None) -> Net:
    """The net for a database that is open for writing, told of every commit."""
    policy = policy or Policy()
    net = Net(clock)
    net.transition(DROP, BASKETS, policy.drop, lambda _: _ignore(upkeep.drop_consumed(lake)))
    net.transition(FLUSH, INLINED, policy.flush, lambda _: net.put(SMALL, upkeep.flush(lake) and 1))
    net.transition(COMPACT, SMALL, policy.compact, lambda _: _ignore(upkeep.compact(lake)))
    net.transition(EXPIRE, SNAPSHOTS, policy.expire, lambda _: _expire(net, lake, policy))

    def committed(written: Sequence[Written]) -> None:
        net.put(SNAPSHOTS)
        for part in written:
            if part.table.kind is ObjectKind.STREAM:
                net.put(BASKETS, part.rows)
            else:
                net.put(INLINED, part.inlined_rows)
                net.put(SMALL, part.segments)

    lake.on_commit(committed)
    for place in (INLINED, SMALL, BASKETS, SNAPSHOTS):
        # An earlier process may have left something to do.
        net.put(place)
    return net


def _ignore(_: int) -> None:
    return


def _expire(net: Net, lake: Lake, policy: Policy) -> None:
    upkeep.expire(lake, policy.keep_snapshots)
    if upkeep.has_old_snapshots(lake):
        net.put(SNAPSHOTS)
