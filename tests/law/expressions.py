"""Random scalar expressions and predicates, in what Spark and DuckDB compute alike.

Nothing here overflows, divides by zero or depends on the order of float additions. A DECIMAL is compared and
added only. Results that may differ in the last digit are never made here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.law.data import KEY_VALUES, MEASURES, literal
from tests.law.pieces import Sql, Term, Type, chance, each, listed, same, sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

NARROW = [
    ("({x} + 3)", Type.INT),
    ("({x} * 2)", Type.INT),
    ("({x} % 3)", Type.INT),
    ("coalesce({x}, 0)", Type.INT),
    ("CAST({x} AS BIGINT)", Type.LONG),
    ("CAST({x} AS DOUBLE)", Type.DOUBLE),
]
FORMS: dict[Type, list[tuple[str, Type]]] = {
    Type.BYTE: NARROW,
    Type.SHORT: NARROW,
    Type.INT: [
        ("({x} + 3)", Type.INT),
        ("({x} * 2)", Type.INT),
        ("abs({x})", Type.INT),
        ("({x} % 3)", Type.INT),
        ("coalesce({x}, 0)", Type.INT),
        ("(- {x})", Type.INT),
        ("CAST({x} AS BIGINT)", Type.LONG),
        ("nullif({x}, 2)", Type.INT),
        ("CAST({x} AS DOUBLE)", Type.DOUBLE),
    ],
    Type.LONG: [("({x} % 5)", Type.LONG), ("coalesce({x}, 1)", Type.LONG), ("({x} - 7)", Type.LONG)],
    Type.DOUBLE: [
        ("({x} * CAST(0.5 AS DOUBLE))", Type.DOUBLE),
        ("abs({x})", Type.DOUBLE),
        ("coalesce({x}, CAST(1 AS DOUBLE))", Type.DOUBLE),
    ],
    Type.TEXT: [
        ("upper({x})", Type.TEXT),
        ("substring({x}, 1, 1)", Type.TEXT),
        ("length({x})", Type.INT),
        ("({x} || '!')", Type.TEXT),
        ("coalesce({x}, 'none')", Type.TEXT),
        ("CASE {x} WHEN 'a' THEN 1 WHEN 'b' THEN 2 END", Type.INT),
    ],
    Type.BOOL: [("(NOT {x})", Type.BOOL), ("CAST({x} AS INT)", Type.INT), ("coalesce({x}, FALSE)", Type.BOOL)],
    Type.DATE: [
        ("year({x})", Type.INT),
        ("month({x})", Type.INT),
        ("weekofyear({x})", Type.INT),
        ("({x} IS NULL)", Type.BOOL),
    ],
    Type.TIME: [
        ("CAST({x} AS DATE)", Type.DATE),
        ("weekofyear({x})", Type.INT),
        ("hour({x})", Type.INT),
        ("date_trunc('DAY', {x})", Type.TIME),
    ],
    Type.DECIMAL: [("coalesce({x}, CAST(0 AS DECIMAL(12,2)))", Type.DECIMAL)],
}


def values(rng: Random, term: Term, count: int) -> list[str]:
    """Constants in ascending order: keys' values for a key, for something to match."""
    if term.type is Type.LONG and not term.is_key:
        return [str(n) for n in sorted(rng.randint(0, 400) for _ in range(count))]
    found = [
        rng.choice(KEY_VALUES[term.type]) if term.is_key or chance(rng, 0.2) else MEASURES[term.type](rng)
        for _ in range(count)
    ]
    return [literal(value, term.type) for value in sorted(found)]


def made(rng: Random, term: Term) -> Term:
    """An expression over one term; large numbers and NaN stay what they are.

    DuckDB gives a constant the narrow type of a column beside it, where Spark makes both INT.
    """
    if term.type not in FORMS or term.has_nan:
        return term
    template, type_ = rng.choice(FORMS[term.type])
    found = term.made(template, type_)
    if term.type.is_narrow and type_ is Type.INT:
        wide = term.made("CAST({x} AS INT)").made(template)
        return replace(found, sql=replace(found.sql, duck=wide.sql.duck))
    return found


def perhaps_made(rng: Random, term: Term) -> Term:
    """The term itself, mostly."""
    return made(rng, term) if chance(rng, 0.3) else term


def key(rng: Random, terms: Sequence[Term]) -> Term:
    """Something to group by: few values, null among them, no NaN."""
    keys = [t for t in terms if t.is_key and t.is_exact]
    term = rng.choice(keys)
    if chance(rng, 0.65):
        return term
    if chance(rng, 0.4):
        return Term(sql("CASE WHEN {p} THEN 'yes' ELSE 'no' END", p=predicate(rng, terms)), Type.TEXT, is_key=True)
    return made(rng, term)


def comparison(rng: Random, term: Term) -> Sql:
    """A term against constants."""
    if term.type is Type.LIST:
        return sql("{x} IS NOT NULL", x=term.sql)
    c, d, e = values(rng, term, 3)
    templates = [*RANGES, *(LIKES if term.type is Type.TEXT else [])]
    if term.is_key or chance(rng, 0.15):
        templates += EQUALITIES
    return sql(rng.choice(templates), x=term.sql, c=c, d=d, e=e)


RANGES = [
    "{x} < {e}",
    "{x} >= {c}",
    "{x} <> {c}",
    "{x} IS NOT NULL",
    "{x} BETWEEN {c} AND {e}",
    "({x} > {d} OR {x} IS NULL)",
    "NOT ({x} = {c})",
]
EQUALITIES = [
    "{x} = {c}",
    "{x} IS NULL",
    "{x} IN ({c}, {d}, {e})",
    "{x} IN ({c}, {d}, {e})",
    "NOT ({x} IN ({c}, {d}))",
]
LIKES = ["{x} LIKE 'a%'", "{x} LIKE '%b'", "{x} NOT LIKE '_'"]


def between_terms(rng: Random, terms: Sequence[Term]) -> Sql | None:
    """Two terms of one type against each other."""
    first = rng.choice(terms)
    others = [t for t in terms if t.type is first.type and t.sql != first.sql and t.type is not Type.LIST]
    if not others:
        return None
    operator = rng.choice([same("<"), same(">="), same("="), same("<>"), each("<=>", "IS NOT DISTINCT FROM")])
    return sql("{x} {o} {y}", x=first.sql, o=operator, y=rng.choice(others).sql)


def predicate(rng: Random, terms: Sequence[Term], depth: int = 2) -> Sql:
    """A condition over terms, some of it joined by AND, OR and NOT."""
    exact = [t for t in terms if t.is_exact]
    if depth and chance(rng, 0.3):
        parts = [predicate(rng, exact, depth - 1) for _ in range(2)]
        return sql(
            rng.choice(["({a} AND {b})", "({a} OR {b})", "({a} OR {b})", "NOT ({a} AND {b})"]),
            a=parts[0],
            b=parts[1],
        )
    found = between_terms(rng, exact) if chance(rng, 0.2) else None
    return found or comparison(rng, perhaps_made(rng, rng.choice(exact)))


def conditional(rng: Random, terms: Sequence[Term], term: Term) -> Term:
    """A CASE around a term."""
    template = rng.choice(["CASE WHEN {p} THEN {x} END", "CASE WHEN {p} THEN {x} ELSE NULL END"])
    made_ = sql(template, p=predicate(rng, terms, 1), x=term.sql)
    return Term(
        made_.covering("shape:case"),
        term.type,
        has_nan=term.has_nan,
        is_large=term.is_large,
        is_exact=term.is_exact,
        is_of_stream=term.is_of_stream,
    )


def conjoined(parts: Sequence[Sql]) -> Sql:
    return listed(parts, " AND ") if parts else same("TRUE")
