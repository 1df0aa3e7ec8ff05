"""Arrow rows → a durable Parquet file, and back.

A segment is written once, synced, and never changed. It carries DuckLake's field ids; rows whose ids
are not consecutive carry them in a column of their own. A file that no commit names is an orphan, and
nobody reads it. Runs in the driver and inside Spark tasks alike.
"""

from __future__ import annotations

import errno
import os
import struct
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.catalog.records import ColumnStats, DataFile, Segment, TableInfo
from millstream.catalog.store import disk_full
from millstream.catalog.types import FIELD_ID, children, type_name
from millstream.errors import Condition, MachineError
from millstream.schema import ROW_ID_COLUMN
from millstream.storage import statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SEGMENT_ROWS = 1_048_576
ROW_GROUP_ROWS = 262_144
"""Smaller groups write slower, as each has its own dictionaries; larger ones prune less within a file."""
WRITERS = 2
READERS = 4
ROW_ID_FIELD = pa.field(ROW_ID_COLUMN, pa.int64(), metadata={FIELD_ID: b"2147483540"})
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_for_write(path: Path) -> BinaryIO:
    return path.open("wb")


@contextmanager
def storage_errors() -> Iterator[None]:
    """Errors of the file system as ours."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise disk_full(str(error)) from error
        raise MachineError(
            Condition.STORAGE_FAILED,
            "a data file could not be read or written",
            detail=str(error),
            hint="Look at the disk's health and the directory's permissions.",
        ) from error


def write(
    folder: Path, table: TableInfo, data: pa.Table, row_ids: pa.Array | None = None, token: str = "ms"
) -> Segment:
    """Write one segment of `data`, whose columns are the table's, and sync it."""
    path = folder / f"{token}-{uuid.uuid4()}.parquet"
    columns = statistics.of_table(table, data)
    start, body = _with_row_ids(pa.table(data.columns, schema=table.arrow_schema), row_ids)
    with storage_errors():
        try:
            with open_for_write(path) as file:
                pq.write_table(
                    body,
                    file,
                    row_group_size=ROW_GROUP_ROWS,
                    write_statistics=columns_with_bounds(table, columns),
                    use_dictionary=columns_with_dictionary(body.schema),
                    write_page_index=True,
                )
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        size, footer = _sizes(path)
    return Segment(path.name, data.num_rows, size, footer, columns, start)


def columns_with_bounds(table: TableInfo, columns: dict[int, ColumnStats]) -> list[str]:
    """The columns whose bounds the Parquet footer may state.

    Parquet's bounds leave NaN out, yet Spark and DuckDB skip row groups by them as if there were none,
    so a column with NaN states no bounds.
    """
    names = zip(table.column_ids, table.schema.names, strict=True)
    bounded = [name for column_id, name in names if column_id in columns and not columns[column_id].has_nan]
    return [*bounded, ROW_ID_COLUMN]


def columns_with_dictionary(schema: pa.Schema) -> list[str]:
    """Everything but floating numbers: Spark skips by dictionary and would not find -0.0 as 0."""
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    return [path for path, type_ in leaves if not pa.types.is_floating(type_)]


def _leaves(path: str, type_: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The columns of a Parquet file that a (nested) type becomes, by their path in it."""
    infix = {"list": "list.", "map": "key_value."}.get(type_name(type_), "")
    parts = children(type_)
    if not parts:
        yield path, type_
    for name, part in parts:
        yield from _leaves(f"{path}.{infix}{name}", part)


def _with_row_ids(body: pa.Table, row_ids: pa.Array | None) -> tuple[int | None, pa.Table]:
    if row_ids is None:
        return None, body
    bounds = pc.min_max(row_ids)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if high - low + 1 == len(row_ids) and row_ids.equals(consecutive(low, len(row_ids))):
        return low, body
    return low, body.append_column(ROW_ID_FIELD, row_ids)


def consecutive(first: int, count: int) -> pa.Array:
    return pa.array(np.arange(first, first + count))


def _sizes(path: Path) -> tuple[int, int]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - 8)
        return size, struct.unpack("<I", file.read(4))[0]


def sync_folder(folder: Path) -> None:
    """Make the names of new files in a folder durable."""
    with storage_errors():
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_all(folder: Path, table: TableInfo, parts: Iterable[pa.Table]) -> list[Segment]:
    """Write parts of at most `SEGMENT_ROWS` rows as segments, in order, a few at a time."""
    written: list[Segment] = []
    with ThreadPoolExecutor(WRITERS) as pool:
        waiting = []
        try:
            for part in parts:
                waiting.append(pool.submit(write, folder, table, part))
                if len(waiting) > WRITERS:
                    written.append(waiting.pop(0).result())
            while waiting:
                written.append(waiting.pop(0).result())
        except BaseException:
            pool.shutdown()
            written += [f.result() for f in waiting if f.exception() is None]
            remove(folder, written)
            raise
    if written:
        sync_folder(folder)
    return written


def remove(folder: Path, segments: Iterable[Segment]) -> None:
    """Delete segments that will not be committed."""
    for segment in segments:
        (folder / segment.path).unlink(missing_ok=True)


def sliced(data: pa.Table, rows: int = SEGMENT_ROWS) -> Iterator[pa.Table]:
    """The table in parts of at most `rows` rows."""
    for start in range(0, data.num_rows, rows):
        yield data.slice(start, rows)


def regrouped(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    """Batches of any size as tables of `SEGMENT_ROWS` rows (the last one smaller); bounded memory."""
    held: list[pa.Table] = []
    rows = 0
    for batch in batches:
        part = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        held.append(part)
        rows += part.num_rows
        if rows >= SEGMENT_ROWS:
            *full, rest = sliced(pa.concat_tables(held))
            if rest.num_rows == SEGMENT_ROWS:
                full, rest = [*full, rest], rest.slice(0, 0)
            yield from full
            held, rows = [rest], rest.num_rows
    if rows:
        yield pa.concat_tables(held)


def read(
    folder: Path, table: TableInfo, file: DataFile, columns: Sequence[str] | None = None
) -> tuple[pa.Table, pa.Array]:
    """The rows of a file, with some of the table's columns or all, and their row ids."""
    schema = table.schema.arrow
    if columns is None:
        with storage_errors(), pq.ParquetFile(folder / file.path) as opened:
            data = opened.read()
    else:
        schema = pa.schema([schema.field(c) for c in columns])
        data = read_columns(folder, file.path, (*columns, ROW_ID_COLUMN))
    if ROW_ID_COLUMN in data.column_names:
        ids = data.column(ROW_ID_COLUMN).combine_chunks()
    else:
        ids = consecutive(file.row_id_start, file.rows)
    return completed(schema, data, file.rows), ids


def completed(schema: pa.Schema, data: pa.Table, rows: int | None = None) -> pa.Table:
    """A file's rows with the columns of a table; those that came after the file was written are null."""
    present, count = set(data.column_names), data.num_rows if rows is None else rows
    columns = [data.column(f.name).cast(f.type) if f.name in present else pa.nulls(count, f.type) for f in schema]
    return pa.table(columns, schema=schema)


def last_row_id(folder: Path, file: DataFile) -> int:
    """The largest row id of a file, from its footer."""
    with storage_errors():
        footer = pq.read_metadata(folder / file.path)
    if ROW_ID_COLUMN not in footer.schema.names:
        return file.row_id_start + file.rows - 1
    place = footer.schema.names.index(ROW_ID_COLUMN)
    groups = [footer.row_group(i).column(place) for i in range(footer.num_row_groups)]
    return max(int(g.statistics.max) for g in groups)


def read_column(folder: Path, file_name: str, column: str) -> pa.ChunkedArray:
    """One column of a file."""
    return read_columns(folder, file_name, (column,)).column(0)


def read_columns(folder: Path, file_name: str, columns: Sequence[str]) -> pa.Table:
    """Those of some columns that a file has."""
    with storage_errors(), pq.ParquetFile(folder / file_name) as file:
        present = set(file.schema_arrow.names)
        return file.read([c for c in columns if c in present])


def read_columns_of(folder: Path, file_names: Sequence[str], columns: Sequence[str]) -> list[pa.Table]:
    """The same of several files, some of which are read at a time."""
    if len(file_names) < 2:
        return [read_columns(folder, name, columns) for name in file_names]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(partial(read_columns, folder, columns=columns), file_names))
