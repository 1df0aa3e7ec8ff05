"""Continuous views on the AIM workload, against plain Structured Streaming and against evaluation on read.

throughput  5M events, 100K and 1M customers, six views, each read after every 500K events
concurrent  reads of the views beside inserts of 10K and of 50K events a second
repeated    reads of the views with nothing new
growth      the size of the views' state while events come and their groups stay the same
memory      50M events through the six views: what the driver, the JVM and its workers need
"""

from __future__ import annotations

import pickle
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _aim import (
    AIM,
    BATCH,
    BEFORE,
    DEFERRED,
    EXECUTORS,
    FUSED_STREAMING,
    KERNEL,
    QUERIES,
    SPARK_SQL,
    STREAMING,
    Answers,
    Calls,
    Job,
    Outcome,
    Workload,
    batch_answers,
    check,
    contend,
    create_views,
    database,
    plain_spark,
    read_view,
    store,
)
from _memory import Resident, resident
from _svg import Plot, Series
from harness import GIB, Measure, Run, Target, at_least, at_most, main, own_python, ratio, seconds
from history import rarer

from millstream.database import Database

CUSTOMERS = 100_000
LEAST_CUSTOMERS = 100
ROWS = 5_000_000
BATCHES = 10
LEAST_BATCHES = 2
MEBIBYTE = 1024**2


def calls(run: Run, customers: int, rows: int) -> Calls:
    return Calls(run.scaled(customers, LEAST_CUSTOMERS), rows // BEFORE)


def batches(run: Run, count: int) -> int:
    return max(LEAST_BATCHES, rarer(run, count))


def _save(run: Run, name: str, plot: Plot) -> None:
    if run.plots is not None:
        plot.save(run.plots / f"aim-{name}.svg")


# processes


WATCH_SECONDS = 0.25
APART_FROM = 0.01
"""The smallest scale at which contenders get processes of their own."""
APART = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
with open(sys.argv[2], "rb") as file:
    contend, job = pickle.load(file)
outcome = contend(job)
with open(sys.argv[3], "wb") as file:
    pickle.dump(outcome, file)
"""


def contend_apart(job: Job) -> tuple[Outcome, Resident]:
    """Run one contender in a process of its own, and watch its memory and that of its children."""
    told, done = (job.own.with_suffix(suffix) for suffix in (".job", ".outcome"))
    told.write_bytes(pickle.dumps((contend, job)))
    command = own_python(APART, str(Path(__file__).parent), str(told), str(done))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        peak = _watch(process)
    if process.returncode:
        raise AssertionError(f"{job.contender} ended with {process.returncode}")
    outcome: Outcome = pickle.loads(done.read_bytes())
    return outcome, peak


def _watch(process: subprocess.Popen[bytes]) -> Resident:
    peak = Resident()
    while True:
        try:
            process.wait(WATCH_SECONDS)
        except subprocess.TimeoutExpired:
            peak = max(peak, resident(process.pid), key=lambda r: r.total)
        else:
            return peak


# contests


@dataclass(frozen=True, slots=True)
class Contest:
    """What all contenders of one workload did, by contender and round."""

    rows: int
    outcomes: Mapping[str, Sequence[Outcome]]
    cold: str

    def samples(self) -> dict[str, list[float]]:
        """Seconds to take in all events and read all queries as often as asked."""
        return {name: [o.total for o in rounds] for name, rounds in self.outcomes.items()}

    def faster(self, name: str, contender: str, baseline: str, target: Target | None) -> Measure:
        """How many times the events a second of a baseline, with the reads in the time of both."""
        samples = self.samples()
        refused = {query: said for o in self.outcomes[baseline] for query, said in o.refused.items()}
        notes = {
            "events": self.rows,
            "events_per_second": {n: round(self.rows / statistics.median(s)) for n, s in samples.items()},
            "events_per_second_without_reads": {n: self._without_reads(n) for n in samples},
            "cold": self.cold,
            **({"refused_by_spark": refused} if refused else {}),
        }
        both = {n: samples[n] for n in (contender, baseline)}
        return Measure(name, ratio(samples, baseline, contender), "×", target, both, notes)

    def _without_reads(self, contender: str) -> int:
        return round(self.rows / statistics.median(sum(o.inserting) for o in self.outcomes[contender]))

    def reads_faster(self, name: str, contender: str, target: Target | None) -> Measure:
        """How much sooner all views are read than all queries run over what is stored."""
        both = (contender, DEFERRED)
        samples = {n: [taken for o in self.outcomes[n] for taken in o.reads] for n in both}
        notes = {"median_ms": {n: self._read_ms(n) for n in both}, "cold": self.cold}
        return Measure(name, ratio(samples, DEFERRED, contender), "×", target, samples, notes)

    def _read_ms(self, contender: str) -> dict[str, float]:
        taken = [t for o in self.outcomes[contender] for t in o.reading.values()]
        return {q: round(1_000 * statistics.median(t[q] for t in taken), 2) for q in taken[0]}


def contest(run: Run, workload: Workload, data: Path, contenders: Sequence[str], rounds: int) -> Contest:
    """Every contender in turns, round by round; all have to give Spark's batch answers."""
    apart = run.scale >= APART_FROM
    outcomes: dict[str, list[Outcome]] = {name: [] for name in contenders}
    expected = _compete(Job(BATCH, workload, data, data.with_name(f"{data.name}-batch")), apart)
    for number in range(rounds):
        for contender in contenders:
            own = data.with_name(f"{data.name}-{contender.replace(' ', '-')}-{number}")
            outcome = _compete(Job(contender, workload, data, own), apart)
            check(contender, workload, outcome.answers, expected.answers)
            outcomes[contender].append(outcome)
    rows = sum(pq.read_metadata(file).num_rows for file in (data / "stream").iterdir())
    return Contest(rows, outcomes, COLD[apart])


COLD = {
    True: "each contender in a process of its own, timed from the first event on; Spark is up, the tables are"
    " loaded, the views or streaming queries are there, and nothing has run twice",
    False: "all contenders in one process: times at this scale tell nothing",
}


def _compete(job: Job, apart: bool) -> Outcome:
    return contend_apart(job)[0] if apart else contend(job)


# throughput


CONTENDERS = (KERNEL, SPARK_SQL, STREAMING, FUSED_STREAMING, DEFERRED)
ROUNDS = {CUSTOMERS: 1, 1_000_000: 1}
RATES_OVER: Mapping[tuple[str, str], Target | None] = {
    (KERNEL, STREAMING): at_least(5),
    (KERNEL, FUSED_STREAMING): at_least(2.5),
    (SPARK_SQL, STREAMING): at_least(2),
    (SPARK_SQL, FUSED_STREAMING): None,
    (KERNEL, DEFERRED): None,
    (SPARK_SQL, DEFERRED): None,
}


def throughput(run: Run) -> Sequence[Measure]:
    """How fast events come in, and views are read, against the other ways to have the same answers."""
    return [measure for customers in ROUNDS for measure in _throughput(run, customers)]


def _throughput(run: Run, customers: int) -> Iterator[Measure]:
    of, data = calls(run, customers, run.scaled(ROWS)), run.folder / f"{customers}"
    store(data, of, run.scaled(ROWS), batches(run, BATCHES))
    found = contest(run, AIM, data, CONTENDERS, rarer(run, ROUNDS[customers]))
    about = f"{of.customers:,} customers"
    for (contender, baseline), target in RATES_OVER.items():
        yield found.faster(f"{about}: events a second, {contender} over {baseline}", contender, baseline, target)
    for executor in EXECUTORS:
        # By Spark alone a read is a job at least.
        target = at_least(10) if customers == CUSTOMERS and executor == KERNEL else None
        yield found.reads_faster(f"{about}: reads, {DEFERRED} over {executor}", executor, target)


# concurrent


RATES = {10_000: 30.0, 50_000: 30.0}
"""Events a second, and how many seconds they go on."""
BATCHES_A_SECOND = 10
BEFORE_READS = 500_000
WARM_UP = 5
MOST_DOTS = 2_000


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a view: when it began, counted from the start, and how long it took."""

    view: str
    at: float
    took: float


@dataclass(frozen=True, slots=True)
class Fed:
    """Inserts at an even pace, each at its time or as soon after it as could be."""

    rows: int
    elapsed: float
    took: Sequence[float]
    behind: float

    def notes(self) -> dict[str, int]:
        return {
            "inserted_events_per_second": round(self.rows / self.elapsed),
            "longest_insert_ms": round(1_000 * max(self.took)),
            "most_behind_ms": round(1_000 * self.behind),
        }


def _feed(db: Database, made: Sequence[pa.Table], stop: threading.Event) -> Fed:
    started, took, behind = time.perf_counter(), [], 0.0
    for number, batch in enumerate(made):
        due = started + number / BATCHES_A_SECOND
        if stop.wait(max(0.0, due - time.perf_counter())):
            break
        behind = max(behind, time.perf_counter() - due)
        took.append(seconds(partial(db.insert, AIM.stream, batch)))
    elapsed = max(time.perf_counter() - started, len(made) / BATCHES_A_SECOND)
    return Fed(sum(batch.num_rows for batch in made), elapsed, took, behind)


def concurrent(run: Run) -> Sequence[Measure]:
    """Reads one after the other, of a view chosen by chance, beside inserts at a fixed pace."""
    measures: list[Measure] = []
    for executor in EXECUTORS:
        reads = {}
        with _opened(run, executor, run.scaled(BEFORE_READS)) as (db, job):
            first = run.scaled(BEFORE_READS)
            for rate in RATES:
                reads[rate], fed = _at_rate(db, run, job, rate, first)
                first += fed.rows
                measures.append(_reads_measure(executor, rate, reads[rate], fed))
            _check_views(db, job)
        _plot_reads(run, executor, reads)
    return measures


@contextmanager
def _opened(run: Run, executor: str, rows: int) -> Iterator[tuple[Database, Job]]:
    """A database with the views over some events."""
    job = Job(executor, AIM, run.folder / f"data-{executor}", run.folder / executor)
    store(job.data, calls(run, CUSTOMERS, rows), rows, LEAST_BATCHES)
    with database(job) as db:
        create_views(db, AIM, executor)
        for file in job.files():
            db.insert(AIM.stream, pq.read_table(file))
        db.drain()
        for _ in range(rarer(run, WARM_UP)):
            _read_all(db)
        yield db, job


def _read_all(db: Database) -> Answers:
    return {name: read_view(db, name) for name in QUERIES}


def _check_views(db: Database, job: Job) -> None:
    """What the views say is Spark's batch answer over the files of the job."""
    with plain_spark(job) as spark:
        check(job.contender, AIM, {0: _read_all(db)}, {0: batch_answers(spark, AIM, job.files())})


def _at_rate(db: Database, run: Run, job: Job, rate: int, first: int) -> tuple[list[Read], Fed]:
    """One rate, from now on for a while; the events come from number `first` on and join the files of the job."""
    lasting = max(1.0, RATES[rate] * min(1.0, run.scale))
    size = max(1, run.scaled(rate) // BATCHES_A_SECOND)
    of = calls(run, CUSTOMERS, run.scaled(BEFORE_READS))
    made = [of.events(first + n * size, size) for n in range(round(lasting * BATCHES_A_SECOND))]
    pq.write_table(pa.concat_tables(made), job.data / "stream" / f"{rate}.parquet")
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(_feed, db, made, stop)
        try:
            reads = list(_read_by_chance(db, rate, lasting))
        except BaseException:
            stop.set()
            raise
        return reads, fed.result()


def _read_by_chance(db: Database, seed: int, lasting: float) -> Iterator[Read]:
    random, names = np.random.default_rng(seed), list(QUERIES)
    started = time.perf_counter()
    while (began := time.perf_counter() - started) < lasting:
        view = names[random.integers(len(names))]
        read_view(db, view)
        yield Read(view, began, time.perf_counter() - started - began)


def _reads_measure(executor: str, rate: int, reads: Sequence[Read], fed: Fed) -> Measure:
    lasted = reads[-1].at + reads[-1].took
    notes = {
        "reads": len(reads),
        "latency_ms": _latency_ms(reads),
        "latency_ms_by_view": {
            view: _latency_ms([r for r in reads if r.view == view]) for view in sorted({r.view for r in reads})
        },
        **fed.notes(),
    }
    ends = np.histogram([r.at + r.took for r in reads], max(1, round(lasted)))[0]
    name = f"reads beside {rate:,} inserts a second, {executor}"
    return Measure(name, len(reads) / lasted, "/s", None, {"by second": ends.tolist()}, notes)


def _latency_ms(reads: Sequence[Read]) -> dict[str, float]:
    took = [r.took for r in reads]
    return {f"p{part}": round(1_000 * float(np.percentile(took, part)), 2) for part in (50, 95, 99, 100)}


def _plot_reads(run: Run, executor: str, reads: Mapping[int, Sequence[Read]]) -> None:
    series = [
        Series(f"{rate:,} inserts a second", [(r.at, 1_000 * r.took) for r in _some(of)], dots=True)
        for rate, of in reads.items()
    ]
    title = f"Latency of reads beside inserts, {executor}"
    _save(run, f"concurrent-{executor}", Plot(title, "seconds", "latency, ms", series))


def _some(reads: Sequence[Read]) -> Sequence[Read]:
    """No more than a plot can show, evenly chosen."""
    return reads[:: 1 + len(reads) // MOST_DOTS]


# repeated


REPEATED_ROWS = 1_000_000
REPEATED_READS = 30_000


def repeated(run: Run) -> Sequence[Measure]:
    """Reads of views that are up to date, one after the other, from one thread."""
    return [_repeated(run, executor) for executor in EXECUTORS]


def _repeated(run: Run, executor: str) -> Measure:
    many = run.scaled(REPEATED_READS // len(QUERIES), 10)
    with _opened(run, executor, run.scaled(REPEATED_ROWS)) as (db, job):
        took = {view: [_timed_read(db, view) for _ in range(many)] for view in QUERIES}
        _check_views(db, job)
    everything = [t for of in took.values() for t in of]
    notes: dict[str, Any] = {
        "reads": len(everything),
        "reads_per_second": {view: round(many / sum(of)) for view, of in took.items()},
        "latency_us": {f"p{p}": round(1e6 * float(np.percentile(everything, p)), 1) for p in (50, 99, 100)},
    }
    samples = {view: [sum(of)] for view, of in took.items()}
    name = f"reads with nothing new, {executor}"
    return Measure(name, len(everything) / sum(everything), "/s", at_least(5_000), samples, notes)


def _timed_read(db: Database, view: str) -> float:
    started = time.perf_counter()
    read_view(db, view)
    return time.perf_counter() - started


# growth


GROWTH_BATCHES = 20
EARLY = 5
"""The first look at the state is after one part in so many of the events."""


def growth(run: Run) -> Sequence[Measure]:
    """The bytes of state from the time on that all groups are there; nobody reads."""
    rows, data = run.scaled(ROWS), run.folder / "data"
    count = max(EARLY, batches(run, GROWTH_BATCHES))
    store(data, calls(run, CUSTOMERS, rows), rows, count)
    states: dict[str, Mapping[int, int]] = {}
    expected = contend(Job(BATCH, AIM, data, run.folder / "batch", read_every=count))
    for executor in EXECUTORS:
        outcome = contend(Job(executor, AIM, data, run.folder / executor, read_every=count))
        check(executor, AIM, outcome.answers, expected.answers)
        states[executor] = outcome.state
    _plot_growth(run, rows / count, states)
    return [_growth_measure(executor, state, rows, count) for executor, state in states.items()]


def _growth_measure(executor: str, state: Mapping[int, int], rows: int, count: int) -> Measure:
    early = count // EARLY
    notes = {"early_bytes": state[early], "late_bytes": state[count], "most_bytes": max(state.values())}
    name = f"state after {rows:,} events over that after {rows // EARLY:,}, {executor}"
    samples = {"bytes": [float(b) for b in state.values()]}
    return Measure(name, state[count] / state[early], "×", at_most(1.2), samples, notes)


def _plot_growth(run: Run, batch: float, states: Mapping[str, Mapping[int, int]]) -> None:
    series = [
        Series(executor, [(number * batch / 1e6, held / MEBIBYTE) for number, held in state.items()])
        for executor, state in states.items()
    ]
    _save(run, "growth", Plot("State of the six views", "million events", "MiB", series))


# memory


MEMORY_ROWS = 50_000_000
MEMORY_BATCHES = 100
MEMORY_READS = 10


def memory(run: Run) -> Sequence[Measure]:
    """The most memory that the processes of a database have while many events go through it."""
    rows, data = run.scaled(MEMORY_ROWS), run.folder / "data"
    count = batches(run, MEMORY_BATCHES)
    store(data, calls(run, CUSTOMERS, rows), rows, count)
    expected, _ = contend_apart(Job(BATCH, AIM, data, run.folder / "batch", read_every=count))
    every = max(1, count // MEMORY_READS)
    measures = []
    for executor in EXECUTORS:
        outcome, peak = contend_apart(Job(executor, AIM, data, run.folder / executor, read_every=every))
        check(executor, AIM, outcome.answers, expected.answers)
        measures.append(_memory_measure(executor, rows, outcome, peak))
    return measures


def _memory_measure(executor: str, rows: int, outcome: Outcome, peak: Resident) -> Measure:
    notes = {
        "mib": {part: round(getattr(peak, part) / MEBIBYTE) for part in ("driver", "jvm", "workers")},
        "events_per_second": round(rows / outcome.total),
        "state_mib": round(max(outcome.state.values()) / MEBIBYTE, 1),
    }
    name = f"peak memory of {rows:,} events through six views, {executor}"
    return Measure(name, peak.total / GIB, "GiB", at_most(5), {"s": outcome.inserting}, notes)


if __name__ == "__main__":
    parts = {
        "throughput": throughput,
        "concurrent": concurrent,
        "repeated": repeated,
        "growth": growth,
        "memory": memory,
    }
    sys.exit(main("aim", parts, __doc__ or ""))
