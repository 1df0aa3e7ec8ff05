"""Through Spark: after INSERT, UPDATE and DELETE, DuckDB's rows and answers are those of SELECT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.storage import upkeep
from tests import duck
from tests.interop.values import CASES, SCALARS, Case
from tests.recovery import stored

if TYPE_CHECKING:
    from millstream.database import Database

ROWS = 24
Cases = tuple[Case, ...]


def create(db: Database, cases: Cases) -> None:
    """One table with a column of every type; row i has every column's i-th value, or null."""
    columns = ", ".join(f"c{i} {case.sql}" for i, case in enumerate(cases))
    db.sql(f"CREATE TABLE t (id BIGINT, {columns})")
    schema = stored.table_of(db._lake, "t").schema.arrow
    values: list[list[Any]] = [list(range(ROWS))]
    for case in cases:
        cycle = [*case.values, None]
        values.append([cycle[i % len(cycle)] for i in range(ROWS)])
    arrays = [pa.array(v, f.type) for v, f in zip(values, schema, strict=True)]
    data = pa.table(arrays, schema=schema)
    for start in range(0, ROWS, 8):
        db.insert("t", data.slice(start, 8))


def agree(db: Database) -> None:
    """SELECT, the storage and DuckDB give the same rows."""
    schema = stored.table_of(db._lake, "t").schema.arrow
    selected = db.sql("SELECT * FROM t").to_arrow().cast(schema)
    stored.check(db._lake)
    with duck.attached(db.path) as reader:
        found = duck.rows(reader, "t")
    assert found == stored.rows(db._lake, "t")
    assert {row[0]: row for row in found.values()} == duck.by_id(selected.column("id").to_pylist(), selected)


def agree_on_bounds(db: Database, cases: Cases) -> None:
    names = [f"c{i}" for i, case in enumerate(cases) if case.ordered]
    asked = "SELECT count(*), " + ", ".join(f"count({n}), min({n}), max({n})" for n in names)
    own = db.sql(f"{asked} FROM t").fetchall()
    with duck.attached(db.path) as reader:
        assert reader.ask(f"{asked} FROM lake.t") == [tuple(duck.canonical(v) for v in row) for row in own]


def ids(db: Database) -> dict[int, int]:
    """Row id by the id column."""
    return {row[0]: i for i, row in stored.rows(db._lake, "t").items()}


@pytest.mark.parametrize("cases", [SCALARS, CASES], ids=["inlined", "files"])
def test_updates_and_deletes_of_every_type_are_read_alike_and_keep_row_ids(
    db: Database, monkeypatch: pytest.MonkeyPatch, cases: Cases
) -> None:
    create(db, cases)
    assert (stored.table_of(db._lake, "t").inlined_table is None) == (cases is CASES)
    before = ids(db)
    version = db._lake.catalog.current.id
    old = stored.rows(db._lake, "t")

    db.sql("UPDATE t SET c3 = id, c15 = concat('new ', id) WHERE id % 5 = 0")
    agree(db)
    assert ids(db) == before

    db.sql("DELETE FROM t WHERE id % 3 = 1 OR id < 2")
    agree(db)
    kept = [i for i in range(ROWS) if i % 3 != 1 and i >= 2]
    assert ids(db) == {i: before[i] for i in kept}
    agree_on_bounds(db, cases)

    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 2)
    upkeep.compact(db._lake)
    assert ids(db) == {i: before[i] for i in kept}
    with duck.attached(db.path) as reader:
        assert duck.rows(reader, "t") == stored.rows(db._lake, "t")
        assert duck.rows(reader, "t", version) == old


def test_duckdb_reads_what_sparks_tasks_wrote(db: Database) -> None:
    create(db, CASES)
    names = ", ".join(f"c{i}" for i in range(len(CASES)))
    db.sql(f"CREATE TABLE u AS SELECT id + 100 AS id, {names} FROM t")
    db.sql(f"INSERT INTO t SELECT id, {names} FROM u WHERE id % 2 = 0")
    agree(db)
    assert sorted(ids(db)) == [*range(ROWS), *range(100, 100 + ROWS, 2)]
