"""The six AIM views and TPC-H Q1, Q3, Q6, Q15, Q20 over a stream: both executors give Spark's batch answers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CUSTOMERS, EVENTS, BATCHES = 200, 6_000, 2
SCALE_FACTOR = 0.01


@pytest.fixture
def aim(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("_aim")


@pytest.fixture
def tpch(aim: Any) -> Any:
    del aim
    return import_module("_tpch")


def check(aim: Any, workload: Any, data: Path, *executors: str) -> None:
    expected = aim.contend(aim.Job(aim.BATCH, workload, data, data.with_name("batch")))
    without = [name for name in workload.queries if not expected.answers[BATCHES][name].num_rows]
    assert not without, "queries whose answers are empty show nothing"
    for executor in executors:
        found = aim.contend(aim.Job(executor, workload, data, data.with_name(executor)))
        assert len(found.answers) == BATCHES
        aim.check(executor, workload, found.answers, expected.answers)


@pytest.mark.usefixtures("spark")
def test_aim(aim: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    aim.store(data, aim.Calls(CUSTOMERS, EVENTS // aim.BEFORE), EVENTS, BATCHES)
    check(aim, aim.AIM, data, *aim.EXECUTORS)


@pytest.mark.usefixtures("spark")
def test_tpch_in_whole_cents(aim: Any, tpch: Any, tmp_path: Path) -> None:
    tpch.store(tmp_path / "data", tpch.INTEGERS, SCALE_FACTOR, BATCHES)
    check(aim, tpch.workload(tpch.INTEGERS), tmp_path / "data", *aim.EXECUTORS)


@pytest.mark.usefixtures("spark")
def test_tpch_in_decimals(aim: Any, tpch: Any, tmp_path: Path) -> None:
    tpch.store(tmp_path / "data", tpch.DECIMALS, SCALE_FACTOR, BATCHES)
    check(aim, tpch.workload(tpch.DECIMALS), tmp_path / "data", aim.SPARK_SQL)


def test_a_wrong_answer_is_noticed(aim: Any) -> None:
    import pyarrow as pa

    one, other = pa.table({"a": [1.0, 2.0]}), pa.table({"a": [2.0, 1.0 + 1e-6]})
    assert aim.agree(one, one)
    assert not aim.agree(one, other)
    assert not aim.agree(one, one.slice(1))
    assert aim.agree(one.slice(1), one, limit=1)
    assert not aim.agree(pa.table({"a": [3.0]}), one, limit=1)
