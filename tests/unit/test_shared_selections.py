"""Selections that queries share: each query gets what its own WHERE selects, whatever the order of operators."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from millstream.execute.shared import grouped
from millstream.execute.shared.codes import Direct, Hashed, Sorted, Words, codes_among
from millstream.execute.shared.grouped import GroupedFilter
from millstream.execute.shared.lineage import BitLineage, PairLineage
from millstream.execute.shared.selections import Selections
from millstream.plan.selection import Domain, Selection, Term
from millstream.rewrite import names
from millstream.rewrite.selection import selection_of
from millstream.schedule.eddy import Fixed, Policy, Shuffled, Tickets, drawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TYPES = {
    "a": pa.int32(),
    "b": pa.int64(),
    "x": pa.float64(),
    "w": pa.string(),
    "f": pa.bool_(),
    "d": pa.date32(),
    "l": pa.list_(pa.int32()),
    "n": pa.decimal128(38, 0),
}
WORDS = ["", "Ä", "a", "ab", "b", "é", "z", "𝄞"]


def predicate(text: str) -> Selection:
    query = names.parsed_query(f"SELECT 1 FROM s WHERE {text}")
    return selection_of(query.args["where"].this, TYPES)


def some_rows(random: Random, count: int) -> pa.Table:
    def maybe(value: object) -> object:
        return None if random.random() < 0.1 else value

    first = datetime.date(2026, 1, 1)
    return pa.table(
        {
            "a": pa.array([maybe(random.randrange(12)) for _ in range(count)], TYPES["a"]),
            "b": pa.array([maybe(random.randrange(-5, 5)) for _ in range(count)], TYPES["b"]),
            "x": pa.array(
                [maybe(random.choice([0.0, -0.0, 1.5, 2.5, -7.0, float("inf")])) for _ in range(count)], TYPES["x"]
            ),
            "w": pa.array([maybe(random.choice(WORDS)) for _ in range(count)], TYPES["w"]),
            "f": pa.array([maybe(random.random() < 0.5) for _ in range(count)], TYPES["f"]),
            "d": pa.array(
                [maybe(first + datetime.timedelta(random.randrange(9))) for _ in range(count)], TYPES["d"]
            ),
            "l": pa.array([maybe([1] * random.randrange(3)) for _ in range(count)], TYPES["l"]),
            "n": pa.array([maybe(Decimal(10) ** 37) for _ in range(count)], TYPES["n"]),
        }
    )


def a_test(random: Random) -> str:
    compares = random.choice(["=", "<>", "<", "<=", ">", ">="])
    a, b = sorted(random.choices(range(12), k=2))
    return random.choice(
        [
            f"a {compares} {a}",
            f"{b} {compares} b",
            f"b {compares} -{a}",
            f"a BETWEEN {a} AND {b}",
            f"a NOT BETWEEN {b} AND {a}",
            f"a IN ({a}, {b}, {random.randrange(12)})",
            f"x {compares} {random.choice(['1.5', '2', '-7.0', '0'])}",
            f"w {compares} '{random.choice(WORDS)}'",
            f"w NOT IN ('a', '{random.choice(WORDS)}')",
            f"d {compares} DATE '2026-01-0{random.randrange(1, 9)}'",
            f"{a} BETWEEN a AND b",
            f"{a} NOT IN (a, b)",
            f"{b} BETWEEN a AND a",
            "a IS NULL",
            "w IS NOT NULL",
            "l IS NOT NULL",
            "n IS NULL",
            "f",
            "f = false",
            "a = b",
            "a + b > 3",
            "w LIKE '%b'",
            "true",
        ]
    )


def a_predicate(random: Random, depth: int = 3) -> str:
    if depth == 0 or random.random() < 0.35:
        return a_test(random)
    kind = random.choice(["AND", "AND", "OR", "NOT"])
    if kind == "NOT":
        return f"NOT ({a_predicate(random, depth - 1)})"
    return f"({a_predicate(random, depth - 1)}) {kind} ({a_predicate(random, depth - 1)})"


def wanted(rows: pa.Table, predicates: Mapping[int, str]) -> list[tuple[int, int]]:
    found = []
    with duckdb.connect() as connection:
        numbered = rows.append_column("number", pa.array(range(rows.num_rows)))
        connection.register("s", numbered)
        for query, text in predicates.items():
            places = connection.execute(f"SELECT number FROM s WHERE {text} ORDER BY number").fetchall()
            found += [(query, place) for (place,) in places]
    return sorted(found)


def matched(selections: Selections, rows: pa.Table, policy: Policy) -> list[tuple[int, int]]:
    matcher = selections.ready()
    found = matcher.match(rows, drawn(policy, matcher.operators))
    for passed in found.passed:
        policy.observe(passed.operator, passed.terms, passed.taken, passed.returned)
    return list(zip(found.queries.tolist(), found.rows.tolist(), strict=True))


def check(found: list[tuple[int, int]], rows: pa.Table, predicates: Mapping[int, str]) -> None:
    """Rows are found once, all that a query selects, and no others where domains say all of it."""
    expected = wanted(rows, predicates)
    assert len(set(found)) == len(found)
    assert set(expected) <= set(found)
    exact = {q for q, text in predicates.items() if predicate(text).is_exact}
    assert [pair for pair in found if pair[0] in exact] == [pair for pair in expected if pair[0] in exact]


@pytest.mark.parametrize("seed", range(8))
def test_every_query_gets_what_its_where_selects(seed: int) -> None:
    random = Random(seed)
    rows = some_rows(random, 300)
    predicates = {q: a_predicate(random) for q in range(40)}
    selections = Selections(TYPES)
    for query, text in predicates.items():
        selections.add(query, predicate(text))
    names_ = selections.ready().operators
    policies = [Tickets(seed), Shuffled(seed), Fixed(names_), Fixed(names_[::-1])]
    for policy in policies:
        for _ in range(2):
            check(matched(selections, rows, policy), rows, predicates)


@pytest.mark.parametrize("seed", range(4))
def test_queries_come_and_go_between_batches(seed: int) -> None:
    random = Random(f"coming and going {seed}")
    selections, predicates, policy = Selections(TYPES), dict[int, str](), Tickets(seed)
    for step in range(12):
        for query in random.sample(sorted(predicates), k=min(len(predicates), random.randrange(6))):
            selections.drop(query)
            del predicates[query]
        for number in range(random.randrange(8)):
            query = step * 100 + number
            predicates[query] = a_predicate(random)
            selections.add(query, predicate(predicates[query]))
        rows = some_rows(random, random.choice([0, 1, 50]))
        check(matched(selections, rows, policy), rows, predicates)
        assert len(selections) == len(predicates)


def test_more_attributes_than_a_mask_has_bits() -> None:
    names_ = [f"c{i}" for i in range(80)]
    selections = Selections(dict.fromkeys(names_, pa.int64()))
    values = [i % 3 for i in range(80)]
    rows = pa.table({n: pa.array([v, 1], pa.int64()) for n, v in zip(names_, values, strict=True)})
    for query, name in enumerate(names_):
        selections.add(query, Selection((Term({name: Domain.comparing("=", 1)}),)))
    everywhere = Term({name: Domain.comparing(">", 0) for name in names_})
    selections.add(99, Selection((everywhere,)))
    expected = {(q, 1) for q in range(80)} | {(q, 0) for q in range(80) if values[q] == 1} | {(99, 1)}
    assert set(matched(selections, rows, Tickets())) == expected


def test_numbers_of_terms_are_given_back() -> None:
    selections = Selections(TYPES)
    for query in range(1_000):
        selections.add(query, predicate(f"a = {query}"))
        selections.drop(query)
    assert len(selections.ready().masks) == 1
    assert selections.ready().operators == []


@pytest.mark.parametrize("seed", range(4))
def test_bits_and_pairs_say_the_same(seed: int) -> None:
    random = Random(f"bits and pairs {seed}")
    rows = some_rows(random, 200)
    selections = Selections(TYPES)
    for query in range(150):
        selections.add(query, predicate(a_predicate(random, 2)))
    found, matcher = [], selections.ready()
    for kind in (BitLineage, PairLineage):
        lineage = kind(rows.num_rows, matcher.masks)
        for number, name in enumerate(matcher.operators):
            used = matcher.filters[name]
            codes = used.codes(rows.column(name))
            lineage.through(number, codes[lineage.alive] if kind is BitLineage else codes, used)
        found.append(sorted(zip(*(x.tolist() for x in lineage.found()), strict=True)))
    assert found[0] == found[1]
    assert len(set(found[0])) == len(found[0])


# The worked example of the CACQ slides: three queries over R.a and R.b

SLIDES = {0: "a > 10 AND b < 15", 1: "a > 20 AND b = 25", 2: "a = 0 AND b <> 50"}
A, B = 0, 1


def worked() -> tuple[Selections, GroupedFilter, GroupedFilter]:
    selections = Selections(TYPES)
    for query, text in SLIDES.items():
        selections.add(query, predicate(text))
    filters = selections.ready().filters
    return selections, filters["a"], filters["b"]


@dataclass
class OneRow:
    """A row on its way, and the bits that the slides write: done (of a, of b), and queries completed."""

    lineage: BitLineage | PairLineage

    def bits(self, completed: Sequence[bool]) -> str:
        done = "".join(str(self.lineage.done >> o & 1) for o in (A, B))
        return f"{done} {''.join(str(int(c)) for c in completed)}"

    def through(self, operator: int, used: GroupedFilter, value: int) -> str:
        lineage = self.lineage
        # The row's bits themselves: who dies is taken out of the array that there is then.
        held = lineage.completed if isinstance(lineage, BitLineage) else None
        lineage.through(operator, used.codes(pa.chunked_array([pa.array([value], used.kind)])), used)
        if held is not None:
            return self.bits([bool(int(held[0, 0]) >> q & 1) for q in SLIDES])
        assert isinstance(lineage, PairLineage)
        serves = set(lineage.pairs[1].tolist()) | set(np.flatnonzero(lineage.untested).tolist())
        return self.bits([q not in serves for q in SLIDES])


@pytest.mark.parametrize("kind", [BitLineage, PairLineage])
def test_the_first_row_of_the_slides(kind: type[BitLineage] | type[PairLineage]) -> None:
    """R1 = (5, 25): σb rejects it for Q1, then σa for the other two, and it dies."""
    selections, a, b = worked()
    row = OneRow(kind(1, selections.ready().masks))
    assert row.through(B, b, 25) == "01 100"
    assert not row.lineage.is_over
    assert row.through(A, a, 5) == "11 111"
    assert row.lineage.is_over
    assert len(row.lineage.found()[0]) == 0


@pytest.mark.parametrize("kind", [BitLineage, PairLineage])
def test_the_second_row_of_the_slides(kind: type[BitLineage] | type[PairLineage]) -> None:
    """R2 = (15, 0): after σa only Q1 is left, and after σb it is Q1's."""
    selections, a, b = worked()
    row = OneRow(kind(1, selections.ready().masks))
    assert row.through(A, a, 15) == "10 011"
    assert not row.lineage.is_over
    assert row.through(B, b, 0) == "11 111"
    assert row.lineage.is_over
    assert [x.tolist() for x in row.lineage.found()] == [[0], [0]]


def test_a_row_that_no_query_wants_dies_at_once() -> None:
    selections, a, _ = worked()
    lineage = BitLineage(2, selections.ready().masks)
    values = a.codes(pa.chunked_array([pa.array([5, 15], a.kind)]))
    lineage.through(A, values, a)
    assert lineage.alive.tolist() == [1]


def test_completion_masks_name_the_operators_of_a_query() -> None:
    selections, _, _ = worked()
    selections.add(3, predicate("b > 7"))
    assert selections.ready().masks.tolist() == [0b11, 0b11, 0b11, 0b10]


# What is a domain and what is text


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("a > 3 AND a < 9 AND a <> 5", [Term({"a": Domain(((3, 1), (5, 0), (5, 1), (9, 0)), starts=False)})]),
        ("a < 3 OR a > 9", [Term({"a": Domain(((3, 0), (9, 1)), starts=True)})]),
        ("NOT (a = 3 OR b = 4)", [predicate("a <> 3 AND b <> 4").terms[0]]),
        ("a > 9 AND a < 3", []),
        ("a = 3 OR upper(w) = 'X'", [Term(rest=("UPPER(w) = 'X'",)), predicate("a = 3").terms[0]]),
        ("a > 1.5", [Term(rest=("a > 1.5",))]),
        ("a = 99999999999999999999", [Term(rest=("a = 99999999999999999999",))]),
        ("5 BETWEEN a AND b", [Term(rest=("5 BETWEEN a AND b",))]),
        ("5 IN (a, b)", [Term(rest=("5 IN (a, b)",))]),
        ("5 IN (a, a)", [predicate("a = 5").terms[0]]),
        ("x < 1e400", [Term(rest=("x < 1e400",))]),
    ],
)
def test_what_a_predicate_becomes(text: str, terms: list[Term]) -> None:
    assert list(predicate(text).terms) == terms


def test_bits_are_the_same_for_all_codes_and_for_those_that_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    domains = {
        n: predicate(f"b BETWEEN {n * 7 % 50} AND {n * 7 % 50 + n}").terms[0].domains["b"] for n in range(150)
    }
    used = GroupedFilter("b", TYPES["b"], domains)
    codes = used.codes(pa.chunked_array([pa.array([0, None, 7, 7, 199, 3, 80], TYPES["b"])]))
    every = used.bits(codes, 3)
    monkeypatch.setattr(grouped, "MOST_TABLED", 0)
    assert (used.bits(codes, 3) == every).all()
    assert used.passes(codes, np.full(len(codes), 9, np.int32)).tolist() == [
        bool(word >> np.uint64(9) & np.uint64(1)) for word in every[:, 0]
    ]


def test_a_predicate_of_too_many_terms_stays_text() -> None:
    text = " AND ".join(f"(a = {i} OR b = {i})" for i in range(8))
    [term] = predicate(text).terms
    assert not term.domains
    assert len(term.rest) == 1


def test_nan_is_the_largest_double() -> None:
    selections = Selections(TYPES)
    for query, text in enumerate(["x > 5", "x < 5", "x = 5", "x <> 5"]):
        selections.add(query, predicate(text))
    rows = pa.table({"x": pa.array([float("nan")])})
    assert matched(selections, rows, Tickets()) == [(0, 0), (3, 0)]


WAYS: dict[type, tuple[pa.DataType, range, int, bool]] = {
    Direct: (pa.int32(), range(-40, 40), 20, False),
    Hashed: (pa.int64(), range(-(2**63), 2**63, 2**50), 500, True),
    Sorted: (pa.int64(), range(-(2**63), 2**63, 2**50), 500, False),
    Words: (pa.string(), range(60), 20, False),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_code_is_the_same_in_whatever_way_it_is_found(way: type) -> None:
    kind, space, count, is_equality = WAYS[way]
    random = Random(str(way))
    value = str if kind == pa.string() else int
    constants = sorted({value(random.choice(space)) for _ in range(count)})
    asked = [*constants, *(value(random.choice(space)) for _ in range(300)), value(space[0]), value(space[-1])]
    chosen = codes_among(constants, kind, is_equality=is_equality)
    assert isinstance(chosen, way)
    found = chosen.of(pa.chunked_array([pa.array(asked, kind)]))
    for one, code in zip(asked, found.tolist(), strict=True):
        if one in constants:
            assert code == 2 * constants.index(one) + 1
        else:
            assert code == (0 if is_equality else 2 * sum(c < one for c in constants))


def test_words_that_are_only_compared_for_being_equal_are_not_searched_for() -> None:
    words = codes_among(["b", "d"], pa.string(), is_equality=True)
    assert words.of(pa.chunked_array([pa.array(["d", "x", None, "b"])])).tolist()[::3] == [3, 1]


@pytest.mark.parametrize(("text", "expected"), [
    ("a = 3", True), ("a <> 3", True), ("a IN (3, 5)", True), ("a NOT IN (3, 5) AND a <> 7", True),
    ("a IS NULL", True), ("a > 3", False), ("a BETWEEN 3 AND 5", False), ("a = 3 OR a > 5", False),
])  # fmt: skip
def test_some_predicates_only_ask_whether_values_are_equal(text: str, expected: bool) -> None:
    [term] = predicate(text).terms
    assert term.domains["a"].is_equality == expected
