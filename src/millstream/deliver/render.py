"""Arrow tables as people and programs read them: terminal tables, HTML, CSV and JSON lines.

Promises: decimals keep every digit, timestamps are ISO 8601, binary is `X'0AFF'`, NaN and the
infinities are spelled as Spark spells them. What is shown to people is inert: control characters
come out escaped, and terminal sequences, rich markup and HTML in the data are only text. CSV tells
NULL (nothing) from the empty string (`""`); JSON lines give a decimal as a number with all its digits.

Refuses to look at anything but the table given: no Spark, no files, no terminal of its own.
"""

from __future__ import annotations

import html
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import pyarrow as pa
from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

DEFAULT_ROWS = 50
WIDEST_CELL = 100
NARROWEST_COLUMN = 8
GAP = 3
BATCH_ROWS = 8192
CUT = "…"
NULL = "NULL"


def to_rich(
    table: pa.Table,
    max_rows: int | None = DEFAULT_ROWS,
    title: str | None = None,
    max_cell: int | None = WIDEST_CELL,
) -> RenderableType:
    """The first `max_rows` rows (None: all) as a table that fits itself to the console's width."""
    return _Fitted(_Grid.of(table, max_rows, max_cell), title)


def to_expanded(table: pa.Table, max_rows: int | None = DEFAULT_ROWS) -> RenderableType:
    """One block for each row, one line for each column, nothing cut."""
    return _Expanded(_Grid.of(table, max_rows, None))


def to_html(table: pa.Table, max_rows: int | None = DEFAULT_ROWS) -> str:
    """An HTML table for notebooks."""
    grid = _Grid.of(table, max_rows, None)
    head = "".join(f"<th{_html_align(c)}>{html.escape(c.name)}</th>" for c in grid.columns)
    rows = ("".join(_html_cell(c, row) for c in grid.columns) for row in range(grid.shown))
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p><small>{html.escape(grid.footer)}</small></p>"
    )


def write_csv(table: pa.Table, stream: TextIO) -> None:
    """A header and one record for each row."""
    stream.write(_csv_record(table.column_names))
    for row in _plain_rows(table):
        stream.write(_csv_record(None if v is None else _text(v) for v in row))


def write_json(table: pa.Table, stream: TextIO) -> None:
    """One JSON object for each row; a repeated column name gets a number behind it."""
    keys = [_json_text(n) for n in distinct_names(table.column_names)]
    for row in _plain_rows(table):
        members = (f"{k}: {_json_text(v)}" for k, v in zip(keys, row, strict=True))
        stream.write("{" + ", ".join(members) + "}\n")


def distinct_names(names: Iterable[str]) -> list[str]:
    """The names in order, with `_1`, `_2`, … behind those that were there before."""
    distinct: dict[str, None] = {}
    for name in names:
        candidate, number = name, 0
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct[candidate] = None
    return list(distinct)


def printable(text: str) -> str:
    """The text with everything escaped that a terminal could act on or an eye could miss."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def counted(number: int, noun: str) -> str:
    """`1 row`, `1,000 rows`, `2 queries`."""
    if number == 1:
        return f"1 {noun}"
    is_ies = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number:,} {noun[:-1]}ies" if is_ies else f"{number:,} {noun}s"


# Values: from Arrow to what JSON knows, with decimals kept as they are.


def _values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The column as Python values; what Python has no value for (the year 10000) comes as text."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_value_or_text(scalar) for scalar in column]


def _value_or_text(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return _Raw(str(scalar.cast(pa.string()) if pa.types.is_timestamp(scalar.type) else scalar))


class _Raw(str):
    """Text that stands for a value; converters leave it alone."""

    __slots__ = ()


def _plain_rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    converters = [_converter(field.type) for field in table.schema]
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        columns = ([f(v) for v in _values(c)] for f, c in zip(converters, batch.columns, strict=True))
        yield from zip(*columns, strict=True)


def _converter(type_: pa.DataType) -> Callable[[Any], Any]:
    convert = _converter_of_valid(type_)
    return lambda value: value if value is None or isinstance(value, _Raw) else convert(value)


def _converter_of_valid(type_: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_dictionary(type_):
        return _converter(type_.value_type)
    if pa.types.is_map(type_):
        return _map_converter(type_)
    if pa.types.is_struct(type_):
        return _struct_converter(type_)
    if pa.types.is_nested(type_):
        convert = _converter(type_.value_type)
        return lambda values: [convert(v) for v in values]
    if pa.types.is_floating(type_):
        return _short_float if pa.types.is_float32(type_) else _plain_float
    return _plain_scalar


def _map_converter(type_: pa.DataType) -> Callable[[Any], Any]:
    key, item = _converter(type_.key_type), _converter(type_.item_type)
    return lambda pairs: {_text(key(k)): item(v) for k, v in pairs}


def _struct_converter(type_: pa.DataType) -> Callable[[Any], Any]:
    members = [(field.name, _converter(field.type)) for field in type_]
    return lambda struct: {name: convert(struct[name]) for name, convert in members}


def _plain_float(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _short_float(value: float) -> float | str:
    """0.1 as FLOAT is 0.1, not the 0.10000000149011612 it becomes as a DOUBLE."""
    return _plain_float(float(str(np.float32(value))))


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, datetime):
        return _iso(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, str | int | Decimal):
        return value
    return str(value)


def _iso(moment: datetime) -> str:
    if moment.tzinfo is None:
        return moment.isoformat()
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _json_text(value: Any) -> str:
    # json.dumps has no exact decimals: it would want them as floats or as strings.
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json_text(k)}: {_json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    """A plain value as bare text: strings unquoted, everything else as in JSON."""
    return str(value) if isinstance(value, str) else _json_text(value)


def _csv_record(cells: Iterable[str | None]) -> str:
    return ",".join(map(_csv_cell, cells)) + "\n"


def _csv_cell(text: str | None) -> str:
    # Python's csv module before 3.12 cannot write NULL and the empty string differently.
    if text is None:
        return ""
    if text == "" or text != text.strip() or any(c in text for c in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text


# Grids: the part of a table that is shown, as text.


@dataclass(frozen=True, slots=True)
class _GridColumn:
    name: str
    right: bool
    cells: tuple[str | None, ...]
    width: int
    floor: int


@dataclass(frozen=True, slots=True)
class _Grid:
    columns: tuple[_GridColumn, ...]
    shown: int
    total: int

    @classmethod
    def of(cls, table: pa.Table, max_rows: int | None, max_cell: int | None) -> _Grid:
        head = table if max_rows is None else table.slice(0, max_rows)
        pairs = zip(table.schema, head.columns, strict=True)
        columns = tuple(_grid_column(field, column, max_cell) for field, column in pairs)
        return cls(columns, head.num_rows, table.num_rows)

    @property
    def footer(self) -> str:
        if self.shown < self.total:
            return f"{CUT} {counted(self.total - self.shown, 'more row')}"
        return counted(self.total, "row")


def _grid_column(field: pa.Field, column: pa.ChunkedArray, max_cell: int | None) -> _GridColumn:
    convert, show = _converter(field.type), _shown_text(field.type)
    cells = tuple(None if v is None else show(convert(v)) for v in _values(column))
    name = printable(field.name)
    inner = max((len(NULL) if c is None else cell_len(c) for c in cells), default=0)
    width = min(max(inner, cell_len(name)), max_cell or inner + cell_len(name))
    # A number or a time that is cut is another number or time, so these keep their width.
    floor = max(inner if _is_whole(field.type) else 0, min(width, NARROWEST_COLUMN))
    return _GridColumn(name, _is_number(field.type), cells, width, floor)


def _shown_text(type_: pa.DataType) -> Callable[[Any], str]:
    if pa.types.is_timestamp(type_):
        return _shown_timestamp
    return lambda value: printable(_text(value))


def _shown_timestamp(iso: str) -> str:
    """`2024-01-01 00:00:00.5`: the zone is UTC and needs no saying, nor do zeros at the end."""
    shown = printable(iso).replace("T", " ").removesuffix("Z")
    return shown.rstrip("0") if "." in shown else shown


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _is_whole(type_: pa.DataType) -> bool:
    return _is_number(type_) or bool(pa.types.is_temporal(type_))


def _html_align(column: _GridColumn) -> str:
    return f' style="text-align:{"right" if column.right else "left"}"'


def _html_cell(column: _GridColumn, row: int) -> str:
    cell = column.cells[row]
    inner = f'<span style="opacity:0.5">{NULL}</span>' if cell is None else html.escape(cell)
    return f"<td{_html_align(column)}>{inner}</td>"


def _styled(cell: str | None) -> Text:
    return Text(NULL, style="dim") if cell is None else Text(cell)


def _footer(grid: _Grid, hidden: int) -> Text:
    if not hidden:
        return Text(grid.footer, style="dim")
    shown = len(grid.columns) - hidden
    return Text(f"{grid.footer}, {shown} of {counted(len(grid.columns), 'column')} shown", style="dim")


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A grid as a table with one rule under its header, cut to the width it is printed in."""

    grid: _Grid
    title: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left, right = _fitting(self.grid.columns, options.max_width)
        if self.title:
            yield Text(printable(self.title), style="bold")
        if self.grid.columns:
            yield self._table(left, right, options.max_width)
        yield _footer(self.grid, len(self.grid.columns) - len(left) - len(right))

    def _table(self, left: Sequence[_GridColumn], right: Sequence[_GridColumn], width: int) -> Table:
        hidden = len(left) + len(right) < len(self.grid.columns)
        marker = [_GridColumn(CUT, False, (CUT,) * self.grid.shown, 1, 1)] if hidden else []
        columns = [*left, *marker, *right]
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", border_style="dim"
        )
        for column, size in zip(columns, _widths(columns, width), strict=True):
            table.add_column(
                Text(column.name),
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                max_width=size,
            )
        for row in range(self.grid.shown):
            table.add_row(*(_styled(c.cells[row]) for c in columns))
        return table


def _fitting(columns: Sequence[_GridColumn], width: int) -> tuple[Sequence[_GridColumn], Sequence[_GridColumn]]:
    """The columns that have room, from both ends inwards; all of them on the left if they do."""
    if _span(c.floor for c in columns) <= width:
        return columns, ()
    left: list[_GridColumn] = list(columns[:1])
    right: list[_GridColumn] = []
    rest = list(columns[1:])
    room = width - _span([columns[0].floor, 1])
    while rest:
        from_right = len(right) < len(left)
        room -= GAP + rest[-1 if from_right else 0].floor
        if room < 0:
            break
        (right if from_right else left).append(rest.pop(-1 if from_right else 0))
    return left, right[::-1]


def _widths(columns: Sequence[_GridColumn], width: int) -> list[int]:
    """The widest columns give way first, never below their floor."""
    widths = [c.width for c in columns]
    for cap in range(max(widths), 0, -1):
        widths = [max(c.floor, min(c.width, cap)) for c in columns]
        if _span(widths) <= width:
            break
    return widths


def _span(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + GAP * (len(listed) - 1)


@dataclass(frozen=True, slots=True)
class _Expanded:
    """A grid turned on its side."""

    grid: _Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for row in range(self.grid.shown):
            yield Text(f"── row {row + 1:,} ──", style="dim")
            yield self._block(row)
        yield _footer(self.grid, 0)

    def _block(self, row: int) -> Table:
        block = Table.grid(padding=(0, GAP - 1, 0, 0))
        block.add_column(no_wrap=True)
        block.add_column(overflow="fold")
        for column in self.grid.columns:
            block.add_row(Text(column.name, style="bold"), _styled(column.cells[row]))
        return block
