"""What DuckDB sees of history, of streams, of odd names, and of a database that is being written."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millstream
from millstream.catalog import streams
from millstream.clock import ManualClock
from millstream.storage import inline, upkeep
from tests import duck
from tests.recovery import stored

if TYPE_CHECKING:
    from pathlib import Path

    from millstream.database import Database

BIG = 300
"""Rows enough to become a file at once."""


def assert_same_at_every_version(db: Database, name: str) -> None:
    with duck.attached(db.path) as reader:
        for version in range(db._lake.catalog.current.id + 1):
            snapshot = db._lake.catalog.snapshot(version=version)
            if name in db._lake.catalog.tables(snapshot):
                assert duck.rows(reader, name, version) == stored.rows(db._lake, name, snapshot), version


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def test_every_version_reads_the_same_in_duckdb(plain: Database) -> None:
    plain.sql("CREATE TABLE t (id BIGINT)")
    plain.insert("t", numbers(0, 3))
    plain.insert("t", numbers(3, BIG))
    upkeep.flush(plain._lake)
    plain.insert("t", numbers(1000, 2))
    plain.sql("CREATE TABLE other (x STRING)")
    plain.sql("TRUNCATE TABLE t")
    plain.insert("t", numbers(2000, 2))
    assert_same_at_every_version(plain, "t")
    assert len(stored.rows(plain._lake, "t")) == 2


def test_filters_on_an_old_version_find_rows_outside_of_todays_bounds(plain: Database) -> None:
    plain.sql("CREATE TABLE t (id BIGINT)")
    plain.insert("t", numbers(0, BIG))
    before = plain._lake.catalog.current.id
    plain.sql("TRUNCATE TABLE t")
    plain.insert("t", numbers(5000, 1))
    with duck.attached(plain.path) as reader:
        old = duck.source("t", before)
        assert reader.ask(f"SELECT count(*) FROM {old} WHERE id < 100") == [(100,)]
        assert reader.ask(f"SELECT count(*) FROM {old} WHERE id >= 0") == [(BIG,)]
        assert reader.ask(f"SELECT min(id), max(id), count(*) FROM {old}") == [(0, BIG - 1, BIG)]
        for _ in range(2):
            found = reader.ask("SELECT min(id), max(id), count(*) FROM lake.t")
            assert found == [(5000, 5000, 1)]
            upkeep.flush(plain._lake)


def test_a_dropped_table_is_readable_at_its_versions(plain: Database) -> None:
    plain.sql("CREATE TABLE t (id BIGINT)")
    plain.insert("t", numbers(0, 3))
    plain.insert("t", numbers(3, BIG))
    before = plain._lake.catalog.current.id
    plain.sql("DROP TABLE t")
    plain.sql("CREATE TABLE t (name STRING)")
    plain.insert("t", [("new",)])
    with duck.attached(plain.path) as reader:
        assert reader.ask(f"SELECT count(*) FROM {duck.source('t', before)}") == [(BIG + 3,)]
        assert list(duck.rows(reader, "t").values()) == [("new",)]


@pytest.mark.parametrize("rows", [1, BIG])
def test_a_stream_whose_first_rows_were_dropped_has_the_bounds_of_the_rest(plain: Database, rows: int) -> None:
    plain.sql("CREATE STREAM s (id BIGINT, ts BIGINT) TIMESTAMP BY ts")
    stream = stored.table_of(plain._lake, "s")
    plain._lake.catalog.commit(lambda c: streams.set_consumer(c, stream.id, "q", 2 * rows))
    for i in (10, 20, 30):
        plain.insert("s", [(i, i)] * rows)
    assert upkeep.drop_consumed(plain._lake) == 2 * rows
    with duck.attached(plain.path) as reader:
        assert duck.rows(reader, "s") == stored.rows(plain._lake, "s")
        found = reader.ask("SELECT min(id), max(id), count(*) FROM lake.s")
        assert found == [(30, 30, rows)]


def test_an_empty_table_and_a_table_that_lost_all_rows_read_as_empty(plain: Database) -> None:
    plain.sql("CREATE TABLE never (id BIGINT, x DOUBLE)")
    plain.sql("CREATE TABLE lost (id BIGINT, x DOUBLE)")
    plain.insert("lost", [(1, float("nan"))])
    plain.sql("DELETE FROM lost")
    with duck.attached(plain.path) as reader:
        for name in ("never", "lost"):
            assert duck.rows(reader, name) == {}
            asked = f"SELECT count(*), min(id), max(x) FROM lake.{name}"
            assert reader.ask(asked) == [(0, None, None)]


@pytest.mark.parametrize(
    "name",
    ["rowid", "oid", "row_id", "begin_snapshot", "select", "a b", 'quo"te', "it's", "Ünï", "x.y", "a,b", "🐟"],
)
def test_columns_of_any_name_are_read(plain: Database, name: str) -> None:
    plain.sql(f"CREATE TABLE `t {name}` (id BIGINT, `{name}` STRING)")
    plain.insert(f"t {name}", [(1, "one"), (2, None)])
    plain.insert(f"t {name}", [(i, str(i)) for i in range(BIG)])
    upkeep.flush(plain._lake)
    with duck.attached(plain.path) as reader:
        quoted = name.replace('"', '""')
        found = reader.ask(f'SELECT id, "{quoted}" FROM {duck.source(f"t {name}")}')
    assert sorted(found, key=repr) == sorted([(1, "one"), (2, None), *((i, str(i)) for i in range(BIG))], key=repr)


@pytest.mark.parametrize("folder", ["with space", "per%20cent", "ha#sh", "que?ry", "it's", "ünï"])
def test_a_database_in_a_directory_of_any_name_is_read(tmp_path: Path, folder: str) -> None:
    root = tmp_path / folder
    with millstream.connect(root, clock=ManualClock(), background=False) as db:
        db.sql("CREATE TABLE t (id BIGINT)")
        db.insert("t", numbers(0, 2))
        db.insert("t", numbers(2, BIG))
    with duck.attached(root) as reader:
        assert len(duck.rows(reader, "t")) == BIG + 2


def test_a_moved_database_opens_and_duckdb_reads_it(tmp_path: Path) -> None:
    with millstream.connect(tmp_path / "a", clock=ManualClock(), background=False) as db:
        db.sql("CREATE TABLE t (id BIGINT)")
        db.insert("t", numbers(0, BIG))
    shutil.move(tmp_path / "a", tmp_path / "b")
    with millstream.connect(tmp_path / "b", clock=ManualClock(), background=False) as db:
        db.insert("t", numbers(BIG, BIG))
        expected = stored.rows(db._lake, "t")
        assert len(expected) == 2 * BIG
        with duck.attached(db.path) as reader:
            assert duck.rows(reader, "t") == expected
    assert not (tmp_path / "a").exists()


def test_duckdb_reads_whole_commits_while_millstream_writes(
    plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction adds the same id to two tables: a reader never sees one without the other."""
    monkeypatch.setattr(inline, "MOST_ROWS", 1)
    for name in ("a", "b"):
        plain.sql(f"CREATE TABLE {name} (id BIGINT)")
    done = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for i in range(40):
                with plain.transaction():
                    plain.insert("a", numbers(10 * i, 1 + i % 2))
                    plain.insert("b", numbers(10 * i, 1 + i % 2))
                if i % 10 == 9:
                    upkeep.flush(plain._lake)
                    upkeep.compact(plain._lake)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    seen = set()
    with duck.attached(plain.path) as reader:
        writer.start()
        while not done.is_set():
            reader.ask("BEGIN")
            a, b = (sorted(duck.rows(reader, name).values()) for name in ("a", "b"))
            reader.ask("COMMIT")
            assert a == b
            seen.add(len(a))
        writer.join()
        assert not failures
        assert len(duck.rows(reader, "a")) == 60
    assert len(seen) > 1, "the reader never saw the writer at work"
