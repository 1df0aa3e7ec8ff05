"""The open panes of a part, merged so that no answer costs more for there being more of them.

Rows of partial results wait until they enter; then they are leaves, one for each place at which rows leave, in
order. Neighbouring leaves are merged in pairs, the pairs in pairs, and so on, each once; what an instant needs is
a dozen of these, however many panes there are. What has left is given up from the front.

Merges with Arrow, in the driver: sums, least and largest values, all and any, and groups alone. Other merges, sums
that might overflow and NaN are for Spark (`UnmergeableError`), which reads the same rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.queries import dense
from millstream.rewrite.panes import E, U
from millstream.views import merging

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from millstream.plan.incremental import Part


LONG_AGO = -(2**62)


class UnmergeableError(Exception):
    """Arrow cannot merge these rows; Spark can."""


def can_merge(part: Part) -> bool:
    """Whether Arrow knows all merges of a part."""
    own = _without_panes(part)
    if own.partials:
        return merging.can_merge(own)
    return bool(own.keys) and merging.can_compare_keys(own)


def _without_panes(part: Part) -> Part:
    return replace(part, keys=tuple(k for k in part.keys if k not in (E, U)))


class Panes:
    """See the module's contract."""

    def __init__(self, part: Part, schema: pa.Schema) -> None:
        self._part = _without_panes(part)
        self._schema = schema
        self._own = pa.schema([f for f in schema if f.name not in (E, U)])
        self._waiting: list[pa.Table] = []
        self._places: list[int] = []
        self._leaves: list[pa.Table] = []
        self._base = 0
        self._nodes: dict[tuple[int, int], pa.Table] = {}

    def add(self, rows: pa.Table) -> None:
        """Take in partial results of new rows."""
        if rows.num_rows:
            self._waiting.append(rows)

    @property
    def rows(self) -> int:
        return sum(t.num_rows for t in (*self._waiting, *self._leaves))

    def tables(self) -> Iterator[pa.Table]:
        """All rows, as they are stored: those that have entered have entered long since."""
        yield from self._waiting
        for place, leaf in zip(self._places, self._leaves, strict=True):
            yield with_pane(leaf, place, self._schema)

    def at_each(self, instants: Sequence[int]) -> list[pa.Table]:
        """The groups of some instants, which come in order; if it cannot be done, nothing has been."""
        saved = (list(self._waiting), list(self._places), list(self._leaves), self._base)
        try:
            made: list[pa.Table] = []
            while len(made) < len(instants):
                some = self._together(instants[len(made) :])
                made += self._at_once(some) or [self.at(x) for x in some]
            return made
        except UnmergeableError:
            self._waiting, self._places, self._leaves, self._base = saved
            self._nodes.clear()
            raise

    def at(self, x: int) -> pa.Table:
        """The groups of an instant, merged; instants come in order."""
        self._enter(x)
        self._expire(x)
        found = [self._node(level, index) for level, index in self._cover()]
        return self._merged(found) if found else self._own.empty_table()

    def _together(self, instants: Sequence[int]) -> Sequence[int]:
        """The first of some instants, up to where a row leaves that enters among them."""
        for rows in self._waiting:
            leaves = rows.filter(pc.greater(rows.column(E), instants[0])).column(U)
            if len(leaves):
                instants = instants[: max(1, bisect_right(instants, pc.min(leaves).as_py()))]
        return instants

    def _at_once(self, instants: Sequence[int]) -> list[pa.Table] | None:
        """The groups of many instants, in one go; None if it cannot be done."""
        if len(instants) < dense.LEAST_INSTANTS or not self._part.partials:
            return None
        first, last = instants[0], instants[-1]
        self._enter(first)
        self._expire(first)
        leaving = bisect_left(self._places, last)
        open_now = list(zip(self._places, self._leaves, strict=True))[:leaving]
        open_now += [(last, self._node(level, index)) for level, index in self._cover(leaving)]
        pieces = [with_pane(leaf, place, self._schema) for place, leaf in open_now]
        rows = pa.concat_tables([self._schema.empty_table(), *pieces, *self._waiting])
        found = dense.at_each(self._part, rows, instants)
        if found is not None:
            self._enter(last)
            self._expire(last)
        return found

    def expire(self, x: int) -> None:
        """Give up what has left by a place."""
        self._waiting = [t for t in self._waiting if pc.max(t.column(U)).as_py() > x]
        self._expire(x + 1)

    # Leaves

    def _enter(self, x: int) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        entered = pc.less_equal(rows.column(E), x)
        if not pc.any(entered).as_py():
            return
        later = rows.filter(pc.invert(entered))
        self._waiting = [later] if later.num_rows else []
        for place, own in by_place(rows.filter(entered), self._own.names):
            if place >= x:
                self._insert(place, own)

    def _insert(self, place: int, rows: pa.Table) -> None:
        at = bisect_left(self._places, place)
        if at < len(self._places) and self._places[at] == place:
            self._leaves[at] = self._merged([self._leaves[at], rows])
            self._forget(at)
        elif at == len(self._places):
            self._places.append(place)
            self._leaves.append(rows)
        else:
            self._places.insert(at, place)
            self._leaves.insert(at, rows)
            self._nodes.clear()

    def _forget(self, at: int) -> None:
        """Forget the merges that a leaf is in."""
        index = self._base + at
        for level in range(1, 64):
            index >>= 1
            if self._nodes.pop((level, index), None) is None and level > 40:
                break

    def _expire(self, x: int) -> None:
        gone = bisect_left(self._places, x)
        if gone:
            del self._places[:gone], self._leaves[:gone]
            self._base += gone
            if len(self._nodes) > 4 * len(self._leaves) + 64:
                self._nodes = {k: t for k, t in self._nodes.items() if (k[1] + 1) << k[0] > self._base}

    # Merges

    def _cover(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Whole blocks of 2, 4, 8 … leaves that make up all of them from one on."""
        low, high = self._base + start, self._base + len(self._leaves)
        while low < high:
            level = min((low & -low).bit_length() - 1 if low else 63, (high - low).bit_length() - 1)
            yield level, low >> level
            low += 1 << level

    def _node(self, level: int, index: int) -> pa.Table:
        if level == 0:
            return self._leaves[index - self._base]
        known = self._nodes.get((level, index))
        if known is None:
            known = self._merged([self._node(level - 1, 2 * index), self._node(level - 1, 2 * index + 1)])
            self._nodes[level, index] = known
        return known

    def _merged(self, pieces: Sequence[pa.Table]) -> pa.Table:
        rows = pa.concat_tables(pieces)
        if not self._part.partials:
            return rows.group_by(list(self._part.keys)).aggregate([]).select(rows.column_names)
        found = merging.merged(self._part, pieces)
        if found is None:
            raise UnmergeableError
        return found


def by_place(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Rows, of which there are some, by the place at which they leave, in order, with these of their columns."""
    places = np.asarray(rows.column(U).to_numpy(), np.int64)
    order = np.argsort(places, kind="stable")
    rows, places = rows.select(list(columns)).take(pa.array(order)), places[order]
    edges = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
    for low, high in pairwise(edges):
        yield int(places[low]), rows.slice(low, high - low)


def by_pane(rows: pa.Table) -> Iterator[tuple[int, int, pa.Table]]:
    """Rows, of which there are some, by where they enter and where they leave."""
    enter, leave = (np.asarray(rows.column(c).to_numpy(), np.int64) for c in (E, U))
    if not are_in_order(enter, leave):
        order = np.lexsort((leave, enter))
        rows, enter, leave = rows.take(pa.array(order)), enter[order], leave[order]
    for low, high in pairwise([0, *changes(enter, leave).tolist(), len(enter)]):
        yield int(enter[low]), int(leave[low]), rows.slice(low, high - low)


def are_in_order(enter: NDArray[np.int64], leave: NDArray[np.int64]) -> bool:
    """Whether panes come by where they enter, those that enter together by where they leave."""
    later, same = enter[1:] > enter[:-1], enter[1:] == enter[:-1]
    return bool((later | (same & (leave[1:] >= leave[:-1]))).all())


def changes(enter: NDArray[np.int64], leave: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where another pane begins, but for the first."""
    return np.flatnonzero((enter[1:] != enter[:-1]) | (leave[1:] != leave[:-1])) + 1


def with_pane(rows: pa.Table, place: int, schema: pa.Schema) -> pa.Table:
    """Rows that have entered and leave at a place, as they are stored."""
    pane = {E: LONG_AGO, U: place}
    columns = [
        pa.array(np.full(rows.num_rows, pane[f.name]), pa.int64()) if f.name in pane else rows.column(f.name)
        for f in schema
    ]
    return pa.table(columns, schema=schema)
