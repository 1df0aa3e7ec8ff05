"""What queries over windows are made of: all shapes of views, and those that views may not have.

`SHAPES` names every shape, makes it and says what kind it is: a grouping, a select-project-join, something else,
or something of which one cannot say whether it is a select-project-join (`LOOSE`). The last is never asked for
under EMIT NEW, which treats select-project-joins in its own way. A select-project-join also says in the
reference's text, in columns `id0`, `id1`, …, which rows a result comes from: `identity` names their relations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from tests.law import shapes
from tests.law.aggregates import Aggregate, Measure
from tests.law.blocks import (
    Item,
    grouped,
    measure_items,
    measures,
    ordering,
    outs,
    over,
    select_list,
    some_keys,
    ungrouped,
)
from tests.law.data import SEQUENCE, TIME, UNIQUE, Relation
from tests.law.expressions import conditional, conjoined, perhaps_made
from tests.law.pieces import (
    EXACT,
    FLOAT,
    Block,
    Deck,
    Out,
    Source,
    Sql,
    Term,
    Type,
    a_few,
    each,
    listed,
    quoted,
    same,
    sql,
)
from tests.law.shapes import select
from tests.law.sources import (
    BELOW,
    Hand,
    common,
    equality,
    inner_select,
    joined,
    perhaps_filtered,
    picked,
    renamed,
    stream,
)
from tests.law.windows.data import WINDOW_COLUMNS
from tests.law.windows.measures import JUDGED, MEASURES, ROUNDED, without_last_digits
from tests.law.windows.model import LastOfEach, Session

if TYPE_CHECKING:
    from random import Random

    from tests.law.windows.model import Window


class Kind(Enum):
    """What a query is to EMIT NEW, and to the mix."""

    GROUPED = "grouping"
    ROWS = "select-project-join"
    OTHER = "other"
    LOOSE = "perhaps a select-project-join"


class WindowHand(Hand):
    """A hand whose streams are windows.

    `needs_exact` allows no measure whose last digits depend on the way it was computed: answers are subtracted
    from each other. `needs_fixed` allows joined rows of the one table only that never changes.
    """

    def __init__(self, rng: Random, tables: Sequence[Relation]) -> None:
        super().__init__(rng, (), tables)
        self.aggregates = Deck(rng, MEASURES)
        self.windows: dict[str, Window] = {}
        self.needs_exact = False
        self.needs_fixed = False

    def measure(self, source: Source, allowed: Callable[[Aggregate], bool] = lambda _: True) -> Measure:
        def fits(aggregate: Aggregate) -> bool:
            return allowed(aggregate) and not (self.needs_exact and aggregate.name in JUDGED)

        found = None
        while found is None:
            drawn = self.aggregates.draw(fits)
            if self.needs_exact and drawn.name in ROUNDED:
                found = without_last_digits(drawn, self.rng, source)
            else:
                found = drawn.over(self.rng, source)
        return found


@dataclass(frozen=True, slots=True)
class Made:
    """A query's text, and for a select-project-join the relations of its `id…` columns."""

    block: Block
    identity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to make a query; `weight` says how often it is in the deck, 0 that it is asked for by name alone."""

    kind: Kind
    make: Callable[[WindowHand], Made]
    weight: int = 1


def made(maker: Callable[[WindowHand], Block]) -> Callable[[WindowHand], Made]:
    return lambda hand: Made(maker(hand))


# Columns


def shown_item(name: str, term: Term) -> Item:
    return Item(term.sql, Out(name, term.type, FLOAT if term.type is Type.DOUBLE else EXACT))


def some_items(hand: WindowHand, terms: Sequence[Term], least: int = 2, most: int = 4) -> list[Item]:
    """Columns and expressions over them, CASE among them."""
    chosen = [perhaps_made(hand.rng, t) for t in a_few(hand.rng, terms, least, most)]
    if hand.chance(0.2):
        chosen[0] = conditional(hand.rng, terms, chosen[0])
    return [shown_item(f"c{i}", t) for i, t in enumerate(chosen)]


def told_apart(items: Sequence[Item], source: Source, ids: Sequence[str]) -> Sql:
    """A SELECT; the reference also tells which rows a result comes from."""
    hidden = "".join(f", {column} AS id{i}" for i, column in enumerate(ids))
    return sql("SELECT {i}{h} {s}", i=select_list(items), h=each("", hidden), s=source.text)


def slots(hand: WindowHand) -> tuple[Relation, Relation]:
    """Two windows, in turn left and right; the same one twice where there is one only."""
    return tuple(hand.rng.sample([hand.streams[0], hand.streams[-1]], 2))  # type: ignore[return-value]


def has_ends(relation: Relation) -> bool:
    """Whether the window is one of TUMBLE, HOP or SESSION."""
    return relation.columns[-1].name == WINDOW_COLUMNS[-1]


def a_window(hand: WindowHand, alias: str = "a", probability: float = 0.4) -> Source:
    return perhaps_filtered(hand, stream(hand.a_stream(), alias), probability)


# Select-project-join


def selection(hand: WindowHand) -> Made:
    relation = hand.a_stream()
    source = perhaps_filtered(hand, stream(relation), 0.7)
    items = some_items(hand, source.terms)
    text = told_apart(items, source, [f"a.{SEQUENCE}"]).covering("shape:selection")
    return Made(Block(text, outs(items)), (relation.name,))


def star(hand: WindowHand) -> Made:
    relation = hand.a_stream()
    source = perhaps_filtered(hand, stream(relation), 0.6)
    if has_ends(relation):
        return selection(hand)
    items = [shown_item(c.name, t) for c, t in zip(relation.columns, source.terms, strict=True)]
    head = each("*", f"*, a.{SEQUENCE} AS id0")
    text = sql("SELECT {h} {s}", h=head, s=source.text).covering("shape:star")
    return Made(Block(text, outs(items)), (relation.name,))


def a_joined_table(hand: WindowHand) -> Relation:
    return hand.tables[0] if hand.needs_fixed else hand.a_table_below()


def table_join(hand: WindowHand) -> Made:
    """A stream and a table."""
    relation, table = hand.a_stream(), a_joined_table(hand)
    left, right = stream(relation), table.terms("o")
    on = equality(hand.rng, left.terms, right)
    rows = sql("{r} JOIN @{t} AS o ON {on}", r=left.rows, t=table.name, on=on)
    source = perhaps_filtered(hand, Source(rows, (), (*left.terms, *right)), 0.4)
    items = some_items(hand, source.terms, 2, 5)
    text = told_apart(items, source, [f"a.{SEQUENCE}", f"o.{UNIQUE}"])
    return Made(Block(text.covering("join:rows table inner"), outs(items)), (relation.name, table.name))


def both(hand: WindowHand, keyword: str = "JOIN") -> tuple[Source, tuple[Relation, Relation]]:
    """Two windows joined on keys, at times also by time."""
    relations = slots(hand)
    left, right = stream(relations[0], "a"), stream(relations[1], "b")
    on = equality(hand.rng, left.terms, right.terms)
    if hand.chance(0.3):
        on = sql("{on} AND a.{t} {o} b.{t}", on=on, t=TIME, o=hand.rng.choice(["<=", "<", ">", "<>"]))
    if all(has_ends(r) for r in relations) and hand.chance(0.4):
        on = sql("{on} AND a.window_start = b.window_start", on=on)
    rows = sql("{l} {k} {r} ON {on}", l=left.rows, k=keyword, r=right.rows, on=on)
    return Source(rows, (), (*left.terms, *right.terms)), relations


def stream_join(hand: WindowHand) -> Made:
    """Two streams, at times a table as well."""
    source, relations = both(hand)
    identity, ids = [r.name for r in relations], [f"a.{SEQUENCE}", f"b.{SEQUENCE}"]
    if hand.chance(0.25):
        table = a_joined_table(hand)
        on = equality(hand.rng, source.terms, table.terms("o"))
        rows = sql("{r} JOIN @{t} AS o ON {on}", r=source.rows, t=table.name, on=on)
        source = replace(source, rows=rows, terms=(*source.terms, *table.terms("o")))
        identity, ids = [*identity, table.name], [*ids, f"o.{UNIQUE}"]
    source = perhaps_filtered(hand, source, 0.4)
    items = some_items(hand, source.terms, 2, 5)
    text = told_apart(items, source, ids).covering("join:rows streams inner")
    return Made(Block(text, outs(items)), tuple(identity))


# Rows that are perhaps select-project-join


def joined_rows(way: str) -> Callable[[WindowHand], Block]:
    """Rows with a table, in one of the ways of joining below a grouping."""

    def make(hand: WindowHand) -> Block:
        source = BELOW[way](hand, a_window(hand), "b")
        found = perhaps_filtered(hand, source, 0.2)
        return select(some_items(hand, found.terms, 2, 5), found).covering(f"join:rows table {way}")

    return make


STREAM_JOINS: dict[str, Sql] = {
    "left": same("LEFT JOIN"),
    "right": same("RIGHT JOIN"),
    "full": same("FULL OUTER JOIN"),
    "semi": each("LEFT SEMI JOIN", "SEMI JOIN"),
    "anti": each("LEFT ANTI JOIN", "ANTI JOIN"),
}


def outer_streams(kind: str) -> Callable[[WindowHand], Block]:
    """Two windows, with the rows that meet none."""

    def make(hand: WindowHand) -> Block:
        first, second = slots(hand)
        left, right = stream(first, "a"), stream(second, "b")
        on = equality(hand.rng, left.terms, right.terms)
        rows = sql("{l} {k} {r} ON {on}", l=left.rows, k=STREAM_JOINS[kind], r=right.rows, on=on)
        terms = left.terms if kind in ("semi", "anti") else (*left.terms, *right.terms)
        found = Source(rows, (), terms)
        return select(some_items(hand, terms, 2, 5), found).covering(f"join:rows streams {kind}")

    return make


def other_window(hand: WindowHand, alias: str = "b") -> Source:
    """The other window, filtered at times."""
    return perhaps_filtered(hand, stream(hand.streams[-1], alias), 0.5)


def in_window(template: str, label: str) -> Callable[[WindowHand], Block]:
    """Rows whose key another window has, or has not."""

    def make(hand: WindowHand) -> Block:
        source, inner = stream(hand.streams[0]), other_window(hand)
        pairs = [(x, y) for x in source.terms for y in inner.terms if x.type is y.type and x.is_key and y.is_key]
        x, y = hand.rng.choice(pairs)
        condition = sql(template, x=x.sql, y=y.sql, f=inner.rows, p=conjoined(inner.where))
        found = source.filtered(condition)
        return select(some_items(hand, source.terms), found).covering(f"shape:{label} over a window")

    return make


def beside_scalar(hand: WindowHand) -> Block:
    """Rows of a window against one number of another, or beside it."""
    source, inner = stream(hand.streams[0]), other_window(hand)
    number = hand.rng.choice([t for t in inner.terms if t.type is Type.INT])
    asked = sql("(SELECT {m}({x}) {s})", m=hand.rng.choice(["min", "max", "count"]), x=number.sql, s=inner.text)
    items = some_items(hand, source.terms)
    if hand.chance(0.5):
        found = perhaps_filtered(hand, source, 0.5)
        items.append(Item(asked, Out("q0", Type.LONG, EXACT)))
    else:
        found = source.filtered(sql("a.mi {o} {q}", o=hand.rng.choice(["<", ">="]), q=asked))
    return select(items, found).covering("shape:scalar over a window")


def with_rows(hand: WindowHand) -> Block:
    """Rows of a window in WITH, filtered again above."""
    source = a_window(hand, probability=0.6)
    assert source.sequence is not None
    columns = [*picked(hand, source), (SEQUENCE, source.sequence)]
    rows = perhaps_filtered(hand, renamed(columns, same("f AS z"), "z"), 0.8)
    above = select(some_items(hand, rows.terms), rows)
    text = sql("WITH f AS ({f}) {a}", f=inner_select(columns, source), a=above.sql)
    return replace(above, sql=text).covering("shape:cte of rows")


def ordered_rows(hand: WindowHand) -> Block:
    """Rows in a total order; without LIMIT."""
    source = a_window(hand)
    assert source.sequence is not None
    items = [*some_items(hand, source.terms), shown_item("id", source.sequence)]
    block = select(items, source)
    first = hand.rng.choice([i.out.name for i in items[:-1] if i.out.type is not Type.DOUBLE] or ["id"])
    order = listed(ordering(hand, name) for name in dict.fromkeys([first, "id"]))
    text = sql("{b} ORDER BY {o}", b=block.sql, o=order).covering("shape:order by")
    return replace(block, sql=text, is_ordered=True, identity=("id",))


# Others


def top_rows(hand: WindowHand) -> Block:
    block = ordered_rows(hand)
    text = sql("{b} LIMIT {n}", b=block.sql, n=str(hand.rng.choice([1, 3, 5])))
    return replace(block, sql=text.covering("shape:order by limit of rows"))


def set_operation(keyword: str) -> Callable[[WindowHand], Block]:
    """Rows of two windows under each other, or less each other."""

    def make(hand: WindowHand) -> Block:
        first, second = a_window(hand, "a"), other_window(hand)
        pairs = [(x, y) for x, y in common(first.terms, second.terms) if x.is_key or hand.chance(0.2)]
        chosen = a_few(hand.rng, pairs, 1, 2)
        items = [[shown_item(f"c{i}", pair[side]) for i, pair in enumerate(chosen)] for side in (0, 1)]
        sides = [select(i, s) for i, s in zip(items, (first, second), strict=True)]
        text = sql("{a} {k} {b}", a=sides[0].sql, k=keyword, b=sides[1].sql)
        return Block(text.covering(f"shape:{keyword.lower()} of windows"), outs(items[0]))

    return make


WINDOW_FUNCTIONS: list[tuple[str, Type]] = [
    ("row_number() OVER (PARTITION BY {k} ORDER BY {o})", Type.INT),
    ("lag({x}) OVER (PARTITION BY {k} ORDER BY {o})", Type.INT),
    ("lead({x}, 2) OVER (ORDER BY {o})", Type.INT),
    ("sum({x}) OVER (PARTITION BY {k} ORDER BY {o} ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)", Type.LONG),
    ("count(*) OVER (PARTITION BY {k})", Type.LONG),
    ("max({x}) OVER (ORDER BY {o} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)", Type.INT),
    ("rank() OVER (PARTITION BY {k} ORDER BY {x} NULLS FIRST)", Type.INT),
]


def window_functions(hand: WindowHand) -> Block:
    """Functions over the rows of a window; at times one of them picks rows above."""
    source = a_window(hand)
    keys = [t for t in source.terms if t.is_key]
    chosen = a_few(hand.rng, WINDOW_FUNCTIONS, 1, 3)
    items = [shown_item("id", source.sequence)] if source.sequence is not None else []
    for number, (template, type_) in enumerate(chosen):
        order = f"a.mi {hand.rng.choice(['ASC', 'DESC'])} NULLS LAST, a.{SEQUENCE}"
        call = sql(template, k=hand.rng.choice(keys).sql, o=order, x="a.mi")
        items.append(Item(call, Out(f"r{number}", type_, EXACT)))
    block = select(items, source).covering("shape:window functions")
    if hand.chance(0.6):
        return block
    source = over(block, "x").filtered(same("x.r0 <= 2"))
    return select(shapes.passed(block, "x"), source).covering("shape:window functions")


def previous(hand: WindowHand) -> Block:
    """PREV, by itself or in a subquery whose rows are picked by it."""
    relation = hand.a_stream()
    source = stream(relation)
    column = hand.rng.choice([c for c in relation.columns if c.name not in (SEQUENCE, *WINDOW_COLUMNS)])
    name = quoted(column.name)
    window = hand.windows[relation.name]
    columns = window.columns if isinstance(window, LastOfEach | Session) else ()
    by = f"PARTITION BY {', '.join(f'a.{c}' for c in columns)} " if columns else ""
    lag = sql("lag(a.{c}) OVER ({by}ORDER BY a.{t}, a.{n})", c=name, by=by, t=TIME, n=SEQUENCE)
    said = sql(hand.rng.choice(["PREV({c})", "PREV(a.{c})"]), c=name)
    before = Term(replace(lag, view=said.view), column.type)
    own = Term(sql("a.{c}", c=name), column.type)
    items = [shown_item("id", source.terms[0]), shown_item("now", own), shown_item("before", before)]
    block = select(items, source).covering("shape:prev")
    if hand.chance(0.4):
        return block
    changed = same(hand.rng.choice(["x.before IS NULL", "x.before <> x.now", "x.before = x.now"]))
    return select(shapes.passed(block, "x"), over(block, "x").filtered(changed)).covering("shape:prev")


# Groupings that views may not have


def grouped_by_window(hand: WindowHand) -> Block:
    """What TUMBLE and its like are for: groups by both ends of the window."""
    relation = hand.a_stream()
    source = perhaps_filtered(hand, stream(relation), 0.4)
    if not has_ends(relation):
        return grouped(hand, source)
    if hand.chance(0.3):
        source = joined(hand, source)
    ends = [Term(same(c), relation.columns[-1].type) for c in WINDOW_COLUMNS]
    keys = [*ends, *some_keys(hand, source, 0, 1)]
    items = [shown_item(f"g{i}", k) for i, k in enumerate(keys)]
    items += measure_items(measures(hand, source, final=True))
    by = listed(k.sql for k in keys)
    text = sql("SELECT {i} {s} GROUP BY {k}", i=select_list(items), s=source.text, k=by)
    return Block(text.covering("shape:group by window"), outs(items))


def streams_grouped(hand: WindowHand) -> Block:
    """Two windows joined, then grouped; at times without keys or with a table in between."""
    kind = hand.rng.choice(["inner", "inner", "left", "full"])
    source, _ = both(hand, {"inner": "JOIN", "left": "LEFT JOIN", "full": "FULL OUTER JOIN"}[kind])
    source = perhaps_filtered(hand, source, 0.3)
    if hand.chance(0.25):
        source = BELOW[hand.rng.choice(["inner", "left", "semi", "anti", "exists"])](hand, source, "o")
    block = ungrouped(hand, source) if hand.chance(0.2) else grouped(hand, source)
    return block.covering(f"join:below streams {kind}")


MULTIPLIED = ("count(*)", "count", "sum")
"""Aggregates that tell how often a join repeats a row."""


def streams_counted(hand: WindowHand) -> Block:
    """Two windows joined, then counted: rows of either that are alike can meet the other's as one.

    Keys and measures are of one window each, or no rows would be alike.
    """
    source, relations = both(hand)
    sides = [stream(relation, alias) for relation, alias in zip(relations, "ab", strict=True)]
    key = hand.rng.choice([t for t in hand.rng.choice(sides).terms if t.is_key])
    counted = [hand.measure(side, lambda a: a.name in MULTIPLIED) for side in sides]
    items = [shown_item("g0", key), *measure_items(counted)]
    text = sql("SELECT {i} {s} GROUP BY {k}", i=select_list(items), s=source.text, k=key.sql)
    return Block(text.covering("join:below streams inner"), outs(items))


def groups_less(keyword: str) -> Callable[[WindowHand], Block]:
    """Groups of two windows, less each other or common to both."""

    def make(hand: WindowHand) -> Block:
        first, second = shapes.two_uniform(hand)
        items = [Item(same(f"x.{out.name}"), out) for out in first.outs[:2]]
        branches = [sql("SELECT {i} FROM ({b}) AS x", i=select_list(items), b=b.sql) for b in (first, second)]
        return Block(listed(branches, f" {keyword} ").covering(f"shape:{keyword.lower()} of groups"), outs(items))

    return make


NOT_FOR_QUERIES = ("ordered",)
"""A view's ORDER BY orders nothing."""
ROWS_OF_A_TABLE = ("scalar above", "correlated exists", "correlated in", "correlated scalar")


def of_views() -> dict[str, Shape]:
    """The shapes of views: groupings, but for those that show rows of a table."""
    return {
        name: Shape(Kind.LOOSE if name in ROWS_OF_A_TABLE else Kind.GROUPED, made(maker))
        for name, maker in shapes.SHAPES.items()
        if name not in NOT_FOR_QUERIES
    }


SHAPES: dict[str, Shape] = {
    **of_views(),
    "grouped by window": Shape(Kind.GROUPED, made(grouped_by_window), 6),
    "streams joined, then grouped": Shape(Kind.GROUPED, made(streams_grouped), 4),
    "streams counted": Shape(Kind.GROUPED, made(streams_counted), 0),
    "except of groups": Shape(Kind.GROUPED, made(groups_less("EXCEPT"))),
    "intersect of groups": Shape(Kind.GROUPED, made(groups_less("INTERSECT"))),
    "selection": Shape(Kind.ROWS, selection, 3),
    "star": Shape(Kind.ROWS, star, 2),
    "table join": Shape(Kind.ROWS, table_join, 2),
    "stream join": Shape(Kind.ROWS, stream_join, 4),
    **{
        f"rows {way}": Shape(Kind.LOOSE, made(joined_rows(way)))
        for way in ("left", "semi", "anti", "in", "exists")
    },
    **{f"streams {kind}": Shape(Kind.LOOSE, made(outer_streams(kind))) for kind in STREAM_JOINS},
    "in a window": Shape(Kind.LOOSE, made(in_window("{x} IN (SELECT {y} FROM {f} WHERE {p})", "in"))),
    "exists in a window": Shape(
        Kind.LOOSE, made(in_window("EXISTS (SELECT 1 FROM {f} WHERE {y} = {x} AND {p})", "exists"))
    ),
    "not exists in a window": Shape(
        Kind.LOOSE, made(in_window("NOT EXISTS (SELECT 1 FROM {f} WHERE {y} = {x} AND {p})", "not exists"))
    ),
    "scalar of a window": Shape(Kind.LOOSE, made(beside_scalar)),
    "with rows": Shape(Kind.LOOSE, made(with_rows)),
    "union all of windows": Shape(Kind.LOOSE, made(set_operation("UNION ALL"))),
    "ordered rows": Shape(Kind.LOOSE, made(ordered_rows)),
    "top rows": Shape(Kind.OTHER, made(top_rows)),
    "window functions": Shape(Kind.OTHER, made(window_functions), 2),
    "prev": Shape(Kind.OTHER, made(previous), 2),
    **{
        f"{word.lower()} of windows": Shape(Kind.OTHER, made(set_operation(word)))
        for word in ("UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL")
    },
}
