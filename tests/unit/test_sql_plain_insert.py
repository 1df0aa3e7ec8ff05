"""The short cut for plain inserts gives what the full reader gives, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from millstream.sql import parse
from millstream.sql.plain_insert import read_plain_insert
from millstream.sql.statements import Insert, Values

LITERALS = some.one_of(
    some.integers(-(10**30), 10**30).map(str),
    some.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda d: format(d, "f")),
    some.text(some.characters(blacklist_characters="'\\", blacklist_categories=("Cc", "Cs"))).map(
        lambda t: f"'{t}'"
    ),
    some.sampled_from(["NULL", "null", "TRUE", "false", "DATE '2024-01-01'", "timestamp'2024-01-01 00:00:00.5'"]),
)
SPACE = some.sampled_from(["", " ", "\n", "  \t"])


@some.composite
def plain_inserts(draw: some.DrawFn) -> str:
    width = draw(some.integers(1, 4))
    gap = lambda: draw(SPACE)  # noqa: E731
    rows = [
        f"({gap()}{f'{gap()},{gap()}'.join(draw(LITERALS) for _ in range(width))}{gap()})"
        for _ in range(draw(some.integers(1, 3)))
    ]
    columns = f" ({', '.join(f'c{i}' for i in range(width))})" if draw(some.booleans()) else ""
    return (
        f"{gap()}insert INTO my_table{columns} Values{gap()}{f'{gap()},{gap()}'.join(rows)}{gap()}{gap()};{gap()}"
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(plain_inserts())
def test_the_short_cut_gives_what_the_full_reader_gives(text: str) -> None:
    (full,) = parse(text)
    short = read_plain_insert(text)
    assert isinstance(full, Insert)
    assert isinstance(full.source, Values)
    assert short is not None
    assert short == full
    assert isinstance(short.source, Values)
    assert short.source.rows == full.source.rows
    places = [[n.meta.get("start") for e in r for n in e.walk()] for r in short.source.rows]
    assert places == [[n.meta.get("start") for e in r for n in e.walk()] for r in full.source.rows]


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES (1 + 1)",
        "INSERT INTO t VALUES (now())",
        "INSERT INTO t VALUES ('it''s')",
        "INSERT INTO t VALUES ('a' 'b')",
        r"INSERT INTO t VALUES ('a\n')",
        "INSERT INTO t VALUES (1L)",
        "INSERT INTO t VALUES (1e3)",
        "INSERT INTO t VALUES (:a)",
        "INSERT INTO t VALUES (1), 2",
        "INSERT INTO t VALUES (1) -- one",
        "INSERT INTO t /* here */ VALUES (1)",
        "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)",
        "INSERT INTO t VALUES ()",
        "INSERT INTO t VALUES (1,)",
        "INSERT INTO main.t VALUES (1)",
        "INSERT INTO `t` VALUES (1)",
        "INSERT INTO select VALUES (1)",
        "INSERT INTO table VALUES (1)",
        "INSERT INTO t (select) VALUES (1)",
        "INSERT INTO t VALUES (1) AS x",
        "INSERT INTO t (a, A) VALUES (1, 2)",
        "INSERT INTO t VALUES (1) ORDER BY 1",
        "INSERT OVERWRITE t VALUES (1)",
        "INSERT INTO t VALUES (DATE)",
        "INSERT INTO t SELECT 1",
    ],
)
def test_whatever_is_not_plain_is_left_to_the_full_reader(text: str) -> None:
    assert read_plain_insert(text) is None
