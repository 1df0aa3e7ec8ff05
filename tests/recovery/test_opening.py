"""Who may open what: second openers, foreign and damaged directories, other formats."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.catalog import layout
from millstream.clock import ManualClock
from millstream.errors import Condition, MachineError, MillstreamError, StatementError
from millstream.storage import index, retention, upkeep
from tests import duck
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.catalog.store import Connection
    from millstream.database import Database
    from tests.recovery.processes import Nursery


def connect(path: Path, *, read_only: bool = False) -> Database:
    return millstream.connect(path, clock=ManualClock(), background=False, read_only=read_only)


def refused(path: Path, condition: Condition, *, read_only: bool = False) -> MillstreamError:
    """Opening is refused, with this condition and a hint."""
    with pytest.raises(MachineError) as caught:
        connect(path, read_only=read_only)
    assert caught.value.condition is condition
    assert caught.value.hint
    return caught.value


@pytest.fixture
def filled(database_path: Path) -> Path:
    """A closed database with rows inlined and in a file."""
    with connect(database_path) as db:
        db.sql("CREATE TABLE t (id BIGINT)")
        db.insert("t", [(i,) for i in range(300)])
        db.insert("t", [(1000,)])
    return database_path


def assert_unharmed(path: Path) -> None:
    with connect(path) as db:
        assert len(stored.rows(db._lake, "t")) == 301
        stored.check(db._lake)


@contextmanager
def held(nursery: Nursery, path: Path) -> Iterator[int]:
    """Another process has the database open; it is killed, not closed, at the end."""
    pid = nursery.start("hold", path=str(path))
    try:
        assert nursery.line() == "ready"
        yield pid
    finally:
        nursery.kill(pid)


def test_a_second_process_is_refused_with_the_holders_pid_and_told_what_to_do(
    nursery: Nursery, filled: Path
) -> None:
    with held(nursery, filled) as pid:
        error = refused(filled, Condition.DATABASE_LOCKED)
        assert str(pid) in (error.detail or "")
        assert "read_only" in (error.hint or "")
    assert_unharmed(filled)


def test_a_second_opening_in_one_process_is_refused_and_the_first_goes_on(filled: Path) -> None:
    with connect(filled) as first:
        refused(filled, Condition.DATABASE_LOCKED)
        first.insert("t", [(1001,)])
        assert len(stored.rows(first._lake, "t")) == 302
    with connect(filled) as again:
        assert len(stored.rows(again._lake, "t")) == 302


def test_a_reader_beside_the_writer_sees_its_later_commits(filled: Path) -> None:
    with connect(filled) as writer, connect(filled, read_only=True) as reader:
        assert stored.rows(reader._lake, "t") == stored.rows(writer._lake, "t")
        writer.insert("t", [(1001,)])
        writer.sql("CREATE TABLE later (id BIGINT)")
        writer.insert("later", [(1,)])
        assert stored.rows(reader._lake, "t") == stored.rows(writer._lake, "t")
        assert [o.name for o in reader.objects()] == ["later", "t"]
        assert stored.rows(reader._lake, "later") == {0: (1,)}


def test_a_reader_in_another_process_than_the_writer_works(nursery: Nursery, filled: Path) -> None:
    with held(nursery, filled), connect(filled, read_only=True) as reader:
        assert len(stored.rows(reader._lake, "t")) == 301
    assert_unharmed(filled)


@pytest.mark.parametrize(
    "change",
    [
        lambda db: db.insert("t", [(1,)]),
        lambda db: db.insert("t", [(i,) for i in range(300)]),
        lambda db: db.sql("INSERT INTO t VALUES (1)"),
        lambda db: db.sql("CREATE TABLE u (id BIGINT)"),
        lambda db: db.sql("CREATE STREAM u (id BIGINT)"),
        lambda db: db.sql("DROP TABLE t"),
        lambda db: db.sql("TRUNCATE TABLE t"),
        lambda db: db.sql("DELETE FROM t"),
    ],
)
def test_changes_through_a_reader_are_refused_and_leave_no_file(
    filled: Path, change: Callable[[Database], object]
) -> None:
    before = stored.files_on_disk(filled)
    with connect(filled, read_only=True) as reader, pytest.raises(StatementError) as caught:
        change(reader)
    assert caught.value.condition is Condition.READ_ONLY
    assert caught.value.hint
    assert stored.files_on_disk(filled) == before
    assert_unharmed(filled)


def test_a_reader_of_nothing_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", Condition.NOT_A_DATABASE, read_only=True)
    assert not (tmp_path / "nothing").exists()


def test_a_directory_with_other_files_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    refused(tmp_path, Condition.NOT_A_DATABASE)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_is_not_a_database(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    refused(path, Condition.NOT_A_DATABASE, read_only=read_only)
    assert path.read_text() == "text"


@pytest.mark.skipif(
    os.geteuid() == 0, reason="2026-11-15: root may write everywhere, so there is nothing to refuse"
)
def test_a_directory_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    refused(tmp_path / "database", Condition.STORAGE_FAILED)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_catalogue_of_random_bytes_is_reported_as_corrupt_and_not_touched(
    filled: Path, seed: int, read_only: bool
) -> None:
    noise = random.Random(seed).randbytes(50_000)
    (filled / "catalog.sqlite").write_bytes(noise)
    refused(filled, Condition.CATALOG_CORRUPT, read_only=read_only)
    assert (filled / "catalog.sqlite").read_bytes() == noise


def test_a_catalogue_with_a_damaged_middle_is_reported_as_corrupt(filled: Path) -> None:
    catalog = filled / "catalog.sqlite"
    content = bytearray(catalog.read_bytes())
    content[8192:] = random.Random(0).randbytes(len(content) - 8192)
    catalog.write_bytes(content)
    with pytest.raises(MachineError) as caught, connect(filled) as db:
        stored.rows(db._lake, "t")
    assert caught.value.condition is Condition.CATALOG_CORRUPT


def test_another_programs_database_in_the_catalogues_place_is_not_taken_over(database_path: Path) -> None:
    database_path.mkdir()
    connection = sqlite3.connect(database_path / "catalog.sqlite")
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    refused(database_path, Condition.NOT_A_DATABASE)


@pytest.mark.parametrize("content", [b"", "WAL"])
def test_an_empty_catalogue_left_by_a_crash_in_the_creation_is_created(
    database_path: Path, content: bytes | str
) -> None:
    (database_path / "data").mkdir(parents=True)
    catalog = database_path / "catalog.sqlite"
    if content == "WAL":
        connection = sqlite3.connect(catalog)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
    else:
        catalog.write_bytes(b"")
    with connect(database_path) as db:
        db.sql("CREATE TABLE t (id BIGINT)")
        assert db.insert("t", [(1,)]) == 1


def set_format(path: Path, version: int) -> None:
    connection = sqlite3.connect(path / "catalog.sqlite")
    connection.execute("UPDATE millstream_meta SET value = ? WHERE key = 'format'", (str(version),))
    connection.commit()
    connection.close()


def format_of(path: Path) -> str:
    connection = sqlite3.connect(path / "catalog.sqlite")
    (value,) = connection.execute("SELECT value FROM millstream_meta WHERE key = 'format'").fetchone()
    connection.close()
    return str(value)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_format_is_refused_and_not_touched(filled: Path, read_only: bool) -> None:
    set_format(filled, layout.FORMAT + 1)
    error = refused(filled, Condition.FORMAT_TOO_NEW, read_only=read_only)
    assert str(layout.FORMAT + 1) in error.message
    assert format_of(filled) == str(layout.FORMAT + 1)
    set_format(filled, layout.FORMAT)
    assert_unharmed(filled)


def newer(monkeypatch: pytest.MonkeyPatch, steps: dict[int, Callable[[Connection], None]]) -> int:
    """Pretend that this Millstream has some formats more, with these migrations."""
    target = layout.FORMAT + len(steps)
    monkeypatch.setattr(layout, "MIGRATIONS", {layout.FORMAT + i: step for i, step in steps.items()})
    monkeypatch.setattr(layout, "FORMAT", target)
    return target


def test_an_older_format_is_migrated_step_by_step_on_opening(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(connection: Connection) -> None:
        connection.execute("CREATE TABLE millstream_new (x BIGINT)")

    def second(connection: Connection) -> None:
        connection.execute("INSERT INTO millstream_new VALUES (7)")

    target = newer(monkeypatch, {0: first, 1: second})
    assert_unharmed(filled)
    assert format_of(filled) == str(target)
    with connect(filled) as db, db._lake.catalog.read() as connection:
        assert connection.execute("SELECT x FROM millstream_new").fetchall() == [(7,)]


def test_a_migration_that_fails_leaves_the_old_database_as_it_was(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(connection: Connection) -> None:
        connection.execute("CREATE TABLE millstream_new (x BIGINT)")
        connection.execute("DELETE FROM ducklake_data_file")

    def second(connection: Connection) -> None:
        connection.execute("INSERT INTO missing VALUES (7)")

    old = layout.FORMAT
    with monkeypatch.context() as patch:
        newer(patch, {0: first, 1: second})
        with pytest.raises(MillstreamError):
            connect(filled)
    assert format_of(filled) == str(old)
    assert_unharmed(filled)


FORMAT_1 = Path(__file__).parent / "data" / "format-1.tar.gz"
"""A database of part 1: 1,003 items, most of them in a file, and a stream with two calls, one of them late."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(FORMAT_1) as archive:
        archive.extractall(tmp_path, filter="data")
    assert format_of(tmp_path / "database") == "1"
    return tmp_path / "database"


def assert_all_there(db: Database) -> None:
    """The rows and the stream of the old database."""
    items = sorted(stored.rows(db._lake, "items").values())
    assert [row[0] for row in items] == [1, 2, 3, *range(10, 1010)]
    assert [str(row[2]) for row in items[:3]] == ["0.25", "0.10", "None"]
    assert [row[:2] for row in stored.rows(db._lake, "calls").values()] == [
        (1, ("float", "2.5")),
        (2, ("float", "3.5")),
    ]
    shown = db.sql("SHOW STREAMS").to_arrow().to_pylist()
    assert [(s["name"], s["watermark"], s["late"]) for s in shown] == [("calls", "2024-01-01 00:00:05", 1)]
    stored.check(db._lake)


def test_a_database_of_format_1_is_upgraded_with_all_its_rows_and_streams(old: Path) -> None:
    with connect(old) as db:
        assert format_of(old) == str(layout.FORMAT)
        assert_all_there(db)
        with duck.attached(old) as reader:
            assert duck.rows(reader, "items") == stored.rows(db._lake, "items")
            assert duck.rows(reader, "calls") == stored.rows(db._lake, "calls")
    with connect(old) as again:
        assert_all_there(again)
    with connect(old, read_only=True) as reader:
        assert len(stored.rows(reader._lake, "items")) == 1003


def test_the_old_format_is_not_read_as_it_is_and_not_touched(old: Path) -> None:
    before = (old / "catalog.sqlite").read_bytes()
    error = refused(old, Condition.FORMAT_TOO_OLD, read_only=True)
    assert "1" in error.message
    assert "writing" in (error.hint or "")
    assert (old / "catalog.sqlite").read_bytes() == before
    with connect(old) as db:
        assert_all_there(db)


def test_streaming_tables_and_indices_can_be_made_in_an_upgraded_database(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "LEAST_ROWS", 100)
    with connect(old) as db:
        db.sql("CREATE INDEX items_id ON items (id) USING HASH")
        db.sql("CREATE STREAMING TABLE h (id BIGINT, t BIGINT) TIMESTAMP BY t RANGE INTERVAL 100")
        db.sql("CREATE INDEX h_id ON h (id)")
        db.insert("h", [(i, i) for i in range(300)])
        db.insert("h", [(300, 300)])
        db.sql("ALTER STREAM calls ADD COLUMN place STRING")
        db.sql("ALTER TABLE items ADD COLUMN colour STRING")
        db.insert("items", [(2000, "new", None, "red")])
        upkeep.flush(db._lake)
        retention.drop_expired(db._lake)
        assert index.build_some(db._lake, 100) == 0
        stored.check(db._lake)
    with connect(old) as again:
        assert sorted(row[1] for row in stored.rows(again._lake, "h").values()) == list(range(200, 301))
        assert len(stored.copies(again._lake, "items_id")) == 1
        assert stored.table_of(again._lake, "calls").schema.names == ("id", "cost", "ts", "place")
        with duck.attached(old) as reader:
            assert reader.ask("SELECT count(*), count(colour) FROM lake.items") == [(1004, 1)]
            assert reader.ask("SELECT id FROM lake.items WHERE colour = 'red'") == [(2000,)]
            assert duck.rows(reader, "h") == stored.rows(again._lake, "h")
        stored.check(again._lake)


def test_an_upgrade_that_is_killed_can_be_done_again(nursery: Nursery, old: Path) -> None:
    nursery.start("create and die", path=str(old), at="millstream.catalog.layout:_check_not_newer", count=2)
    assert nursery.end() == []
    assert format_of(old) in ("1", str(layout.FORMAT))
    with connect(old) as db:
        assert_all_there(db)


def test_a_copy_of_a_database_is_a_database_of_its_own(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path / "copy")
    with connect(tmp_path / "copy") as db:
        db.sql("TRUNCATE TABLE t")
        assert stored.rows(db._lake, "t") == {}
    assert_unharmed(filled)
