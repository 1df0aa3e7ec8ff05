"""A predicate over one stream's columns → the selection it is: terms of domains, and texts for the rest.

Negations go down to single tests, ANDs are multiplied out over ORs as long as few terms come of it, and tests of
one attribute in a term become one domain. A test whose meaning for every value is not plain from its text
(functions, LIKE, two columns, types that compare in their own way) stays text; so does a predicate of too many
terms.
"""

from __future__ import annotations

import datetime
import math
import operator
import re
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from millstream.plan.selection import NULL, Domain, Selection, Term
from millstream.rewrite import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Types = Mapping[str, pa.DataType]

MOST_TERMS = 64
COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
DATE = re.compile(r"\d{4}-\d\d-\d\d")
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)


def selection_of(predicate: exp.Expr | None, types: Types) -> Selection:
    """What a predicate selects; `types` are those of the stream's columns, by name in lower case."""
    if predicate is None:
        return Selection()
    terms = _terms(predicate, types, is_negated=False)
    if terms is None:
        return Selection((Term(rest=(names.text(predicate),)),))
    return Selection(tuple(t for t in terms if not t.is_never))


def _terms(node: exp.Expr, types: Types, *, is_negated: bool) -> list[Term] | None:
    """The terms of a predicate, or of its negation; None if there are too many."""
    node = node.unnest()
    if isinstance(node, exp.Not):
        return _terms(node.this, types, is_negated=not is_negated)
    if not isinstance(node, exp.And | exp.Or):
        return [_term(node, types, is_negated=is_negated)]
    left = _terms(node.this, types, is_negated=is_negated)
    right = _terms(node.expression, types, is_negated=is_negated)
    if left is None or right is None:
        return None
    if isinstance(node, exp.Or) != is_negated:
        return _few(_united(left + right))
    return _few([a & b for a, b in product(left, right)])


def _few(terms: list[Term]) -> list[Term] | None:
    return terms if len(terms) <= MOST_TERMS else None


def _united(terms: list[Term]) -> list[Term]:
    """Terms about one and the same attribute alone become one."""
    made: list[Term] = []
    alone: dict[str, Domain] = {}
    for term in terms:
        if len(term.domains) == 1 and not term.rest:
            [(name, domain)] = term.domains.items()
            alone[name] = alone[name] | domain if name in alone else domain
        else:
            made.append(term)
    return made + [Term({name: domain}) for name, domain in alone.items()]


def _term(node: exp.Expr, types: Types, *, is_negated: bool) -> Term:
    found = _domain(node, types)
    if found is None:
        return Term(rest=(names.text(exp.not_(node) if is_negated else node),))
    name, domain = found
    if not name:
        # Says the same of every row.
        holds = domain.starts if not is_negated else domain.others().starts
        return Term() if holds else Term({next(iter(types)): Domain(starts=False)})
    return Term({name: domain.others() if is_negated else domain})


def _domain(node: exp.Expr, types: Types) -> tuple[str, Domain] | None:
    """The attribute that a single test is about and the values that satisfy it; None if it is not that plain."""
    if isinstance(node, exp.Boolean):
        return "", Domain(starts=bool(node.this))
    if isinstance(node, exp.Column):
        name = node.name.lower()
        return (name, Domain.among([True])) if pa.types.is_boolean(types[name]) else None
    if isinstance(node, exp.Is) and isinstance(node.this, exp.Column):
        return (node.this.name.lower(), NULL) if isinstance(node.expression, exp.Null) else None
    if type(node) in COMPARISONS:
        return _compared(node.this, COMPARISONS[type(node)], node.expression, types)
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        low = _compared(node.this, ">=", node.args["low"], types)
        high = _compared(node.this, "<=", node.args["high"], types)
        return _of_one([low, high], operator.and_)
    if isinstance(node, exp.In) and node.args.get("query") is None and node.expressions:
        return _of_one([_compared(node.this, "=", e, types) for e in node.expressions], operator.or_)
    return None


def _of_one(
    tests: Sequence[tuple[str, Domain] | None], combined: Callable[[Domain, Domain], Domain]
) -> tuple[str, Domain] | None:
    """Tests of one attribute as a single one; None if they are about several, as in `5 BETWEEN a AND b`."""
    found = [test for test in tests if test is not None]
    if len(found) < len(tests) or len({name for name, _ in found}) > 1:
        return None
    return found[0][0], reduce(combined, (domain for _, domain in found))


def _compared(left: exp.Expr, comparison: str, right: exp.Expr, types: Types) -> tuple[str, Domain] | None:
    left, right = left.unnest(), right.unnest()
    if isinstance(right, exp.Column):
        left, right, comparison = right, left, TURNED[comparison]
    if not isinstance(left, exp.Column):
        return None
    name = left.name.lower()
    value = constant(right, types[name])
    return None if value is None else (name, Domain.comparing(comparison, value))


def constant(node: exp.Expr, kind: pa.DataType) -> Any:
    """A literal as a value of a column's type, where comparing the two is exact; None otherwise."""
    is_negative = isinstance(node, exp.Neg)
    literal = node.this if is_negative else node
    if isinstance(node, exp.Boolean):
        return bool(node.this) if pa.types.is_boolean(kind) else None
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        return _moment(node.this.this, node.to, kind)
    if not isinstance(literal, exp.Literal):
        return None
    if literal.is_string:
        return literal.this if pa.types.is_string(kind) and not is_negative else None
    if pa.types.is_integer(kind) and literal.is_int:
        number = -int(literal.this) if is_negative else int(literal.this)
        return number if -(2**63) <= number < 2**63 else None
    if pa.types.is_float64(kind):
        value = -float(literal.this) if is_negative else float(literal.this)
        # Spark refuses to read what is too large.
        return value + 0.0 if math.isfinite(value) else None
    return None


def _moment(text: str, to: exp.DataType, kind: pa.DataType) -> int | None:
    """A date as days, a timestamp as microseconds, as columns of these types are stored."""
    if pa.types.is_date32(kind) and to.is_type(exp.DType.DATE) and DATE.fullmatch(text):
        return _counted(text, datetime.timedelta(days=1))
    if pa.types.is_timestamp(kind) and to.is_type(exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMP) and kind.tz:
        return _counted(text, MICROSECOND) if TIMESTAMP.fullmatch(text) or DATE.fullmatch(text) else None
    return None


def _counted(text: str, unit: datetime.timedelta) -> int | None:
    try:
        return (datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC) - EPOCH) // unit
    except ValueError:
        return None
