"""Continuous views on TPC-H with lineitem as the stream: Q1, Q3, Q6, Q15 and Q20, each read after every 500K rows.

decimals   scale factor 1 with money as generated, against plain Structured Streaming and evaluation on read
integers   the same with money in whole cents, which both executors can add up
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial

from _aim import DEFERRED, EXECUTORS, STREAMING
from _tpch import DECIMALS, INTEGERS, Numbers, store, workload
from aim import batches, contest
from harness import Measure, Run, main
from history import rarer

BATCHES = 12
ROUNDS = 1
CONTENDERS = (*EXECUTORS, STREAMING, DEFERRED)


def throughput(numbers: Numbers, run: Run) -> Sequence[Measure]:
    """How fast rows come in, and views are read, against the other ways to have the same answers."""
    return list(_throughput(numbers, run))


def _throughput(numbers: Numbers, run: Run) -> Iterator[Measure]:
    data = run.folder / "data"
    store(data, numbers, run.scale, batches(run, BATCHES))
    found = contest(run, workload(numbers), data, CONTENDERS, rarer(run, ROUNDS))
    for baseline in (STREAMING, DEFERRED):
        for executor in EXECUTORS:
            name = f"{numbers.name}: rows a second, {executor} over {baseline}"
            yield found.faster(name, executor, baseline, None)
    for executor in EXECUTORS:
        yield found.reads_faster(f"{numbers.name}: reads, {DEFERRED} over {executor}", executor, None)


if __name__ == "__main__":
    parts = {numbers.name: partial(throughput, numbers) for numbers in (DECIMALS, INTEGERS)}
    sys.exit(main("tpch", parts, __doc__ or ""))
