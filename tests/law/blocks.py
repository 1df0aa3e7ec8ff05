"""Groupings: the SELECTs that stand directly on rows of a stream, and their measures.

A block's columns are `g0`, `g1`, … for keys and `a0`, `a1`, … for measures; `h0`, `b0` in a grouping of groupings.
With `final` any aggregate may be in it; without, only such whose values can be compared, joined and grouped again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.law.aggregates import BY_NAME, Measure
from tests.law.expressions import key, predicate
from tests.law.pieces import EXACT, FLOAT, Block, Out, Source, Sql, Term, Type, chance, each, listed, same, sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.law.sources import Hand

WHOLE = ("count(*)", "count", "count_if", "sum", "min", "max", "count(DISTINCT)")


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a SELECT list."""

    sql: Sql
    out: Out


def key_items(keys: Sequence[Term], letter: str = "g") -> list[Item]:
    return [
        Item(k.sql, Out(f"{letter}{i}", k.type, FLOAT if k.type is Type.DOUBLE else EXACT, is_key=True))
        for i, k in enumerate(keys)
    ]


def measure_items(measures: Sequence[Measure], letter: str = "a") -> list[Item]:
    return [
        Item(m.sql, Out(f"{letter}{i}", m.type, m.match, is_exact=m.is_exact and m.type is not Type.LIST))
        for i, m in enumerate(measures)
    ]


def select_list(items: Sequence[Item]) -> Sql:
    return listed(sql("{x} AS {n}", x=item.sql, n=item.out.name) for item in items)


def outs(items: Sequence[Item]) -> tuple[Out, ...]:
    return tuple(item.out for item in items)


# Measures


def whole(hand: Hand, source: Source) -> Measure:
    """A measure that is a whole number."""
    numbers = replace(source, terms=tuple(t for t in source.terms if t.type.is_whole) or source.terms)
    while True:
        found = BY_NAME[hand.rng.choice(WHOLE)].over(hand.rng, numbers, filtered=hand.chance(0.15))
        if found is not None and found.type.is_whole:
            return found


def combined(hand: Hand, source: Source) -> Measure:
    """An expression over aggregates."""
    x, y, z = (whole(hand, source) for _ in range(3))
    template, type_ = hand.rng.choice(COMBINATIONS)
    text = sql(template, x=x.sql, y=y.sql, z=z.sql).covering("shape:expression over aggregates")
    is_double = type_ is Type.DOUBLE
    return Measure(text, type_, FLOAT if is_double else EXACT, is_exact=not is_double)


COMBINATIONS = [
    ("CAST({x} + {y} AS BIGINT)", Type.LONG),
    ("CAST(coalesce({x}, 0) - coalesce({y}, 0) * 2 AS BIGINT)", Type.LONG),
    ("{x} / nullif({y}, 0)", Type.DOUBLE),
    ("CAST({x} AS DOUBLE) * 100 / nullif({y}, 0)", Type.DOUBLE),
    ("CAST(CASE WHEN {x} > 3 THEN {y} ELSE {z} END AS BIGINT)", Type.LONG),
    ("CASE WHEN {x} > {y} THEN 'more' WHEN {x} = {y} THEN 'even' ELSE 'less' END", Type.TEXT),
    ("{x} > {y}", Type.BOOL),
]


def measures(hand: Hand, source: Source, *, final: bool) -> list[Measure]:
    """One to four of the deck's next, and expressions over them."""
    found = []
    for _ in range(hand.rng.randint(1, 4) if final else hand.rng.randint(1, 2)):
        if hand.chance(0.12):
            found.append(combined(hand, source))
        else:
            found.append(hand.measure(source) if final else hand.measure(source, lambda a: a.is_plain))
    return found if final or any(m.is_exact for m in found) else [*found, whole(hand, source)]


def having(hand: Hand, source: Source) -> Sql:
    """A condition over aggregates; at times a table has a say in it."""
    x, y = whole(hand, source), whole(hand, source)
    if hand.chance(0.15):
        table = hand.a_table_above()
        bound = sql(
            "(SELECT min(h.mi) FROM @{t} AS h WHERE {p})", t=table.name, p=predicate(hand.rng, table.terms("h"), 0)
        )
        return sql("{x} >= {b}", x=x.sql, b=bound).covering("shape:having", "join:above scalar")
    return sql(hand.rng.choice(CONDITIONS), x=x.sql, y=y.sql).covering("shape:having")


CONDITIONS = [
    "{x} > 0",
    "{x} >= 2",
    "{x} < 20",
    "{x} <> 1",
    "{x} > {y} OR {x} IS NULL",
    "NOT ({x} < {y})",
    "{x} BETWEEN -100 AND 100",
]


# Blocks


def some_keys(hand: Hand, source: Source, least: int, most: int) -> list[Term]:
    """Different keys."""
    wanted, found = hand.rng.randint(least, most), dict[str, Term]()
    for _ in range(4 * wanted):
        if len(found) < wanted:
            term = key(hand.rng, source.terms)
            found.setdefault(term.sql.view, term)
    return list(found.values())


def group_by(hand: Hand, keys: Sequence[Term], items: Sequence[Item]) -> Sql:
    """The clause in one of its forms: expressions, positions, names or ALL."""
    form = hand.rng.choice(["expressions", "expressions", "expressions", "positions", "names", "all"])
    if form == "all":
        return same("GROUP BY ALL").covering("shape:group by all")
    if form == "positions":
        places = [str(i + 1) for i, item in enumerate(items) if item.out.is_key]
        return same("GROUP BY " + ", ".join(places)).covering("shape:group by position")
    if form == "names":
        names = [item.out.name for item in items if item.out.is_key]
        return same("GROUP BY " + ", ".join(names)).covering("shape:group by name")
    return sql("GROUP BY {k}", k=listed(k.sql for k in keys))


def grouped(
    hand: Hand, source: Source, *, final: bool = True, first: Term | None = None, may_hide: bool = False
) -> Block:
    """Keys, measures, HAVING at times. `first` is the first key if given; `may_hide` leaves a key out at times."""
    keys = some_keys(hand, source, 1, 3)
    if first is not None:
        keys = [first, *(k for k in keys[1:] if k.sql.view != first.sql.view)]
    items = key_items(keys, source.letters[0]) + measure_items(
        measures(hand, source, final=final), source.letters[1]
    )
    if may_hide and len(keys) > 1 and hand.chance(0.1):
        return finished(
            hand, source, items[1:], sql("GROUP BY {k}", k=listed(k.sql for k in keys)), is_whole=False
        )
    if first is None and hand.chance(0.3):
        items = hand.rng.sample(items, len(items))
    return finished(hand, source, items, group_by(hand, keys, items))


def finished(hand: Hand, source: Source, items: Sequence[Item], grouping: Sql, *, is_whole: bool = True) -> Block:
    text = sql("SELECT {i} {s} {g}", i=select_list(items), s=source.text, g=grouping)
    if hand.chance(0.25):
        text = sql("{t} HAVING {h}", t=text, h=having(hand, source))
    names = tuple(item.out.name for item in items if item.out.is_key)
    return Block(text, outs(items), names if is_whole else None)


def ungrouped(hand: Hand, source: Source, *, final: bool = True) -> Block:
    """One row, also where there are no rows at all."""
    items = measure_items(measures(hand, source, final=final))
    text = sql("SELECT {i} {s}", i=select_list(items), s=source.text)
    if hand.chance(0.1):
        text = sql("{t} HAVING {h}", t=text, h=having(hand, source))
    return Block(text.covering("shape:no keys"), outs(items), ())


def grouping_sets(hand: Hand, source: Source, form: str) -> Block:
    """GROUPING SETS, ROLLUP or CUBE, with `grouping` to tell the sets apart.

    Without rows Spark gives none, DuckDB the grand total: it is told to leave that out.
    """
    keys = [t for t in source.terms if t.is_key]
    chosen = hand.rng.sample(keys, min(len(keys), hand.rng.randint(2, 3)))
    told = [Measure(sql("grouping({k})", k=k.sql), Type.INT, EXACT, is_exact=True) for k in chosen]
    items = key_items(chosen) + measure_items(told + measures(hand, source, final=True))
    text = sql("SELECT {i} {s} GROUP BY {g}", i=select_list(items), s=source.text, g=sets(hand, chosen, form))
    if hand.chance(0.2):
        text = sql("{t} HAVING ({h}){e}", t=text, h=having(hand, source), e=each("", " AND count(*) > 0"))
    else:
        text = sql("{t}{e}", t=text, e=each("", " HAVING count(*) > 0"))
    return Block(text.covering(f"shape:{form}"), outs(items))


def sets(hand: Hand, keys: Sequence[Term], form: str) -> Sql:
    names = [k.sql for k in keys]
    if form in ("rollup", "cube"):
        if len(names) > 2 and hand.chance(0.4):
            return sql("{k}, {f}({r})", k=names[0], f=form.upper(), r=listed(names[1:]))
        return sql("{f}({k})", f=form.upper(), k=listed(names))
    chosen = [[n for n in names if chance(hand.rng, 0.5)] for _ in range(hand.rng.randint(2, 3))]
    distinct = list({tuple(n.view for n in one): one for one in [names, *chosen]}.values())
    return sql("GROUPING SETS ({s})", s=listed(sql("({k})", k=listed(one) if one else "") for one in distinct))


def distinct(hand: Hand, source: Source) -> Block:
    """SELECT DISTINCT on rows of a stream."""
    keys = some_keys(hand, source, 1, 3)
    items = key_items(keys)
    text = sql("SELECT DISTINCT {i} {s}", i=select_list(items), s=source.text)
    return Block(text.covering("shape:distinct"), outs(items), tuple(item.out.name for item in items))


def over(block: Block, alias: str, rows: Sql | None = None) -> Source:
    """A block's result as rows to go on with; `rows` stands in FROM if it is not to be a subquery."""
    terms = tuple(out.term(alias) for out in block.outs)
    return Source(rows or sql("({b}) AS {a}", b=block.sql, a=alias), (), terms, letters="hb")


def top(hand: Hand, block: Block) -> Block:
    """The first few in a total order; nulls where Spark has them, said or not."""
    assert block.identity is not None
    exact = [out.name for out in block.exact if out.name not in block.identity]
    leading = hand.rng.sample(exact, min(len(exact), 1))
    order = listed(ordering(hand, name) for name in [*leading, *block.identity])
    limit = str(hand.rng.choice([1, 3, 5, 10]))
    offset = " OFFSET 1" if hand.chance(0.15) else ""
    text = sql("{b} ORDER BY {o} LIMIT {n}{f}", b=block.sql, o=order, n=limit, f=offset)
    return replace(block, sql=text.covering("shape:order by limit"), is_ordered=True)


def ordering(hand: Hand, name: str) -> Sql:
    direction, default = hand.rng.choice([("ASC", "FIRST"), ("DESC", "LAST")])
    nulls = hand.rng.choice(["FIRST", "LAST"])
    said = each(f"{name} {direction}", f"{name} {direction} NULLS {default}")
    return said if hand.chance(0.4) else same(f"{name} {direction} NULLS {nulls}")
