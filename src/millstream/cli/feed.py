"""Cuts a stream of lines into pieces that can be run, as soon as each is complete.

Nothing is read ahead: a piece comes out when the line that ends it has come in, so a program at the
other end of a pipe gets its answer before it has sent everything.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from millstream.database import is_complete
from millstream.errors import Condition, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

STANDARD_INPUT = "-"
SHORTCUT = "\\"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole statements, or one shortcut, and the place they came from (`file.sql:12`)."""

    text: str
    where: str | None = None

    @property
    def is_shortcut(self) -> bool:
        return self.text.startswith(SHORTCUT)


def chunks_of(path: str, *, shortcuts: bool = False) -> Iterator[Chunk]:
    """The chunks of a file, or of standard input for `-`."""
    try:
        if path == STANDARD_INPUT:
            yield from cut(sys.stdin, "<stdin>", shortcuts=shortcuts)
        else:
            with open(path, encoding="utf-8-sig") as stream:
                yield from cut(stream, path, shortcuts=shortcuts)
    except FileNotFoundError:
        raise _unreadable(Condition.FILE_NOT_FOUND, f"no file {path!r}") from None
    except OSError as error:
        raise _unreadable(Condition.FILE_UNREADABLE, f"cannot read {path!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _unreadable(Condition.FILE_UNREADABLE, f"{path!r} is not UTF-8 text") from error


def cut(stream: TextIO, name: str, *, shortcuts: bool = False) -> Iterator[Chunk]:
    """Chunks as their last lines come in; what is left at the end is a chunk too."""
    text, first = "", 0
    for number, line in enumerate(iter(stream.readline, ""), 1):
        if not text.strip():
            text, first = "", number
        if shortcuts and not text and line.lstrip().startswith(SHORTCUT):
            yield Chunk(line.strip(), f"{name}:{number}")
            continue
        text += line
        if ";" in line and is_complete(text):
            yield Chunk(text, f"{name}:{first}")
            text = ""
    if text.strip():
        yield Chunk(text, f"{name}:{first}")


def _unreadable(condition: Condition, message: str) -> DataError:
    return DataError(condition, message, hint="Check the path and that the file is SQL text in UTF-8.")
