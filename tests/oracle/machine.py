"""A streaming table under everything that can happen to it, beside its model.

Steps insert in and out of order, move the time, change and delete rows, define indices and columns, set the
period, run any upkeep in any order, hold reads open and reopen the database. After every step random
predicates must find the same rows as in the model. How rows are read and changed is the subclasses' part.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import millstream
from millstream.catalog import streams
from millstream.clock import ManualClock
from millstream.schedule.upkeep import AGE, RETAIN
from millstream.storage import index, inline, retention, segment, upkeep
from millstream.storage.reader import Reader
from tests import duck
from tests.oracle.model import COLUMNS, DOMAINS, NAME, TIME, Conjunct, Model, Predicate, Row, conjuncts, temporal
from tests.recovery import stored

if TYPE_CHECKING:
    import pytest

    from millstream.database import Database

PERIOD, DELAY, JITTER = 100, 10, 150
NEW_COLUMNS = [("x", "INT"), ("z", "STRING"), ("w", "ARRAY<INT>")]
SETTABLE = ("k", "s", "d", "y", TIME)


def shrink_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are enough for files, row groups, pages and index copies."""
    sliced = segment.sliced
    monkeypatch.setattr(segment, "sliced", lambda data, rows=6: sliced(data, rows))
    for module, name, value in (
        (segment, "SEGMENT_ROWS", 6),
        (segment, "ROW_GROUP_ROWS", 3),
        (inline, "MOST_ROWS", 3),
        (index, "LEAST_ROWS", 1),
        (index, "ROW_GROUP_ROWS", 2),
        (index, "PAGE_ROWS", 1),
        (upkeep, "SMALL_ROWS", 6),
        (upkeep, "MOST_SMALL_FILES", 3),
    ):
        monkeypatch.setattr(module, name, value)


@dataclass
class Held:
    """A read that began and has not ended."""

    predicate: Predicate
    snapshot_id: int
    handle: Any
    expected: Counter[Row]


class Machine(RuleBasedStateMachine):
    """See the module's contract."""

    spark: Any = None
    most_asked = 4

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="oracle-"))
        self.clock = ManualClock()
        self.db = self.open()
        self.model = Model(PERIOD, DELAY)
        self.held: list[Held] = []
        self.next = 0
        self.is_quiet = False

    def open(self) -> Database:
        path = self.root / "database"
        return millstream.connect(path, spark=self.spark, clock=self.clock, background=False)

    @initialize()
    def create(self) -> None:
        columns = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
        self.db.sql(
            f"CREATE STREAMING TABLE {NAME} ({columns}) TIMESTAMP BY {TIME}"
            f" WATERMARK INTERVAL {DELAY} RANGE INTERVAL {PERIOD}"
        )
        self.db.sql(f"CREATE INDEX i_k_BTREE ON {NAME} (k)")
        self.db.sql(f"CREATE INDEX i_s_HASH ON {NAME} (s) USING HASH")

    def teardown(self) -> None:
        try:
            self.release_all()
            stored.check(self.db._lake)
        finally:
            self.db.close()
            shutil.rmtree(self.root, ignore_errors=True)

    # What subclasses do their own way

    def ask(self, predicates: list[Predicate]) -> list[list[Counter[Row]]]:
        """For each way of reading the answers to all predicates."""
        raise NotImplementedError

    def start(self, predicate: Predicate) -> Any:
        """Begin a read, to be finished later."""
        raise NotImplementedError

    def finish(self, held: Held) -> Counter[Row]:
        raise NotImplementedError

    def change(self, predicate: Predicate, column: str, value: Any) -> int:
        raise NotImplementedError

    def remove(self, predicate: Predicate) -> int:
        raise NotImplementedError

    # Drawing

    def domain(self, column: str) -> list[Any]:
        if column in ("n", TIME):
            return [self.model.around + i for i in (-101, -100, -50, -9, 0, 7)] + list(range(6))
        return DOMAINS[self.model.columns[column]]

    def a_row(self, data: st.DataObject, time: int) -> Row:
        self.next += 1
        rest = [c for c in self.model.columns if c not in ("n", TIME)]
        return self.next, time, *(data.draw(st.none() | st.sampled_from(self.domain(c))) for c in rest)

    def indexed(self) -> list[str]:
        table = stored.table_of(self.db._lake, NAME)
        return sorted(table.column(i.column_id).name for i in self.db._lake.catalog.indexes().values())

    def a_predicate(self, data: st.DataObject) -> Predicate:
        column = data.draw(st.sampled_from([*self.model.columns, *self.indexed() * 2]))
        parts: list[Conjunct] = [data.draw(conjuncts(column, self.domain(column)))]
        if data.draw(st.booleans()):
            parts.append(data.draw(temporal(self.model.around)))
        return Predicate(tuple(parts))

    # The law

    def check(self, data: st.DataObject) -> None:
        if self.is_quiet:
            return
        asked = [Predicate(()), *(self.a_predicate(data) for _ in range(self.most_asked))]
        expected = [self.model.answer(p) for p in asked]
        for answers in self.ask(asked):
            for predicate, found, wanted in zip(asked, answers, expected, strict=True):
                assert found == wanted, predicate.text()
        self.check_state()

    def check_state(self) -> None:
        lake = self.db._lake
        table = stored.table_of(lake, NAME)
        assert Reader(lake).row_count(table) == sum(map(self.model.is_visible, self.model.rows.values()))
        with lake.catalog.read() as connection:
            state = streams.load(connection, table.id)
        assert (state.late_rows, state.received_rows) == (self.model.late, self.model.received)
        assert state.watermark(DELAY) == self.model.watermark

    # Rows come, time goes on

    @rule(data=st.data(), count=st.integers(1, 3))
    def insert_few(self, data: st.DataObject, count: int) -> None:
        self.insert([self.a_row(data, self.a_time(data)) for _ in range(count)], data)

    @rule(data=st.data(), count=st.integers(4, 14), is_sorted=st.booleans())
    def insert_many(self, data: st.DataObject, count: int, is_sorted: bool) -> None:
        times = [self.a_time(data) for _ in range(count)]
        self.insert([self.a_row(data, t) for t in (sorted(times) if is_sorted else times)], data)

    @rule(data=st.data(), count=st.integers(4, 9))
    def insert_at_the_end(self, data: st.DataObject, count: int) -> None:
        start = self.model.around + DELAY
        self.insert([self.a_row(data, start + 2 * i) for i in range(count)], data)

    def a_time(self, data: st.DataObject) -> int:
        return self.model.around + data.draw(st.integers(-JITTER, 40))

    def insert(self, rows: list[Row], data: st.DataObject) -> None:
        assert self.db.insert(NAME, rows) == len(rows)
        self.model.insert(rows)
        self.check(data)

    @rule(data=st.data(), first=st.integers(1, 6), second=st.integers(1, 6), commits=st.booleans())
    def insert_in_a_transaction(self, data: st.DataObject, first: int, second: int, commits: bool) -> None:
        rows = [self.a_row(data, self.a_time(data)) for _ in range(first + second)]
        self.db.sql("BEGIN")
        self.db.insert(NAME, rows[:first])
        self.db.insert(NAME, rows[first:])
        self.db.sql("COMMIT" if commits else "ROLLBACK")
        if commits:
            self.model.insert(rows)
        self.check(data)

    @rule(data=st.data(), by=st.integers(0, 70))
    def advance(self, data: st.DataObject, by: int) -> None:
        to = self.model.around + by
        self.db.sql(f"ADVANCE {NAME} TO {to}")
        self.model.advanced = to if self.model.advanced is None else max(to, self.model.advanced)
        self.check(data)

    # Rows change

    @rule(data=st.data(), column=st.sampled_from(SETTABLE))
    def update(self, data: st.DataObject, column: str) -> None:
        predicate = self.a_predicate(data)
        value = data.draw(st.sampled_from(self.domain(column)))
        if column != TIME:
            value = data.draw(st.none() | st.just(value))
        assert self.change(predicate, column, value) == self.model.update(predicate, column, value)
        self.check(data)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        predicate = self.a_predicate(data)
        assert self.remove(predicate) == self.model.delete(predicate)
        self.check(data)

    # Definitions

    @rule(data=st.data(), method=st.sampled_from(["BTREE", "HASH"]))
    def create_index(self, data: st.DataObject, method: str) -> None:
        column = data.draw(st.sampled_from([c for c, t in self.model.columns.items() if t != "ARRAY<INT>"]))
        self.db.sql(f"CREATE INDEX IF NOT EXISTS i_{column}_{method} ON {NAME} ({column}) USING {method}")
        self.check(data)

    @precondition(lambda self: self.db._lake.catalog.indexes())
    @rule(data=st.data())
    def drop_index(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.db._lake.catalog.indexes())))
        self.db.sql(f"DROP INDEX {name}")
        self.check(data)

    @precondition(lambda self: len(self.model.columns) < len(COLUMNS) + len(NEW_COLUMNS))
    @rule(data=st.data())
    def add_column(self, data: st.DataObject) -> None:
        name, type_ = NEW_COLUMNS[len(self.model.columns) - len(COLUMNS)]
        self.db.sql(f"ALTER STREAMING TABLE {NAME} ADD COLUMN {name} {type_}")
        self.model.add_column(name, type_)
        self.check(data)

    @rule(data=st.data(), period=st.sampled_from([PERIOD, PERIOD, 7, 30, 173, None]))
    def set_range(self, data: st.DataObject, period: int | None) -> None:
        wanted = "UNBOUNDED" if period is None else f"INTERVAL {period}"
        self.db.sql(f"ALTER STREAMING TABLE {NAME} SET RANGE {wanted}")
        self.model.period = period
        self.check(data)

    # Upkeep, which changes no answer

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        upkeep.flush(self.db._lake)
        self.check(data)

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        upkeep.compact(self.db._lake)
        self.check(data)

    @rule(data=st.data(), most=st.integers(1, 20))
    def build_copies(self, data: st.DataObject, most: int) -> None:
        index.build_some(self.db._lake, most)
        self.check(data)

    @rule(data=st.data())
    def compact_and_build_all_copies(self, data: st.DataObject) -> None:
        upkeep.flush(self.db._lake)
        upkeep.compact(self.db._lake)
        assert index.build_some(self.db._lake, 1_000) == 0
        self.check(data)

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        retention.drop_expired(self.db._lake)
        self.model.retain()
        assert sorted(row[0] for row in stored.rows(self.db._lake, NAME).values()) == sorted(self.model.rows)
        self.check(data)

    @rule(data=st.data())
    def step_the_net(self, data: st.DataObject) -> None:
        assert self.db._net is not None
        fired = self.db._net.run_until_idle()
        assert not [t.failure for t in self.db._net.transitions if t.failure is not None]
        if RETAIN in fired or AGE in fired:
            self.model.retain()
        self.check(data)

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        self.clock.advance(timedelta(hours=1))
        upkeep.expire(self.db._lake, timedelta(minutes=1))
        self.check(data)

    # Reads that take their time, other readers, other processes

    @rule(data=st.data())
    def begin_a_read(self, data: st.DataObject) -> None:
        predicate = self.a_predicate(data)
        snapshot_id = self.db._lake.catalog.current.id
        self.db._lake.catalog.pin(snapshot_id)
        self.held.append(Held(predicate, snapshot_id, self.start(predicate), self.model.answer(predicate)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end_a_read(self, data: st.DataObject) -> None:
        self.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    def release(self, held: Held) -> None:
        found = self.finish(held)
        self.db._lake.catalog.unpin(held.snapshot_id)
        assert found == held.expected, held.predicate.text()

    def release_all(self) -> None:
        while self.held:
            self.release(self.held.pop())

    @rule(data=st.data(), by=st.integers(0, 120))
    def read_while_everything_goes(self, data: st.DataObject, by: int) -> None:
        self.begin_a_read(data)
        self.is_quiet = True
        for step in (self.compact, self.retain, self.expire):
            self.advance(data, by // 3)
            step(data)
        self.is_quiet = False
        self.release(self.held.pop())
        self.retain(data)

    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        self.release_all()
        stored.check(self.db._lake)
        self.db.close()
        self.db = self.open()
        self.check(data)

    @rule(data=st.data())
    def ask_duckdb(self, data: st.DataObject) -> None:
        asked = [Predicate(()), *(self.a_predicate(data) for _ in range(self.most_asked))]
        horizon = self.model.horizon
        names = ", ".join(self.model.columns)
        with duck.attached(self.db.path) as reader:
            for predicate in asked:
                visible = "" if horizon is None else f" AND {TIME} >= {horizon}"
                found = reader.ask(f"SELECT {names} FROM lake.{NAME} WHERE {predicate.foreign()}{visible}")
                assert Counter(found) == self.model.answer(predicate), predicate.foreign()
