"""Types in the catalogue: every nesting comes back as it was, and field ids agree with the catalogue's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.catalog import types
from millstream.clock import ManualClock
from millstream.schema import SCALAR_NAMES
from tests.interop.values import CASES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCALARS = st.sampled_from([*SCALAR_NAMES, pa.decimal128(1, 0), pa.decimal128(38, 38)])
TYPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(SCALARS, inner).map(lambda kv: pa.map_(*kv)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: pa.struct([pa.field(f"f{i}", t) for i, t in enumerate(parts)])
        ),
    ),
    max_leaves=6,
)


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(TYPES)
def test_a_type_is_the_same_after_the_catalogue(type_: pa.DataType) -> None:
    flat = types.flatten("c", type_, 7)
    assert [f.column_id for f in flat] == list(range(7, 7 + len(flat)))
    assert types.unflatten(flat[0], types.by_parent(flat)) == type_


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(TYPES)
def test_parquet_field_ids_are_the_catalogues_column_ids(type_: pa.DataType) -> None:
    numbered = types.with_field_ids(pa.field("c", type_), 7)
    assert numbered.type == type_
    named = dict(_ids(numbered))
    flat = types.flatten("c", type_, 7)
    paths = {f.column_id: _path(f, {x.column_id: x for x in flat}) for f in flat}
    assert {path: i for i, path in paths.items()} == named


def _ids(field: pa.Field, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    path = (*prefix, field.name)
    yield path, int(field.metadata[types.FIELD_ID])
    if pa.types.is_struct(field.type):
        parts = [(f.name, f) for f in field.type]
    elif pa.types.is_map(field.type):
        parts = [("key", field.type.key_field), ("value", field.type.item_field)]
    elif pa.types.is_list(field.type):
        parts = [("element", field.type.value_field)]
    else:
        parts = []
    for name, part in parts:
        yield from _ids(part.with_name(name), path)


def _path(flat: types.FlatColumn, every: dict[int, types.FlatColumn]) -> tuple[str, ...]:
    above = () if flat.parent is None else _path(every[flat.parent], every)
    return (*above, flat.name)


def test_tables_of_every_type_are_the_same_after_reopening(database_path: Path) -> None:
    columns = ", ".join(f"c{i} {case.sql} COMMENT 'n{i}'" for i, case in enumerate(CASES))
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        db.sql(f"CREATE TABLE t (id BIGINT NOT NULL, {columns}) COMMENT 'all of them'")
        db.sql(
            "CREATE STREAM e (ts TIMESTAMP, x INT) TIMESTAMP BY ts WATERMARK INTERVAL '5' SECOND COMMENT 'events'"
        )
        db.sql("CREATE STREAM n (ts BIGINT) TIMESTAMP BY ts WATERMARK INTERVAL 5")
        db.sql("CREATE STREAM arrival (x INT)")
        before = dict(db._lake.catalog.tables())
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        after = dict(db._lake.catalog.tables())
        assert after == before
        shown = [c.sql_type.upper().replace(" ", "") for c in after["t"].schema.columns[1:]]
    assert shown == [case.sql.upper().replace(" ", "") for case in CASES]


@pytest.mark.parametrize("rows", [1, 300])
def test_files_carry_field_ids_and_no_rows_ids_of_their_own_when_these_are_consecutive(
    database_path: Path, rows: int
) -> None:
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        db.sql("CREATE TABLE t (id BIGINT, s STRUCT<a: INT, b: ARRAY<INT>>)")
        db.insert("t", [(i, {"a": i, "b": [i]}) for i in range(rows)])
        (file,) = (database_path / "data").rglob("*.parquet")
        schema = pq.read_schema(file)
    assert schema.names == ["id", "s"]
    assert [i for field in schema for _, i in _ids(field)] == [1, 2, 3, 4, 5]
