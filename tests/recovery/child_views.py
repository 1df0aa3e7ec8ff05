"""The processes that get killed while they keep continuous views: as `tests.recovery.child`, with these jobs.

`python -m tests.recovery.child_views` does without Spark until a job needs it, and then each job starts one that
ends with it. With `warm` as an argument Spark runs before the first job, and all jobs use it, each with
connections of its own: for kills at places where Spark has nothing to do.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import millstream
from millstream.clock import SystemClock
from millstream.schedule.net import Firing
from millstream.schedule.runner import Runner
from millstream.schedule.upkeep import advance_views, upkeep_net
from millstream.storage import inline, retention, upkeep
from millstream.views import keeping, merging
from tests.recovery import child
from tests.recovery.child import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database
    from millstream.views.keeping import Keeper

PERIOD = 300
COLUMNS = "(id BIGINT, k INT, v BIGINT, ts BIGINT) TIMESTAMP BY ts"
SUMS = "SELECT k, sum(v) AS total, count(*) AS n, min(v) AS low, max(v) AS high"
WHOLE = "SELECT sum(id) AS ids, count(*) AS n, avg(v) AS mean"
NAMED = "SELECT name, sum(v) AS total, count(*) AS n"
SHOUTED = "SELECT upper(name) AS name, sum(v) AS total, count(*) AS n"
SPREAD = "SELECT k, avg(v) AS mean, stddev(v) AS deviation, count(DISTINCT v) AS vs"
VIEWS: dict[str, tuple[str, str]] = {
    "sums": ("s", f"{SUMS} FROM s GROUP BY k"),
    "whole": ("s", f"{WHOLE} FROM s"),
    "named": ("s", f"{NAMED} FROM s JOIN names ON s.k = names.k GROUP BY name"),
    "past_sums": ("h", f"{SUMS} FROM h GROUP BY k WITH HISTORY"),
    "past_whole": ("h", f"{WHOLE} FROM h WITH HISTORY"),
    "mixed_sums": ("m", f"{SUMS} FROM m GROUP BY k"),
    "mixed_spread": ("m", f"{SPREAD} FROM m GROUP BY k"),
    "mixed_named": ("m", f"{SHOUTED} FROM m JOIN names ON m.k = names.k GROUP BY upper(name)"),
}
"""The stream and the query of each view; those of `s` and `h` run on the kernel, some of `m` on Spark."""
JOINED = "(SELECT * FROM names WHERE name <> 'too late') AS n ON h.k = n.k"
MORE = f"{NAMED} FROM h JOIN {JOINED} GROUP BY name WITH HISTORY"
"""A view that is not there yet."""
NAMES = [(k, f"name {k % 3}") for k in range(6)]
FIRST = 40
"""So many rows the streaming table holds before its views are made."""

Row = tuple[int, int | None, int | None, int]

EAGER = replace(
    child.EAGER,
    # What is flushed or compacted while a view is behind is read by Spark, which these processes do without.
    flush=Firing(),
    compact=Firing(),
    drop=Firing(tokens=50, age=child.SOON),
    advance=Firing(tokens=30, age=child.SOON),
)


def create(db: Database) -> None:
    """A table, three streams and their views."""
    db.sql("CREATE TABLE names (k INT, name STRING)")
    db.insert("names", NAMES)
    for name in ("s", "m"):
        db.sql(f"CREATE STREAM {name} {COLUMNS}")
    db.sql(f"CREATE STREAMING TABLE h {COLUMNS} RANGE INTERVAL {PERIOD}")
    db.insert("h", rows(0, FIRST))
    for name, (_, query) in VIEWS.items():
        db.sql(f"CREATE CONTINUOUS VIEW {name} AS {query}")
    # The views have pinned what was there.
    db.insert("names", [(k, "too late") for k in range(7)])


def rows(first: int, count: int) -> list[Row]:
    """Rows with null keys and values, four a tick."""
    numbers = range(first, first + count)
    return [(i, i % 7 if i % 5 else None, i * i % 101 if i % 11 else None, i // 4) for i in numbers]


def insert(db: Database, name: str, first: int, count: int) -> None:
    """Insert into a stream, or into `both` in one transaction, and tell."""
    say("try", name, first, count)
    if name == "both":
        with db.transaction():
            db.insert("s", rows(first, count))
            db.insert("h", rows(first, count))
    else:
        db.insert(name, rows(first, count))
    say("ack", name, first, count)


def read(db: Database, *views: str) -> None:
    for view in views:
        db.sql(f"SELECT * FROM {view}").fetchall()


def keeper(db: Database) -> Keeper:
    return db._engine.views.keeper


def merge(db: Database, view: str) -> int:
    """Merge the pieces of a view's states."""
    kept = keeper(db)
    return kept.merge(kept.kept(db._lake.catalog.tables()[view]))


class Acknowledged:
    """How many rows have been acknowledged, by stream."""

    def __init__(self, rows_before: dict[str, int]) -> None:
        self._rows = rows_before
        self._lock = threading.Lock()

    def add(self, name: str, count: int) -> None:
        with self._lock:
            for stream in ("s", "h") if name == "both" else (name,):
                self._rows[stream] += count

    def rows(self, stream: str) -> int:
        with self._lock:
            return self._rows[stream]


class Worker(threading.Thread):
    """Does something for ever, in turns."""

    def __init__(self, turn: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._turn = turn

    def run(self) -> None:
        try:
            for number in range(1_000_000):
                self._turn(number)
        except BaseException:
            say("failed", json.dumps(traceback.format_exc()))
            os._exit(1)


def count_in(db: Database, view: str) -> int:
    """The rows of its stream that a view has seen."""
    return sum(row[0] for row in db.sql(f"SELECT n FROM {view}").fetchall())


def keep(path: str, first: int, *, pieces: bool) -> None:
    """Insert from two threads and read from a third until killed, with views that follow eagerly; no Spark."""
    inline.MOST_ROWS = 10
    if pieces:
        merging.LEAST_MERGED_ROWS = 4
    clock = SystemClock()
    db = millstream.connect(path, clock=clock, background=False)
    done = Acknowledged({s: count_in(db, v) for s, v in (("s", "whole"), ("h", "past_whole"))})
    net = upkeep_net(db._lake, clock, EAGER)
    kept = keeper(db)
    advance_views(net, db._lake, lambda: kept.catch_up(kept.every()), EAGER)
    db._engine.net = net
    Runner(net, clock)
    say("ready")
    numbers = child.Numbers(first)

    def put(turn: int) -> None:
        name, count = ("s", "h", "both", "s", "h")[turn % 5], (1, 5, 2, 30)[turn % 4]
        insert(db, name, numbers.claim(count), count)
        done.add(name, count)

    def look(turn: int) -> None:
        view = ("sums", "past_sums", "whole", "past_whole", "named")[turn % 5]
        least = done.rows(VIEWS[view][0])
        if view == "named":
            read(db, view)
        else:
            assert count_in(db, view) >= least, f"{view} has not seen what was acknowledged"
        assert not db.spark_started, "the kernel is enough for these views"

    threads = [Worker(put), Worker(put), Worker(look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def keep_mixed(path: str, first: int) -> None:
    """Insert, read and merge in turn until killed; kernel and Spark both have views to keep."""
    keeping.MOST_PIECES = 1
    db = millstream.connect(path, background=False)
    gateway: Any = db.spark.sparkContext._gateway
    say("jvm", gateway.proc.pid)
    numbers = child.Numbers(first)
    for turn in range(1_000_000):
        for count in (3, 300):
            insert(db, "m", numbers.claim(count), count)
        read(db, "mixed_spread", "mixed_named")
        if turn % 3 == 2:
            merge(db, "mixed_spread")


def die_in_views(path: str, at: str, count: int, work: list[str], first: int, *, after: bool) -> None:
    """Do the work and be killed by the `count`-th call of the function named `at`, or after it."""
    inline.MOST_ROWS, keeping.MOST_PIECES = 10, 1
    db = millstream.connect(path, background=False)
    _kill_at(at, count, after=after)
    numbers = child.Numbers(first)
    for step in work:
        match step.split():
            case ["insert", name, rows_in]:
                insert(db, name, numbers.claim(int(rows_in)), int(rows_in))
            case ["read", *views]:
                read(db, *views)
            case ["merge", view]:
                merge(db, view)
            case [one] if one in UPKEEP:
                UPKEEP[one](db)
            case _:
                db.sql(step)
    say("survived")


UPKEEP: dict[str, Callable[[Database], object]] = {
    "flush": lambda db: upkeep.flush(db._lake),
    "drop": lambda db: upkeep.drop_consumed(db._lake),
    "retain": lambda db: retention.drop_expired(db._lake),
    "compact": lambda db: upkeep.compact(db._lake),
    "expire": lambda db: upkeep.expire(db._lake, timedelta(0)),
}


def _kill_at(place: str, count: int, *, after: bool) -> None:
    module, _, name = place.rpartition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, last)
    calls = iter(range(1, 1_000_000))

    def deadly(*given: Any, **named: Any) -> Any:
        is_last = next(calls) == count
        if is_last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = original(*given, **named)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, last, deadly)


def in_thread(job: Callable[..., None]) -> Callable[..., None]:
    """The job in a thread of its own: a forked process must not talk to Spark through its parent's connection."""

    def run(**named: Any) -> None:
        failed: list[BaseException] = []

        def work() -> None:
            try:
                job(**named)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        for error in failed:
            raise error

    return run


child.JOBS.update({"keep": keep, "keep mixed": keep_mixed, "die in views": in_thread(die_in_views)})


if __name__ == "__main__":
    # Loaded once, for all that is forked.
    importlib.import_module("duckdb")
    if "warm" in sys.argv:
        from millstream.execute.session import STARTUP, start

        start("local[2]", STARTUP | {"spark.sql.shuffle.partitions": "1"})
    child.serve()
