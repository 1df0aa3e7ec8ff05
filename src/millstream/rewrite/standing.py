"""A continuous query → its plan: windows told apart, the query lifted, groupings kept as panes where they can be.

    1  every stream in FROM becomes a window of its own; names qualified          normal.py
    2  PREV, first and last say what they go by                                   here
    3  the query for many instants, over the windows' rows                        lift.py
    4  bounds of cut windows, marks of rows, groupings above joins                RULES, a file each
    5  groupings over one window split into partial results of panes              views.py, block.py, panes.py
    6  what is left above them, for many instants, over merged panes              lift.py

Nothing is refused for its shape: without a rule for 3 a query is asked instant by instant, without one for 5 or 6
its windows are evaluated anew; the plan says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.errors import Condition, StatementError
from millstream.plan.standing import ROW_NUMBER, TIME, Answering, WindowKind, opened, window_name
from millstream.rewrite import names, panes
from millstream.rewrite.as_instants import as_instants
from millstream.rewrite.carry_marks import carry_marks
from millstream.rewrite.derive import with_marks
from millstream.rewrite.join_pane_by_pane import join_pane_by_pane
from millstream.rewrite.lift import UnliftableError, is_monotone, lift
from millstream.rewrite.normal import normal
from millstream.rewrite.push_below_joins import push_below_joins
from millstream.rewrite.splitting import Splitting, is_window, number_of
from millstream.rewrite.views import Known, Rewriter, Role, told_the_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millstream.plan.incremental import Part
    from millstream.plan.standing import Pairs, Sample, Window
    from millstream.rewrite.splitting import Types


PLACE_HOLDER = re.compile(r"`(__ms_(?:window|merged|values|stream)_\d+__|__ms_instants__)`")
RULES: tuple[Callable[[exp.Query, Splitting], None], ...] = (
    as_instants,
    carry_marks,
    push_below_joins,
    join_pane_by_pane,
)
"""What is done to a query before its groupings are split, in order: one rule a file."""
IN_TIME = {"first": "min_by", "first_value": "min_by", "last": "max_by", "last_value": "max_by"}


@dataclass(frozen=True)
class Texts:
    """What was made of a query's text."""

    plain: str
    whole: Answering | None
    split: Answering | None
    parts: tuple[Part, ...]
    pairs: tuple[Pairs, ...]
    deltas: Answering | None
    tables: tuple[str, ...]
    reasons: tuple[str, ...]


def read(
    tree: exp.Query,
    columns: Mapping[str, Sequence[str]],
    opened: Callable[[str], exp.Query | None],
    placed: Callable[[exp.Table], None],
) -> exp.Query:
    """The query in normal form over windows; `placed` gives every stream in it the name of its window."""
    made, _ = told_the_time(normal(tree, opened, columns, placed))
    return made


def plan_texts(
    query: exp.Query,
    windows: Sequence[Window],
    columns: Sequence[Sequence[str]],
    sample: Sample,
    types: Types,
    *,
    is_integer_time: bool = True,
) -> Texts:
    """The texts for a query in normal form; `columns` are those of each window's stream."""
    tables = tuple(sorted({t.name for t in query.find_all(exp.Table) if t.name and not is_window(t.name)}))
    reasons: list[str] = []
    ready = _told_the_order(query.copy(), windows)
    monotone = is_monotone(ready, is_window)
    whole = _lifted(ready.copy(), is_window, reasons)
    deltas = _derived(ready.copy()) if monotone else None
    split: Answering | None = None
    parts: tuple[Part, ...] = ()
    pairs: tuple[Pairs, ...] = ()
    try:
        split, parts, pairs = _split(
            query.copy(), windows, columns, sample, types, is_integer_time=is_integer_time
        )
    except StatementError as error:
        reasons.append(error.message)
    except UnliftableError as error:
        reasons.append(str(error))
    return Texts(_text(ready), whole, split, parts, pairs, deltas, tables, tuple(reasons))


def selection_texts(query: exp.Query) -> tuple[str, Answering] | None:
    """The plain text and the derivations of a query that only selects and projects; None for any other."""
    if not is_monotone(query, is_window):
        return None
    return _text(query), _derived(query.copy())


def _lifted(query: exp.Query, is_leaf: Callable[[str], bool], reasons: list[str]) -> Answering | None:
    try:
        made = lift(query, is_leaf)
    except UnliftableError as error:
        reasons.append(f"instants are answered one by one: {error}")
        return None
    return Answering(_text(made.query), made.rows, made.is_ranked)


def _derived(query: exp.Query) -> Answering:
    leaves = tuple(n for name in with_marks(query, is_window) if (n := number_of(name)) is not None)
    return Answering(_text(query), len(leaves), leaves=leaves)


def _text(query: exp.Query) -> str:
    """The text of a query, in which place-holders stand as they are."""
    return PLACE_HOLDER.sub(r"\1", names.text(query))


# What goes by time


def _told_the_order(query: exp.Query, windows: Sequence[Window]) -> exp.Query:
    """PREV as LAG within the window's partition; first and last by time."""
    for select in list(query.find_all(exp.Select)):
        leaves = {s.alias_or_name.lower(): s for s in names.sources(select) if isinstance(s, exp.Table)}
        leaves = {a: s for a, s in leaves.items() if is_window(s.name)}
        clauses = [*select.expressions, *(select.args[c] for c in ("having", "order") if select.args.get(c))]
        for node in [n for c in clauses for n in names.own_nodes(c)]:
            if isinstance(node, exp.Anonymous) and node.name.lower() == "prev":
                node.replace(_lag(node, leaves, windows))
            elif names.name_of(node) in IN_TIME and not isinstance(node.parent, exp.Window):
                _by_time(node, leaves)
    return query


def _lag(node: exp.Anonymous, leaves: Mapping[str, exp.Expr], windows: Sequence[Window]) -> exp.Expr:
    columns = list(node.find_all(exp.Column))
    alias = columns[0].table.lower() if columns else ""
    source = leaves.get(alias)
    if source is None:
        raise StatementError(
            Condition.QUERY_REFUSED,
            "PREV looks at the row before in a window, and there is none here",
            hint="Use PREV in the SELECT that has the stream with its window in FROM.",
        )
    number = number_of(source.name)
    assert number is not None
    window = windows[number]
    quoted = f"`{source.alias_or_name}`"
    by = ", ".join(f"{quoted}.`{k}`" for k in window.keys)
    given = ", ".join(names.text(e) for e in node.expressions)
    partition = f"PARTITION BY {by} " if by else ""
    return names.parsed(f"lag({given}) OVER ({partition}ORDER BY {quoted}.{TIME}, {quoted}.{ROW_NUMBER})")


def _by_time(node: exp.Expr, leaves: Mapping[str, exp.Expr]) -> None:
    """`first(x)` is the earliest row's, not that of whichever row Spark reads first."""
    if len(leaves) != 1 or isinstance(node.parent, exp.IgnoreNulls):
        return
    alias = next(iter(leaves.values())).alias_or_name
    value = names.text(node.this if not isinstance(node, exp.Anonymous) else node.expressions[0])
    made = (
        f"{IN_TIME[names.name_of(node)]}(struct({value} AS v), struct(`{alias}`.{TIME}, `{alias}`.{ROW_NUMBER})).v"
    )
    target = node.parent if isinstance(node.parent, exp.Filter) else node
    if target is not node:
        condition = names.text(node.parent.expression.this)  # type: ignore[union-attr]
        made = made.replace("))" + ".v", f")) FILTER (WHERE {condition}).v")
    target.replace(names.parsed(made))


# Panes


def _split(
    query: exp.Query,
    windows: Sequence[Window],
    columns: Sequence[Sequence[str]],
    sample: Sample,
    types: Types,
    *,
    is_integer_time: bool,
) -> tuple[Answering, tuple[Part, ...], tuple[Pairs, ...]]:
    """The query over states of panes; raises with the reason if a window's rows are needed themselves."""
    for window in windows:
        panes.check(window, sample)
    if len({w.kind is WindowKind.ROWS for w in windows}) > 1:
        raise UnliftableError("a window of rows stands beside another, and rows may come out of order")
    known = {window_name(i): Known(i, window_name(i), tuple(columns[i]), True, TIME) for i in range(len(windows))}
    to = Splitting(windows, sample, types, is_integer_time)
    for rule in RULES:
        rule(query, to)
    pairs = tuple(to.pairs)
    known |= {window_name(p.number): Known(p.number, window_name(p.number), p.columns, True) for p in pairs}
    rewriter = Rewriter(known, lambda sql, statics: types(opened(sql, pairs), statics))
    role = rewriter.visit(query)
    if role is Role.ROWS:
        raise UnliftableError("the rows of a window reach the answer without being grouped")
    if rewriter.statics:
        raise UnliftableError(f"{rewriter.statics[0].tables[0]!r} is joined below a grouping and may change")
    parts = tuple(_over_windows(panes.of_part(p), pairs) for p in rewriter.parts)
    texts = {name: panes.values_text(text) for name, text in rewriter.texts.items()}
    holder = exp.Subquery(this=query)
    made = lift(holder.this, lambda name: panes.is_state(name) or name in texts, has_rows=False)
    text = _text(made.query)
    for name, meaning in texts.items():
        text = text.replace(name, meaning)
    panes.check_text(text)
    return Answering(text, 0, made.is_ranked), parts, pairs


def _over_windows(part: Part, pairs: Sequence[Pairs]) -> Part:
    """A part with the windows that its rows, or the pairs of its rows, are of."""
    own = [p for p in pairs if p.number in part.streams]
    if not own:
        return part
    if len(part.streams) > 1:
        raise UnliftableError("pairs of two windows' rows stand beside other rows in one grouping")
    return replace(part, streams=tuple(dict.fromkeys(own[0].windows)))
