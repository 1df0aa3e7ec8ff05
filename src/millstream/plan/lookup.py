"""A bound query → a lookup: columns of one table where columns compare with constants, and nothing else.

Such a query over few rows needs no plan and no job: storage reads and compares them itself. A query is a
lookup only if every word of it is understood and the comparisons mean exactly what Spark would take them for;
all others are Spark's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from millstream.plan import compare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from millstream.schema import Schema
    from millstream.sql.statements import Query
    from millstream.storage.prune import Comparison
    from millstream.storage.scan import Scan

MOST_ROWS = 2_097_152
"""Beyond this Spark's cores gain more than planning and starting a job cost."""
CLAUSES = frozenset({"kind", "expressions", "from_", "where"})
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?")


@dataclass(frozen=True)
class Lookup:
    """The rows of a scan that satisfy all comparisons: pairs of a column and the name it goes by."""

    scan: Scan
    columns: tuple[tuple[str, str], ...]
    comparisons: tuple[Comparison, ...]


def of_query(query: Query, scan: Scan, parameters: Mapping[str, Any], time: str | None) -> Lookup | None:
    """The query over its one table, read by `scan`, as a lookup; None if it is anything more."""
    tree = query.tree
    if not isinstance(tree, exp.Select) or scan.rows_in_groups > MOST_ROWS or "|>" in query.text:
        return None
    source = tree.args["from_"].this if tree.args.get("from_") else None
    if not isinstance(source, exp.Table) or not _is_plain(tree, source) or query.text.count(",") != _commas(tree):
        return None
    alias, schema = source.alias_or_name.lower(), scan.table.schema
    columns = list(_columns(tree, alias, schema, nested=scan.token is not None))
    comparisons = _comparisons(tree, alias, schema, parameters, time)
    if not columns or None in columns or comparisons is None:
        return None
    return Lookup(scan, tuple(c for c in columns if c is not None), comparisons)


def _is_plain(tree: exp.Select, source: exp.Table) -> bool:
    said = {name for name, value in tree.args.items() if value}
    said_of_source = {name for name, value in source.args.items() if value}
    alias = source.args.get("alias")
    return (
        said <= CLAUSES
        and not tree.args.get("kind")
        and not tree.args.get("hint")
        and said_of_source <= {"this", "alias", "db"}
        and not (alias is not None and alias.args.get("columns"))
    )


def _commas(tree: exp.Select) -> int:
    """How many a well-written text has: sqlglot forgives those that separate nothing, and Spark does not."""
    lists = [tree.expressions, *(i.expressions for i in tree.find_all(exp.In))]
    return sum(len(part) - 1 for part in lists) + len(list(tree.find_all(exp.Overlaps)))


def _columns(tree: exp.Select, alias: str, schema: Schema, *, nested: bool) -> Iterator[tuple[str, str] | None]:
    def simple(name: str, called: str) -> tuple[str, str] | None:
        return _simple(schema, name, called, nested=nested)

    for expression in tree.expressions:
        if isinstance(expression, exp.Star) and not any(expression.args.values()):
            yield from (simple(n, n) for n in schema.names)
        elif isinstance(expression, exp.Column) and isinstance(expression.this, exp.Star):
            whole = not any(expression.this.args.values()) and _belongs(expression, alias)
            yield from (simple(n, n) for n in schema.names) if whole else [None]
        else:
            column = expression.this if isinstance(expression, exp.Alias) else expression
            known = isinstance(column, exp.Column) and _belongs(column, alias)
            yield simple(column.name, expression.alias_or_name) if known else None


def _belongs(column: exp.Column, alias: str) -> bool:
    return not column.args.get("db") and column.table.lower() in ("", alias)


def _simple(schema: Schema, name: str, called: str, *, nested: bool) -> tuple[str, str] | None:
    """A column that Arrow and Spark give back alike; nested ones in files differ in the names of their parts."""
    found = schema.get(name)
    return None if found is None or (pa.types.is_nested(found.type) and not nested) else (found.name, called)


def _comparisons(
    tree: exp.Select, alias: str, schema: Schema, parameters: Mapping[str, Any], time: str | None
) -> tuple[Comparison, ...] | None:
    where = tree.args.get("where")
    if where is None:
        return ()
    found = compare.exactly(where.this, alias, schema, parameters, time)
    if found is None or not all(
        _is_exact(schema, c, conjunct, parameters) for conjunct, said in found for c in said
    ):
        return None
    return tuple(c for _, said in found for c in said)


def _is_exact(schema: Schema, comparison: Comparison, said: exp.Expr, parameters: Mapping[str, Any]) -> bool:
    """Whether the values compare as Spark compares them, with no conversion of the column in between."""
    column = schema.get(comparison.column)
    assert column is not None
    if pa.types.is_integer(column.type):
        return all(type(v) is int for v in comparison.values)
    if pa.types.is_temporal(column.type):
        # Python reads more forms of a time than Spark does.
        return all(ISO_TIME.fullmatch(text) for text in _texts(said, parameters))
    return bool(pa.types.is_string(column.type))


def _texts(said: exp.Expr, parameters: Mapping[str, Any]) -> Iterator[str]:
    yield from (e.this for e in said.find_all(exp.Literal) if e.is_string)
    given = (parameters.get(p.name) for p in said.find_all(exp.Placeholder))
    yield from (v for v in given if isinstance(v, str))
