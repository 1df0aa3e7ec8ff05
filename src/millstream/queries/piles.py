"""The open panes of a part, in piles that many merges at once are made of, so that an answer reads few rows.

Rows of partial results wait until they enter; then they lie on the pile of the place at which they leave. Sixteen
pieces of a pile become one, sixteen neighbouring piles become one, sixteen of these become one, and so on. A merge
is noted when it is first of use and made later, all of a step's together: by Spark in one job, so that a backlog
of many instants costs two jobs, as one instant does, one for merges and one for the answers; or by Arrow, for all
queries that are stepped together.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.queries.panes import by_pane, with_pane
from millstream.rewrite.panes import E, U

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Merge = Callable[[Sequence[Sequence[pa.Table]]], list[pa.Table]]

FAN = 16
"""So many become one, where Spark merges: rarely, as that is a job."""


@dataclass(eq=False)
class Node:
    """Partial results: rows that are there, or those that others will be merged to."""

    rows: pa.Table | None
    of: tuple[Node, ...] = ()

    def settle(self, rows: pa.Table) -> None:
        """It has been merged."""
        self.rows, self.of = rows, ()

    def pieces(self) -> Iterator[pa.Table]:
        """The rows that are there."""
        if self.rows is not None:
            yield self.rows
        for node in self.of:
            yield from node.pieces()


@dataclass
class _Pile:
    """What leaves at one place, in tiers: a full tier is one piece of the next."""

    fan: int
    tiers: list[list[Node]] = field(default_factory=list)

    def put(self, node: Node) -> None:
        for tier in self.tiers:
            tier.append(node)
            if len(tier) < self.fan:
                return
            node = Node(None, tuple(tier))
            tier.clear()
        self.tiers.append([node])

    @property
    def nodes(self) -> list[Node]:
        return [node for tier in self.tiers for node in tier]


class Piles:
    """See the module's contract."""

    def __init__(self, schema: pa.Schema, fan: int = FAN) -> None:
        self.fan = fan
        """So many become one."""
        self._schema = schema
        self._own = [n for n in schema.names if n not in (E, U)]
        self._waiting: list[pa.Table] = []
        self._arranged: list[tuple[int, int, pa.Table]] = []
        """Rows that wait, too: by where they enter, the last first, and where they leave."""
        self._places: list[int] = []
        self._piles: list[_Pile] = []
        self._base = 0
        self._blocks: dict[tuple[int, int], Node] = {}

    def add(self, rows: pa.Table) -> None:
        """Take in partial results of new rows."""
        if rows.num_rows:
            self._waiting.append(rows)

    @property
    def rows(self) -> int:
        return sum(t.num_rows for t in self.tables())

    def tables(self) -> Iterator[pa.Table]:
        """All rows, as they are stored: those that have entered have entered long since."""
        yield from self._waiting
        yield from (rows for _, _, rows in self._arranged)
        for place, pile in zip(self._places, self._piles, strict=True):
            for rows in (r for n in pile.nodes for r in n.pieces()):
                yield with_pane(rows, place, self._schema)

    def at_each(self, instants: Sequence[int], merge: Merge) -> list[list[pa.Table]]:
        """What is to be merged for each of some instants, which come in order."""
        covers = self.covers(instants)
        nodes = self.unmade(covers)
        if nodes:
            for node, rows in zip(nodes, merge([list(n.pieces()) for n in nodes]), strict=True):
                node.settle(rows)
        return [[r for n in cover for r in n.pieces()] for cover in covers]

    def covers(self, instants: Sequence[int]) -> list[list[Node]]:
        """What makes up the state at each of some instants, which come in order; some may have to be made yet."""
        found = []
        for x in instants:
            self._enter(x)
            self._expire(x)
            found.append(list(self._cover()))
        return found

    def unmade(self, covers: Sequence[Sequence[Node]]) -> list[Node]:
        """The merges that were noted, of those that are of use now and later."""
        kept = [n for pile in self._piles for n in pile.nodes]
        wanted = [n for cover in covers for n in cover]
        nodes = {id(n): n for n in (*wanted, *kept, *self._blocks.values()) if n.rows is None}
        return list(nodes.values())

    def expire(self, x: int) -> None:
        """Give up what has left by a place."""
        self._waiting = [t for t in self._waiting if pc.max(t.column(U)).as_py() > x]
        self._arranged = [entry for entry in self._arranged if entry[1] > x]
        self._expire(x + 1)

    # Piles

    def _enter(self, x: int) -> None:
        self._arrange()
        while self._arranged and self._arranged[-1][0] <= x:
            _, place, rows = self._arranged.pop()
            if place >= x:
                self._pile(place).put(Node(rows.select(self._own)))

    def _arrange(self) -> None:
        """Bring what has come since into order, all at once."""
        if not self._waiting:
            return
        self._arranged += by_pane(pa.concat_tables(self._waiting))
        self._arranged.sort(key=lambda entry: entry[:2], reverse=True)
        self._waiting = []

    def _pile(self, place: int) -> _Pile:
        at = bisect_left(self._places, place)
        if at < len(self._places) and self._places[at] == place:
            self._forget(self._base + at)
        else:
            if at < len(self._places):
                self._blocks.clear()
            self._places.insert(at, place)
            self._piles.insert(at, _Pile(self.fan))
        return self._piles[at]

    def _forget(self, index: int) -> None:
        """Forget the blocks that a pile is in."""
        for level in range(1, 16):
            self._blocks.pop((level, index // self.fan**level), None)

    def _expire(self, x: int) -> None:
        gone = bisect_left(self._places, x)
        if gone:
            del self._places[:gone], self._piles[:gone]
            self._base += gone
            self._blocks = {k: n for k, n in self._blocks.items() if k[1] * self.fan ** k[0] >= self._base}

    # Blocks

    def _cover(self) -> Iterator[Node]:
        """Whole blocks of 16, 256 … piles, and the piles beside them, that make up all of them."""
        low, high, fan = self._base, self._base + len(self._piles), self.fan
        while low < high:
            level, size = 0, 1
            while low % (size * fan) == 0 and low + size * fan <= high:
                level, size = level + 1, size * fan
            yield from self._block(level, low // size)
            low += size

    def _block(self, level: int, index: int) -> list[Node]:
        if level == 0:
            return self._piles[index - self._base].nodes
        known = self._blocks.get((level, index))
        if known is None:
            inner = [n for i in range(self.fan) for n in self._block(level - 1, self.fan * index + i)]
            known = self._blocks[level, index] = Node(None, tuple(inner))
        return [known]
