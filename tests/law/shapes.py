"""Whole queries: what stands above the groupings.

`SHAPES` names every shape and makes it; a shape that ought not to be asked for is taken out there. Tables above a
grouping are read as they are at the moment (`@t`). What a shape passes on unchanged may be approximate; what it
compares, joins or groups by is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tests.law.aggregates import BY_NAME, Measure
from tests.law.blocks import (
    Item,
    distinct,
    grouped,
    grouping_sets,
    key_items,
    measure_items,
    outs,
    over,
    select_list,
    top,
    ungrouped,
    whole,
)
from tests.law.data import Relation
from tests.law.expressions import conditional, predicate
from tests.law.pieces import EXACT, FLOAT, Block, Out, Source, Sql, Term, Type, each, listed, same, sql
from tests.law.sources import (
    Hand,
    a_source,
    inner_select,
    joined,
    perhaps_filtered,
    picked,
    renamed,
    stream,
    united,
)

if TYPE_CHECKING:
    from random import Random

FUNCTION = "law_mix"
"""A Python function that feeds register where the database can: twice its argument and seven."""


def mix(value: int | None) -> int | None:
    """What `law_mix` computes."""
    return None if value is None else 2 * value + 7


# Passing on


def passed(block: Block, alias: str, prefix: str = "") -> list[Item]:
    """All columns of a block as they are."""
    return [Item(same(f"{alias}.{out.name}"), replace(out, name=prefix + out.name)) for out in block.outs]


def shown(rng: Random, table: Relation, alias: str, prefix: str = "o") -> list[Item]:
    """The table's number and one or two of its columns."""
    terms = table.terms(alias)
    chosen = [terms[0], *rng.sample(terms[1:], rng.randint(1, 2))]
    return [
        Item(t.sql, Out(f"{prefix}{i}", t.type, FLOAT if t.type is Type.DOUBLE else EXACT))
        for i, t in enumerate(chosen)
    ]


def select(items: Sequence[Item], source: Source) -> Block:
    return Block(sql("SELECT {i} {s}", i=select_list(items), s=source.text), outs(items))


def now(table: Relation, alias: str) -> Sql:
    return same(f"@{table.name} AS {alias}")


# Groupings by themselves


def plain(hand: Hand) -> Block:
    return grouped(hand, a_source(hand), may_hide=True)


def one_row(hand: Hand) -> Block:
    return ungrouped(hand, a_source(hand))


def joined_below(hand: Hand) -> Block:
    """A join below for certain."""
    return grouped(hand, joined(hand, perhaps_filtered(hand, stream(hand.a_stream()), 0.3)))


def united_below(hand: Hand) -> Block:
    source = united(hand)
    return grouped(hand, joined(hand, source) if hand.chance(0.25) else source)


def sets_of(form: str, hand: Hand) -> Block:
    return grouping_sets(hand, a_source(hand, may_nest=False), form)


def distinct_rows(hand: Hand) -> Block:
    return distinct(hand, a_source(hand))


def ordered(hand: Hand) -> Block:
    """ORDER BY without LIMIT, which orders nothing."""
    block = grouped(hand, a_source(hand))
    name = hand.rng.choice(block.keys).name
    return replace(block, sql=sql("{b} ORDER BY {n}", b=block.sql, n=name).covering("shape:order by"))


def top_rows(hand: Hand) -> Block:
    return top(hand, grouped(hand, a_source(hand)))


# Something above one grouping


def expressions_above(hand: Hand) -> Block:
    """Conditions and CASE over a grouping in FROM."""
    block = grouped(hand, a_source(hand))
    source = over(block, "x")
    terms = [t for t in source.terms if t.is_exact]
    made = conditional(hand.rng, terms, hand.rng.choice(terms))
    label = Item(made.sql, Out("c0", made.type, FLOAT if made.type is Type.DOUBLE else EXACT))
    return select([*passed(block, "x"), label], perhaps_filtered(hand, source, 0.7)).covering(
        "shape:subquery above"
    )


def grouped_twice(hand: Hand) -> Block:
    block = grouped(hand, a_source(hand), final=False)
    return grouped(hand, perhaps_filtered(hand, over(block, "x"), 0.3)).covering("shape:grouping of a grouping")


def distinct_grouped(hand: Hand) -> Block:
    """DISTINCT first, then a grouping."""
    block = distinct(hand, a_source(hand))
    return grouped(hand, over(block, "x")).covering("shape:grouping of a distinct")


def distinct_above(hand: Hand) -> Block:
    block = grouped(hand, a_source(hand), final=False)
    chosen = hand.rng.sample(block.exact, min(len(block.exact), 2))
    items = [Item(same(f"x.{out.name}"), out) for out in chosen]
    text = sql("SELECT DISTINCT {i} FROM ({b}) AS x", i=select_list(items), b=block.sql)
    return Block(text.covering("shape:distinct above"), outs(items))


def with_clause(hand: Hand) -> Block:
    """A common table expression of the grouping or of the rows below it."""
    if hand.chance(0.5):
        return with_rows_below(hand)
    block = grouped(hand, a_source(hand))
    source = perhaps_filtered(hand, over(block, "x", same("w AS x")), 0.6)
    above = select(passed(block, "x"), source)
    return replace(above, sql=sql("WITH w AS ({b}) {a}", b=block.sql, a=above.sql)).covering("shape:cte")


def with_rows_below(hand: Hand) -> Block:
    source = perhaps_filtered(hand, stream(hand.a_stream()), 0.5)
    assert source.sequence is not None
    columns = [*picked(hand, source), ("n", source.sequence)]
    rows = renamed(columns, same("f AS z"), "z")
    above = grouped(hand, joined(hand, rows) if hand.chance(0.4) else rows)
    text = sql("WITH f AS ({f}) {a}", f=inner_select(columns, source), a=above.sql)
    return replace(above, sql=text).covering("shape:cte below")


def with_clause_twice(hand: Hand) -> Block:
    """One grouping met by itself: the rows that have its largest value, or pairs."""
    block = grouped(hand, a_source(hand), final=False)
    numbers = [out for out in block.exact if out.type.is_number and not out.is_key] or list(block.exact)
    best = hand.rng.choice(numbers).name
    if hand.chance(0.5):
        where = same(f"x.{best} = (SELECT max(y.{best}) FROM w AS y)")
        items = passed(block, "x")
        source = over(block, "x", same("w AS x")).filtered(where)
    else:
        key_name = hand.rng.choice(block.keys).name
        items = [*passed(block, "x", "l_"), *passed(block, "y", "r_")]
        source = over(block, "x", same(f"w AS x JOIN w AS y ON x.{key_name} = y.{key_name}"))
    text = sql("WITH w AS ({b}) {a}", b=block.sql, a=select(items, source).sql)
    return Block(text.covering("shape:cte twice"), outs(items))


# Tables above


def shared_key(hand: Hand, source: Source, table: Relation, alias: str = "o") -> tuple[Term, Term]:
    """A key of the stream and one of the table that can be equal."""
    mine = [t for t in source.terms if t.is_key and t.is_of_stream]
    pairs = [(x, y) for x in mine for y in table.terms(alias) if x.type is y.type and y.is_key]
    return hand.rng.choice(pairs)


def keyed(hand: Hand, table: Relation, *, final: bool = True) -> tuple[Block, Term]:
    """A grouping whose `g0` a column of the table can meet, and that column."""
    source = a_source(hand)
    x, y = shared_key(hand, source, table)
    return grouped(hand, source, first=x, final=final), y


ABOVE: dict[str, Sql] = {
    "inner": same("JOIN"),
    "left": same("LEFT JOIN"),
    "right": same("RIGHT JOIN"),
    "full": same("FULL OUTER JOIN"),
    "semi": each("LEFT SEMI JOIN", "SEMI JOIN"),
    "anti": each("LEFT ANTI JOIN", "ANTI JOIN"),
}


def joined_above(kind: str, hand: Hand) -> Block:
    """The grouping left, the table right, or the other way round."""
    table = hand.a_table_above()
    block, y = keyed(hand, table)
    if hand.chance(0.2) and block.identity:
        block = top(hand, block)
    sides = [sql("({b}) AS x", b=block.sql), now(table, "o")]
    is_turned = hand.chance(0.4)
    left, right = reversed(sides) if is_turned else sides
    rows = sql("{l} {k} {r} ON x.g0 = {y}", l=left, k=ABOVE[kind], r=right, y=y.sql)
    items = [passed(block, "x"), shown(hand.rng, table, "o")]
    if kind in ("semi", "anti"):
        items = items[1:] if is_turned else items[:1]
    return above(hand, rows, [i for part in items for i in part], kind)


def above(hand: Hand, rows: Sql, items: Sequence[Item], label: str) -> Block:
    """A join above, filtered at times."""
    terms = tuple(Term(i.sql, i.out.type, is_exact=i.out.is_exact) for i in items)
    source = Source(rows, (), terms)
    if any(t.is_exact for t in terms):
        source = perhaps_filtered(hand, source, 0.3)
    return select(items, source).covering(f"join:above {label}")


def theta_above(hand: Hand) -> Block:
    """Any condition, or none."""
    table = hand.a_table_above()
    block = grouped(hand, a_source(hand), final=False)
    numbers = [out for out in block.exact if out.type.is_whole]
    if not numbers or hand.chance(0.3):
        rows = sql("({b}) AS x CROSS JOIN {t}", b=block.sql, t=now(table, "o"))
        label = "cross"
    else:
        on = f"x.{hand.rng.choice(numbers).name} {hand.rng.choice(['<', '>=', '<>'])} o.mi"
        rows = sql(
            "({b}) AS x {k} {t} ON {on}",
            b=block.sql,
            k=hand.rng.choice(["JOIN", "LEFT JOIN"]),
            t=now(table, "o"),
            on=on,
        )
        label = "theta"
    return above(hand, rows, [*passed(block, "x"), *shown(hand.rng, table, "o")], label)


def filtered_above(hand: Hand) -> Block:
    """IN, EXISTS and their opposites: a table has a say in which groups are shown."""
    table = hand.a_table_above()
    block, y = keyed(hand, table)
    p = predicate(hand.rng, table.terms("o"), 0) if hand.chance(0.7) else sql("{y} IS NOT NULL", y=y.sql)
    label, template = hand.rng.choice(ABOVE_SUBQUERIES)
    condition = sql(template, y=y.sql, t=now(table, "o"), p=p)
    return select(passed(block, "x"), over(block, "x").filtered(condition)).covering(f"join:above {label}")


ABOVE_SUBQUERIES = [
    ("in", "x.g0 IN (SELECT {y} FROM {t} WHERE {p})"),
    ("not in", "x.g0 NOT IN (SELECT {y} FROM {t} WHERE {p})"),
    ("exists", "EXISTS (SELECT 1 FROM {t} WHERE {y} = x.g0 AND {p})"),
    ("not exists", "NOT EXISTS (SELECT 1 FROM {t} WHERE {y} = x.g0 AND {p})"),
]


# Streams met by tables and by each other


def scalar_above(hand: Hand) -> Block:
    """Rows of a table beside one number of a stream, or picked by it."""
    table = hand.a_table_above()
    source = a_source(hand)
    measure = whole(hand, source)
    asked = sql("(SELECT {m} {s})", m=measure.sql, s=source.text)
    items = shown(hand.rng, table, "o")
    if hand.chance(0.5):
        condition = predicate(hand.rng, table.terms("o"), 0)
        items.append(Item(asked, Out("q0", measure.type, EXACT)))
    else:
        condition = sql("o.mi {c} {q}", c=hand.rng.choice(["<", ">="]), q=asked)
    return select(items, Source(now(table, "o"), (condition,), ())).covering("shape:scalar over a stream")


def correlated(hand: Hand, table: Relation) -> Source:
    """Rows of a stream that belong to a row of the table, `o`."""
    source = perhaps_filtered(hand, stream(hand.a_stream()), 0.5)
    x, y = shared_key(hand, source, table)
    conditions = [sql("{x} = {y}", x=x.sql, y=y.sql)]
    if hand.chance(0.2):
        x, y = shared_key(hand, source, table)
        conditions.append(sql("{x} = {y}", x=x.sql, y=y.sql))
    return source.filtered(*dict.fromkeys(conditions))


def correlated_exists(hand: Hand) -> Block:
    table = hand.a_table_above()
    word = hand.rng.choice(["EXISTS", "NOT EXISTS"])
    condition = sql("{w} (SELECT 1 {s})", w=word, s=correlated(hand, table).text)
    source = Source(now(table, "o"), (condition,), ())
    return select(shown(hand.rng, table, "o"), source).covering(f"shape:correlated {word.lower()}")


def correlated_in(hand: Hand) -> Block:
    """IN with a stream; half of them are correlated."""
    table = hand.a_table_above()
    source = correlated(hand, table) if hand.chance(0.5) else perhaps_filtered(hand, stream(hand.a_stream()), 0.5)
    x, y = shared_key(hand, source, table)
    word = hand.rng.choice(["IN", "IN", "NOT IN"])
    condition = sql("{y} {w} (SELECT {x} {s})", y=y.sql, w=word, x=x.sql, s=source.text)
    outer = Source(now(table, "o"), (condition,), ())
    return select(shown(hand.rng, table, "o"), outer).covering(f"shape:correlated {word.lower()}")


SCALARS = ("count(*)", "count", "sum", "min", "max", "avg", "count(DISTINCT)", "count_if", "bool_or", "max_by")


def correlated_scalar(hand: Hand) -> Block:
    """A measure of the stream's rows for each row of the table, shown or compared."""
    table = hand.a_table_above()
    source = correlated(hand, table)
    if hand.chance(0.3):
        asked = sql("(SELECT {m} {s})", m=whole(hand, source).sql, s=source.text)
        outer = Source(now(table, "o"), (sql("o.mi <= {q}", q=asked),), ())
        return select(shown(hand.rng, table, "o"), outer).covering("shape:correlated scalar")
    measure = one_of(hand, source, SCALARS)
    asked = sql("(SELECT {m} {s})", m=measure.sql, s=source.text)
    items = [*shown(hand.rng, table, "o"), Item(asked, Out("q0", measure.type, measure.match, is_exact=False))]
    return select(items, Source(now(table, "o"), (), ())).covering("shape:correlated scalar")


def one_of(hand: Hand, source: Source, names: Sequence[str]) -> Measure:
    """One of the aggregates named, over columns without NaN."""
    clean = replace(source, terms=tuple(t for t in source.terms if not t.has_nan))
    while True:
        found = BY_NAME[hand.rng.choice(names)].over(hand.rng, clean)
        if found is not None:
            return found


def two_groupings(hand: Hand) -> Block:
    """Two streams, or one twice, each under its own grouping, joined above; at times with a table as well."""
    left, right = a_source(hand, hand.streams[0]), a_source(hand, hand.streams[-1])
    x, y = matching_keys(hand, left, right)
    blocks = grouped(hand, left, first=x), grouped(hand, right, first=y)
    kind = hand.rng.choice(["inner", "left", "right", "full"])
    rows = sql("({l}) AS x {k} ({r}) AS y ON x.g0 = y.g0", l=blocks[0].sql, k=ABOVE[kind], r=blocks[1].sql)
    items = [*passed(blocks[0], "x", "l_"), *passed(blocks[1], "y", "r_")]
    if x.type is Type.INT and hand.chance(0.3):
        table = hand.a_table_above()
        rows = sql("{r} LEFT JOIN {t} ON coalesce(x.g0, y.g0) = o.ki", r=rows, t=now(table, "o"))
        items += shown(hand.rng, table, "o")
    return above(hand, rows, items, f"streams {kind}").covering("shape:two groupings")


def matching_keys(hand: Hand, left: Source, right: Source) -> tuple[Term, Term]:
    mine, theirs = ([t for t in s.terms if t.is_key and t.is_of_stream] for s in (left, right))
    return hand.rng.choice([(x, y) for x in mine for y in theirs if x.type is y.type])


# UNION above


def uniform(hand: Hand, source: Source, first: Term) -> Block:
    """A grouping with a key, a whole number and an average, so that two can stand under each other."""
    count = whole(hand, source)
    made = [
        replace(count, sql=sql("CAST({x} AS BIGINT)", x=count.sql), type=Type.LONG),
        one_of(hand, source, ["avg", "avg(DISTINCT)"]),
    ]
    items = key_items([first]) + measure_items(made)
    text = sql("SELECT {i} {s} GROUP BY {k}", i=select_list(items), s=source.text, k=first.sql)
    return Block(text, outs(items), ("g0",))


def two_uniform(hand: Hand) -> tuple[Block, Block]:
    left, right = a_source(hand, hand.streams[0]), a_source(hand, hand.streams[-1])
    x, y = matching_keys(hand, left, right)
    return uniform(hand, left, x), uniform(hand, right, y)


def united_above(hand: Hand) -> Block:
    """UNION ALL of two groupings, or of one with a table."""
    first, second = two_uniform(hand)
    branch = second.sql
    if first.outs[0].type is Type.INT and hand.chance(0.4):
        branch = sql("SELECT o.ki, CAST(o.mi AS BIGINT), o.mf FROM {t}", t=now(hand.a_table_above(), "o"))
    return Block(sql("{a} UNION ALL {b}", a=first.sql, b=branch).covering("shape:union all above"), first.outs)


def united_once(hand: Hand) -> Block:
    """UNION without ALL, of what is exact."""
    first, second = two_uniform(hand)
    items = [Item(same(f"x.{out.name}"), out) for out in first.outs[:2]]
    branches = [sql("SELECT {i} FROM ({b}) AS x", i=select_list(items), b=b.sql) for b in (first, second)]
    return Block(listed(branches, " UNION ").covering("shape:union above"), outs(items))


def united_grouped(hand: Hand) -> Block:
    """Groupings united and grouped again."""
    first, second = two_uniform(hand)
    rows = sql("({a} UNION ALL {b}) AS x", a=first.sql, b=second.sql)
    exact = tuple(out.term("x") for out in first.outs[:2])
    return grouped(hand, Source(rows, (), exact, letters="hb")).covering("shape:grouping of a union")


def python_function(hand: Hand) -> Block:
    """A function in Python below the grouping; the references know what it computes."""
    source = a_source(hand, may_nest=False)
    terms = []
    for term in source.terms:
        if term.type is Type.INT:
            called = sql(FUNCTION + "({x})", x=term.made("CAST({x} AS BIGINT)").sql)
            meant = sql("(CAST({x} AS BIGINT) * 2 + 7)", x=term.sql)
            terms.append(replace(term, sql=replace(meant, view=called.view), type=Type.LONG))
    return grouped(hand, replace(source, terms=tuple(terms))).covering(PYTHON)


PYTHON = "shape:python function"

Shape = Callable[[Hand], Block]

SHAPES: dict[str, Shape] = {
    "plain": plain,
    "plain again": plain,
    "joined below": joined_below,
    "joined below again": joined_below,
    "one row": one_row,
    "united below": united_below,
    "grouping sets": partial(sets_of, "grouping sets"),
    "rollup": partial(sets_of, "rollup"),
    "cube": partial(sets_of, "cube"),
    "distinct": distinct_rows,
    "ordered": ordered,
    "top": top_rows,
    "expressions above": expressions_above,
    "grouped twice": grouped_twice,
    "distinct, then grouped": distinct_grouped,
    "distinct above": distinct_above,
    "with": with_clause,
    "with, twice": with_clause_twice,
    **{f"{kind} join above": partial(joined_above, kind) for kind in ABOVE},
    "theta join above": theta_above,
    "filtered above": filtered_above,
    "scalar above": scalar_above,
    "correlated exists": correlated_exists,
    "correlated in": correlated_in,
    "correlated scalar": correlated_scalar,
    "two groupings": two_groupings,
    "two groupings again": two_groupings,
    "united above": united_above,
    "united once": united_once,
    "united, then grouped": united_grouped,
    "python function": python_function,
}
