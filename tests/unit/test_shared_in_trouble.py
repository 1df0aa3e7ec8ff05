"""Selections that share when something comes in between: statements during a step, errors, long lives, readers."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import millstream
from millstream.catalog import groups, queries
from millstream.deliver.render import counted
from millstream.errors import Condition, DataError, MillstreamError
from millstream.queries import blocks, company, matching, storing, together
from millstream.queries.blocks import Block, block_of, fold
from millstream.queries.groups import load, welcome
from millstream.queries.sharing import Sharer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.database import Database

PATIENCE = 60.0
"""Seconds after which a test that waits for another thread gives up."""
Row = tuple[Any, ...]


@pytest.fixture
def opened(tmp_path: Path, spark: SparkSession, clock: Any) -> Callable[..., Database]:
    def open_one(*, read_only: bool = False) -> Database:
        path = tmp_path / "database"
        return millstream.connect(path, spark=spark, clock=clock, background=False, read_only=read_only)

    return open_one


@pytest.fixture
def s(opened: Callable[..., Database]) -> Iterator[Database]:
    with opened() as db:
        db.sql("CREATE STREAM s (a INT, b BIGINT, t BIGINT) TIMESTAMP BY t WATERMARK INTERVAL 3")
        yield db


def create(db: Database, name: str, text: str) -> None:
    db.sql(f"CREATE CONTINUOUS QUERY {name} AS {text}")


def came(db: Database, *values: int, stream: str = "s") -> None:
    """Rows arrive, a basket for each value, and are answered."""
    for value in values:
        db.insert(stream, [(value, value, value)])
        db.drain()


def had(db: Database, name: str) -> list[Any]:
    """The first column of what a query was given; its deliveries are numbered from 1 on."""
    found = db.results(name)
    assert [d.sequence for d in found] == list(range(1, len(found) + 1))
    return [row[0] for d in found for row in d.fetchall()]


def statuses(db: Database) -> dict[str, str]:
    return {row[0]: row[2] for row in db.sql("SHOW QUERIES").fetchall()}


def stream_id(db: Database) -> int:
    return db._lake.catalog.tables()["s"].id


def consumers(db: Database) -> list[Row]:
    with db._lake.catalog.read() as connection:
        return connection.execute("SELECT name, position FROM millstream_consumer").fetchall()


# Statements during a step


def test_a_query_that_is_made_during_a_step_is_not_forgotten(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    create(s, "q", "SELECT a FROM s")
    came(s, 1)
    s.insert("s", [(2, 2, 2)])
    welcomed, stepper = threading.Event(), threading.Thread(target=s._engine.queries.advance_all)
    store = s._lake.catalog._store

    def noted(*about: Any) -> None:
        welcome(*about)
        welcomed.set()

    @contextmanager
    def write() -> Iterator[Any]:
        with type(store).write(store) as connection:
            yield connection
        # It is committed, and the catalogue does not know it yet.
        if not stepper.ident:
            stepper.start()
            assert welcomed.wait(PATIENCE)

    with monkeypatch.context() as patched:
        patched.setattr(together, "welcome", noted)
        patched.setattr(store, "write", write)
        create(s, "p", "SELECT a FROM s WHERE a > 0")
        stepper.join(PATIENCE)
    came(s, 3, 4)
    assert had(s, "q") == [1, 2, 3, 4]
    assert had(s, "p") == [3, 4]


@pytest.mark.parametrize("statement", ["SHOW QUERIES", "DESCRIBE EXTENDED q", "EXPLAIN SHARED q", "SHOW EDDY"])
def test_who_looks_at_a_group_during_a_step_does_not_turn_it_back(
    s: Database, statement: str, opened: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(s, "q", "SELECT a FROM s WHERE a > 0")
    came(s, 1)
    s.close()
    with opened() as db:
        db.insert("s", [(2, 2, 2)])
        front = db._engine.queries

        def step_if_possible() -> None:
            if front._lock.acquire(blocking=False):
                front._lock.release()
                front.advance_all()

        def slow(*about: Any) -> Any:
            found = load(*about)
            stepper = threading.Thread(target=step_if_possible)
            stepper.start()
            stepper.join(PATIENCE)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(together, "load", slow)
            db.sql(statement).fetchall()
        came(db, 3)
        with opened(read_only=True) as other:
            assert had(db, "q") == had(other, "q") == [1, 2, 3]


def test_an_old_copy_of_a_group_delivers_nothing(s: Database, opened: Callable[..., Database]) -> None:
    create(s, "q", "SELECT a FROM s")
    came(s, 1)
    group = s._engine.queries.together.group(stream_id(s))
    assert group is not None
    old = group.place.copy()
    came(s, 2)
    group.place, group.counters = old, dict.fromkeys(group.counters, 1)
    came(s, 3)
    with opened(read_only=True) as other:
        assert had(s, "q") == had(other, "q") == [1, 2, 3]


def test_a_member_of_a_group_is_not_stepped_by_itself(s: Database) -> None:
    create(s, "q", "SELECT a FROM s")
    create(s, "p", "SELECT a FROM s")
    s.sql("PAUSE q")
    came(s, 1)
    s.sql("RESUME q")
    came(s, 2)
    s.insert("s", [(3, 3, 3)])
    query = s._engine.queries.known.named("q")
    assert query is not None
    # Somebody else who steps may have found it by itself a moment ago.
    assert s._engine.queries.step(query) is None
    s.drain()
    assert had(s, "q") == had(s, "p") == [1, 2, 3]


def dropped_during_a_step(db: Database, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a basket answered, and a query dropped when the basket has been through the operators."""
    front, gone = db._engine.queries, threading.Event()
    matched, real = Sharer._matched, front.dropped
    dropper = threading.Thread(target=lambda: db.sql(f"DROP CONTINUOUS QUERY {name}"))

    def dropped(tables: Any) -> None:
        gone.set()
        real(tables)

    def match(*about: Any) -> Any:
        found = matched(*about)
        if not dropper.ident:
            dropper.start()
            assert gone.wait(PATIENCE)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(front, "dropped", dropped)
        patched.setattr(Sharer, "_matched", match)
        front.advance_all()
        dropper.join(PATIENCE)


@pytest.mark.parametrize(("text", "value"), [
    ("SELECT a FROM s", 2), ("SELECT a + 1 AS a FROM s", 2), ("SELECT 10 / a AS a FROM s", 0),
    ("SELECT a FROM s WHERE 10 / a > 0", 0),
])  # fmt: skip
def test_the_last_query_that_is_dropped_during_a_step_leaves_no_consumer(
    s: Database, text: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(s, "q", text)
    came(s, 1)
    s.insert("s", [(value, 2, 2)])
    dropped_during_a_step(s, "q", monkeypatch)
    came(s, *range(3, 8))
    assert statuses(s) == {}
    assert consumers(s) == []
    create(s, "p", "SELECT a FROM s")
    came(s, 9)
    assert had(s, "p") == [9]


def test_the_others_go_on_when_a_query_is_dropped_during_a_step(
    s: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(s, "stays", "SELECT a FROM s")
    create(s, "q", "SELECT 10 / a AS a FROM s")
    came(s, 1)
    s.insert("s", [(0, 2, 2)])
    dropped_during_a_step(s, "q", monkeypatch)
    came(s, 3)
    assert had(s, "stays") == [1, 0, 3]
    assert [name for name, _ in consumers(s)] == ["query group 1"]


def test_a_query_that_is_dropped_as_it_comes_back_is_in_no_group(s: Database) -> None:
    create(s, "q", "SELECT a FROM s")
    came(s, 1)
    s.sql("PAUSE q")
    front = s._engine.queries
    query = front.known.named("q")
    assert query is not None
    run = front._run(query)
    s.sql("DROP CONTINUOUS QUERY q")
    front._join_group(run)
    assert consumers(s) == []
    with s._lake.catalog.read() as connection:
        assert groups.every_member(connection) == set()


# Errors


@pytest.mark.parametrize("text", ["SELECT a FROM s WHERE 10 / a > 1", "SELECT 10 / a AS z FROM s"])
def test_nobody_fails_on_a_row_that_is_not_theirs(s: Database, text: str) -> None:
    create(s, "early", text)
    s.insert("s", [(0, 0, 1)])
    create(s, "late", text)
    create(s, "guarded", f"{text}{' AND' if 'WHERE' in text else ' WHERE'} b > 0")
    s.insert("s", [(2, 2, 2)])
    s.drain()
    assert statuses(s) == {"early": "failed", "late": "running", "guarded": "running"}
    assert len(had(s, "late")) == len(had(s, "guarded")) == 1
    came(s, 3)
    assert len(had(s, "late")) == 2


def test_what_a_group_cannot_do_its_queries_do_alone(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    create(s, "q", "SELECT a FROM s WHERE a > 1")
    create(s, "p", "SELECT a FROM s")
    s.sql("CREATE STREAM other (a INT, b BIGINT, t BIGINT) TIMESTAMP BY t")
    create(s, "apart", "SELECT a FROM other")
    came(s, 1)
    real = matching.here

    def broken(matcher: Any, rows: pa.Table, policy: Any) -> Any:
        if rows.column("a").to_pylist() == [2]:
            raise DataError(Condition.QUERY_FAILED, "two")
        return real(matcher, rows, policy)

    monkeypatch.setattr(matching, "here", broken)
    s.insert("other", [(7, 7, 7)])
    came(s, 2, 3)
    assert (had(s, "q"), had(s, "p"), had(s, "apart")) == ([2, 3], [1, 2, 3], [7])
    assert statuses(s) == {"q": "running", "p": "running", "apart": "running"}
    assert "with 1 other query" in str(s.sql("EXPLAIN SHARED q").fetchall())


def test_a_step_of_a_group_that_is_cancelled_is_done_later(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    create(s, "q", "SELECT a FROM s")
    came(s, 1)

    def cancelled(*_: Any) -> Any:
        raise DataError(Condition.CANCELLED, "cancelled")

    with monkeypatch.context() as patched:
        patched.setattr(matching, "here", cancelled)
        s.insert("s", [(2, 2, 2)])
        with pytest.raises(MillstreamError):
            s._engine.queries.advance_all()
    came(s, 3)
    assert had(s, "q") == [1, 2, 3]


# Long lives


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEPT_BLOCKS", 4)
    monkeypatch.setattr(blocks, "SLACK", 2)


@pytest.mark.usefixtures("few_blocks")
def test_a_seldom_query_keeps_its_deliveries_whatever_others_have(
    s: Database, opened: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "KEPT_DELIVERIES", 10)
    create(s, "often", "SELECT a FROM s")
    create(s, "seldom", "SELECT a FROM s WHERE a % 10 = 0")
    # Two baskets may have the same time: they are two deliveries all the same.
    for value in range(60):
        s.insert("s", [(value, value, value // 20)])
        s.drain()
    assert had(s, "seldom") == [0, 10, 20, 30, 40, 50]
    assert [d.sequence for d in s.results("often")] == list(range(51, 61))
    assert [d.sequence for d in s.results("seldom", since=4)] == [5, 6]
    s.close()
    with opened() as db:
        assert had(db, "seldom") == [0, 10, 20, 30, 40, 50]
        db.insert("s", [(60, 60, 60)])
        db.drain()
        assert had(db, "seldom") == [0, 10, 20, 30, 40, 50, 60]


@pytest.mark.usefixtures("few_blocks")
def test_what_a_query_had_by_itself_is_between_what_it_had_with_others(s: Database) -> None:
    create(s, "often", "SELECT a FROM s")
    create(s, "q", "SELECT a FROM s WHERE a < 20")
    came(s, 0, 1)
    s.sql("PAUSE q")
    came(s, 2, 3, 4)
    s.sql("RESUME q")
    came(s, *range(5, 40))
    assert had(s, "q") == list(range(20))


@pytest.mark.usefixtures("few_blocks")
def test_queries_that_are_gone_are_kept_nowhere(s: Database) -> None:
    create(s, "stays", "SELECT a FROM s")
    create(s, "paused", "SELECT a FROM s")
    came(s, 100)
    s.sql("PAUSE paused")
    for value in range(12):
        create(s, f"q{value}", "SELECT a FROM s")
        came(s, value)
        s.sql(f"DROP CONTINUOUS QUERY q{value}")
    came(s, *range(12, 26))
    group = s._engine.queries.together.group(stream_id(s))
    assert group is not None
    names = {s._lake.catalog.tables()[name].id for name in ("stays", "paused")}
    kept = {q for info in group.blocks.infos for q in _block(group.blocks, info.id).queries.tolist()}
    assert kept == group.blocks.last_numbers().keys() == names
    assert group.answered_at.keys() == group.counters.keys() == group.plans.keys()
    assert had(s, "paused") == [100]
    assert s.sql("DESCRIBE EXTENDED paused").fetchall() != []
    last = {row[0]: row[5] for row in s.sql("SHOW QUERIES").fetchall()}
    assert last["paused"] is not None


def _block(kept: blocks.Blocks, number: int) -> Block:
    found = kept.get(number)
    assert found is not None
    return found


def _made(given: dict[int, list[int]], before: dict[int, int]) -> Block:
    """A block: the instants of each query's rows; each row is in it once."""
    pairs = [(query, instant) for query in sorted(given) for instant in given[query]]
    queries_, instants = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    rows = pa.table({"v": instants})
    return block_of(rows, queries_, np.arange(len(pairs)), instants, before)


def _numbers(block: Block, query: int) -> list[tuple[int, int, list[int]]]:
    return [(g.sequence, g.instant, g.rows().column("v").to_pylist()) for g in block.of(query)]


def test_blocks_that_become_one_keep_the_last_deliveries_of_each_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "KEPT_DELIVERIES", 3)
    first = _made({1: [5, 5, 6], 2: [5], 3: [6]}, {1: 0, 2: 7, 3: 0})
    second = _made({1: [6, 7], 3: [7]}, {1: 2, 3: 5})
    made = fold([first, second], {1: 5, 2: 8})
    assert _numbers(made, 1) == [(3, 6, [6]), (4, 7, [7])]
    assert _numbers(made, 2) == [(8, 5, [5])]
    assert _numbers(made, 3) == []
    again = fold([made, _made({1: [8]}, {1: 4})], {1: 5, 2: 8})
    assert _numbers(again, 1) == [(3, 6, [6]), (4, 7, [7]), (5, 8, [8])]
    assert _numbers(again, 2) == [(8, 5, [5])]
    assert _numbers(fold([again], {}), 1) == []
    assert _numbers(fold([fold([again], {}), _made({4: [8]}, {4: 0})], {4: 1}), 4) == [(1, 8, [8])]


def test_where_there_is_no_room_the_oldest_of_the_most_frequent_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [_made({1: [at], 2: [at]} if at % 5 == 0 else {1: [at]}, {1: at, 2: at // 5}) for at in range(20)]
    whole = fold(given, {1: 20, 2: 4})
    assert (len(_numbers(whole, 1)), len(_numbers(whole, 2))) == (20, 4)
    monkeypatch.setattr(blocks, "FOLDED_BYTES", whole.size // 2)
    made = fold(given, {1: 20, 2: 4})
    assert made.size <= whole.size // 2
    assert [n for n, _, _ in _numbers(made, 2)] == [1, 2, 3, 4]
    numbers = [n for n, _, _ in _numbers(made, 1)]
    assert 5 <= len(numbers) < 12
    assert numbers == list(range(numbers[0], 21))
    monkeypatch.setattr(blocks, "FOLDED_BYTES", 1)
    made = fold(given, {1: 20, 2: 4})
    assert [n for q in (1, 2) for n, _, _ in _numbers(made, q)] == [20, 4]


def noting(reads: list[int], read: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """A reader of the catalogue, which also notes what it reads."""

    def noted(connection: Any, number: int) -> Any:
        reads.append(number)
        return read(connection, number)

    return noted


def test_who_has_nothing_does_not_have_all_blocks_read(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    create(s, "q", "SELECT a FROM s")
    create(s, "nothing", "SELECT a FROM s WHERE a < 0")
    came(s, *range(8))
    s.sql("PAUSE nothing")
    subscriber, reads = s.subscribe("nothing", since=0, timeout=0), list[int]()
    monkeypatch.setattr(groups, "block", noting(reads, groups.block))
    monkeypatch.setattr(groups, "marks", noting(reads, groups.marks))
    monkeypatch.setattr(blocks, "CACHED_BYTES", 0)
    for _ in range(3):
        assert list(subscriber) == []
        assert s.results("nothing") == []
    with millstream.connect(s.path, spark=s.spark, read_only=True) as other:
        assert list(other.subscribe("nothing", since=0, timeout=0)) == []
        once = len(reads)
        for _ in range(3):
            assert list(other.subscribe("nothing", since=0, timeout=0)) == []
    assert len(reads) == once <= 8


def test_paused_queries_cost_nothing(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        create(s, f"q{number}", f"SELECT a FROM s WHERE a = {number}")
        s.sql(f"PAUSE q{number}")
    reads: list[int] = []
    monkeypatch.setattr(queries, "standing", noting(reads, queries.standing))
    came(s, 1, 2, 3)
    assert reads == []


# For people


def test_a_reader_in_another_process_is_shown_groups_as_they_are(
    s: Database, opened: Callable[..., Database]
) -> None:
    create(s, "q", "SELECT a FROM s")
    came(s, 1)
    with opened(read_only=True) as other:
        assert other.sql("SHOW QUERIES").fetchall() == s.sql("SHOW QUERIES").fetchall()
        came(s, 2, 3)
        create(s, "p", "SELECT a FROM s WHERE a > 0")
        came(s, 4)
        for statement in ("SHOW QUERIES", "DESCRIBE EXTENDED q", "EXPLAIN SHARED p"):
            shown = other.sql(statement).fetchall()
            assert [_without_figures(r) for r in shown] == [
                _without_figures(r) for r in s.sql(statement).fetchall()
            ]
        assert [row[1] for row in other.sql("SHOW EDDY").fetchall()] == ["grouped filter on a"]
        s.sql("DROP CONTINUOUS QUERY p")
        assert other.sql("SHOW EDDY").fetchall() == []
        assert "with nobody yet" in str(other.sql("EXPLAIN SHARED q").fetchall())


def _without_figures(row: Row) -> Row:
    """A line without what only those who step can know."""
    return tuple(v.split(", tickets")[0] if isinstance(v, str) else v for v in row)


def test_many_are_counted_in_the_plural() -> None:
    assert [counted(n, "query") for n in (0, 1, 2)] == ["0 queries", "1 query", "2 queries"]
    assert [counted(2, noun) for noun in ("row", "more row", "day", "term")] == [
        "2 rows", "2 more rows", "2 days", "2 terms",
    ]  # fmt: skip
    assert str(company.Operator("SteM of s on k", "query", 2, 0.0, None)).startswith("SteM of s on k: 2 queries, ")
