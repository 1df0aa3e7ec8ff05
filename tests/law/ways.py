"""Ways in which the engine takes rows into views, and what was seen of its work.

It chooses by the number of rows, and feeds have few: they would all go through the driver and one task of Spark.
A way lowers the limits by which it chooses, for as long as a feed runs; `WAYS` says which feed goes which way.
`Work` tells what was done where, so that a test can ask whether its feed really went that way.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.execute import relation
from millstream.storage import inline
from millstream.views import keeping, kernels, merging

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from millstream.database import Database
    from millstream.execute.kernel import KernelJob, Written

SPARK_SETTINGS = {"spark.sql.shuffle.partitions": "7", "spark.sql.files.maxPartitionBytes": "65536"}
"""With less for a partition than Spark reckons to open a file, each file is a partition."""


@dataclass(slots=True)
class Work:
    """What was done where, while a feed ran."""

    jobs: Counter[str] = field(default_factory=Counter)
    """Of the kernel, by the place where they ran."""
    executors: set[str] = field(default_factory=set)
    most_tasks: int = 0
    """So many tasks of Spark wrote in one job of the kernel."""
    most_partitions: int = 0
    """So many partitions held the new rows of one basket."""
    most_pieces: int = 0
    """So many files came of one job of Spark for one state."""

    def ran(self, job: KernelJob, written: list[Written]) -> None:
        """The kernel has run a job: one over new rows, or one that merges."""
        tasks = len({w.task for w in written if w.process != os.getpid()})
        self.most_tasks = max(self.most_tasks, tasks)
        self.executors.add(keeping.KERNEL)
        self.jobs[f"{'rows' if job.sources else 'merge'} in {f'{tasks} tasks' if tasks else 'the driver'}"] += 1


@dataclass(frozen=True, slots=True)
class Way:
    """Limits as they are while a feed goes this way; Spark's settings; what its work has to show."""

    limits: tuple[tuple[Any, str, Any], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    is_seen_in: Callable[[Work], bool] = lambda _: True

    def take(self, patch: pytest.MonkeyPatch) -> Work:
        """Go this way until the patch is undone."""
        for place, name, value in self.limits:
            patch.setattr(place, name, value)
        work = Work()
        _watch_kernel(patch, work)
        _watch_spark(patch, work)
        if self.settings:
            _watch_partitions(patch, work)
        return work

    def opened(self, db: Database) -> Database:
        """A database has a session of its own, which takes over no settings of the one that it was given."""
        for name, value in self.settings:
            db._engine.spark.session().conf.set(name, value)
        return db


def _several(rows: int) -> int:
    """How many tasks: not always as many, so that shares of a state do not fit the next job."""
    return 1 if rows <= kernels.ONE_TASK_ROWS else 2 + rows % 2


HERE = Way()
IN_TASKS = Way(
    (
        (kernels, "HERE_ROWS", 2),
        (kernels, "ONE_TASK_ROWS", 8),
        (kernels.Kernels, "_tasks", staticmethod(_several)),
        (merging, "LEAST_MERGED_ROWS", 0),
        (merging, "MERGED_TIMES", 1),
        (keeping, "MOST_PIECES", 3),
    ),
    is_seen_in=lambda work: work.most_tasks > 1,
)
"""The kernel runs in several of Spark's tasks, and states are in pieces of several tasks."""
IN_PARTITIONS = Way(
    (
        (inline, "MOST_ROWS", 5),
        (relation, "ONE_PARTITION_ROWS", 0),
        (keeping, "ONE_PARTITION_ROWS", 0),
        (keeping, "HERE_ROWS", 0),
    ),
    tuple(SPARK_SETTINGS.items()),
    lambda work: work.most_partitions > 1 and work.most_pieces > 1,
)
"""Spark reads several files in several partitions, and several of its tasks write a state."""
WAYS = (IN_TASKS, HERE, HERE, HERE)
"""Feeds go these ways in turn, by their seeds."""


def way_of(seed: int) -> Way:
    return WAYS[seed % len(WAYS)]


def _watch_kernel(patch: pytest.MonkeyPatch, work: Work) -> None:
    run = kernels.Kernels._run

    def seen(self: kernels.Kernels, job: KernelJob, rows: int) -> list[Written]:
        written = run(self, job, rows)
        work.ran(job, written)
        return written

    patch.setattr(kernels.Kernels, "_run", seen)


def _watch_spark(patch: pytest.MonkeyPatch, work: Work) -> None:
    by_spark, write = keeping.Keeper._by_spark, keeping.write_passes

    def seen(self: keeping.Keeper, *given: Any, **named: Any) -> Any:
        if self.executor == keeping.SPARK_SQL:
            work.executors.add(keeping.SPARK_SQL)
        return by_spark(self, *given, **named)

    def written(*given: Any) -> Any:
        made = write(*given)
        work.most_pieces = max([work.most_pieces, *map(len, made)])
        return made

    patch.setattr(keeping.Keeper, "_by_spark", seen)
    patch.setattr(keeping, "write_passes", written)


def _watch_partitions(patch: pytest.MonkeyPatch, work: Work) -> None:
    make = relation.Relation.__init__

    def seen(self: relation.Relation, session: Any, frame: Any, scan: Any, *rest: Any) -> None:
        if scan.since is not None:
            work.most_partitions = max(work.most_partitions, frame.rdd.getNumPartitions())
        make(self, session, frame, scan, *rest)

    patch.setattr(relation.Relation, "__init__", seen)
