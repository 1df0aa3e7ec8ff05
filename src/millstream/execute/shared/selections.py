"""The selections of all queries on a stream, as operators that they share; queries come and go between batches.

Each term of a selection has a number, given back when its query goes. What is added or dropped marks the
attributes it speaks of; their filters are made anew when the next batch comes. Tests that no domain says are
evaluated by whoever calls, each text once for a batch and only for rows that may need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from millstream.execute.shared.grouped import WORD, GroupedFilter
from millstream.execute.shared.lineage import NEVER, BitLineage, PairLineage

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from millstream.execute.shared.grouped import Numbers
    from millstream.execute.shared.lineage import Found
    from millstream.plan.selection import Domain, Selection, Term

BREADTH_A_WORD = 2.0
"""Bits are cheaper than pairs from so many terms a row on, for each word of bits."""
Evaluate = Callable[["pa.Table", Sequence[str]], "Mapping[str, NDArray[np.bool_]]"]


class Policy(Protocol):
    """Orders operators; `schedule.eddy` has some."""

    def choose(self, ready: Sequence[str]) -> str: ...

    def observe(self, operator: str, queries: int, taken: int, returned: int) -> None: ...


@dataclass(frozen=True)
class Matches:
    """Rows with the queries that they are for, by query, then by row; each pair once."""

    rows: Numbers
    queries: Numbers


class Selections:
    """See the module's contract; `types` are those of the stream's columns, by name in lower case."""

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self._types = types
        self._terms: list[Term | None] = []
        self._owners: list[int] = []
        self._free: list[int] = []
        self._of_query: dict[int, tuple[int, ...]] = {}
        self._domains: dict[str, dict[int, Domain]] = {}
        self._filters: dict[str, GroupedFilter] = {}

    def __len__(self) -> int:
        return len(self._of_query)

    def add(self, query: int, selection: Selection) -> None:
        """Serve one more query from the next batch on."""
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

    # A batch

    @property
    def operators(self) -> list[str]:
        return sorted(self._domains)

    def filter_of(self, name: str) -> GroupedFilter:
        if name not in self._filters:
            self._filters[name] = GroupedFilter(name, self._types[name], self._domains[name])
        return self._filters[name]

    def match(self, rows: pa.Table, policy: Policy, evaluate: Evaluate) -> Matches:
        """The rows of a batch that are for some query; the order of operators is the policy's."""
        lineage, ready = self.lineage(rows.num_rows), self.operators
        numbers = {name: i for i, name in enumerate(ready)}
        while ready and len(lineage.alive):
            name = policy.choose(ready)
            ready.remove(name)
            used = self.filter_of(name)
            codes = used.codes(rows.column(name))
            codes = codes[lineage.alive] if isinstance(lineage, BitLineage) else codes
            passing = lineage.through(numbers[name], codes, used)
            policy.observe(name, len(used.terms), passing.taken, passing.returned)
        return self._owned(self._tested(rows, lineage.found(), evaluate))

    def lineage(self, rows: int) -> BitLineage | PairLineage:
        """The lineage of a new batch, in the way that is cheaper for the terms there are."""
        masks = self.masks()
        filters = [self.filter_of(name) for name in self.operators]
        breadth = min((f.breadth for f in filters), default=0.0)
        words = -(-len(masks) // WORD)
        if breadth > BREADTH_A_WORD * words or any(f.lists is None for f in filters):
            return BitLineage(rows, masks)
        return PairLineage(rows, masks)

    def masks(self) -> NDArray[np.uint64]:
        """For each term the operators that it needs, a bit each."""
        made = np.zeros(len(self._terms), np.uint64)
        made[self._free] = NEVER
        for number, name in enumerate(self.operators):
            made[self.filter_of(name).terms] |= np.uint64(1 << number)
        return made

    def _tested(self, rows: pa.Table, found: Found, evaluate: Evaluate) -> Found:
        """What is left of pairs when the other tests of their terms are done."""
        places, terms = found
        used = np.zeros(len(self._terms), bool)
        used[terms] = True
        resting = {n: t.rest for n, t in enumerate(self._terms) if t is not None and t.rest and used[n]}
        if not resting:
            return found
        kept = np.ones(len(terms), bool)
        needed = np.unique(places[np.isin(terms, list(resting))])
        results = evaluate(rows.take(needed), sorted(set().union(*resting.values())))
        for number, tests in resting.items():
            own = np.flatnonzero(terms == number)
            at = np.searchsorted(needed, places[own])
            for test in tests:
                kept[own] &= results[test][at]
        return places[kept], terms[kept]

    def _owned(self, found: Found) -> Matches:
        """Pairs of rows and queries; a row that satisfies several terms of a query is for it once."""
        places, terms = found
        queries = np.array(self._owners, np.int64)[terms]
        order = np.lexsort((places, queries))
        places, queries = places[order], queries[order]
        is_first = np.ones(len(places), bool)
        is_first[1:] = (places[1:] != places[:-1]) | (queries[1:] != queries[:-1])
        return Matches(places[is_first], queries[is_first])
