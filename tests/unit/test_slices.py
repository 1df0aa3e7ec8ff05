"""Slices of a window by themselves, and what scheduled joins remember of response times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.catalog.records import StreamTime, TableInfo
from millstream.plan.sharing import Equality
from millstream.queries.lookup import Lookup
from millstream.queries.parcels import Parcel, Rows
from millstream.queries.response import Arrivals, Responses
from millstream.queries.slices import Reach, Unit, by_kernel, matched
from millstream.schema import Column, Duration, ObjectKind, Schema


def stream_table() -> TableInfo:
    schema = Schema((Column("k", pa.int64()), Column("t", pa.int64())))
    time = StreamTime("t", Duration(0, is_number=True))
    return TableInfo(1, "s", ObjectKind.STREAM, schema, (1, 2), "", 1, time)


@pytest.mark.parametrize("seed", range(20))
def test_slices_together_are_the_window_and_each_pair_is_in_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    equalities = (Equality(0, "k", 1, "k"),) if seed % 2 else ()

    def some(number: int) -> tuple[pa.Table, Any, Any]:
        times = random.integers(0, 40, number)
        return pa.table({"k": random.integers(0, 3, number), "t": times}), np.arange(number), times

    rows, ids, times = some(12)
    others, their_ids, their_times = some(30)
    late = {int(i): int(their_times[i]) + 7 for i in random.choice(30, 4, replace=False)}
    enter = times + random.choice([0, 0, 0, 5], len(times))
    batch, table = Rows(rows, ids, times, enter), stream_table()
    span = [int(their_times[i]) for i in late]
    reach = Reach(0, 28, 35, 20, 20, late=late, late_span=(min(span), max(span)))
    found: list[tuple[int, int]] = []
    for low, high in ((0, 3), (3, 10), (10, 25)):
        unit = Unit(Parcel(batch), 0, equalities, reach, low, high, table, ("k", "t"))
        pairs = matched(unit, others, their_ids, by_kernel)
        own = list(zip(pairs.mine.tolist(), pairs.rows.ids[pairs.theirs].tolist(), strict=True))
        for mine, theirs in own:
            away = distance(times, enter, their_times, reach.enter(their_ids, their_times), mine, theirs)
            assert away <= high
            assert low < away or low == 0
        found += own
    keys, their_keys = rows.column("k").to_pylist(), others.column("k").to_pylist()
    their_enter = reach.enter(their_ids, their_times)
    expected = [
        (a, b)
        for a in range(len(ids))
        for b in range(28)
        if (not equalities or keys[a] == their_keys[b])
        and their_times[b] <= 35
        and distance(times, enter, their_times, their_enter, a, b) <= 25
    ]
    assert sorted(found) == expected


def test_rows_outside_of_a_slice_make_no_pairs_however_few_keys_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, pairs = [], Lookup.pairs

    def counted(*args: Any) -> Any:
        for mine, theirs in pairs(*args):
            seen.append(len(mine))
            yield mine, theirs

    monkeypatch.setattr(Lookup, "pairs", counted)
    mine, theirs = np.full(100, 10_000), np.arange(10_000)
    rows, others = (pa.table({"k": times % 2, "t": times}) for times in (mine, theirs))
    reach = Reach(0, 10_000, 10_000, 0, 0)
    unit = Unit(Parcel(Rows(rows, np.arange(100), mine, mine)), 0, (Equality(0, "k", 1, "k"),), reach, 0, 10,
                stream_table(), ("k", "t"))  # fmt: skip
    found = matched(unit, others, np.arange(10_000), by_kernel)
    assert sum(seen) == len(found) == 100 * 5


def distance(times: Any, enter: Any, their_times: Any, their_enter: Any, mine: int, theirs: int) -> int:
    both = max(int(enter[mine]), int(their_enter[theirs]))
    return both - min(int(times[mine]), int(their_times[theirs]))


def test_response_times_are_kept_in_a_few_numbers() -> None:
    told, seconds = Responses(), np.random.default_rng(1).exponential(2.0, 10_000)
    for part in np.array_split(seconds, 7):
        told.add(part)
    assert told.average == pytest.approx(seconds.mean())
    assert told.most == seconds.max()
    assert told.percentile(0.95) == pytest.approx(np.percentile(seconds, 95), rel=0.11)
    assert Responses().percentile(0.95) is None


def test_arrivals_know_when_rows_came() -> None:
    known = Arrivals()
    for end, now in ((3, 10.0), (5, 20.0), (5, 30.0), (9, 40.0)):
        known.note(end, now)
    assert known.of(np.array([0, 2, 3, 4, 5, 8, 9])).tolist() == [10.0, 10.0, 20.0, 20.0, 40.0, 40.0, 40.0]
    assert Arrivals().of(np.array([1])).tolist() == [-np.inf]
