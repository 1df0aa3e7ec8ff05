"""Value indices: copies hold their file's rows, serve what they can, come and go with their files."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import millstream
from millstream import sql
from millstream.catalog import indexes
from millstream.clock import ManualClock
from millstream.schedule.upkeep import INDEX
from millstream.schema import ObjectKind
from millstream.sql.statements import Name
from millstream.storage import index, retention, segment, upkeep
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millstream.database import Database
    from millstream.storage.index import Choice
    from millstream.storage.scan import Scan

ROWS = 300
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST_ROWS", 100), ("LEAST_CLOSED_ROWS", 100), ("ROW_GROUP_ROWS", 16), ("PAGE_ROWS", 4)):
        monkeypatch.setattr(index, name, value)


@pytest.fixture
def plain(database_path: Path, clock: ManualClock) -> Iterator[Database]:
    """A database without Spark: a table and a streaming table of one file each."""
    with millstream.connect(database_path, clock=clock, background=False) as database:
        database.sql("CREATE TABLE a (id BIGINT, k INT, s STRING)")
        database.sql(
            "CREATE STREAMING TABLE h (id BIGINT, k INT, s STRING, t BIGINT) TIMESTAMP BY t RANGE INTERVAL 99999"
        )
        database.insert("a", [(i, key(i), f"s{i % 10}") for i in range(ROWS)])
        database.insert("h", [(i, key(i), f"s{i % 10}", i) for i in range(ROWS)])
        yield database


def key(i: int) -> int | None:
    """Forty values that are spread over the rows, and nulls."""
    return None if i % 30 == 7 else i * 7 % 40


def build(db: Database) -> None:
    assert index.build_some(db._lake, 1_000) == 0
    assert index.missing(db._lake) == []


def scan(db: Database, text: str) -> Scan:
    statement: Any = sql.parse_one(text)
    return db._engine.bound(statement.query, statement, {}).tables[0].scan


def choice(db: Database, text: str) -> Choice | None:
    """The copy that a query of one file reads in its place."""
    found = scan(db, text)
    return next(iter(found.choices.values()), None)


def test_copies_hold_exactly_the_rows_of_their_files(plain: Database) -> None:
    for table in ("a", "h"):
        for column in ("id", "k", "s"):
            for method in ("BTREE", "HASH"):
                plain.sql(f"CREATE INDEX {table}_{column}_{method} ON {table} ({column}) USING {method}")
    build(plain)
    assert len(stored.copies_on_disk(plain.path)) == 12
    stored.check(plain._lake)
    for name in plain._lake.catalog.indexes():
        (copy,) = stored.copies(plain._lake, name).values()
        assert [g.rows for g in copy.groups] == [16] * 18 + [12]
        footer = pq.read_metadata(plain._lake.indexes / copy.path)
        assert footer.num_row_groups == 19


@pytest.mark.parametrize(
    ("method", "predicate", "serves"),
    [
        ("HASH", "k = 5", True),
        ("HASH", "5 = k", True),
        ("HASH", "k IN (5, 9)", True),
        ("HASH", "k = 5 OR k = 6", True),
        ("HASH", "k < 5", False),
        ("HASH", "k BETWEEN 1 AND 3", False),
        ("HASH", "k IS NULL", False),
        ("HASH", "s = 's1'", False),
        ("BTREE", "k = 5", True),
        ("BTREE", "k < 5", True),
        ("BTREE", "k >= 35", True),
        ("BTREE", "k BETWEEN 1 AND 3", True),
        ("BTREE", "k > 5", False),
        ("BTREE", "k <> 5", False),
        ("BTREE", "k IS NULL", False),
        ("BTREE", "NOT k = 5", False),
        ("BTREE", "k = 5 OR s = 's1'", False),
        ("BTREE", "k + 0 = 5", False),
    ],
)
@pytest.mark.parametrize("table", ["a", "h"])
def test_an_index_serves_what_its_method_can_where_it_leaves_less_to_read(
    plain: Database, table: str, method: str, predicate: str, serves: bool
) -> None:
    plain.sql(f"CREATE INDEX i ON {table} (k) USING {method}")
    text = f"SELECT * FROM {table} WHERE {predicate}"
    assert choice(plain, text) is None, "nothing is built yet"
    build(plain)
    found = choice(plain, text)
    assert (found is not None) == serves
    if found is not None:
        assert found.rows <= 5 * 16
        assert scan(plain, text).rows_to_read == found.rows


def test_of_several_indices_the_one_that_leaves_least_is_read(plain: Database) -> None:
    for column in ("id", "k", "s"):
        plain.sql(f"CREATE INDEX i_{column} ON h ({column})")
    build(plain)
    found = choice(plain, "SELECT * FROM h WHERE id < 200 AND k = 3 AND s >= 's1'")
    assert found is not None
    assert found.index.name == "i_k"


def test_a_span_of_time_that_leaves_less_than_the_copy_is_read_from_the_file(plain: Database) -> None:
    plain.sql("CREATE INDEX i ON h (k)")
    build(plain)
    assert choice(plain, "SELECT * FROM h WHERE k = 3") is not None
    assert choice(plain, "SELECT * FROM h WHERE k = 3 AND VALID(h) BETWEEN 10 AND 12") is None


def test_a_value_that_no_row_group_can_hold_skips_the_file(plain: Database) -> None:
    plain.sql("CREATE INDEX i ON h (s)")
    build(plain)
    assert len(scan(plain, "SELECT * FROM h WHERE s = 's5'").files) == 1
    found = scan(plain, "SELECT * FROM h WHERE s > 's1' AND s < 's2'")
    assert len(found.files) <= 1


def test_the_setting_turns_indices_and_pruning_off(plain: Database) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    build(plain)
    plain.sql("SET use_indexes = off")
    found = scan(plain, "SELECT * FROM a WHERE k = 1000")
    assert (found.choices, len(found.files), found.rows_to_read) == ({}, 1, ROWS)
    plain.sql("SET use_indexes = on")
    assert scan(plain, "SELECT * FROM a WHERE k = 1000").files == ()


def test_old_versions_are_read_without_copies(plain: Database) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    build(plain)
    version = plain._lake.catalog.current.id - 1
    assert choice(plain, f"SELECT * FROM a VERSION AS OF {version} WHERE k = 5") is None


@pytest.mark.parametrize("name", ["a.b", ".b", "[a", "a[0]", "$", "`", "x y", "Ünï", "column", "it's", "*"])
def test_columns_of_any_name_can_be_indexed(plain: Database, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    plain.sql(f"CREATE TABLE odd (id BIGINT, {quoted} STRING)")
    plain.sql(f"CREATE INDEX i ON odd ({quoted}) USING HASH")
    plain.insert("odd", [(i, str(i)) for i in range(ROWS)])
    build(plain)
    stored.check(plain._lake)
    assert choice(plain, f"SELECT * FROM odd WHERE {quoted} = '5'") is not None


def test_small_files_get_no_copy_until_they_are_merged(plain: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 2)
    plain.sql("CREATE TABLE few (k INT)")
    plain.sql("CREATE INDEX i ON few (k)")
    monkeypatch.setattr(index, "LEAST_ROWS", 400)
    for _ in range(2):
        plain.insert("few", [(i,) for i in range(ROWS)])
    assert index.missing(plain._lake) == []
    upkeep.compact(plain._lake)
    assert len(index.missing(plain._lake)) == 1
    build(plain)
    assert choice(plain, "SELECT * FROM few WHERE k = 5") is not None
    stored.check(plain._lake)


def test_the_net_builds_all_copies_however_many(plain: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 100)
    assert plain._net is not None
    plain.drain()
    for i in range(11):
        plain.insert("a", [(n, n, "x") for n in range(i, i + ROWS)])
    plain.sql("CREATE INDEX i ON a (k)")
    assert INDEX in plain._net.run_until_idle()
    assert index.missing(plain._lake) == []
    assert len(stored.copies(plain._lake, "i")) == 12
    plain.insert("a", [(n, n, "x") for n in range(ROWS)])
    plain.drain()
    assert index.missing(plain._lake) == []


def test_the_net_builds_copies_of_what_retention_has_split(plain: Database) -> None:
    """A batch across compartments is written anew when the first of them goes; ADVANCE brings no segment."""
    plain.sql("CREATE STREAMING TABLE w (k INT, t BIGINT) TIMESTAMP BY t RANGE INTERVAL 100")
    plain.sql("CREATE INDEX i ON w (k)")
    plain.insert("w", [(i % 40, i * 37 % 100) for i in range(5 * ROWS)])
    plain.drain()
    plain.sql("ADVANCE w TO 115")
    plain.drain()
    assert all(low >= 10 for low in (f.low or 0 for f in stored.live_files(plain._lake, "w")))
    assert index.missing(plain._lake) == []
    stored.check(plain._lake)


MEMORY = """
import sys
import pyarrow as pa
import millstream
from millstream.storage import index

index.LEAST_ROWS, index.ROW_GROUP_ROWS = 100, 16
with millstream.connect(sys.argv[1], background=False) as db:
    db.sql("CREATE TABLE t (k BIGINT)")
    db.insert("t", [(i,) for i in range(1_500)])
    db.sql("CREATE INDEX i ON t (k) USING HASH")
    assert index.build_some(db._lake, 10) == 0 and index.missing(db._lake) == []
print(pa.default_memory_pool().max_memory())
"""


def test_a_filter_takes_memory_for_the_values_of_its_row_group(database_path: Path) -> None:
    """In a process of its own, since a pool tells the most that it ever gave."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(database_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16 << 20, "94 row groups of 16 rows"


def test_an_index_is_there_after_reopening(plain: Database, database_path: Path, clock: ManualClock) -> None:
    plain.sql("CREATE INDEX i ON h (k) USING HASH")
    build(plain)
    plain.close()
    with millstream.connect(database_path, clock=clock, background=False) as again:
        assert index.missing(again._lake) == []
        assert choice(again, "SELECT * FROM h WHERE k = 5") is not None
        stored.check(again._lake)
    with millstream.connect(database_path, clock=clock, read_only=True) as reader:
        assert choice(reader, "SELECT * FROM h WHERE k = 5") is not None


def test_copies_of_merged_and_truncated_files_go_when_no_reader_needs_them(plain: Database) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    build(plain)
    lake = plain._lake
    with lake.catalog.pinned(lake.catalog.current.id):
        found = scan(plain, "SELECT * FROM a WHERE k = 5")
        plain.sql("TRUNCATE TABLE a")
        index.discard(lake)
        assert all(lake.path_of(found, f).exists() for f in found.files)
        assert len(stored.copies_on_disk(plain.path)) == 1
    assert index.discard(lake) == 1
    assert stored.copies_on_disk(plain.path) == set()
    assert stored.copies(lake, "i") == {}
    stored.check(lake)


def test_a_dropped_index_keeps_its_copies_for_those_who_read_them(plain: Database) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    build(plain)
    lake = plain._lake
    with lake.catalog.pinned(lake.catalog.current.id):
        found = scan(plain, "SELECT * FROM a WHERE k = 5")
        plain.sql("DROP INDEX i")
        index.discard(lake)
        assert found.choices
        assert all(lake.path_of(found, f).exists() for f in found.files)
        assert choice(plain, "SELECT * FROM a WHERE k = 5") is None
    assert index.discard(lake) == 1
    stored.check(lake)


@pytest.mark.parametrize("statement", ["DROP INDEX i", "DROP TABLE a"])
def test_dropping_an_index_or_its_table_frees_the_space_of_its_copies(plain: Database, statement: str) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    build(plain)
    plain.drain()
    assert len(stored.copies_on_disk(plain.path)) == 1
    plain.sql(statement)
    plain.drain()
    assert stored.copies_on_disk(plain.path) == set()
    assert plain._lake.catalog.indexes() == {}


def test_an_index_of_the_same_name_again_is_another_one(plain: Database) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    build(plain)
    plain.sql("DROP INDEX i")
    plain.sql("CREATE INDEX i ON a (s)")
    assert choice(plain, "SELECT * FROM a WHERE k = 5") is None
    assert choice(plain, "SELECT * FROM a WHERE s = 's5'") is None
    build(plain)
    assert choice(plain, "SELECT * FROM a WHERE k = 5") is None
    assert choice(plain, "SELECT * FROM a WHERE s = 's5'") is not None
    stored.check(plain._lake)


def test_a_column_that_was_added_can_be_indexed(plain: Database) -> None:
    plain.sql("CREATE INDEX before ON h (k)")
    build(plain)
    plain.sql("ALTER STREAMING TABLE h ADD COLUMN c INT")
    plain.sql("CREATE INDEX after ON h (c)")
    build(plain)
    stored.check(plain._lake)
    assert scan(plain, "SELECT * FROM h WHERE c = 5").files == (), "all null"
    assert len(scan(plain, "SELECT * FROM h WHERE c IS NULL").files) == 1
    plain.insert("h", [(i, i, "x", i, i % 50) for i in range(ROWS)])
    build(plain)
    assert len(scan(plain, "SELECT * FROM h WHERE c = 5").files) == 1
    assert choice(plain, "SELECT * FROM h WHERE k = 5") is not None, "an old copy serves, without the column"
    stored.check(plain._lake)


@pytest.mark.parametrize("what", ["TRUNCATE TABLE a", "DROP TABLE a", "DROP INDEX i"])
def test_what_goes_while_its_copy_is_made_leaves_no_litter(
    plain: Database, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    (todo,) = index.missing(plain._lake)
    write = index._write

    def gone_meanwhile(*given: Any) -> Any:
        plain.sql(what)
        return write(*given)

    monkeypatch.setattr(index, "_write", gone_meanwhile)
    assert not index.build(plain._lake, *todo)
    assert stored.copies_on_disk(plain.path) == set()
    stored.check(plain._lake)


def test_a_file_that_is_deleted_before_its_copy_is_made_is_passed_over(
    plain: Database, clock: ManualClock
) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    (todo,) = index.missing(plain._lake)
    plain.sql("TRUNCATE TABLE a")
    clock.advance(2 * HOUR)
    plain.insert("h", [(1, 1, "x", 1)])
    upkeep.expire(plain._lake, HOUR)
    assert not index.build(plain._lake, *todo)
    stored.check(plain._lake)


@pytest.mark.parametrize("place", ["add_copy", "open_for_write"])
def test_a_copy_that_cannot_be_written_leaves_no_litter_and_is_tried_again(
    plain: Database, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "no space left on device")

    plain.sql("CREATE INDEX i ON a (k)")
    with monkeypatch.context() as patch:
        patch.setattr(*(indexes, "add_copy") if place == "add_copy" else (segment, "open_for_write"), full)
        with pytest.raises(Exception, match=r"no space|no room"):
            index.build_some(plain._lake, 5)
        assert stored.copies_on_disk(plain.path) == set()
    build(plain)
    stored.check(plain._lake)


def test_copies_that_the_catalogue_does_not_know_are_removed_on_opening(
    plain: Database, database_path: Path, clock: ManualClock
) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    build(plain)
    (copy,) = stored.copies_on_disk(database_path)
    plain.close()
    folder = (database_path / "index" / copy).parent
    (folder / "stray.parquet").write_bytes(b"half a file")
    (database_path / "index" / "gone-table").mkdir()
    with millstream.connect(database_path, clock=clock, background=False) as again:
        assert stored.copies_on_disk(database_path) == {copy}
        assert not (database_path / "index" / "gone-table").exists()
        stored.check(again._lake)


def test_a_deletion_of_copies_that_was_interrupted_is_finished_on_opening(
    plain: Database, database_path: Path, clock: ManualClock
) -> None:
    plain.sql("CREATE INDEX i ON a (k)")
    build(plain)
    plain.sql("TRUNCATE TABLE a")
    lake = plain._lake
    lake.catalog.maintain(lambda connection: indexes.discard(connection, lake.catalog.current.id))
    assert len(stored.copies_on_disk(database_path)) == 1
    plain.close()
    with millstream.connect(database_path, clock=clock, background=False) as again:
        assert stored.copies_on_disk(database_path) == set()
        assert stored.known_copies(again._lake) == set()


def test_retention_and_indices_together_leave_only_copies_of_what_is_kept(plain: Database) -> None:
    plain.sql("CREATE STREAMING TABLE w (k INT, t BIGINT) TIMESTAMP BY t RANGE INTERVAL 100")
    plain.sql("CREATE INDEX i ON w (k)")
    for start in range(0, 400, 20):
        plain.insert("w", [(i % 40, start + i // 15) for i in range(ROWS)])
        index.build_some(plain._lake, 3)
        retention.drop_expired(plain._lake)
    build(plain)
    live = {f.id for f in stored.live_files(plain._lake, "w")}
    assert set(stored.copies(plain._lake, "i")) == live
    assert len(stored.copies_on_disk(plain.path)) == len(live)
    stored.check(plain._lake)


VALUES: dict[str, Any] = {
    "TINYINT": lambda i: i % 100 - 50,
    "SMALLINT": lambda i: (i - 150) * 100,
    "INT": lambda i: (i - 150) * 1_000_003,
    "BIGINT": lambda i: (i - 150) * 10**15,
    "DECIMAL(7,2)": lambda i: Decimal(i * 37 - 5000).scaleb(-2),
    "DECIMAL(15,3)": lambda i: Decimal((i - 150) * 10**9 + i).scaleb(-3),
    "DECIMAL(38,6)": lambda i: Decimal((i - 150) * 10**30 + i).scaleb(-6),
    "STRING": lambda i: ("", "é", "𝄞", "a", "z")[i % 5] + str(i % 60),
    "VARCHAR(9)": lambda i: f"v{i % 77}",
    "DATE": lambda i: date(1960, 1, 1) + timedelta(days=91 * i),
    "TIMESTAMP": lambda i: datetime(1969, 12, 31, tzinfo=UTC) + timedelta(hours=i, microseconds=i),
    "TIMESTAMP_NTZ": lambda i: datetime(1969, 12, 31, tzinfo=UTC).replace(tzinfo=None) + timedelta(hours=i),
}


def literal(type_: str, value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS {type_})"
    if isinstance(value, str):
        return f"'{value}'"
    text = value.replace(tzinfo=None).isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    return f"{type_} '{text}'"


@pytest.mark.parametrize("method", ["BTREE", "HASH"])
def test_every_type_finds_the_same_rows_with_and_without_an_index(db: Database, method: str) -> None:
    """All through Spark, which skips row groups and pages by bounds, and by Bloom filters, of its own reading."""
    columns = ", ".join(f"c{i} {type_}" for i, type_ in enumerate(VALUES))
    db.sql(f"CREATE TABLE every (id BIGINT, {columns})")
    for i in range(len(VALUES)):
        db.sql(f"CREATE INDEX i{i} ON every (c{i}) USING {method}")
    rows = [(n, *(None if n % 11 == 3 else make(n) for make in VALUES.values())) for n in range(ROWS)]
    random.Random(0).shuffle(rows)
    db.insert("every", rows)
    build(db)
    asked: list[tuple[str, set[int]]] = []
    for i, type_ in enumerate(VALUES):
        present = sorted({row[i + 1] for row in rows if row[i + 1] is not None})
        for value in (present[0], present[len(present) // 3], present[-1]):
            equal = {row[0] for row in rows if row[i + 1] == value}
            below = {row[0] for row in rows if row[i + 1] is not None and row[i + 1] < value}
            asked.append((f"c{i} = {literal(type_, value)}", equal))
            if value in present[1:4]:
                asked.append((f"c{i} < {literal(type_, value)}", below))
        few = present[1], present[-2]
        hits = {row[0] for row in rows if row[i + 1] in few}
        asked.append((f"c{i} IN ({literal(type_, few[0])}, {literal(type_, few[1])})", hits))
        last = {row[0] for row in rows if row[i + 1] is not None and row[i + 1] > present[-4]}
        asked.append((f"c{i} > {literal(type_, present[-4])}", last))
    text = " UNION ALL ".join(f"SELECT {n} AS n, id FROM every WHERE {p}" for n, (p, _) in enumerate(asked))
    found: dict[int, set[int]] = {n: set() for n in range(len(asked))}
    for n, row_id in db.sql(text).fetchall():
        assert row_id not in found[n]
        found[n].add(row_id)
    assert {p: found[n] for n, (p, _) in enumerate(asked)} == dict(asked)
    served = [p for p, _ in asked if choice(db, f"SELECT * FROM every WHERE {p}") is not None]
    assert len(served) > len(asked) // 2, "most of them are read through an index"


@pytest.mark.parametrize("work", ["flush", "build"])
def test_an_interrupt_that_comes_after_the_commit_takes_no_file_away(
    plain: Database, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    lake = plain._lake
    plain.sql("CREATE INDEX i ON a (k)")
    plain.insert("a", [(-1, 1, "x")])
    commit = lake.catalog.commit

    def interrupted(*given: Any, **options: Any) -> Any:
        commit(*given, **options)
        raise KeyboardInterrupt

    works = {"flush": partial(upkeep.flush, lake), "build": partial(index.build, lake, *index.missing(lake)[0])}
    monkeypatch.setattr(lake.catalog, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        works[work]()
    monkeypatch.setattr(lake.catalog, "commit", commit)
    stored.check(lake)


def test_a_table_that_got_a_column_after_it_was_looked_up_can_be_emptied(plain: Database) -> None:
    found = plain._engine.target(Name("a"), ObjectKind.TABLE)
    rows = plain._lake.catalog.row_count(found)
    plain.sql("ALTER TABLE a ADD COLUMN later INT")
    assert plain._engine._clear(found) == rows > 0
    assert plain._lake.catalog.row_count(found) == 0
