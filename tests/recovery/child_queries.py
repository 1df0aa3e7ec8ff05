"""The processes that insert into a stream with continuous queries on it until they are killed.

As `tests.recovery.child_views` with `warm`: Spark, which one of the queries needs, runs before the first job, and
all jobs use it. There is one job; it says how far inserts have been acknowledged, a line for each:

    ack N               all rows up to N, without it, are durable
"""

from __future__ import annotations

import importlib

import millstream
from millstream.execute.session import STARTUP, start
from millstream.queries import blocks, storing
from millstream.storage import inline
from tests.recovery import child
from tests.recovery.child import say
from tests.recovery.child_views import in_thread

BATCH = 7
QUERIES = {
    "sums": "SELECT k, sum(v) AS a, count(*) AS n FROM s [INTERVAL 19] GROUP BY k SAMPLE INTERVAL 5",
    "last": "SELECT k, max(v) AS a, count(*) AS n FROM s [PARTITION BY k ROWS 3] GROUP BY k SAMPLE INTERVAL 5",
    "ever": "SELECT count(*) AS n, max(v) AS a FROM s [LANDMARK] SAMPLE ROWS 10",
}
SELECTIONS = {
    "some": "SELECT k, v, t FROM s WHERE v > 15 AND k <> 2",
    "few": "SELECT v + 1 AS a, t FROM s WHERE v % 10 = 3",
}
"""They share their passes and their deliveries."""
VIEW = "SELECT k, sum(v) AS a FROM s [INTERVAL 9] GROUP BY k SAMPLE INTERVAL 10"

Row = tuple[int, int, int]


def rows(first: int, last: int) -> list[Row]:
    return [(t % 4, t * 7 % 31, t) for t in range(first, last)]


def small_world() -> None:
    """Few rows are enough for files and for states in several pieces."""
    inline.MOST_ROWS = 3
    storing.MOST_PIECES = 2
    blocks.KEPT_BLOCKS, blocks.SLACK = 12, 3


def answer(path: str, first: int) -> None:
    """Insert and answer in turn until killed."""
    small_world()
    db = millstream.connect(path, background=False)
    say("ack", first)
    while True:
        db.insert("s", rows(first, first + BATCH))
        first += BATCH
        say("ack", first)
        db.drain()


child.JOBS["answer"] = in_thread(answer)


if __name__ == "__main__":
    # Loaded once, for all that is forked.
    importlib.import_module("duckdb")
    start("local[2]", STARTUP | {"spark.sql.shuffle.partitions": "1"})
    child.serve()
