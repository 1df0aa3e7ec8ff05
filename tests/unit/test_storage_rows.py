"""Row ids are given in arrival order and stay with their rows; transactions are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.clock import ManualClock
from millstream.storage import inline, segment, upkeep
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millstream.database import Database
    from millstream.storage.lake import Lake

SMALL, LARGE = 3, inline.MOST_ROWS + 1


@pytest.fixture
def plain(database_path: Path) -> Iterator[Database]:
    with millstream.connect(database_path, clock=ManualClock(), background=False) as database:
        database.sql("CREATE TABLE t (id BIGINT, x STRING)")
        yield database


def insert(db: Database, first: int, count: int, table: str = "t") -> int:
    db.insert(table, [(i, str(i)) for i in range(first, first + count)])
    return first + count


def in_order(lake: Lake, count: int) -> None:
    """Row i of the arrival has row id i."""
    assert {i: row[0] for i, row in stored.rows(lake, "t").items()} == {i: i for i in range(count)}
    stored.check(lake)


def test_row_ids_follow_the_order_of_inserts_through_flush_and_compaction(
    plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 2)
    count = 0
    for size in (SMALL, LARGE, SMALL, SMALL, LARGE, SMALL):
        count = insert(plain, count, size)
    in_order(plain._lake, count)
    assert upkeep.flush(plain._lake) == 4 * SMALL
    assert stored.inlined_count(plain._lake, "t") == 0
    in_order(plain._lake, count)
    count = insert(plain, count, SMALL)
    assert upkeep.compact(plain._lake) == 3
    assert len(stored.live_files(plain._lake, "t")) == 1
    in_order(plain._lake, count)


@pytest.mark.parametrize("sizes", [(SMALL, LARGE), (LARGE, SMALL), (SMALL, LARGE, SMALL, LARGE)])
def test_row_ids_follow_the_order_of_inserts_inside_a_transaction(plain: Database, sizes: tuple[int, ...]) -> None:
    count = 0
    with plain.transaction():
        for size in sizes:
            count = insert(plain, count, size)
    in_order(plain._lake, count)


def delete(lake: Lake, gone: set[int]) -> None:
    """Delete rows by their id column the way DELETE does: rewrite the files that hold any."""
    table = stored.table_of(lake, "t")
    transaction = lake.transaction()
    found = transaction.materialise(table)
    touched, survivors = [], []
    for file in found.files:
        data, ids = segment.read(lake.folder(table), table, file)
        keep = pc.invert(pc.is_in(data.column("id"), pa.array(sorted(gone), pa.int64())))
        if pc.all(keep).as_py():
            continue
        touched.append(file)
        if pc.any(keep).as_py():
            kept = pa.chunked_array([ids]).filter(keep).combine_chunks()
            survivors.append(segment.write(lake.folder(table), table, data.filter(keep), kept))
    transaction.replace(table, touched, survivors)
    transaction.commit()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(1, 4)),
        st.tuples(st.just("insert"), st.just(LARGE)),
        st.tuples(st.just("delete"), st.integers(2, 5)),
        st.sampled_from([("flush", 0), ("compact", 0), ("truncate", 0), ("drop and create", 0)]),
    ),
    max_size=8,
)


@settings(derandomize=True, deadline=None, database=None, max_examples=25)
@given(STEPS)
def test_rows_keep_their_ids_and_every_version_its_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """A model: a dictionary from row id to value, for every snapshot there was."""
    path = tmp_path_factory.mktemp("model") / "database"
    with (
        millstream.connect(path, clock=ManualClock(), background=False) as db,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(upkeep, "MOST_SMALL_FILES", 2)
        lake = db._lake
        db.sql("CREATE TABLE t (id BIGINT, x STRING)")
        model: dict[int, int] = {}
        history = {lake.catalog.current.id: dict(model)}
        next_row, next_value = 0, 0
        for step, size in steps:
            if step == "insert":
                model |= {next_row + i: next_value + i for i in range(size)}
                insert(db, next_value, size)
                next_row, next_value = next_row + size, next_value + size
            elif step == "delete":
                gone = {v for v in model.values() if v % size == 0}
                model = {i: v for i, v in model.items() if v not in gone}
                delete(lake, gone)
            elif step == "truncate":
                model = {}
                db.sql("TRUNCATE TABLE t")
            elif step == "drop and create":
                db.sql("DROP TABLE t")
                db.sql("CREATE TABLE t (id BIGINT, x STRING)")
                model, next_row = {}, 0
            else:
                child_work[step](lake)
            history[lake.catalog.current.id] = dict(model)
        stored.check(lake)
        for version, rows in history.items():
            found = stored.rows(lake, "t", lake.catalog.snapshot(version=version))
            assert {i: row[0] for i, row in found.items()} == rows, version


child_work = {"flush": upkeep.flush, "compact": upkeep.compact}


def test_tables_made_and_dropped_in_one_transaction_keep_their_rows_apart(plain: Database) -> None:
    with plain.transaction():
        plain.sql("CREATE TABLE a (id BIGINT, x STRING)")
        plain.sql("CREATE TABLE b (id BIGINT, x STRING)")
        plain.sql("DROP TABLE a")
        plain.sql("CREATE TABLE c (id BIGINT, x STRING)")
        insert(plain, 0, SMALL, "b")
        insert(plain, 100, LARGE, "c")
    assert [row[0] for row in stored.rows(plain._lake, "b").values()] == [0, 1, 2]
    assert len(stored.rows(plain._lake, "c")) == LARGE
    stored.check(plain._lake)


def test_a_transaction_is_seen_whole_or_not_at_all_and_a_rolled_back_one_leaves_no_file(plain: Database) -> None:
    plain.sql("CREATE TABLE u (id BIGINT, x STRING)")
    plain.sql("BEGIN")
    insert(plain, 0, LARGE, "t")
    insert(plain, 0, SMALL, "u")
    assert stored.rows(plain._lake, "t") == stored.rows(plain._lake, "u") == {}
    assert len(stored.files_on_disk(plain.path)) == 1
    plain.sql("ROLLBACK")
    assert stored.files_on_disk(plain.path) == set()
    with plain.transaction():
        insert(plain, 0, LARGE, "t")
        insert(plain, 0, SMALL, "u")
    assert len(stored.rows(plain._lake, "t")) == LARGE
    assert len(stored.rows(plain._lake, "u")) == SMALL
    stored.check(plain._lake)


def test_rows_moved_into_files_by_a_change_are_synced_with_their_folder(
    plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DELETE without a match still moves inlined rows: their file's name must be durable too."""
    insert(plain, 0, SMALL)
    synced: list[Path] = []
    monkeypatch.setattr(segment, "sync_folder", synced.append)
    delete(plain._lake, set())
    assert stored.inlined_count(plain._lake, "t") == 0
    assert plain._lake.folder(stored.table_of(plain._lake, "t")) in synced


def test_a_table_dropped_while_upkeep_flushes_it_gets_no_file(
    plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(plain, 0, SMALL)
    original = segment.sync_folder

    def drop_first(folder: Path) -> None:
        original(folder)
        plain.sql("DROP TABLE t")

    monkeypatch.setattr(segment, "sync_folder", drop_first)
    upkeep.flush(plain._lake)
    assert stored.files_on_disk(plain.path) == stored.known_files(plain._lake) == set()


def test_the_recorded_size_of_a_table_is_that_of_its_files(
    plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 2)
    for i in range(3):
        insert(plain, 1000 * i, LARGE)
    upkeep.compact(plain._lake)
    insert(plain, 9000, SMALL)
    upkeep.flush(plain._lake)
    table = stored.table_of(plain._lake, "t")
    live = sum(f.bytes for f in stored.live_files(plain._lake, "t"))
    assert plain._lake.catalog.table_stats(table).bytes == live


def test_some_columns_of_a_file_are_read_with_all_row_ids(plain: Database) -> None:
    lake, second = plain._lake, insert(plain, 0, LARGE)
    third = insert(plain, second, LARGE)
    delete(lake, set(range(second, third, 2)))
    plain.sql("ALTER TABLE t ADD COLUMN late INT")
    plain.insert("t", [(third + i, str(i), i) for i in range(LARGE)])
    table, counts = stored.table_of(lake, "t"), []
    for file in lake.scan(table, lake.catalog.current).files:
        whole, ids = segment.read(lake.folder(table), table, file)
        counts.append((whole.num_rows, whole.column("late").null_count, len(ids)))
        for columns in (["late"], ["x"], ["id", "late"], ["late", "x", "id"]):
            rows, own_ids = segment.read(lake.folder(table), table, file, columns)
            assert rows.equals(whole.select(columns))
            assert own_ids.equals(ids)
    assert sorted(counts) == [(LARGE // 2,) * 3, (LARGE, 0, LARGE), (LARGE,) * 3]
