r"""The backslash commands of the shell, as one table.

`SHORTCUTS` is the list: dispatch, `\?` and completion all read it. A shortcut answers with an
`Outcome`; wrong use is a `StatementError` with a hint, and `\q` is `LeaveError`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.table import Table

from millstream.cli.feed import Chunk
from millstream.cli.printer import Format
from millstream.cli.runner import Outcome, Runner
from millstream.errors import Condition, StatementError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cli.printer import Settings

ON_OFF = ("on", "off")


class LeaveError(Exception):
    r"""`\q`: the shell is to end."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a shortcut may use; `include` runs a file."""

    runner: Runner
    include: Callable[[str], Outcome]

    @property
    def settings(self) -> Settings:
        return self.runner.printer.settings

    def say(self, text: str) -> None:
        if not self.settings.quiet:
            self.runner.printer.note(text)


@dataclass(frozen=True, slots=True)
class Shortcut:
    """One command: its names, what its argument may be, and what it does.

    `arguments` holds the words to offer, or NAME (an object), FILE (a path), NUMBER.
    """

    names: tuple[str, ...]
    help: str
    run: Callable[[Context, str], Outcome]
    arguments: tuple[str, ...] = ()
    required: bool = False

    @property
    def usage(self) -> str:
        argument = "|".join(self.arguments)
        shown = argument if self.required else f"[{argument}]"
        return ", ".join(self.names) + (f" {shown}" if argument else "")


def run_shortcut(context: Context, text: str) -> Outcome:
    """Run what was typed, backslash and all."""
    name, _, argument = text.strip().removesuffix(";").partition(" ")
    shortcut = BY_NAME.get(name)
    if shortcut is None:
        near = did_you_mean(name, BY_NAME)
        hint = near.replace("\\\\", "\\") if near else "Type \\? for the list."
        raise StatementError(Condition.SYNTAX_ERROR, f"there is no shortcut {name}", hint=hint)
    if shortcut.required and not argument.strip():
        raise _misused(shortcut)
    return shortcut.run(context, argument.strip())


def _misused(shortcut: Shortcut) -> StatementError:
    return StatementError(
        Condition.INVALID_ARGUMENT, f"{shortcut.names[0]} needs an argument", hint=f"Type {shortcut.usage}."
    )


def _quoted(name: str) -> str:
    return name if name.startswith("`") else "`" + name.replace("`", "``") + "`"


def _describe(context: Context, name: str) -> Outcome:
    if name:
        return context.runner.run(Chunk(f"DESCRIBE {_quoted(name)}"))
    return _list(context)


def _list(context: Context, *kinds: str) -> Outcome:
    found = [o for o in context.runner.objects() if not kinds or str(o.kind) in kinds]
    columns = {
        "name": [o.name for o in found],
        "kind": [str(o.kind) for o in found],
        "columns": [", ".join(o.columns) for o in found],
    }
    context.runner.printer.rows(pa.table({k: pa.array(v, pa.string()) for k, v in columns.items()}))
    return Outcome.OK


def _tables(context: Context, argument: str) -> Outcome:
    return _describe(context, argument) if argument else _list(context, "table", "streaming table")


def _streams(context: Context, argument: str) -> Outcome:
    return _describe(context, argument) if argument else _list(context, "stream", "streaming table")


def _views(context: Context, argument: str) -> Outcome:
    if argument:
        return _describe(context, argument)
    return _list(context, "view", "continuous view", "streaming view", "continuous query")


def _indexes(context: Context, table: str) -> Outcome:
    return context.runner.run(Chunk(f"SHOW INDEXES FROM {_quoted(table)}" if table else "SHOW INDEXES"))


def _switched(current: bool, argument: str) -> bool:
    if argument and argument.lower() not in ON_OFF:
        hint = "Leave the argument out to switch between them."
        raise StatementError(Condition.INVALID_ARGUMENT, f"{argument!r} is neither on nor off", hint=hint)
    return argument.lower() == "on" if argument else not current


def _timing(context: Context, argument: str) -> Outcome:
    context.settings.timing = _switched(context.settings.timing, argument)
    context.say(f"timing is {'on' if context.settings.timing else 'off'}")
    return Outcome.OK


def _expanded(context: Context, argument: str) -> Outcome:
    context.settings.expanded = _switched(context.settings.expanded, argument)
    context.say(f"expanded display is {'on' if context.settings.expanded else 'off'}")
    return Outcome.OK


def _format(context: Context, argument: str) -> Outcome:
    if argument and argument.lower() not in tuple(Format):
        hint = did_you_mean(argument, [f.value for f in Format]) or f"The formats are {', '.join(Format)}."
        raise StatementError(Condition.INVALID_ARGUMENT, f"there is no format {argument!r}", hint=hint)
    if argument:
        context.settings.format = Format(argument.lower())
    context.say(f"format is {context.settings.format}")
    return Outcome.OK


def _rows(context: Context, argument: str) -> Outcome:
    if argument and argument != "all" and not argument.isdecimal():
        hint = "Give a whole number, or 'all'."
        raise StatementError(Condition.INVALID_ARGUMENT, f"{argument!r} is no number of rows", hint=hint)
    if argument:
        context.settings.max_rows = None if argument == "all" else int(argument)
    shown = "all" if context.settings.max_rows is None else f"at most {context.settings.max_rows:,}"
    context.say(f"tables show {shown} rows")
    return Outcome.OK


def _include(context: Context, argument: str) -> Outcome:
    try:
        words = shlex.split(argument)
    except ValueError:
        words = [argument]
    return context.include(words[0] if len(words) == 1 else argument)


def _help(context: Context, _argument: str) -> Outcome:
    grid = Table.grid(padding=(0, 3, 0, 0))
    for shortcut in SHORTCUTS:
        grid.add_row(shortcut.usage, shortcut.help)
    grid.add_row("statement;", "run SQL; it may span lines and ends with ;")
    grid.add_row("Ctrl-C", "cancel the running statement, or clear the line")
    grid.add_row("Ctrl-D", "leave")
    context.runner.printer.out.print(grid)
    return Outcome.OK


def _leave(_context: Context, _argument: str) -> Outcome:
    raise LeaveError


SHORTCUTS = (
    Shortcut(("\\d",), "list all objects, or describe one", _describe, ("NAME",)),
    Shortcut(("\\dt",), "list tables and streaming tables", _tables, ("NAME",)),
    Shortcut(("\\ds",), "list streams and streaming tables", _streams, ("NAME",)),
    Shortcut(("\\dv",), "list views and continuous queries", _views, ("NAME",)),
    Shortcut(("\\di",), "list indices, all or those of a table", _indexes, ("NAME",)),
    Shortcut(("\\i",), "run the statements of a file", _include, ("FILE",), required=True),
    Shortcut(("\\o",), "show or set the format of results", _format, tuple(Format)),
    Shortcut(("\\rows",), "show or set how many rows a table shows", _rows, ("NUMBER", "all")),
    Shortcut(("\\x",), "one line for each column instead of wide rows", _expanded, ON_OFF),
    Shortcut(("\\timing",), "show how long each statement took", _timing, ON_OFF),
    Shortcut(("\\?", "\\h"), "this help", _help),
    Shortcut(("\\q",), "leave", _leave),
)
BY_NAME = {name: shortcut for shortcut in SHORTCUTS for name in shortcut.names}
