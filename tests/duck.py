"""DuckDB as the reader that is not ours: attaches a database's catalogue and reads its rows.

It runs in a process of its own, as a foreign reader would. That is also the only safe way: DuckDB brings
its own SQLite, and two SQLites in one process undo each other's file locks. The extensions come from
their PyPI packages, so nothing is downloaded. Rows are compared in a canonical form in which NaN equals
NaN and -0.0 differs from 0.0.
"""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

Rows = dict[int, tuple[Any, ...]]


class DuckError(Exception):
    """What DuckDB had to say."""


class Duck:
    """A DuckDB process, and questions to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The answer as Python values, in canonical form."""
        return [tuple(canonical(v) for v in row) for row in self._call("rows", sql, list(parameters))]

    def table(self, sql: str) -> pa.Table:
        """The answer as Arrow."""
        return pa.ipc.open_stream(self._call("table", sql, [])).read_all()

    def keep(self, name: str, data: pa.Table) -> None:
        """Make a temporary table of DuckDB's own."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, data.schema) as writer:
            writer.write_table(data)
        self._call("keep", name, sink.getvalue().to_pybytes())

    def _call(self, *message: Any) -> Any:
        self._pipe.send(message)
        kind, answer = self._pipe.recv()
        if kind == "error":
            raise DuckError(answer)
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _connect() -> Any:
    import duckdb
    import duckdb_extension_ducklake
    import duckdb_extension_sqlite_scanner

    connection = duckdb.connect(":memory:")
    for package in (duckdb_extension_sqlite_scanner, duckdb_extension_ducklake):
        folder = Path(package.__file__).parent / "extensions" / f"v{duckdb.__version__}"
        for extension in folder.glob("*.duckdb_extension"):
            connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET threads = 1")
    return connection


def _serve(pipe: Connection) -> None:
    connection = _connect()
    while True:
        try:
            what, text, given = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("answer", _answer(connection, what, text, given)))
        except Exception as error:
            pipe.send(("error", f"{type(error).__name__}: {error}"))


def _answer(connection: Any, what: str, text: str, given: Any) -> Any:
    if what == "rows":
        return connection.execute(text, given).fetchall()
    if what == "table":
        found = connection.execute(text).to_arrow_table()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found)
        return sink.getvalue().to_pybytes()
    connection.register("given", pa.ipc.open_stream(given).read_all())
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {text} AS FROM given")
    return None


_idle: list[Duck] = []


@contextmanager
def attached(database: Path) -> Iterator[Duck]:
    """A DuckDB in which `lake` is the database in that directory."""
    reader = _idle.pop() if _idle else Duck()
    catalog = str(database / "catalog.sqlite").replace("'", "''")
    try:
        reader.ask(f"ATTACH 'ducklake:sqlite:{catalog}' AS lake (READ_ONLY)")
        yield reader
        reader.ask("DETACH lake")
    except BaseException:
        reader.close()
        raise
    _idle.append(reader)


def source(table: str, version: int | None = None) -> str:
    """The table in a FROM clause, at a snapshot if one is given."""
    name = 'lake."' + table.replace('"', '""') + '"'
    return name if version is None else f"{name} AT (VERSION => {version})"


def rows(reader: Duck, table: str, version: int | None = None) -> Rows:
    """Row id → canonical values; two rows with one id are an error."""
    found = reader.table(f"SELECT rowid AS row_id, * FROM {source(table, version)}")
    return by_id(found.column(0).to_pylist(), found.remove_column(0))


def types(reader: Duck, table: str) -> dict[str, str]:
    """Column name → DuckDB's type."""
    return {row[0]: row[1] for row in reader.ask(f"DESCRIBE {source(table)}")}


def by_id(ids: list[int], data: pa.Table) -> Rows:
    """Row id → canonical values."""
    columns = [[canonical(v) for v in data.column(i).to_pylist()] for i in range(data.num_columns)]
    assert len(set(ids)) == len(ids), "a row id occurs twice"
    return dict(zip(ids, zip(*columns, strict=True), strict=True))


def canonical(value: Any) -> Any:
    """A value that can be compared and hashed: floats by their text, nested values as tuples."""
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, dict):
        return tuple((key, canonical(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(canonical(item) for item in value)
    return value
