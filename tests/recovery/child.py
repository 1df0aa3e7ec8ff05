"""The process that gets killed: opens databases and works on them until somebody ends it.

Started once (`python -m tests.recovery.child`), it forks a fresh process for every job it reads on its
input, so that a job is ready at once; no Spark. Jobs say what they do on the output, a line at a time:

    start               the process is there, the database not yet opened
    ready               the database is open
    try NAME FIRST N    rows FIRST … FIRST+N-1 are about to be inserted into NAME (`both`: in one transaction)
    ack NAME FIRST N    they are durable
    end PID             the job's process is gone
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import millstream
from millstream.catalog import streams
from millstream.clock import SystemClock
from millstream.errors import MillstreamError
from millstream.schedule.net import Firing
from millstream.schedule.runner import Runner
from millstream.schedule.upkeep import Policy, upkeep_net
from millstream.storage import index, inline, retention, upkeep

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database

SOON = timedelta(milliseconds=5)
EAGER = Policy(
    flush=Firing(tokens=60, age=SOON),
    compact=Firing(tokens=2, age=SOON),
    drop=Firing(tokens=100, age=SOON),
    expire=Firing(tokens=10, age=SOON),
    age=Firing(age=SOON),
    keep_snapshots=timedelta(milliseconds=50),
)
DELAY, PERIOD = 20, 300
MOST_ADDED = 5


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def create(db: Database) -> None:
    """Two tables, a stream that a consumer holds, and one that nobody reads."""
    db.sql("CREATE TABLE a (id BIGINT, v STRING)")
    db.sql("CREATE TABLE b (id BIGINT, v DOUBLE)")
    db.sql("CREATE STREAM held (id BIGINT, ts BIGINT) TIMESTAMP BY ts")
    db.sql("CREATE STREAM loose (id BIGINT, ts BIGINT) TIMESTAMP BY ts")
    held = db._lake.catalog.tables()["held"]
    db._lake.catalog.commit(lambda c: streams.set_consumer(c, held.id, "test", 0))


VALUES: dict[str, Callable[[int], Any]] = {"a": str, "b": float, "held": int, "loose": int}


def rows(name: str, first: int, count: int) -> list[tuple[int, Any]]:
    return [(i, VALUES[name](i)) for i in range(first, first + count)]


def arrow(db: Database, name: str, first: int, count: int) -> pa.Table:
    columns = zip(*rows(name, first, count), strict=True)
    return pa.table(list(map(list, columns)), schema=db._lake.catalog.tables()[name].schema.arrow)


class Inserter(threading.Thread):
    """Inserts for ever, in all the ways there are, with ids that no other run or thread uses."""

    def __init__(self, db: Database, run: int, number: int) -> None:
        super().__init__(daemon=True)
        self._db = db
        self._next = (run << 40) + (number << 32)
        self._turn = number

    def run(self) -> None:
        try:
            while True:
                self._turn += 1
                name = ("a", "b", "held", "loose")[self._turn % 4]
                way = (self._one, self._few, self._one, self._many, self._both)[self._turn % 5]
                way(name)
        except BaseException:
            say("failed", json.dumps(traceback.format_exc()))
            os._exit(1)

    def _claim(self, name: str, count: int) -> int:
        first = self._next
        self._next += count
        say("try", name, first, count)
        return first

    def _one(self, name: str) -> None:
        first = self._claim(name, 1)
        value = repr(VALUES[name](first))
        self._db.sql(f"INSERT INTO {name} VALUES ({first}, {value})")
        say("ack", name, first, 1)

    def _few(self, name: str) -> None:
        first = self._claim(name, 7)
        self._db.insert(name, rows(name, first, 7))
        say("ack", name, first, 7)

    def _many(self, name: str) -> None:
        count = inline.MOST_ROWS + 44
        first = self._claim(name, count)
        self._db.insert(name, arrow(self._db, name, first, count))
        say("ack", name, first, count)

    def _both(self, _: str) -> None:
        count = 3 if self._turn % 2 else inline.MOST_ROWS + 1
        first = self._claim("both", count)
        with self._db.transaction():
            self._db.insert("a", arrow(self._db, "a", first, count))
            self._db.insert("b", rows("b", first, count))
        say("ack", "both", first, count)


def insert(path: str, run: int) -> None:
    """Insert from three threads, with upkeep as eager as can be, until killed."""
    upkeep.MOST_SMALL_FILES = 3
    clock = SystemClock()
    db = millstream.connect(path, clock=clock, background=False)
    if not db.objects():
        create(db)
    Runner(upkeep_net(db._lake, clock, EAGER), clock)
    say("ready")
    threads = [Inserter(db, run, number) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def create_streaming(db: Database) -> None:
    """A streaming table with two indices; `time_of` says when its rows are."""
    db.sql(
        "CREATE STREAMING TABLE h (id BIGINT, k INT, v STRING, t BIGINT) TIMESTAMP BY t"
        f" WATERMARK INTERVAL {DELAY} RANGE INTERVAL {PERIOD}"
    )
    db.sql("CREATE INDEX h_k ON h (k)")
    db.sql("CREATE INDEX h_v ON h (v) USING HASH")


def time_of(number: int) -> int:
    """Four rows a tick, some of them late by up to two watermarks, a few older than the period."""
    late = (0, 0, 0, 7, 0, 40, 0, 0, 2 * PERIOD, 0, 0)[number % 11]
    return number // 4 - late


def streaming_rows(first: int, count: int) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"id": i, "k": i % 13 if i % 5 else None, "v": f"v{i % 7}", "t": time_of(i)} for i in numbers]


def shrink() -> None:
    """Few rows are enough for files, row groups and index copies."""
    upkeep.MOST_SMALL_FILES, upkeep.SMALL_ROWS = 3, 200
    inline.MOST_ROWS = 10
    index.LEAST_ROWS, index.ROW_GROUP_ROWS, index.PAGE_ROWS = 1, 30, 8


class Definer:
    """Adds a column, an index, drops an index, one after the other."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        match self._steps % 3:
            case 0:
                self._db.sql("DROP INDEX IF EXISTS spare")
            case 1:
                self._db.sql("CREATE INDEX IF NOT EXISTS spare ON h (id)")
            case _:
                self._add_column()

    def _add_column(self) -> None:
        added = len(self._db._lake.catalog.tables()["h"].schema.columns) - 4
        if added < MOST_ADDED:
            self._db.sql(f"ALTER STREAMING TABLE h ADD COLUMN IF NOT EXISTS c{added} STRING")


class StreamInserter(threading.Thread):
    """Inserts for ever into the streaming table, few rows and many, with numbers that nobody else uses."""

    def __init__(self, db: Database, numbers: Numbers, definer: Definer | None) -> None:
        super().__init__(daemon=True)
        self._db = db
        self._numbers = numbers
        self._definer = definer

    def run(self) -> None:
        try:
            for turn in range(1_000_000):
                self._insert((1, 5, 1, 60)[turn % 4])
                if self._definer is not None and turn % 6 == 5:
                    self._definer.step()
        except BaseException:
            say("failed", json.dumps(traceback.format_exc()))
            os._exit(1)

    def _insert(self, count: int) -> None:
        first = self._numbers.claim(count)
        say("try", "h", first, count)
        self._db.insert("h", streaming_rows(first, count))
        say("ack", "h", first, count)


class Numbers:
    """Consecutive numbers, each given once."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._lock = threading.Lock()

    def claim(self, count: int) -> int:
        with self._lock:
            first, self._next = self._next, self._next + count
            return first


def insert_streaming(path: str, first: int) -> None:
    """Insert from two threads, with upkeep as eager as can be and changing definitions, until killed."""
    shrink()
    clock = SystemClock()
    db = millstream.connect(path, clock=clock, background=False)
    if not db.objects():
        create_streaming(db)
    net = upkeep_net(db._lake, clock, EAGER)
    db._engine.net = net
    Runner(net, clock)
    say("ready")
    numbers = Numbers(first)
    threads = [StreamInserter(db, numbers, definer) for definer in (None, Definer(db))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hold(path: str) -> None:
    """Open the database and keep it."""
    with millstream.connect(path, background=False):
        say("ready")
        signal.pause()


def close(path: str) -> None:
    """Close the database while three threads insert into it; they end with errors of ours."""
    db = millstream.connect(path, background=False)
    create(db)
    busy = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            for i in range(1_000_000):
                first = (number << 32) + i
                say("try", "a", first, 1)
                db.insert("a", rows("a", first, 1))
                say("ack", "a", first, 1)
                if i == 10:
                    busy.wait()
        except MillstreamError as error:
            say("ended", error.condition)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    busy.wait()
    db.close()
    for thread in threads:
        thread.join()
    say("survived")


def die(path: str, at: str, count: int, work: list[str], *, small: bool = False) -> None:
    """Do the work and be killed inside: by the `count`-th call of the function named `at`."""
    db = millstream.connect(path, background=False)
    if small:
        shrink()
    upkeep.MOST_SMALL_FILES = 2
    _kill_at(at, count)
    for step in work:
        WORK[step](db)
    say("survived")


def create_and_die(path: str, at: str, count: int) -> None:
    """Be killed while opening a database."""
    _kill_at(at, count)
    millstream.connect(path, background=False)
    say("survived")


def _kill_at(place: str, count: int) -> None:
    module, _, name = place.rpartition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, last)
    calls = iter(range(1, 1_000_000))

    def deadly(*given: Any, **named: Any) -> Any:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)

    setattr(owner, last, deadly)


WORK: dict[str, Callable[[Database], object]] = {
    "flush": lambda db: upkeep.flush(db._lake),
    "compact": lambda db: upkeep.compact(db._lake),
    "drop": lambda db: upkeep.drop_consumed(db._lake),
    "expire": lambda db: upkeep.expire(db._lake, timedelta(0)),
    "insert few": lambda db: db.insert("a", rows("a", 10_000, 5)),
    "insert many": lambda db: db.insert("a", rows("a", 10_000, 300)),
    "truncate": lambda db: db.sql("TRUNCATE TABLE a"),
    "drop table": lambda db: db.sql("DROP TABLE b"),
    "index": lambda db: index.build_some(db._lake, 1_000),
    "retain": lambda db: retention.drop_expired(db._lake),
    "discard": lambda db: index.discard(db._lake),
    "drop index": lambda db: db.sql("DROP INDEX h_k"),
    "add column": lambda db: db.sql("ALTER STREAMING TABLE h ADD COLUMN added STRING"),
    "add array": lambda db: db.sql("ALTER STREAMING TABLE h ADD COLUMN added ARRAY<INT>"),
    "drop streaming table": lambda db: db.sql("DROP STREAMING TABLE h"),
}

JOBS: dict[str, Callable[..., None]] = {
    "insert": insert,
    "insert streaming": insert_streaming,
    "hold": hold,
    "close": close,
    "die": die,
    "create and die": create_and_die,
}


def serve() -> None:
    """Fork a process for each job; report when it is gone."""
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _do(job)
        os.waitpid(pid, 0)
        say("end", pid)


def _do(job: dict[str, Any]) -> None:
    say("start", os.getpid())
    try:
        JOBS[job.pop("job")](**job)
    except BaseException:
        say("failed", json.dumps(traceback.format_exc()))
    os._exit(0)


if __name__ == "__main__":
    serve()
