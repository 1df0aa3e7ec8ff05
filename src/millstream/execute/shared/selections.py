"""The selections of all queries on a stream, as operators that they share; queries come and go between batches.

Each term of a selection has a number, given back when its query goes. What is added or dropped marks the
attributes it speaks of; their filters are made anew when the next batch comes. Of tests that no domain says,
nothing is known here: the rows of a selection that has some are those that are worth them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from millstream.execute.shared.grouped import WORD, GroupedFilter
from millstream.execute.shared.lineage import NEVER, BitLineage, PairLineage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from millstream.execute.shared.grouped import Numbers
    from millstream.execute.shared.lineage import Found
    from millstream.plan.selection import Domain, Selection, Term

BREADTH_A_WORD = 2.0
"""Bits are cheaper than pairs from so many terms a row on, for each word of bits."""
MOST_OPERATORS = WORD - 2
"""So many attributes are operators of their own, those with the most tests; tests on others come last."""


@dataclass(frozen=True)
class Passed:
    """What became of a batch in an operator: rows times terms that it took, and that it gave back."""

    operator: str
    terms: int
    taken: int
    returned: int


@dataclass(frozen=True)
class Matches:
    """Rows with the queries that they are for, by query, then by row, each pair once; and how they were found."""

    rows: Numbers
    queries: Numbers
    passed: tuple[Passed, ...] = ()


@dataclass(frozen=True)
class Matcher:
    """Operators as they are at one time, ready for batches; `filters` are by attribute, `later` have no bit."""

    filters: Mapping[str, GroupedFilter]
    later: tuple[str, ...]
    masks: NDArray[np.uint64]
    owners: Numbers

    @property
    def operators(self) -> list[str]:
        return [name for name in self.filters if name not in self.later]

    def lineage(self, rows: int) -> BitLineage | PairLineage:
        """The lineage of a new batch, in the way that is cheaper for the terms there are."""
        filters = [self.filters[name] for name in self.operators]
        breadth = min((f.breadth for f in filters), default=0.0)
        words = -(-len(self.masks) // WORD)
        if breadth > BREADTH_A_WORD * words or any(f.lists is None for f in filters):
            return BitLineage(rows, self.masks)
        return PairLineage(rows, self.masks)

    def match(self, rows: pa.Table, order: Sequence[str]) -> Matches:
        """The rows of a batch that are for some query; it goes through the operators in the order given."""
        lineage, passed = self.lineage(rows.num_rows), []
        numbers = {name: i for i, name in enumerate(self.operators)}
        for name in order:
            if lineage.is_over:
                break
            used = self.filters[name]
            codes = used.codes(rows.column(name))
            codes = codes[lineage.alive] if isinstance(lineage, BitLineage) else codes
            found = lineage.through(numbers[name], codes, used)
            passed.append(Passed(name, len(used.terms), found.taken, found.returned))
        pairs = lineage.found()
        for name in self.later:
            pairs = _tested(pairs, rows, self.filters[name])
        return self._owned(pairs, max(1, rows.num_rows), tuple(passed))

    def _owned(self, found: Found, rows: int, passed: tuple[Passed, ...]) -> Matches:
        """Pairs of rows and queries; a row that satisfies several terms of a query is for it once."""
        places, terms = found
        # One number for each pair: to sort these is many times as fast as to sort pairs.
        pairs = np.sort(self.owners[terms] * rows + places)
        if len(pairs):
            pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])]
        queries, places = np.divmod(pairs, rows)
        return Matches(places, queries, passed)


class Selections:
    """See the module's contract; `types` are those of the stream's columns, by name in lower case."""

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self.types = types
        self._terms: list[Term | None] = []
        self._owners: list[int] = []
        self._free: list[int] = []
        self._of_query: dict[int, tuple[int, ...]] = {}
        self._domains: dict[str, dict[int, Domain]] = {}
        self._filters: dict[str, GroupedFilter] = {}
        self._matcher: Matcher | None = None

    def __len__(self) -> int:
        return len(self._of_query)

    def add(self, query: int, selection: Selection) -> None:
        """Serve one more query from the next batch on."""
        self._matcher = None
        self._of_query[query] = tuple(self._numbered(query, term) for term in selection.terms)

    def _numbered(self, query: int, term: Term) -> int:
        if self._free:
            number = self._free.pop()
            self._terms[number], self._owners[number] = term, query
        else:
            number = len(self._terms)
            self._terms.append(term)
            self._owners.append(query)
        for name, domain in term.domains.items():
            self._domains.setdefault(name, {})[number] = domain
            self._filters.pop(name, None)
        return number

    def drop(self, query: int) -> None:
        """Serve a query no more, and give its numbers back."""
        self._matcher = None
        for number in self._of_query.pop(query):
            term = self._terms[number]
            assert term is not None
            for name in term.domains:
                del self._domains[name][number]
                self._filters.pop(name, None)
                if not self._domains[name]:
                    del self._domains[name]
            self._terms[number] = None
            self._free.append(number)

    def ready(self) -> Matcher:
        """The operators for the queries there are."""
        if self._matcher is None:
            operators, later = self._ranked()
            for name in self._domains:
                if name not in self._filters:
                    self._filters[name] = GroupedFilter(name, self.types[name], self._domains[name])
            filters = {name: self._filters[name] for name in (*operators, *later)}
            masks = np.zeros(len(self._terms), np.uint64)
            masks[self._free] = NEVER
            for number, name in enumerate(operators):
                masks[filters[name].terms] |= np.uint64(1 << number)
            self._matcher = Matcher(filters, tuple(later), masks, np.array(self._owners, np.int64))
        return self._matcher

    def _ranked(self) -> tuple[list[str], list[str]]:
        """The attributes that are operators, and those for which there is no bit."""
        if len(self._domains) <= MOST_OPERATORS:
            return sorted(self._domains), []
        by_size = sorted(self._domains, key=lambda name: (-len(self._domains[name]), name))
        return sorted(by_size[:MOST_OPERATORS]), by_size[MOST_OPERATORS:]


def _tested(found: Found, rows: pa.Table, used: GroupedFilter) -> Found:
    """What one more test leaves of rows and the terms that took them."""
    places, terms = found
    kept = np.ones(len(terms), bool)
    own = np.flatnonzero(np.isin(terms, used.terms))
    kept[own] = used.passes(used.codes(rows.column(used.column))[places[own]], terms[own])
    return places[kept], terms[kept]
