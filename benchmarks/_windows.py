"""What the parts of the benchmark of windows share: streams, databases, how long answers take."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from harness import seconds

import millstream
from millstream.database import Database
from millstream.queries.answering import Answers

GROUPS = 10_000
FILL = 1_000_000
"""A window fills, and is stored, by so many rows at a time."""
SLIDES, REPEATS, WARM = 20, 5, 3


class Rows:
    """The stream of the paper: two numbers a row, the first one of `groups` values, the second one of `others`."""

    def __init__(self, groups: int = GROUPS, seed: int = 1, others: int = 1_000) -> None:
        self._random = np.random.default_rng(seed)
        self._groups = groups
        self._others = others
        self._made: list[pa.Table] = []
        self.keeps = False

    def next(self, count: int) -> pa.Table:
        x1 = self._random.integers(0, self._groups, count, dtype=np.int32)
        x2 = self._random.integers(0, self._others, count, dtype=np.int32)
        made = pa.table({"x1": x1, "x2": x2})
        if self.keeps:
            self._made.append(made)
        return made

    def last(self, count: int) -> pd.DataFrame:
        """The newest rows, where they are kept."""
        return pa.concat_tables(self._made).slice(sum(t.num_rows for t in self._made) - count).to_pandas()


@contextmanager
def database(folder: Path) -> Iterator[Database]:
    """A database of its own, which answers when it is told to."""
    shutil.rmtree(folder, ignore_errors=True)
    db = millstream.connect(folder, background=False)
    try:
        yield db
    finally:
        db.close()
        shutil.rmtree(folder, ignore_errors=True)


def filled(db: Database, stream: str, rows: Rows, count: int) -> None:
    """Let a window fill."""
    left = count
    while left:
        some = min(left, FILL)
        db.insert(stream, rows.next(some))
        db.drain()
        left -= some


def slides(db: Database, insert: Callable[[], object], count: int) -> list[float]:
    """How long each of so many answers takes, from when its rows are there."""
    taken = []
    for _ in range(count):
        insert()
        taken.append(seconds(db.drain))
    return taken


def apart(db: Database, insert: Callable[[], object]) -> tuple[float, float]:
    """What answers take to process new rows, and for all else, which is merging above all, in ms."""
    spent, real = list[float](), Answers.partials

    def timed(self: Answers, *given: Any) -> Any:
        started = time.perf_counter()
        made = real(self, *given)
        spent.append(time.perf_counter() - started)
        return made

    with patch.object(Answers, "partials", timed):
        taken = slides(db, insert, REPEATS)
    processing = sum(spent) / len(taken) * 1_000
    return processing, statistics.mean(taken) * 1_000 - processing


def in_turns(
    db: Database, insert: Callable[[], object], text: str, tables: dict[str, Path]
) -> tuple[list[float], list[float]]:
    """How long answers take, and how long Spark takes for a window that lies in files; some of each in turn."""
    for name, folder in tables.items():
        db.spark.read.parquet(str(folder)).createOrReplaceTempView(name)
    fast, slow = list[float](), list[float]()
    slides(db, insert, WARM)
    for _ in range(WARM + REPEATS):
        fast += slides(db, insert, SLIDES // REPEATS)
        slow.append(seconds(lambda: db.spark.sql(text).toArrow()))
    return fast[WARM * SLIDES // REPEATS :], slow[WARM:]


def stored(folder: Path, rows: Rows, count: int) -> Path:
    """A window's rows as files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, count, FILL)):
        pq.write_table(rows.next(min(FILL, count - start)), folder / f"{number:05}.parquet")
    return folder
