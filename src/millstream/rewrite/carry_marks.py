"""Subqueries that pass rows of windows on → the same, passing on when these rows enter and leave their window.

    SELECT q.k, sum(q.v) FROM (SELECT k, v FROM s WHERE v > 0) q GROUP BY q.k
    SELECT q.k, sum(q.v) FROM (SELECT k, v, __ms_e, __ms_u FROM s WHERE v > 0) q GROUP BY q.k

So a grouping above them finds the panes of its rows. A subquery that does more than pass rows on is left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.plan.standing import ENTER, LEAVE
from millstream.rewrite import names
from millstream.rewrite.panes import branches
from millstream.rewrite.splitting import is_window

if TYPE_CHECKING:
    from millstream.rewrite.splitting import Splitting


def carry_marks(query: exp.Query, _: Splitting) -> None:
    """Rewrite every subquery in FROM, in place."""
    for subquery in reversed(
        [s for s in query.find_all(exp.Subquery) if isinstance(s.parent, exp.From | exp.Join)]
    ):
        for select in branches(subquery.this):
            source = _only_source(select)
            if source is not None:
                alias = exp.to_identifier(source.alias_or_name, quoted=True)
                marks = [exp.alias_(exp.column(m, table=alias.copy()), m) for m in (ENTER, LEAVE)]
                select.set("expressions", [*select.expressions, *marks])


def _only_source(select: exp.Select) -> exp.Expr | None:
    """The source that a select passes rows of a window on from, if it does no more than that."""
    expressions = [n for e in select.expressions for n in names.own_nodes(e)]
    if any(select.args.get(c) for c in ("group", "distinct", "limit", "offset", "having", "qualify")):
        return None
    if any(isinstance(n, exp.Window) or names.is_aggregate(n) for n in expressions):
        return None
    sources = [s for s in names.sources(select) if any(is_window(t.name) for t in s.find_all(exp.Table))]
    if len(sources) != 1:
        return None
    source = sources[0]
    if isinstance(source, exp.Table):
        return source
    passed = all(ENTER in b.named_selects for b in branches(source))
    return source if passed and branches(source) else None
