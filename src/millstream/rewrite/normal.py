"""A view's query in its normal form: views opened, WITH inlined, every column with its table, nothing to look up.

What sqlglot's `qualify` does not know of our dialect is settled before it runs. Positions of the user's words
stay on the nodes, so that what is refused later can be underlined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from millstream.rewrite import names
from millstream.rewrite.refuse import refused
from millstream.sql.dialect import Millstream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Opened = Callable[[str], exp.Query | None]
    Placed = Callable[[exp.Table], None]

BARE = (exp.CurrentUser, exp.CurrentCatalog, exp.CurrentSchema, exp.SessionUser, exp.CurrentTimezone)


def normal(
    tree: exp.Query, opened: Opened, columns: Mapping[str, Sequence[str]], placed: Placed | None = None
) -> exp.Query:
    """The query over base tables and streams alone.

    `opened` gives the query of a view, None for anything else; `columns` the columns of what is left, by name in
    lower case. `placed` may give what is left other names, which `columns` is then asked for.
    """
    tree = _with_views(tree.copy(), opened)
    if placed is not None:
        for table in list(tree.find_all(exp.Table)):
            placed(table)
    for select in tree.find_all(exp.Select):
        _take_off_brackets(select)
    for table in tree.find_all(exp.Table):
        table.set("db", None)
    meant = tree.transform(_as_spark_means_it)
    schema: dict[str, object] = {name: dict.fromkeys(known, "STRING") for name, known in columns.items()}
    try:
        made = qualify(
            meant,
            dialect=Millstream,
            schema=schema,
            validate_qualify_columns=False,
            quote_identifiers=True,
            isolate_tables=False,
        )
    except (SqlglotError, RecursionError) as error:
        raise refused(
            "the names in this query could not be told apart",
            None,
            "Give every table an alias, and write it in front of its columns.",
            detail=str(error).splitlines()[0],
        ) from error
    assert isinstance(made, exp.Query)
    return made


def _as_spark_means_it(node: exp.Expr) -> exp.Expr:
    """What sqlglot takes for something else, or writes without brackets so that it would be a column."""
    if isinstance(node, exp.Any) and not isinstance(node.parent, exp.Binary):
        return exp.LogicalOr(this=node.this.unnest())
    if isinstance(node, BARE):
        return exp.Anonymous(this=names.name_of(node))
    return node


def _with_views(tree: exp.Query, opened: Opened) -> exp.Query:
    """The query with its WITH put in place first: a name in it says nothing about names in a view."""
    for query in reversed([n for n in tree.walk() if n.args.get("with_")]):
        _inline(query)
    for table in list(tree.find_all(exp.Table)):
        body = opened(table.name)
        if body is not None:
            table.replace(_derived(_with_views(body.copy(), opened), table))
    return tree


def _take_off_brackets(select: exp.Select) -> None:
    """`FROM (a JOIN b ON …)` as `FROM a JOIN b ON …`; brackets in other places mean another order."""
    first = select.args.get("from_")
    while (
        first is not None and isinstance(first.this, exp.Subquery) and not isinstance(first.this.this, exp.Query)
    ):
        outer, inner = first.this, first.this.this
        if outer.alias:
            raise refused("a name for a join in brackets", outer, "Write (SELECT … FROM …) AS name.")
        joins = [
            *(inner.args.get("joins") or []),
            *(outer.args.get("joins") or []),
            *(select.args.get("joins") or []),
        ]
        inner.set("joins", None)
        first.set("this", inner)
        select.set("joins", joins)
    for join in select.args.get("joins") or []:
        if isinstance(join.this, exp.Subquery) and not isinstance(join.this.this, exp.Query):
            raise refused("a join in brackets behind JOIN", join.this, "Write it as (SELECT … FROM …) AS name.")


def _inline(query: exp.Expr) -> None:
    """Put the queries of a WITH in the places of their names."""
    made = query.args["with_"]
    if made.args.get("recursive"):
        raise refused("a recursive WITH cannot be taken apart", made, "Write the query without recursion.")
    query.set("with_", None)
    bodies: dict[str, exp.CTE] = {}
    for cte in made.expressions:
        _put(cte.this, bodies)
        bodies[cte.alias.lower()] = cte
    _put(query, bodies)


def _put(query: exp.Expr, bodies: Mapping[str, exp.CTE]) -> None:
    for table in list(query.find_all(exp.Table)):
        found = bodies.get(table.name.lower())
        if found is not None and not table.args.get("db"):
            derived = _derived(found.this.copy(), table, found.args["alias"].args.get("columns"))
            table.replace(derived)


def _derived(body: exp.Query, table: exp.Table, columns: list[exp.Identifier] | None = None) -> exp.Subquery:
    given = table.args.get("alias")
    columns = (given.args.get("columns") if given is not None else None) or columns
    name = exp.to_identifier(table.alias_or_name, quoted=True)
    alias = exp.TableAlias(this=name, columns=[c.copy() for c in columns or []])
    made = exp.Subquery(this=body, alias=alias)
    for kept in ("joins", "laterals", "pivots"):
        if table.args.get(kept):
            made.set(kept, table.args[kept])
    return made
