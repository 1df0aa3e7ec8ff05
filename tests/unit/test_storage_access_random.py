"""Random continuous scans against the definitions, taken literally, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.catalog import streams
from millstream.clock import ManualClock
from millstream.storage import inline, upkeep
from millstream.storage.continuous import hot
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
from tests.unit.test_storage_hot import delete, insert, satisfies, streaming_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import TableInfo
    from millstream.storage.continuous.instants import Sample
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


@dataclass
class Model:
    """The table as a list, and the definitions of its windows and its time."""

    delay: int
    period: int | None
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    next_id: int = 0
    largest: int | None = None
    advanced: int | None = None

    @property
    def watermark(self) -> int | None:
        marks = [None if self.largest is None else self.largest - self.delay, self.advanced]
        return max((m for m in marks if m is not None), default=None)

    def add(self, k: int | None, v: str | None, t: int) -> bool:
        """Take in one row; whether it is accepted."""
        accepted = self.watermark is None or t >= self.watermark
        self.rows.append((self.next_id, {"k": k, "v": v, "t": t}))
        self.next_id += 1
        self.largest = t if self.largest is None else max(self.largest, t)
        return accepted

    def window(self, window: Window, tau: int, predicate: Predicate) -> list[int]:
        """Row ids, in decreasing time, of the rows in the window that satisfy the predicate."""
        content = [(row["t"], i, row) for i, row in self.rows if row["t"] <= tau]
        content = [r for r in content if self.period is None or r[0] >= tau - self.period]
        content.sort(key=lambda r: r[:2], reverse=True)
        if isinstance(window, TimeWindow):
            inside = [r for r in content if r[0] >= tau - window.length]
        elif isinstance(window, RowsWindow):
            inside = content[: window.rows]
        else:
            inside = []
            counts: dict[tuple[Any, ...], int] = {}
            for r in content:
                key = tuple(r[2][c] for c in window.columns)
                counts[key] = counts.get(key, 0) + 1
                if counts[key] <= window.rows:
                    inside.append(r)
        return [i for _, i, row in inside if satisfies(row, predicate)]


ROW = st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from("ab"), st.integers(0, 12))
STEP = st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=6)),
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=6)),
    st.tuples(st.just("many"), st.integers(0, 20)),
    st.tuples(st.just("delete"), st.integers(0, 3)),
    st.tuples(st.just("advance"), st.integers(0, 25)),
    st.tuples(st.sampled_from(["flush", "compact", "truncate"]), st.just(0)),
    st.tuples(st.just("read"), st.integers(-3, 30)),
)
BUDGETS = st.sampled_from([NOTHING, 3_000, hot.BUDGET])


def many(start: int) -> list[tuple[int | None, str | None, int]]:
    """Enough rows for several blocks, a little out of order."""
    return [(None if i % 7 == 0 else i % 4, "abc"[i % 3], start + i // 4 - i % 3) for i in range(40)]


def apply(lake: Lake, table: TableInfo, model: Model, step: str, what: Any) -> None:
    """One step on the table and on the model."""
    if step in ("insert", "many"):
        rows = what if step == "insert" else many(what)
        insert(lake, table, rows)
        for row in rows:
            model.add(*row)
    elif step == "delete":
        delete(lake, table, "k", what)
        model.rows = [(i, r) for i, r in model.rows if r["k"] != what]
    elif step == "truncate":
        transaction = lake.transaction()
        transaction.clear(table)
        transaction.commit()
        model.rows = []
    elif step == "advance":
        advance(lake, table, what)
        model.advanced = what if model.advanced is None else max(what, model.advanced)
    elif step == "flush":
        upkeep.flush(lake)
    elif step == "compact":
        upkeep.compact(lake)


@RANDOM
@given(st.lists(STEP, min_size=4, max_size=9), BUDGETS, st.sampled_from([0, 3]), st.sampled_from([None, 6]))
def test_every_window_read_by_every_scan_is_what_the_definition_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], budget: int, delay: int, period: int | None
) -> None:
    lake = Lake(tmp_path_factory.mktemp("pull") / "database", ManualClock())
    table = streaming_table(lake, delay=delay, period=period)
    model = Model(delay, period)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "MOST_SMALL_FILES", 2)
        patch.setattr(hot, "BLOCK_ROWS", 16)
        patch.setattr(inline, "MOST_ROWS", 4)
        apply(lake, table, model, *(steps[0] if steps else ("flush", 0)))
        access = Access(lake, budget=budget)
        scans = [("seq", PREDICATES[0]), ("seq", PREDICATES[2]), *(("index", p) for p in PREDICATES[1:])]
        calls = {f"{w}{p}{s}": (w, p, s) for w in WINDOWS for s, p in scans}
        for name, (window, predicate, scan) in calls.items():
            if scan == "seq":
                access.seq_scan(name, table, window, predicate)
            else:
                access.index_scan(name, table, window, "K", predicate)
        for place, (step, what) in enumerate([*steps[1:], ("read", 9)]):
            apply(lake, table, model, step, what)
            times = (None, what) if step == "read" else (None,)
            for name, (window, predicate, _) in list(calls.items())[:: 1 if step == "read" else 3 + place % 2]:
                for at_time in times:
                    tau = model.watermark if at_time is None else at_time
                    expected = [] if tau is None else model.window(window, tau, predicate)
                    check(access.resume(name, at_time), model, tau, expected)
    lake.close()


def check(found: Contents, model: Model, tau: int | None, expected: list[int]) -> None:
    by_id = dict(model.rows)
    assert (found.instant, found.row_ids.tolist()) == (tau, expected), found.call_id
    assert found.rows.to_pylist() == [by_id[i] for i in expected]
    assert found.position == model.next_id


@dataclass
class Expected:
    """What a pushed call must deliver, instant by instant, each answered at once when it is due."""

    model: Model
    window: Window
    predicate: Predicate
    sample: Sample
    delivered: list[tuple[int, list[int]]] = field(default_factory=list)
    pending: set[int] = field(default_factory=set)
    next: int | None = None
    group: list[int] = field(default_factory=list)
    registered: int | None = None

    def __post_init__(self) -> None:
        self.registered = self.model.watermark
        stored = [row["t"] for _, row in self.model.rows]
        if self.sample == REALTIME and self.registered is not None:
            self.pending = {t for t in stored if t > self.registered}
        if stored:
            self.begin(stored[0])

    def begin(self, first: int) -> None:
        if isinstance(self.sample, SampleInterval) and self.next is None:
            step = self.sample.step
            least = first if self.registered is None else max(first, self.registered + 1)
            self.next = next(n for n in range(least, least + step) if n % step == 0)

    def answer(self, tau: int) -> None:
        self.delivered.append((tau, self.model.window(self.window, tau, self.predicate)))

    def came(self, time: int, accepted: bool) -> None:
        self.begin(time)
        if accepted and self.sample == REALTIME:
            self.pending.add(time)
        if accepted and isinstance(self.sample, SampleRows):
            self.group.append(time)
            if len(self.group) == self.sample.count:
                self.answer(max(self.group))
                self.group = []
        self.time_passed()

    def time_passed(self) -> None:
        mark = self.model.watermark
        if mark is None:
            return
        for tau in sorted(t for t in self.pending if t < mark):
            self.pending.discard(tau)
            self.answer(tau)
        while self.next is not None and self.next < mark and isinstance(self.sample, SampleInterval):
            self.answer(self.next)
            self.next += self.sample.step


SAMPLES = (SampleInterval(3), SampleRows(2), SampleRows(7), REALTIME)
PUSHED = [
    (window, predicate, sample)
    for window in (TimeWindow(4), RowsWindow(5), PartitionWindow(("k",), 2))
    for predicate in (PREDICATES[0], PREDICATES[2])
    for sample in SAMPLES
]
PUSH = st.tuples(st.just("push"), st.just(0))
PUSH_STEP = st.one_of(STEP, STEP, PUSH)


@RANDOM
@given(st.lists(PUSH_STEP, min_size=4, max_size=9), BUDGETS, st.sampled_from([0, 3]), st.sampled_from([None, 6]))
def test_every_instant_is_delivered_once_in_order_however_late_it_is_asked_for(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], budget: int, delay: int, period: int | None
) -> None:
    lake = Lake(tmp_path_factory.mktemp("push") / "database", ManualClock())
    table = streaming_table(lake, delay=delay, period=period)
    model = Model(delay, period)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "MOST_SMALL_FILES", 2)
        patch.setattr(hot, "BLOCK_ROWS", 16)
        patch.setattr(inline, "MOST_ROWS", 4)
        apply(lake, table, model, *(steps[0] if steps and steps[0][0] != "delete" else ("flush", 0)))
        access = Access(lake, budget=budget)
        found: dict[str, list[Contents]] = {}
        expected: dict[str, Expected] = {}
        for i, (window, predicate, sample) in enumerate(PUSHED):
            name = f"{i} {window} {sample}"
            found[name] = []
            expected[name] = Expected(model, window, predicate, sample)
            if i % 2:
                access.seq_scan(name, table, window, predicate, sample, found[name].append)
            else:
                access.index_scan(name, table, window, "k", predicate, sample, found[name].append)
        for step, what in [*steps[1:], ("push", 0)]:
            push_step(lake, table, model, access, list(expected.values()), step, what)
    for name, wanted in expected.items():
        delivered = [(c.instant, c.row_ids.tolist()) for c in found[name]]
        assert delivered == wanted.delivered, name
        assert [c.sequence for c in found[name]] == list(range(1, len(delivered) + 1))
    lake.close()


def push_step(
    lake: Lake, table: TableInfo, model: Model, access: Access, expected: list[Expected], step: str, what: Any
) -> None:
    if step in ("insert", "many"):
        rows = what if step == "insert" else many(what)
        insert(lake, table, rows)
        for row in rows:
            accepted = model.add(*row)
            for call in expected:
                call.came(row[-1], accepted)
        return
    if step in ("push", "delete", "truncate"):
        access.push_due()
    if step == "advance":
        access.settle(table.id)
    apply(lake, table, model, step, what)
    for call in expected:
        call.time_passed()
