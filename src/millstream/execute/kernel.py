"""The kernel: fragments run by DuckDB on Arrow, inside Spark's tasks for streams, in the driver for small states.

Spark schedules, retries and distributes; a task reads baskets, pinned tables and old state from their files, and
writes new state itself: only records of what it wrote pass through the JVM. Tasks share the work of a pass by the
hash of its keys, so that what they write has no group in common. Whatever DuckDB refuses is an error of the
kernel, and the caller falls back on Spark.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.execute.failures import translated
from millstream.execute.write import RECORD, RECORD_SCHEMA, remove_others
from millstream.schema import TIMESTAMP
from millstream.storage import segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from millstream.catalog.records import Segment, TableInfo

PARTIAL = "__partial"
DUCKDB_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMPTZ",
}
MOST_MEMORY = "1GB"


class KernelError(Exception):
    """The kernel could not run a fragment; Spark may."""


@dataclass(frozen=True)
class Old:
    """A piece of a state that is there: the share of one task, or, without a number, of all."""

    path: str
    number: int | None = None


@dataclass(frozen=True)
class Output:
    """A state that a task feeds: the partial's columns that are its own, and how they merge with what is there."""

    target: int
    columns: tuple[str, ...]
    presence: str | None
    table: TableInfo
    folder: Path
    old: tuple[Old, ...] = ()
    merge: str | None = None


@dataclass(frozen=True)
class KernelPass:
    """A pass in DuckDB's words, a text for each of its tasks; None merges what is there, and nothing new."""

    sql: tuple[str | None, ...]
    keys: tuple[str, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Written:
    """A file that a task has written: its target, its record, the task's number, and the process."""

    target: int
    segment: Segment
    task: int
    process: int


@dataclass(frozen=True)
class KernelJob:
    """All that one job does: passes over sources, which are files by name."""

    sources: Mapping[str, tuple[str, ...]]
    passes: tuple[KernelPass, ...]
    tasks: int
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


def run(job: KernelJob, session: Callable[[], SparkSession] | None) -> list[Written]:
    """Run a job in Spark's tasks, or, without a session, here."""
    outcomes: list[Written] = []
    folders = {o.folder for p in job.passes for o in p.outputs}
    try:
        found = list(_outcomes(job, 0)) if session is None else _on_spark(job, session())
        for outcome in found:
            if isinstance(outcome, str):
                raise KernelError(outcome)
            if isinstance(outcome, MillstreamError):
                raise outcome
        outcomes = [o for o in found if isinstance(o, Written)]
    finally:
        kept = {o.segment.path for o in outcomes}
        for folder in folders:
            remove_others(folder, job.token, kept)
    for folder in folders:
        segment.sync_folder(folder)
    return outcomes


def _on_spark(job: KernelJob, session: SparkSession) -> list[Written | MillstreamError | str]:
    with translated():
        frame = session.range(job.tasks, numPartitions=job.tasks)
        records = frame.mapInArrow(_task(job), RECORD).toArrow()
    return [pickle.loads(o) for o in records.column("outcome").to_pylist()]


def _task(job: KernelJob) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for outcome in _outcomes(job, number):
                    row = {"partition": number, "number": 0, "outcome": pickle.dumps(outcome)}
                    yield pa.RecordBatch.from_pylist([row], schema=RECORD_SCHEMA)

    return task


def _outcomes(job: KernelJob, number: int) -> Iterator[Written | MillstreamError | str]:
    """What a task has written; what DuckDB refuses is told as text, and an error of ours arrives whole."""
    import duckdb

    try:
        with connect(job.sources) as connection:
            for made in job.passes:
                if number < len(made.sql):
                    yield from _run_pass(connection, made, number, job.token)
    except (duckdb.Error, pa.ArrowInvalid) as error:
        yield str(error)
    except MillstreamError as error:
        yield error


@contextmanager
def connect(
    sources: Mapping[str, tuple[str, ...]], threads: int = 1, tables: Mapping[str, pa.Table] | None = None
) -> Iterator[Any]:
    """A DuckDB of our own, in which names stand for files or Arrow tables."""
    import duckdb

    held = dict(tables or {})
    limits = {"memory_limit": MOST_MEMORY, "temp_directory": _spill_folder()}
    with duckdb.connect(":memory:", config={"threads": threads, **limits}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for number, name in enumerate({**sources, **held}):
            parts = [f"SELECT * FROM {files(sources[name])}"] if name in sources else []
            if name in held:
                connection.register(f"held_{number}", held[name])
                parts.append(f"SELECT * FROM held_{number}")
            quoted = '"' + name.replace('"', '""') + '"'
            connection.execute(f"CREATE VIEW {quoted} AS {' UNION ALL BY NAME '.join(parts)}")
        yield connection


def _spill_folder() -> str:
    """Where a DuckDB puts what does not fit into its memory, which makes the folder if need be and takes it away.

    By default it is one in the working directory, where two that spill at once crash.
    """
    return str(Path(tempfile.gettempdir()) / f"millstream-kernel-{os.getpid()}-{uuid.uuid4().hex[:12]}")


def failures() -> tuple[type[Exception], ...]:
    """What DuckDB raises."""
    import duckdb

    return (duckdb.Error, pa.ArrowInvalid)


def files(paths: Sequence[str]) -> str:
    """Parquet files as a table of DuckDB's."""
    listed = ", ".join("'" + p.replace("'", "''") + "'" for p in paths)
    return f"read_parquet([{listed}], union_by_name = true)"


def bucket(keys: Sequence[tuple[str, pa.DataType]], number: int, of: int) -> str | None:
    """The test that gives one of so many tasks its share of the groups; hashes go by type as well."""
    if of == 1:
        return None
    hashed = ", ".join(f"CAST({name} AS {DUCKDB_TYPES[type_]})" for name, type_ in keys)
    return f"hash({hashed}) % {of} = {number}"


def _run_pass(connection: Any, made: KernelPass, number: int, token: str) -> Iterator[Written]:
    text = made.sql[number]
    if text is not None:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {PARTIAL} AS {text}")
    for output in made.outputs:
        query = _output_sql(output, made.keys, number, len(made.sql), is_new=text is not None)
        found = connection.execute(query).to_arrow_table()
        if not found.num_rows:
            continue
        data = found.rename_columns(list(output.table.schema.names)).cast(output.table.schema.arrow)
        for part in segment.sliced(data):
            written = segment.write(output.folder, output.table, part, token=token)
            yield Written(output.target, written, number, os.getpid())


def _output_sql(output: Output, keys: Sequence[str], number: int, of: int, *, is_new: bool) -> str:
    names = output.table.schema.names
    parts = []
    if is_new:
        listed = ", ".join(f"{c} AS {n}" for c, n in zip(output.columns, names, strict=True))
        present = f" WHERE {output.presence} > 0" if output.presence else ""
        parts.append(f"SELECT {listed} FROM {PARTIAL}{present}")
    if output.merge is None:
        return parts[0]
    # The hash must be that of the pass, so the keys stand in the order of the pass.
    places = [output.columns.index(k) for k in keys]
    test = bucket([(names[i], output.table.schema.columns[i].type) for i in places], number, of)
    own = [o.path for o in output.old if o.number == number]
    shared = [o.path for o in output.old if o.number is None]
    for paths, where in ((own, None), (shared, test)):
        if paths:
            parts.append(f"SELECT {', '.join(names)} FROM {files(paths)}" + (f" WHERE {where}" if where else ""))
    if not parts:
        parts.append(f"SELECT {', '.join(names)} FROM {files([output.old[0].path])} WHERE false")
    return output.merge.format(rows=f"({' UNION ALL '.join(parts)}) AS m")
