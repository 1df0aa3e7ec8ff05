"""Runs the sections of an `.slt` file against a database.

The runner goes on after a record that fails and reports every mismatch of the section, each with
file:line, the SQL, what was expected and what came. A statement that is meant to fail must fail with a
`MillstreamError`: another exception is a mismatch, and so is an error text that shows Java or Python
innards. Queries are always fetched, so that a lazy error surfaces where it belongs.

The format of the files is described in `tests.slt.records`, that of values in `tests.slt.render`.
"""

from __future__ import annotations

import difflib
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millstream.clock import ManualClock
from millstream.errors import MillstreamError
from tests.slt import records
from tests.slt.render import render_delivery, render_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from millstream.clock import Clock
    from tests.slt.records import Record, Script, Section

INNARDS = re.compile(r"org\.apache\.spark|java\.lang|py4j|\tat \w+\.|Traceback", re.IGNORECASE)


class Result(Protocol):
    """The part of a statement's result that the runner looks at."""

    @property
    def is_query(self) -> bool: ...
    @property
    def status(self) -> str: ...
    @property
    def columns(self) -> Sequence[str]: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...


class Delivery(Protocol):
    """The part of a continuous query's answer that the runner looks at."""

    @property
    def instant(self) -> Any: ...
    @property
    def sequence(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    def to_arrow(self) -> pa.Table: ...


class Database(Protocol):
    """The part of a database that the runner uses."""

    def sql(self, text: str) -> Result: ...
    def insert(self, name: str, rows: Any) -> Any: ...
    def drain(self) -> Any: ...
    def results(self, query: str, since: int = 0) -> Sequence[Delivery]: ...
    def close(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One record that did not come out as written."""

    path: Path
    line: int
    sql: str
    story: str

    def __str__(self) -> str:
        sql = "".join(f"\n    {line}" for line in self.sql.split("\n")) if self.sql else ""
        story = "".join(f"\n  {line}" for line in self.story.split("\n"))
        return f"{self.path}:{self.line}{sql}{story}"


class SectionFailed(Exception):  # noqa: N818 - it reads as what happened
    """At least one record of a section did not come out as written."""

    def __init__(self, mismatches: list[Mismatch]) -> None:
        super().__init__("\n\n".join(str(mismatch) for mismatch in mismatches))
        self.mismatches = mismatches


class _Unexpected(Exception):  # noqa: N818 - carries the story of a mismatch, never reaches the outside
    pass


def run_section(
    script: Script, section: Section, open_database: Callable[[Path, Clock], Database]
) -> dict[int, list[str]]:
    """Run a section on a fresh database; raises `SectionFailed`.

    Returns the rendered rows and deliveries of every record that gave some, by the record's line.
    """
    actual, mismatches = attempt_section(script, section, open_database)
    if mismatches:
        raise SectionFailed(mismatches)
    return actual


def attempt_section(
    script: Script, section: Section, open_database: Callable[[Path, Clock], Database]
) -> tuple[dict[int, list[str]], list[Mismatch]]:
    """Like `run_section`, but hands the mismatches back beside the actual rows."""
    with tempfile.TemporaryDirectory(prefix="millstream-slt-") as directory:
        run = _Run(script.path, Path(directory), open_database)
        try:
            run.all([*script.preamble, *section.records])
        finally:
            run.database.close()
    return run.actual, run.mismatches


@dataclass
class _Run:
    """A section under way: its database, its clock and what `${…}` stands for."""

    path: Path
    directory: Path
    open_database: Callable[[Path, Clock], Database]
    clock: ManualClock = field(default_factory=ManualClock)
    mismatches: list[Mismatch] = field(default_factory=list)
    actual: dict[int, list[str]] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.directory / "files").mkdir()
        self.variables = {"TMP": str(self.directory / "files")}
        self.database = self._open()

    def _open(self) -> Database:
        return self.open_database(self.directory / "database", self.clock)

    def all(self, todo: list[Record]) -> None:
        for record in todo:
            try:
                self._one(record)
            except _Unexpected as unexpected:
                self._report(record, str(unexpected))
            except Exception as error:
                self._report(record, f"failed: {type(error).__name__}: {error}")

    def _report(self, record: Record, story: str) -> None:
        sql = getattr(record, "sql", "")
        self.mismatches.append(Mismatch(self.path, record.line, self._fill(sql), story))

    def _one(self, record: Record) -> None:
        match record:
            case records.ExpectSuccess():
                self._success(record)
            case records.ExpectError():
                self._error(record)
            case records.ExpectRows():
                self._rows(record)
            case records.ExpectDeliveries():
                self._deliveries(record)
            case records.InsertRows():
                self.database.insert(record.name, list(record.rows))
            case records.WriteFile():
                Path(self.variables["TMP"], record.name).write_text(record.text, encoding="utf-8")
            case records.AdvanceClock():
                self.clock.advance(record.by)
            case records.RememberVersion():
                self._remember(record.variable)
            case records.Restart():
                self.database.close()
                self.database = self._open()
            case records.Step():
                self.database.drain()

    def _fill(self, text: str) -> str:
        for name, value in self.variables.items():
            text = text.replace(f"${{{name}}}", value)
        return text

    def _remember(self, variable: str) -> None:
        versions = [int(row[0]) for row in self.database.sql("SHOW SNAPSHOTS").fetchall()]
        self.variables[variable] = str(max(versions))

    def _success(self, record: records.ExpectSuccess) -> None:
        result = self.database.sql(self._fill(record.sql))
        if result.is_query:
            result.fetchall()
        if record.count is None:
            return
        if not re.search(rf"\b{record.count}$", result.status):
            raise _Unexpected(f"expected a count of {record.count}\ngot status {result.status!r}")

    def _error(self, record: records.ExpectError) -> None:
        try:
            result = self.database.sql(self._fill(record.sql))
            outcome = _outcome(result)
        except MillstreamError as error:
            _check_error(error, record.condition, [self._fill(f) for f in record.fragments])
            return
        raise _Unexpected(f"expected error {record.condition}\ngot {outcome}")

    def _rows(self, record: records.ExpectRows) -> None:
        result = self.database.sql(self._fill(record.sql))
        if not result.is_query:
            raise _Unexpected(f"expected rows\ngot status {result.status!r}")
        lines = [render_row(row[: record.take]) for row in result.fetchall()]
        if record.header:
            lines.insert(0, render_row(tuple(result.columns)[: record.take]))
        self._compare(record, lines)

    def _deliveries(self, record: records.ExpectDeliveries) -> None:
        self.database.drain()
        shown = self.shown.get(record.name, 0)
        found = list(self.database.results(record.name, since=shown if record.since is None else record.since))
        if record.since is None:
            found = [delivery for delivery in found if delivery.sequence > shown]
        self.shown[record.name] = max([shown, *(delivery.sequence for delivery in found)])
        lines = [render_delivery(each.instant, each.skipped, each.to_arrow()) for each in found]
        self._compare(record, [line for delivery in lines for line in delivery])

    def _compare(self, record: records.ExpectLines, lines: list[str]) -> None:
        expected, lines = record.compared(record.rows), record.compared(lines)
        self.actual[record.line] = lines
        if lines != expected:
            raise _Unexpected(_difference(expected, lines))


def _outcome(result: Result) -> str:
    if not result.is_query:
        return f"status {result.status!r}"
    rows = [render_row(row) for row in result.fetchall()]
    return "\n  ".join([f"{len(rows)} rows", *rows[:10]])


def _check_error(error: MillstreamError, condition: str, fragments: list[str]) -> None:
    text = str(error)
    if str(error.condition) != condition:
        raise _Unexpected(f"expected error {condition}\ngot {text}")
    missing = [fragment for fragment in fragments if fragment not in text]
    if missing:
        raise _Unexpected(f"expected in the error: {missing}\ngot {text}")
    if INNARDS.search(text):
        raise _Unexpected(f"the error shows innards\ngot {text}")


def _difference(expected: list[str], actual: list[str]) -> str:
    lines = difflib.ndiff(expected, actual)
    body = "\n".join(line for line in lines if not line.startswith("?"))
    return f"rows differ: {len(expected)} expected (-), {len(actual)} came (+)\n{body}"
