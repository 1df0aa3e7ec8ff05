"""What the benchmark of sharing runs: selections with their rows, and operators that policies race through.

A selection is some tests, each a range of an attribute's values or one value; the rows that it should be given are
found by NumPy. Separate evaluation on Spark is a job for each selection, as many at once as there are cores.

The race of policies is one of operators on three attributes, each with a test of every query. *Broad* tests let
most values pass, and bits are kept; *narrow* ones let few pass, each value for some queries, and pairs of rows and
queries are kept. In each phase most rows have a value of one attribute, the *telling* one, that interests nobody:
whoever begins with it has little left to do.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

import millstream
from millstream.database import Database
from millstream.execute.shared.selections import Matcher, Selections
from millstream.plan.selection import Domain, Selection, Term
from millstream.queries import chorus, joining
from millstream.queries.matching import by_policy
from millstream.schedule.eddy import Fixed, Policy, Shuffled, Tickets

MATCHES = 10
"""Every row is for about so many queries."""
WIDE = 1_000_000
VALUES_OF = {"a": WIDE, "b": WIDE, "c": 10, "k": 1_000}
"""How many values each attribute has, all as likely."""
INSTANTS = 50
"""So many different times are in a basket, and so many deliveries at most for a query."""


@contextmanager
def database(folder: Path) -> Iterator[Database]:
    """A database of its own, which answers when it is told to."""
    db = millstream.connect(folder, background=False)
    try:
        yield db
    finally:
        db.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def apart() -> Iterator[None]:
    """In here every query over windows is stepped by itself."""
    with patch.object(chorus, "key_of", return_value=None), patch.object(joining, "key_of", return_value=None):
        yield


# Selections


@dataclass(frozen=True)
class Between:
    """An attribute has one of the values from `low` up to `high`."""

    column: str
    low: int
    high: int

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.column} = {self.low}"
        if self.low % 2:
            return f"{self.column} >= {self.low} AND {self.column} < {self.high + 1}"
        return f"{self.column} BETWEEN {self.low} AND {self.high}"

    def holds(self, rows: pa.Table) -> NDArray[np.bool_]:
        values = rows.column(self.column).to_numpy()
        return np.asarray((values >= self.low) & (values <= self.high))


@dataclass(frozen=True)
class Asking:
    """A selection: all its tests have to hold."""

    tests: tuple[Between, ...]

    @property
    def where(self) -> str:
        return " AND ".join(str(t) for t in self.tests)

    @property
    def body(self) -> str:
        return f"SELECT id, a, b FROM s WHERE {self.where}"

    def ids(self, rows: pa.Table) -> NDArray[np.int64]:
        """The rows that it is to be given."""
        holds = np.logical_and.reduce([t.holds(rows) for t in self.tests])
        return np.asarray(rows.column("id").to_numpy()[holds])


def askings(count: int) -> list[Asking]:
    """So many selections, of which every row matches about ten, or all if there are fewer."""
    random, share = np.random.default_rng(3), min(1.0, MATCHES / count)
    return [_asking(number, share, random) for number in range(count)]


def _asking(number: int, share: float, random: np.random.Generator) -> Asking:
    """Every other one has an equality too, half of them on the attribute with the most values that is enough."""
    tests, names = [], {1: ("k", "c"), 3: ("c",)}.get(number % 4, ())
    equal = next((n for n in names if share * VALUES_OF[n] <= 1 + 1e-9), None)
    if equal is not None:
        value = int(random.integers(VALUES_OF[equal]))
        tests.append(Between(equal, value, value))
        share = min(1.0, share * VALUES_OF[equal])
    if share < 1 or not tests:
        width = round(share * WIDE)
        low = int(random.integers(WIDE - width + 1))
        tests.append(Between("ab"[number // 2 % 2], low, low + width - 1))
    return Asking(tuple(tests))


def selection_rows(count: int, baskets: int) -> list[pa.Table]:
    """Baskets of rows, the same for whoever asks."""
    random, made = np.random.default_rng(4), []
    for number in range(baskets):
        ids = np.arange(number * count, (number + 1) * count)
        columns = {n: random.integers(0, values, count, dtype=np.int32) for n, values in VALUES_OF.items()}
        made.append(pa.table({"id": ids, **columns, "t": ids // max(1, count // INSTANTS)}))
    return made


def created(db: Database, asked: Sequence[Asking]) -> list[float]:
    """Make the stream and its queries; how long each query took."""
    columns = ", ".join(f"{name} INT" for name in VALUES_OF)
    db.sql(f"CREATE STREAM s (id BIGINT, {columns}, t BIGINT) TIMESTAMP BY t")
    taken = []
    for number, one in enumerate(asked):
        started = time.perf_counter()
        db.sql(f"CREATE CONTINUOUS QUERY q{number} AS {one.body}")
        taken.append(time.perf_counter() - started)
    return taken


def jobs_of(db: Database) -> int:
    """How many jobs Spark has been given so far."""
    return int(db.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def check_selections(db: Database, asked: Sequence[Asking], rows: pa.Table, most: int = 100) -> None:
    """Some of the queries, from the first to the last, have had just their rows, in order."""
    for number in np.unique(np.linspace(0, len(asked) - 1, most, dtype=int)).tolist():
        given = [d.to_arrow().column("id").to_numpy() for d in db.results(f"q{number}")]
        found = np.concatenate([*given, np.empty(0, np.int64)])
        if not np.array_equal(found, expected := asked[number].ids(rows)):
            wrong = f"{len(found)} rows instead of {len(expected)}, or others"
            raise AssertionError(f"{asked[number].where} was given {wrong}")


@dataclass(frozen=True)
class Separately:
    """Selections on Spark, a job each, over baskets that lie in files."""

    spark: SparkSession
    asked: Sequence[Asking]
    files: Sequence[Path]

    def run(self, number: int) -> int:
        """Answer all from one basket; the number of rows that were found."""
        rows = self.spark.read.parquet(str(self.files[number]))

        def answer(one: Asking) -> int:
            return int(rows.where(one.where).select("id", "a", "b").toArrow().num_rows)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return sum(pool.map(answer, self.asked))


# Policies


ATTRIBUTES = ("a", "b", "c")
VALUES = 1_000_000
"""Values below are asked for by some query, those from here on by none."""
BROAD, NARROW = "broad", "narrow"
TELLING, OTHERS = 0.99, 0.1
"""How many rows have a value that interests nobody: of the attribute that a phase is about, and of others."""
TICKETS, RANDOM = "tickets", "random"


def matcher(kind: str, count: int, width: float) -> Matcher:
    """The operators of so many queries; each narrow test asks for a share `width` of the values."""
    random, made = np.random.default_rng(11), Selections(dict.fromkeys(ATTRIBUTES, pa.int64()))
    for query in range(count):
        domains = {name: _domain(kind, width, random) for name in ATTRIBUTES}
        made.add(query, Selection((Term(domains),)))
    return made.ready()


def _domain(kind: str, width: float, random: np.random.Generator) -> Domain:
    if kind == BROAD:
        low, high = random.integers(0, VALUES * 2 // 5), random.integers(VALUES * 3 // 5, VALUES)
    else:
        low = random.integers(0, round(VALUES * (1 - width)) + 1)
        high = low + round(VALUES * width)
    return Domain.comparing(">=", int(low)) & Domain.comparing("<", int(high))


def batch(telling: str, rows: int, random: np.random.Generator) -> pa.Table:
    """Rows of a phase."""
    columns = {}
    for name in ATTRIBUTES:
        values = random.integers(VALUES * 2 // 5, VALUES * 3 // 5, rows)
        idle = random.random(rows) < (TELLING if name == telling else OTHERS)
        columns[name] = values + VALUES * idle
    return pa.table(columns)


@dataclass
class Contender:
    """A policy, and the time that it has taken in each phase, batch by batch."""

    policy: Policy
    taken: dict[str, list[float]] = field(default_factory=dict)

    def match(self, phase: str, operators: Matcher, rows: pa.Table) -> int:
        """Let a batch through; the number of matches."""
        # One thread computes and waits for nothing: its own time is not that of whatever else runs.
        started = time.process_time()
        found, _ = by_policy(operators, rows, self.policy)
        self.taken.setdefault(phase, []).append(time.process_time() - started)
        return len(found.rows)

    @property
    def batches(self) -> list[float]:
        """The times of all phases, one behind the other."""
        return [t for taken in self.taken.values() for t in taken]

    def total(self, phase: str | None = None) -> float:
        return sum(sum(taken) for name, taken in self.taken.items() if phase in (None, name))


def contenders() -> dict[str, Contender]:
    """The lottery, chance, and every order there is."""
    fixed = {" ".join(order): Contender(Fixed(order)) for order in permutations(ATTRIBUTES)}
    return {TICKETS: Contender(Tickets()), RANDOM: Contender(Shuffled()), **fixed}


def race(operators: Matcher, rows: int, batches: int) -> dict[str, Contender]:
    """Every contender with every batch, one after the other; all have to find the same."""
    random, racing = np.random.default_rng(12), contenders()
    for warm in ATTRIBUTES:
        operators.match(batch(warm, rows, random), ATTRIBUTES)
    for phase in ATTRIBUTES:
        for _ in range(batches):
            some = batch(phase, rows, random)
            # What a contender finds in the processor's caches is what the one before it, slow or fast, has left.
            names = random.permutation(list(racing)).tolist()
            found = {n: racing[n].match(phase, operators, some) for n in names}
            if len(set(found.values())) > 1:
                raise AssertionError(f"the order of operators has changed what is found: {found}")
    return racing


def fixed(racing: Mapping[str, Contender]) -> Iterator[tuple[str, Contender]]:
    return ((name, c) for name, c in racing.items() if name not in (TICKETS, RANDOM))


def smoothed(taken: Sequence[float], count: int = 5) -> list[float]:
    """A running median, for plots."""
    return [float(np.median(taken[max(0, i - count + 1) : i + 1])) for i in range(len(taken))]
