"""A data frame → segments, written by Spark's tasks: only their records come back to the driver.

Files carry the job's token; what a failed or repeated attempt left behind is removed when the job is
over, so only what is returned exists.
"""

from __future__ import annotations

import copy
import pickle
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from millstream.errors import MillstreamError
from millstream.execute.failures import NO_SPLICE, Splice, translated
from millstream.execute.relation import FILE, POSITION
from millstream.schema import ROW_ID_COLUMN
from millstream.storage import constraints, segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from millstream.catalog.records import Segment, TableInfo
    from millstream.execute.passes import Pass

EXTRAS = (ROW_ID_COLUMN, FILE, POSITION)
RECORD = "partition INT, number INT, outcome BINARY"
RECORD_SCHEMA = pa.schema([("partition", pa.int32()), ("number", pa.int32()), ("outcome", pa.binary())])


def write_rows(frame: DataFrame, table: TableInfo, folder: Path, splice: Splice = NO_SPLICE) -> list[Segment]:
    """Write a frame whose columns are the table's, in partition order."""
    token = uuid.uuid4().hex[:12]

    def write(part: pa.Table) -> Segment:
        return segment.write(folder, table, part, token=token)

    return _run(frame, table, folder, token, write, splice)


def write_passes(
    frame: DataFrame, passes: Sequence[Pass], targets: Sequence[tuple[TableInfo, Path]], splice: Splice = NO_SPLICE
) -> list[list[Segment]]:
    """Write the rows of all passes, each member's into its own table; gives the segments of each target."""
    token = uuid.uuid4().hex[:12]
    outcomes: list[tuple[int, Segment]] = []
    try:
        with translated(splice):
            records = numbered(frame).mapInArrow(_pass_task(passes, targets, token), RECORD).toArrow()
        found = [pickle.loads(o) for o in records.column("outcome").to_pylist()]
        for outcome in found:
            if isinstance(outcome, MillstreamError):
                raise outcome
        outcomes = found
    finally:
        kept = {s.path for _, s in outcomes}
        for _, folder in targets:
            remove_others(folder, token, kept)
    for _, folder in targets:
        segment.sync_folder(folder)
    return [[s for target, s in outcomes if target == number] for number in range(len(targets))]


def collect_passes(
    frame: DataFrame, passes: Sequence[Pass], tables: Sequence[TableInfo], splice: Splice = NO_SPLICE
) -> dict[int, pa.Table]:
    """Bring the rows of all passes here; gives those of each target that has any, with its table's columns."""
    rows = collect_structures(frame, splice)
    return {target: _as_stored(own, tables[target]) for target, own in split_passes(rows, passes)}


def collect_structures(frame: DataFrame, splice: Splice = NO_SPLICE) -> pa.Table:
    """Bring rows here that have one of several structures each."""
    with translated(splice):
        return frame.to(_nullable(frame.schema)).toArrow()


def _nullable(schema: StructType) -> StructType:
    """The structures of other passes are null, and PySpark takes no null where no column of one could be."""
    made = copy.deepcopy(schema)
    for field in made:
        field.nullable = True
        if isinstance(field.dataType, StructType):
            field.dataType = _nullable(field.dataType)
    return made


def _as_stored(rows: pa.Table, table: TableInfo) -> pa.Table:
    return rows.rename_columns(list(table.schema.names)).cast(table.schema.arrow)


def _pass_task(
    passes: Sequence[Pass], targets: Sequence[tuple[TableInfo, Path]], token: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: dict[int, list[pa.Table]] = {}
        for batch in batches:
            for target, rows in split_passes(pa.Table.from_batches([batch]), passes):
                held.setdefault(target, []).append(rows)
        for target, outcome in _written(held, targets, token):
            row = {"partition": 0, "number": target, "outcome": pickle.dumps(outcome)}
            yield pa.RecordBatch.from_pylist([row], schema=RECORD_SCHEMA)

    return task


def _written(
    held: Mapping[int, Sequence[pa.Table]], targets: Sequence[tuple[TableInfo, Path]], token: str
) -> Iterator[tuple[int, tuple[int, Segment] | MillstreamError]]:
    """The segments of a task's rows; an error of storage is an outcome too, so that it arrives whole."""
    for target, parts in held.items():
        table, folder = targets[target]
        try:
            for part in segment.regrouped(parts):
                yield target, (target, segment.write(folder, table, _as_stored(part, table), token=token))
        except MillstreamError as error:
            yield target, error


def split_passes(rows: pa.Table, passes: Sequence[Pass]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each member of each pass, with the member's own columns."""
    for number, made in enumerate(passes):
        chosen = rows.filter(pa.compute.equal(rows.column(0), number))
        if not chosen.num_rows:
            continue
        columns = chosen.column(number + 1).combine_chunks()
        whole = pa.Table.from_batches([pa.RecordBatch.from_struct_array(columns)])
        for member in made.members:
            own = whole
            if member.presence is not None:
                own = whole.filter(pa.compute.greater(whole.column(member.presence), 0))
            if own.num_rows:
                yield member.target, own.select(list(member.columns))


def rewrite_rows(
    frame: DataFrame,
    table: TableInfo,
    folder: Path,
    first_ids: Mapping[str, int] | None,
    splice: Splice = NO_SPLICE,
) -> list[Segment]:
    """Write rows that existed before, under the row ids they had (none if `first_ids` is None).

    The frame has the table's columns, then the stored row id, the file and the position in it.
    """
    token = uuid.uuid4().hex[:12]
    starts = None if first_ids is None else dict(first_ids)

    def write(part: pa.Table) -> Segment:
        data = part.select(table.schema.names)
        if starts is None:
            return segment.write(folder, table, data, token=token)
        ids = _row_ids(part, starts)
        order = pa.compute.sort_indices(ids)
        return segment.write(folder, table, data.take(order), ids.take(order), token=token)

    return _run(frame, table, folder, token, write, splice)


def _row_ids(part: pa.Table, starts: Mapping[str, int]) -> pa.Array:
    files = part.column(FILE).combine_chunks().dictionary_encode()
    first = pa.array([starts[name] for name in files.dictionary.to_pylist()], pa.int64())
    counted = pa.compute.add(first.take(files.indices), part.column(POSITION).combine_chunks())
    return pa.compute.coalesce(part.column(ROW_ID_COLUMN).combine_chunks(), counted)


def _run(
    frame: DataFrame,
    table: TableInfo,
    folder: Path,
    token: str,
    write: Callable[[pa.Table], Segment],
    splice: Splice,
) -> list[Segment]:
    written: list[Segment] = []
    try:
        with translated(splice):
            records = numbered(frame).mapInArrow(_task(table, write), RECORD).toArrow()
        rows = sorted(records.to_pylist(), key=lambda r: (r["partition"], r["number"]))
        outcomes = [pickle.loads(r["outcome"]) for r in rows]
        for outcome in outcomes:
            if isinstance(outcome, MillstreamError):
                raise outcome
        written = outcomes
    finally:
        remove_others(folder, token, {s.path for s in written})
    if written:
        segment.sync_folder(folder)
    return written


def remove_others(folder: Path, token: str, kept: set[str]) -> None:
    """Delete what a failed or repeated attempt has left behind."""
    for file in folder.glob(f"{token}-*"):
        if file.name not in kept:
            file.unlink(missing_ok=True)


def numbered(frame: DataFrame) -> DataFrame:
    """The frame with numbers for names: `mapInArrow` trips over names with dots and backquotes."""
    return frame.toDF(*[f"_{i}" for i in range(len(frame.columns))])


def _task(
    table: TableInfo, write: Callable[[pa.Table], Segment]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        for number, outcome in enumerate(_outcomes(table, batches, write)):
            row = {"partition": partition, "number": number, "outcome": pickle.dumps(outcome)}
            yield pa.RecordBatch.from_pylist([row], schema=RECORD_SCHEMA)

    return task


def _outcomes(
    table: TableInfo, batches: Iterator[pa.RecordBatch], write: Callable[[pa.Table], Segment]
) -> Iterator[Segment | MillstreamError]:
    """The segments of a task; a row that is refused is an outcome too, so that its error arrives whole."""
    try:
        for part in segment.regrouped(_normal(table, batch) for batch in batches):
            yield write(part)
    except MillstreamError as error:
        yield error


def _normal(table: TableInfo, batch: pa.RecordBatch) -> pa.Table:
    data = pa.Table.from_batches([batch])
    count = len(table.schema.columns)
    own = data.select(range(count)).rename_columns(list(table.schema.names)).cast(table.schema.arrow)
    own = constraints.checked(table, own)
    for i, extra in enumerate(EXTRAS[: data.num_columns - count]):
        own = own.append_column(extra, data.column(count + i))
    return own
