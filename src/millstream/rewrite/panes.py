"""Partial results of panes: a grouping's part that also groups by when its rows enter and leave the window.

Rows with the same pair are alike for every answer, so what an instant needs of a window is the partial results of
the panes that are open at it, merged. Where every row would be a pane of its own nothing is gained, and the
window is evaluated anew.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.plan.incremental import state_name, stream_name
from millstream.plan.standing import ENTER, INSTANTS, LEAVE, N, Sampling, WindowKind
from millstream.rewrite import names
from millstream.rewrite.lift import UnliftableError

if TYPE_CHECKING:
    from millstream.plan.incremental import Part
    from millstream.plan.standing import Sample, Window

E, U = "e", "u"
KEYED = re.compile(r"\(SELECT (.*) FROM (\w+) AS v GROUP BY (.*)\)", re.DOTALL)
UNKEYED = re.compile(r"\(SELECT (.*) FROM (\w+) AS v\)", re.DOTALL)


def check(window: Window, sample: Sample) -> None:
    """Raise if the rows of a window do not come in panes."""
    if window.kind in (WindowKind.PARTITION, WindowKind.SESSION):
        raise UnliftableError(f"when a row leaves a {window.kind} window is known only when newer ones have come")
    if window.kind is WindowKind.ROWS and sample.kind is not Sampling.ROWS:
        raise UnliftableError("a window of rows moves row by row between two instants")
    if sample.kind is Sampling.ROWS and (window.length or window.period):
        raise UnliftableError("a window of time moves row by row where rows make the instants")
    if sample.kind is Sampling.COMMIT:
        raise UnliftableError("rows are answered as they are committed")


def branches(query: exp.Expr) -> list[exp.Select]:
    """The selects of a query that pass their rows on: itself, or the sides of a UNION ALL."""
    if isinstance(query, exp.Subquery):
        return branches(query.this)
    if isinstance(query, exp.Union) and query.args.get("distinct") is False:
        return [*branches(query.this), *branches(query.expression)]
    return [query] if isinstance(query, exp.Select) else []


def of_part(part: Part) -> Part:
    """The part by panes."""
    alias = _alias(part)
    more = ((E, f"{alias}.{ENTER}"), (U, f"{alias}.{LEAVE}"))
    grouping = ", ".join([E, U, *([part.grouping] if part.grouping else [])])
    return replace(
        part, projections=(*more, *part.projections), keys=(E, U, *part.keys), grouping=grouping,
        types=((E, "bigint"), (U, "bigint"), *part.types),
    )  # fmt: skip


def _alias(part: Part) -> str:
    """What a part calls the source that its window's rows come from."""
    streams = {stream_name(s) for s in part.streams}
    found = names.parsed_query(f"SELECT 1 FROM {part.source}")
    assert isinstance(found, exp.Select)
    sources = [s for s in names.sources(found) if any(t.name in streams for t in s.find_all(exp.Table))]
    if len(sources) != 1:
        raise UnliftableError("two windows feed one grouping")
    if not isinstance(sources[0], exp.Table) and not all(ENTER in b.named_selects for b in branches(sources[0])):
        raise UnliftableError("a subquery between a window and its grouping does more than pass rows on")
    return f"`{sources[0].alias_or_name}`"


def is_state(name: str) -> bool:
    return name.startswith("__ms_merged_")


def values_text(text: str) -> str:
    """The answers of aggregates over values, for each instant."""
    found = KEYED.fullmatch(text)
    if found is not None:
        return f"(SELECT {N}, {found[1]} FROM {found[2]} AS v GROUP BY {N}, {found[3]})"
    found = UNKEYED.fullmatch(text)
    if found is None:
        raise UnliftableError("values of a grouping under a predicate on the clock")
    columns = re.findall(r" AS (h\d+)", found[1])
    inner = f"SELECT {N}, {found[1]} FROM {found[2]} AS v GROUP BY {N}"
    listed = ", ".join(f"h.{c}" for c in columns)
    return f"(SELECT i.n AS {N}, {listed} FROM {INSTANTS} AS i LEFT JOIN ({inner}) AS h ON h.{N} = i.n)"


def check_text(text: str) -> None:
    if re.search(r"__ms_state_\d+__", text):
        raise UnliftableError("a predicate on the clock or on a query around is tested on groups")


def merged(part: Part, number: int) -> str:
    """The text that merges the rows of a state that each instant needs; without keys one row for each.

    The state has a row for each instant that needs it, with the instant's place as its `E`.
    """
    own = tuple(k for k in part.keys if k not in (E, U))
    join = "JOIN" if own else "LEFT JOIN"
    rows = f"(SELECT i.n AS {N}, s.* FROM {INSTANTS} AS i {join} {state_name(number)} AS s ON s.{E} = i.x) AS m"
    return f"({part.merged(rows, keys=(N, *own))})"
