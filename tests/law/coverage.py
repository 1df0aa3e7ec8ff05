"""What the cases of a run covered: aggregates, joins and shapes, counted together.

A case is one view of one feed; it counts for every aggregate, join and shape in it. The table is printed at the
end of a run; an aggregate or join that never came up stands in it too.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

from tests.law.aggregates import AGGREGATES
from tests.law.shapes import ABOVE, ABOVE_SUBQUERIES
from tests.law.sources import BELOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.law.grammar import Query

JOINS = (
    "none",
    *(f"below {name}" for name in BELOW),
    *(f"above {name}" for name in ABOVE),
    "above cross",
    "above theta",
    "above scalar",
    *(f"above {name}" for name, _ in ABOVE_SUBQUERIES),
    *(f"above streams {kind}" for kind in ("inner", "left", "right", "full")),
)


class Coverage:
    """Counts over all cases of a run."""

    def __init__(self) -> None:
        self.cases = 0
        self.reads: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self._triples: Counter[tuple[str, str, str]] = Counter()
        self._singles: Counter[tuple[str, str]] = Counter()
        self._pairs: dict[str, Counter[tuple[str, str]]] = {"aggregate": Counter(), "shape": Counter()}

    def add(self, query: Query) -> None:
        """Count a case."""
        aggregates, joins, shapes = (query.covers(kind) for kind in ("aggregate", "join", "shape"))
        self.cases += 1
        self._triples.update(product(aggregates, joins, shapes))
        self._singles.update(("aggregate", a) for a in aggregates)
        self._singles.update(("shape", s) for s in shapes)
        self._pairs["aggregate"].update(product(aggregates, joins))
        self._pairs["shape"].update(product(shapes, joins))

    def lines(self) -> Iterable[str]:
        """The table."""
        yield f"{self.cases} cases; reads judged: " + ", ".join(
            f"{n} by {who}" for who, n in sorted(self.reads.items())
        )
        yield "jobs of the kernel: " + ", ".join(f"{n} over {what}" for what, n in sorted(self.jobs.items()))
        yield f"{len(self._triples)} combinations of aggregate, join and shape"
        yield from (f"left out: {n} cases: {why}" for why, n in self.left_out.items())
        yield "joins: " + ", ".join(f"{letter(i)} {join}" for i, join in enumerate(JOINS))
        yield from self._table("aggregate", [a.name for a in AGGREGATES])
        yield from self._table("shape", sorted({shape for _, _, shape in self._triples}))

    def _table(self, kind: str, rows: Sequence[str]) -> Iterable[str]:
        counts = self._pairs[kind]
        width = max(len(row) for row in rows) if rows else 0
        yield ""
        yield f"{kind:<{width}}" + "".join(f"{letter(i):>5}" for i in range(len(JOINS))) + " cases"
        for row in rows:
            cells = [counts[row, join] for join in JOINS]
            yield f"{row:<{width}}" + "".join(f"{n or '·':>5}" for n in cells) + f"{self._singles[kind, row]:>6}"


def letter(number: int) -> str:
    """A, B, …, Z, a, b, …"""
    return chr(ord("A") + number) if number < 26 else chr(ord("a") + number - 26)
