"""A query in normal form → what it shares with others: leaves with selections, equalities, a test for the rest.

Only queries that select, project and join windows have such a form; `UnsharedError` says what keeps a query from
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from millstream.plan.sharing import ROWS, Equality, Leaf, Output, Shared, column_name
from millstream.rewrite import names
from millstream.rewrite.selection import selection_of
from millstream.rewrite.splitting import number_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Types = Mapping[str, pa.DataType]


MANY_ROWS = (exp.Explode, exp.Inline, exp.Unnest)
MANY_NAMES = frozenset(
    {"stack", "inline", "inline_outer", "json_tuple", "variant_explode", "variant_explode_outer"}
)
"""Functions that make several rows of one."""


class UnsharedError(Exception):
    """A query is run by itself; the message says why."""


def shared_of(query: exp.Query, types: Sequence[Types]) -> Shared:
    """What a query over windows asks; `types` are the columns of each window, by name in lower case."""
    select = query.unnest()
    if not isinstance(select, exp.Select) or select.args.get("laterals"):
        raise UnsharedError("it is not a plain SELECT")
    aliases, leaves = _leaves(select)
    asked = [*select.expressions, *_conditions(select)]
    for node in (n for e in asked for n in names.own_nodes(e)):
        _check(node, aliases, leaves, types)
    return _Sharing(aliases, leaves, types).of(select)


def _leaves(select: exp.Select) -> tuple[dict[str, int], list[int]]:
    """The sources by name, and the window of each."""
    aliases: dict[str, int] = {}
    windows: list[int] = []
    for source in names.sources(select):
        window = number_of(source.name) if isinstance(source, exp.Table) else None
        if window is None:
            raise UnsharedError("it reads more than streams")
        aliases[source.alias_or_name.lower()] = len(windows)
        windows.append(window)
    return aliases, windows


def _conditions(select: exp.Select) -> list[exp.Expr]:
    joins = select.args.get("joins") or []
    if any(j.args.get("using") or j.args.get("method") for j in joins):
        raise UnsharedError("a join says USING")
    found = [j.args.get("on") for j in joins]
    where = select.args.get("where")
    found.append(None if where is None else where.this)
    return [c for on in found for c in names.conjuncts(on)]


def _check(node: exp.Expr, aliases: Mapping[str, int], windows: Sequence[int], types: Sequence[Types]) -> None:
    if isinstance(node, names.QUERIES):
        raise UnsharedError("it has a subquery")
    if names.is_random(node):
        raise UnsharedError("it draws random values")
    if isinstance(node, MANY_ROWS) or (isinstance(node, exp.Func) and names.name_of(node) in MANY_NAMES):
        raise UnsharedError("it makes several rows of one")
    if not isinstance(node, exp.Column):
        return
    leaf = aliases.get(node.table.lower())
    if leaf is None or node.name.lower() not in types[windows[leaf]]:
        raise UnsharedError(f"{node.name} is not a column of its stream")


class _Sharing:
    def __init__(self, aliases: Mapping[str, int], windows: Sequence[int], types: Sequence[Types]) -> None:
        self._aliases = aliases
        self._windows = windows
        self._types = [types[w] for w in windows]

    def of(self, select: exp.Select) -> Shared:
        conditions = _conditions(select)
        outputs = tuple(self._output(e) for e in select.expressions)
        if len(self._windows) == 1:
            whole = exp.and_(*conditions) if conditions else None
            selection = selection_of(whole, self._types[0])
            test = None if whole is None or selection.is_exact else self._text(whole)
            return Shared((Leaf(self._windows[0], selection),), (), test, outputs)
        own: list[list[exp.Expr]] = [[] for _ in self._windows]
        equalities, rest = [], []
        for condition in conditions:
            equality, leaf = self._equality(condition), self._only_leaf(condition)
            if equality is not None:
                equalities.append(equality)
            elif leaf is not None and selection_of(condition, self._types[leaf]).is_exact:
                own[leaf].append(condition)
            else:
                rest.append(condition)
        self._check_connected(equalities, rest)
        leaves = tuple(self._leaf(i, tests, rest) for i, tests in enumerate(own))
        return Shared(leaves, tuple(equalities), self._text(exp.and_(*rest)) if rest else None, outputs)

    def _leaf(self, number: int, tests: list[exp.Expr], rest: list[exp.Expr]) -> Leaf:
        selection = selection_of(exp.and_(*tests) if tests else None, self._types[number])
        if not selection.is_exact:
            rest += tests
        return Leaf(self._windows[number], selection)

    def _leaf_of(self, column: exp.Column) -> int:
        return self._aliases[column.table.lower()]

    def _only_leaf(self, node: exp.Expr) -> int | None:
        found = {self._leaf_of(c) for c in node.find_all(exp.Column)}
        return found.pop() if len(found) == 1 else None

    def _equality(self, node: exp.Expr) -> Equality | None:
        node = node.unnest()
        if not isinstance(node, exp.EQ):
            return None
        left, right = node.this.unnest(), node.expression.unnest()
        if not (isinstance(left, exp.Column) and isinstance(right, exp.Column)):
            return None
        a, b = self._leaf_of(left), self._leaf_of(right)
        first, second = (self._types[leaf][c.name.lower()] for leaf, c in ((a, left), (b, right)))
        if a == b or not _have_one_form(first, second):
            return None
        return Equality(a, left.name.lower(), b, right.name.lower())

    def _check_connected(self, equalities: Sequence[Equality], rest: Sequence[exp.Expr]) -> None:
        if not equalities and any(self._is_hashed(condition) for condition in rest):
            raise UnsharedError("Spark joins it by hashing what is to be equal")
        reached, more = {0}, True
        while more:
            found = {x for e in equalities if {e.left, e.right} & reached for x in (e.left, e.right)}
            more = not found <= reached
            reached |= found
        # Two streams are joined all the same, by nested loops.
        if len(reached) < len(self._windows) and len(self._windows) > 2:
            raise UnsharedError("its streams are not joined by equal columns")

    def _is_hashed(self, node: exp.Expr) -> bool:
        """Whether it says that something of one stream is equal to something of another."""
        node = node.unnest()
        if not isinstance(node, exp.EQ):
            return False
        sides = self._only_leaf(node.this), self._only_leaf(node.expression)
        return None not in sides and sides[0] != sides[1]

    def _output(self, node: exp.Expr) -> Output:
        value = node.unalias()
        if isinstance(value, exp.Column):
            return Output(self._leaf_of(value), value.name.lower())
        return Output(text=self._text(value))

    def _text(self, node: exp.Expr) -> str:
        """An expression over the one relation that everybody shares."""
        copy = exp.Paren(this=node.copy())
        for column in list(copy.find_all(exp.Column)):
            name = column_name(self._leaf_of(column), column.name, len(self._windows))
            column.replace(exp.column(name, table=ROWS, quoted=True))
        return names.text(copy.this)


def _have_one_form(first: pa.DataType, second: pa.DataType) -> bool:
    """Whether values of two types are equal just if they are the same number or written in the same way."""
    if pa.types.is_integer(first) and pa.types.is_integer(second):
        return True
    plain = (pa.types.is_string, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_boolean)
    return first == second and any(is_one(first) for is_one in plain)
