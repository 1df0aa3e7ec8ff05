"""What a query that selects, projects and joins asks, in a form that thousands of queries share.

A *leaf* is a window as the query reads it, with the selection on its rows. Result rows are made of one row of each
leaf for which the equalities hold, and the test, where there is one; their columns are taken from leaves as they
are, or are expressions. Tests and expressions are Spark SQL over one relation, `r`, whose columns `column_name`
names. Plain data; goes into the catalogue as JSON with the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.plan.selection import Selection, selection_from

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS = "r"
"""What tests and expressions call the rows that they are about."""


def column_name(leaf: int, column: str, leaves: int) -> str:
    """The name of a leaf's column in tests and expressions: its own, unless there are several leaves."""
    return column.lower() if leaves == 1 else f"l{leaf}_{column.lower()}"


@dataclass(frozen=True)
class Leaf:
    """A window, by its place in the plan, and what is asked of its rows alone."""

    window: int
    selection: Selection = Selection()


@dataclass(frozen=True)
class Equality:
    """Two leaves' columns that are to be equal."""

    left: int
    left_column: str
    right: int
    right_column: str


@dataclass(frozen=True)
class Output:
    """A column of the result: a leaf's own column, or else an expression."""

    leaf: int = 0
    column: str = ""
    text: str = ""


@dataclass(frozen=True)
class Shared:
    """See the module's contract."""

    leaves: tuple[Leaf, ...]
    equalities: tuple[Equality, ...]
    test: str | None
    outputs: tuple[Output, ...]

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to evaluate: domains and columns say it all."""
        return self.test is None and not any(o.text for o in self.outputs)

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions among the columns of the result."""
        return tuple(o.text for o in self.outputs if o.text)


def shared_from(made: Mapping[str, Any]) -> Shared:
    """A record as JSON gave it back."""
    return Shared(
        tuple(Leaf(leaf["window"], selection_from(leaf["selection"])) for leaf in made["leaves"]),
        tuple(Equality(**e) for e in made["equalities"]),
        made["test"],
        tuple(Output(**o) for o in made["outputs"]),
    )
