"""Grouping sets of a GROUP BY: their expressions, those that a state could not tell apart, our names for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.rewrite import names
from millstream.rewrite.refuse import refused

if TYPE_CHECKING:
    from collections.abc import Sequence

SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


def leaves(said: exp.Group) -> list[exp.Expr]:
    """The expressions of a GROUP BY in the order in which grouping_id counts them."""
    found: list[exp.Expr] = []

    def visit(node: exp.Expr) -> None:
        if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
            for child in node.expressions:
                visit(child)
        elif isinstance(node, exp.Paren):
            visit(node.this)
        elif node not in found:
            found.append(node)

    for clause in ("expressions", "rollup", "cube", "grouping_sets"):
        for node in said.args.get(clause) or []:
            visit(node)
    return found


def check(said: exp.Group) -> None:
    """Refuse sets that could not be told apart in a state, or that stand behind the keys."""
    behind = any(said.args.get(c) for c in ("rollup", "cube", "grouping_sets"))
    if behind and said.expressions:
        raise refused(
            "grouping sets behind the columns of GROUP BY",
            said,
            "Write GROUP BY GROUPING SETS (…), ROLLUP (…) or CUBE (…).",
        )
    clauses = [
        *said.expressions,
        *(n for c in ("rollup", "cube", "grouping_sets") for n in said.args.get(c) or []),
    ]
    if not any(isinstance(c, SETS) for c in clauses):
        return
    if any(isinstance(leaf, exp.Literal) for leaf in leaves(said)):
        raise refused("a number of a column in grouping sets", said, "Name the column.")
    every = [frozenset[str]()]
    for clause in clauses:
        every = [known | more for known in every for more in _sets_of(clause)]
    if len(set(every)) < len(every):
        raise refused("a grouping set that is there twice", said, "Name each set of columns once.")


def _sets_of(clause: exp.Expr) -> list[frozenset[str]]:
    """The sets of columns that a clause of GROUP BY stands for."""
    if isinstance(clause, exp.GroupingSets):
        return [s for inner in clause.expressions for s in _sets_of(inner)]
    if not isinstance(clause, exp.Rollup | exp.Cube):
        return [_columns_of(clause)]
    units = [_columns_of(e) for e in clause.expressions]
    if isinstance(clause, exp.Rollup):
        return [frozenset().union(*units[:n]) for n in range(len(units) + 1)]
    chosen = ([u for i, u in enumerate(units) if mask >> i & 1] for mask in range(1 << len(units)))
    return [frozenset().union(*some) for some in chosen]


def _columns_of(unit: exp.Expr) -> frozenset[str]:
    if isinstance(unit, exp.Tuple):
        return frozenset(names.text(e) for e in unit.expressions)
    return frozenset({names.text(unit.unnest())})


def renamed(said: exp.Group, pairs: Sequence[tuple[exp.Expr, str]]) -> str:
    made = said.copy()

    def rename(node: exp.Expr) -> exp.Expr:
        name = next((n for e, n in pairs if e == node), None)
        return node if name is None else exp.column(name)

    return names.text(made.transform(rename)).strip().removeprefix("GROUP BY").strip()
