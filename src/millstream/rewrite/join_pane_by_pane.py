"""A grouping above a join of windows → the same grouping of pairs of their rows, which come as the rows do.

    SELECT s.k, stddev(s.x * r.y) FROM s JOIN r ON s.k = r.k GROUP BY s.k
    SELECT p.s_k, stddev(p.s_x * p.r_y) FROM pairs AS p GROUP BY p.s_k

A pair enters when the later of its rows does and leaves when the first of them does; so pairs come in panes as
rows do. New pairs are those of new rows with the rows that are there: an old row never meets an old row again.
Applies to inner joins of windows where partial groupings could not be pushed below; tables, which may change, are
not for here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.plan.standing import ENTER, LEAVE, Pairs, side_name, window_name
from millstream.rewrite import names
from millstream.rewrite.panes import branches
from millstream.rewrite.splitting import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.rewrite.splitting import Splitting

ALIAS = "__ms_pairs"


def join_pane_by_pane(query: exp.Query, to: Splitting) -> None:
    """Rewrite every grouping to which the rule applies, in place; pairs are windows numbered behind the others."""
    if not to.sample.is_by_time:
        return
    for select in list(query.find_all(exp.Select)):
        leaves = _leaves(select)
        if leaves and names.is_grouping(select) and _is_plain(select):
            to.pairs.append(_paired(select, leaves, len(to.windows) + len(to.pairs)))


def _is_plain(select: exp.Select) -> bool:
    """Whether all that decides a pair is its own."""
    joins = [j.args["on"] for j in select.args["joins"] if j.args.get("on")]
    where = [select.args["where"]] if select.args.get("where") else []
    if any(names.is_random(n) for e in (*joins, *where) for n in names.own_nodes(e)):
        return False
    return not names.asks_inside(select, names.aliases(select)) and all(_is_decided(e) for e in joins)


def _is_decided(test: exp.Expr) -> bool:
    nodes = list(names.own_nodes(test))
    return not any(isinstance(n, names.QUERIES) or names.says_the_time(n) for n in nodes)


def _leaves(select: exp.Select) -> tuple[exp.Table, ...]:
    """The windows that a select joins, one a source; none if it joins anything else, or otherwise."""
    sources, leaves = names.sources(select), list[exp.Table]()
    if len(sources) < 2 or select.args.get("laterals"):
        return ()
    for join in select.args["joins"]:
        if join.side or join.kind.upper() not in ("", "INNER", "CROSS") or join.args.get("using"):
            return ()
    for source in sources:
        inside = list(source.find_all(exp.Table))
        if len(inside) != 1 or number_of(inside[0].name) is None:
            return ()
        if not isinstance(source, exp.Table) and not all(ENTER in b.named_selects for b in branches(source)):
            return ()
        leaves.append(inside[0])
    return tuple(leaves)


def _paired(select: exp.Select, leaves: tuple[exp.Table, ...], number: int) -> Pairs:
    windows = tuple(n for leaf in leaves if (n := number_of(leaf.name)) is not None)
    aliases = [s.alias_or_name for s in names.sources(select)]
    tests = _own_tests(select)
    for place, leaf in enumerate(leaves):
        alias = leaf.alias_or_name
        leaf.set("this", exp.to_identifier(side_name(place), quoted=False))
        leaf.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    joined = " ".join(names.text(c) for c in (select.args["from_"].this, *select.args["joins"]))
    select.set("joins", [])
    columns = _through_pairs(select, {a.lower() for a in aliases})
    listed = [f"{sql} AS `{name}`" for sql, name in columns.items()]
    enter, leave = _first_that(">=", ENTER, aliases), _first_that("<=", LEAVE, aliases)
    listed += [f"{enter} AS {ENTER}", f"{leave} AS {LEAVE}"]
    where = " AND ".join([f"{enter} <= {leave}", *(f"({names.text(t)})" for t in tests)])
    placed = names.parsed_query(f"SELECT 1 FROM {window_name(number)} AS `{ALIAS}`").args["from_"]
    select.set("from_", placed)
    return Pairs(
        number, windows, tuple(columns.values()), f"SELECT {', '.join(listed)} FROM {joined} WHERE {where}"
    )


def _first_that(compares: str, mark: str, aliases: Sequence[str]) -> str:
    """The largest or least of some rows' marks, in words that every executor knows."""
    found = f"`{aliases[0]}`.{mark}"
    for alias in aliases[1:]:
        other = f"`{alias}`.{mark}"
        found = f"CASE WHEN {found} {compares} {other} THEN {found} ELSE {other} END"
    return found


def _own_tests(select: exp.Select) -> list[exp.Expr]:
    """Take the tests that pairs decide out of WHERE."""
    where = select.args.get("where")
    parts = names.conjuncts(where.this if where is not None else None)
    kept = [t for t in parts if not _is_decided(t)]
    select.set("where", exp.Where(this=exp.and_(*kept)) if kept else None)
    return [t for t in parts if t not in kept]


def _through_pairs(select: exp.Select, aliases: set[str]) -> dict[str, str]:
    """Let a select speak of its sources' columns as columns of pairs; returns what these are."""
    columns: dict[str, str] = {}
    for column in list(select.find_all(exp.Column)):
        if column.table.lower() not in aliases:
            continue
        sql = names.text(column)
        if sql not in columns:
            name = f"{column.table}_{column.name}".lower()
            columns[sql] = name if name not in columns.values() else f"{name}_{len(columns)}"
        made = exp.column(columns[sql], table=ALIAS, quoted=True)
        is_item = column.parent is select and column.arg_key == "expressions"
        column.replace(exp.alias_(made, column.name, quoted=True) if is_item else made)
    return columns
