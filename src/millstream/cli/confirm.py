"""Which statements take data away on a scale that is worth a question first.

DROP, TRUNCATE and INSERT OVERWRITE always; DELETE and UPDATE where they have no WHERE. Text that
cannot be cut into tokens is left to the database to refuse.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST = 60


def warnings(text: str) -> list[str]:
    """A sentence for every statement in the text that deserves a question."""
    return [w for tokens in _statements(text) if (w := _warning(text, tokens)) is not None]


def _statements(text: str) -> Iterator[Sequence[Token]]:
    try:
        tokens = sqlglot.tokenize(text, read="spark")
    except SqlglotError:
        return
    for ends, group in groupby(tokens, lambda t: t.token_type is TokenType.SEMICOLON):
        if not ends:
            yield list(group)


def _warning(text: str, tokens: Sequence[Token]) -> str | None:
    words = [t.text.upper() for t in tokens[:2]]
    shown = _shortened(text[tokens[0].start : tokens[-1].end + 1])
    if words[0] == "DROP":
        return f"{shown} cannot be undone."
    if words[0] == "TRUNCATE" or words == ["INSERT", "OVERWRITE"]:
        return f"{shown} removes every row there is."
    if words[0] in ("DELETE", "UPDATE") and not _has_where(tokens):
        return f"{shown} has no WHERE: it {words[0].lower()}s every row."
    return None


def _has_where(tokens: Sequence[Token]) -> bool:
    depth = 0
    for token in tokens:
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if depth == 0 and token.token_type is TokenType.WHERE:
            return True
    return False


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
