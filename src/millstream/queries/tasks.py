"""The kernel in Spark's tasks: partial results of large baskets, each task for some of the files.

A task reads its files, marks the rows with when they enter and leave the window, and makes partial results of them
with the kernel; only these come to the driver. Gives None if the kernel cannot run the parts; Spark SQL can.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.execute.failures import translated
from millstream.plan.incremental import stream_name
from millstream.plan.standing import ENTER, LEAVE
from millstream.queries import here
from millstream.storage import segment
from millstream.storage.watermark import times_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from millstream.catalog.records import DataFile, TableInfo
    from millstream.plan.incremental import Part
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan

T = TypeVar("T")
R = TypeVar("R")
MOST_TASKS = 8
RESULT = pa.schema([pa.field("result", pa.binary())])


class Marks(Protocol):
    """Tells of rows what texts ask of them; `ENTER` and `LEAVE` among others."""

    def marks(self, ids: NDArray[np.int64], times: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]]: ...


@dataclass(frozen=True)
class Large:
    """A window's new rows: where they are, what to know of them, and the number that they end below."""

    scan: Scan
    marking: Marks
    below: int

    def rows(self, portion: Portion) -> pa.Table:
        """Those of them that are in a portion, with their marks."""
        rows, ids = portion.read()
        within = (ids >= (self.scan.since or 0)) & (ids < self.below)
        if not within.all():
            rows, ids = rows.filter(pa.array(within)), ids[within]
        return marked(rows, self.marking, ids, portion.table)


@dataclass(frozen=True)
class Portion:
    """What one task reads of a stream: some files, or rows that are in the catalogue."""

    folder: str
    table: TableInfo
    files: tuple[DataFile, ...]
    inlined: tuple[pa.Table, pa.Array] | None

    def read(self, columns: Sequence[str] | None = None) -> tuple[pa.Table, NDArray[np.int64]]:
        """The rows, with some of the columns or all, and their numbers."""
        parts, ids = [], []
        for file in self.files:
            data, own = segment.read(Path(self.folder), self.table, file, columns)
            parts.append(data)
            ids.append(np.asarray(own.to_numpy(zero_copy_only=False), np.int64))
        if self.inlined is not None:
            parts.append(self.inlined[0] if columns is None else self.inlined[0].select(columns))
            ids.append(np.asarray(self.inlined[1].to_numpy(zero_copy_only=False), np.int64))
        return pa.concat_tables(parts), np.concatenate(ids)


@dataclass(frozen=True)
class Share:
    """What one task does: a portion of one stream, for all windows on it."""

    portion: Portion
    windows: tuple[tuple[int, Marks, int, int], ...]
    parts: tuple[Part, ...]
    schemas: tuple[pa.Schema, ...]


def partials(
    lake: Lake,
    session: Callable[[], SparkSession],
    parts: Sequence[Part],
    schemas: Sequence[pa.Schema],
    large: Mapping[int, Large],
) -> list[pa.Table] | None:
    """What parts make of new rows, in one job; None if the kernel cannot."""
    empty = {stream_name(n): marked(_no_rows(x.scan.table), x.marking) for n, x in large.items()}
    if here.partials(parts, schemas, empty) is None:
        return None
    made: list[list[pa.Table]] = [[] for _ in parts]
    for tables in in_tasks(session, _run, _shares(lake, parts, schemas, large)):
        if tables is None:
            return None
        for number, rows in enumerate(tables):
            made[number].append(rows)
    return [pa.concat_tables([s.empty_table(), *m]) for s, m in zip(schemas, made, strict=True)]


def _shares(
    lake: Lake, parts: Sequence[Part], schemas: Sequence[pa.Schema], large: Mapping[int, Large]
) -> list[Share]:
    """The work of all streams, cut into pieces of about the same number of rows."""
    found = []
    for table in {x.scan.table.id: x.scan.table for x in large.values()}.values():
        own = {n: x for n, x in large.items() if x.scan.table.id == table.id}
        scan = next(iter(own.values())).scan
        windows = tuple((n, x.marking, x.scan.since or 0, x.below) for n, x in own.items())
        found += [Share(p, windows, tuple(parts), tuple(schemas)) for p in portions(lake, scan)]
    return found


def portions(lake: Lake, scan: Scan) -> list[Portion]:
    """The rows of a scan, cut into pieces of about the same number."""
    tasks = min(MOST_TASKS, os.cpu_count() or 1, max(1, len(scan.files)))
    loads: list[list[DataFile]] = [[] for _ in range(tasks)]
    for file in sorted(scan.files, key=lambda f: -f.rows):
        min(loads, key=lambda files: sum(f.rows for f in files)).append(file)
    rest = None
    if scan.inlined is not None and scan.inlined_ids is not None:
        rest = (scan.inlined, scan.inlined_ids)
    made = []
    for number, files in enumerate(loads):
        inlined = rest if number == 0 else None
        if files or inlined is not None:
            made.append(Portion(str(lake.folder(scan.table)), scan.table, tuple(files), inlined))
    return made


def in_tasks(session: Callable[[], SparkSession], work: Callable[[T], R], shares: Sequence[T]) -> list[R]:
    """What some work makes of each share, in one job with a task for each."""
    with translated():
        numbers = session().range(0, len(shares), 1, len(shares))
        found = numbers.mapInArrow(partial(_task, work, shares), "result binary").toArrow()
    return [pickle.loads(result) for result in found.column(0).to_pylist()]


def _task(
    work: Callable[[T], R], shares: Sequence[T], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = pickle.dumps(work(shares[number]))
            yield pa.RecordBatch.from_arrays([pa.array([result], pa.binary())], schema=RESULT)


def _run(share: Share) -> list[pa.Table] | None:
    rows, numbers = share.portion.read(_columns(share))
    tables = {}
    for number, marking, since, below in share.windows:
        within = (numbers >= since) & (numbers < below)
        own, known = (rows, numbers) if within.all() else (rows.filter(pa.array(within)), numbers[within])
        tables[stream_name(number)] = marked(own, marking, known, share.portion.table)
    for part in share.parts:
        for stream in part.streams:
            # The other side of a UNION ALL has no rows in this task.
            tables.setdefault(stream_name(stream), next(iter(tables.values())).slice(0, 0))
    return here.partials(share.parts, share.schemas, tables)


def _columns(share: Share) -> list[str]:
    """The columns that somebody asks for, and the time."""
    table, text = share.portion.table, " ".join(p.fragment for p in share.parts).lower()
    time = None if table.time is None else table.time.column
    return [n for n in table.schema.names if n == time or f"`{n.lower()}`" in text]


def _no_rows(table: TableInfo) -> pa.Table:
    return table.schema.arrow.empty_table()


def marked(
    rows: pa.Table, marking: Marks, ids: NDArray[np.int64] | None = None, table: TableInfo | None = None
) -> pa.Table:
    """The rows that are in a window at some instant, with their marks."""
    times = np.empty(0, np.int64)
    if table is not None and table.time is not None:
        times = times_of(rows.column(table.time.column))
    made = with_marks(rows, marking.marks(np.empty(0, np.int64) if ids is None else ids, times))
    return made.filter(pc.greater_equal(made.column(LEAVE), made.column(ENTER)))


def with_marks(rows: pa.Table, marks: Mapping[str, Any]) -> pa.Table:
    """Rows with their marks as columns."""
    for name, values in marks.items():
        rows = rows.append_column(name, pa.array(values, pa.int64()))
    return rows
