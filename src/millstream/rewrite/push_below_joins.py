"""A grouping above joins with windows → partial groupings of each window below, joined, and grouped again above.

    SELECT t.g, sum(s.x), count(*) FROM s JOIN t ON s.k = t.k GROUP BY t.g
    SELECT t.g, sum(s.p0), sum(s.c) FROM (SELECT k, sum(x) AS p0, count(*) AS c FROM s GROUP BY k) s JOIN t …

Every window is grouped by those of its columns that joins, keys and the rest speak of; aggregates over one window
are pushed below and weighted with how many rows of the other windows meet a row; all others are computed above,
weighted with how many rows stand behind one. So tables stay above, where they may change, and rows of two windows
meet as groups. What depends on the values of both rows of a pair is for `join_pane_by_pane.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.rewrite import aggregates, names
from millstream.rewrite.block import arguments_of
from millstream.rewrite.splitting import is_window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millstream.rewrite.splitting import Splitting

PUSHED = frozenset({"count", "sum", "avg", "min", "max", "bool_and", "bool_or"})
WEIGHTED = frozenset({"count", "sum", "avg"})
UNWEIGHTED = frozenset({"min", "max", "bool_and", "bool_or", "min_by", "max_by", "collect_set"})
"""Aggregates that do not care how often a row is there."""
COUNT = "__ms_c"


@dataclass
class _Call:
    """An aggregate: the window it is pushed into, if any."""

    node: exp.Expr
    name: str
    is_distinct: bool
    window: str | None
    argument: exp.Expr | None
    condition: exp.Expr | None
    adds_doubles: bool = False
    """As Spark does for averages of BIGINT: their sum may be too large."""


@dataclass
class _Window:
    """What becomes of a window: its columns that are spoken of above, its tests, its partial results."""

    table: exp.Table
    columns: dict[str, str] = field(default_factory=dict)
    tests: list[exp.Expr] = field(default_factory=list)
    partials: dict[str, str] = field(default_factory=dict)

    def partial(self, sql: str) -> str:
        return self.partials.setdefault(sql, f"__ms_p{len(self.partials)}")


def push_below_joins(query: exp.Query, to: Splitting) -> None:
    """Rewrite every grouping of a query to which the rule applies, in place; what is about pairs is left alone."""
    for select in list(query.find_all(exp.Select)):
        found = _windows(select)
        if not found or not names.is_grouping(select):
            continue
        if not (to.sample.is_by_time and _is_about_pairs(select, found)):
            _push(select, found, lambda sql: to.types(sql, ()))


def _is_about_pairs(select: exp.Select, windows: Mapping[str, _Window]) -> bool:
    """Whether windows are joined with each other alone, by more than keys, or for aggregates over both."""
    if len(windows) < len(names.sources(select)):
        return False
    calls = [_windows_of(node, windows) for node in names.aggregates_of(select)]
    clauses = [select.args.get("where"), *(j.args.get("on") for j in select.args["joins"])]
    tests = [
        t for c in clauses if c is not None for t in names.conjuncts(c.this if isinstance(c, exp.Where) else c)
    ]
    across = [t for t in tests if len(_windows_of(t, windows)) > 1 and not isinstance(t, exp.EQ)]
    return bool(across) or any(len(of) > 1 for of in calls)


def _windows_of(node: exp.Expr, windows: Mapping[str, _Window]) -> set[str]:
    return {c.table.lower() for c in node.find_all(exp.Column)} & set(windows)


def _windows(select: exp.Select) -> dict[str, _Window]:
    """The windows that a select joins with each other or with tables; none if it is not as simple as that."""
    sources = names.sources(select)
    if len(sources) < 2 or select.args.get("laterals"):
        return {}
    found: dict[str, _Window] = {}
    for place, source in enumerate(sources):
        inside = [t for t in source.find_all(exp.Table) if is_window(t.name)]
        if isinstance(source, exp.Table) and inside:
            if place and (_side(select, place) or _kind(select, place) not in ("", "INNER", "CROSS")):
                return {}
            found[source.alias_or_name.lower()] = _Window(source)
        elif inside or (place and _side(select, place) in ("RIGHT", "FULL")):
            return {}
    return found


def _side(select: exp.Select, place: int) -> str:
    side: str = select.args["joins"][place - 1].side.upper()
    return side


def _kind(select: exp.Select, place: int) -> str:
    kind: str = select.args["joins"][place - 1].kind.upper()
    return kind


def _push(select: exp.Select, windows: dict[str, _Window], types: Callable[[str], Mapping[str, str]]) -> None:
    calls = [_call(node, windows) for node in names.aggregates_of(select)]
    known = [c for c in calls if c is not None]
    if len(known) < len(calls) or names.asks_inside(select, windows) or not _can_average(known, windows, types):
        return
    _move_tests(select, windows)
    pushed = {id(n) for c in known if c.window is not None for n in c.node.walk()}
    for column in [c for c in select.find_all(exp.Column) if id(c) not in pushed]:
        window = windows.get(column.table.lower())
        if window is not None:
            window.columns.setdefault(column.name.lower(), names.text(column))
    for call in known:
        made = names.parsed(_above(call, windows))
        call.node.replace(made)
    for window in windows.values():
        _group(window)


def _call(node: exp.Expr, windows: Mapping[str, _Window]) -> _Call | None:
    function = names.innermost(node)
    assert function is not None
    name = aggregates.canonical(names.name_of(function))
    if isinstance(node, exp.WithinGroup | exp.IgnoreNulls) or node.find(exp.WithinGroup, exp.IgnoreNulls):
        return None
    filters = list(node.find_all(exp.Filter))
    given, is_distinct = arguments_of(function)
    if is_distinct or name in UNWEIGHTED - PUSHED:
        return _Call(node, name, is_distinct=True, window=None, argument=None, condition=None)
    if name not in PUSHED or len(given) > 1:
        return None
    argument = None if not given or isinstance(given[0], exp.Star) else given[0]
    condition = filters[0].expression.this if filters else None
    said = [e for e in (argument, condition) if e is not None]
    tables = {c.table.lower() for e in said for c in e.find_all(exp.Column)}
    (window,) = tables if len(tables) == 1 else (None,)
    return _Call(node, name, False, window if window in windows else None, argument, condition)


def _can_average(
    calls: Sequence[_Call], windows: Mapping[str, _Window], types: Callable[[str], Mapping[str, str]]
) -> bool:
    """Averages of decimals are decimals of a precision of their own: these stay where they are.

    Notes of the others what is added up.
    """
    for call in calls:
        if call.name != "avg" or call.is_distinct:
            continue
        if call.window is None or call.argument is None:
            return False
        table = names.text(windows[call.window].table)
        stream = table.replace("__ms_window_", "__ms_stream_").replace("`__ms_stream", "__ms_stream")
        found = types(f"SELECT {names.text(call.argument)} AS a FROM {stream.replace('__`', '__')}")
        if found["a"].startswith("decimal"):
            return False
        call.adds_doubles = found["a"] == "bigint"
    return True


def _move_tests(select: exp.Select, windows: Mapping[str, _Window]) -> None:
    """Tests on one window alone are for below."""
    where = select.args.get("where")
    kept = []
    for test in names.conjuncts(where.this if where is not None else None):
        tables = {c.table.lower() for c in test.find_all(exp.Column)}
        plain = not any(isinstance(n, names.QUERIES) or names.says_the_time(n) for n in names.own_nodes(test))
        (alone,) = tables if len(tables) == 1 else (None,)
        if plain and alone in windows:
            windows[alone].tests.append(test)  # type: ignore[index]
        else:
            kept.append(test)
    select.set("where", exp.Where(this=exp.and_(*kept)) if kept else None)


def _weight(windows: Mapping[str, _Window], but: str | None = None) -> str:
    factors = [f"{_alias(w)}.{COUNT}" for name, w in windows.items() if name != but]
    return " * ".join(factors)


def _alias(window: _Window) -> str:
    return f"`{window.table.alias_or_name}`"


def _above(call: _Call, windows: Mapping[str, _Window]) -> str:
    """What an aggregate is above the joins."""
    if call.is_distinct:
        return names.text(call.node)
    tested = f" FILTER (WHERE {names.text(call.condition)})" if call.condition is not None else ""
    argument = "*" if call.argument is None else names.text(call.argument)
    if call.window is None:
        return _weighted(call.name, argument, tested, _weight(windows))
    window = windows[call.window]
    rest = _weight(windows, call.window)
    times = f" * {rest}" if rest else ""

    def below(function: str, of: str = argument) -> str:
        return f"{_alias(window)}.{window.partial(f'{function}({of}){tested}')}"

    if call.name == "count":
        return f"coalesce(sum({below('count')}{times}), 0L)"
    if call.name == "sum":
        return f"sum({below('sum')}{times})"
    if call.name == "avg":
        as_double = "CAST({} AS DOUBLE)".format
        total = below("sum", as_double(argument)) if call.adds_doubles else as_double(below("sum"))
        return f"try_divide(sum({total}{times}), sum({below('count')}{times}))"
    return f"{call.name}({below(call.name)})"


def _weighted(name: str, argument: str, tested: str, weight: str) -> str:
    """An aggregate over rows that stand for several."""
    if name == "count":
        counted = weight if argument == "*" else f"CASE WHEN ({argument}) IS NOT NULL THEN {weight} END"
        return f"coalesce(sum({counted}){tested}, 0L)"
    if name == "sum":
        return f"sum(({argument}) * {weight}){tested}"
    return f"{name}({argument}){tested}"


def _group(window: _Window) -> None:
    """Put the partial grouping in the window's place."""
    inner = window.table.copy()
    keys = list(window.columns.values())
    listed = [f"{sql} AS `{name}`" for name, sql in window.columns.items()]
    listed += [f"{sql} AS {name}" for sql, name in window.partials.items()]
    listed.append(f"count(*) AS {COUNT}")
    grouped = f" GROUP BY {', '.join(keys)}" if keys else " GROUP BY TRUE"
    where = " AND ".join(f"({names.text(t)})" for t in window.tests)
    where = f" WHERE {where}" if where else ""
    text = f"SELECT {', '.join(listed)} FROM {names.text(inner)}{where}{grouped}"
    alias = exp.TableAlias(this=exp.to_identifier(window.table.alias_or_name, quoted=True))
    window.table.replace(exp.Subquery(this=names.parsed_query(text), alias=alias))
