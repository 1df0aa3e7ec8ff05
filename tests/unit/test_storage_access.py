"""Continuous scans of streaming tables, case by case; random ones are in `test_storage_access_random`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import settings

from millstream.catalog import streams, tables
from millstream.clock import ManualClock
from millstream.errors import Condition, MillstreamError
from millstream.schema import TIMESTAMP, Column, instant
from millstream.storage import upkeep
from millstream.storage.continuous.access import (
    REALTIME,
    Access,
    Contents,
    PartitionWindow,
    RowsWindow,
    SampleInterval,
    SampleRows,
    TimeWindow,
)
from millstream.storage.lake import Lake
from millstream.storage.prune import Comparison, Operator
from tests.unit.test_storage_hot import LARGE, at, delete, insert, streaming_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import TableInfo
    from millstream.storage.continuous.match import Predicate
    from millstream.storage.continuous.window import Window

RANDOM = settings(derandomize=True, deadline=None, database=None, max_examples=25)
NOTHING = 1
WINDOWS: tuple[Window, ...] = (
    TimeWindow(0),
    TimeWindow(4),
    TimeWindow(100),
    RowsWindow(1),
    RowsWindow(5),
    RowsWindow(40),
    PartitionWindow(("k",), 2),
    PartitionWindow(("k", "v"), 1),
)
PREDICATES: tuple[Predicate, ...] = (
    (),
    ((Comparison("k", Operator.EQ, (1,)),),),
    (
        (Comparison("k", Operator.GE, (1,)), Comparison("v", Operator.LT, ("b",))),
        (Comparison("k", Operator.IN, (0, 7)),),
    ),
    ((Comparison("v", Operator.EQ, ("a",)),),),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock) -> Iterator[Lake]:
    opened = Lake(tmp_path / "database", clock)
    yield opened
    opened.close()


@pytest.fixture
def table(lake: Lake) -> TableInfo:
    return streaming_table(lake)


def advance(lake: Lake, table: TableInfo, to: int) -> None:
    def work(commit: Commit) -> None:
        state = streams.state_of(commit, table.id)
        streams.save(commit, table.id, replace(state, advanced_to=max(to, state.advanced_to or to)))

    lake.catalog.commit(work)


POSITIONS = ["VID", "SPD", "XWAY", "LANE", "DIR", "SEG", "POS"]
FIGURE_1 = [
    (1, 0, 0, 0, 0, 10, 53320, 0),
    (2, 32, 0, 0, 0, 10, 53320, 1),
    (2, 0, 0, 0, 0, 11, 53320, 3),
    (4, 0, 0, 0, 0, 11, 53320, 4),
    (4, 32, 0, 0, 0, 11, 53320, 6),
]


def test_figure_1_of_the_paper_comes_out_exactly(lake: Lake) -> None:
    posreports = streaming_table(lake, tuple(Column(n, pa.int64()) for n in (*POSITIONS, "T")))
    access = Access(lake)
    access.seq_scan("a", posreports, TimeWindow(3))
    access.seq_scan("b", posreports, RowsWindow(3))
    access.seq_scan("c", posreports, PartitionWindow(("VID",), 1))
    stopped = ((Comparison("SPD", Operator.EQ, (0,)),),)
    answers: list[Contents] = []
    access.index_scan("d", posreports, TimeWindow(4), "SPD", stopped, SampleInterval(2), answers.append)
    insert(lake, posreports, FIGURE_1)

    def at_7(call: str) -> list[tuple[int, ...]]:
        return [tuple(row.values()) for row in access.resume(call, 7).rows.to_pylist()]

    assert at_7("a") == [FIGURE_1[4], FIGURE_1[3]]
    assert at_7("b") == [FIGURE_1[4], FIGURE_1[3], FIGURE_1[2]]
    assert at_7("c") == [FIGURE_1[4], FIGURE_1[2], FIGURE_1[0]]
    advance(lake, posreports, 7)
    access.push_due()
    assert {c.instant: c.rows["VID"].to_pylist() for c in answers} == {0: [1], 2: [1], 4: [4, 2, 1], 6: [4, 2]}


def test_late_rows_miss_the_instants_before_them_and_enter_later_ones(lake: Lake, table: TableInfo) -> None:
    """How inserts are cut does not matter: the late row comes in the commit that makes 3 due."""
    access = Access(lake)
    answers: list[Contents] = []
    access.seq_scan("q", table, TimeWindow(10), (), SampleInterval(3), answers.append)
    insert(lake, table, at(1, 2, 5, 2, 7))
    assert access.push_due() == 2
    assert [(c.instant, c.rows["t"].to_pylist()) for c in answers] == [(3, [2, 1]), (6, [5, 2, 2, 1])]


def test_an_advance_is_placed_among_the_rows_by_how_many_were_late(lake: Lake, table: TableInfo) -> None:
    """Without `settle`: only the counters tell that 4 came after the advance to 5 and 3 before it."""
    access = Access(lake)
    answers: list[Contents] = []
    access.seq_scan("q", table, TimeWindow(10), (), REALTIME, answers.append)
    insert(lake, table, at(1, 3))
    advance(lake, table, 5)
    insert(lake, table, at(4, 6, 7))
    access.push_due()
    assert [(c.instant, c.rows["t"].to_pylist()) for c in answers] == [(1, [1]), (3, [3, 1]), (6, [6, 4, 3, 1])]


def test_of_a_long_run_of_empty_windows_the_first_and_the_last_are_delivered(lake: Lake, table: TableInfo) -> None:
    access = Access(lake)
    answers: list[Contents] = []
    access.seq_scan("q", table, TimeWindow(2), (), SampleInterval(1), answers.append)
    insert(lake, table, at(0, 50_000, 60_000))
    access.push_due()
    assert [c.instant for c in answers[:5]] == [0, 1, 2, 3, 49_999]
    assert answers[4].skipped == 49_999 - 3 - 1
    assert [c.instant for c in answers[5:]] == [50_000, 50_001, 50_002, *range(50_003, 60_000)]
    assert all(c.skipped == 0 for c in answers[5:]), "9,997 empty windows are not too many"


def test_windows_over_timestamps_count_microseconds(lake: Lake, clock: ManualClock) -> None:
    stamped = streaming_table(lake, (Column("k", pa.int64()), Column("ts", TIMESTAMP)))
    access = Access(lake)
    access.seq_scan("q", stamped, TimeWindow(60_000_000))
    start = clock.now()
    insert(lake, stamped, [(i, start + timedelta(seconds=30 * i)) for i in range(5)])
    found = access.resume("q")
    assert found.instant == instant(start + timedelta(seconds=120))
    assert found.rows["k"].to_pylist() == [4, 3, 2]


def test_with_arrival_time_the_clock_makes_instants_due(lake: Lake, clock: ManualClock) -> None:
    stamped = streaming_table(lake, (Column("k", pa.int64()), Column("ts", TIMESTAMP)), is_arrival=True)
    access = Access(lake)
    every: list[Contents] = []
    new: list[Contents] = []
    access.seq_scan("every", stamped, TimeWindow(10_000_000), (), SampleInterval(10_000_000), every.append)
    access.seq_scan("new", stamped, RowsWindow(1), (), REALTIME, new.append)
    assert access.next_due() is None
    insert(lake, stamped, [(1, clock.now()), (2, clock.now())])
    assert access.push_due() == 0
    assert access.next_due() == clock.now() + timedelta(microseconds=1)
    clock.advance(timedelta(seconds=25))
    assert access.push_due() == 3
    assert [c.rows["k"].to_pylist() for c in every] == [[2, 1], []]
    assert [c.rows["k"].to_pylist() for c in new] == [[2]]


def test_first_windows_include_stored_rows(lake: Lake, table: TableInfo) -> None:
    insert(lake, table, at(*range(LARGE)))
    upkeep.flush(lake)
    access = Access(lake)
    answers: list[Contents] = []
    access.seq_scan("q", table, RowsWindow(3), (), REALTIME, answers.append)
    assert access.push_due() == 0
    insert(lake, table, at(LARGE, LARGE + 1))
    access.push_due()
    assert [(c.instant, c.rows["t"].to_pylist()) for c in answers] == [(300, [300, 299, 298])]


def test_standing_windows_are_read_from_memory_alone_once_they_have_been_read(
    lake: Lake, table: TableInfo
) -> None:
    insert(lake, table, at(*range(LARGE)))
    upkeep.flush(lake)
    access = Access(lake)
    access.seq_scan("time", table, TimeWindow(20))
    access.index_scan("rows", table, RowsWindow(50), "k", ((Comparison("k", Operator.GT, (290,)),),))
    access.seq_scan("keys", table, PartitionWindow(("k",), 1))
    part = access._tables[table.id].hot
    for name in ("time", "rows", "keys"):
        access.resume(name)
    reads = part.disk_reads
    for start in range(LARGE, 3 * LARGE, 10):
        insert(lake, table, at(*range(start, start + 10)))
        assert access.resume("time").rows.num_rows == 21
        assert access.resume("rows").rows.num_rows == min(50, start + 10 - 291)
        assert access.resume("keys").rows.num_rows == start + 10
    assert part.disk_reads == reads
    assert sum(len(b) for b in part.blocks) < 3 * LARGE, "what no call needs has gone"


def test_rows_that_are_deleted_are_not_in_later_answers(lake: Lake, table: TableInfo) -> None:
    access = Access(lake)
    answers: list[Contents] = []
    windows: dict[str, Window] = {
        "time": TimeWindow(100),
        "rows": RowsWindow(3),
        "keys": PartitionWindow(("k",), 1),
    }
    for name, window in windows.items():
        access.seq_scan(name, table, window)
    access.seq_scan("push", table, PartitionWindow(("k",), 1), (), REALTIME, answers.append)
    insert(lake, table, at(1, 2, 3, 4))
    access.push_due()
    assert [access.resume(name).rows["t"].to_pylist() for name in windows] == [
        [4, 3, 2, 1],
        [4, 3, 2],
        [4, 3, 2, 1],
    ]
    delete(lake, table, "t", 3)
    assert [access.resume(name).rows["t"].to_pylist() for name in windows] == [[4, 2, 1], [4, 2, 1], [4, 2, 1]]
    insert(lake, table, at(5))
    access.push_due()
    assert answers[-1].rows["t"].to_pylist() == [4, 2, 1]


def test_an_index_scan_searches_the_sorted_values(
    lake: Lake, table: TableInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(lake)
    access.index_scan("q", table, TimeWindow(1000), "k", ((Comparison("k", Operator.IN, (5, 7)),),))
    insert(lake, table, at(*range(LARGE)))

    def refuse(*_: Any) -> None:
        raise AssertionError("looked at every row")

    with monkeypatch.context() as patch:
        patch.setattr("millstream.storage.continuous.match.mask", refuse)
        assert access.resume("q").rows["k"].to_pylist() == [7, 5]
    access.index_scan("other", table, TimeWindow(1000), "k", ((Comparison("v", Operator.EQ, ("v9",)),),))
    assert access.resume("other").rows["k"].to_pylist() == [9]
    assert access.uses_index(table.id, "K") == ("q", "other")
    access.kill("q")
    access.kill("other")
    assert access.uses_index(table.id, "k") == ()


def test_a_delivery_that_fails_ends_only_its_own_call(lake: Lake, table: TableInfo) -> None:
    access = Access(lake)
    answers: list[Contents] = []

    def fails(contents: Contents) -> None:
        if contents.sequence == 2:
            raise ValueError("no room")

    access.seq_scan("bad", table, TimeWindow(1), (), REALTIME, fails)
    access.seq_scan("good", table, TimeWindow(1), (), REALTIME, answers.append)
    insert(lake, table, at(1, 2, 3, 4))
    assert access.push_due() == 4
    bad, good = access.calls()
    assert (bad.call_id, bad.model, bad.deliveries, str(bad.failure)) == ("bad", "push", 1, "no room")
    assert (good.deliveries, good.failure, len(answers)) == (3, None, 3)
    insert(lake, table, at(5))
    assert access.push_due() == 1
    access.kill("bad")


def test_a_killed_call_is_read_no_more_and_leaves_no_memory(lake: Lake, table: TableInfo) -> None:
    access = Access(lake)
    answers: list[Contents] = []

    def once(contents: Contents) -> None:
        answers.append(contents)
        access.kill("q")

    access.seq_scan("q", table, TimeWindow(1), (), REALTIME, once)
    insert(lake, table, at(1, 2, 3))
    assert access.push_due() == 1
    assert access.calls() == ()
    assert access._tables == {}
    with pytest.raises(MillstreamError) as failed:
        access.kill("q")
    assert failed.value.condition is Condition.INVALID_ARGUMENT
    access.seq_scan("r", table, TimeWindow(1))
    with pytest.raises(MillstreamError) as failed:
        access.kill("q")
    assert "Known calls: r." in str(failed.value)


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        ({"call_id": "known"}, Condition.INVALID_ARGUMENT),
        ({"window": TimeWindow(-1)}, Condition.INVALID_ARGUMENT),
        ({"window": RowsWindow(0)}, Condition.INVALID_ARGUMENT),
        ({"window": PartitionWindow(("nope",), 1)}, Condition.UNKNOWN_COLUMN),
        ({"predicate": ((Comparison("nope", Operator.EQ, (1,)),),)}, Condition.UNKNOWN_COLUMN),
        ({"sample": REALTIME}, Condition.INVALID_ARGUMENT),
        ({"deliver": print}, Condition.INVALID_ARGUMENT),
        ({"sample": SampleInterval(0), "deliver": print}, Condition.INVALID_ARGUMENT),
        ({"sample": SampleRows(0), "deliver": print}, Condition.INVALID_ARGUMENT),
    ],
)
def test_calls_that_make_no_sense_are_refused(
    lake: Lake, table: TableInfo, arguments: dict[str, Any], condition: Condition
) -> None:
    access = Access(lake)
    access.seq_scan("known", table, TimeWindow(1))
    wanted: dict[str, Any] = {"call_id": "q", "table": table, "window": TimeWindow(1)} | arguments
    with pytest.raises(MillstreamError) as failed:
        access.seq_scan(**wanted)
    assert failed.value.condition is condition
    assert [c.call_id for c in access.calls()] == ["known"]


def test_pushed_calls_are_not_resumed_and_other_calls_must_be_known(lake: Lake, table: TableInfo) -> None:
    access = Access(lake)
    access.seq_scan("q", table, TimeWindow(1), (), REALTIME, print)
    for name in ("q", "other"):
        with pytest.raises(MillstreamError) as failed:
            access.resume(name)
        assert failed.value.condition is Condition.INVALID_ARGUMENT


def test_calls_on_a_dropped_table_fail_and_can_be_killed(lake: Lake, table: TableInfo) -> None:
    access = Access(lake)
    access.seq_scan("push", table, TimeWindow(1), (), REALTIME, print)
    access.seq_scan("pull", table, TimeWindow(1))
    transaction = lake.transaction()
    transaction.drop(table)
    transaction.commit()
    assert access.push_due() == 0
    failure = access.calls()[0].failure
    assert isinstance(failure, MillstreamError)
    assert failure.condition is Condition.UNKNOWN_TABLE
    with pytest.raises(MillstreamError) as failed:
        access.resume("pull")
    assert failed.value.condition is Condition.UNKNOWN_TABLE
    access.kill("push")
    access.kill("pull")


def test_a_new_column_is_null_in_the_rows_there_were(lake: Lake, table: TableInfo) -> None:
    access = Access(lake)
    access.seq_scan("q", table, PartitionWindow(("k",), 1))
    insert(lake, table, at(1, 2))
    assert access.resume("q").rows.num_rows == 2
    lake.catalog.commit(lambda commit: tables.add_columns(commit, table, (Column("n", pa.int64()),)))
    insert(lake, lake.catalog.tables()["s"], [(3, "c", 3, 7)])
    assert access.resume("q").rows.to_pylist() == [
        {"k": 3, "v": "c", "t": 3, "n": 7},
        {"k": 2, "v": "v2", "t": 2, "n": None},
        {"k": 1, "v": "v1", "t": 1, "n": None},
    ]


def test_a_commit_wakes_whoever_pushes_and_deliveries_may_insert(lake: Lake, table: TableInfo) -> None:
    woken: list[bool] = []
    access = Access(lake, wake=lambda: woken.append(True))
    insert(lake, table, at(0))
    assert woken == []

    def insert_again(contents: Contents) -> None:
        assert access.push_due() == 0, "deliveries are not made from inside a delivery"
        if contents.instant == 1:
            insert(lake, table, at(3))

    access.seq_scan("q", table, TimeWindow(1), (), REALTIME, insert_again)
    insert(lake, table, at(1, 2))
    assert access.push_due() == 1
    assert len(woken) == 2
    assert access.push_due() == 1


def test_times_that_pushed_calls_still_need_are_known_to_retention(lake: Lake, table: TableInfo) -> None:
    access = Access(lake)
    assert access.needed_from(table.id) is None
    access.seq_scan("pull", table, TimeWindow(100))
    assert access.needed_from(table.id) is None
    access.seq_scan("push", table, TimeWindow(5), (), SampleInterval(10), print)
    insert(lake, table, at(11, 12))
    access.push_due()
    assert access.needed_from(table.id) == 15


def test_threads_that_insert_read_and_push_at_once_see_every_row_once(lake: Lake) -> None:
    table = streaming_table(lake, delay=1_000_000)
    access = Access(lake, budget=2_000)
    answers: list[Contents] = []
    access.seq_scan("each", table, RowsWindow(1), (), SampleRows(1), answers.append)
    access.seq_scan("keys", table, PartitionWindow(("k",), 1))
    done = threading.Event()

    def write(thread: int) -> None:
        for i in range(30):
            insert(lake, table, [(thread, "x", i)])

    def read() -> None:
        while not done.is_set():
            access.push_due()
            access.resume("keys", 1_000)

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        list(pool.map(write, range(4)))
        done.set()
        for reader in readers:
            reader.result()
    access.push_due()
    assert [c.position for c in answers] == list(range(1, 121))
    assert access.resume("keys", 1_000).rows["t"].to_pylist() == [29] * 4
