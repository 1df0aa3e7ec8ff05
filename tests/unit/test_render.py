"""Rendering: what a value looks like in a terminal, in HTML, in CSV and in JSON lines."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from millstream.deliver.render import (
    distinct_names,
    printable,
    to_expanded,
    to_html,
    to_rich,
    write_csv,
    write_json,
)

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
UTC_MICROS = pa.timestamp("us", "UTC")


def shown(renderable, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def cell(array: pa.Array) -> str:
    """How the only value of a column is shown."""
    return shown(to_rich(pa.table({"v": array})))[2].strip()


def as_csv(table: pa.Table) -> str:
    stream = io.StringIO()
    write_csv(table, stream)
    return stream.getvalue()


def as_json(table: pa.Table) -> str:
    stream = io.StringIO()
    write_json(table, stream)
    return stream.getvalue()


def test_a_table_has_one_rule_under_its_header_and_numbers_on_the_right():
    table = pa.table({"id": [1, 200], "name": ["ann", "bo"]})
    assert shown(to_rich(table)) == [
        " id   name",
        "──────────",
        "  1   ann",
        "200   bo",
        "2 rows",
    ]


def test_only_the_first_rows_are_shown_and_the_rest_is_counted():
    lines = shown(to_rich(pa.table({"n": range(1000)}), max_rows=10))
    assert len(lines) == 13
    assert lines[-1] == "… 990 more rows"


def test_one_more_row_is_in_the_singular():
    assert shown(to_rich(pa.table({"n": [1, 2]}), max_rows=1))[-1] == "… 1 more row"


def test_an_empty_result_shows_its_header():
    assert shown(to_rich(pa.table({"n": pa.array([], pa.int64())}))) == ["n", "─", "0 rows"]


def test_a_result_without_columns_shows_its_count():
    assert shown(to_rich(pa.table({}))) == ["0 rows"]


def test_a_title_stands_above():
    assert shown(to_rich(pa.table({"n": [1]}), title="[b]spend"))[0] == "[b]spend"


def test_null_is_dim_and_the_word_null_is_not():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(to_rich(pa.table({"s": [None, "NULL"]})))
    lines = console.file.getvalue().splitlines()
    assert "\x1b[2mNULL" in lines[2]
    assert "\x1b" not in lines[3]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([NOON], UTC_MICROS), "2024-01-01 12:00:00"),
        (pa.array([NOON.replace(microsecond=500_000)], UTC_MICROS), "2024-01-01 12:00:00.5"),
        (pa.array([date(2024, 1, 1)]), "2024-01-01"),
        (pa.array([Decimal("0E-10")], pa.decimal128(20, 10)), "0.0000000000"),
        (pa.array([0.1], pa.float32()), "0.1"),
        (pa.array([float("nan")]), "NaN"),
        (pa.array([float("-inf")], pa.float32()), "-Infinity"),
        (pa.array([b"\x0a\xff"]), "X'0AFF'"),
        (pa.array([True]), "true"),
        (pa.array([["a", None]]), '["a", null]'),
        (pa.array([{"x": Decimal("1.50"), "y": NOON}]), '{"x": 1.50, "y": "2024-01-01T12:00:00Z"}'),
        (pa.array([[(1, [2.5])]], pa.map_(pa.int64(), pa.list_(pa.float64()))), '{"1": [2.5]}'),
        (pa.array(["a"]).dictionary_encode(), "a"),
    ],
    ids=str,
)
def test_a_value_is_shown_as(array, text):
    assert cell(array) == text


def test_a_year_that_python_has_no_date_for_does_not_stop_the_table():
    table = pa.table({"ts": pa.array([2**60, 0], UTC_MICROS)})
    assert shown(to_rich(table))[3] == "1970-01-01 00:00:00"
    assert len(as_json(table).splitlines()) == 2


def test_a_terminal_sequence_in_the_data_is_only_text():
    lines = shown(to_rich(pa.table({"s\x1b": ["\x1b[31mred\n\u202eback"]})))
    assert lines[0] == "s\\x1b"
    assert lines[2] == "\\x1b[31mred\\n\\u202eback"


def test_markup_in_the_data_is_only_text():
    assert cell(pa.array(["[bold]x[/bold] :smile:"])) == "[bold]x[/bold] :smile:"


@given(st.text())
def test_what_is_printable_cannot_move_the_cursor(text):
    assert printable(text).isprintable()


def test_a_long_cell_is_cut_with_an_ellipsis():
    assert cell(pa.array(["x" * 500])) == "x" * 79 + "…"


def test_the_widest_column_gives_way_first():
    line = shown(to_rich(pa.table({"short": ["abcdefghij"], "long": ["y" * 100]})), width=40)[2]
    assert line == "abcdefghij   " + "y" * 26 + "…"


def test_wide_characters_are_measured_in_cells():
    lines = shown(to_rich(pa.table({"s": ["日本語" * 40]})), width=40)
    assert max(map(cell_len, lines)) <= 40


def test_columns_without_room_are_hidden_from_the_middle_and_counted():
    table = pa.table({f"c{i}": [f"value-{i}"] for i in range(20)})
    lines = shown(to_rich(table), width=40)
    assert lines[0].split() == ["c0", "…", "c18", "c19"] or lines[0].split() == ["c0", "c1", "…", "c19"]
    assert lines[-1] == "1 row, 3 of 20 columns shown"
    assert max(map(len, lines)) <= 40


def test_a_number_is_never_cut():
    table = pa.table({"n": [123456789012], "a": ["x" * 50], "b": ["y" * 50]})
    assert "123456789012" in shown(to_rich(table), width=36)[2]


def test_expanded_gives_one_line_for_each_column():
    table = pa.table({"id": [1, 2], "name": ["ann", None]})
    assert shown(to_expanded(table, 1)) == ["── row 1 ──", "id    1", "name  ann", "… 1 more row"]


def test_html_escapes_the_data():
    page = to_html(pa.table({"<b>": ["<script>alert(1)</script>", None]}), max_rows=1)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;" in page
    assert "… 1 more row" in page


def test_csv_tells_null_from_the_empty_string():
    assert as_csv(pa.table({"a": [None, ""], "b": [1, 2]})) == 'a,b\n,1\n"",2\n'


def test_csv_holds_exact_values():
    table = pa.table({"d": [Decimal("1.10")], "t": pa.array([NOON], UTC_MICROS), "l": [[1, 2]], "b": [b"\x01"]})
    assert as_csv(table) == "d,t,l,b\n1.10,2024-01-01T12:00:00Z,\"[1, 2]\",X'01'\n"


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.integers(-9, 9)), min_size=1))
def test_csv_is_read_back_by_pythons_reader(rows):
    table = pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows]})
    read = list(csv.reader(io.StringIO(as_csv(table), newline="")))
    assert read == [["a", "b"], *([a, str(b)] for a, b in rows)]


def test_json_keeps_every_digit_of_a_decimal():
    digits = "12345678901234567890.123456789012345678"
    table = pa.table({"d": [Decimal(digits)]})
    assert json.loads(as_json(table), parse_float=Decimal) == {"d": Decimal(digits)}


def test_json_lines_are_valid_whatever_the_floats():
    table = pa.table({"f": [float("nan"), float("inf"), 1e300, None]})
    lines = [json.loads(line, parse_constant=pytest.fail) for line in as_json(table).splitlines()]
    assert [line["f"] for line in lines] == ["NaN", "Infinity", 1e300, None]


def test_json_numbers_repeated_column_names():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "a_1"])
    assert json.loads(as_json(table)) == {"a": 1, "a_1": 2, "a_1_1": 3}
    assert distinct_names(["a", "b"]) == ["a", "b"]


def test_tables_of_many_batches_come_out_whole():
    table = pa.table({"n": range(20_000)})
    assert as_csv(table).splitlines()[-1] == "19999"
    assert len(as_json(table).splitlines()) == 20_000
