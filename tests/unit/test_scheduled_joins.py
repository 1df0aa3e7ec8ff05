"""Joins of two streams that are shared and scheduled: each query gets what it would get alone, in the same order.

A *tick* of a story is one piece of work of each join, so that turns overlap and are preempted; alone, a query is
brought up to date there. `MILLSTREAM_LAW_CASES` says how many queries of stories are compared, about; `make law`
says 2,000.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain, count, pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream.queries import joining, parcels, scheduled, slicing
from millstream.schedule.join_policies import Measured
from millstream.storage import inline, segment, upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.database import Database
    from millstream.queries.scheduled_join import Join
    from millstream.schedule.joins import Work

Row = tuple[Any, ...]
Delivery = tuple[Any, list[Row]]
Story = list[tuple[str, Any]]
STREAMS = ("r", "s")
CASES = int(os.environ.get("MILLSTREAM_LAW_CASES", "0"))
SEEDS = range(max(1, CASES // 80))
"""A seed is a story for each policy, condition and kind of window, of six queries or more."""
CUTS = 3, 1_000
"""So many rows of a story are inserted together; the other seeds have the other cut."""


@pytest.fixture
def opened(tmp_path: Path, spark: SparkSession, clock: Any) -> Callable[[str], Database]:
    def open_one(name: str) -> Database:
        return millstream.connect(tmp_path / name, spark=spark, clock=clock, background=False)

    return open_one


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every join that can be is scheduled, every unit is a piece of work, and many rows are in files."""
    monkeypatch.setattr(scheduled, "MANY_ROWS", -1)
    monkeypatch.setattr(Measured, "job", 0.0)
    monkeypatch.setattr(inline, "MOST_ROWS", 4)
    monkeypatch.setattr(segment, "ROW_GROUP_ROWS", 3)


@dataclass
class Units:
    """What was done: how often, by how many jobs, and how often older rows had been overtaken by newer ones."""

    pieces: int = 0
    jobs: int = 0
    overtaken: int = 0
    newest: dict[Join, int] = field(default_factory=dict)
    """By join: the first batch of the newest turn that was worked on."""

    def note(self, join: Join, works: Sequence[Work]) -> None:
        turns = [min(join.of_batch[w.batch.number].batches) for w in works]
        newest = self.newest.get(join, 0)
        self.pieces += 1
        self.overtaken += min(turns) < newest
        self.newest[join] = max(newest, *turns)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> Units:
    done, real = Units(), scheduled.Scheduled._work

    def work(self: Any, join: Any, works: Any) -> Any:
        before = join.jobs
        done.note(join, works)
        made = real(self, join, works)
        done.jobs += join.jobs - before
        return made

    monkeypatch.setattr(scheduled.Scheduled, "_work", work)
    return done


def equal(random: Random) -> str:
    return random.choice(["x.k = y.k", "x.k = y.k", "x.k = y.k", "y.w = x.w AND x.k = y.k"])


def nested(random: Random) -> str:
    return random.choice(["x.a < y.b", "x.a + y.a = 7", "x.k = y.b + 1 OR x.w = y.w"])


def query(random: Random, condition: Callable[[Random], str], kind: str) -> str:
    other, length = random.choice(["s", "s", "s", "r"]), random.choice([2, 3, 5, 8, 13])
    window, own = (f" WINDOW {kind} {length}", "") if length == 5 else ("", f" [{kind} {length}]")
    where = random.choice(["", " AND x.a > 3", " AND y.b < 2", " AND x.a + y.a > 6", " AND x.w = 'ab'"])
    columns = random.choice(["x.a AS p, y.a AS q", "x.k AS k, y.t AS t, x.a + y.b AS z", "y.w AS w"])
    ordered_by = "x.t AS xt, x.i AS xi, y.t AS yt, y.i AS yi"
    streams = f"r{own} AS x, {other}{own} AS y"
    return f"SELECT {columns}, {ordered_by} FROM {streams} WHERE ({condition(random)}){where}{window}"


def a_story(seed: object, condition: Callable[[Random], str], steps: int = 9, kind: str = "INTERVAL") -> Story:
    """Queries come and go, bursts of rows come, some late; by rows only at one step, as these part the queries.

    Halfway the first of them goes when it has all that is due to it.
    """
    random = Random(f"scheduled {seed}")
    late_step = random.randrange(3 * steps)
    story: Story = []
    there: list[str] = []
    at, late, number_of = dict.fromkeys(STREAMS, 0), [0, 0, 1, 2, -1, -4], {s: count() for s in STREAMS}
    for step in range(steps):
        story.append((random.choice(["tick", "tick", "tick", "drain"]), None))
        for number in range(random.choice([0, 0, 1, 2]) if step else 4):
            there.append(f"q{step}_{number}")
            story.append(("sql", f"CREATE CONTINUOUS QUERY {there[-1]} AS {query(random, condition, kind)}"))
        if step == steps // 2:
            story.append(("drop", (there.pop(0), True)))
        elif len(there) > 4 and random.random() < 0.3:
            story.append(("drop", (there.pop(random.randrange(1, len(there))), False)))
        burst = random.choice([1, 1, 3])
        for stream in STREAMS:
            at[stream] += random.randrange(4)
            rows = [
                (
                    random.randrange(4),
                    random.choice(["a", "ab", "b", None]),
                    random.choice([None, *range(10)]),
                    random.randrange(4),
                    next(number_of[stream]),
                    at[stream] + random.choice(late if kind == "INTERVAL" or step == late_step else [0, 0, 1, 2]),
                )
                for _ in range(burst * random.choice([0, 1, 4, 7]))
            ]
            story.append(("insert", (stream, rows)))
        if random.random() < 0.3:
            stream = random.choice(STREAMS)
            at[stream] += 3
            story.append(("sql", f"ADVANCE {stream} TO {at[stream]}"))
    return [*story, ("drain", None), *(("sql", f"ADVANCE {s} TO 200") for s in STREAMS), ("drain", None)]


def second(number: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


def in_seconds(story: Story) -> Story:
    """The same story with seconds for numbers."""
    made: Story = []
    for what, about in story:
        if what == "sql":
            about = re.sub(r"INTERVAL (\d+)", r"INTERVAL '\1' SECOND", about)
            about = re.sub(r"TO (\d+)", lambda found: f"TO '{second(int(found[1])):%Y-%m-%d %H:%M:%S}'", about)
        elif what == "insert":
            about = (about[0], [(*row[:-1], second(row[-1])) for row in about[1]])
        made.append((what, about))
    return made


def told(db: Database, story: Story, *, is_alone: bool = False, cut: int = 1_000) -> dict[str, list[Delivery]]:
    """Let a story happen; returns what queries that were dropped had been given."""
    gone: dict[str, list[Delivery]] = {}
    for what, about in story:
        if what == "sql":
            db.sql(about)
        elif what == "drop":
            name, is_drained = about
            if is_drained:
                db.drain()
            gone[name] = given(db, name)
            db.sql(f"DROP CONTINUOUS QUERY {name}")
        elif what == "insert":
            stream, rows = about
            for start in range(0, len(rows), cut):
                db.insert(stream, rows[start : start + cut])
                if cut < 1_000:
                    db._engine.queries._step_choirs()
        elif what == "drain" or (what == "tick" and is_alone):
            db.drain()
        elif what == "tick":
            db._engine.queries._step_choirs()
    return gone


def create(db: Database, time: str = "t BIGINT) TIMESTAMP BY t WATERMARK INTERVAL 2") -> None:
    for name in STREAMS:
        db.sql(f"CREATE STREAM {name} (k INT, w STRING, a INT, b BIGINT, i BIGINT, {time}")


def queries(db: Database) -> dict[str, str]:
    return {row[0]: row[-1] for row in db.sql("SHOW QUERIES").fetchall()}


def given(db: Database, name: str) -> list[Delivery]:
    found = db.results(name)
    assert [d.sequence for d in found] == list(range(1, len(found) + 1))
    return [(d.instant, d.fetchall()) for d in found]


def had(db: Database, name: str) -> list[tuple[Any, Row]]:
    return flat(given(db, name))


def flat(found: list[Delivery]) -> list[tuple[Any, Row]]:
    return [(instant, row) for instant, rows in found for row in rows]


def every(db: Database) -> dict[str, list[Delivery]]:
    return {name: given(db, name) for name in queries(db)}


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled, "key_of", lambda *_: None)
    monkeypatch.setattr(joining, "key_of", lambda *_: None)


@pytest.mark.parametrize("policy", ["greedy", "lwo", "swf"])
@pytest.mark.parametrize("condition", [equal, nested])
@pytest.mark.parametrize("kind", ["INTERVAL", "ROWS"])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_query_gets_what_it_would_get_alone(
    seed: int,
    policy: str,
    condition: Callable[[Random], str],
    kind: str,
    opened: Callable[[str], Database],
    units: Units,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = CUTS[(seed + (policy == "swf")) % 2]
    story = a_story(f"{policy} {seed}", condition, steps=6, kind=kind)
    behind = {about[0] for what, about in story if what == "drop" and not about[1]}
    with opened("together") as db:
        create(db)
        db.sql(f"SET join_policy = {policy}")
        found = told(db, story, cut=cut) | every(db)
        assert not any(j.turns or j.schedule.pending for j in db._engine.queries.scheduled.joins.values())
    assert units.pieces > 0
    if policy == "lwo":
        assert units.overtaken == 0
    elif kind == "INTERVAL":
        assert units.overtaken > 0
    with monkeypatch.context() as patched, opened("alone") as db:
        alone(patched)
        create(db)
        expected = told(db, story, is_alone=True) | every(db)
    assert any(expected.values())
    texts = {about.split()[3]: about for what, about in story if what == "sql" and about.startswith("CREATE")}
    assert texts.keys() == found.keys() == expected.keys()
    for name, text in texts.items():
        assert all(is_ordered(rows) for _, rows in found[name]), text
        if name in behind:
            # Alone, it had all that was due when it was dropped.
            assert Counter(flat(found[name])) <= Counter(flat(expected[name])), text
        elif kind == "ROWS":
            assert found[name] == expected[name], text
        else:
            check_same(found[name], expected[name], text)


def is_ordered(rows: list[Row]) -> bool:
    """By the largest time, the number of the later row, that of the other; each pair is there once."""
    keys = []
    for *_, xt, xi, yt, yi in rows:
        (_, other), (time, later) = sorted([(xt, xi), (yt, yi)])
        keys.append((time, later, other, xi, yi))
    return all(one < next_one for one, next_one in pairwise(keys))


def check_same(found: list[Delivery], expected: list[Delivery], text: str) -> None:
    """In the same order, unless more rows of the instant came later: who is stepped in between has two parts."""
    one, other = by_instant(found), by_instant(expected)
    assert list(one) == list(other), text
    for instant, parts in other.items():
        if len(parts) == len(one[instant]) == 1:
            assert one[instant] == parts, f"at {instant}: {text}"
        else:
            assert Counter(chain(*one[instant])) == Counter(chain(*parts)), f"at {instant}: {text}"


def by_instant(found: list[Delivery]) -> dict[Any, list[list[Row]]]:
    made: dict[Any, list[list[Row]]] = {}
    for instant, rows in found:
        made.setdefault(instant, []).append(rows)
    return made


@pytest.mark.parametrize(("condition", "kind", "policy"), [
    (equal, "INTERVAL", "greedy"), (nested, "INTERVAL", "lwo"), (equal, "ROWS", "swf"),
])  # fmt: skip
def test_slices_may_be_joined_in_tasks(
    condition: Callable[[Random], str],
    kind: str,
    policy: str,
    opened: Callable[[str], Database],
    units: Units,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = [x for x in a_story(5, condition, steps=4, kind=kind) if x[0] != "tick"]
    with opened("here") as db:
        create(db)
        db.sql(f"SET join_policy = {policy}")
        expected = told(db, story) | every(db)
    assert units.pieces > 0
    assert units.jobs == 0
    monkeypatch.setattr(slicing, "HERE_ROWS", -1)
    monkeypatch.setattr(Measured, "job", 1e9)
    with opened("tasks") as db:
        create(db)
        db.sql(f"SET join_policy = {policy}")
        assert told(db, story) | every(db) == expected
    assert units.jobs > 0
    assert any(expected.values())
    for module in (slicing, scheduled):
        monkeypatch.setattr(module, "is_small", lambda portion: (portion.asked.low + portion.asked.high) % 2)
    monkeypatch.setattr(parcels, "PACKED_FROM", 0)
    with opened("both") as db:
        create(db)
        db.sql(f"SET join_policy = {policy}")
        assert told(db, story) | every(db) == expected


def test_a_restart_between_any_two_pieces_of_work_changes_nothing(opened: Callable[[str], Database]) -> None:
    story = a_story(6, equal)
    with opened("whole") as db:
        create(db)
        told(db, [("drain", None) if x[0] == "tick" else x for x in story])
        expected = {name: had(db, name) for name in queries(db)}
    with opened("cut") as db:
        create(db)
    for start in range(0, len(story), 7):
        with opened("cut") as db:
            told(db, story[start : start + 7])
    with opened("cut") as db:
        assert {name: had(db, name) for name in queries(db)} == expected


def rows_at(*times: int, a: int = 1) -> list[Row]:
    return [(1, "a", a, 1, 0, t) for t in times]


def two(db: Database) -> None:
    """A short and a long window over the same join."""
    create(db)
    for name, window in (("short", 2), ("long", 20)):
        db.sql(f"CREATE CONTINUOUS QUERY {name} AS SELECT x.t AS p, y.t AS q FROM r x JOIN s y ON x.k = y.k "
               f"WINDOW INTERVAL {window}")  # fmt: skip


def joins(db: Database) -> dict[str, dict[str, Any]]:
    return {row["query"]: row for row in db.sql("SHOW JOINS").to_arrow().to_pylist()}


def test_a_short_window_does_not_wait_for_a_long_one(db: Database) -> None:
    two(db)
    db.sql("SET join_policy = swf")
    for stream in STREAMS:
        db.insert(stream, rows_at(1, 10))
    db.drain()
    assert [row for _, row in had(db, "short")] == [(1, 1)]
    for stream in STREAMS:
        db.insert(stream, rows_at(11, 14))
    while not [row for _, row in had(db, "short")][1:]:
        db._engine.queries._step_choirs()
    assert [row for _, row in had(db, "short")] == [(1, 1), (10, 10), (10, 11), (11, 10), (11, 11)]
    assert [row for _, row in had(db, "long")] == [(1, 1)]
    db.drain()
    assert len(had(db, "long")) == 9


@pytest.mark.parametrize("policy", ["greedy", "lwo"])
def test_new_rows_overtake_large_slices_of_older_ones_if_they_may(db: Database, units: Units, policy: str) -> None:
    two(db)
    db.sql(f"SET join_policy = {policy}")

    def came(*times: int) -> None:
        for stream in STREAMS:
            db.insert(stream, rows_at(*times))
        db._engine.queries._step_choirs()

    def last(name: str) -> int:
        return max((t for t, _ in had(db, name)), default=-1)

    found = []
    for times in ((1, 5, 9), (12,), ()):
        came(*times)
        found.append((last("short"), last("long")))
    if policy == "greedy":
        assert found == [(5, -1), (9, -1), (9, 9)]
    else:
        assert found == [(5, 5), (9, 9), (9, 9)]
    # The slice of the older rows that the newer ones have overtaken.
    assert units.overtaken == (policy == "greedy")


def test_buffers_hold_the_largest_window_that_there_is(db: Database) -> None:
    two(db)

    def ran(start: int, end: int) -> None:
        for t in range(start, end, 5):
            for stream in STREAMS:
                db.insert(stream, rows_at(*range(t, t + 5)))
            db.drain()

    def stored() -> int:
        """As many rows as the catalogue has of a stream, at most; they go by whole files."""
        upkeep.drop_consumed(db._lake)
        catalog = db._lake.catalog
        return max(catalog.row_count(catalog.tables()[stream]) for stream in STREAMS)

    ran(0, 40)
    before, wide = joins(db)["long"], stored()
    ran(40, 120)
    now = joins(db)["long"]
    # The window, what the watermark has not passed, and the instant itself, of both streams.
    assert before["buffer_rows"] == now["buffer_rows"] == 2 * (20 + 2 + 1)
    assert 23 <= stored() <= wide <= 23 + 5
    [join] = db._engine.queries.scheduled.joins.values()
    for stream in STREAMS:
        db.insert(stream, rows_at(*range(120, 125)))
    db._engine.queries._step_choirs()
    assert join.turns
    assert joins(db)["long"]["extra_bytes"] > now["extra_bytes"]
    db.sql("DROP CONTINUOUS QUERY long")
    db.drain()
    assert not join.turns
    assert joins(db)["short"]["extra_bytes"] <= now["extra_bytes"]
    ran(125, 130)
    assert joins(db)["short"]["buffer_rows"] == 2 * (2 + 2 + 1)
    assert 5 <= stored() <= 5 + 5


@pytest.mark.parametrize("how", ["scheduled", "stems", "alone"])
def test_a_late_row_is_answered_at_an_instant_where_the_watermark_is(
    how: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came when no instant followed, and then a row came whose time is the watermark."""
    if how == "alone":
        alone(monkeypatch)
    elif how == "stems":
        monkeypatch.setattr(scheduled, "MANY_ROWS", 1_000)
    two(db)
    for stream in STREAMS:
        db.insert(stream, rows_at(3))
        db.sql(f"ADVANCE {stream} TO 4")
    db.drain()
    db.insert("r", rows_at(2, 7))
    db.insert("s", rows_at(7))
    db.drain()
    assert had(db, "long") == [(3, (3, 3))]
    db.insert("s", rows_at(5))
    db.drain()
    assert had(db, "long") == [(3, (3, 3)), (5, (2, 3)), (5, (3, 5)), (5, (2, 5))]
    assert had(db, "short") == [(3, (3, 3)), (5, (3, 5))]


def test_response_times_are_from_the_commit_of_the_later_row_to_the_release(db: Database, clock: Any) -> None:
    two(db)
    db.insert("r", rows_at(1))
    db.insert("s", rows_at(1))
    db.drain()
    clock.advance(timedelta(seconds=5))
    db.insert("s", rows_at(2, 9))
    clock.advance(timedelta(seconds=2))
    db.insert("r", rows_at(9))
    clock.advance(timedelta(seconds=1))
    db.drain()
    shown = joins(db)
    assert {q: (row["results"], row["average"], row["p95"], row["longest"]) for q, row in shown.items()} == {
        "short": (2, 5.5, 8.0, 8.0),
        "long": (2, 5.5, 8.0, 8.0),
    }
    assert shown["long"]["join"] == "r.k = s.k"
    assert (shown["short"]["window"], shown["short"]["policy"]) == ("INTERVAL 2", "greedy")
    assert shown["long"]["buffer_rows"] == 5
    assert shown["long"]["buffer_bytes"] > 0


def test_explain_shared_tells_of_the_join_and_of_nested_loops(db: Database) -> None:
    two(db)
    made = db.sql("CREATE CONTINUOUS QUERY n AS SELECT x.t FROM r x, s y WHERE x.a < y.a WINDOW INTERVAL 3")
    assert made.status.startswith("CREATE CONTINUOUS QUERY; warning: no column of one stream is to be equal")
    for stream in STREAMS:
        db.insert(stream, rows_at(1, 10))
    db.drain()
    lines = [str(row[0]) for row in db.sql("EXPLAIN SHARED long").fetchall()]
    assert lines[1] == "Join: r.k = s.k"
    assert "Shared with 1 other query: one join, cut into 2 slices" in lines
    assert "  Scheduled by greedy: windows from INTERVAL 2 to INTERVAL 20" in lines
    assert any(line.startswith("  Response: 0.000 s on average") for line in lines)
    lines = [str(row[0]) for row in db.sql("EXPLAIN SHARED n").fetchall()]
    assert any(line.startswith("Warning: no column of one stream is to be equal") for line in lines)


def test_what_was_learnt_of_grouped_filters_is_kept_when_queries_come_and_go(db: Database) -> None:
    create(db)

    def came(name: str, window: int, *times: int) -> list[Any]:
        """A query, and rows after it; returns who orders the filters then."""
        db.sql(f"CREATE CONTINUOUS QUERY {name} AS SELECT x.t FROM r x, s y "
               f"WHERE x.k = y.k AND x.a > 8 AND x.b >= 1 WINDOW INTERVAL {window}")  # fmt: skip
        for stream in STREAMS:
            db.insert(stream, rows_at(*times))
        db.drain()
        [join] = db._engine.queries.scheduled.joins.values()
        assert join.cast is not None
        assert len(join.cast.runs) == len(db.sql("SHOW QUERIES").fetchall())
        return join.cast.filters

    before = came("one", 3, 1, 2, 3)
    assert [id(p) for p in came("two", 5, 10, 11, 12)] == [id(p) for p in before]
    shown = {row[1]: row for row in db.sql("SHOW EDDY").fetchall() if row[0] == "r"}
    passed = {name: row[6] for name, row in shown.items()}
    assert passed == {"grouped filter on a": 0.0, "grouped filter on b": 1.0}
    assert shown["grouped filter on a"][5] > shown["grouped filter on b"][5] == 0.0
    told = [row[0] for row in db.sql("EXPLAIN SHARED two").fetchall()]
    assert [line.split(":")[1] for line in told if line.startswith("  r: ")] == [
        f" {row[1]}" for row in sorted(shown.values(), key=lambda row: row[3])
    ]
    db.sql("SET eddy = random")
    assert {row[5] for row in db.sql("SHOW EDDY").fetchall()} == {0.0}


def test_a_stream_that_stalls_is_waited_for_until_it_is_advanced(db: Database) -> None:
    two(db)
    db.insert("s", rows_at(1))
    for start in range(0, 60, 20):
        db.insert("r", rows_at(*range(start, start + 20)))
        db.drain()
    assert had(db, "long") == []
    [join] = db._engine.queries.scheduled.joins.values()
    assert not join.turns
    db.sql("ADVANCE s TO 12")
    db.drain()
    assert [row for _, row in had(db, "long")] == [(t, 1) for t in range(13)]
    assert [row for _, row in had(db, "short")] == [(t, 1) for t in range(4)]


def test_a_query_that_fails_fails_alone(db: Database) -> None:
    two(db)
    text = "CREATE CONTINUOUS QUERY {} AS SELECT {} FROM r x, s y WHERE x.k = y.k{} WINDOW INTERVAL 9"
    db.sql(text.format("bad", "1 div (x.a - 1) AS z", ""))
    db.sql(text.format("worse", "x.t", " AND 1 div (x.a - y.a) > 0"))
    for stream in STREAMS:
        db.insert(stream, rows_at(1, 2, 9))
    db.drain()
    shown = {row[0]: row[2] for row in db.sql("SHOW QUERIES").fetchall()}
    assert shown == {"short": "running", "long": "running", "bad": "failed", "worse": "failed"}
    assert len(had(db, "long")) == 4


def test_a_query_that_was_paused_comes_back(db: Database) -> None:
    two(db)
    for stream in STREAMS:
        db.insert(stream, rows_at(1, 5))
    db.sql("PAUSE short")
    for stream in STREAMS:
        db.insert(stream, rows_at(6, 9))
    db.drain()
    assert len(had(db, "long")) == 9
    db.sql("RESUME short")
    db.drain()
    for stream in STREAMS:
        db.insert(stream, rows_at(12))
    db.drain()
    assert [row for _, row in had(db, "short")] == [(1, 1), (5, 5), (5, 6), (6, 5), (6, 6), (9, 9)]
    assert set(joins(db)) == {"short", "long"}
