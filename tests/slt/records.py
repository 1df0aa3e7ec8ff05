"""The text of an `.slt` file, as records.

A file opens with `# name:`, `# description:` and `# group:`. Records follow, each ended by a blank
line; a line that starts with `#` between records is a comment. `section TITLE` starts a section.
Every section runs on a fresh database, after the records that stand before the first section (the
preamble). A file without sections is one section.

    statement ok                    the SQL below succeeds
    statement count 3               it succeeds, and its status ends in the number 3 (`INSERT 3`)
    statement error CONDITION       it fails with that condition; after `----`, each line must occur in
                                    str(error)
    query [rowsort] [header] [take N]
                                    the SQL below gives the rows after `----`, in that order. `rowsort`
                                    compares both sides sorted as text; `header` expects the column
                                    names as the first line; `take N` looks at the first N columns only
    deliveries NAME [rowsort] [since N]
                                    `db.drain()`, then `db.results(NAME)` gives what stands after `----`: for
                                    each delivery a line `@INSTANT`, with ` skipped K` behind it unless K is 0,
                                    and its rows. `rowsort` compares the rows of each delivery sorted as text.
                                    What an earlier record of the section showed is not shown again, unless
                                    `since N` asks `db.results(NAME, since=N)`
    insert NAME                     `db.insert(NAME, rows)`, each line a JSON array; a string that
                                    starts with `@` is a UTC timestamp
    file NAME                       writes the lines below to `${TMP}/NAME`
    clock advance 5 minutes         moves the clock (seconds, minutes, hours, days)
    remember V                      `${V}` becomes the newest version that SHOW SNAPSHOTS lists
    restart                         closes the database and opens it again
    step                            `db.drain()`: runs the scheduler until nothing is due

`${TMP}` is a directory of the section's own. How values look in expected rows is said in
`tests.slt.render`. Anything else is a `FormatError` that names the line; nothing is skipped silently.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SEPARATOR = "----"
DELIVERY = "@"
HEADERS = ("name", "description", "group")
UNITS = ("seconds", "minutes", "hours", "days")


class FormatError(Exception):
    """The file itself is malformed."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing to do; `line` is where it stands in the file, counted from 1."""

    line: int


@dataclass(frozen=True, slots=True)
class ExpectSuccess(Record):
    sql: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class ExpectError(Record):
    sql: str
    condition: str
    fragments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectLines(Record):
    """`block` is the half-open range of the expected lines, as indices into the file's lines."""

    rows: tuple[str, ...]
    block: tuple[int, int]

    def compared(self, lines: Sequence[str]) -> list[str]:
        """Expected or actual lines in the order in which they are compared."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ExpectRows(ExpectLines):
    sql: str
    rowsort: bool = False
    header: bool = False
    take: int | None = None

    def compared(self, lines: Sequence[str]) -> list[str]:
        if not self.rowsort:
            return list(lines)
        return [*lines[: self.header], *sorted(lines[self.header :])]


@dataclass(frozen=True, slots=True)
class ExpectDeliveries(ExpectLines):
    name: str
    rowsort: bool = False
    since: int | None = None

    def compared(self, lines: Sequence[str]) -> list[str]:
        if not self.rowsort:
            return list(lines)
        starts = [at for at, line in enumerate(lines) if line.startswith(DELIVERY)]
        ends = [*starts[1:], len(lines)]
        return [
            line
            for start, end in zip(starts, ends, strict=True)
            for line in (lines[start], *sorted(lines[start + 1 : end]))
        ]


@dataclass(frozen=True, slots=True)
class InsertRows(Record):
    name: str
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class WriteFile(Record):
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class AdvanceClock(Record):
    by: timedelta


@dataclass(frozen=True, slots=True)
class RememberVersion(Record):
    variable: str


@dataclass(frozen=True, slots=True)
class Restart(Record):
    pass


@dataclass(frozen=True, slots=True)
class Step(Record):
    pass


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    line: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed file. Running a section means: a fresh database, the preamble, its records."""

    path: Path
    name: str
    description: str
    group: str
    preamble: tuple[Record, ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """The lines of one record: the opening line, what stands below it, and what follows `----`."""

    line: int
    words: tuple[str, ...]
    body: tuple[str, ...]
    expected: tuple[str, ...] | None
    expected_at: int

    @property
    def sql(self) -> str:
        if not self.body:
            raise FormatError(f"line {self.line}: SQL is missing")
        return "\n".join(self.body)


def parse_script(path: Path) -> Script:
    """Read and parse a file; raises `FormatError`."""
    lines = path.read_text(encoding="utf-8").split("\n")
    headers = _headers(lines)
    preamble: list[Record] = []
    sections: list[tuple[str, int, list[Record]]] = []
    for block in _blocks(lines):
        if block.words[0] == "section":
            sections.append((" ".join(block.words[1:]) or _fail(block), block.line, []))
        else:
            (sections[-1][2] if sections else preamble).append(_record(block))
    if not sections:
        sections, preamble = [(headers["description"], 1, preamble)], []
    _refuse_equal_titles([title for title, _, _ in sections])
    return Script(
        path=path,
        preamble=tuple(preamble),
        sections=tuple(Section(title, line, tuple(records)) for title, line, records in sections),
        **headers,
    )


def _headers(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        match = re.fullmatch(r"# (\w+): (.+)", line)
        if match is None:
            break
        found[match[1]] = match[2].strip()
    if tuple(found) != HEADERS:
        raise FormatError(f"line 1: the file must open with {', '.join(f'# {h}:' for h in HEADERS)}")
    return found


def _refuse_equal_titles(titles: list[str]) -> None:
    for title in titles:
        if titles.count(title) > 1:
            raise FormatError(f"two sections are titled {title!r}")


def _blocks(lines: list[str]) -> Iterator[_Block]:
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].startswith("#"):
            at += 1
            continue
        end = at
        while end < len(lines) and lines[end].strip():
            end += 1
        yield _block(lines, at, end)
        at = end


def _block(lines: list[str], start: int, end: int) -> _Block:
    cut = next((i for i in range(start + 1, end) if lines[i] == SEPARATOR), None)
    return _Block(
        line=start + 1,
        words=tuple(lines[start].split()),
        body=tuple(lines[start + 1 : end if cut is None else cut]),
        expected=None if cut is None else tuple(lines[cut + 1 : end]),
        expected_at=end if cut is None else cut + 1,
    )


def _fail(block: _Block) -> NoReturn:
    raise FormatError(f"line {block.line}: {' '.join(block.words)!r} is not a record")


def _record(block: _Block) -> Record:
    return _PARSERS.get(block.words[0], _fail)(block)


def _statement(block: _Block) -> Record:
    match block.words[1:]:
        case ("ok",) if block.expected is None:
            return ExpectSuccess(block.line, block.sql)
        case ("count", number) if block.expected is None and number.isdigit():
            return ExpectSuccess(block.line, block.sql, int(number))
        case ("error", condition):
            return ExpectError(block.line, block.sql, condition, block.expected or ())
    _fail(block)


def _query(block: _Block) -> Record:
    match = re.fullmatch(r"query( rowsort)?( header)?(?: take (\d+))?", " ".join(block.words))
    if match is None or block.expected is None:
        _fail(block)
    return ExpectRows(
        line=block.line,
        sql=block.sql,
        rows=block.expected,
        block=(block.expected_at, block.expected_at + len(block.expected)),
        rowsort=match[1] is not None,
        header=match[2] is not None,
        take=int(match[3]) if match[3] else None,
    )


def _deliveries(block: _Block) -> Record:
    match = re.fullmatch(r"deliveries (\w+)( rowsort)?(?: since (\d+))?", " ".join(block.words))
    if match is None or block.body or block.expected is None:
        _fail(block)
    if block.expected and not block.expected[0].startswith(DELIVERY):
        raise FormatError(f"line {block.line}: a delivery starts with {DELIVERY} and its instant")
    return ExpectDeliveries(
        line=block.line,
        rows=block.expected,
        block=(block.expected_at, block.expected_at + len(block.expected)),
        name=match[1],
        rowsort=match[2] is not None,
        since=int(match[3]) if match[3] else None,
    )


def _insert(block: _Block) -> Record:
    if len(block.words) != 2 or not block.body:
        _fail(block)
    return InsertRows(block.line, block.words[1], tuple(_json_row(block, line) for line in block.body))


def _json_row(block: _Block, line: str) -> tuple[Any, ...]:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise FormatError(f"line {block.line}: {line!r} is not JSON: {error}") from None
    if not isinstance(values, list):
        raise FormatError(f"line {block.line}: {line!r} is not a JSON array")
    return tuple(_json_value(value) for value in values)


def _json_value(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("@"):
        return datetime.fromisoformat(value[1:]).replace(tzinfo=UTC)
    return value


def _file(block: _Block) -> Record:
    if len(block.words) != 2 or not block.body or block.expected is not None:
        _fail(block)
    return WriteFile(block.line, block.words[1], "\n".join(block.body) + "\n")


def _clock(block: _Block) -> Record:
    match block.words[1:]:
        case ("advance", amount, unit) if amount.isdigit() and unit in UNITS and not block.body:
            return AdvanceClock(block.line, timedelta(**{unit: int(amount)}))
    _fail(block)


def _remember(block: _Block) -> Record:
    if len(block.words) != 2 or not block.words[1].isidentifier() or block.body:
        _fail(block)
    return RememberVersion(block.line, block.words[1])


def _bare(kind: type[Record]) -> Callable[[_Block], Record]:
    def parse(block: _Block) -> Record:
        if len(block.words) > 1 or block.body:
            _fail(block)
        return kind(block.line)

    return parse


_PARSERS: dict[str, Callable[[_Block], Record]] = {
    "statement": _statement,
    "query": _query,
    "deliveries": _deliveries,
    "insert": _insert,
    "file": _file,
    "clock": _clock,
    "remember": _remember,
    "restart": _bare(Restart),
    "step": _bare(Step),
}
