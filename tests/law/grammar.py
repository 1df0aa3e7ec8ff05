"""Feeds: random streams and tables, queries over them, and what happens to them, all from one seed.

A feed is a record: running it, repeating it with other batches and printing it all consume the same one. The same
seed gives the same feed. Views are created at the start or later; each is to equal its plain query over the rows
inserted since. Tables change on the way in some feeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.law.data import Relation, a_stream, a_table, cut, stream_rows, table_rows
from tests.law.pieces import Block, Deck, Out, Sql, chance
from tests.law.shapes import SHAPES
from tests.law.sources import Hand

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

QUERIES = 50
"""Queries of one feed."""

SMALL_BATCHES = (0, 1, 2, 5, 8, 13, 20, 40)
LARGE_BATCH = 300
"""More than are inlined, so that it becomes a segment."""


@dataclass(frozen=True, slots=True)
class Query:
    """A view's query with its references, and how each column of its result is judged."""

    number: int
    sql: Sql
    outs: tuple[Out, ...]
    is_ordered: bool

    @property
    def name(self) -> str:
        return f"v{self.number}"

    def covers(self, kind: str) -> list[str]:
        """Its labels of a kind: `aggregate`, `join` or `shape`; a query without one covers `none`."""
        found = sorted(c.removeprefix(f"{kind}:") for c in self.sql.covers if c.startswith(f"{kind}:"))
        return found or ["none"]


@dataclass(frozen=True, slots=True)
class Create:
    """Views come into being, in this order."""

    views: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows for a stream, through `db.insert` or as INSERT … VALUES."""

    stream: str
    rows: pa.Table
    as_sql: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A table's rows change: `statement`, or rows added; `content` is what it holds afterwards."""

    table: str
    content: pa.Table
    added: pa.Table | None = None
    statement: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """Views are read and judged."""

    views: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Whatever is due is done."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """The database is closed and opened again."""


@dataclass(frozen=True, slots=True)
class Switch:
    """The other executor goes on with the states that are there."""


Step = Create | Insert | Change | Read | Upkeep | Reopen | Switch


@dataclass(frozen=True, slots=True)
class Feed:
    """Everything that happens in one database."""

    seed: int
    streams: tuple[Relation, ...]
    tables: tuple[Relation, ...]
    contents: dict[str, pa.Table]
    queries: tuple[Query, ...]
    steps: tuple[Step, ...]

    @property
    def relations(self) -> dict[str, Relation]:
        return {r.name: r for r in (*self.streams, *self.tables)}


def a_feed(seed: int, queries: int = QUERIES) -> Feed:
    """The feed of a seed."""
    rng = Random(seed)
    streams = tuple(a_stream(rng, f"s{i}") for i in range(rng.randint(1, 2)))
    tables = tuple(a_table(rng, f"t{i}") for i in range(rng.randint(2, 3)))
    contents = {t.name: table_rows(rng, t, 0, rng.choice([0, *[5, 9, 14] * 4])) for t in tables}
    made = some_queries(Random(f"queries of {seed}"), streams, tables, queries)
    steps = some_steps(Random(f"steps of {seed}"), streams, tables, contents, queries)
    return Feed(seed, streams, tables, contents, made, tuple(steps))


def some_queries(
    rng: Random, streams: Sequence[Relation], tables: Sequence[Relation], count: int
) -> tuple[Query, ...]:
    hand = Hand(rng, streams, tables)
    shapes = Deck(rng, list(SHAPES))
    return tuple(a_query(hand, shapes.draw(), number) for number in range(count))


def a_query(hand: Hand, shape: str, number: int) -> Query:
    hand.share_out()
    block: Block = SHAPES[shape](hand)
    return Query(number, block.sql, block.outs, block.is_ordered)


def some_steps(
    rng: Random, streams: Sequence[Relation], tables: Sequence[Relation], contents: dict[str, pa.Table], views: int
) -> list[Step]:
    """Most views at first, the others on the way; some are read between inserts, all at the end."""
    numbers = rng.sample(range(views), views)
    early = [n for n in numbers if chance(rng, 0.7)]
    late = [n for n in numbers if n not in early]
    steps: list[Step] = [Create(tuple(early))]
    living = list(early)
    for step in happenings(rng, streams, tables, contents):
        steps.append(step)
        if late and chance(rng, 0.15):
            some, late = late[: len(late) // 2 + 1], late[len(late) // 2 + 1 :]
            steps.append(Create(tuple(some)))
            living += some
        if living and chance(rng, 0.35):
            steps.append(Read(tuple(rng.sample(living, min(len(living), 4)))))
    return [*steps, *([Create(tuple(late))] if late else []), Read(tuple(range(views)))]


def happenings(
    rng: Random, streams: Sequence[Relation], tables: Sequence[Relation], contents: dict[str, pa.Table]
) -> list[Step]:
    """Inserts of all streams, mixed; changes of tables and upkeep in between."""
    waiting = [batches(rng, s, i, len(streams)) for i, s in enumerate(streams)]
    found: list[Step] = []
    while any(waiting):
        found.append(rng.choice([w for w in waiting if w]).pop(0))
    for _ in range(rng.choice([0, 0, 2, 4])):
        found.insert(rng.randrange(len(found)), Upkeep())
    places = sorted(rng.sample(range(len(found)), min(len(found), rng.choice([0, 1, 3]))))
    for shift, (place, change) in enumerate(zip(places, changes(rng, tables, contents, len(places)), strict=True)):
        found.insert(place + shift, change)
    return found


def batches(rng: Random, stream: Relation, offset: int, step: int) -> list[Insert]:
    """A stream's rows in the order they come."""
    large = LARGE_BATCH if chance(rng, 0.4) else 0
    rows = stream_rows(rng, stream, rng.randint(80, 200) + large, offset, step)
    parts = cut(rng, rows.slice(large), SMALL_BATCHES)
    if large:
        parts.insert(rng.randrange(len(parts) + 1), rows.slice(0, large))
    return [Insert(stream.name, p, as_sql=0 < p.num_rows <= 13 and chance(rng, 0.25)) for p in parts]


def changes(rng: Random, tables: Sequence[Relation], contents: dict[str, pa.Table], count: int) -> list[Change]:
    """Rows are added, set to another value and deleted."""
    now, found = dict(contents), list[Change]()
    for number in range(count):
        table = rng.choice(tables)
        change = a_change(rng, table, now[table.name], 1000 * (number + 1))
        now[table.name] = change.content
        found.append(change)
    return found


def a_change(rng: Random, table: Relation, content: pa.Table, first: int) -> Change:
    import pyarrow as pa
    import pyarrow.compute as pc

    if content.num_rows == 0 or chance(rng, 0.5):
        added = table_rows(rng, table, first, rng.randint(1, 4))
        return Change(table.name, pa.concat_tables([content, added]), added)
    picked = rng.choice(content.column("u").to_pylist())
    is_picked = pc.equal(content.column("u"), picked)
    if chance(rng, 0.5):
        statement = f"DELETE FROM {table.name} WHERE u = {picked}"
        return Change(table.name, content.filter(pc.invert(is_picked)), statement=statement)
    place = content.schema.get_field_index("mi")
    values = pc.if_else(is_picked, pa.scalar(3, pa.int32()), content.column("mi"))
    statement = f"UPDATE {table.name} SET mi = 3 WHERE u = {picked}"
    return Change(table.name, content.set_column(place, content.schema.field(place), values), statement=statement)
