"""Queries and expressions: their text untouched, with the base tables and functions in them located.

A `Query` keeps the user's text exactly; whoever runs it splices only at the spans of its tables. So spans
are exact, tables are listed in the order of the text without names that a WITH defines, and each stretch to
cut stands in the `extra` of exactly one table: what is said for the whole query (a trailing AS OF or WINDOW)
in that of the first. The first argument of TUMBLE, HOP and SESSION is a table. Text that sqlglot cannot read
is scanned token by token and comes back without a tree. VALID and OVERLAPS are always found by their tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from millstream.errors import Condition, Span, StatementError
from millstream.sql import dialect
from millstream.sql.cursor import CLOSING, NOT_WORDS, OPENING, Cursor, unqualified
from millstream.sql.names import RESERVED_WORDS, TYPE_WORDS
from millstream.sql.scan import scan_tables
from millstream.sql.statements import Name, Query, TableReference
from millstream.sql.valid import check_overlaps, find_valids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millstream.errors import MillstreamError
    from millstream.sql.statements import AsOf, Window

QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "FROM", "TABLE", "("})
MAX_NESTING = 300
TABLE_FUNCTIONS = dialect.TABLE_FUNCTIONS
FUNCTION_TOKENS = (dialect.MillstreamParser.FUNC_TOKENS | {TokenType.IDENTIFIER, TokenType.VAR}) - {
    TokenType.EXISTS,
    TokenType.ANY,
    TokenType.ALL,
    TokenType.SOME,
    TokenType.FILTER,
    TokenType.VALUES,
    TokenType.TABLE,
}
NOT_FUNCTIONS = RESERVED_WORDS | set(TYPE_WORDS) - {"ARRAY", "MAP", "STRUCT", "DATE", "TIMESTAMP", "CHAR"}
ALIASED = frozenset({TokenType.VAR, TokenType.IDENTIFIER, TokenType.R_PAREN, TokenType.ALIAS, TokenType.R_BRACKET})
BEFORE_EXPRESSIONS = frozenset({"AGGREGATE", "ASYMMETRIC", "BOTH", "EXTEND", "LEADING", "SYMMETRIC", "TRAILING"})


def query_from(cursor: Cursor, end: int | None = None) -> Query:
    """The query from here to token `end`, or to the end of the statement."""
    if cursor.word() not in QUERY_WORDS:
        cursor.fail_expecting("a query", near=QUERY_WORDS)
    stop = cursor.end if end is None else end
    tokens = cursor.tokens[cursor.index : stop]
    cursor.index = stop
    return _build(cursor.text, tokens, is_query=True)


def expression_from(cursor: Cursor, end: int) -> Query:
    """The expression from here to token `end`, as a query fragment."""
    if cursor.index >= end:
        cursor.fail_expecting("an expression")
    tokens = cursor.tokens[cursor.index : end]
    cursor.index = end
    return _build(cursor.text, tokens, is_query=False)


def whole_table(cursor: Cursor, table: Name, columns: Sequence[Name]) -> Query:
    """`SELECT … FROM table` for a table named in a statement; its offset takes spans to the name there."""
    chosen = ", ".join(cursor.text[c.span.start : c.span.end] for c in columns) or "*"
    lead = f"SELECT {chosen} FROM "
    text = lead + cursor.text[table.span.start : table.span.end]
    query = _build(text, dialect.tokenize(text), is_query=True)
    return replace(query, offset=table.span.start - len(lead))


def arguments(query: Query, function: Name) -> int:
    """How many arguments a call of a function has, by its commas."""
    tokens = dialect.tokenize(query.text)
    depth, commas, is_empty = 0, 0, True
    for token in (t for t in tokens if t.start >= function.span.end):
        word = token.text if token.token_type not in NOT_WORDS else ""
        depth += (word in OPENING) - (word in CLOSING) if len(word) == 1 else 0
        if depth == 0:
            break
        commas += depth == 1 and word == ","
        is_empty = is_empty and word == "("
    return 0 if is_empty else commas + 1


def _build(source: str, tokens: Sequence[Token], *, is_query: bool) -> Query:
    offset = tokens[0].start
    text = source[offset : tokens[-1].end + 1]
    own = tokens if offset == 0 else [_shifted(t, -offset) for t in tokens]
    try:
        query = _query(text, own, is_query=is_query)
    except StatementError as error:
        raise _moved(error, offset) from error.__cause__
    return replace(query, offset=offset) if offset else query


def _shifted(token: Token, by: int) -> Token:
    return Token(
        token.token_type, token.text, token.line, token.col, token.start + by, token.end + by, token.comments
    )


def _moved(error: StatementError, by: int) -> MillstreamError:
    if error.span is not None:
        error.span = error.span.shifted(by)
    return error


def _query(text: str, tokens: Sequence[Token], *, is_query: bool) -> Query:
    _check_nesting(text, tokens)
    read = dialect.read_query if is_query else dialect.read_expression
    reading = read(tokens, text)
    functions = _functions(tokens)
    if reading is None or _takes_table_for_a_name(text, reading.tree):
        _check_brackets(tokens)
        scanned = scan_tables(Cursor(text, tokens))
        tables = _completed(scanned.tables, scanned.window, scanned.as_of)
        return Query(text, tables, None, scanned.window, 0, functions, find_valids(text, tokens, functions))
    if is_query:
        _check_is_query(reading.tree)
    tables = _completed(tables_of(reading.tree), reading.window, reading.as_of)
    valids = find_valids(text, tokens, functions)
    check_overlaps(text, tokens, reading.tree, valids)
    return Query(text, tables, reading.tree, reading.window, 0, functions, valids)


def _takes_table_for_a_name(text: str, tree: exp.Expression) -> bool:
    """Whether `(TABLE t)` was read as a table called TABLE; the scan of the tokens knows better."""
    names = (n.this for n in tree.find_all(exp.Table) if isinstance(n.this, exp.Identifier))
    return any(n.name.upper() == "TABLE" and text[n.meta.get("start", 0)] != "`" for n in names)


def _check_is_query(tree: exp.Expression) -> None:
    if isinstance(tree, exp.DML | exp.MultitableInserts):
        raise StatementError(
            Condition.NOT_SUPPORTED,
            "a statement that changes rows cannot start with WITH or FROM",
            hint="Write INSERT INTO … first, and WITH or SELECT behind it.",
            span=Span(0, 4),
        )


def _check_nesting(text: str, tokens: Sequence[Token]) -> None:
    if text.count("(") + text.count("[") <= MAX_NESTING:
        return
    depth = 0
    for token in tokens:
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.token_type not in NOT_WORDS else 0
        if depth > MAX_NESTING:
            raise StatementError(
                Condition.SYNTAX_ERROR,
                f"the text is nested more than {MAX_NESTING} levels deep",
                hint="Use a WITH clause to take it apart.",
                span=Span(token.start, token.end + 1),
            )


def _check_brackets(tokens: Sequence[Token]) -> None:
    """Refuse brackets that do not match; Spark cannot accept them either."""
    opened: list[Token] = []
    for token in tokens:
        if token.token_type in NOT_WORDS or len(token.text) != 1:
            continue
        if token.text in OPENING:
            opened.append(token)
        elif token.text in CLOSING:
            if not opened or OPENING.index(opened[-1].text) != CLOSING.index(token.text):
                raise _unmatched(token, f"{token.text} closes nothing", "Remove it, or open it before.")
            opened.pop()
    if opened:
        closing = CLOSING[OPENING.index(opened[-1].text)]
        raise _unmatched(opened[-1], f"{opened[-1].text} is not closed", f"Close it with {closing}.")


def _unmatched(token: Token, message: str, hint: str) -> StatementError:
    span = Span(token.start, token.end + 1)
    return StatementError(Condition.SYNTAX_ERROR, message, hint=hint, span=span)


def tables_of(tree: exp.Expression) -> list[TableReference]:
    """The base tables in a tree, in the order of the text."""
    found = [r for table in tree.find_all(exp.Table) if (r := _reference(table)) is not None]
    return sorted(found, key=lambda r: r.span.start)


def _reference(table: exp.Table) -> TableReference | None:
    # Hints are parsed as texts of their own, so the places of names in them mean nothing here.
    if table.find_ancestor(exp.Hint) is not None:
        return None
    if isinstance(table.this, exp.Anonymous):
        return _table_argument(table.this)
    parts = _names(table.parts)
    if not parts or (len(parts) == 1 and _is_cte(table, parts[0].text)):
        return None
    name = unqualified(parts)
    meta = table.meta
    return TableReference(
        name.text,
        name.span,
        table.alias or None,
        meta.get(dialect.WINDOW),
        meta.get(dialect.AS_OF),
        meta.get(dialect.EXTRA, ()),
    )


def _names(parts: Iterable[exp.Expr]) -> list[Name]:
    """The identifiers with their places; empty if one of them does not stand in the text."""
    names: list[Name] = []
    for part in parts:
        if not isinstance(part, exp.Identifier) or "start" not in part.meta:
            return []
        names.append(Name(part.name, Span(part.meta["start"], part.meta["end"] + 1)))
    return names


def _table_argument(call: exp.Anonymous) -> TableReference | None:
    """The stream that TUMBLE, HOP or SESSION cuts, where it is written without the word TABLE."""
    argument = call.expressions[0] if call.expressions else None
    if str(call.name).upper() not in TABLE_FUNCTIONS or not isinstance(argument, exp.Column):
        return None
    parts = _names(argument.parts)
    if not parts or (len(parts) == 1 and _is_cte(call, parts[0].text)):
        return None
    name = unqualified(parts)
    return TableReference(name.text, name.span)


def _is_cte(node: exp.Expr, name: str) -> bool:
    """Whether a WITH around the node defines the name; a CTE sees only those before it."""
    inside: exp.Expr | None = None
    at: exp.Expr | None = node
    while at is not None:
        if isinstance(at, exp.CTE):
            inside = at
        with_ = at.args.get("with_")
        if isinstance(with_, exp.With) and _defines(with_, name, inside):
            return True
        at = at.parent
    return False


def _defines(with_: exp.With, name: str, inside: exp.Expr | None) -> bool:
    for cte in with_.expressions:
        same = bool(cte.alias.lower() == name.lower())
        if cte is inside:
            return same and bool(with_.args.get("recursive"))
        if same:
            return True
    return False


def _completed(
    tables: Sequence[TableReference], window: Window | None, as_of: AsOf | None
) -> tuple[TableReference, ...]:
    """Give what was said for the whole query to the tables it is for."""
    trailing = tuple(clause.span for clause in (window, as_of) if clause is not None)
    if not trailing:
        return tuple(tables)
    if not tables:
        raise StatementError(
            Condition.SYNTAX_ERROR,
            f"{'WINDOW' if as_of is None else 'AS OF'} needs a table in the query",
            hint="Remove it, or read from a table.",
            span=trailing[0],
        )
    timed = [replace(t, as_of=t.as_of or as_of) for t in tables]
    return (replace(timed[0], extra=timed[0].extra + trailing), *timed[1:])


def _functions(tokens: Sequence[Token]) -> tuple[Name, ...]:
    """Names followed by a parenthesis, but for aliases with columns, types and keywords."""
    found: list[Name] = []
    for i in range(len(tokens) - 1):
        if tokens[i + 1].token_type != TokenType.L_PAREN:
            continue
        token = tokens[i]
        if token.token_type not in FUNCTION_TOKENS or (i and _is_aliased(tokens[i - 1])):
            continue
        if token.token_type != TokenType.IDENTIFIER and token.text.upper() in NOT_FUNCTIONS:
            continue
        if not _is_cte_head(tokens, i):
            found.append(Name(token.text, Span(token.start, token.end + 1)))
    return tuple(found)


def _is_aliased(before: Token) -> bool:
    """Whether the name behind this token is an alias: `FROM t x (a, b)`."""
    return before.token_type in ALIASED and before.text.upper() not in BEFORE_EXPRESSIONS


def _is_cte_head(tokens: Sequence[Token], i: int) -> bool:
    """`WITH name (a, b) AS (…)`: a name with columns, not a call."""
    if i == 0 or tokens[i - 1].token_type not in (TokenType.WITH, TokenType.RECURSIVE, TokenType.COMMA):
        return False
    depth = 0
    for j in range(i + 1, len(tokens) - 2):
        depth += (tokens[j].token_type == TokenType.L_PAREN) - (tokens[j].token_type == TokenType.R_PAREN)
        if depth == 0:
            return tokens[j + 1].token_type == TokenType.ALIAS and tokens[j + 2].token_type == TokenType.L_PAREN
    return False
