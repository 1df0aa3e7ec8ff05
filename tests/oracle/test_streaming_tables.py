"""Streaming tables with indices, columns and retention give the rows that their model gives, whatever happens."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis.stateful import run_state_machine_as_test

from millstream import sql
from millstream.catalog.records import DataFile, TableInfo
from millstream.storage import prune, segment
from millstream.storage.reader import Reader
from tests.oracle.effort import effort
from tests.oracle.machine import Held, Machine, shrink_the_world
from tests.oracle.model import NAME, TIME, Predicate, Row, frozen
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from pyspark.sql import SparkSession

    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan


class WithoutSpark(Machine):
    """Scans are planned by Millstream and read with Arrow: a row group that cannot match is not read."""

    most_asked = 3

    def __init__(self) -> None:
        super().__init__()
        self.files = Files()

    def plan(self, predicate: Predicate) -> Scan:
        statement: Any = sql.parse_one(f"SELECT * FROM {NAME} WHERE {predicate.text()}")
        bound = self.db._engine.bound(statement.query, statement, {})
        return bound.tables[0].scan

    def answer(self, scan: Scan, predicate: Predicate) -> Counter[Row]:
        return Counter(frozen(row) for row in self.visible(scan) if predicate.holds(self.named(scan, row)))

    def named(self, scan: Scan, row: Row) -> dict[str, Any]:
        return dict(zip(scan.table.schema.names, row, strict=True))

    def visible(self, scan: Scan) -> list[Row]:
        rows = self.files.read(self.db._lake, scan)
        return [r for r in rows if not scan.needs_horizon or self.named(scan, r)[TIME] >= scan.horizon]

    def ask(self, predicates: list[Predicate]) -> list[list[Counter[Row]]]:
        chooser = self.db._lake.chooser
        with_indices = [self.answer(self.plan(p), p) for p in predicates]
        chooser.enabled = False
        without = [self.answer(self.plan(p), p) for p in predicates]
        chooser.enabled = True
        return [with_indices, without]

    def start(self, predicate: Predicate) -> Scan:
        return self.plan(predicate)

    def finish(self, held: Held) -> Counter[Row]:
        return self.answer(held.handle, held.predicate)

    def change(self, predicate: Predicate, column: str, value: Any) -> int:
        return self.rewrite(predicate, lambda row: row | {column: value})

    def remove(self, predicate: Predicate) -> int:
        return self.rewrite(predicate, lambda _: None)

    def rewrite(self, predicate: Predicate, new: Callable[[dict[str, Any]], dict[str, Any] | None]) -> int:
        """What UPDATE and DELETE do, with Arrow in Spark's place."""
        lake, table = self.db._lake, stored.table_of(self.db._lake, NAME)
        comparisons = self.plan(predicate).comparisons
        transaction = lake.transaction()
        transaction.materialise(table)
        scan = transaction.scan(table, comparisons, Reader(lake, transaction).horizon(table))
        gone, survivors, count = [], [], 0
        for file in scan.files:
            data, ids = segment.read(lake.folder(table), table, file)
            rows = data.to_pylist()
            hit = [self.is_hit(scan, predicate, row) for row in rows]
            if not any(hit):
                continue
            gone.append(file)
            count += sum(hit)
            kept = [
                (i, changed)
                for i, row, is_hit in zip(ids.to_pylist(), rows, hit, strict=True)
                if (changed := new(row) if is_hit else row) is not None
            ]
            if kept:
                survivors.append(write(lake, table, kept))
        transaction.replace(table, gone, survivors)
        transaction.commit()
        return count

    def is_hit(self, scan: Scan, predicate: Predicate, row: dict[str, Any]) -> bool:
        return predicate.holds(row) and (not scan.needs_horizon or row[TIME] >= scan.horizon)


def write(lake: Lake, table: TableInfo, rows: list[tuple[int, dict[str, Any]]]) -> Any:
    data = pa.Table.from_pylist([row for _, row in rows], schema=table.schema.arrow)
    return segment.write(lake.folder(table), table, data, pa.array([i for i, _ in rows], pa.int64()))


class Files:
    """Files read before: they never change, so that reading one again would only cost time."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[Row]] = {}

    def read(self, lake: Lake, scan: Scan) -> list[Row]:
        """The rows that a reader gets who trusts the catalogue about the row groups of index copies."""
        rows = [row for file in scan.files for row in self._of_file(lake, scan, file)]
        return rows + (tuples(scan.table, scan.inlined) if scan.inlined is not None else [])

    def _of_file(self, lake: Lake, scan: Scan, file: DataFile) -> list[Row]:
        groups = matching(scan, file) if file.id in scan.choices else None
        path = lake.path_of(scan, file)
        key = (path, scan.table.schema_version, groups)
        assert path.exists(), f"{path.name} was deleted under a reader"
        if key not in self._known:
            with pq.ParquetFile(path) as parquet:
                data = parquet.read() if groups is None else parquet.read_row_groups(groups)
            self._known[key] = tuples(scan.table, segment.completed(scan.table.schema.arrow, data))
        return self._known[key]


def matching(scan: Scan, file: DataFile) -> tuple[int, ...]:
    """The row groups of the copy chosen for a file that can match."""
    choice = scan.choices[file.id]
    name = scan.table.column(choice.index.column_id).name
    wanted = [c for c in scan.comparisons if c.column == name]
    groups = choice.copy.groups
    found = tuple(i for i, g in enumerate(groups) if all(prune.can_match(g.stats, c) for c in wanted))
    assert len(found) <= len(choice.groups)
    assert choice.rows or not found, "rows is an estimate, but zero means none"
    return found


def tuples(table: TableInfo, data: pa.Table) -> list[Row]:
    return list(zip(*(data.column(n).to_pylist() for n in table.schema.names), strict=True))


class WithSpark(Machine):
    """All predicates in one query, with indices and with `SET use_indexes = off`; UPDATE and DELETE as SQL."""

    most_asked = 3

    def ask(self, predicates: list[Predicate]) -> list[list[Counter[Row]]]:
        parts = [
            f"SELECT {i} AS asked, * FROM {NAME} WHERE {predicate.text()}"
            for i, predicate in enumerate(predicates)
        ]
        query = " UNION ALL ".join(parts)
        found = [self.answers(query, len(predicates))]
        if self.db._lake.catalog.indexes():
            self.db.sql("SET use_indexes = off")
            found.append(self.answers(query, len(predicates)))
            self.db.sql("SET use_indexes = on")
        return found

    def answers(self, query: str, count: int) -> list[Counter[Row]]:
        answers: list[Counter[Row]] = [Counter() for _ in range(count)]
        for asked, *row in self.db.sql(query).fetchall():
            answers[asked][frozen(tuple(row))] += 1
        return answers

    def start(self, predicate: Predicate) -> Any:
        return self.db.sql(f"SELECT * FROM {NAME} WHERE {predicate.text()}")

    def finish(self, held: Held) -> Counter[Row]:
        return Counter(map(frozen, held.handle.fetchall()))

    def change(self, predicate: Predicate, column: str, value: Any) -> int:
        done = self.db.sql(f"UPDATE {NAME} SET {column} = :value WHERE {predicate.text()}", value=value)
        return done.row_count or 0

    def remove(self, predicate: Predicate) -> int:
        return self.db.sql(f"DELETE FROM {NAME} WHERE {predicate.text()}").row_count or 0


def test_scans_find_what_the_model_finds_whatever_happened_before(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_the_world(monkeypatch)
    run_state_machine_as_test(WithoutSpark, settings=effort(examples=18, steps=25))


def test_queries_find_what_the_model_finds_whatever_happened_before(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    shrink_the_world(monkeypatch)
    monkeypatch.setattr(WithSpark, "spark", spark)
    run_state_machine_as_test(WithSpark, settings=effort(examples=4, steps=10))
