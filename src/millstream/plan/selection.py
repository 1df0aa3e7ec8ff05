"""What a selection asks of a row, in a form that thousands of queries share: sets of values, one an attribute.

A selection holds for a row if one of its terms does; a term, if the row's value of each attribute that it speaks
of is in the term's domain for it, and its other tests are true. NULL is a value here, which no comparison lets
pass. Plain data; constants are Python's, of the attribute's own type.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Cut = tuple[Any, int]
"""Where a domain begins or ends: `(v, 0)` is just before the value v, `(v, 1)` just behind it."""


@dataclass(frozen=True)
class Domain:
    """A set of values: between cuts they are in and out by turns; `starts` says whether the least are in."""

    cuts: tuple[Cut, ...] = ()
    starts: bool = True
    has_null: bool = False

    @staticmethod
    def comparing(comparison: str, value: Any) -> Domain:
        """The values that compare so with a constant."""
        before, behind = (value, 0), (value, 1)
        return {
            "=": Domain((before, behind), starts=False),
            "<>": Domain((before, behind), starts=True),
            "<": Domain((before,), starts=True),
            "<=": Domain((behind,), starts=True),
            ">": Domain((behind,), starts=False),
            ">=": Domain((before,), starts=False),
        }[comparison]

    @staticmethod
    def among(values: Iterable[Any]) -> Domain:
        """These values alone."""
        cuts = tuple(cut for v in sorted(set(values)) for cut in ((v, 0), (v, 1)))
        return Domain(cuts, starts=False)

    def others(self) -> Domain:
        """All values but these; NULL is in neither, as SQL's NOT has it, unless the domain is about NULL."""
        about_null = not self.cuts and self.starts != self.has_null
        return Domain(self.cuts, not self.starts, about_null and not self.has_null)

    def __and__(self, other: Domain) -> Domain:
        return self._with(other, operator.and_)

    def __or__(self, other: Domain) -> Domain:
        return self._with(other, operator.or_)

    def _with(self, other: Domain, combine: Callable[[bool, bool], bool]) -> Domain:
        mine, theirs = set(self.cuts), set(other.cuts)
        here, there = self.starts, other.starts
        starts = is_in = combine(here, there)
        cuts = []
        for cut in sorted(mine | theirs):
            here, there = here ^ (cut in mine), there ^ (cut in theirs)
            if combine(here, there) != is_in:
                is_in = not is_in
                cuts.append(cut)
        return Domain(tuple(cuts), starts, combine(self.has_null, other.has_null))

    def about(self, name: str) -> str:
        """The domain as a condition, for people."""
        edges = [*(((None, 0),) if self.starts else ()), *self.cuts]
        ranges = [_range(name, low, high) for low, high in zip_longest(edges[::2], edges[1::2])]
        ranges += [f"{name} IS NULL"] if self.has_null else []
        return " OR ".join(ranges) or "never"

    @property
    def constants(self) -> set[Any]:
        return {value for value, _ in self.cuts}

    @property
    def is_equality(self) -> bool:
        """Whether values are compared for being equal alone: those that equal no constant are all in, or out."""
        pairs = zip(self.cuts[::2], self.cuts[1::2], strict=False)
        return len(self.cuts) % 2 == 0 and all(low[0] == high[0] for low, high in pairs)

    @property
    def is_empty(self) -> bool:
        return not self.cuts and not self.starts and not self.has_null


def _range(name: str, low: Cut, high: Cut | None) -> str:
    """The values between two cuts; the first may be at the beginning of all, the second at the end."""
    if low[0] is None:
        return f"{name} IS NOT NULL" if high is None else f"{name} {'<=' if high[1] else '<'} {high[0]!r}"
    first = f"{name} {'>' if low[1] else '>='} {low[0]!r}"
    if high is None:
        return first
    if high[0] == low[0]:
        return f"{name} = {low[0]!r}"
    return f"{first} AND {name} {'<=' if high[1] else '<'} {high[0]!r}"


NULL = Domain(starts=False, has_null=True)


@dataclass(frozen=True)
class Term:
    """Tests that must all hold: domains by attribute, and texts of Spark SQL for what no domain says."""

    domains: Mapping[str, Domain] = field(default_factory=dict)
    rest: tuple[str, ...] = ()

    def __and__(self, other: Term) -> Term:
        domains = dict(self.domains)
        for name, domain in other.domains.items():
            domains[name] = domains[name] & domain if name in domains else domain
        return Term(domains, tuple(dict.fromkeys((*self.rest, *other.rest))))

    def __str__(self) -> str:
        """The term as a condition, for people."""
        tests = [d.about(name) for name, d in self.domains.items()]
        tests = [f"({t})" if " OR " in t and len(tests) > 1 else t for t in tests]
        return " AND ".join([*tests, *self.rest]) or "every row"

    @property
    def is_never(self) -> bool:
        """Whether it is plain that no row can satisfy it."""
        return any(d.is_empty for d in self.domains.values())


@dataclass(frozen=True)
class Selection:
    """Terms one of which must hold; one without tests holds always."""

    terms: tuple[Term, ...] = (Term(),)

    @property
    def is_exact(self) -> bool:
        """Whether domains say all of it; if not, they say which rows are worth the other tests."""
        return not any(t.rest for t in self.terms)


def selection_from(made: Mapping[str, Any]) -> Selection:
    """A selection as JSON gave it back."""
    return Selection(tuple(_term_from(t) for t in made["terms"]))


def _term_from(made: Mapping[str, Any]) -> Term:
    domains = {
        name: Domain(tuple((value, side) for value, side in d["cuts"]), d["starts"], d["has_null"])
        for name, d in made["domains"].items()
    }
    return Term(domains, tuple(made["rest"]))
