"""What may stand below a stream's grouping, and what may not.

Rows of a stream flow through filters, projections and joins with static parts on the stream's side; what such a
part gives for new rows must be what it would have added for all rows. Each rule refuses one clause, underlines it,
and names the change that would make it legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.rewrite import names
from millstream.rewrite.refuse import refused

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP_FIRST = "Group each stream in a subquery of its own (GROUP BY or DISTINCT), and join the groups."
STREAM_LEFT = "Put the stream on the side whose rows are all kept: stream LEFT JOIN table."


def check_joins(select: exp.Select, stream: int) -> None:
    """Every join must keep or drop rows of the stream, source number `stream`, one by one."""
    for number, join in enumerate(select.args.get("joins") or [], start=1):
        side, kind = join.side.upper(), join.kind.upper()
        if number < stream:
            continue
        if side == "FULL" or (number == stream and side == "LEFT") or (number > stream and side == "RIGHT"):
            raise refused(
                f"a {side} JOIN gives rows without a match in the stream, which later rows may bring",
                join,
                STREAM_LEFT,
            )
        if number == stream and kind in ("SEMI", "ANTI"):
            raise refused(f"the stream is the searched side of a {kind} JOIN", join, GROUP_FIRST)


def check_flows(select: exp.Query) -> None:
    """A part below the grouping that does not group: rows pass one by one."""
    for clause, said in (("limit", "LIMIT"), ("offset", "OFFSET"), ("qualify", "QUALIFY")):
        if select.args.get(clause):
            raise refused(
                f"{said} below a grouping depends on rows still to come",
                select.args[clause],
                f"Put {said} above a GROUP BY or DISTINCT of the stream.",
            )
    select.set("order", None)


def check_windows(select: exp.Select) -> None:
    """No window function may run over the rows of a stream."""
    for expression in select.expressions:
        for node in names.own_nodes(expression):
            if isinstance(node, exp.Window):
                raise refused(
                    "a window function over the rows of a stream depends on rows still to come",
                    node,
                    "Group the stream first and apply the window function to the groups.",
                )


def check_rows(select: exp.Select, below: Sequence[exp.Expr]) -> None:
    """What is said of single rows must be the same whenever it is evaluated."""
    where = [select.args["where"].this] if select.args.get("where") else []
    for node in (n for expression in (*below, *where) for n in names.own_nodes(expression)):
        if names.is_random(node):
            raise refused("a random value below a grouping", node, "Leave it out, or use it above the grouping.")
    for node in (n for expression in below for n in names.own_nodes(expression)):
        if names.says_the_time(node):
            raise refused(
                "the clock below a grouping would be read when a row comes, not when the view is read",
                node,
                "Compare with the clock in the WHERE of the grouping itself, with AND to the rest.",
            )
    for source in names.sources(select):
        if source.args.get("sample") or source.args.get("pivots") or isinstance(source, exp.TableSample):
            raise refused("TABLESAMPLE and PIVOT cannot be kept up to date", source, "Leave them out.")


def check_one_stream(select: exp.Select, linear: Sequence[int], grouped: Sequence[int]) -> None:
    """Below a grouping there is one stream: joins of streams are for above."""
    every = names.sources(select)
    if len(linear) > 1:
        raise refused("two streams join below a grouping", every[linear[1]], GROUP_FIRST)
    if grouped:
        raise refused("a stream joins with groups of a stream below a grouping", every[grouped[0]], GROUP_FIRST)


def ungrouped(table: exp.Expr | None) -> Exception:
    return refused(
        "the rows of a stream reach the result without being grouped",
        table,
        "Add GROUP BY, DISTINCT or an aggregate; or keep the rows in a STREAMING TABLE.",
    )
