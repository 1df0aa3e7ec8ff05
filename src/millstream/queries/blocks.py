"""Deliveries to many queries as blocks: every row once, and marks that say which rows are whose, in which order.

A delivery of a query is a run of its rows with one instant. Its sequence number is not stored: a block knows how
many deliveries the query had before, and runs are counted. When there are too many blocks the oldest become one,
where a query is once for each of the blocks that it was in. That one keeps what is among the last 1,000 deliveries
of a query that is still there; if they are too large, the oldest of the most frequent queries go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.catalog import groups
from millstream.catalog.groups import StoredBlock
from millstream.catalog.queries import packed, unpacked
from millstream.plan.sharing import column_name
from millstream.queries import storing
from millstream.queries.matching import used_places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.catalog.catalog import Catalog
    from millstream.catalog.groups import BlockInfo
    from millstream.plan.sharing import Shared

    Numbers = NDArray[np.int64]

KEPT_BLOCKS, SLACK = 1_000, 64
"""So many blocks are kept; when there are `SLACK` more, the oldest become one."""
MOST_BYTES = 268_435_456
"""Blocks together are no larger than this, unless one alone is."""
FOLDED_BYTES = MOST_BYTES // 8
"""The one that the oldest become is no larger than this, unless last deliveries alone are."""
CACHED_BYTES = 67_108_864
NEVER = 2**62
PAIR_BYTES, QUERY_BYTES = 12, 24
QUERY, BEFORE, PLACES, INSTANTS = "query", "before", "places", "instants"


def expression_name(number: int, kind: pa.DataType) -> str:
    """The column of a block that holds the values of an expression, by its place among a query's, and type."""
    return f"__ms_x{number}_{kind}"


def shaped(rows: pa.Table, shared: Shared, schema: pa.Schema) -> pa.Table:
    """Rows of a block as a query has them."""
    numbers, leaves = count(), len(shared.leaves)
    names = [
        expression_name(next(numbers), kind) if o.text else column_name(o.leaf, o.column, leaves)
        for o, kind in zip(shared.outputs, schema.types, strict=True)
    ]
    return pa.table([rows.column(n) for n in names], names=schema.names).cast(schema)


@dataclass(frozen=True)
class Given:
    """A delivery in a block: its number, its instant, and how its rows are read."""

    sequence: int
    instant: int
    snapshot: int
    at: str
    rows: Callable[[], pa.Table]


@dataclass(frozen=True)
class Block:
    """See the module's contract. `places` and `instants` are those of one query behind those of the other."""

    rows: pa.Table
    queries: Numbers
    before: Numbers
    starts: Numbers
    places: NDArray[np.int32]
    instants: Numbers
    snapshot: int = 0
    at: str = ""

    @property
    def size(self) -> int:
        return int(self.rows.nbytes + PAIR_BYTES * len(self.places) + QUERY_BYTES * len(self.queries))

    def _begins(self) -> Numbers:
        """1 where a delivery begins, 0 elsewhere."""
        found = np.ones(len(self.places), np.int64)
        found[1:] = self.instants[1:] != self.instants[:-1]
        found[self.starts[:-1]] = 1
        return found

    def counts(self) -> Numbers:
        """How many deliveries each query has in it."""
        return np.add.reduceat(self._begins(), self.starts[:-1]) if len(self.queries) else np.empty(0, np.int64)

    def numbers(self) -> Numbers:
        """For each pair the number of the delivery that it belongs to."""
        made = np.cumsum(self._begins())
        return made + np.repeat(self.before - made[self.starts[:-1]] + 1, np.diff(self.starts))

    def after(self, passed: Numbers) -> Block:
        """What is numbered higher than `passed`, which is given for each of the queries."""
        lengths = np.diff(self.starts)
        kept = self.numbers() > np.repeat(passed, lengths)
        left = np.add.reduceat(kept.astype(np.int64), self.starts[:-1]) if len(lengths) else lengths
        used, places = used_places(self.places[kept].astype(np.int64), self.rows.num_rows)
        return replace(
            self, rows=self.rows.take(pa.array(used)), queries=self.queries[left > 0],
            before=np.maximum(self.before, passed)[left > 0],
            starts=np.concatenate([[0], np.cumsum(left[left > 0])]),
            places=places.astype(np.int32), instants=self.instants[kept],
        )  # fmt: skip

    def of(self, query: int) -> list[Given]:
        """The deliveries of a query, in order."""
        first, last = (int(np.searchsorted(self.queries, query, side)) for side in ("left", "right"))
        return [given for number in range(first, last) for given in self._of(number)]

    def _of(self, number: int) -> list[Given]:
        low, high = self.starts[number : number + 2].tolist()
        instants = self.instants[low:high]
        edges = [0, *(np.flatnonzero(np.diff(instants)) + 1).tolist(), high - low]
        first = int(self.before[number]) + 1
        return [
            Given(
                first + i, int(instants[a]), self.snapshot, self.at,
                partial(self.rows.take, pa.array(self.places[low + a : low + b])),
            )
            for i, (a, b) in enumerate(pairwise(edges))
        ]  # fmt: skip

    def stored(self) -> StoredBlock:
        offsets = pa.array(self.starts, pa.int32())
        marks = pa.table({
            QUERY: self.queries,
            BEFORE: self.before,
            PLACES: pa.ListArray.from_arrays(offsets, pa.array(self.places, pa.int32())),
            INSTANTS: pa.ListArray.from_arrays(offsets, pa.array(self.instants, pa.int64())),
        })  # fmt: skip
        return StoredBlock(self.snapshot, self.at, packed(self.rows), packed(marks))


def read_block(stored: StoredBlock) -> Block:
    return _with_marks(unpacked(stored.rows), stored.marks, stored.snapshot_id, stored.committed_at)


def _with_marks(rows: pa.Table, marks: bytes, snapshot: int = 0, at: str = "") -> Block:
    table = unpacked(marks)
    places, instants = (table.column(name).combine_chunks() for name in (PLACES, INSTANTS))
    starts = np.concatenate([[0], np.cumsum(places.value_lengths().to_numpy())]).astype(np.int64)
    return Block(
        rows, table.column(QUERY).to_numpy(), table.column(BEFORE).to_numpy(), starts,
        places.flatten().to_numpy(), instants.flatten().to_numpy(), snapshot, at,
    )  # fmt: skip


def block_of(
    rows: pa.Table, queries: Numbers, places: Numbers, instants: Numbers, counters: Mapping[int, int]
) -> Block:
    """A block of pairs of a query and a row, given by query, then in the order of delivery.

    Rows that nobody has are left out; `counters` are the deliveries that each query had before.
    """
    used, places = used_places(places, rows.num_rows)
    starts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1]])) if len(queries) else np.empty(0)
    starts = starts.astype(np.int64)
    own = queries[starts]
    before = np.array([counters[q] for q in own.tolist()], np.int64)
    ends = np.append(starts, len(queries))
    return Block(rows.take(pa.array(used)), own, before, ends, places.astype(np.int32), instants)


def fold(blocks: Sequence[Block], last: Mapping[int, int]) -> Block:
    """One block for many, given from the oldest on; `last` are those who are there, and their last deliveries."""
    newest = [_last_of_each(b, last) for b in blocks]
    most = _room_for(blocks, newest)
    parts = [b.after(n - most) for b, n in zip(blocks, newest, strict=True)]
    offsets = np.cumsum([0, *(p.rows.num_rows for p in parts)])
    places = np.concatenate([p.places + o for p, o in zip(parts, offsets[:-1], strict=True)])
    queries, before = np.concatenate([p.queries for p in parts]), np.concatenate([p.before for p in parts])
    lengths = np.concatenate([np.diff(p.starts) for p in parts])
    order, pairs = (np.argsort(of, kind="stable") for of in (queries, np.repeat(queries, lengths)))
    return Block(
        pa.concat_tables([p.rows for p in parts], promote_options="default"),
        queries[order],
        before[order],
        np.concatenate([[0], np.cumsum(lengths[order])]),
        places[pairs].astype(np.int32),
        np.concatenate([p.instants for p in parts])[pairs],
        blocks[-1].snapshot,
        blocks[-1].at,
    )


def _last_of_each(block: Block, last: Mapping[int, int]) -> Numbers:
    """The number of the last delivery of each query in a block; of those who have gone one that none reaches."""
    return np.array([last.get(q, NEVER) for q in block.queries.tolist()], np.int64)


def _room_for(blocks: Sequence[Block], newest: Sequence[Numbers]) -> int:
    """How many of the last deliveries of each query there is room for: at least one."""
    most = storing.KEPT_DELIVERIES
    sizes = np.zeros(most, np.int64)
    for block, last in zip(blocks, newest, strict=True):
        lengths, size = np.diff(block.starts), block.rows.nbytes // max(block.rows.num_rows, 1)
        # How far back each pair is, each row, each query: the newest delivery that needs it decides.
        back = np.minimum(np.repeat(last, lengths) - block.numbers(), most)
        of_rows = np.full(block.rows.num_rows, most)
        np.minimum.at(of_rows, block.places, back)
        of_queries = np.minimum.reduceat(back, block.starts[:-1]) if len(lengths) else back
        for places, bytes_each in ((back, PAIR_BYTES), (of_rows, size), (of_queries, QUERY_BYTES)):
            sizes += np.bincount(places, minlength=most + 1)[:most] * bytes_each
    return max(int(np.searchsorted(np.cumsum(sizes), FOLDED_BYTES, "right")), 1)


@dataclass
class Blocks:
    """The blocks of a group, as they are asked for: the newest are in memory. Safe for many threads."""

    catalog: Catalog
    group_id: int
    infos: list[BlockInfo] = field(default_factory=list)
    _cached: OrderedDict[int, Block] = field(default_factory=OrderedDict)
    _cached_bytes: int = 0
    _last: dict[int, tuple[int, str]] = field(default_factory=dict)
    _counted: int = 0
    """The last block that `_last` knows of."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def refresh(self) -> None:
        """Learn of blocks that others have written."""
        with self._lock:
            with self.catalog.read() as connection:
                found = groups.blocks(connection, self.group_id)
            known = {i.id: i.size for i in self.infos}
            for gone in known.keys() - {i.id for i in found if known.get(i.id) == i.size}:
                self._forget(gone)
            self.infos = found

    def added(self, info: BlockInfo, block: Block) -> None:
        with self._lock:
            if info not in self.infos[-1:]:
                self.infos = [*self.infos, info]
            self._remember(info.id, block)

    def folded(self, ids: Sequence[int], made: BlockInfo, last: Mapping[int, int]) -> None:
        """Blocks have become one, under the number of the last; queries that are not in `last` have gone."""
        with self._lock:
            self._last = {q: n for q, n in self._last.items() if q in last}
            self.infos = [made, *(i for i in self.infos if i.id not in ids)]
            for block_id in ids:
                self._forget(block_id)

    def dropped(self, query: int, is_there: Callable[[int], bool]) -> None:
        """A query has gone; if nobody is there any more who has had a delivery, all blocks go."""
        with self._lock:
            is_needed = any(is_there(other) for other in self.last_numbers() if other != query)
            self._last.pop(query, None)
            if is_needed or not self.infos:
                return
            self.catalog.commit(lambda commit: groups.remove_blocks(commit, self.group_id))
            self._last, self.infos = {}, []
            for block_id in list(self._cached):
                self._forget(block_id)

    def to_fold(self) -> list[int]:
        """The blocks that are too many; none if all may stay."""
        if len(self.infos) <= KEPT_BLOCKS + SLACK and sum(i.size for i in self.infos) <= MOST_BYTES:
            return []
        kept, size = 0, 0
        for info in reversed(self.infos):
            if kept and (kept >= KEPT_BLOCKS or size + info.size > MOST_BYTES * 3 // 4):
                break
            kept, size = kept + 1, size + info.size
        gone = [i.id for i in self.infos[: len(self.infos) - kept]]
        return gone if len(gone) > 1 else []

    def get(self, block_id: int) -> Block | None:
        with self._lock:
            if block_id in self._cached:
                self._cached.move_to_end(block_id)
                return self._cached[block_id]
            infos = self.infos
        with self.catalog.read() as connection:
            stored = groups.block(connection, block_id)
        if stored is None:
            return None
        made = read_block(stored)
        with self._lock:
            # It may have become one with others meanwhile.
            if infos is self.infos:
                self._remember(block_id, made)
        return made

    def _remember(self, block_id: int, block: Block) -> None:
        self._forget(block_id)
        self._cached[block_id] = block
        self._cached_bytes += block.size
        while self._cached_bytes > CACHED_BYTES and len(self._cached) > 1:
            self._forget(next(iter(self._cached)))

    def _forget(self, block_id: int) -> None:
        gone = self._cached.pop(block_id, None)
        self._cached_bytes -= gone.size if gone is not None else 0

    def last_numbers(self) -> Mapping[int, tuple[int, str]]:
        """The number of the last delivery of each query that has one, and when it was."""
        with self._lock:
            if self.infos and self.infos[-1].id > self._counted:
                for info in self.infos:
                    if info.id > self._counted:
                        self._count(info.id)
            return self._last

    def _count(self, block_id: int) -> None:
        block = self._cached.get(block_id) or self._marks(block_id)
        if block is not None:
            last = zip(block.queries.tolist(), (block.before + block.counts()).tolist(), strict=True)
            self._last |= {query: (number, block.at) for query, number in last}
        self._counted = block_id

    def _marks(self, block_id: int) -> Block | None:
        """A block without its rows."""
        with self.catalog.read() as connection:
            stored = groups.marks(connection, block_id)
        return None if stored is None else _with_marks(pa.table({}), stored[1], at=stored[0])

    def last_of(self, query: int) -> int:
        """The number of a query's last delivery; 0 if there is none."""
        return self.last_numbers().get(query, (0, ""))[0]

    def of(self, query: int, after: int) -> list[Given]:
        """The deliveries of a query after a number, of those that are kept."""
        if self.last_of(query) <= after:
            return []
        found = self._of(query, after)
        if found is None:
            # Blocks have become one while they were read.
            self.refresh()
            found = self._of(query, after)
        return [g for g in found or [] if g.sequence > after]

    def _of(self, query: int, after: int) -> list[Given] | None:
        """What the blocks have of a query, down to a number at least; None if a block has gone."""
        found: list[Given] = []
        for info in reversed(self.infos):
            block = self.get(info.id)
            if block is None:
                return None
            found = block.of(query) + found
            if len(found) >= storing.KEPT_DELIVERIES or (found and found[0].sequence <= after + 1):
                break
        return found
