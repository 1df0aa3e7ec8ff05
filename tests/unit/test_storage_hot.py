"""The hot part of a streaming table: blocks, their indices, catching up, and what stays in memory."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.catalog import tables
from millstream.catalog.records import StreamTime
from millstream.clock import ManualClock
from millstream.schema import TIMESTAMP, Column, Duration, ObjectKind, Schema
from millstream.storage import segment, upkeep
from millstream.storage.continuous import hot as hot_module
from millstream.storage.continuous import match
from millstream.storage.continuous.block import AFTER_ALL, BEFORE_ALL, Block, newest_first, nth_newest
from millstream.storage.continuous.hot import HotPart, Intervals
from millstream.storage.continuous.window import newest_of_each
from millstream.storage.lake import Lake
from millstream.storage.prune import Comparison, Operator
from tests.unit.test_storage_prune import is_true

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from millstream.catalog.records import TableInfo
    from millstream.storage.transaction import Written

EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=60)
COLUMNS = (Column("k", pa.int64()), Column("v", pa.string()), Column("t", pa.int64()))
LARGE = 300


def streaming_table(
    lake: Lake,
    columns: tuple[Column, ...] = COLUMNS,
    *,
    name: str = "s",
    delay: int = 0,
    period: int | None = None,
    is_arrival: bool = False,
) -> TableInfo:
    """A new streaming table whose time is its last column."""
    is_number = columns[-1].type != TIMESTAMP
    time = StreamTime(columns[-1].name, Duration(delay, is_number), is_arrival)
    kept = None if period is None else Duration(period, is_number)
    wanted = tables.provisional(name, ObjectKind.STREAMING_TABLE, Schema(columns), time, period=kept)
    transaction = lake.transaction()
    transaction.create(wanted)
    transaction.commit()
    return lake.catalog.tables()[name]


def insert(lake: Lake, table: TableInfo, rows: Iterable[Sequence[Any]]) -> None:
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(c, f.type) for c, f in zip(columns, table.schema.arrow, strict=True)]
    transaction = lake.transaction()
    transaction.append(table, pa.table(arrays, schema=table.schema.arrow))
    transaction.commit()


def delete(lake: Lake, table: TableInfo, column: str, value: Any) -> None:
    """Delete the rows with a value the way DELETE does: rewrite the files that hold any."""
    transaction = lake.transaction()
    found = transaction.materialise(table)
    gone, survivors = [], []
    for file in found.files:
        data, ids = segment.read(lake.folder(table), table, file)
        keep = pc.invert(pc.equal(data.column(column), value).fill_null(False))
        if not pc.all(keep).as_py():
            gone.append(file)
            if pc.any(keep).as_py():
                kept = pa.chunked_array([ids]).filter(keep).combine_chunks()
                survivors.append(segment.write(lake.folder(table), table, data.filter(keep), kept))
    transaction.replace(table, gone, survivors)
    transaction.commit()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    opened = Lake(tmp_path / "database", ManualClock())
    yield opened
    opened.close()


@pytest.fixture
def table(lake: Lake) -> TableInfo:
    return streaming_table(lake)


def at(*times: int) -> list[tuple[int, str, int]]:
    return [(t, f"v{t}", t) for t in times]


def block_of(rows: Sequence[tuple[int, int]]) -> Block:
    """A block of (row id, time)."""
    ids = np.array([i for i, _ in rows], dtype=np.int64)
    times = [t for _, t in rows]
    schema = Schema((Column("t", pa.int64()),))
    info = tables.provisional("s", ObjectKind.STREAMING_TABLE, schema, StreamTime("t", Duration(0, True)))
    return Block.of(info, pa.table([pa.array(times, pa.int64())], schema=schema.arrow), ids)


def ids_of(blocks: Iterable[Block]) -> list[int]:
    return sorted(int(i) for b in blocks for i in b.row_ids)


TIMES = st.integers(-6, 6) | st.sampled_from([BEFORE_ALL, AFTER_ALL])
ROWS = st.lists(TIMES, min_size=1, max_size=12).map(lambda times: list(enumerate(times)))


@EXACT
@given(ROWS, TIMES, TIMES, st.integers(0, 12), st.randoms(use_true_random=False))
def test_a_block_finds_exactly_the_rows_of_a_stretch_of_time(
    rows: list[tuple[int, int]], low: int, high: int, limit: int, random: Any
) -> None:
    shuffled = random.sample(rows, len(rows))
    block = block_of(shuffled)
    expected = sorted((t, i) for i, t in rows if low <= t <= high and i < limit)
    places = block.find((low, 0), high, limit)
    assert [(int(block.times[p]), int(block.row_ids[p])) for p in places] == expected
    assert (block.low, block.high) == (min(t for _, t in rows), max(t for _, t in rows))


@EXACT
@given(st.lists(ROWS, max_size=6), TIMES, TIMES)
def test_the_interval_index_names_exactly_the_blocks_that_reach_into_a_stretch(
    parts: list[list[tuple[int, int]]], low: int, high: int
) -> None:
    blocks = [block_of(rows) for rows in parts]
    found = Intervals(blocks).overlapping(low, high)
    expected = [b for b in blocks if low <= high and b.low <= high and b.high >= low]
    assert [id(b) for b in found] == [id(b) for b in expected]


def test_the_interval_index_looks_only_at_blocks_near_the_stretch() -> None:
    looked: list[int] = []

    class Noisy(list[Block]):
        def __getitem__(self, place: Any) -> Any:
            looked.append(len(range(*place.indices(len(self)))))
            return super().__getitem__(place)

    blocks = Noisy(block_of([(i, 10 * i), (i, 10 * i + 9)]) for i in range(1000))
    assert [b.low for b in Intervals(blocks).overlapping(4_995, 5_012)] == [4_990, 5_000, 5_010]
    assert looked == [3]


@EXACT
@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(1, 20))
def test_the_nth_newest_row_is_the_nth_by_time_and_arrival(parts: list[list[tuple[int, int]]], n: int) -> None:
    rows = [(i + 100 * place, t) for place, part in enumerate(parts) for i, t in part]
    blocks = [block_of([(i + 100 * place, t) for i, t in part]) for place, part in enumerate(parts)]
    ordered = sorted(((t, i) for i, t in rows), reverse=True)
    found = nth_newest([(b.times, b.row_ids) for b in blocks], n)
    assert found == (ordered[n - 1] if n <= len(ordered) else None)
    _, ids = newest_first(blocks[0].rows.schema, [(b, np.arange(len(b))) for b in blocks])
    assert ids.tolist() == [i for _, i in ordered]


@EXACT
@given(st.lists(st.tuples(st.sampled_from([None, 0.0, -0.0, math.nan, 1.5]), st.integers(0, 3)), min_size=1))
def test_the_newest_of_each_key_with_null_and_nan_as_keys(rows: list[tuple[float | None, int]]) -> None:
    schema = Schema((Column("k", pa.float64()), Column("t", pa.int64())))
    info = tables.provisional("s", ObjectKind.STREAMING_TABLE, schema, StreamTime("t", Duration(0, True)))
    keys, times = zip(*rows, strict=True)
    data = pa.table([pa.array(keys, pa.float64()), pa.array(times, pa.int64())], schema=schema.arrow)
    block = Block.of(info, data, np.arange(len(rows)))
    groups: dict[Any, list[tuple[int, int]]] = {}
    for i, (key, time) in enumerate(rows):
        groups.setdefault("nan" if key is not None and math.isnan(key) else key, []).append((time, i))
    for count in (1, 2):
        expected = sorted(i for group in groups.values() for _, i in sorted(group)[-count:])
        assert sorted(newest_of_each(block, ["k"], count).row_ids.tolist()) == expected
    assert newest_of_each(block, [], 1).row_ids.tolist() == [max((t, i) for i, (_, t) in enumerate(rows))[1]]


NUMBERS: st.SearchStrategy[Any] = st.integers(-3, 3)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): NUMBERS,
    pa.int64(): NUMBERS | st.sampled_from([2**63 - 1, -(2**63)]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.5, math.nan]),
    pa.string(): st.sampled_from(["", "a", "b", "ab", "é", "\U0001f600", "\uffff", "a\0"]),
    pa.binary(): st.sampled_from([b"", b"a", b"\xff"]),
    pa.decimal128(5, 2): st.integers(-3, 3).map(lambda i: Decimal(i) / 2),
    pa.decimal128(38, 10): st.sampled_from([Decimal("9" * 28 + ".9"), Decimal("-1.5"), Decimal(0)]),
    pa.date32(): st.integers(-2, 2).map(lambda d: date(1970, 1, 1) + timedelta(d)),
    TIMESTAMP: st.integers(-2, 2).map(lambda s: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=s)),
}
BESIDE = st.sampled_from([0.5, -1.5, 2**70, -(2**70), Decimal("0.005"), Decimal("1E+30"), 2, math.inf])


@st.composite
def compared_columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any], tuple[tuple[Comparison, ...], ...]]:
    type_ = draw(st.sampled_from(list(VALUES)))
    values = draw(st.lists(st.none() | VALUES[type_], max_size=6))
    constants = VALUES[type_]
    if pa.types.is_integer(type_) or pa.types.is_decimal(type_):
        constants = constants | BESIDE

    def comparison(column: str) -> Comparison:
        operator = draw(st.sampled_from(list(Operator)))
        most = 3 if operator is Operator.IN else 1
        return Comparison(column, operator, tuple(draw(st.lists(constants, min_size=1, max_size=most))))

    names = st.sampled_from(["c", "d"])
    parts = draw(st.lists(st.lists(names, min_size=1, max_size=3), max_size=3))
    return type_, values, tuple(tuple(comparison(name) for name in part) for part in parts)


def satisfies(row: dict[str, Any], predicate: tuple[tuple[Comparison, ...], ...]) -> bool:
    return not predicate or any(all(is_true(row[c.column], c) for c in part) for part in predicate)


@settings(EXACT, max_examples=200)
@given(compared_columns())
def test_a_predicate_selects_the_same_rows_by_looking_at_each_and_through_the_index(case: Any) -> None:
    type_, values, predicate = case
    rows = pa.table({"c": pa.array(values, type_), "d": pa.array(values[::-1], type_)})
    expected = [i for i, row in enumerate(rows.to_pylist()) if satisfies(row, predicate)]
    assert np.flatnonzero(match.mask(rows, predicate)).tolist() == expected
    if match.serves(predicate, "c"):
        index = match.ValueIndex.of(rows.column("c"))
        assert match.find(rows, predicate, "c", index).tolist() == expected
    else:
        assert not predicate or any(all(c.column == "d" for c in part) for part in predicate)


def everything(part: HotPart) -> list[int]:
    return ids_of(part.each(BEFORE_ALL, AFTER_ALL))


def test_catching_up_gives_each_row_once_wherever_upkeep_has_put_it(
    lake: Lake, table: TableInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 2)
    part = HotPart(lake, table.id)
    seen: list[int] = []

    def catch_up() -> list[int]:
        came = [int(i) for i in part.catch_up().row_ids]
        seen.extend(came)
        return came

    insert(lake, table, at(1, 2))
    assert catch_up() == [0, 1]
    insert(lake, table, at(3))
    assert upkeep.flush(lake) == 3, "older and newer rows are in one file"
    assert catch_up() == [2]
    insert(lake, table, at(*range(4, 4 + LARGE)))
    insert(lake, table, at(2))
    upkeep.flush(lake)
    assert upkeep.compact(lake) > 0
    assert catch_up() == list(range(3, LARGE + 4))
    assert catch_up() == []
    assert everything(part) == seen == list(range(LARGE + 4))
    assert part.disk_reads == 0, "all of it is in memory"


def test_what_was_stored_before_is_read_when_asked_for_and_stays(lake: Lake, table: TableInfo) -> None:
    insert(lake, table, at(*range(LARGE)))
    upkeep.flush(lake)
    part = HotPart(lake, table.id)
    assert part.blocks == []
    assert ids_of(b.between(290, 299) or b for b in part.between(290, 299)) == list(range(290, 300))
    assert ids_of(b.between(295, 299) or b for b in part.between(295, 299)) == list(range(295, 300))
    assert part.disk_reads == 1
    insert(lake, table, at(300, 301))
    part.catch_up()
    assert ids_of(part.between(300, 301)) == [300, 301]
    newest = part.newest(BEFORE_ALL, 301, part.position, 12)
    assert set(range(290, 302)) <= set(ids_of(newest))
    assert part.disk_reads == 1


def test_old_windows_are_read_from_disk_without_filling_the_memory(lake: Lake, table: TableInfo) -> None:
    insert(lake, table, at(*range(LARGE)))
    part = HotPart(lake, table.id)
    assert ids_of(part.between(5, 7, keep=False)) == [5, 6, 7]
    assert part.blocks == []


def test_small_commits_merge_into_few_blocks_and_large_ones_are_split(
    lake: Lake, table: TableInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_module, "BLOCK_ROWS", 64)
    part = HotPart(lake, table.id)
    for time in range(100):
        insert(lake, table, at(time))
        part.catch_up()
    assert len(part.blocks) <= 7
    insert(lake, table, at(*range(100, 100 + LARGE)))
    part.catch_up()
    assert max(len(b) for b in part.blocks) <= 64
    assert everything(part) == list(range(100 + LARGE))


def test_trimming_gives_up_whole_old_blocks_and_reads_stay_the_same(
    lake: Lake, table: TableInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_module, "BLOCK_ROWS", 16)
    part = HotPart(lake, table.id)
    insert(lake, table, at(*range(160), 3, 150))
    part.catch_up()
    before = part.nbytes
    part.trim(100)
    assert part.nbytes < before / 2
    assert 80 <= part.floor <= 100
    assert all(b.low >= part.floor for b in part.blocks), "the late row is on disk alone"
    assert everything(part) == list(range(162))
    insert(lake, table, at(5, 160))
    part.catch_up()
    assert everything(part) == list(range(164))
    part.trim(AFTER_ALL)
    assert part.blocks == []
    assert everything(part) == list(range(164))


def test_the_budget_bounds_the_memory_and_the_newest_rows_stay(
    lake: Lake, table: TableInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_module, "BLOCK_ROWS", 16)
    part = HotPart(lake, table.id, budget=4_000)
    for start in range(0, 500, 50):
        insert(lake, table, at(*range(start, start + 50)))
        part.catch_up()
        assert part.nbytes <= 4_000
    assert part.blocks[-1].high == 499
    assert ids_of(b.between(5, 499) or b for b in part.between(5, 499)) == list(range(5, 500))
    assert part.nbytes <= 4_000


def test_rows_that_were_taken_away_are_not_read_again(lake: Lake, table: TableInfo) -> None:
    part = HotPart(lake, table.id)

    def committed(written: Sequence[Written]) -> None:
        if any(w.removes for w in written):
            part.invalidate()

    lake.on_commit(committed)
    insert(lake, table, at(1, 2, 3))
    part.catch_up()
    insert(lake, table, at(4))
    delete(lake, table, "t", 2)
    fresh = part.catch_up()
    assert fresh.reloaded
    assert fresh.row_ids.tolist() == [3]
    assert everything(part) == [0, 2, 3]


def test_a_failed_catch_up_is_made_good_by_the_next(
    lake: Lake, table: TableInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = HotPart(lake, table.id)
    insert(lake, table, at(*range(LARGE)))
    insert(lake, table, at(*range(LARGE)))
    read = segment.read
    calls = iter([True, False])

    def fails_at_second(*arguments: Any) -> Any:
        if not next(calls):
            raise OSError("the disk is tired")
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(segment, "read", fails_at_second)
        with pytest.raises(OSError, match="tired"):
            part.catch_up()
    assert part.catch_up().row_ids.tolist() == list(range(2 * LARGE))
    assert everything(part) == list(range(2 * LARGE))
