"""A continuous view as fragments: what runs once, what runs on each basket, what is kept, what runs on a read.

Fragments are Spark SQL in which streams, pinned tables and states stand as place-holders, put in by whoever runs
them. The records are plain data: they go into the catalogue as JSON and come back equal.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ONCE = "__ms_once__"
"""The place-holder of a condition that holds when a view is made, and never again."""
NOW = "__ms_now__"
"""The place-holder of the moment of a read."""


def stream_name(number: int) -> str:
    """The place-holder of a stream's new rows, by the stream's table id."""
    return f"__ms_stream_{number}__"


def static_name(number: int) -> str:
    """The place-holder of a static fragment's rows, by its place in the plan."""
    return f"__ms_static_{number}__"


def state_name(number: int) -> str:
    """The place-holder of a state's partial rows, by its place in the plan."""
    return f"__ms_state_{number}__"


def group_name(number: int) -> str:
    """The alias of a state in the upper fragment."""
    return f"_b{number}"


def merged_name(number: int) -> str:
    """The place-holder of a state's rows, merged to one a group."""
    return f"__ms_merged_{number}__"


@dataclass(frozen=True)
class Static:
    """A part without streams below a grouping: a query over tables, run once. `tables` are pinned by it."""

    sql: str
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Partial:
    """A column of a state: how new rows give it (`{f}` stands where FILTER may), how partial rows merge to one."""

    name: str
    partial: str
    merge: str
    filter: str | None = None

    def over(self, also: str | None = None) -> str:
        """The expression over new rows, of those alone for which the filters hold."""
        conditions = [c for c in (self.filter, also) if c]
        return self.partial.replace("{f}", f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else "")


@dataclass(frozen=True)
class Part:
    """A stream fragment and the state it feeds: one grouping over one stream (or a UNION ALL of several).

    New rows are projected (`projections` are pairs of name and expression over `source`), filtered, and
    grouped by `keys` as `grouping` says. `why` tells the reader what the state is for.
    """

    streams: tuple[int, ...]
    source: str
    where: str | None
    projections: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]
    grouping: str
    partials: tuple[Partial, ...]
    prepared: tuple[tuple[str, str], ...] = ()
    types: tuple[tuple[str, str], ...] = ()
    why: str = ""

    @property
    def fragment(self) -> str:
        """The SQL that runs on each basket."""
        inner = f"SELECT {_listed(self.projections)} FROM {self.source}"
        where = f" WHERE {self.where}" if self.where else ""
        columns = [*self.key_columns, *(f"{p.over()} AS {p.name}" for p in self.partials)]
        return f"SELECT {', '.join(columns)} FROM ({inner}{where}) AS r{self.group_by}"

    @property
    def key_columns(self) -> list[str]:
        return ["grouping_id() AS g" if k == "g" else k for k in self.keys]

    @property
    def group_by(self) -> str:
        return f" GROUP BY {self.grouping}" if self.grouping else ""

    def merged(self, rows: str, where: str | None = None, keys: tuple[str, ...] | None = None) -> str:
        """The SQL that makes one row a group of partial rows; `keys` may be fewer than the state has."""
        by = self.keys if keys is None else keys
        over = f"OVER (PARTITION BY {', '.join(by)})" if by else "OVER ()"
        chosen = f"{rows} WHERE {where}" if where else rows
        if self.prepared:
            more = ", ".join(f"{sql.replace('OVER w', over)} AS {name}" for name, sql in self.prepared)
            chosen = f"(SELECT *, {more} FROM {chosen}) AS m"
        types = dict(self.types)
        columns = [*by, *(f"CAST({p.merge} AS {types[p.name]}) AS {p.name}" for p in self.partials)]
        group = f" GROUP BY {', '.join(by)}" if by else ""
        return f"SELECT {', '.join(columns) or '1'} FROM {chosen}{group}"


def explained(name: str, plan: ViewPlan, names: Mapping[int, str], executors: Sequence[str]) -> str:
    """The fragments as text for people; `names` are those of the streams, `executors` run the stream fragments."""
    lines = [f"Continuous view {name}"]
    for number, static in enumerate(plan.statics, start=1):
        lines += [f"Static fragment {number}: runs once, pins {', '.join(static.tables)}", f"  {static.sql}"]
    for number, part in enumerate(plan.parts, start=1):
        of = " and ".join(names.get(s, str(s)) for s in part.streams)
        by = executors[number - 1]
        lines += [f"Stream fragment {number}: runs on each basket of {of}, by {by}", f"  {part.fragment}"]
        kept = ", ".join((*part.keys, *(p.name for p in part.partials)))
        lines += [
            f"  keeps state {number}: {kept} ({part.why})",
            f"  merges it by: {part.merged(state_name(number - 1))}",
        ]
    lines += ["Upper fragment: runs on a read", f"  {plan.upper}"]
    if plan.above:
        lines.append(f"  reads as they are: {', '.join(plan.above)}")
    return _with_names("\n".join(lines), plan, names)


def in_first_run(sql: str, is_first: bool) -> str:
    """The fragment as it runs when a view is made, or as it runs on each basket."""
    return sql.replace(ONCE, "TRUE" if is_first else "FALSE")


def _with_names(text: str, plan: ViewPlan, names: Mapping[int, str]) -> str:
    for stream_id in plan.streams:
        text = text.replace(stream_name(stream_id), f"basket_of_{names.get(stream_id, stream_id)}")
    for number in range(len(plan.statics)):
        text = text.replace(static_name(number), f"static_{number + 1}")
    for number in range(len(plan.parts)):
        text = text.replace(state_name(number), f"state_{number + 1}")
        text = text.replace(merged_name(number), f"merged_state_{number + 1}")
    return text.replace(NOW, "now()").replace(ONCE, "is_first_run()")


def _listed(projections: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{sql} AS {name}" for name, sql in projections) or "1 AS one"


@dataclass(frozen=True)
class ViewPlan:
    """All fragments of a view. `above` names the tables that the upper fragment reads as they are."""

    statics: tuple[Static, ...]
    parts: tuple[Part, ...]
    upper: str
    above: tuple[str, ...]
    clock: str = ""
    """How fine the upper fragment asks the clock: not at all, for the `day`, or for the `instant`."""

    @property
    def streams(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(s for part in self.parts for s in part.streams))

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ViewPlan:
        made: dict[str, Any] = json.loads(text)
        statics = tuple(Static(s["sql"], tuple(s["tables"])) for s in made["statics"])
        parts = tuple(part_from(p) for p in made["parts"])
        return cls(statics, parts, made["upper"], tuple(made["above"]), made["clock"])


def part_from(made: dict[str, Any]) -> Part:
    """A part as JSON gave it back."""
    pairs = {n: tuple((a, b) for a, b in made[n]) for n in ("projections", "prepared", "types")}
    partials = tuple(Partial(**p) for p in made["partials"])
    rest = {"streams": tuple(made["streams"]), "keys": tuple(made["keys"]), "partials": partials}
    return Part(**(made | pairs | rest))
