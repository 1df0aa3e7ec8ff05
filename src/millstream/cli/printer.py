"""Everything the command line says: rows and statuses on stdout, errors and remarks on stderr.

In the table format statuses go to stdout too; in CSV and JSON they go to stderr, so that stdout holds
data only. Colour appears on terminals alone and never where NO_COLOR is set. A reader that closes
the pipe shows as `BrokenPipeError`.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from millstream.deliver import render
from millstream.errors import InternalError, MillstreamError, underline

if TYPE_CHECKING:
    import pyarrow as pa

UNBOUNDED = 1_000_000


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@dataclass(slots=True)
class Settings:
    """What the user can switch; `max_rows` None shows all rows of a table."""

    format: Format = Format.TABLE
    expanded: bool = False
    timing: bool = False
    quiet: bool = False
    debug: bool = False
    max_rows: int | None = render.DEFAULT_ROWS


class Printer:
    """Writes results in the format that the settings ask for at that moment."""

    def __init__(self, settings: Settings, out: TextIO, err: TextIO) -> None:
        self.settings = settings
        self.out = console_on(out)
        self.err = console_on(err)
        self._stream = out

    def rows(self, table: pa.Table) -> None:
        if self.settings.format is Format.CSV:
            render.write_csv(table, self._stream)
        elif self.settings.format is Format.JSON:
            render.write_json(table, self._stream)
        else:
            self._show(table)
        self._stream.flush()

    def _show(self, table: pa.Table) -> None:
        rows = self.settings.max_rows
        if self.settings.expanded:
            self.out.print(render.to_expanded(table, rows))
        else:
            widest = render.WIDEST_CELL if self.out.is_terminal else None
            self.out.print(render.to_rich(table, rows, max_cell=widest))

    def status(self, text: str) -> None:
        if not self.settings.quiet:
            console = self.out if self.settings.format is Format.TABLE else self.err
            console.print(Text(render.printable(text)), soft_wrap=True)

    def timing(self, seconds: float) -> None:
        if self.settings.timing and not self.settings.quiet:
            self.note(f"Time: {seconds:.3f} s")

    def note(self, text: str) -> None:
        """A remark that is no part of the result."""
        self.err.print(Text(text, style="dim"), soft_wrap=True)

    def error(self, error: Exception, where: str | None = None) -> None:
        """The whole story of a failure; `where` names the file and line of the statement."""
        if self.settings.debug:
            self.err.print(Text("".join(traceback.format_exception(error)), style="dim"), soft_wrap=True)
        self.err.print(error_text(_told(error), where), soft_wrap=True)


def error_text(error: MillstreamError, where: str | None = None) -> Text:
    """Condition and message, the underlined SQL, DETAIL and HINT."""
    text = Text(f"{where}: " if where else "", style="")
    text.append(f"[{error.condition.value}]", style="bold red")
    text.append(" " + _inert(error.message))
    if error.text is not None and error.span is not None:
        line, carets = underline(error.text, error.span).split("\n")
        text.append("\n" + line).append("\n" + carets, style="bold red")
    for label, content in (("DETAIL", error.detail), ("HINT", error.hint)):
        if content:
            text.append(f"\n{label}:", style="bold").append(" " + _inert(content))
    return text


def console_on(stream: TextIO) -> Console:
    """A console that takes text as it is; off a terminal it is as wide as its content."""
    width = None if stream.isatty() else UNBOUNDED
    return _Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _told(error: Exception) -> MillstreamError:
    if isinstance(error, MillstreamError):
        return error
    return InternalError(f"unexpected {type(error).__name__}: {error}")


def _inert(text: str) -> str:
    return "\n".join(render.printable(line.expandtabs()) for line in text.splitlines())
