"""The Millstream dialect of sqlglot: Spark SQL with windows and time travel in FROM.

Reads queries and expressions only; statements have readers of their own. The trees it gives are plain Spark
trees: a window or an AS OF is not in the tree's arguments but in the table's `meta`, as the records of
`statements`. Nothing is ever read as a sqlglot `Command`, and nothing is logged.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from millstream.errors import Condition, Span, StatementError
from millstream.sql.cursor import Cursor
from millstream.sql.window import at_as_of, at_window_clause, read_as_of, read_window, read_window_clause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from millstream.sql.statements import AsOf, Window

WINDOW = "millstream_window"
AS_OF = "millstream_as_of"
EXTRA = "millstream_extra"
TABLE_FUNCTIONS = ("TUMBLE", "HOP", "SESSION")
NODES_PER_TOKEN = 20
AS_OF_FIRST_WORDS = frozenset({"AS", "FOR", "VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME"})


class MillstreamParser(SparkParser):
    """Spark's parser, with windows, AS OF and TABLE arguments."""

    FUNC_TOKENS: ClassVar[Any] = {*SparkParser.FUNC_TOKENS, TokenType.SESSION}

    query_window: Window | None = None
    query_as_of: AsOf | None = None

    def _warn_unsupported(self) -> None:
        raise ParseError("not a query")

    def _cursor(self) -> Cursor:
        return Cursor(self.sql, self._tokens, self._index)

    def _move_to(self, cursor: Cursor) -> None:
        self._advance(cursor.index - self._index)

    def _parse_table(
        self,
        schema: bool = False,
        joins: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
        parse_bracket: bool = False,
        is_db_reference: bool = False,
        parse_partition: bool = False,
        consume_pipe: bool = False,
    ) -> exp.Expr | None:
        # Joins wait until a window or AS OF behind the alias has been read.
        this = super()._parse_table(
            schema=schema,
            alias_tokens=alias_tokens,
            parse_bracket=parse_bracket,
            is_db_reference=is_db_reference,
            parse_partition=parse_partition,
            consume_pipe=consume_pipe,
        )
        if isinstance(this, exp.Table):
            self._parse_marks(this)
        if joins and isinstance(this, exp.Table | exp.Subquery):
            for join in self._parse_joins(alias_tokens=alias_tokens):
                this.append("joins", join)
        return this

    def _parse_marks(self, table: exp.Table) -> None:
        version = table.args.pop("version", None)
        if version is not None:
            _mark(table, AS_OF, version.meta[AS_OF], version.meta[AS_OF].span)
        while True:
            if self._curr.token_type == TokenType.L_BRACKET:
                self._parse_window_of(table)
            elif not self._parse_as_of_of(table):
                return

    def _parse_table_part(self, schema: bool = False) -> exp.Expr | None:
        # Other dialects read FROM 'x' as a table; to Spark it is a string.
        return None if self._curr.token_type == TokenType.STRING else super()._parse_table_part(schema)

    def _parse_bracket(self, this: exp.Expr | None = None) -> exp.Expr | None:
        if isinstance(this, exp.Table):
            if self._curr.token_type == TokenType.L_BRACKET:
                self._parse_window_of(this)
            elif self._curr.token_type == TokenType.L_BRACE:
                raise ParseError("a brace cannot follow a table")
            return this
        return super()._parse_bracket(this)

    def _parse_window_of(self, table: exp.Table) -> None:
        cursor = self._cursor()
        window = read_window(cursor)
        _mark(table, WINDOW, window, window.span)
        self._move_to(cursor)

    def _parse_as_of_of(self, table: exp.Table) -> bool:
        if self._curr.text.upper() not in AS_OF_FIRST_WORDS:
            return False
        cursor = self._cursor()
        as_of = read_as_of(cursor)
        if as_of is None:
            return False
        _mark(table, AS_OF, as_of, as_of.span)
        self._move_to(cursor)
        return True

    def _parse_version(self) -> exp.Version | None:
        cursor = self._cursor()
        as_of = read_as_of(cursor)
        if as_of is None:
            return None
        self._move_to(cursor)
        version = exp.Version(this="AS OF", kind="AS OF")
        version.meta[AS_OF] = as_of
        return version

    def _parse_table_alias(self, alias_tokens: Collection[TokenType] | None = None) -> exp.TableAlias | None:
        if self._curr.text.upper() in AS_OF_FIRST_WORDS and at_as_of(self._cursor()):
            return None
        return super()._parse_table_alias(alias_tokens)

    def _parse_window_clause(self) -> list[exp.Expr] | None:
        cursor = self._cursor()
        if not at_window_clause(cursor):
            return super()._parse_window_clause()
        if self.query_window is not None:
            cursor.fail("a query takes one WINDOW clause", hint="Remove one of them.")
        window = read_window_clause(cursor)
        if not (cursor.at_end or at_as_of(cursor)):
            cursor.fail(
                "WINDOW stands at the end of the whole query",
                hint="Write a window in brackets behind the stream instead.",
                at=window.span,
            )
        self.query_window = window
        self._move_to(cursor)
        return None

    def _parse_query_modifiers(self, this: Any) -> Any:
        result = super()._parse_query_modifiers(this)
        if self._curr.text.upper() in AS_OF_FIRST_WORDS:
            cursor = self._cursor()
            as_of = read_as_of(cursor)
            if as_of is not None and (cursor.at_end or at_window_clause(cursor)):
                self.query_as_of = as_of
                self._move_to(cursor)
                return self._parse_query_modifiers(result)
        return result

    def _parse_primary(self) -> exp.Expr | None:
        if self._curr.token_type == TokenType.TABLE and self._next.token_type in self.IDENTIFIER_TOKENS:
            self._advance()
            return self._parse_table_parts()
        return super()._parse_primary()

    def _parse_types(self, check_func: bool = False, *args: Any, **kwargs: Any) -> exp.Expr | None:
        # sqlglot tries struct(…) as a type and then again as a call: exponential when nested.
        if check_func and self._curr.token_type == TokenType.STRUCT and self._next.token_type == TokenType.L_PAREN:
            return None
        return super()._parse_types(check_func, *args, **kwargs)


class Millstream(Spark):
    """Spark SQL as Millstream reads it."""

    # Otherwise sqlglot logs a warning for each JSON path that it cannot read.
    STRICT_JSON_PATH_SYNTAX = False

    class Tokenizer(Spark.Tokenizer):
        # Since Spark 4 a doubled quote inside a string stands for the quote.
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']
        # Statements are read here, so no word may swallow the rest of the text.
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Generator(SparkGenerator):
        # sqlglot would make an approximate percentile of an exact one.
        TRANSFORMS: ClassVar[Any] = {
            k: v for k, v in SparkGenerator.TRANSFORMS.items() if k is not exp.WithinGroup
        }

    Parser = MillstreamParser


@dataclass(frozen=True, slots=True)
class Reading:
    """A tree, and what its text said for the whole query."""

    tree: exp.Expression
    window: Window | None
    as_of: AsOf | None


class _Tokenizers(threading.local):
    """One tokenizer a thread: it costs more to build than a short statement takes to read."""

    def __init__(self) -> None:
        self.tokenizer = Millstream.Tokenizer(dialect=DIALECT)


DIALECT = Millstream()
_tokenizers = _Tokenizers()


def tokenize(text: str) -> list[Token]:
    """The tokens of one statement; SYNTAX_ERROR where a literal cannot be read."""
    tokenizer = _tokenizers.tokenizer
    try:
        return tokenizer.tokenize(text)
    except TokenError as error:
        start = min(tokenizer._core._start, max(len(text) - 1, 0))
        raise StatementError(
            Condition.SYNTAX_ERROR,
            "a literal cannot be read",
            detail=str(error.__cause__) if error.__cause__ else None,
            hint="Check its quotes and digits.",
            span=Span(start, start + 1),
        ) from error


def read_query(tokens: Sequence[Token], text: str) -> Reading | None:
    """The query in these tokens, or None where sqlglot cannot read it."""
    return _read(MillstreamParser._parse_statement, tokens, text)


def read_expression(tokens: Sequence[Token], text: str) -> Reading | None:
    """The expression in these tokens, or None where sqlglot cannot read it."""
    return _read(MillstreamParser._parse_expression, tokens, text)


def _read(
    method: Callable[[MillstreamParser], exp.Expr | None], tokens: Sequence[Token], text: str
) -> Reading | None:
    parser = MillstreamParser(dialect=DIALECT, max_nodes=NODES_PER_TOKEN * (len(tokens) + 20))
    try:
        trees = parser._parse(method, list(tokens), text)  # type: ignore[arg-type]
    except StatementError:
        raise
    except Exception:
        # On text it does not know sqlglot also fails with RecursionError, AttributeError and others;
        # Spark has the last word on all of these.
        return None
    tree = trees[0] if trees else None
    if not isinstance(tree, exp.Expression):
        return None
    return Reading(tree, parser.query_window, parser.query_as_of)


def _mark(table: exp.Table, key: str, value: Window | AsOf, span: Span) -> None:
    if key in table.meta:
        raise StatementError(
            Condition.SYNTAX_ERROR,
            f"a table takes one {'window' if key == WINDOW else 'AS OF'}",
            hint="Remove one of them.",
            span=span,
        )
    table.meta[key] = value
    table.meta[EXTRA] = (*table.meta.get(EXTRA, ()), span)
