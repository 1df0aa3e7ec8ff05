"""The tests of many terms on one attribute as one operator: a grouped filter.

The constants of all terms are sorted once. A value's *code* is its place among them: 2i + 1 if it equals the ith,
2i if it lies before it; NULL has the last. A domain is some ranges of codes, so a code alone says which terms
hold, whatever their comparisons were:

    constants  10      20        a > 10  holds for codes 2, 3, 4
    codes    0  1   2   3   4    a = 20  holds for code  3

`bits` gives a code a bit a term, `lists` has for each code the numbers of the terms; which of the two is used is a
matter of how many terms hold for a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from millstream.execute.shared.codes import codes_among

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from millstream.plan.selection import Domain

    Numbers = NDArray[np.int64]
    Bits = NDArray[np.uint64]

WORD = 64
MOST_LISTED = 8_388_608
"""Lists of more terms than this in all are not made."""
MOST_TABLED = 1 << 20
"""Bits of all codes are made if they are so many words at most; else those alone of the codes that occur."""


@dataclass(frozen=True)
class Lists:
    """For each code the terms that hold, one list behind the other."""

    starts: Numbers
    terms: NDArray[np.int32]

    def at(self, codes: Numbers) -> tuple[Numbers, NDArray[np.int32]]:
        """The terms of each of some codes, as pairs of the code's place and the term."""
        counts = self.starts[codes + 1] - self.starts[codes]
        places = np.repeat(np.arange(len(codes)), counts)
        first = np.repeat(self.starts[codes] - np.cumsum(counts) + counts, counts)
        return places, self.terms[first + np.arange(len(places))]


class GroupedFilter:
    """See the module's contract; `domains` are those of the terms, by number, that speak of the attribute."""

    def __init__(self, column: str, kind: pa.DataType, domains: Mapping[int, Domain]) -> None:
        self.column = column
        self.kind = kind
        self._constants = sorted(set().union(*(d.constants for d in domains.values())))
        self._null = 2 * len(self._constants) + 1
        is_equality = all(d.is_equality for d in domains.values())
        self._codes = codes_among(self._constants, kind, is_equality=is_equality)
        self.terms = np.array(sorted(domains), np.int32)
        self._low, self._high, self._owner = self._ranges(domains)

    @property
    def codes_in_all(self) -> int:
        return self._null + 1

    @property
    def breadth(self) -> float:
        """How many terms hold for a code, on average."""
        return float((self._high - self._low).sum()) / self.codes_in_all

    def codes(self, values: pa.ChunkedArray) -> Numbers:
        """Where values lie among the constants."""
        found = self._codes.of(values)
        if values.null_count:
            found[pc.is_null(values).to_numpy()] = self._null
        return found

    def passes(self, codes: Numbers, terms: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each code satisfies the term beside it; the term has to be one of the filter's."""
        width = self.codes_in_all + 1
        # The bounds of a term's ranges in order: behind an odd number of them a code is inside of a range.
        found = np.searchsorted(self._bounds, terms.astype(np.int64) * width + codes, "right")
        return np.asarray((found & 1).astype(bool))

    @cached_property
    def _bounds(self) -> Numbers:
        width = self.codes_in_all + 1
        owner = self._owner.astype(np.int64) * width
        bounds = np.stack([owner + self._low, owner + self._high], axis=1).ravel()
        return np.sort(bounds)

    @cached_property
    def lists(self) -> Lists | None:
        """None if the lists would be too long."""
        widths = self._high - self._low
        if widths.sum() > MOST_LISTED:
            return None
        owner = np.repeat(self._owner, widths)
        codes = np.repeat(self._low - np.cumsum(widths) + widths, widths) + np.arange(len(owner))
        order = np.argsort(codes, kind="stable")
        starts = np.zeros(self.codes_in_all + 1, np.int64)
        np.cumsum(np.bincount(codes, minlength=self.codes_in_all), out=starts[1:])
        return Lists(starts, owner[order])

    def bits(self, codes: Numbers, words: int) -> Bits:
        """For each of some codes the terms that hold, `words` words of bits; terms without a test here are set."""
        used, places = np.arange(self.codes_in_all), codes
        if self.codes_in_all * words > MOST_TABLED:
            used, places = np.unique(codes, return_inverse=True)
        made = np.zeros((len(used) + 1, words), np.uint64)
        bit = np.left_shift(np.uint64(1), (self._owner % WORD).astype(np.uint64))
        for edge in (self._low, self._high):
            np.bitwise_xor.at(made, (np.searchsorted(used, edge), self._owner // WORD), bit)
        held = np.bitwise_xor.accumulate(made, axis=0)[:-1]
        return np.asarray((held | ~bits_of(self.terms, words))[places])

    def _ranges(self, domains: Mapping[int, Domain]) -> tuple[Numbers, Numbers, NDArray[np.int32]]:
        """The ranges of codes of all domains, each with the term it belongs to."""
        place = {value: i for i, value in enumerate(self._constants)}
        low, high, owner = list[int](), list[int](), list[int]()
        for term, domain in domains.items():
            edges = [2 * place[value] + 1 + side for value, side in domain.cuts]
            edges = [0, *edges] if domain.starts else edges
            edges = [*edges, self._null] if len(edges) % 2 else edges
            if domain.has_null:
                edges += [self._null, self._null + 1]
            low += edges[::2]
            high += edges[1::2]
            owner += [term] * (len(edges) // 2)
        return np.array(low, np.int64), np.array(high, np.int64), np.array(owner, np.int32)


def bits_of(terms: NDArray[np.int32], words: int) -> Bits:
    """Some terms as bits."""
    flags = np.zeros(words * WORD, bool)
    flags[terms] = True
    return np.packbits(flags, bitorder="little").view(np.uint64)
