"""Which rows of a batch still serve which terms: the lineage that a batch carries from operator to operator.

    done        which operators the batch has been through, a bit each
    completed   for each row the terms that it was given to or that have rejected it, a bit each
    mask        for each term the operators that it needs, a bit each; kept with the terms

A term takes its rows as soon as its mask is done. A batch is worked on by one operator at a time, so all its rows
have the same `done`. There are two ways to keep the rest: as bits, and as pairs of rows and terms. Bits cost the
same whatever holds; pairs cost what holds, and terms that no operator has tested yet are in no pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from millstream.execute.shared.grouped import WORD, bits_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from millstream.execute.shared.grouped import Bits, GroupedFilter, Numbers

    Terms = NDArray[np.int32]
    Found = tuple[Numbers, Terms]

NEVER = np.uint64(1 << 63)
"""The mask of a number that no term has."""
NOTHING: Found = (np.empty(0, np.int64), np.empty(0, np.int32))


@dataclass
class Passing:
    """What an operator took and gave back, each a number of rows times terms."""

    taken: int
    returned: int


class BitLineage:
    """A bit for each row and term."""

    def __init__(self, rows: int, masks: NDArray[np.uint64]) -> None:
        self._masks = masks
        self._words = -(-len(masks) // WORD)
        self.done = 0
        self.places = np.arange(rows)
        """The rows that have not died, by their place in the batch."""
        empty = np.flatnonzero(masks == 0).astype(np.int32)
        there = np.flatnonzero(masks != NEVER).astype(np.int32)
        self.completed = np.tile(~bits_of(there, self._words), (rows, 1))
        self._found = [self._take(empty)]

    def through(self, operator: int, codes: Numbers, filtered: GroupedFilter) -> Passing:
        """Let an operator reject; terms that need no other take their rows."""
        tested = bits_of(filtered.terms, self._words)
        before = _ones(tested & ~self.completed)
        self.completed |= ~filtered.bits(codes, self._words)
        after = _ones(tested & ~self.completed)
        self.done |= 1 << operator
        self._complete()
        return Passing(before, after)

    def _complete(self) -> None:
        needed = self._masks & ~np.uint64(self.done)
        ready = np.flatnonzero((needed == 0) & (self._masks != 0)).astype(np.int32)
        self._found.append(self._take(ready))
        alive = ~(self.completed == ~np.uint64(0)).all(axis=1)
        if not alive.all():
            self.completed, self.places = self.completed[alive], self.places[alive]

    def _take(self, terms: Terms) -> Found:
        """Give rows to terms that have all they need; each is given once."""
        chosen = bits_of(terms, self._words)
        given = chosen & ~self.completed
        self.completed |= chosen
        if not given.any():
            return NOTHING
        rows, found = np.nonzero(np.unpackbits(given.view(np.uint8), axis=1, bitorder="little"))
        return self.places[rows], found.astype(np.int32)

    def found(self) -> Found:
        """All rows with the terms that took them."""
        return _joined(self._found)

    @property
    def alive(self) -> NDArray[np.int64]:
        return self.places

    @property
    def is_over(self) -> bool:
        """Whether no row may still serve a term."""
        return not len(self.places)


@dataclass
class PairLineage:
    """Pairs of rows and terms; `untested` are the terms that every row still serves."""

    rows: int
    masks: NDArray[np.uint64]
    done: int = 0
    pairs: Found = NOTHING
    untested: NDArray[np.bool_] = field(init=False)
    _found: list[Found] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.untested = (self.masks != 0) & (self.masks != NEVER)
        empty = np.flatnonzero(self.masks == 0).astype(np.int32)
        self._found.append((np.tile(np.arange(self.rows), len(empty)), np.repeat(empty, self.rows)))

    def through(self, operator: int, codes: Numbers, filtered: GroupedFilter) -> Passing:
        """Let an operator reject; terms that need no other take their rows."""
        rows, terms = self.pairs
        tested = np.zeros(len(self.masks), bool)
        tested[filtered.terms] = True
        is_tested = tested[terms]
        first = int(np.count_nonzero(tested & self.untested))
        taken = first * self.rows + int(np.count_nonzero(is_tested))
        passes = ~is_tested
        passes[is_tested] = filtered.passes(codes[rows[is_tested]], terms[is_tested])
        rows, terms = rows[passes], terms[passes]
        returned = int(np.count_nonzero(tested[terms]))
        if first:
            new = self._first(codes, filtered)
            returned += len(new[0])
            rows, terms = np.concatenate([rows, new[0]]), np.concatenate([terms, new[1]])
            self.untested &= ~tested
        self.done |= 1 << operator
        self._complete(rows, terms)
        return Passing(taken, returned)

    def _first(self, codes: Numbers, filtered: GroupedFilter) -> Found:
        """The pairs of terms that no operator has tested before."""
        assert filtered.lists is not None
        places, terms = filtered.lists.at(codes)
        kept = self.untested[terms]
        return (places, terms) if kept.all() else (places[kept], terms[kept])

    def _complete(self, rows: Numbers, terms: Terms) -> None:
        ready = ((self.masks & ~np.uint64(self.done)) == 0)[terms]
        self._found.append((rows[ready], terms[ready]))
        self.pairs = rows[~ready], terms[~ready]

    def found(self) -> Found:
        """All rows with the terms that took them."""
        return _joined(self._found)

    @property
    def alive(self) -> NDArray[np.int64]:
        """The rows that may still serve a term."""
        return np.arange(self.rows) if self.untested.any() else np.unique(self.pairs[0])

    @property
    def is_over(self) -> bool:
        """Whether no row may still serve a term."""
        return not len(self.pairs[0]) and not self.untested.any()


def _ones(bits: Bits) -> int:
    return int(np.bitwise_count(bits).sum())


def _joined(found: list[Found]) -> Found:
    return np.concatenate([rows for rows, _ in found]), np.concatenate([terms for _, terms in found])
