"""Rows below a grouping: a stream, filtered, joined with tables, nested in subqueries, united with another stream.

Tables below a grouping are pinned (`@t^`). `BELOW` names every way to join one; a way keeps the rows of the stream
on the side where it may be. A hand holds what a query is made from: the relations, the decks, and for each query
which tables it uses below its groupings and which above, never one in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.law.aggregates import AGGREGATES, Aggregate, Measure
from tests.law.data import SEQUENCE, TIME, Relation
from tests.law.expressions import conjoined, perhaps_made, predicate
from tests.law.pieces import Deck, Source, Sql, Term, Type, a_few, chance, each, listed, same, sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random


class Hand:
    """What the queries of one feed are made from."""

    def __init__(self, rng: Random, streams: Sequence[Relation], tables: Sequence[Relation]) -> None:
        self.rng = rng
        self.streams = tuple(streams)
        self.tables = tuple(tables)
        self.aggregates = Deck(rng, AGGREGATES)
        self.below = Deck(rng, list(BELOW))
        self.share_out()

    def share_out(self) -> None:
        """Decide anew which tables stand below and which above."""
        shuffled = self.rng.sample(self.tables, len(self.tables))
        at = self.rng.randint(1, len(shuffled) - 1)
        self.below_tables, self.above_tables = shuffled[:at], shuffled[at:]

    def chance(self, probability: float) -> bool:
        return chance(self.rng, probability)

    def a_stream(self) -> Relation:
        return self.rng.choice(self.streams)

    def a_table_below(self) -> Relation:
        return self.rng.choice(self.below_tables)

    def a_table_above(self) -> Relation:
        return self.rng.choice(self.above_tables)

    def measure(self, source: Source, allowed: Callable[[Aggregate], bool] = lambda _: True) -> Measure:
        """The next aggregate of the deck that fits the source."""
        while True:
            found = self.aggregates.draw(allowed).over(self.rng, source)
            if found is not None:
                return found


def stream(relation: Relation, alias: str = "a") -> Source:
    """All rows of a stream."""
    terms = relation.terms(alias)
    by_name = dict(zip((c.name for c in relation.columns), terms, strict=True))
    return Source(same(f"@{relation.name} AS {alias}"), (), terms, by_name[SEQUENCE], by_name[TIME])


def perhaps_filtered(hand: Hand, source: Source, probability: float = 0.5) -> Source:
    if not hand.chance(probability):
        return source
    return source.filtered(predicate(hand.rng, source.terms).covering("shape:where"))


def pinned(table: Relation, alias: str) -> Sql:
    return same(f"@{table.name}^ AS {alias}")


def equality(rng: Random, left: Sequence[Term], right: Sequence[Term]) -> Sql:
    """Two keys of one type, now and then two pairs of them or an expression."""
    pairs = [(x, y) for x in left for y in right if x.type is y.type and x.is_key and y.is_key]
    parts = []
    for x, y in a_few(rng, pairs, 1, 2) if chance(rng, 0.2) else [rng.choice(pairs)]:
        operator = each("<=>", "IS NOT DISTINCT FROM") if chance(rng, 0.1) else same("=")
        parts.append(sql("{x} {o} {y}", x=x.sql, o=operator, y=y.sql))
    return conjoined(parts)


def inequality(rng: Random, left: Sequence[Term], right: Sequence[Term]) -> Sql:
    pairs = [(x, y) for x in left for y in right if x.type is y.type and x.is_exact and x.type.is_number]
    x, y = rng.choice(pairs)
    return sql("{x} {o} {y}", x=x.sql, o=rng.choice(["<", "<=", ">", "<>"]), y=y.sql)


def with_rows(source: Source, rows: Sql, terms: Sequence[Term] = ()) -> Source:
    return replace(source, rows=rows, terms=(*source.terms, *terms))


def own(source: Source) -> list[Term]:
    return [t for t in source.terms if t.is_of_stream]


# Ways to join a table below


def by_keyword(keyword: str) -> Way:
    """An inner or left join on keys, at times with another condition in ON."""

    def join(hand: Hand, source: Source, alias: str) -> Source:
        table = hand.a_table_below()
        terms = table.terms(alias)
        on = equality(hand.rng, own(source), terms)
        if hand.chance(0.25):
            on = sql("{on} AND {p}", on=on, p=predicate(hand.rng, (*source.terms, *terms), 0))
        rows = sql("{r} {k} {t} ON {on}", r=source.rows, k=keyword, t=pinned(table, alias), on=on)
        return with_rows(source, rows, terms)

    return join


def right(hand: Hand, source: Source, alias: str) -> Source:
    """The table stands left, the stream keeps its rows."""
    table = hand.a_table_below()
    terms = table.terms(alias)
    on = equality(hand.rng, own(source), terms)
    return with_rows(
        source, sql("{t} RIGHT JOIN {r} ON {on}", t=pinned(table, alias), r=source.rows, on=on), terms
    )


def cross(hand: Hand, source: Source, alias: str) -> Source:
    table = hand.a_table_below()
    rows = sql("{r} CROSS JOIN {t}", r=source.rows, t=pinned(table, alias))
    return with_rows(source, rows, table.terms(alias))


def comma(hand: Hand, source: Source, alias: str) -> Source:
    """The join's condition stands in WHERE."""
    table = hand.a_table_below()
    terms = table.terms(alias)
    rows = sql("{r}, {t}", r=source.rows, t=pinned(table, alias))
    return with_rows(source, rows, terms).filtered(equality(hand.rng, own(source), terms))


def theta(hand: Hand, source: Source, alias: str) -> Source:
    table = hand.a_table_below()
    terms = table.terms(alias)
    on = inequality(hand.rng, own(source), terms)
    if hand.chance(0.3):
        on = sql("{a} AND {b}", a=on, b=inequality(hand.rng, own(source), terms))
    keyword = hand.rng.choice(["JOIN", "LEFT JOIN"])
    rows = sql("{r} {k} {t} ON {on}", r=source.rows, k=keyword, t=pinned(table, alias), on=on)
    return with_rows(source, rows, terms)


def using(hand: Hand, source: Source, alias: str) -> Source:
    """Both have `ki`; the stream's is the one named afterwards."""
    table = hand.a_table_below()
    if not any(t.sql.view.endswith(".ki") for t in own(source)):
        return by_keyword("JOIN")(hand, source, alias)
    terms = [t for t in table.terms(alias) if t.sql.view != f"{alias}.ki"]
    rows = sql("{r} JOIN {t} USING (ki)", r=source.rows, t=pinned(table, alias))
    return with_rows(source, rows, terms)


def filtering(spark: str, duck: str) -> Way:
    """A semi or anti join."""

    def join(hand: Hand, source: Source, alias: str) -> Source:
        table = hand.a_table_below()
        on = equality(hand.rng, own(source), table.terms(alias))
        if hand.chance(0.3):
            on = sql("{on} AND {p}", on=on, p=predicate(hand.rng, table.terms(alias), 0))
        rows = sql("{r} {k} {t} ON {on}", r=source.rows, k=each(spark, duck), t=pinned(table, alias), on=on)
        return with_rows(source, rows)

    return join


def subquery(template: str) -> Way:
    """A condition in WHERE with a subquery of a table: `{x}` of the stream, `{y}` of the table, `{p}` a filter."""

    def join(hand: Hand, source: Source, alias: str) -> Source:
        table = hand.a_table_below()
        pairs = [
            (x, y) for x in own(source) for y in table.terms(alias) if x.type is y.type and x.is_key and y.is_key
        ]
        x, y = hand.rng.choice(pairs)
        p = predicate(hand.rng, table.terms(alias), 1)
        if hand.chance(0.3):
            p = sql("{y} IS NOT NULL", y=y.sql)
        return source.filtered(sql(template, x=x.sql, y=y.sql, t=pinned(table, alias), p=p))

    return join


def scalar(hand: Hand, source: Source, alias: str) -> Source:
    """A number against one that a table gives, by itself or for the row's key."""
    table = hand.a_table_below()
    terms = table.terms(alias)
    x = hand.rng.choice([t for t in own(source) if t.type is Type.INT])
    y = hand.rng.choice([t for t in terms if t.type is Type.INT])
    where = equality(hand.rng, own(source), terms) if hand.chance(0.5) else predicate(hand.rng, terms, 1)
    asked = sql(
        "(SELECT {f}({y}) FROM {t} WHERE {w})",
        f=hand.rng.choice(["min", "max"]),
        y=y.sql,
        t=pinned(table, alias),
        w=where,
    )
    return source.filtered(sql("{x} {o} {q}", x=x.sql, o=hand.rng.choice(["<=", ">", "<>"]), q=asked))


def derived(hand: Hand, source: Source, alias: str) -> Source:
    """The table is grouped before it is joined: a static part of its own."""
    table = hand.a_table_below()
    inner = table.terms(f"{alias}0")
    measured = hand.rng.choice([t for t in inner if t.type is Type.INT])
    text = sql(
        "(SELECT {k} AS ki, count(*) AS c, max({m}) AS m FROM {t} WHERE {p} GROUP BY {k}) AS {a}",
        k=f"{alias}0.ki",
        m=measured.sql,
        t=pinned(table, f"{alias}0"),
        p=predicate(hand.rng, inner, 0),
        a=alias,
    )
    types = {"ki": Type.INT, "c": Type.LONG, "m": Type.INT}
    terms = [Term(same(f"{alias}.{n}"), t, is_key=n == "ki", is_of_stream=False) for n, t in types.items()]
    on = equality(hand.rng, own(source), terms)
    keyword = hand.rng.choice(["JOIN", "LEFT JOIN"])
    return with_rows(source, sql("{r} {k} {t} ON {on}", r=source.rows, k=keyword, t=text, on=on), terms)


def two_tables(hand: Hand, source: Source, alias: str) -> Source:
    once = by_keyword(hand.rng.choice(["JOIN", "LEFT JOIN"]))(hand, source, alias)
    return by_keyword(hand.rng.choice(["JOIN", "LEFT JOIN"]))(hand, once, f"{alias}{alias}")


Way = Callable[[Hand, Source, str], Source]

BELOW: dict[str, Way] = {
    "inner": by_keyword("JOIN"),
    "left": by_keyword("LEFT JOIN"),
    "right": right,
    "cross": cross,
    "comma": comma,
    "theta": theta,
    "using": using,
    "semi": filtering("LEFT SEMI JOIN", "SEMI JOIN"),
    "anti": filtering("LEFT ANTI JOIN", "ANTI JOIN"),
    "in": subquery("{x} IN (SELECT {y} FROM {t} WHERE {p})"),
    "not in": subquery("{x} NOT IN (SELECT {y} FROM {t} WHERE {p})"),
    "exists": subquery("EXISTS (SELECT 1 FROM {t} WHERE {y} = {x} AND {p})"),
    "not exists": subquery("NOT EXISTS (SELECT 1 FROM {t} WHERE {y} = {x} AND {p})"),
    "scalar": scalar,
    "derived": derived,
    "two tables": two_tables,
}


def joined(hand: Hand, source: Source, alias: str = "b") -> Source:
    """The source with the next way of joining from the deck."""
    name = hand.below.draw()
    found = BELOW[name](hand, source, alias)
    return replace(found, rows=found.rows.covering(f"join:below {name}"))


# Whole sources


def a_source(hand: Hand, relation: Relation | None = None, *, may_nest: bool = True) -> Source:
    """Rows of one stream: filtered, joined, in a subquery, or none of it."""
    source = perhaps_filtered(hand, stream(relation or hand.a_stream()), 0.4)
    if may_nest and hand.chance(0.15):
        source = nested(hand, source)
    if hand.chance(0.5):
        source = perhaps_filtered(hand, joined(hand, source), 0.3)
    return source


def picked(hand: Hand, source: Source) -> list[tuple[str, Term]]:
    """Columns of a subquery by new names: some keys, some others, and those of identity and time."""
    keys = [t for t in source.terms if t.is_key]
    ints = [t for t in source.terms if t.type is Type.INT and not t.is_key]
    others = [t for t in source.terms if not t.is_key and t.type is not Type.INT]
    found = a_few(hand.rng, keys, 2, 3) + a_few(hand.rng, ints, 1, 2) + a_few(hand.rng, others, 2, 3)
    if not any(t.type is Type.INT and t.is_key for t in found):
        found.append(next(t for t in keys if t.type is Type.INT))
    return [(f"x{i}", perhaps_made(hand.rng, t) if not t.is_key else t) for i, t in enumerate(found)]


def inner_select(columns: Sequence[tuple[str, Term]], source: Source) -> Sql:
    named = listed(sql("{x} AS {n}", x=t.sql, n=name) for name, t in columns)
    return sql("SELECT {c} {s}", c=named, s=source.text)


def nested(hand: Hand, source: Source, alias: str = "z") -> Source:
    """The source as a subquery in FROM, after which no column is the stream's time."""
    assert source.sequence is not None
    columns = [*picked(hand, source), (SEQUENCE, source.sequence)]
    text = inner_select(columns, source).covering("shape:subquery below")
    return renamed(columns, sql("({s}) AS {a}", s=text, a=alias), alias)


def renamed(columns: Sequence[tuple[str, Term]], rows: Sql, alias: str) -> Source:
    terms = {name: replace(t, sql=same(f"{alias}.{name}")) for name, t in columns}
    return Source(rows, (), tuple(terms.values()), terms[SEQUENCE])


def united(hand: Hand, alias: str = "z") -> Source:
    """UNION ALL of two streams, or of one with itself, below the grouping."""
    first, second = hand.a_stream(), hand.rng.choice(hand.streams[::-1])
    parts = [perhaps_filtered(hand, stream(r, n), 0.5) for r, n in ((first, "a"), (second, "b"))]
    shared = list(common(parts[0].terms, parts[1].terms))
    branches = []
    for number, part in enumerate(parts):
        assert part.sequence is not None
        identity = part.sequence.made("({x} * 2 + " + str(number) + ")")
        columns = [(f"x{i}", pair[number]) for i, pair in enumerate(shared)]
        branches.append(([*columns, (SEQUENCE, identity)], part))
    text = listed((inner_select(*branch) for branch in branches), " UNION ALL ")
    rows = sql("({t}) AS {a}", t=text, a=alias).covering("shape:union all below")
    found = renamed(branches[0][0], rows, alias)
    flags = [replace(t, has_nan=a.has_nan or b.has_nan) for t, (a, b) in zip(found.terms, shared, strict=False)]
    assert found.sequence is not None
    return replace(found, terms=(*flags, found.sequence))


def common(left: Sequence[Term], right: Sequence[Term]) -> list[tuple[Term, Term]]:
    """Columns of two streams that can stand under each other; one for each type and use."""
    found: dict[tuple[Type, bool], tuple[Term, Term]] = {}
    for x in left:
        for y in right:
            if (x.type, x.is_key, x.is_large) == (y.type, y.is_key, y.is_large):
                found.setdefault((x.type, x.is_key), (x, y))
    return list(found.values())
