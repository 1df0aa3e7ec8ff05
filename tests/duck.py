"""DuckDB as the reader that is not ours: attaches a database's catalogue and reads its rows.

The extensions come from their PyPI packages, so nothing is downloaded. Everything is read-only. Rows are
compared in a canonical form in which NaN equals NaN and -0.0 differs from 0.0.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import duckdb_extension_ducklake
import duckdb_extension_sqlite_scanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

Rows = dict[int, tuple[Any, ...]]


def _load(connection: duckdb.DuckDBPyConnection, package: Any) -> None:
    folder = Path(package.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    for extension in folder.glob("*.duckdb_extension"):
        connection.execute(f"LOAD '{extension}'")


_idle: list[duckdb.DuckDBPyConnection] = []


def _connection() -> duckdb.DuckDBPyConnection:
    if _idle:
        return _idle.pop()
    connection = duckdb.connect(":memory:")
    for package in (duckdb_extension_sqlite_scanner, duckdb_extension_ducklake):
        _load(connection, package)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET threads = 1")
    return connection


@contextmanager
def attached(database: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection in which `lake` is the database in that directory."""
    connection = _connection()
    catalog = str(database / "catalog.sqlite").replace("'", "''")
    try:
        connection.execute(f"ATTACH 'ducklake:sqlite:{catalog}' AS lake (READ_ONLY)")
        yield connection
        connection.execute("DETACH lake")
    except BaseException:
        connection.close()
        raise
    _idle.append(connection)


def source(table: str, version: int | None = None) -> str:
    """The table in a FROM clause, at a snapshot if one is given."""
    name = 'lake."' + table.replace('"', '""') + '"'
    return name if version is None else f"{name} AT (VERSION => {version})"


def rows(connection: duckdb.DuckDBPyConnection, table: str, version: int | None = None) -> Rows:
    """Row id → canonical values; two rows with one id are an error."""
    found = connection.execute(f"SELECT rowid AS row_id, * FROM {source(table, version)}").to_arrow_table()
    return by_id(found.column(0).to_pylist(), found.remove_column(0))


def types(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    """Column name → DuckDB's type."""
    return {row[0]: row[1] for row in connection.execute(f"DESCRIBE {source(table)}").fetchall()}


def by_id(ids: list[int], data: pa.Table) -> Rows:
    """Row id → canonical values."""
    columns = [[canonical(v) for v in data.column(i).to_pylist()] for i in range(data.num_columns)]
    values = list(zip(*columns, strict=True))
    assert len(set(ids)) == len(ids), "a row id occurs twice"
    return dict(zip(ids, values, strict=True))


def canonical(value: Any) -> Any:
    """A value that can be compared and hashed: floats by their text, nested values as tuples."""
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, dict):
        return tuple((key, canonical(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(canonical(item) for item in value)
    return value


def canonical_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(canonical(value) for value in row.values())
