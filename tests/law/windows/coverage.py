"""What the cases of a run covered: windows, slides, aggregates and joins, counted together.

A case is one query of one feed; it counts for every window, aggregate, join and shape in it. The tables are
printed at the end of a run, a column for each window with each slide; what never came up stands in them too. A
cell is the number of cases that passed, with a `!` where some did not.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

from tests.law.coverage import letter
from tests.law.sources import BELOW
from tests.law.windows.grammar import WAYS, Emit
from tests.law.windows.measures import MEASURES
from tests.law.windows.shapes import STREAM_JOINS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.law.windows.grammar import Query

JOINS = (
    "none",
    *(f"below {way}" for way in BELOW),
    *(f"below streams {kind}" for kind in ("inner", "left", "full")),
    "rows table inner",
    "rows streams inner",
    *(f"rows streams {kind}" for kind in STREAM_JOINS),
)
"""Those that come first in the table; the others follow as they came up."""


class Coverage:
    """Counts over all cases of a run."""

    def __init__(self) -> None:
        self.cases = 0
        self.passed = 0
        self.instants = 0
        self._quadruples: set[tuple[str, ...]] = set()
        self._made: Counter[tuple[str, str, str]] = Counter()
        self._lawful: Counter[tuple[str, str, str]] = Counter()

    def add(self, query: Query, *, passed: bool) -> None:
        """Count a case."""
        windows, aggregates, joins = (query.covers(kind) for kind in ("window", "aggregate", "join"))
        slide = query.covers("slide")[0]
        self.cases += 1
        self.passed += passed
        self._quadruples.update(product(windows, [slide], aggregates, joins))
        for kind in ("aggregate", "join", "shape", "emit"):
            for window, row in product(windows, query.covers(kind)):
                self._made[kind, row, way(window, slide)] += 1
                self._lawful[kind, row, way(window, slide)] += passed

    def lines(self) -> Iterable[str]:
        """The tables."""
        yield f"{self.cases} cases, {self.passed} passed, {self.instants} answers judged"
        yield f"{len(self._quadruples)} combinations of window, slide, aggregate and join"
        columns = [way(*names) for names in WAYS]
        yield "windows and slides: " + ", ".join(f"{letter(i)} {name}" for i, name in enumerate(columns))
        yield from self._table("aggregate", [*(a.name for a in MEASURES), "none"], columns)
        yield from self._table("join", JOINS, columns)
        yield from self._table("shape", (), columns)
        yield from self._table("emit", [e.value for e in Emit], columns)

    def _table(self, kind: str, known: Sequence[str], columns: Sequence[str]) -> Iterable[str]:
        rows = list(dict.fromkeys([*known, *sorted({row for of, row, _ in self._made if of == kind})]))
        width = max(map(len, rows), default=0)
        yield ""
        yield f"{kind:<{width}}" + "".join(f"{letter(i):>5}" for i in range(len(columns)))
        for row in rows:
            yield f"{row:<{width}}" + "".join(f"{self._cell(kind, row, column):>5}" for column in columns)

    def _cell(self, kind: str, row: str, column: str) -> str:
        made, lawful = self._made[kind, row, column], self._lawful[kind, row, column]
        return f"{lawful}{'!' if lawful < made else ''}" if made else "·"


def way(window: str, slide: str) -> str:
    return window if slide == "end" else f"{window}/{slide}"
