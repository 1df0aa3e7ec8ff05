"""Parts of many queries that differ in their predicates alone, as one pass over the rows that these select.

A basket's rows go through the grouped filters of all predicates once. Every row is then there once for each
predicate that it satisfies, with the predicate's number, and the pass groups by that number too. So a part has the
groups in which some row satisfies its predicate and no others, what cannot be computed of other rows is not, and
the pass costs what the predicates select, however many there are. Predicates that no domain says are tested by the
kernel, all in one text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.execute.passes import ROWS
from millstream.execute.shared.selections import Selections
from millstream.plan.incremental import stream_name
from millstream.queries import here
from millstream.queries.answering import apart
from millstream.queries.matching import by_policy, lowered
from millstream.rewrite import names
from millstream.rewrite.selection import selection_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.execute.shared.selections import Matcher
    from millstream.plan.incremental import Part
    from millstream.plan.selection import Selection
    from millstream.schedule.eddy import Policy

    Numbers = NDArray[np.int64]
    Pairs = tuple[Numbers, Numbers]
    Types = tuple[tuple[str, pa.DataType], ...]

Q, NUMBER, PLACE = "q", "__ms_q", "__ms_place"
"""The number of a predicate: as a key of partial results, and of a row; the place of a row in a basket."""
SOURCE = f"{stream_name(0)} AS {ROWS}"
MOST_PAIRS = 1 << 20
"""So many rows, each counted once for each predicate, are grouped at once."""
MOST_MATCHED = 1 << 24
"""So many rows times predicates are matched at once."""


def likeness(part: Part) -> Part:
    """What parts have to agree in to be one pass: everything but the predicate, where they read a stream alone."""
    is_plain = part.source == SOURCE and part.grouping == ", ".join(part.keys)
    return replace(part, where=None) if is_plain else part


@dataclass(frozen=True)
class Fused:
    """Parts, by number, that are one pass; `predicates` are the numbers of theirs, in the same order."""

    part: Part
    schema: pa.Schema
    members: tuple[int, ...]
    predicates: Numbers

    @staticmethod
    def of(
        parts: Sequence[Part], schemas: Sequence[pa.Schema], members: Sequence[int], known: Sequence[str]
    ) -> Fused:
        part, schema = likeness(parts[members[0]]), schemas[members[0]]
        keys = (Q, *part.keys)
        projections = ((Q, f"{ROWS}.`{NUMBER}`"), *part.projections)
        made = replace(part, projections=projections, keys=keys, grouping=", ".join(keys))
        numbers = np.array([known.index(parts[n].where or "") for n in members], np.int64)
        return Fused(made, pa.schema([pa.field(Q, pa.int64()), *schema]), tuple(members), numbers)

    def over(self, rows: pa.Table, pairs: Pairs, predicates: int) -> Iterator[list[pa.Table] | None]:
        """What each of the parts makes of rows, some after the other; None if the kernel cannot."""
        own = np.full(predicates, -1, np.int64)
        own[self.predicates] = np.arange(len(self.members))
        numbers, places = own[pairs[0]], pairs[1]
        numbers, places = numbers[numbers >= 0], places[numbers >= 0]
        text = self.part.fragment.lower()
        rows = rows.select([n for n in rows.column_names if f"`{n.lower()}`" in text or n.startswith("__ms_")])
        for start in range(0, len(numbers), MOST_PAIRS):
            some = rows.take(pa.array(places[start : start + MOST_PAIRS]))
            some = some.append_column(NUMBER, pa.array(numbers[start : start + MOST_PAIRS]))
            made = here.partials([self.part], [self.schema], {stream_name(0): some})
            yield None if made is None else apart(made[0], len(self.members))


@dataclass(eq=False)
class Filters:
    """The predicates of a stream's parts: operators for those that domains say, texts for others, by number."""

    predicates: tuple[str, ...]
    matcher: Matcher
    tested: Mapping[int, str]
    policy: Policy
    order: Sequence[str] = ()
    """The order of operators for the last basket."""

    @staticmethod
    def of(predicates: tuple[str, ...], types: Types, policy: Policy) -> Filters:
        selections, tested = Selections(dict(types)), dict[int, str]()
        for number, text in enumerate(predicates):
            selection = selected(text, types)
            if selection.is_exact:
                selections.add(number, selection)
            else:
                tested[number] = text
        return Filters(predicates, selections.ready(), tested, policy)

    def pairs(self, rows: pa.Table) -> Pairs | None:
        """Predicates with the rows that satisfy them; None if the kernel cannot tell."""
        found, self.order = by_policy(self.matcher, lowered(rows), self.policy)
        if not self.tested:
            return found.queries, found.rows
        more = self._tested(rows)
        if more is None:
            return None
        return np.concatenate([found.queries, more[0]]), np.concatenate([found.rows, more[1]])

    def _tested(self, rows: pa.Table) -> Pairs | None:
        columns = ", ".join(f"coalesce({text}, false) AS b{n}" for n, text in self.tested.items())
        text = f"SELECT {ROWS}.`{PLACE}` AS {PLACE}, {columns} FROM {SOURCE}"
        rows = rows.append_column(PLACE, pa.array(np.arange(rows.num_rows)))
        found = here.answer(text, {stream_name(0): rows}, [pa.bool_()])
        if found is None:
            return None
        at = found.column(PLACE).to_numpy()
        own = [at[found.column(f"b{n}").to_numpy()] for n in self.tested]
        return np.repeat(np.array(list(self.tested), np.int64), [len(x) for x in own]), np.concatenate(own)


@dataclass(frozen=True)
class Passes:
    """All that parts ask of a basket's rows: `alone` are passes of their own."""

    parts: tuple[Part, ...]
    schemas: tuple[pa.Schema, ...]
    alone: tuple[int, ...]
    fused: tuple[Fused, ...]
    filters: Filters

    def over(self, rows: pa.Table) -> list[pa.Table] | None:
        """What each part makes of rows with their marks, in pieces that may share groups; None if it cannot be."""
        own, schemas = [self.parts[n] for n in self.alone], [self.schemas[n] for n in self.alone]
        plain = here.partials(own, schemas, {stream_name(0): rows})
        if plain is None:
            return None
        made: list[list[pa.Table]] = [[] for _ in self.parts]
        for number, table in zip(self.alone, plain, strict=True):
            made[number].append(table)
        for fused, tables in self._spread(rows):
            if tables is None:
                return None
            for number, table in zip(fused.members, tables, strict=True):
                made[number].append(table)
        return [pa.concat_tables([s.empty_table(), *m]) for s, m in zip(self.schemas, made, strict=True)]

    def _spread(self, rows: pa.Table) -> Iterator[tuple[Fused, list[pa.Table] | None]]:
        if not self.fused:
            return
        count = len(self.filters.predicates)
        size = max(1, MOST_MATCHED // count)
        for start in range(0, rows.num_rows, size):
            some = rows.slice(start, size)
            pairs = self.filters.pairs(some)
            for fused in self.fused:
                yield from ((fused, t) for t in ([None] if pairs is None else fused.over(some, pairs, count)))


def passes(
    parts: Sequence[Part],
    schemas: Sequence[pa.Schema],
    types: Types,
    last: Filters | None,
    make_policy: Callable[[], Policy],
) -> Passes:
    """The passes of parts, none of which is there twice; `last` are the filters of the basket before."""
    alike: dict[Part, list[int]] = {}
    for number, part in enumerate(parts):
        alike.setdefault(likeness(part), []).append(number)
    alone = tuple(own[0] for own in alike.values() if len(own) == 1)
    together = [own for own in alike.values() if len(own) > 1]
    predicates = tuple(dict.fromkeys(parts[n].where or "" for own in together for n in own))
    if last is None or last.predicates != predicates:
        # What is known of an attribute holds for those who come, too.
        last = Filters.of(predicates, types, make_policy() if last is None else last.policy)
    fused = tuple(Fused.of(parts, schemas, own, predicates) for own in together)
    return Passes(tuple(parts), tuple(schemas), alone, fused, last)


@lru_cache(maxsize=4_096)
def selected(predicate: str, types: Types) -> Selection:
    """What a predicate over a stream's columns selects; without words it is every row."""
    if not predicate:
        return selection_of(None, dict(types))
    query = names.parsed_query(f"SELECT 1 FROM {SOURCE} WHERE {predicate}")
    return selection_of(query.args["where"].this, dict(types))
