"""A place in a list of tokens, and the small steps every statement reader takes.

Holds sqlglot tokens and the text they came from; reads words, names, strings and numbers. A step either
consumes exactly what it names or raises a SYNTAX_ERROR that underlines the token in the way. Words match
whatever their case, and never a quoted name or a string.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from sqlglot.tokenizer_core import TokenType

from millstream.errors import Condition, Span, StatementError, did_you_mean
from millstream.sql.names import RESERVED_WORDS
from millstream.sql.statements import Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlglot.tokenizer_core import Token

STRINGS = frozenset({TokenType.STRING, TokenType.RAW_STRING})
NOT_WORDS = STRINGS | {TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.HEX_STRING}
PLAIN_NAME = re.compile(r"\w+")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
OPENING = "([{"
CLOSING = ")]}"
SCHEMA = "main"


class Cursor:
    """Reads `tokens[index:end]`; `index` moves, the rest stays."""

    __slots__ = ("end", "index", "text", "tokens")

    def __init__(self, text: str, tokens: Sequence[Token], index: int = 0, end: int | None = None) -> None:
        self.text = text
        self.tokens = tokens
        self.index = index
        self.end = len(tokens) if end is None else end

    @property
    def at_end(self) -> bool:
        return self.index >= self.end

    def token(self, ahead: int = 0) -> Token | None:
        at = self.index + ahead
        return self.tokens[at] if at < self.end else None

    def word(self, ahead: int = 0) -> str:
        """The token as an upper-case word or symbol; empty for strings, numbers, quoted names and the end."""
        token = self.token(ahead)
        return "" if token is None or token.token_type in NOT_WORDS else token.text.upper()

    def source(self, ahead: int = 0) -> str:
        token = self.token(ahead)
        return "" if token is None else self.text[token.start : token.end + 1]

    def at(self, *words: str) -> bool:
        return all(self.word(i) == word for i, word in enumerate(words))

    def at_any(self, words: Iterable[str]) -> bool:
        return self.word() in words

    def accept(self, *words: str) -> bool:
        if not self.at(*words):
            return False
        self.index += len(words)
        return True

    def accept_any(self, words: Iterable[str]) -> str:
        word = self.word()
        if not word or word not in words:
            return ""
        self.index += 1
        return word

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                self.fail_expecting(word, near=(word,))

    def is_string(self, ahead: int = 0) -> bool:
        token = self.token(ahead)
        return token is not None and token.token_type in STRINGS

    def is_number(self, ahead: int = 0) -> bool:
        token = self.token(ahead)
        return token is not None and token.token_type == TokenType.NUMBER

    def string(self, what: str = "a string in quotes") -> str:
        token = self.token()
        if token is None or token.token_type not in STRINGS:
            self.fail_expecting(what)
        self.index += 1
        return token.text

    def integer(self, what: str = "a whole number") -> int:
        token = self.token()
        if token is None or not (self.is_number() and token.text.isdecimal() and token.text.isascii()):
            self.fail_expecting(what)
        self.index += 1
        if len(token.text) > 19:
            self.fail("number is too large", at=self.span_of(self.index - 1), condition=Condition.INVALID_ARGUMENT)
        return int(token.text)

    def is_name(self, ahead: int = 0) -> bool:
        token = self.token(ahead)
        if token is None or token.token_type in STRINGS or token.token_type == TokenType.HEX_STRING:
            return False
        if token.token_type == TokenType.IDENTIFIER:
            return True
        source = self.source(ahead)
        return (
            bool(PLAIN_NAME.fullmatch(source))
            and not self.is_number(ahead)
            and source.upper() not in RESERVED_WORDS
        )

    def name(self, what: str = "a name") -> Name:
        """One identifier, as written or without its backquotes."""
        if not self.is_name():
            self._fail_name(what)
        token = self.tokens[self.index]
        quoted = token.token_type == TokenType.IDENTIFIER
        text = token.text if quoted else self.source()
        if not text or CONTROL.search(text):
            self.fail("a name needs at least one character and no control characters", at=self.span())
        self.index += 1
        return Name(text, Span(token.start, token.end + 1))

    def object_name(self, what: str = "a name") -> Name:
        """An object's name; `main.x` is `x`, other qualifiers are refused."""
        parts = [self.name(what)]
        while self.accept("."):
            parts.append(self.name(what))
        return unqualified(parts)

    def names_in_parentheses(self) -> tuple[Name, ...]:
        self.expect("(")
        names = [self.name("a column name")]
        while self.accept(","):
            names.append(self.name("a column name"))
        self.expect(")")
        return tuple(names)

    def skip_to(self, words: Iterable[str]) -> None:
        """Move to the first of these words outside of all brackets, or to the end."""
        depth = 0
        while not self.at_end:
            word = self.word()
            if depth == 0 and word in words:
                return
            depth += (word in OPENING) - (word in CLOSING) if len(word) == 1 else 0
            if depth < 0:
                return
            self.index += 1

    def span(self) -> Span:
        return self.span_of(self.index)

    def span_of(self, first: int, last: int | None = None) -> Span:
        """Where tokens `first` to `last` (both included) stand; at the end, just behind the last one."""
        if first >= self.end:
            stop = self.tokens[self.end - 1].end + 1 if self.end else 0
            return Span(stop, stop + 1)
        return Span(self.tokens[first].start, self.tokens[first if last is None else last].end + 1)

    def since(self, first: int) -> Span:
        """Where the tokens from `first` up to here stand."""
        return self.span_of(first, max(first, self.index - 1))

    def expect_end(self) -> None:
        if not self.at_end:
            self.fail(
                f"{self.found()} was not expected here", hint="Remove it, or put a ; between two statements."
            )

    def found(self) -> str:
        return repr(self.source()[:40]) if not self.at_end else "the end of the statement"

    def fail_expecting(self, what: str, near: Iterable[str] = ()) -> NoReturn:
        raise self.expecting(what, near)

    def fail(
        self,
        message: str,
        *,
        hint: str | None = None,
        at: Span | None = None,
        condition: Condition = Condition.SYNTAX_ERROR,
    ) -> NoReturn:
        raise self.error(message, hint=hint, at=at, condition=condition)

    def expecting(self, what: str, near: Iterable[str] = ()) -> StatementError:
        token = self.token()
        hint = did_you_mean(token.text[:40], near) if token is not None else None
        return self.error(f"expected {what} but found {self.found()}", hint=hint)

    def error(
        self,
        message: str,
        *,
        hint: str | None = None,
        at: Span | None = None,
        condition: Condition = Condition.SYNTAX_ERROR,
    ) -> StatementError:
        """An error that points here, or at `at`."""
        return StatementError(condition, message, hint=hint, span=at or self.span())

    def _fail_name(self, what: str) -> NoReturn:
        if self.word() in RESERVED_WORDS:
            self.fail(
                f"expected {what} but found the word {self.source()}",
                hint=f"To use it as a name write `{self.source()}`, in backquotes.",
            )
        self.fail_expecting(what)


def unqualified(parts: Sequence[Name]) -> Name:
    """The object that a multi-part name stands for; its span covers all parts."""
    span = Span(parts[0].span.start, parts[-1].span.end)
    if len(parts) > 2 or (len(parts) == 2 and parts[0].text.lower() != SCHEMA):
        raise StatementError(
            Condition.UNKNOWN_TABLE,
            f"there is no schema {'.'.join(p.text for p in parts[:-1])!r}",
            hint=f"A database has the one schema {SCHEMA!r}; write {parts[-1].text!r} alone.",
            span=span,
        )
    return Name(parts[-1].text, span)
