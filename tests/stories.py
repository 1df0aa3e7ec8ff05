"""Stories of queries that share: what happens to some streams, and to selections, aggregates and joins on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database

Row = tuple[Any, ...]
Story = list[tuple[str, Any]]
STREAMS = ("r", "s", "u", "v")
AGGREGATE = re.compile(r"\b(sum|min|max|count)\(")


def selection(random: Random) -> str:
    where = random.choice(
        ["a > 3", "a = 2 OR b < 1", "b BETWEEN 1 AND 2", "w = 'ab' AND a <> 5", "a + b > 6", "a = b"]
    )
    columns = random.choice(["k, a, t", "t, w AS word", "a + 1 AS more, b"])
    return f"SELECT {columns} FROM {random.choice(STREAMS)} WHERE {where}"


def aggregate(random: Random, stream: str = "s") -> str:
    sums = random.choice(
        ["sum(a) AS x, count(*) AS n", "max(b) AS x", "min(a) AS x, avg(a) AS y", "count(b) AS n"]
    )
    where = random.choice([
        "", "", " WHERE a > 3", " WHERE b <> 1 AND a < 8", " WHERE a + b > 5", " WHERE w = 'a' OR b IN (0, 2)",
        f" WHERE a <= {random.randrange(9)}",
    ])  # fmt: skip
    keys = random.choice([("k, ", " GROUP BY k ORDER BY k"), ("", ""), ("k, w, ", " GROUP BY k, w ORDER BY k, w")])
    length, step = random.choice([5, 9, 12, 20]), random.choice([2, 3, 5])
    window = random.choice([
        f"{stream} [INTERVAL {length}]{where}{keys[1]} SAMPLE INTERVAL {step}",
        f"TUMBLE({stream}, t, INTERVAL {step}){where}{keys[1]}",
        f"HOP({stream}, t, INTERVAL {step}, INTERVAL {length}){where}{keys[1]}",
        f"{stream} [LANDMARK]{where}{keys[1]} SAMPLE INTERVAL {step}",
        f"{stream} [LANDMARK RESET INTERVAL {length}]{where}{keys[1]} SAMPLE INTERVAL {step}",
    ])  # fmt: skip
    emit = random.choice(["", "", " EMIT CHANGES"])
    return f"SELECT {keys[0]}{sums} FROM {window}{emit}"


@dataclass(frozen=True)
class Shape:
    """What joins have in common that share: streams, and for each but the first what is to be equal."""

    streams: tuple[str, ...]
    conditions: tuple[str, ...]


def shape(random: Random, count: int) -> Shape:
    streams = random.sample(STREAMS, count) if random.random() < 0.8 else random.choices(STREAMS, k=count)
    conditions = []
    for i in range(1, count):
        column, other = random.choice(["k", "k", "w"]), random.randrange(i)
        more = f" AND x{other}.b = x{i}.b" if random.random() < 0.3 else ""
        conditions.append(f"x{other}.{column} = x{i}.{column}{more}")
    return Shape(tuple(streams), tuple(conditions))


def join(random: Random, drawn: Shape | None = None) -> str:
    drawn = drawn or shape(random, random.choice([2, 2, 2, 2, 3, 4]))
    named = [f"{name} [INTERVAL {random.choice([3, 6, 9])}] AS x{i}" for i, name in enumerate(drawn.streams)]
    pairs = zip(named[1:], drawn.conditions, strict=True)
    text = named[0] + "".join(f" JOIN {one} ON {condition}" for one, condition in pairs)
    tests = [
        "x0.a > 3",
        "x1.b < 2",
        f"x{len(named) - 1}.a IN (1, 2, 3)",
        "x0.a + x1.a > 6",
        "x0.w LIKE 'a%'",
        "x0.t < x1.t",
    ]
    where = random.choice(
        ["", f" WHERE {random.choice(tests)}", f" WHERE {random.choice(tests)} AND {random.choice(tests)}"]
    )
    columns = random.choice(["x0.a AS p, x1.a AS q", "x0.k AS k, x1.t AS t, x0.a + x1.b AS z", "x1.w AS w"])
    sample = random.choice(["", " SAMPLE INTERVAL 2", " SAMPLE INTERVAL 5"])
    return f"SELECT {columns} FROM {text}{where}{sample} EMIT NEW"


def sharing_joins(seed: object) -> Callable[[Random], str]:
    """Makes joins of two, three and four streams in turn, two of each: windows, tests and columns differ alone."""
    random = Random(f"shapes {seed}")
    shapes = [shape(random, count) for count in (2, 3, 4)]
    turns = cycle([drawn for drawn in shapes for _ in range(2)])
    return lambda random: join(random, next(turns))


def a_story(
    seed: int, makers: tuple[Callable[[Random], str], ...], streams: tuple[str, ...], steps: int = 9
) -> Story:
    """Queries of each of some kinds come and go while rows come, some of them late.

    Past halfway one of the last kind comes, and the first of each kind go; until then nobody goes.
    """
    random = Random(f"windows {seed}")
    story: Story = []
    there: list[str] = []
    at = dict.fromkeys(streams, 0)
    for step in range(steps):
        is_past_half = step == steps // 2 + 1
        for number in range(random.choice([0, 1, 2]) + is_past_half if step else 3 * len(makers) + 2):
            there.append(f"q{step}_{number}")
            query = makers[number % len(makers)] if not step else random.choice(makers)
            if is_past_half and not number:
                query = makers[-1]
            story.append(("sql", f"CREATE CONTINUOUS QUERY {there[-1]} AS {query(random)}"))
        for first in (f"q0_{number}" for number in range(len(makers)) if is_past_half):
            if first in there:
                there.remove(first)
                story.append(("drop", (first, True)))
        if step > steps // 2 + 1 and len(there) > 5 and random.random() < 0.4:
            story.append(("drop", (there.pop(random.randrange(len(there))), random.random() < 0.5)))
        for stream in streams:
            at[stream] += random.randrange(3)
            rows = [
                (
                    random.randrange(4),
                    random.choice(["a", "ab", "b", None]),
                    random.choice([None, *range(10)]),
                    random.choice([None, 0, 1, 2, 3]),
                    at[stream] + random.choice([0, 0, 1, 2, -1, -4]),
                )
                for _ in range(random.choice([0, 1, 5, 9]))
            ]
            story.append(("insert", (stream, rows)))
        if random.random() < 0.3:
            stream = random.choice(streams)
            at[stream] += 3
            story.append(("sql", f"ADVANCE {stream} TO {at[stream]}"))
        if random.random() < 0.7:
            story.append(("drain", None))
    return [*story, *(("sql", f"ADVANCE {s} TO 200") for s in streams), ("drain", None)]


def told(db: Database, story: Story, cut: int = 1_000) -> dict[str, list[Any]]:
    """Let a story happen; returns what queries that were dropped had been given."""
    gone: dict[str, list[Any]] = {}
    for what, about in story:
        if what == "sql":
            db.sql(about)
        elif what == "drop":
            name, is_drained = about
            if is_drained:
                db.drain()
            gone[name] = given(db, name, queries(db)[name])
            db.sql(f"DROP CONTINUOUS QUERY {name}")
        elif what == "insert":
            stream, rows = about
            for start in range(0, len(rows), cut):
                db.insert(stream, rows[start : start + cut])
                if cut < 1_000:
                    db.drain()
        elif what == "drain":
            db.drain()
    return gone


def behind(story: Story) -> set[str]:
    """The queries that were dropped before all that was due to them was delivered, perhaps."""
    return {about[0] for what, about in story if what == "drop" and not about[1]}


def create(db: Database, streams: tuple[str, ...]) -> None:
    for name in streams:
        columns = "k INT, w STRING, a INT, b BIGINT, t BIGINT"
        db.sql(f"CREATE STREAM {name} ({columns}) TIMESTAMP BY t WATERMARK INTERVAL 2")


def queries(db: Database) -> dict[str, str]:
    return {row[0]: row[-1] for row in db.sql("SHOW QUERIES").fetchall()}


def had(db: Database, name: str, *, is_aggregate: bool = False) -> list[Any]:
    """What a query was given, in order; an aggregate's empty answers count."""
    found = db.results(name)
    assert [d.sequence for d in found] == list(range(1, len(found) + 1))
    if is_aggregate:
        return [(d.instant, d.fetchall()) for d in found]
    # How results of one instant are cut into deliveries depends on when they came.
    return [(d.instant, row) for d in found for row in d.fetchall()]


def every(db: Database) -> dict[str, list[Any]]:
    """What all queries were given, by name."""
    return {name: given(db, name, text) for name, text in queries(db).items()}


def given(db: Database, name: str, text: str) -> list[Any]:
    """What a query of some text was given."""
    return had(db, name, is_aggregate=AGGREGATE.search(text) is not None)
