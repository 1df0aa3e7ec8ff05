"""Cutting text into statements at semicolons, without understanding them.

Knows strings ('…', "…", raw r'…'), backquoted names, line comments and nested block comments as Spark
does. Promises linear time for any text. Refuses, with SYNTAX_ERROR at the opening mark, what is never
closed. Statements come back without the comments and white space around them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from millstream.errors import Condition, Span, StatementError

if TYPE_CHECKING:
    from collections.abc import Iterator

SPECIAL = re.compile(r"""[;'"`]|--|/\*""")
CLOSED = {
    "'": re.compile(r"'(?:[^'\\]++|\\.)*+'", re.DOTALL),
    '"': re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL),
    "`": re.compile(r"`[^`]*+`"),
}
RAW = {"'": re.compile(r"'[^']*+'"), '"': re.compile(r'"[^"]*+"')}
LINE_COMMENT = re.compile(r"[^\r\n]*")
COMMENT_MARK = re.compile(r"/\*|\*/")
WHAT_IS_OPEN = {"'": "string", '"': "string", "`": "quoted name", "/*": "comment"}


def split(text: str) -> tuple[str, ...]:
    """The statements in `text`, in order; pieces that hold only comments are left out."""
    return tuple(text[start:end] for start, end, _ in pieces(text) if end > start)


def is_complete(text: str) -> bool:
    """Whether `text` ends in a semicolon that stands outside of quotes and comments."""
    try:
        cut = list(pieces(text))
    except StatementError:
        return False
    last_start, last_end, _ = cut[-1]
    return len(cut) > 1 and last_start == last_end


def pieces(text: str) -> Iterator[tuple[int, int, bool]]:
    """Start, end and whether a semicolon closes it, for each piece; the last piece has none."""
    start = end = position = 0
    while mark := SPECIAL.search(text, position):
        start, end = _grown(text, position, mark.start(), start, end)
        symbol = mark.group()
        if symbol == ";":
            yield start, end, True
            position = start = end = mark.end()
        elif symbol in CLOSED:
            position = _end_of_quoted(text, mark.start(), symbol)
            start, end = (start if end > start else mark.start()), position
        elif symbol == "--":
            position = _end_of_line(text, mark.end())
        else:
            position = _end_of_comment(text, mark.start())
    start, end = _grown(text, position, len(text), start, end)
    yield start, end, False


def _grown(text: str, begin: int, stop: int, start: int, end: int) -> tuple[int, int]:
    plain = text[begin:stop]
    code = plain.strip()
    if not code:
        return start, end
    first = begin + len(plain) - len(plain.lstrip())
    return (start if end > start else first), begin + len(plain.rstrip())


def _end_of_quoted(text: str, start: int, quote: str) -> int:
    pattern = RAW[quote] if _is_raw(text, start) and quote in RAW else CLOSED[quote]
    closed = pattern.match(text, start)
    if closed is None:
        raise _unclosed(text, start, quote)
    return closed.end()


def _is_raw(text: str, start: int) -> bool:
    if start == 0 or text[start - 1] not in "rR":
        return False
    return start == 1 or not (text[start - 2].isalnum() or text[start - 2] == "_")


def _end_of_line(text: str, start: int) -> int:
    line = LINE_COMMENT.match(text, start)
    return line.end() if line else len(text)


def _end_of_comment(text: str, start: int) -> int:
    depth = 1
    for mark in COMMENT_MARK.finditer(text, start + 2):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    raise _unclosed(text, start, "/*")


def _unclosed(text: str, start: int, mark: str) -> StatementError:
    closing = "*/" if mark == "/*" else mark
    return StatementError(
        Condition.SYNTAX_ERROR,
        f"{WHAT_IS_OPEN[mark]} is not closed",
        hint=f"Close it with {closing}.",
        span=Span(start, start + len(mark)),
        text=text,
    )
