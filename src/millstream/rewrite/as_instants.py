"""`window_start` and `window_end` of TUMBLE and HOP: the same for all rows of an instant, so they are no keys.

In a grouping over such a window they leave GROUP BY, and stand for the instant where the answer says them; what is
kept of the rows knows nothing of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.plan.incremental import NOW
from millstream.plan.standing import WindowKind
from millstream.rewrite import names
from millstream.rewrite.splitting import number_of

if TYPE_CHECKING:
    from millstream.rewrite.splitting import Splitting


def as_instants(query: exp.Query, to: Splitting) -> None:
    """Rewrite every grouping over cut windows, in place."""
    for select in list(query.find_all(exp.Select)):
        group = select.args.get("group")
        if group is None or group.args.get("all") or any(group.args.get(c) for c in ("grouping_sets", "rollup")):
            continue
        lengths = {}
        for source in names.sources(select):
            number = number_of(source.name) if isinstance(source, exp.Table) else None
            if number is not None and to.windows[number].kind is WindowKind.CUT:
                lengths[source.alias_or_name.lower()] = to.windows[number].length
        if lengths:
            _rewrite(select, group, lengths, is_integer_time=to.is_integer_time)


def _rewrite(select: exp.Select, group: exp.Group, lengths: dict[str, int], *, is_integer_time: bool) -> None:
    kept = [e for e in group.expressions if not _is_bound(e, lengths)]
    if len(kept) == len(group.expressions):
        return
    group.set("expressions", kept or [exp.true()])
    clauses = [
        *select.expressions,
        *(select.args[c] for c in ("having", "order", "qualify") if select.args.get(c)),
    ]
    for column in [n for c in clauses for n in names.own_nodes(c) if _is_bound(n, lengths)]:
        assert isinstance(column, exp.Column)
        if column.name.lower() == "window_end":
            made = names.parsed(NOW)
        elif is_integer_time:
            made = names.parsed(f"({NOW} - {lengths[column.table.lower()]}L)")
        else:
            made = names.parsed(f"timestamp_micros(unix_micros({NOW}) - {lengths[column.table.lower()]}L)")
        called = column.name
        is_item = column.parent is select
        column.replace(exp.alias_(made, called, quoted=True) if is_item else made)


def _is_bound(node: exp.Expr, lengths: dict[str, int]) -> bool:
    if not isinstance(node, exp.Column) or node.table.lower() not in lengths:
        return False
    return node.name.lower() in ("window_start", "window_end")
