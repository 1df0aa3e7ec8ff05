"""What DuckDB sees of streaming tables: while they are written, aged and indexed, and after ALTER."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from millstream.storage import index, inline, retention, upkeep
from millstream.storage.reader import Reader
from tests import duck
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database

BIG = 300
PERIOD = 60
BATCHES = 60


def create(db: Database) -> None:
    db.sql(f"CREATE STREAMING TABLE h (id BIGINT, k INT, t BIGINT) TIMESTAMP BY t RANGE INTERVAL {PERIOD}")
    db.sql("CREATE INDEX i ON h (k)")


def write(db: Database) -> None:
    """Batches of ten rows with consecutive ids and of one time each, upkeep of all kinds in between."""
    steps: list[Callable[[], object]] = [
        lambda: upkeep.flush(db._lake),
        lambda: upkeep.compact(db._lake),
        lambda: index.build_some(db._lake, 3),
        lambda: retention.drop_expired(db._lake),
    ]
    for batch in range(BATCHES):
        db.insert("h", [(10 * batch + i, i, 5 * batch) for i in range(10 if batch % 3 else 1)])
        if batch % 3 == 0:
            db.insert("h", [(10 * batch + i, i, 5 * batch) for i in range(1, 10)])
        steps[batch % len(steps)]()


class Writer(threading.Thread):
    """Writes while somebody reads; says when it is done, and why if it failed."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            write(self._db)
        except BaseException as error:
            self.failure = error


@pytest.fixture
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "MOST_ROWS", 9)
    monkeypatch.setattr(index, "LEAST_ROWS", 1)
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 2)


def check_prefix(rows: list[tuple[Any, ...]]) -> int:
    """Ids are consecutive from some batch on, each once and with its time; returns the last."""
    ids = sorted(row[0] for row in rows)
    assert ids == list(range(ids[0], ids[-1] + 1)), "a hole, or a row twice"
    assert all(t == i // 10 * 5 and k == i % 10 for i, k, t in rows)
    assert ids[-1] % 10 in (0, 9), "half of an insert"
    newest = ids[-1] // 10 * 5
    assert ids[0] // 10 * 5 <= max(0, newest - PERIOD), "a row of the period is missing"
    return ids[-1]


@pytest.mark.usefixtures("_small_world")
def test_duckdb_reads_a_consistent_prefix_while_the_table_is_written_and_aged(plain: Database) -> None:
    """Compartments go while it reads: a file may be missing then, and the read is to be done again."""
    create(plain)
    writer = Writer(plain)
    seen: set[int] = set()
    missing = 0
    with duck.attached(plain.path) as reader:
        writer.start()
        while writer.is_alive():
            try:
                rows = reader.ask("SELECT id, k, t FROM lake.h")
            except duck.DuckError as error:
                if "No such file" not in str(error):
                    raise
                missing += 1
                continue
            if rows:
                seen.add(check_prefix(rows))
        writer.join()
        assert writer.failure is None
        assert check_prefix(reader.ask("SELECT id, k, t FROM lake.h")) == 10 * BATCHES - 1
    assert len(seen) > missing, f"{missing} reads failed"
    assert len(seen) > 1, "the reader never saw the writer at work"
    stored.check(plain._lake)


@pytest.mark.usefixtures("_small_world")
def test_duckdb_sees_rows_of_the_soft_window_and_no_others(plain: Database) -> None:
    create(plain)
    for time in range(0, 200, 3):
        plain.insert("h", [(time, time % 10, time)] * (10 if time % 2 else 1))
        retention.drop_expired(plain._lake)
        oldest = Reader(plain._lake).horizon(stored.table_of(plain._lake, "h"))
        assert oldest is not None
        with duck.attached(plain.path) as reader:
            times = {t for (t,) in reader.ask("SELECT t FROM lake.h")}
            content = {t for (t,) in reader.ask(f"SELECT t FROM lake.h WHERE t >= {oldest}")}
        assert content == {t for t in range(0, time + 1, 3) if t >= oldest}
        assert all(t > oldest - PERIOD // 10 for t in times)


@pytest.mark.usefixtures("_small_world")
def test_every_step_of_upkeep_leaves_duckdb_the_same_content(plain: Database) -> None:
    create(plain)
    rows = [(i, i % 10, 100 - i % 55) for i in range(BIG)]
    plain.insert("h", rows)
    plain.insert("h", rows[:5])
    plain.insert("h", [(999, None, 101)])
    visible = sorted(
        [*((i, k, t) for i, k, t in [*rows, *rows[:5]] if t >= 101 - PERIOD), (999, None, 101)], key=str
    )
    for step in (
        lambda: None,
        lambda: upkeep.flush(plain._lake),
        lambda: index.build_some(plain._lake, 100),
        lambda: upkeep.compact(plain._lake),
        lambda: retention.drop_expired(plain._lake),
        lambda: plain.sql("DROP INDEX i"),
    ):
        step()
        with duck.attached(plain.path) as reader:
            found = reader.ask(f"SELECT id, k, t FROM lake.h WHERE t >= {101 - PERIOD}")
            assert sorted(found, key=str) == visible
            assert reader.ask("SELECT id FROM lake.h WHERE k IS NULL") == [(999,)]
            assert reader.ask("SELECT max(t), max(k) FROM lake.h") == [(101, 9)]
        stored.check(plain._lake)


STATES: dict[str, tuple[int, int]] = {
    "inlined before and after": (3, 3),
    "files before and after": (BIG, BIG),
    "inlined before, a file after": (3, BIG),
    "a file before, inlined after": (BIG, 3),
    "nothing before": (0, 3),
    "nothing before, a file after": (0, BIG),
}
KINDS = {
    "STREAMING TABLE": "CREATE STREAMING TABLE x (id BIGINT, t BIGINT) TIMESTAMP BY t RANGE UNBOUNDED",
    "TABLE": "CREATE TABLE x (id BIGINT, t BIGINT)",
    "STREAM": "CREATE STREAM x (id BIGINT, t BIGINT) TIMESTAMP BY t",
}


def check_column(db: Database, before: int, after: int, filled: int) -> None:
    """Rows from before have null in `c`; of the others `filled` have their id there."""
    total = before + after
    with duck.attached(db.path) as reader:
        assert duck.rows(reader, "x") == stored.rows(db._lake, "x")
        counted = "SELECT count(*), count(c), count(*) FILTER (c IS NULL) FROM lake.x"
        assert reader.ask(counted) == [(total, filled, total - filled)]
        for predicate, expected in (
            ("c IS NULL", total - filled),
            ("c IS NOT NULL", filled),
            (f"c = '{before}'", min(1, filled)),
            ("c = 'nobody'", 0),
            ("c >= '0'", filled),
            ("c IS NULL AND id < 2", min(2, before)),
        ):
            assert reader.ask(f"SELECT count(*) FROM lake.x WHERE {predicate}") == [(expected,)], predicate
    stored.check(db._lake)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", STATES)
def test_a_column_that_was_added_is_null_in_old_rows_and_found_in_new_ones(
    plain: Database, kind: str, state: str
) -> None:
    before, after = STATES[state]
    plain.sql(KINDS[kind])
    if before:
        plain.insert("x", [(i, i) for i in range(before)])
    version = plain._lake.catalog.current.id
    plain.sql(f"ALTER {kind} x ADD COLUMN c STRING COMMENT 'later'")
    check_column(plain, before, 0, 0)
    plain.insert("x", [(i, i, str(i)) for i in range(before, before + after)])
    check_column(plain, before, after, after)
    for step in (upkeep.flush, upkeep.compact):
        step(plain._lake)
        check_column(plain, before, after, after)
    with duck.attached(plain.path) as reader:
        old = reader.table(f"SELECT * FROM {duck.source('x', version)}")
        assert (old.column_names, old.num_rows) == (["id", "t"], before)


def test_columns_are_added_one_after_the_other_with_rows_in_between(plain: Database) -> None:
    plain.sql(KINDS["STREAMING TABLE"])
    for number, type_ in enumerate(("INT", "DECIMAL(9,2)", "DATE", "ARRAY<INT>", "STRING")):
        names = stored.table_of(plain._lake, "x").schema.names
        plain.insert("x", [{"id": 10 * number + i, "t": i} for i in range(3)])
        plain.insert("x", [dict.fromkeys(names) | {"id": 1000 + number, "t": 1}] * BIG)
        plain.sql(f"ALTER STREAMING TABLE x ADD COLUMN c{number} {type_}")
        with duck.attached(plain.path) as reader:
            assert duck.rows(reader, "x") == stored.rows(plain._lake, "x")
            counted = f"SELECT count(*), count(c{number}), count(*) FILTER (c{number} IS NULL) FROM lake.x"
            total = (BIG + 3) * (number + 1)
            assert reader.ask(counted) == [(total, 0, total)]
        if number == 2:
            upkeep.flush(plain._lake)
            upkeep.compact(plain._lake)
    stored.check(plain._lake)


@pytest.mark.parametrize("rows", [2, BIG])
def test_rows_on_their_way_while_a_column_comes_are_null_there(plain: Database, rows: int) -> None:
    """The insert was staged for the table as it was, and commits into the table as it is."""
    plain.sql("CREATE TABLE x (id BIGINT, t BIGINT)")
    table = stored.table_of(plain._lake, "x")
    transaction = plain._lake.transaction()
    data = table.schema.arrow.empty_table().from_pylist(
        [{"id": i, "t": i} for i in range(rows)], table.schema.arrow
    )
    transaction.append(table, data)
    plain.sql("ALTER TABLE x ADD COLUMN c STRING")
    transaction.commit()
    check_column(plain, rows, 0, 0)
    plain.insert("x", [(rows, 1, str(rows))])
    check_column(plain, rows, 1, 1)
    upkeep.flush(plain._lake)
    check_column(plain, rows, 1, 1)


@pytest.mark.parametrize("rows", [2, BIG])
def test_a_table_looked_up_before_a_column_came_takes_rows_all_the_same(plain: Database, rows: int) -> None:
    plain.sql("CREATE TABLE x (id BIGINT, t BIGINT)")
    table = stored.table_of(plain._lake, "x")
    plain.sql("ALTER TABLE x ADD COLUMN c STRING")
    data = table.schema.arrow.empty_table().from_pylist(
        [{"id": i, "t": i} for i in range(rows)], table.schema.arrow
    )
    assert plain._engine.insert_arrow(table, data) == rows
    check_column(plain, rows, 0, 0)
