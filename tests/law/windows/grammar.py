"""Continuous queries over generated streams: a shape, windows, a slide and what is emitted, all from one seed.

A window in a query's text is a slot, `@w0` or `@w1`: Millstream gets the stream with its window there, the
reference the rows in it. Half of the queries are groupings over windows of time. Every window meets every slide
that it may have. What the contract does not decide is not asked for:

- EMIT NEW of what may or may not be a select-project-join; of a select-project-join over TUMBLE and its like, over
  a streaming table, or over a table that changes; of a selection over [LANDMARK], or over no window unless
  with SAMPLE REALTIME;
- a streaming table without a window;
- SESSION over a stream to which rows come late, or whose rows are deleted;
- windows of TUMBLE or HOP of two kinds in one query, or beside other windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tests.law.data import TIME
from tests.law.pieces import EXACT, Deck, Out, Sql, Type, chance, placed
from tests.law.windows.model import (
    AfterRows,
    Ends,
    Every,
    Hop,
    Interval,
    Landmark,
    Last,
    LastOfEach,
    Realtime,
    Session,
    SessionEnds,
    Source,
)
from tests.law.windows.shapes import SHAPES, STREAM_JOINS, Kind, Shape, WindowHand

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.law.data import Relation
    from tests.law.windows.data import Stream, Ticks
    from tests.law.windows.model import Slide, Window

QUERIES = 50
"""Queries of one feed."""

SLIDES = ("interval", "rows", "realtime")
BRACKETS = ("INTERVAL", "ROWS", "PARTITION", "LANDMARK", "LANDMARK RESET", "none")
FUNCTIONS = ("TUMBLE", "HOP", "SESSION")
Way = tuple[str, str]
WAYS: tuple[Way, ...] = (
    *((window, slide) for window in BRACKETS for slide in SLIDES),
    *((window, "end") for window in FUNCTIONS),
)
"""Every window with every slide it may have."""
WAYS_OF_TIME = tuple(way for way in WAYS if way[0] in ("INTERVAL", "TUMBLE", "HOP"))
STREAM_ROWS = ("stream join", *(f"streams {kind}" for kind in STREAM_JOINS))
KINDS = (*(Kind.GROUPED,) * 4, *(Kind.ROWS,) * 3, *(Kind.LOOSE,) * 2, *(Kind.OTHER,) * 2)
"""How often shapes of each kind come up in the other half."""
CHANGE = Out("_change", Type.TEXT, EXACT)


class Emit(Enum):
    ALL = "ALL"
    NEW = "NEW"
    CHANGES = "CHANGES"


ALWAYS: dict[int, tuple[Way, str, Emit]] = {
    1: (("none", "realtime"), "selection", Emit.NEW),
    3: (("SESSION", "end"), "grouped by window", Emit.ALL),
    5: (("INTERVAL", "realtime"), "stream join", Emit.NEW),
    7: (("PARTITION", "realtime"), "prev", Emit.CHANGES),
    9: (("INTERVAL", "interval"), "star", Emit.ALL),
    11: (("PARTITION", "interval"), "ordered rows", Emit.ALL),
    QUERIES - 1: (("HOP", "end"), "streams counted", Emit.ALL),
}
"""Queries that every feed has, by their number: chance would deal them too seldom."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A window in a query; `label` is one of `BRACKETS` or `FUNCTIONS`, `text` what stands in FROM."""

    name: str
    stream: Stream
    window: Window
    label: str
    text: str

    @property
    def source(self) -> Source:
        return Source(self.stream.name, self.window)

    @property
    def relation(self) -> Relation:
        return self.stream.under(self.name, has_window=self.label in FUNCTIONS)


@dataclass(frozen=True, slots=True)
class Query:
    """A continuous query. `clauses` stand behind its text; `identity` is that of `shapes.Made`."""

    number: int
    shape: str
    sql: Sql
    outs: tuple[Out, ...]
    is_ordered: bool
    identity: tuple[str, ...]
    slots: tuple[Slot, ...]
    slide: Slide
    emit: Emit
    clauses: str

    @property
    def name(self) -> str:
        return f"q{self.number}"

    @property
    def text(self) -> str:
        """The query as Millstream is given it."""
        texts = {slot.name: slot.text for slot in self.slots}
        return f"{placed(self.sql.view, lambda name, _: texts.get(name, name))}{self.clauses}"

    @property
    def statement(self) -> str:
        return f"CREATE CONTINUOUS QUERY {self.name} AS {self.text}"

    @property
    def reference(self) -> str:
        """The query for DuckDB: each slot is a table of its name."""
        return placed(self.sql.duck or "", lambda name, _: name)

    @property
    def is_monotonic(self) -> bool:
        """Whether it delivers every derivation once, as soon as it can."""
        return self.emit is Emit.NEW and bool(self.identity)

    @property
    def is_on_commit(self) -> bool:
        """A selection from one stream without a window or SAMPLE, whatever tables it looks things up in."""
        is_plain = len(self.slots) == 1 and self.slots[0].label == "none" and isinstance(self.slide, Realtime)
        return self.is_monotonic and is_plain

    @property
    def delivered(self) -> tuple[Out, ...]:
        """The columns of a delivery."""
        return (CHANGE, *self.outs) if self.emit is Emit.CHANGES else self.outs

    def covers(self, kind: str) -> list[str]:
        """Its labels of a kind: `window`, `slide`, `emit`, `aggregate`, `join` or `shape`."""
        found = sorted(c.removeprefix(f"{kind}:") for c in self.sql.covers if c.startswith(f"{kind}:"))
        return found or ["none"]


# Windows


def a_slot(rng: Random, name: str, stream: Stream, label: str) -> Slot:
    """A window of a kind behind a stream."""
    ticks, s = stream.ticks, stream.name
    match label:
        case "INTERVAL":
            length = rng.choice([1, 2, 3, 5, 7, 10, 12, 20, 30])
            return Slot(name, stream, Interval(length), label, f"{s} [{ticks.interval(length)}]")
        case "ROWS":
            count = rng.choice([1, 2, 3, 5, 10, 40])
            return Slot(name, stream, Last(count), label, f"{s} [ROWS {count}]")
        case "PARTITION":
            return last_of_each(rng, name, stream)
        case "LANDMARK":
            return Slot(name, stream, Landmark(), label, f"{s} [LANDMARK]")
        case "LANDMARK RESET":
            reset = rng.choice([5, 10, 30])
            return Slot(name, stream, Landmark(reset), label, f"{s} [LANDMARK RESET {ticks.interval(reset)}]")
        case "none":
            return Slot(name, stream, Landmark(), label, s)
    return table_function(rng, name, stream, label)


def some_keys(rng: Random, stream: Stream) -> tuple[str, ...]:
    """One column or two that windows are partitioned by."""
    keys = [c.name for c in stream.relation.columns if c.is_key]
    return tuple(rng.sample(keys, 1 if chance(rng, 0.7) else 2))


def last_of_each(rng: Random, name: str, stream: Stream) -> Slot:
    columns = some_keys(rng, stream)
    count = rng.choice([1, 2, 4])
    by = ", ".join(columns) if chance(rng, 0.3) else f"PARTITION BY {', '.join(columns)}"
    return Slot(name, stream, LastOfEach(columns, count), "PARTITION", f"{stream.name} [{by} ROWS {count}]")


HOPS = ((2, 5), (5, 10), (3, 9), (10, 15), (10, 4), (5, 20))


def table_function(rng: Random, name: str, stream: Stream, label: str) -> Slot:
    """TUMBLE, HOP or SESSION, in either way of writing the stream."""
    window: Window
    lengths: tuple[int, ...]
    if label == "TUMBLE":
        length = rng.choice([2, 3, 5, 10, 20])
        window, lengths = Hop(length, length), (length,)
    elif label == "HOP":
        window = Hop(*rng.choice(HOPS))
        lengths = (window.step, window.length)
    else:
        window = Session(rng.choice([1, 2, 3, 5]), some_keys(rng, stream) if chance(rng, 0.6) else ())
        lengths = (window.gap,)
        if window.columns:
            return Slot(name, stream, window, label, call(rng, stream, label, lengths, window.columns))
    return Slot(name, stream, window, label, call(rng, stream, label, lengths))


def call(rng: Random, stream: Stream, function: str, lengths: Sequence[int], columns: Sequence[str] = ()) -> str:
    first = f"{stream.name}, {TIME}"
    if columns or chance(rng, 0.2):
        by = f" PARTITION BY {', '.join(columns)}" if columns else ""
        first = f"TABLE {stream.name}{by}, DESCRIPTOR({TIME})"
    return f"{function}({', '.join([first, *map(stream.ticks.interval, lengths)])})"


def some_slots(rng: Random, streams: Sequence[Stream], window: str, slide: str) -> list[Slot]:
    """One window, or two over different streams: alike, or each of its own kind."""
    if window == "SESSION":
        punctual = [s for s in streams if not s.has_late]
        return [a_slot(rng, "w0", rng.choice(punctual), window)]
    usable = [s for s in streams if window != "none" or not s.is_kept]
    chosen = rng.sample(usable, 1 if slide == "rows" else min(2, len(usable)))
    first = a_slot(rng, "w0", chosen[0], window)
    if len(chosen) == 1:
        return [first]
    if window in FUNCTIONS or chance(rng, 0.5):
        return [first, alike(first, "w1", chosen[1])]
    other = rng.choice([label for label in BRACKETS if label != "none" or not chosen[1].is_kept])
    return [first, a_slot(rng, "w1", chosen[1], other)]


def alike(slot: Slot, name: str, stream: Stream) -> Slot:
    """The same window behind another stream; of keys `ki`, which all streams have."""
    window, text = slot.window, slot.text.replace(slot.stream.name, stream.name, 1)
    if isinstance(window, LastOfEach):
        window = LastOfEach(("ki",), window.count)
        text = f"{stream.name} [PARTITION BY ki ROWS {window.count}]"
    return Slot(name, stream, window, slot.label, text)


def a_slide(rng: Random, slide: str, slot: Slot, ticks: Ticks) -> tuple[Slide, str]:
    """The slide, and its clause."""
    if isinstance(slot.window, Hop):
        return Ends(slot.window.step, slot.window.length), ""
    if isinstance(slot.window, Session):
        return SessionEnds(slot.window.gap, slot.window.columns), ""
    if slide == "rows":
        count = rng.choice([2, 5, 7, 10, 25])
        return AfterRows(count), f" SAMPLE ROWS {count}"
    if slide == "interval":
        step = rng.choice([1, 2, 3, 4, 5, 5, 7, 10, 15])
        return Every(step), f" SAMPLE {ticks.interval(step)}"
    return Realtime(), " SAMPLE REALTIME" if chance(rng, 0.5) else ""


# Queries


class Dealer:
    """Deals the queries of one feed."""

    def __init__(self, rng: Random, streams: Sequence[Stream], tables: Sequence[Relation]) -> None:
        self._rng = rng
        self._streams = tuple(streams)
        self._hand = WindowHand(rng, tables)
        names = [name for name, shape in SHAPES.items() for _ in range(shape.weight)]
        self._shapes = Deck(rng, names)
        self._kinds = Deck(rng, KINDS)
        self._ways = Deck(rng, (*WAYS, ("none", "realtime"), ("none", "realtime")))
        self._ways_of_time = Deck(rng, WAYS_OF_TIME)
        self._emits = Deck(rng, [Emit.ALL, Emit.NEW, Emit.CHANGES])

    def deal(self, number: int) -> Query:
        """The next query: every other one is a grouping over a window of time."""
        if number in ALWAYS:
            way, name, emit = ALWAYS[number]
            return self._dealt(number, name, way, emit) or self.deal(number)
        is_of_the_half = number % 2 == 0
        way = (self._ways_of_time if is_of_the_half else self._ways).draw()
        kind = Kind.GROUPED if is_of_the_half else self._kinds.draw()
        found = None
        while found is None:
            found = self._dealt(number, self._shapes.draw(lambda name: SHAPES[name].kind is kind), way)
        return found

    def _dealt(self, number: int, name: str, way: Way, emit: Emit | None = None) -> Query | None:
        """A query of a shape, or None where chance made what is not to be asked for."""
        shape = SHAPES[name]
        emit = emit or self._emit(shape, way)
        slots = some_slots(self._rng, self._usable(shape, emit), *way)
        return self._made(number, name, way, slots, emit)

    def _emit(self, shape: Shape, way: Way) -> Emit:
        if shape.kind is Kind.ROWS and may_emit(Emit.NEW, shape, way[1]) and chance(self._rng, 0.4):
            return Emit.NEW
        return self._emits.draw(lambda emit: may_emit(emit, shape, way[1]))

    def _usable(self, shape: Shape, emit: Emit) -> list[Stream]:
        is_monotonic = shape.kind is Kind.ROWS and emit is Emit.NEW
        return [s for s in self._streams if not (is_monotonic and s.is_kept)]

    def _made(self, number: int, name: str, way: Way, slots: list[Slot], emit: Emit) -> Query | None:
        hand, shape = self._hand, SHAPES[name]
        hand.share_out()
        hand.streams = tuple(slot.relation for slot in slots)
        hand.windows = {slot.name: slot.window for slot in slots}
        hand.needs_exact = emit is not Emit.ALL
        hand.needs_fixed = shape.kind is Kind.ROWS and emit is Emit.NEW
        made = shape.make(hand)
        used = tuple(slot for slot in slots if f"@{slot.name} " in made.block.sql.view)
        if not is_decided(shape, way[1], used, emit, made.identity) or is_vast(name, used):
            return None
        slide, sample = a_slide(self._rng, way[1], used[0], used[0].stream.ticks)
        used, window = self._at_the_end(used, made.block.sql.view)
        labels = (f"window:{s.label}" for s in used)
        text = made.block.sql.covering(*labels, f"slide:{way[1]}", f"emit:{emit.value}")
        is_ordered = made.block.is_ordered and emit is Emit.ALL
        clauses = f"{window}{sample}{self._emit_clause(emit, slide)}"
        return Query(number, name, text, made.block.outs, is_ordered, made.identity, used, slide, emit, clauses)

    def _emit_clause(self, emit: Emit, slide: Slide) -> str:
        default = Emit.NEW if isinstance(slide, Realtime) else Emit.ALL
        return "" if emit is default and chance(self._rng, 0.6) else f" EMIT {emit.value}"

    def _at_the_end(self, slots: tuple[Slot, ...], text: str) -> tuple[tuple[Slot, ...], str]:
        """Now and then the window of all streams stands at the end of the query, where it is a plain SELECT."""
        is_one = all(isinstance(s.window, Interval) and s.window == slots[0].window for s in slots)
        if not is_one or text.count("SELECT") > 1 or "LIMIT" in text or not chance(self._rng, 0.3):
            return slots, ""
        length = slots[0].window
        assert isinstance(length, Interval)
        bare = tuple(Slot(s.name, s.stream, s.window, s.label, s.stream.name) for s in slots)
        return bare, f" WINDOW {slots[0].stream.ticks.interval(length.length)}"


def may_emit(emit: Emit, shape: Shape, slide: str) -> bool:
    """Whether what EMIT means is decided for a shape over such a window."""
    if emit is not Emit.NEW:
        return True
    if shape.kind is Kind.LOOSE:
        return False
    return shape.kind is not Kind.ROWS or slide != "end"


def is_decided(shape: Shape, slide: str, slots: Sequence[Slot], emit: Emit, identity: Sequence[str]) -> bool:
    """Whether what is delivered is decided, now that the windows that are used are known."""
    is_selection = shape.kind is Kind.ROWS and len(identity) == 1
    if emit is not Emit.NEW or not is_selection:
        return True
    label = slots[0].label
    return label != "LANDMARK" and (label != "none" or slide == "realtime")


def is_vast(name: str, slots: Sequence[Slot]) -> bool:
    """Whether all rows of streams meet each other, over and over."""
    return name in STREAM_ROWS and all(slot.label in ("LANDMARK", "none") for slot in slots)


def some_queries(
    rng: Random, streams: Sequence[Stream], tables: Sequence[Relation], count: int = QUERIES
) -> tuple[Query, ...]:
    dealer = Dealer(rng, streams, tables)
    return tuple(dealer.deal(number) for number in range(count))
