"""`VALID(p)` and `VALID(p) OVERLAPS (low, high)` in a text, found by its tokens.

Whatever sqlglot makes of the text, each call is located with its one argument and, if OVERLAPS follows, with the
places that make it a BETWEEN. Strings, quoted names, columns and aliases called valid or overlaps stay what they
are. Refuses a VALID without exactly one name (WRONG_ARITY), bounds that are not two expressions, and OVERLAPS of
anything but VALID (INVALID_ARGUMENT).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from millstream.errors import Condition, Span, StatementError
from millstream.sql.cursor import SCHEMA, Cursor
from millstream.sql.statements import Name, Overlaps, Valid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.tokenizer_core import Token

WORD = "VALID"
OVERLAPS_WORD = re.compile("overlaps", re.IGNORECASE)
BEFORE_NAMES = frozenset({TokenType.DOT, TokenType.ALIAS, TokenType.COMMA, TokenType.SELECT})
QUERY_STARTS = ("SELECT", "WITH", "VALUES", "FROM", "TABLE")
VALID_FORM = "Write VALID(p), where p is a table's name or alias in FROM."
OVERLAPS_FORM = "Write VALID(p) OVERLAPS (low, high), or VALID(p) BETWEEN low AND high."


def find_valids(text: str, tokens: Sequence[Token], functions: Sequence[Name]) -> tuple[Valid, ...]:
    """The calls of VALID among the calls of functions, in the order of the text."""
    starts = {f.span.start for f in functions if f.text.upper() == WORD and text[f.span.start] != "`"}
    if not starts:
        return ()
    places = [i for i, token in enumerate(tokens) if token.start in starts]
    return tuple(_read(Cursor(text, tokens, i)) for i in places if not (i and tokens[i - 1].text == "."))


def _read(cursor: Cursor) -> Valid:
    first = cursor.index
    cursor.index += 2
    name = _argument(cursor)
    if name is None:
        raise _wrong_arity(Cursor(cursor.text, cursor.tokens, first))
    return Valid(cursor.since(first), name, _overlaps(cursor))


def _argument(cursor: Cursor) -> Name | None:
    """The table, `p` or `main.p`, with the parenthesis behind it; None if anything else stands there."""
    parts: list[Name] = []
    while cursor.is_name():
        parts.append(cursor.name())
        if cursor.accept(")"):
            return _table(parts)
        if not cursor.accept("."):
            return None
    return None


def _table(parts: list[Name]) -> Name:
    span = Span(parts[0].span.start, parts[-1].span.end)
    if len(parts) > 2 or (len(parts) == 2 and parts[0].text.lower() != SCHEMA):
        raise StatementError(
            Condition.UNKNOWN_TABLE,
            f"VALID takes a table, and {'.'.join(p.text for p in parts)!r} is none",
            hint=VALID_FORM,
            span=span,
        )
    return Name(parts[-1].text, span)


def _wrong_arity(cursor: Cursor) -> StatementError:
    first = cursor.index
    cursor.index += 2
    cursor.skip_to((")",))
    return cursor.error(
        "VALID takes the name of one table",
        hint=VALID_FORM,
        at=cursor.span_of(first, min(cursor.index, cursor.end - 1)),
        condition=Condition.WRONG_ARITY,
    )


def _overlaps(cursor: Cursor) -> Overlaps | None:
    cursor.accept("NOT")
    first = cursor.index
    # An OVERLAPS without a parenthesis may be an alias.
    if not (cursor.accept("OVERLAPS", "(") or cursor.accept("OVERLAPS", "PERIOD", "(")):
        return None
    opening = cursor.since(first)
    stops = _stops(cursor)
    if stops is None:
        raise _not_two_bounds(cursor, first)
    return Overlaps(opening, cursor.span_of(stops[0]), cursor.span_of(stops[1]))


def _stops(cursor: Cursor) -> tuple[int, int] | None:
    """The tokens behind the two bounds; None if there are not just two, or if it is one query."""
    low = cursor.index
    cursor.skip_to((",", ")"))
    comma = cursor.index
    cursor.index = min(comma + 1, cursor.end)
    cursor.skip_to((",", ")"))
    closing = cursor.index
    words = (Cursor(cursor.text, cursor.tokens, i).word() for i in (low, comma, closing))
    first, middle, last = words
    good = middle == "," and last == ")" and low < comma and comma + 1 < closing and first not in QUERY_STARTS
    return (comma, closing) if good else None


def _not_two_bounds(cursor: Cursor, first: int) -> StatementError:
    cursor.index = first
    cursor.skip_to(("(",))
    cursor.index += 1
    cursor.skip_to((")",))
    return cursor.error(
        "OVERLAPS takes two bounds",
        hint=OVERLAPS_FORM,
        at=cursor.span_of(first, min(cursor.index, cursor.end - 1)),
        condition=Condition.INVALID_ARGUMENT,
    )


def check_overlaps(text: str, tokens: Sequence[Token], tree: exp.Expression, valids: Sequence[Valid]) -> None:
    """Refuse an OVERLAPS that the tree has as a predicate and that is not one of VALID."""
    if not OVERLAPS_WORD.search(text) or all(period_of(node) for node in tree.find_all(exp.Overlaps)):
        return
    known = {v.overlaps.opening.start for v in valids if v.overlaps is not None}
    words = [i for i, token in enumerate(tokens) if token.token_type == TokenType.OVERLAPS]
    operators = [i for i in words if i and tokens[i - 1].token_type not in BEFORE_NAMES]
    # In `1 + VALID(p) OVERLAPS …` a known one is at fault: its left side is the sum.
    at = next((i for i in operators if tokens[i].start not in known), (operators or words)[0])
    cursor = Cursor(text, tokens)
    raise cursor.error(
        "OVERLAPS compares VALID of a table with a period",
        hint=OVERLAPS_FORM,
        at=cursor.span_of(at),
        condition=Condition.INVALID_ARGUMENT,
    )


def table_of(node: exp.Expr) -> str | None:
    """The table in a tree's `VALID(p)`; None for any other expression."""
    if not isinstance(node, exp.Anonymous) or not isinstance(node.this, str) or node.this.upper() != WORD:
        return None
    argument = node.expressions[0] if len(node.expressions) == 1 else None
    return argument.name if isinstance(argument, exp.Column) else None


def period_of(node: exp.Overlaps) -> tuple[exp.Expr, exp.Expr] | None:
    """The bounds of a tree's `VALID(p) OVERLAPS (low, high)`; None for any other OVERLAPS."""
    period = node.expression
    named = isinstance(period, exp.Anonymous) and str(period.this).upper() == "PERIOD"
    if table_of(node.this) is None or not (named or isinstance(period, exp.Tuple)) or len(period.expressions) != 2:
        return None
    return period.expressions[0], period.expressions[1]
