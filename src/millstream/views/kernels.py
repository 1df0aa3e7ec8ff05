"""Which fragments the kernel runs, and its jobs: parts of views → passes in DuckDB's words over files.

The kernel takes a part if every word and type of it is proven (`execute.translate`); all others go to Spark. A
state that is not much larger than the basket is merged in the same job; larger ones get one more piece, and are
merged when these have come to many.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.execute import kernel, translate
from millstream.execute.passes import columns_of, fuse
from millstream.plan.incremental import in_first_run
from millstream.storage import segment
from millstream.storage.scan import ROW
from millstream.views import merging
from millstream.views.merging import Done

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from millstream.catalog.records import DataFile, TableInfo
    from millstream.execute.passes import Pass
    from millstream.execute.session import Spark
    from millstream.plan.incremental import Part
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan

HERE_ROWS = 16_384
"""Baskets up to this size are not worth a job: the driver runs the kernel itself."""
ONE_TASK_ROWS = 65_536
MOST_TASKS = 8
MOST_ROWS_HERE = 4_194_304
THREADS = 2


@dataclass(frozen=True)
class Share:
    """Which of so many tasks wrote a file, and the keys, in the order in which they were hashed."""

    number: int
    of: int
    keys: tuple[str, ...]


def can_run(part: Part, table: TableInfo, sources: Mapping[str, Scan]) -> bool:
    """Whether the kernel may run a part over these sources."""
    if part.grouping != ", ".join(part.keys) or ROW in part.fragment or not can_merge(part, table):
        return False
    text = in_first_run(part.fragment, False)
    used = [s for n, s in sources.items() if n in text]
    if not all(_is_plain(s, text) for s in used) or translate.to_duckdb(text) is None:
        return False
    return translate.conversions_are_proven(text, _columns(used))


def can_merge(part: Part, table: TableInfo) -> bool:
    """Whether the kernel may merge the state of a part."""
    types = [c.type for c in table.schema.columns]
    if part.prepared or not translate.are_proven(types):
        return False
    if any("double" in t for k, t in part.types if k in part.keys):
        return False
    return translate.to_duckdb(part.merged("m")) is not None


def _columns(scans: Iterable[Scan]) -> frozenset[tuple[str, str]]:
    """The columns of some sources, and of what kind they are."""
    every = (column for scan in scans for column in scan.table.schema.columns)
    return frozenset((column.name.lower(), translate.kind_of(column.type)) for column in every)


def _is_plain(scan: Scan, text: str) -> bool:
    """Whether what a fragment uses of a scan's rows is proven."""
    used = [c.type for c in scan.table.schema.columns if f"`{c.name.lower()}`" in text.lower()]
    return not scan.needs_horizon and translate.are_proven(used)


class Kernels:
    """Runs parts with DuckDB."""

    def __init__(self, lake: Lake, spark: Spark, write_scratch: Callable[[pa.Table], Path]) -> None:
        self._lake = lake
        self._spark = spark
        self._write_scratch = write_scratch
        self.workers: set[int] = set()
        self._shares: dict[str, Share] = {}

    def run(
        self,
        scan: Scan,
        wanted: Sequence[tuple[Part, TableInfo]],
        sources: Mapping[str, Scan],
        pieces: Callable[[TableInfo], list[DataFile]],
    ) -> list[Done]:
        """The partial results of parts over a stream's rows, merged with what is there where that is little."""
        old = [self._to_merge(pieces(t), scan) for _, t in wanted]
        tasks = self._tasks(scan.rows)
        passes = [self._pass(made, wanted, old, tasks) for made in fuse(enumerate(p for p, _ in wanted))]
        text = " ".join(sql for p in passes for sql in p.sql if sql)
        scratch: list[Path] = []
        files = {name: self._paths(s, scratch) for name, s in sources.items() if name in text}
        job = kernel.KernelJob(files, tuple(passes), tasks)
        try:
            outcomes = self._run(job, scan.rows)
        finally:
            for path in scratch:
                path.unlink(missing_ok=True)
        self.workers = {o.process for o in outcomes}
        found = []
        for number, ((_, table), merged) in enumerate(zip(wanted, old, strict=True)):
            new = tuple(o.segment for o in outcomes if o.target == number)
            found.append(Done(new, tuple(merged or ()), merged is not None or not pieces(table)))
        return found

    def merge(self, part: Part, table: TableInfo, pieces: Sequence[DataFile]) -> Done:
        """Make one row a group of what a state has in pieces."""
        rows = sum(f.rows for f in pieces)
        of = self._tasks(rows) if part.keys else 1
        columns = columns_of(part)
        old = self._old(table, pieces, Share(0, of, part.keys))
        output = kernel.Output(0, columns, None, table, self._lake.folder(table), old, _merge(part))
        job = kernel.KernelJob({}, (kernel.KernelPass((None,) * of, part.keys, (output,)),), of)
        return Done(tuple(o.segment for o in self._run(job, rows)), tuple(pieces), is_whole=True)

    def _run(self, job: kernel.KernelJob, rows: int) -> list[kernel.Written]:
        outcomes = kernel.run(job, None if rows <= HERE_ROWS else self._spark.session)
        for made in job.passes:
            for output in made.outputs:
                keys = _hashed(output, made.keys)
                for old in output.old:
                    self._shares.pop(old.path, None)
                for o in (o for o in outcomes if o.target == output.target):
                    self._shares[str(output.folder / o.segment.path)] = Share(o.task, len(made.sql), keys)
        return outcomes

    def _old(self, table: TableInfo, pieces: Sequence[DataFile], wanted: Share) -> tuple[kernel.Old, ...]:
        """Pieces of a state; those that were shared out as they would be now are for one task alone."""
        found = []
        for file in pieces:
            path = str(self._lake.folder(table) / file.path)
            share = self._shares.get(path)
            is_same = share is not None and (share.of, share.keys) == (wanted.of, wanted.keys)
            found.append(kernel.Old(path, share.number if share is not None and is_same else None))
        return tuple(found)

    @staticmethod
    def _to_merge(had: list[DataFile], scan: Scan) -> list[DataFile] | None:
        """The pieces to merge with; None if they are too many rows for this basket."""
        return had if merging.is_worth_it(had, scan.rows) else None

    @staticmethod
    def _tasks(rows: int) -> int:
        return 1 if rows <= ONE_TASK_ROWS else min(MOST_TASKS, os.cpu_count() or 1)

    def _pass(
        self,
        made: Pass,
        wanted: Sequence[tuple[Part, TableInfo]],
        old: Sequence[list[DataFile] | None],
        tasks: int,
    ) -> kernel.KernelPass:
        assert made.keys is not None
        of = tasks if made.keys else 1
        words = translate.to_duckdb(in_first_run(made.where(f"{MARK} = 0") if of > 1 else made.sql, False))
        assert words is not None
        table = wanted[made.members[0].target][1]
        types = [table.schema.columns[made.members[0].columns.index(k)].type for k in made.keys]
        keys = list(zip(made.keys, types, strict=True))
        tests = [kernel.bucket(keys, number, of) for number in range(of)]
        sql = tuple(words.replace(f"{MARK} = 0", t or "") for t in tests)
        outputs = []
        for member in made.members:
            part, table = wanted[member.target]
            merged = old[member.target]
            output = kernel.Output(member.target, member.columns, member.presence, table, self._lake.folder(table))
            if merged:
                there = self._old(table, merged, Share(0, of, _hashed(output, made.keys)))
                output = replace(output, old=there, merge=_merge(part))
            outputs.append(output)
        return kernel.KernelPass(sql, made.keys, tuple(outputs))

    def _paths(self, scan: Scan, scratch: list[Path]) -> tuple[str, ...]:
        seen = [f for f in scan.files if scan.since is not None and f.row_id_start < scan.since]
        paths = [str(self._lake.path_of(scan, f)) for f in scan.files if f not in seen]
        for file in seen:
            # Upkeep has put rows that are new and rows that are not into one file.
            data, ids = segment.read(self._lake.folder(scan.table), scan.table, file)
            scratch.append(self._write_scratch(data.filter(pc.greater_equal(ids, scan.since))))
            paths.append(str(scratch[-1]))
        if scan.inlined is not None or not paths:
            inlined = scan.inlined if scan.inlined is not None else scan.table.schema.arrow.empty_table()
            scratch.append(self._write_scratch(inlined))
            paths.append(str(scratch[-1]))
        return tuple(paths)

    def answer(self, text: str, scans: Mapping[str, Scan], types: Sequence[pa.DataType]) -> pa.Table | None:
        """An upper fragment over states and tables, here; None if the kernel cannot."""
        used = {n: s for n, s in scans.items() if n in text}
        if not translate.are_proven(types) or not all(_is_plain(s, text) for s in used.values()):
            return None
        if sum(s.rows for s in used.values()) > MOST_ROWS_HERE:
            return None
        words = translate.to_duckdb(text)
        if words is None or not translate.conversions_are_proven(text, _columns(used.values())):
            return None
        files = {n: tuple(str(self._lake.path_of(s, f)) for f in s.files) for n, s in used.items() if s.files}
        try:
            with kernel.connect(
                files, THREADS, {n: _rest(s) for n, s in used.items() if _has_rest(s)}
            ) as connection:
                found: pa.Table = connection.execute(words).to_arrow_table()
                # A sum is wider in DuckDB; Spark tells of one that is too large for its column.
                columns = [c.cast(t) for c, t in zip(found.columns, types, strict=True)]
                return pa.table(columns, found.column_names)
        except kernel.failures():
            return None


def _has_rest(scan: Scan) -> bool:
    return scan.inlined is not None or not scan.files


def _rest(scan: Scan) -> pa.Table:
    return scan.inlined if scan.inlined is not None else scan.table.schema.arrow.empty_table()


MARK = "__ms_bucket__"


def _hashed(output: kernel.Output, keys: Sequence[str]) -> tuple[str, ...]:
    """The columns of a state that tasks share it by, in the order of a pass's keys."""
    return tuple(output.table.schema.names[output.columns.index(k)] for k in keys)


def _merge(part: Part) -> str:
    """How partial rows merge, with a place for them."""
    words = translate.to_duckdb(part.merged("__ms_rows__"))
    assert words is not None
    assert columns_of(part)
    return words.replace("{", "{{").replace("}", "}}").replace("__ms_rows__", "{rows}")
