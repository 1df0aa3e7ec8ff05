"""Which fragments the kernel runs, and its jobs: parts of views → passes in DuckDB's words over files.

The kernel takes a part if every word and type of it is proven (`execute.translate`); all others go to Spark. A
state that is no larger than the basket is merged in the same job; larger ones get one more piece.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from millstream.execute import kernel, translate
from millstream.execute.passes import columns_of, fuse
from millstream.plan.incremental import in_first_run
from millstream.storage import segment
from millstream.storage.scan import ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from millstream.catalog.records import DataFile, Segment, TableInfo
    from millstream.execute.passes import Pass
    from millstream.execute.session import Spark
    from millstream.plan.incremental import Part
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan

HERE_ROWS = 16_384
"""Baskets up to this size are not worth a job: the driver runs the kernel itself."""
ONE_TASK_ROWS = 65_536
LEAST_MERGED_ROWS = 16_384
MOST_TASKS = 8
MOST_ROWS_HERE = 2_097_152
THREADS = 2


@dataclass(frozen=True)
class Done:
    """What the kernel made of a part: new pieces of its state, and the old ones that they replace."""

    new: tuple[Segment, ...]
    gone: tuple[DataFile, ...]
    is_whole: bool


def can_run(part: Part, table: TableInfo, sources: Mapping[str, Scan]) -> bool:
    """Whether the kernel may run a part over these sources."""
    if part.grouping != ", ".join(part.keys) or part.prepared or ROW in part.fragment:
        return False
    types = [c.type for c in table.schema.columns]
    if not translate.are_proven(types) or any("double" in t for k, t in part.types if k in part.keys):
        return False
    text = in_first_run(part.fragment, False)
    if not all(_is_plain(s, text) for n, s in sources.items() if n in text):
        return False
    return translate.to_duckdb(text) is not None and translate.to_duckdb(part.merged("m")) is not None


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

    def run(
        self,
        scan: Scan,
        wanted: Sequence[tuple[Part, TableInfo]],
        sources: Mapping[str, Scan],
        pieces: Callable[[TableInfo], list[DataFile]],
    ) -> list[Done]:
        """The partial results of parts over a stream's rows, merged with what is there where that is little."""
        old = [self._to_merge(pieces(t), scan) for _, t in wanted]
        tasks = self._tasks(scan)
        passes = [self._pass(made, wanted, old, tasks) for made in fuse(enumerate(p for p, _ in wanted))]
        text = " ".join(sql for p in passes for sql in p.sql)
        scratch: list[Path] = []
        files = {name: self._paths(s, scratch) for name, s in sources.items() if name in text}
        job = kernel.KernelJob(files, tuple(passes), tasks)
        try:
            outcomes = kernel.run(job, None if scan.rows <= HERE_ROWS else self._spark.session)
        finally:
            for path in scratch:
                path.unlink(missing_ok=True)
        self.workers = {process for _, _, process in outcomes}
        found = []
        for number, ((_, table), merged) in enumerate(zip(wanted, old, strict=True)):
            new = tuple(s for target, s, _ in outcomes if target == number)
            found.append(Done(new, tuple(merged or ()), merged is not None or not pieces(table)))
        return found

    @staticmethod
    def _to_merge(had: list[DataFile], scan: Scan) -> list[DataFile] | None:
        """The pieces to merge with; None if they are too many rows for this basket."""
        rows = sum(f.rows for f in had)
        return had if had and rows <= max(scan.rows, LEAST_MERGED_ROWS) else None

    @staticmethod
    def _tasks(scan: Scan) -> int:
        return 1 if scan.rows <= ONE_TASK_ROWS else min(MOST_TASKS, os.cpu_count() or 1)

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
            outputs.append(
                kernel.Output(
                    member.target,
                    member.columns,
                    member.presence,
                    table,
                    self._lake.folder(table),
                    tuple(str(self._lake.folder(table) / f.path) for f in merged or ()),
                    _merge(part) if merged else None,
                )
            )
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
        if words is None:
            return None
        files = {n: tuple(str(self._lake.path_of(s, f)) for f in s.files) for n, s in used.items() if s.files}
        try:
            with kernel.connect(
                files, THREADS, {n: _rest(s) for n, s in used.items() if _has_rest(s)}
            ) as connection:
                found: pa.Table = connection.execute(words).to_arrow_table()
                return found
        except kernel.failures():
            return None


def _has_rest(scan: Scan) -> bool:
    return scan.inlined is not None or not scan.files


def _rest(scan: Scan) -> pa.Table:
    return scan.inlined if scan.inlined is not None else scan.table.schema.arrow.empty_table()


MARK = "__ms_bucket__"


def _merge(part: Part) -> str:
    """How partial rows merge, with a place for them."""
    words = translate.to_duckdb(part.merged("__ms_rows__"))
    assert words is not None
    assert columns_of(part)
    return words.replace("{", "{{").replace("}", "}}").replace("__ms_rows__", "{rows}")
