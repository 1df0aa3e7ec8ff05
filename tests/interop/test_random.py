"""Random schemas, rows and upkeep: DuckDB's rows are Millstream's, and both are what was inserted."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.storage import inline, upkeep
from tests import duck
from tests.recovery import stored

if TYPE_CHECKING:
    from millstream.database import Database

Strategy = st.SearchStrategy[Any]
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


def bits(size: int) -> Strategy:
    return st.integers(-(2 ** (size - 1)), 2 ** (size - 1) - 1)


MOMENT = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999).map(
    lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
)
SCALARS: list[tuple[str, Strategy]] = [
    ("BOOLEAN", st.booleans()),
    ("TINYINT", bits(8)),
    ("SMALLINT", bits(16)),
    ("INT", bits(32)),
    ("BIGINT", bits(64)),
    ("FLOAT", st.floats(width=32)),
    ("DOUBLE", st.floats()),
    ("DECIMAL(7,3)", st.integers(-(10**7) + 1, 10**7 - 1).map(lambda i: Decimal(i).scaleb(-3))),
    ("STRING", TEXT),
    ("BINARY", st.binary(max_size=5)),
    ("DATE", st.dates(min_value=date(1, 1, 1))),
    ("TIMESTAMP", MOMENT),
    ("TIMESTAMP_NTZ", MOMENT.map(lambda m: m.replace(tzinfo=None))),
]


def nested(inner: tuple[str, Strategy], shape: int) -> tuple[str, Strategy]:
    name, values = inner
    values = st.none() | values
    if shape == 0:
        return f"ARRAY<{name}>", st.lists(values, max_size=3)
    if shape == 1:
        return f"STRUCT<a: {name}, b: INT>", st.fixed_dictionaries({"a": values, "b": bits(32)})
    keyed = st.dictionaries(st.integers(0, 5), values, max_size=3).map(lambda d: list(d.items()))
    return f"MAP<INT, {name}>", keyed


COLUMN = st.one_of(
    st.sampled_from(SCALARS),
    st.sampled_from(SCALARS),
    st.builds(nested, st.sampled_from(SCALARS), st.integers(0, 2)),
    st.builds(nested, st.builds(nested, st.sampled_from(SCALARS), st.integers(0, 2)), st.integers(0, 2)),
)


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[str], list[Any]]:
    """Column types, and steps: a list of rows to insert, or the name of an upkeep to run."""
    columns = draw(st.lists(COLUMN, min_size=1, max_size=4))
    row = st.tuples(*(st.none() | values for _, values in columns))
    step = st.one_of(st.lists(row, min_size=1, max_size=4), st.sampled_from(["flush", "compact"]))
    return [name for name, _ in columns], draw(st.lists(step, min_size=1, max_size=6))


def run(db: Database, name: str, columns: list[str], steps: list[Any]) -> duck.Rows:
    """Play the story; returns the rows that were inserted, by row id."""
    db.sql(f"CREATE TABLE {name} ({', '.join(f'c{i} {type_}' for i, type_ in enumerate(columns))})")
    schema = stored.table_of(db._lake, name).schema.arrow
    inserted: list[tuple[Any, ...]] = []
    for step in steps:
        if isinstance(step, str):
            {"flush": upkeep.flush, "compact": upkeep.compact}[step](db._lake)
        else:
            db.insert(name, step)
            inserted += step
    arrays = [pa.array([row[i] for row in inserted], field.type) for i, field in enumerate(schema)]
    return duck.by_id(list(range(len(inserted))), pa.table(arrays, schema=schema))


@pytest.mark.parametrize("most_inlined", [0, 2])
def test_random_tables_are_read_alike(plain: Database, monkeypatch: pytest.MonkeyPatch, most_inlined: int) -> None:
    monkeypatch.setattr(inline, "MOST_ROWS", most_inlined)
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 2)
    numbers = iter(range(1_000_000))

    @settings(
        derandomize=True, deadline=None, database=None, max_examples=40, suppress_health_check=list(HealthCheck)
    )
    @given(stories())
    def check(story: tuple[list[str], list[Any]]) -> None:
        name = f"t{next(numbers)}"
        expected = run(plain, name, *story)
        assert stored.rows(plain._lake, name) == expected
        with duck.attached(plain.path) as reader:
            assert duck.rows(reader, name) == expected

    check()
    stored.check(plain._lake)
