"""A query's rows → one CSV, JSON or Parquet file, written by a Spark task.

The file appears whole or not at all: it is written beside its place and then renamed.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from millstream.errors import Condition, DataError, StatementError
from millstream.execute.failures import translated
from millstream.execute.types import stored_type
from millstream.execute.write import numbered
from millstream.schema import is_nested
from millstream.storage.segment import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from millstream.execute.query import Rows
    from millstream.sql.statements import CopyOptions

JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
JSON_LINE = "line"


def copy_to(rows: Rows, path_text: str, options: CopyOptions) -> int:
    """Write the rows to the path; returns how many there were."""
    path = Path(path_text).expanduser().absolute()
    _check_place(path)
    schema = rows.schema()
    frame = rows.frame
    if options.format.value == "CSV":
        _check_flat(schema)
        write = _csv_writer(options)
    elif options.format.value == "JSON":
        frame = frame.select(F.to_json(F.struct("*"), JSON_OPTIONS).alias(JSON_LINE))
        write = _write_json
        schema = pa.schema([(JSON_LINE, pa.string())])
    else:
        write = _write_parquet
        schema = pa.schema([(f.name, stored_type(f)) for f in schema])
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with translated(rows.splice):
            count = _run(frame, schema, temporary, write)
        with storage_errors():
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _check_place(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise DataError(
            Condition.FILE_NOT_WRITABLE,
            f"{str(path)!r} cannot be written",
            detail="It is a directory."
            if path.is_dir()
            else f"There is no writable directory {str(path.parent)!r}.",
            hint="Give the path of a file in a directory that exists.",
        )


def _check_flat(schema: pa.Schema) -> None:
    for field in schema:
        if is_nested(field.type):
            raise StatementError(
                Condition.NOT_SUPPORTED,
                f"CSV cannot hold column {field.name!r}, which is nested",
                hint="Use JSON or Parquet, or convert the column with to_json(…).",
            )


def _run(
    frame: DataFrame,
    schema: pa.Schema,
    path: Path,
    write: Callable[[Path, pa.Schema, Iterator[pa.RecordBatch]], int],
) -> int:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": pa.array([write(path, schema, batches)], pa.int64())})

    counts = numbered(frame.coalesce(1)).mapInArrow(task, "rows BIGINT").toArrow().column(0).to_pylist()
    if not counts:
        write(path, schema, iter(()))
    return sum(counts)


def _csv_writer(options: CopyOptions) -> Callable[[Path, pa.Schema, Iterator[pa.RecordBatch]], int]:
    def write(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
        shown = pa.schema([(f.name, _shown_type(f.type)) for f in schema])
        settings = arrow_csv.WriteOptions(include_header=options.header is not False, delimiter=options.delimiter)
        count = 0
        with arrow_csv.CSVWriter(path, shown, write_options=settings) as writer:
            for batch in batches:
                count += batch.num_rows
                columns = [_shown(c) for c in batch.columns]
                writer.write(pa.RecordBatch.from_arrays(columns, schema=shown))
        return count

    return write


def _shown_type(type_: pa.DataType) -> pa.DataType:
    plain = pa.types.is_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_floating(type_)
    return type_ if plain or pa.types.is_date(type_) else pa.string()


def _shown(column: pa.Array) -> pa.Array:
    if _shown_type(column.type) == column.type:
        return column
    if pa.types.is_binary(column.type):
        return pa.array([None if v is None else v.hex() for v in column.to_pylist()], pa.string())
    if pa.types.is_decimal(column.type):
        return pa.array([None if v is None else format(v, "f") for v in column.to_pylist()], pa.string())
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("us"))
    return pc.cast(column, pa.string())


def _write_json(path: Path, _: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for batch in batches:
            count += batch.num_rows
            file.writelines(f"{line}\n" for line in batch.column(0).to_pylist())
    return count


def _write_parquet(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for batch in batches:
            count += batch.num_rows
            data = pa.Table.from_batches([batch]).rename_columns(schema.names)
            writer.write_table(data.cast(schema))
    return count
