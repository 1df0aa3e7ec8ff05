"""A process that inserts into a stream with continuous queries on it until it is killed.

    python -m tests.recovery.child_queries PATH FIRST

Says how far inserts have been acknowledged, a line for each.
"""

from __future__ import annotations

import sys

import millstream
from millstream.queries import blocks, storing
from millstream.storage import inline

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


def main(path: str, first: int) -> None:
    small_world()
    db = millstream.connect(path, background=False)
    print(first, flush=True)
    while True:
        db.insert("s", rows(first, first + BATCH))
        first += BATCH
        print(first, flush=True)
        db.drain()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
