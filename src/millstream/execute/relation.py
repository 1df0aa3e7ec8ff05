"""A scan → a Spark data frame under a temporary name.

Rows of a streaming table that are older than its period are left out here.

Files are read as they are; inlined rows are handed over as one more Parquet file, written to the
scratch folder (reading Parquet beats `createDataFrame`, see design §5). Equal scans share one
relation; when the last user lets go of it, its view and scratch file go too.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812
from sqlglot import exp

from millstream.execute.types import spark_schema
from millstream.schema import ROW_ID_COLUMN, quote
from millstream.storage.scan import ROW
from millstream.storage.segment import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from millstream.execute.session import Spark
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan

KEPT = 64
ONE_PARTITION_ROWS = 131_072
"""Up to here rows are read in one partition: a shuffle costs more than a second core gains."""
FILE, POSITION = "__file", "__position"


class Relation:
    """A temporary view over one scan; lives as long as somebody holds it."""

    def __init__(
        self, session: SparkSession, frame: DataFrame, scan: Scan, scratch: Path | None, kept: list[Relation]
    ) -> None:
        self.name = f"ms_{uuid.uuid4().hex}"
        self.scan = scan
        self._kept = kept
        frame.createOrReplaceTempView(self.name)
        self._finalizer = weakref.finalize(self, _forget, session, self.name, scratch)

    def keep(self) -> None:
        """Stay until the database closes, whoever lets go."""
        self._kept.append(self)

    def forget(self) -> None:
        self._finalizer()


def _forget(session: SparkSession, name: str, scratch: Path | None) -> None:
    if scratch is not None:
        scratch.unlink(missing_ok=True)
    try:
        session.catalog.dropTempView(name)
    except Exception:
        # Spark may be gone already, at exit; then so is the view.
        return


class Relations:
    """Makes relations, and keeps the most recently used ones."""

    def __init__(self, spark: Spark, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._recent: OrderedDict[tuple[object, ...], Relation] = OrderedDict()
        self._kept: list[Relation] = []
        self._lock = threading.Lock()

    def of(self, scan: Scan) -> Relation:
        """The relation of a scan, shared with equal scans."""
        key = identity(scan)
        with self._lock:
            known = self._recent.get(key)
            if known is not None:
                self._recent.move_to_end(key)
                return known
        made = self._make(scan)
        with self._lock:
            self._recent[key] = made
            while len(self._recent) > KEPT:
                self._recent.popitem(last=False)
        return made

    def with_positions(self, scan: Scan) -> Relation:
        """A relation whose rows also tell their file, their position in it and their stored row id."""
        session = self._spark.session()
        schema = spark_schema(scan.table.schema.arrow.append(pa.field(ROW_ID_COLUMN, pa.int64())))
        paths = self._paths(scan)
        frame = _read(session, schema, paths)
        frame = frame.select(
            "*", F.col("_metadata.file_name").alias(FILE), F.col("_metadata.row_index").alias(POSITION)
        )
        return Relation(session, frame, scan, None, self._kept)

    def _make(self, scan: Scan) -> Relation:
        if scan.since is not None:
            return self._new_rows(scan, scan.since)
        session = self._spark.session()
        paths = self._paths(scan)
        scratch = None
        if scan.inlined is not None or not paths:
            scratch = self.write_scratch(scan.inlined or scan.table.schema.arrow.empty_table())
            paths.append(str(scratch))
        frame = _read(session, spark_schema(scan.table.schema.arrow), paths)
        if scan.needs_horizon and scan.table.time is not None:
            frame = frame.where(visible(scan))
        if scan.rows_to_read <= ONE_PARTITION_ROWS:
            frame = frame.coalesce(1)
        return Relation(session, frame, scan, scratch, self._kept)

    def _new_rows(self, scan: Scan, since: int) -> Relation:
        """The rows of a stream from number `since` on, each with its number."""
        session = self._spark.session()
        schema = scan.table.schema.arrow.append(pa.field(ROW_ID_COLUMN, pa.int64()))
        starts = {f.path.rpartition("/")[2]: f.row_id_start for f in scan.files}
        paths, scratch = self._paths(scan), None
        if scan.inlined is not None or not paths:
            rows = scan.inlined if scan.inlined is not None else scan.table.schema.arrow.empty_table()
            ids = scan.inlined_ids if scan.inlined_ids is not None else pa.array([], pa.int64())
            scratch = self.write_scratch(rows.append_column(ROW_ID_COLUMN, ids))
            paths.append(str(scratch))
            starts[scratch.name] = 0
        frame = _read(session, spark_schema(schema), paths)
        # As a text, since to build an expression takes a call to Java for each of its parts.
        listed = ", ".join(f"{exp.Literal.string(name).sql('spark')}, {start}L" for name, start in starts.items())
        first = F.expr(f"element_at(map({listed}), {FILE})")
        number = F.coalesce(F.col(ROW_ID_COLUMN), first + F.col(POSITION))
        frame = frame.select(
            "*", F.col("_metadata.file_name").alias(FILE), F.col("_metadata.row_index").alias(POSITION)
        ).select(*(F.col(quote(n)) for n in scan.table.schema.names), number.alias(ROW))
        if scan.needs_horizon and scan.table.time is not None:
            frame = frame.where(visible(scan))
        if any(f.row_id_start < since for f in scan.files):
            frame = frame.where(F.col(ROW) >= since)
        if scan.rows <= ONE_PARTITION_ROWS:
            frame = frame.coalesce(1)
        return Relation(session, frame, scan, scratch, self._kept)

    def _paths(self, scan: Scan) -> list[str]:
        return [str(self._lake.path_of(scan, f)) for f in scan.files]

    def write_scratch(self, rows: pa.Table) -> Path:
        """The rows as a Parquet file that is there until the database closes, or who asked for it deletes it."""
        path = self._lake.scratch / f"{uuid.uuid4()}.parquet"
        with storage_errors():
            pq.write_table(rows, path, write_statistics=False, use_dictionary=False)
        return path

    def close(self) -> None:
        with self._lock:
            for relation in (*self._recent.values(), *self._kept):
                relation.forget()
            self._recent.clear()
            self._kept.clear()


def _read(session: SparkSession, schema: StructType, paths: list[str]) -> DataFrame:
    """Skipping by dictionaries is off: to look a range up, Spark builds a set of every dictionary."""
    return session.read.schema(schema).option("parquet.filter.dictionary.enabled", "false").parquet(*paths)


def identity(scan: Scan) -> tuple[object, ...]:
    """What two scans of the same rows have in common."""
    ids = scan.inlined_ids
    inlined: object = scan.token
    if ids is not None:
        # Staged rows of a transaction have no ids yet, so nothing may be shared with them.
        inlined = uuid.uuid4() if ids[-1].as_py() < 0 else (ids[0].as_py(), ids[-1].as_py(), len(ids))
    horizon = scan.horizon if scan.needs_horizon else None
    paths = (scan.choices[f.id].copy.path if f.id in scan.choices else f.path for f in scan.files)
    return (scan.table.path, scan.table.schema_version, inlined, horizon, scan.since, *paths)


def visible(scan: Scan) -> str:
    """The predicate, for Spark, that leaves out what is beyond a streaming table's period."""
    time = scan.table.time
    assert time is not None
    oldest = f"{scan.horizon}L" if time.delay.is_number else f"timestamp_micros({scan.horizon}L)"
    return f"{quote(time.column)} >= {oldest}"
