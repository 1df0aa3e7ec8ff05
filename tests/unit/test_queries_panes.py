"""Panes merged in pairs give what merging all of them gives, and each answer takes few merges."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.plan.incremental import Part, Partial
from millstream.queries.chorus import Bounds
from millstream.queries.panes import Panes, UnmergeableError, by_pane, can_merge, with_pane
from millstream.queries.piles import FAN, Piles

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = pa.schema(
    [("e", pa.int64()), ("u", pa.int64()), ("k0", pa.int32()), ("p0", pa.int64()), ("p1", pa.int64())]
)
PART = Part(
    (0,), "x", None, (), ("e", "u", "k0"), "e, u, k0",
    (Partial("p0", "sum(a0){f}", "sum(p0)"), Partial("p1", "max(a0){f}", "max(p1)")),
    types=(("e", "bigint"), ("u", "bigint"), ("k0", "int"), ("p0", "bigint"), ("p1", "bigint")),
)  # fmt: skip

UNKEYED = replace(PART, keys=("e", "u"), grouping="e, u")
UNKEYED_SCHEMA = pa.schema([f for f in SCHEMA if f.name != "k0"])

Row = tuple[int, int, int | None, int | None, int | None]


def table(rows: Sequence[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def naive(rows: Sequence[Row], x: int) -> list[tuple[Any, ...]]:
    found: dict[int | None, tuple[int | None, int | None]] = {}
    for e, u, key, total, most in rows:
        if e <= x <= u:
            known = found.get(key, (None, None))
            totals = [n for n in (known[0], total) if n is not None]
            largest = [n for n in (known[1], most) if n is not None]
            found[key] = (sum(totals) if totals else None, max(largest, default=None))
    return sorted(((k, *v) for k, v in found.items()), key=repr)


def shown(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(rows.column(n).to_pylist() for n in ("k0", "p0", "p1")), strict=True), key=repr)


@pytest.mark.parametrize("seed", range(20))
def test_every_instant_has_what_is_open(seed: int) -> None:
    random = Random(seed)
    panes, rows = Panes(PART, SCHEMA), list[Row]()
    for x in range(0, 200, random.choice([1, 3, 7])):
        new: list[Row] = []
        for _ in range(random.randint(0, 6)):
            enter = x + random.choice([0, 0, 0, 1, 5])
            value = random.choice([None, random.randint(-9, 9)])
            new.append(
                (enter, enter + random.choice([0, 20, 20, 20, 3]), random.choice([None, 1, 2, 3]), value, value)
            )
        rows += new
        panes.add(table(new))
        assert shown(panes.at(x)) == naive(rows, x)
        if random.random() < 0.3:
            panes.expire(x)


@pytest.mark.parametrize("seed", range(30))
def test_many_instants_at_once_are_as_one_by_one(seed: int) -> None:
    random = Random(seed)
    part, schema = (PART, SCHEMA) if seed % 3 else (UNKEYED, UNKEYED_SCHEMA)
    together, alone = Panes(part, schema), Panes(part, schema)
    due = range(0)
    for _ in range(8):
        due = range(due.stop, due.stop + random.choice([3, 20, 40]))
        new: list[Row] = []
        for _ in range(random.randint(0, 60)):
            enter = random.choice(due) + random.choice([0, 0, 50])
            value = random.choice([None, random.randint(-9, 9)])
            length = random.choice([45, 45, 45, 3 if seed % 5 == 0 else 60])
            new.append((enter, enter + length, random.choice([None, 1, 2, 3]), value, value))
        for panes in (together, alone):
            panes.add(table(new).select(schema.names))
        found = together.at_each(due)
        for x, rows in zip(due, found, strict=True):
            assert contents(rows) == contents(alone.at(x))


def contents(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(rows.column(n).to_pylist() for n in rows.column_names), strict=True), key=repr)


def test_many_instants_at_once_are_not_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    panes = Panes(PART, SCHEMA)
    panes.add(table([(e, e + 500, e % 7, e, e) for e in range(100)]))
    monkeypatch.setattr(Panes, "at", lambda *_: pytest.fail("an instant was asked alone"))
    assert [r.num_rows for r in panes.at_each(range(100))] == [min(x + 1, 7) for x in range(100)]


def test_an_answer_takes_few_merges_however_many_panes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[int] = []
    real = Panes._merged

    def counting(self: Panes, pieces: Sequence[pa.Table]) -> pa.Table:
        merged[-1] += len(pieces)
        return real(self, pieces)

    monkeypatch.setattr(Panes, "_merged", counting)
    for count in (64, 1_024):
        panes = Panes(PART, SCHEMA)
        for x in range(3 * count):
            merged.append(0)
            panes.add(table([(x, x + count - 1, 1, 1, x)]))
            assert shown(panes.at(x))[0] == (1, min(x + 1, count), x)
        assert max(merged[-count:]) <= 6 * count.bit_length()
        assert sum(merged[-count:]) / count <= 3 * count.bit_length()


def test_what_has_left_is_given_up() -> None:
    panes = Panes(PART, SCHEMA)
    for x in range(1_000):
        panes.add(table([(x, x + 9, 1, 1, 1)]))
        panes.at(x)
    assert panes.rows == 10
    assert len(panes._nodes) <= 200


def test_a_landmark_is_one_row_a_group() -> None:
    panes = Panes(PART, SCHEMA)
    for x in range(100):
        panes.add(table([(x, 2**62, key, 1, x) for key in (1, 2)]))
        assert shown(panes.at(x)) == [(1, x + 1, x), (2, x + 1, x)]
    assert panes.rows == 2


def test_rows_come_back_from_what_is_stored() -> None:
    panes = Panes(PART, SCHEMA)
    panes.add(table([(0, 5, 1, 1, 1), (1, 6, 1, 2, 2), (9, 12, 1, 4, 4)]))
    panes.at(2)
    again = Panes(PART, SCHEMA)
    for rows in panes.tables():
        again.add(rows)
    for x in (3, 6, 9, 12, 13):
        assert shown(again.at(x)) == shown(panes.at(x))


def test_sums_that_might_overflow_are_for_spark() -> None:
    panes = Panes(PART, SCHEMA)
    panes.add(table([(0, 5, 1, 2**62, 1), (0, 5, 1, 2**62, 1)]))
    with pytest.raises(UnmergeableError):
        panes.at(0)


def test_what_arrow_cannot_merge_is_known_before() -> None:
    assert can_merge(PART)
    other = Part((0,), "x", None, (), ("e", "u", "k0"), "e, u, k0", (Partial("p0", "x", "hll_union_agg(p0)"),))
    assert not can_merge(other)


def merged_naively(wanted: Sequence[Sequence[pa.Table]]) -> list[pa.Table]:
    """What Spark does, here."""
    made = []
    for pieces in wanted:
        panes = Panes(PART, SCHEMA)
        for rows in pieces:
            panes.add(with_pane(rows, 0, SCHEMA))
        made.append(panes.at(0))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_piles_give_every_instant_what_is_open(seed: int) -> None:
    random = Random(seed)
    piles, rows = Piles(SCHEMA), list[Row]()
    lengths = random.choice([[20], [20, 3], [2**60], [400, 2**60]])
    due = range(0)
    while due.stop < 300:
        due = range(due.stop, due.stop + random.choice([1, 2, 60]))
        new: list[Row] = []
        for _ in range(random.randint(0, 6)):
            enter = random.choice(due) + random.choice([0, 0, 0, 5])
            leave = min(2**60, enter + random.choice(lengths))
            value = random.choice([None, random.randint(-9, 9)])
            new.append((enter, leave, random.choice([None, 1, 2, 3]), value, value))
        rows += new
        piles.add(table(new))
        for at, cover in zip(due, piles.at_each(due, merged_naively), strict=True):
            (whole,) = merged_naively([cover])
            assert shown(whole) == naive(rows, at)
        piles.expire(due[-1])
        assert all(shown(whole) == naive(rows, due[-1] + 1) for whole in _after(piles, due[-1] + 1))
        rows = [r for r in rows if r[1] > due[-1]]


def _after(piles: Piles, x: int) -> list[pa.Table]:
    """The answer of piles that were stored and read again."""
    again = Piles(SCHEMA)
    for rows in piles.tables():
        again.add(rows)
    return merged_naively(again.at_each([x], merged_naively))


@pytest.mark.parametrize("lasting", [500, 2**60])
def test_an_answer_reads_few_rows_of_piles_and_seldom_merges(lasting: int) -> None:
    piles, reads, merges = Piles(SCHEMA), list[int](), list[int]()

    def counting(wanted: Sequence[Sequence[pa.Table]]) -> list[pa.Table]:
        merges.append(len(wanted))
        return merged_naively(wanted)

    for x in range(2_000):
        piles.add(table([(x, min(2**60, x + lasting), 1, 1, 1)]))
        (cover,) = piles.at_each([x], counting)
        reads.append(sum(p.num_rows for p in cover))
        piles.expire(x)
    assert max(reads[1_000:]) <= 6 * FAN
    assert len(merges) <= 2_000 // FAN + 1
    assert piles.rows <= (501 if lasting == 500 else 4 * FAN)
    (last,) = merged_naively([cover])
    assert shown(last) == [(1, min(2_000, lasting + 1), 1)]


def test_what_cannot_be_merged_is_left_as_it_was() -> None:
    panes = Panes(PART, SCHEMA)
    panes.add(table([(0, 5, 1, 1, 1), (1, 9, 1, 2**62, 2)]))
    with pytest.raises(UnmergeableError):
        panes.at_each([0, 1, 7])
    kept = pa.concat_tables(list(panes.tables()))
    assert sorted(kept.column("u").to_pylist()) == [5, 9]
    assert kept.column("e").to_pylist() == [0, 1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("in_order", [True, False])
def test_rows_come_pane_by_pane_in_whatever_order_they_are(seed: int, in_order: bool) -> None:
    rng = Random(seed)
    rows: list[Row] = [(rng.randrange(4), rng.randrange(4, 7), k, k, k) for k in range(rng.choice([1, 2, 40]))]
    rows = sorted(rows) if in_order else rows
    found = list(by_pane(table(rows)))
    assert [pane[:2] for pane in found] == sorted({row[:2] for row in rows})
    for enter, leave, own in found:
        assert list(zip(*own.to_pydict().values(), strict=True)) == [r for r in rows if r[:2] == (enter, leave)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("in_order", [True, False])
def test_each_fine_pane_is_in_the_pane_of_its_bounds(seed: int, in_order: bool) -> None:
    rng = Random(seed)
    pairs = [(rng.randrange(5), rng.randrange(7)) for _ in range(rng.choice([0, 1, 30]))]
    pairs = sorted(pairs) if in_order else pairs
    enter, leave = (np.array([p[n] for p in pairs], np.int64) for n in (0, 1))
    made = Bounds.between(enter, leave)
    panes = list(zip(made.enter.tolist(), made.leave.tolist(), strict=True))
    assert panes == sorted({p for p in pairs if p[0] <= p[1]})
    assert [None if n < 0 else panes[n] for n in made.of.tolist()] == [p if p[0] <= p[1] else None for p in pairs]
