"""Every type, every hard value, in every state of storage: DuckDB reads what was inserted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.catalog import types
from millstream.storage import inline, upkeep
from tests import duck
from tests.interop.values import CASES, FLOAT_EXTREMES, SCALARS, Case
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.database import Database

OPERATORS = (("<", "=", ">"), ("<=", "<>", ">="))


def batches_of(case: Case) -> list[list[tuple[int, Any]]]:
    """Rows in several inserts: each value alone, all of them, nulls alone and mixed in."""
    alone = [[value] for value in case.values]
    every = [[None, *case.values, None], list(reversed(case.values)), [None], [None, None]]
    numbered: list[list[tuple[int, Any]]] = []
    first = 0
    for values in [*alone, *every]:
        numbered.append([(first + i, value) for i, value in enumerate(values)])
        first += len(values)
    return numbered


def create(db: Database, case: Case) -> None:
    db.sql(f"CREATE TABLE t (id BIGINT, v {case.sql})")


def expected_of(db: Database, batches: list[list[tuple[int, Any]]]) -> pa.Table:
    schema = stored.table_of(db._lake, "t").schema.arrow
    rows = [row for batch in batches for row in batch]
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)], schema=schema
    )


def assert_same(db: Database, expected: pa.Table, case: Case, turn: int) -> None:
    """Millstream's rows, DuckDB's rows, types, aggregates and filters against what was inserted.

    Each turn tries half of the operators on each value; two turns try them all.
    """
    wanted = duck.by_id(expected.column(0).to_pylist(), expected)
    assert stored.rows(db._lake, "t") == wanted
    stored.check(db._lake)
    with duck.attached(db.path) as reader:
        assert duck.rows(reader, "t") == wanted
        assert duck.types(reader, "t") == {"id": "BIGINT", "v": case.duck}
        reader.keep("expected", expected)
        assert_aggregates(reader, case)
        if case.ordered:
            assert_filters(reader, case, turn)


def assert_aggregates(reader: duck.Duck, case: Case) -> None:
    bounds = "SELECT count(*), count(v)" + (", min(v), max(v)" if case.ordered else "")
    for asked in (
        f"{bounds} FROM {{}}",
        "SELECT id FROM {} WHERE v IS NULL",
        "SELECT id FROM {} WHERE v IS NOT NULL",
    ):
        found = [reader.ask(asked.format(x)) for x in ("lake.t", "expected")]
        assert sorted(found[0]) == sorted(found[1]), asked


def assert_filters(reader: duck.Duck, case: Case, turn: int) -> None:
    """The same constants against the lake, where statistics prune, and against bare rows."""
    reader.ask("BEGIN")
    for i, value in enumerate(dict.fromkeys(duck.canonical(v) for v in case.values)):
        literal = value[1] if isinstance(value, tuple) else value
        text = literal if isinstance(literal, bytes) else types.encode(literal)
        if case.sql == "FLOAT" and abs(float(literal)) in FLOAT_EXTREMES:
            continue  # DuckDB does not find these in lakes of its own either
        if isinstance(text, str) and "\0" in text:
            continue  # DuckDB cannot filter a lake by such a constant: it ends its own query text
        operators = OPERATORS[(i + turn) % 2]
        found = [matches(reader, x, case.duck, operators, text) for x in ("lake.t", "expected")]
        assert found[0] == found[1], f"{operators} {literal!r}"
    reader.ask("COMMIT")


def matches(
    reader: duck.Duck, source: str, type_: str, operators: Sequence[str], text: str | bytes | None
) -> list[Any]:
    parts = [f"SELECT '{o}' AS test, id FROM {source} WHERE v {o} CAST($1 AS {type_})" for o in operators]
    return sorted(reader.ask(" UNION ALL ".join(parts), [text]))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_duckdb_reads_every_value_inlined_then_flushed_then_beside_new_rows(plain: Database, case: Case) -> None:
    create(plain, case)
    batches = batches_of(case)
    for batch in batches:
        plain.insert("t", batch)
    assert_same(plain, expected_of(plain, batches), case, turn=0)

    upkeep.flush(plain._lake)
    assert len(stored.live_files(plain._lake, "t")) > 0
    assert_same(plain, expected_of(plain, batches), case, turn=1)

    first = sum(map(len, batches))
    batches.append([(first + i, value) for i, value in enumerate(case.values)])
    plain.insert("t", batches[-1])
    assert_same(plain, expected_of(plain, batches), case, turn=0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_duckdb_reads_every_value_from_many_files_and_after_their_compaction(
    plain: Database, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "MOST_ROWS", 0)
    create(plain, case)
    batches = (batches_of(case) * 3)[: 2 * upkeep.MOST_SMALL_FILES]
    first = 0
    for i, batch in enumerate(batches):
        batches[i] = [(first + n, value) for n, (_, value) in enumerate(batch)]
        first += len(batch)
        plain.insert("t", batches[i])
    expected = expected_of(plain, batches)
    assert len(stored.live_files(plain._lake, "t")) == len(batches)
    assert_same(plain, expected, case, turn=0)

    assert upkeep.compact(plain._lake) == len(batches)
    assert len(stored.live_files(plain._lake, "t")) == 1
    assert_same(plain, expected, case, turn=1)


def test_inlining_covers_every_scalar_type_and_no_nested_one(plain: Database) -> None:
    for i, case in enumerate(CASES):
        plain.sql(f"CREATE TABLE t{i} (v {case.sql})")
        assert (stored.table_of(plain._lake, f"t{i}").inlined_table is not None) == (case in SCALARS), case.sql
