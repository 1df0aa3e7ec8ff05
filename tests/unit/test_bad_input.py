"""Bad input that SQL files cannot hold: typed errors with hints, and a database that is none the worse."""

from __future__ import annotations

import errno
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pytest

import millstream
from millstream.catalog import store
from millstream.clock import ManualClock
from millstream.errors import Condition, InternalError, MachineError, MillstreamError, StatementError
from millstream.storage import inline, segment, upkeep
from tests import duck
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millstream.database import Database

LARGE = inline.MOST_ROWS + 1
COLUMNS = "id INT, price DECIMAL(5,2), name VARCHAR(3), day DATE, tags ARRAY<INT>, ok BOOLEAN NOT NULL"
GOOD = (1, Decimal("1.50"), "abc", date(2024, 1, 1), [1], True)


@pytest.fixture
def plain(database_path: Path) -> Iterator[Database]:
    """A database with one row in a table with constraints, one in a plain table; checked afterwards."""
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        db.sql(f"CREATE TABLE t ({COLUMNS})")
        db.sql("CREATE TABLE n (id BIGINT, x DOUBLE)")
        db.insert("t", [GOOD])
        db.insert("n", [(1, 1.0)])
        yield db


@pytest.fixture
def unharmed(plain: Database) -> Iterator[Database]:
    """The same, with the promise that the test changes nothing and that inserts work afterwards."""
    before = state(plain)
    yield plain
    assert state(plain) == before
    stored.check(plain._lake)
    assert plain.insert("t", [GOOD]) == plain.insert("n", [(2, 2.0)] * LARGE) / LARGE == 1
    stored.check(plain._lake)


def state(db: Database) -> tuple[object, ...]:
    return stored.rows(db._lake, "t"), stored.rows(db._lake, "n"), stored.files_on_disk(db.path), db.objects()


def refused(condition: Condition, call: Callable[[], object]) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        call()
    assert not isinstance(caught.value, InternalError), str(caught.value)
    assert caught.value.condition is condition, str(caught.value)
    assert caught.value.hint, str(caught.value)
    return caught.value


# Text that is no SQL


@pytest.mark.parametrize("seed", range(4))
def test_a_megabyte_of_random_bytes_is_a_syntax_error(unharmed: Database, seed: int) -> None:
    text = random.Random(seed).randbytes(1 << 20).decode("latin-1")
    error = refused(Condition.SYNTAX_ERROR, lambda: unharmed.sql(text))
    assert len(str(error)) < 2_000, "the message does not repeat the megabyte"


@pytest.mark.parametrize("seed", range(3))
def test_a_megabyte_of_random_words_is_a_typed_error(unharmed: Database, seed: int) -> None:
    text = "SELECT|FROM|t|WHERE|(|)|,|;|'|`|--|/*|*/|[|]|INTERVAL|1|id|*|INSERT|INTO|VALUES"
    text = " ".join(random.Random(seed).choices(text.split("|"), k=200_000))
    with pytest.raises(StatementError) as caught:
        unharmed.sql(text)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "text",
    ["", " ", ";", "-- nothing", "SELECT 'open", "SELECT `open", "INSERT INTO n VALUES (" + "(" * 5_000,
     "\0", "SELECT \0", "INSERT INTO n VALUES (1, 2.0", "CREATE TABLE", "CREATE TABLE x ()", "INSERT INTO n",
     "\ufeff", "🐟"],
)  # fmt: skip
def test_broken_statements_are_syntax_errors(unharmed: Database, text: str) -> None:
    with pytest.raises(StatementError) as caught:
        unharmed.sql(text)
    assert caught.value.condition is Condition.SYNTAX_ERROR
    assert caught.value.hint or caught.value.span


# Rows that do not fit


@pytest.mark.parametrize(
    ("rows", "condition"),
    [
        ([GOOD[:-1]], Condition.WRONG_ARITY),
        ([GOOD, (*GOOD, 1)], Condition.WRONG_ARITY),
        ([()], Condition.WRONG_ARITY),
        ([5], Condition.WRONG_ARITY),
        (["abcdef"], Condition.WRONG_ARITY),
        ([("x", *GOOD[1:])], Condition.TYPE_MISMATCH),
        ([(b"1", *GOOD[1:])], Condition.TYPE_MISMATCH),
        ([(2**31, *GOOD[1:])], Condition.NUMERIC_OVERFLOW),
        ([(2**80, *GOOD[1:])], Condition.NUMERIC_OVERFLOW),
        ([(float("nan"), *GOOD[1:])], Condition.INVALID_VALUE),
        ([(1, Decimal("1000.00"), *GOOD[2:])], Condition.NUMERIC_OVERFLOW),
        ([(1, "much", *GOOD[2:])], Condition.TYPE_MISMATCH),
        ([(1, None, "long", *GOOD[3:])], Condition.VALUE_TOO_LONG),
        ([(1, None, None, "2024-02-30", *GOOD[4:])], Condition.INVALID_VALUE),
        ([(1, None, None, None, ["x"], True)], Condition.TYPE_MISMATCH),
        ([(1, None, None, None, 7, True)], Condition.TYPE_MISMATCH),
        ([(*GOOD[:-1], None)], Condition.NULL_VALUE),
        ([GOOD, (*GOOD[:-1], "yes")], Condition.TYPE_MISMATCH),
        ([GOOD, (object(), *GOOD[1:])], Condition.TYPE_MISMATCH),
        ([{"id": 1, "ok": True, "nmae": "x"}], Condition.UNKNOWN_COLUMN),
        ([{"id": 1, "ID": 2, "ok": True}], Condition.DUPLICATE_COLUMN),
        ([{"id": 1}], Condition.NULL_VALUE),
        ([{"ok": True}, ("ok",)], Condition.INVALID_ARGUMENT),
        ([GOOD, {"ok": True}], Condition.INVALID_ARGUMENT),
        (17, Condition.INVALID_ARGUMENT),
        (None, Condition.INVALID_ARGUMENT),
        (object(), Condition.INVALID_ARGUMENT),
    ],
)  # fmt: skip
def test_python_rows_that_do_not_fit_are_refused(unharmed: Database, rows: Any, condition: Condition) -> None:
    refused(condition, lambda: unharmed.insert("t", rows))


@pytest.mark.parametrize(
    ("columns", "condition"),
    [
        ({"id": [1], "x": ["a"]}, Condition.TYPE_MISMATCH),
        ({"id": [2**63], "x": [1.0]}, Condition.NUMERIC_OVERFLOW),
        ({"id": [1], "y": [1.0]}, Condition.UNKNOWN_COLUMN),
        ({"id": [datetime(2024, 1, 1, tzinfo=UTC)]}, Condition.TYPE_MISMATCH),
        ({"id": [[1]]}, Condition.TYPE_MISMATCH),
    ],
)
@pytest.mark.parametrize("shape", ["arrow", "pandas", "batch", "reader"])
def test_frames_that_do_not_fit_are_refused(
    unharmed: Database, columns: dict[str, list[Any]], condition: Condition, shape: str
) -> None:
    if 2**63 in columns["id"]:
        table = pa.table({"id": pa.array(columns["id"], pa.uint64()), "x": pa.array([1.0])})
    else:
        table = pa.table(columns)
    data = {
        "arrow": lambda: table,
        "pandas": lambda: pd.DataFrame(columns),
        "batch": lambda: table.to_batches()[0],
        "reader": table.to_reader,
    }[shape]()
    refused(condition, lambda: unharmed.insert("n", data))


def test_an_arrow_table_with_a_column_twice_is_refused(unharmed: Database) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    refused(Condition.DUPLICATE_COLUMN, lambda: unharmed.insert("n", table))


@pytest.mark.parametrize("rows", [1, LARGE])
def test_a_bad_row_at_the_end_keeps_nothing_of_the_insert(unharmed: Database, rows: int) -> None:
    refused(
        Condition.VALUE_TOO_LONG,
        lambda: unharmed.insert("t", [GOOD] * rows + [(1, None, "long", None, None, True)]),
    )
    refused(Condition.NULL_VALUE, lambda: unharmed.insert("t", [GOOD] * rows + [(*GOOD[:-1], None)]))


def test_times_outside_of_the_calendar_are_refused(unharmed: Database) -> None:
    unharmed_days = pa.table({"day": pa.array([4_000_000], pa.int32()).cast(pa.date32()), "ok": pa.array([True])})
    refused(Condition.INVALID_VALUE, lambda: unharmed.insert("t", unharmed_days))


def test_unknown_names_are_refused_with_the_nearest_known(unharmed: Database) -> None:
    unharmed.sql("CREATE TABLE orders (id BIGINT)")
    error = refused(Condition.UNKNOWN_TABLE, lambda: unharmed.insert("order", [(1,)]))
    assert "'orders'" in (error.hint or "")
    refused(Condition.UNKNOWN_TABLE, lambda: unharmed.insert("", [(1,)]))
    unharmed.sql("DROP TABLE orders")


def test_missing_and_unsuitable_parameters_are_refused(unharmed: Database) -> None:
    error = refused(Condition.UNBOUND_PARAMETER, lambda: unharmed.sql("INSERT INTO n VALUES (:id, :x)", id=1))
    assert ":x" in error.message
    refused(Condition.TYPE_MISMATCH, lambda: unharmed.sql("INSERT INTO n VALUES (:id, 1.0)", id="'; DROP TABLE n"))
    refused(Condition.NUMERIC_OVERFLOW, lambda: unharmed.sql("INSERT INTO n VALUES (:id, 1.0)", id=2**70))


def test_a_stream_needs_a_time_in_every_row(plain: Database) -> None:
    plain.sql("CREATE STREAM s (id BIGINT, ts TIMESTAMP) TIMESTAMP BY ts")
    refused(Condition.NULL_VALUE, lambda: plain.insert("s", [(1, datetime(2024, 1, 1, tzinfo=UTC)), (2, None)]))
    assert stored.rows(plain._lake, "s") == {}


def test_nothing_is_an_insert_of_no_rows(unharmed: Database) -> None:
    version = unharmed._lake.catalog.current.id
    assert unharmed.insert("n", []) == 0
    assert unharmed.insert("n", pa.table({"id": pa.array([], pa.int64())})) == 0
    assert unharmed._lake.catalog.current.id == version


# A closed database


def test_everything_on_a_closed_database_says_so(database_path: Path) -> None:
    db = millstream.connect(database_path, clock=ManualClock(), background=False)
    db.sql("CREATE TABLE t (id BIGINT)")
    db.sql("CREATE STREAM s (id BIGINT) TIMESTAMP BY id")
    db.close()
    db.close()
    calls: list[Callable[[], object]] = [
        lambda: db.sql("SHOW TABLES"),
        lambda: db.insert("t", [(1,)]),
        lambda: db.advance("s", 1),
        db.drain,
        db.objects,
        lambda: list(db.script("SHOW TABLES; SHOW TABLES")),
        lambda: db.transaction().__enter__(),
    ]
    for call in calls:
        refused(Condition.CLOSED, call)


# A disk without room


class Brimming:
    """A file on a disk that takes only so many bytes more."""

    def __init__(self, file: BinaryIO, room: list[int]) -> None:
        self._file = file
        self._room = room

    def write(self, data: bytes) -> int:
        size = len(memoryview(data).cast("B"))
        if size > self._room[0]:
            self._file.write(bytes(self._room[0]))
            self._room[0] = 0
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room[0] -= size
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Brimming:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def leave_room(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    left = [room]
    monkeypatch.setattr(segment, "open_for_write", lambda path: Brimming(path.open("wb"), left))


@pytest.mark.parametrize("room", [0, 4, 1_000, 2_500])
def test_a_disk_that_fills_up_under_a_segment_keeps_nothing_of_the_insert(
    unharmed: Database, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    rows = [(i, i / 7) for i in range(LARGE)]
    with monkeypatch.context() as patch:
        leave_room(patch, room)
        error = refused(Condition.DISK_FULL, lambda: unharmed.insert("n", rows))
    assert isinstance(error, MachineError)


def test_a_disk_that_fills_up_between_two_tables_of_a_transaction_keeps_neither(
    unharmed: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(i, i / 7) for i in range(LARGE)]
    with monkeypatch.context() as patch:
        leave_room(patch, 6_000)

        def work() -> None:
            with unharmed.transaction():
                for _ in range(4):
                    unharmed.insert("n", rows)

        refused(Condition.DISK_FULL, work)


@pytest.mark.parametrize("work", [upkeep.flush, upkeep.compact])
def test_a_disk_that_fills_up_under_upkeep_loses_nothing(
    plain: Database, monkeypatch: pytest.MonkeyPatch, work: Callable[[Any], int]
) -> None:
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 2)
    for i in range(3):
        plain.insert("n", [(i, 0.5)] * LARGE)
    before = state(plain)
    with monkeypatch.context() as patch:
        leave_room(patch, 100)
        refused(Condition.DISK_FULL, lambda: work(plain._lake))
    assert state(plain) == before
    stored.check(plain._lake)
    assert work(plain._lake) > 0
    assert stored.rows(plain._lake, "n") == before[1]


@pytest.mark.parametrize("pages", range(6))
def test_a_disk_that_fills_up_under_the_catalogue_keeps_all_that_was_acknowledged(
    plain: Database, pages: int
) -> None:
    """SQLite's own limit on pages: a real SQLITE_FULL, at a different point of the work for each number."""
    writer = plain._lake.catalog._store._writer
    assert writer is not None
    (used,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {used + pages}")
    expected = list(stored.rows(plain._lake, "n").values())

    def insert_until_full() -> None:
        for first in range(0, 1_000_000, 200):
            rows = [(i, i / 7) for i in range(first, first + 200)]
            plain.insert("n", rows)
            expected.extend(
                duck.by_id(
                    list(range(200)), pa.table(list(map(list, zip(*rows, strict=True))), names="ab")
                ).values()
            )

    refused(Condition.DISK_FULL, insert_until_full)
    refused(
        Condition.DISK_FULL, lambda: [plain.sql(f"CREATE TABLE x{i} (id BIGINT, s STRING)") for i in range(99)]
    )
    writer.execute("PRAGMA max_page_count = 1073741823")
    assert list(stored.rows(plain._lake, "n").values()) == expected
    stored.check(plain._lake)
    plain.insert("n", [(-1, 0.0)])
    plain.sql("CREATE TABLE afterwards (id BIGINT)")
    assert len(stored.rows(plain._lake, "n")) == len(expected) + 1
    stored.check(plain._lake)


def test_a_disk_without_room_for_a_new_database_leaves_a_directory_that_opens_later(
    database_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = store.Store._connect

    def connect_to_a_full_disk(self: store.Store) -> store.Connection:
        connection = original(self)
        connection.execute("PRAGMA max_page_count = 5")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "_connect", connect_to_a_full_disk)
        refused(Condition.DISK_FULL, lambda: millstream.connect(database_path, background=False))
    with millstream.connect(database_path, background=False) as db:
        db.sql("CREATE TABLE t (id BIGINT)")
        assert db.insert("t", [(1,)]) == 1
