"""Batches of scheduled joins: how they get to tasks, and what is held of them from then on."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import MillstreamError
from millstream.queries import parcels
from millstream.queries.parcels import Parcel, Rows


def some(count: int, *, is_late: bool = False) -> Rows:
    ids = np.arange(7, 7 + count)
    times = np.full(count, 1_767_225_600_000_000)
    keys = pa.array([None if i % 10 == 0 else f"key-{i * 7_919 % 100_003:010}" for i in range(count)])
    return Rows(pa.table({"k": keys}), ids, times, times + ids % 2 if is_late else times)


def is_same(one: Rows, other: Rows) -> bool:
    arrays = [(one.ids, other.ids), (one.times, other.times), (one.enter, other.enter)]
    return one.rows.equals(other.rows) and all(np.array_equal(a, b) for a, b in arrays)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("count", [1, 20_000])
def test_a_packed_batch_is_what_it_was(count: int, is_late: bool, tmp_path: Path) -> None:
    rows = some(count, is_late=is_late)
    parcel = Parcel(rows, tmp_path)
    sent = pickle.loads(pickle.dumps(parcel))
    for one in (parcel, parcel.opened(), sent, sent.opened()):
        assert len(one) == count
        assert is_same(one.rows, rows)
    assert (sent.rows.enter is sent.rows.times) is not is_late


def test_a_packed_batch_holds_a_quarter_of_its_memory_in_one_file(tmp_path: Path) -> None:
    parcel = Parcel(some(20_000), tmp_path)
    before = parcel.bytes
    for _ in range(3):
        pickle.dumps(parcel)
    [file] = tmp_path.iterdir()
    assert parcel.bytes == file.stat().st_size < before / 3
    assert parcel.rows is not parcel.rows


def test_one_batch_is_one_in_a_task_whatever_looks_into_it(tmp_path: Path) -> None:
    parcel = Parcel(some(10), tmp_path)
    first, second = pickle.loads(pickle.dumps([parcel, parcel]))
    assert first is second


def test_a_large_batch_is_packed_when_it_is_put_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "PACKED_FROM", 100)
    small, large = Parcel(some(99), tmp_path), Parcel(some(100), tmp_path)
    for parcel in (small, large, large):
        parcel.put_away()
    assert len(list(tmp_path.iterdir())) == 1
    assert small.rows is small.rows
    assert is_same(large.rows, some(100))


def test_its_file_goes_with_it(tmp_path: Path) -> None:
    parcel = Parcel(some(10), tmp_path)
    pickle.dumps(parcel)
    del parcel
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_small_batch_travels_by_itself() -> None:
    parcel = Parcel(some(10))
    assert is_same(pickle.loads(pickle.dumps(parcel)).rows, parcel.rows)


def test_a_disk_that_fails_is_an_error_of_ours(tmp_path: Path) -> None:
    parcel = Parcel(some(10), tmp_path / "nowhere")
    with pytest.raises(MillstreamError):
        pickle.dumps(parcel)
    assert is_same(parcel.rows, some(10))
