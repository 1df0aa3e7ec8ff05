"""Stream fragments of many views → few passes over a basket, and all passes → one query.

Fragments that read the same source and group by the same keys share a pass: each keeps its own partial
results, with its WHERE as a FILTER on them, and takes from the pass the groups in which it has any row. The
query of all passes gives for each row the number of its pass and the pass's columns as one structure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millstream.plan.incremental import Part

NAME = re.compile(r"\b[aflkx][0-9]+\b")
ALONE = re.compile(r"(\w+) AS `([^`]+)`")
"""A source that is one stream and nothing else, and the name that the query gives it."""
ROWS = "`__ms_rows`"
PLAIN = re.compile(r"`[^`]+`(\.`[^`]+`)*")
UNSURE = re.compile(r"'[^']*`|\bSELECT\b", re.IGNORECASE)
"""Text that may say the name for something else: in quotes, or for a table of a subquery."""


@dataclass(frozen=True)
class Member:
    """A fragment's share of a pass: its target, the pass's columns that are its own, in its order."""

    target: int
    columns: tuple[str, ...]
    presence: str | None = None


@dataclass(frozen=True)
class Pass:
    """One grouping over the basket: `rows` are what is grouped, by `grouping`; with sets there are no `keys`."""

    rows: str
    outputs: tuple[str, ...]
    grouping: str
    members: tuple[Member, ...]
    keys: tuple[str, ...] | None

    @property
    def sql(self) -> str:
        return self.where(None)

    def where(self, test: str | None) -> str:
        """The pass over those of its rows for which a test holds."""
        tested = f" WHERE {test}" if test else ""
        group = f" GROUP BY {self.grouping}" if self.grouping else ""
        return f"SELECT {', '.join(self.outputs)} FROM ({self.rows}) AS r{tested}{group}"


def fuse(parts: Iterable[tuple[int, Part]]) -> list[Pass]:
    """The passes for fragments, each with the number of the target it feeds."""
    alike: dict[tuple[object, ...], list[tuple[int, Part]]] = {}
    for target, given in parts:
        part = renamed_source(given)
        alike.setdefault(_likeness(part), []).append((target, part))
    return [_alone(*group[0]) if len(group) == 1 else _together(group) for group in alike.values()]


def renamed_source(part: Part) -> Part:
    """The part with one name for its stream, so that what views call it does not keep them apart."""
    found = ALONE.fullmatch(part.source)
    texts = [sql for _, sql in part.projections] + ([part.where] if part.where else [])
    if found is None or any(UNSURE.search(text) for text in texts):
        return part
    own = re.compile(rf"(?<!\.)`{re.escape(found[2])}`\.")

    def renamed(text: str) -> str:
        return own.sub(f"{ROWS}.", text)

    return replace(
        part,
        source=f"{found[1]} AS {ROWS}",
        projections=tuple((name, renamed(sql)) for name, sql in part.projections),
        where=renamed(part.where) if part.where else None,
    )


def _likeness(part: Part) -> tuple[object, ...]:
    if part.grouping != ", ".join(part.keys):
        return (id(part),)
    expressions = dict(part.projections)
    keys = sorted(expressions[k] for k in part.keys)
    # One column under two names would be one key of the pass.
    return (part.source, *keys) if len(set(keys)) == len(keys) else (id(part),)


def columns_of(part: Part) -> tuple[str, ...]:
    return (*part.keys, *(p.name for p in part.partials))


def _alone(target: int, part: Part) -> Pass:
    where = f" WHERE {part.where}" if part.where else ""
    outputs = (*part.key_columns, *(f"{p.over()} AS {p.name}" for p in part.partials))
    keys = part.keys if part.grouping == ", ".join(part.keys) else None
    member = Member(target, columns_of(part))
    return Pass(_rows(dict(part.projections), part.source, where), outputs, part.grouping, (member,), keys)


def _together(group: Sequence[tuple[int, Part]]) -> Pass:
    shared: dict[str, str] = {}

    def shared_name(expression: str) -> str:
        return shared.setdefault(expression, f"e{len(shared)}")

    members, outputs = [], []
    first = dict(group[0][1].projections)
    keys = [shared_name(e) for e in sorted(first[k] for k in group[0][1].keys)]
    is_one_test = len({p.where for _, p in group}) == 1
    for number, (target, part) in enumerate(group):
        guard = None if is_one_test else part.where
        known = {n: shared_name(_guarded(e, n in part.keys, guard)) for n, e in part.projections}
        condition = shared_name(part.where) if part.where else None
        names: list[str] = []
        for partial in part.partials:
            renamed = replace(
                partial,
                partial=_renamed(partial.partial, known),
                filter=_renamed(partial.filter, known) if partial.filter else None,
            )
            names.append(f"p{number}_{len(names)}")
            outputs.append(f"{renamed.over(condition)} AS {names[-1]}")
        presence = f"n{number}" if condition else None
        if condition:
            outputs.append(f"count(*) FILTER (WHERE {condition}) AS {presence}")
        members.append(Member(target, (*(known[k] for k in part.keys), *names), presence))
    tests = [p.where for _, p in group]
    some = "" if None in tests else " WHERE " + " OR ".join(f"({t})" for t in dict.fromkeys(tests))
    rows = _rows({name: sql for sql, name in shared.items()}, group[0][1].source, some)
    return Pass(rows, (*keys, *outputs), ", ".join(keys), tuple(members), tuple(keys))


def _guarded(expression: str, is_key: bool, where: str | None) -> str:
    """An expression that is computed for a part's own rows alone: for others it may be what cannot be."""
    if where is None or is_key or PLAIN.fullmatch(expression):
        return expression
    return f"CASE WHEN {where} THEN {expression} END"


def _renamed(text: str, names: dict[str, str]) -> str:
    return NAME.sub(lambda m: names.get(m.group(), m.group()), text)


def _rows(projections: dict[str, str], source: str, where: str) -> str:
    listed = ", ".join(f"{sql} AS {name}" for name, sql in projections.items()) or "1 AS one"
    return f"SELECT {listed} FROM {source}{where}"


def union(passes: Sequence[Pass]) -> str:
    """One query for all passes: columns `pass`, `c0`, `c1`, …"""
    parts = []
    for number, made in enumerate(passes):
        columns = ["struct(*)" if i == number else "NULL" for i in range(len(passes))]
        listed = ", ".join(f"{c} AS c{i}" for i, c in enumerate(columns))
        parts.append(f"SELECT {number} AS pass, {listed} FROM ({made.sql}) AS q{number}")
    return " UNION ALL ".join(parts)
