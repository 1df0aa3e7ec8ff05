"""A query in force, and what one step of it makes: plain records that the other modules work on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from millstream.plan.standing import QueryPlan
from millstream.queries.held import Held
from millstream.queries.panes import Panes, can_merge
from millstream.queries.piles import Piles
from millstream.queries.place import Place
from millstream.queries.tuning import Choice, Chunks
from millstream.queries.windows import HELD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from millstream.catalog.records import Snapshot, TableInfo
    from millstream.queries.arrivals import Arrived
    from millstream.queries.instants import Instant
    from millstream.storage.reader import Reader

STATES = 1_000_000
"""Parts of held rows are numbered from here on, beside those of states."""


@dataclass
class Run:
    """A query in force: its plan, its place, and what it keeps in memory of its state."""

    query: TableInfo
    plan: QueryPlan
    place: Place
    schemas: tuple[pa.Schema, ...] = ()
    states: dict[int, Panes | Piles] = field(default_factory=dict)
    """By part: those that the driver merges are panes, those that Spark merges are piles."""
    unmergeable: set[int] = field(default_factory=set)
    """States that the driver has found that it cannot merge."""
    held: dict[int, Held] = field(default_factory=dict)
    answer: pa.Table | None = None
    pieces: dict[int, Counter[int]] = field(default_factory=dict)
    """How many pieces of each tier the catalogue has of a part, about."""
    choice: Choice = field(default_factory=Choice)
    chunks: Chunks = field(default_factory=Chunks)
    company: int = 0
    """With how many others it is stepped together whenever they are in the same place."""
    rows_waited: int = 0
    """How many rows have come since the last answer."""
    rows_an_answer: int = 0
    """How many came before it, since the one before."""
    is_proven: bool | None = None
    """Whether the kernel knows all that it asks of new rows; None if nobody has looked yet."""
    unsaved: dict[int, list[pa.Table]] = field(default_factory=dict)
    """By part: what steps have made since the last commit, in which nothing was due."""
    saved: dict[int, int] = field(default_factory=dict)
    """By stream: the position that is stored."""
    removals: Mapping[int, int] = field(default_factory=dict)
    """By streaming table: the newest snapshot that took rows from it, as it was when the query was loaded."""
    is_stale: bool = False
    """Whether states are to be made anew, as rows that they were made of have been taken away."""

    @cached_property
    def can_merge(self) -> bool:
        """Whether Arrow knows all merges of its states."""
        return all(map(can_merge, self.plan.parts))

    @property
    def is_split(self) -> bool:
        return self.place.is_split and self.plan.split is not None

    def note_saved(self) -> None:
        """All that it has is stored."""
        self.unsaved.clear()
        self.saved = {stream: seen.position for stream, seen in self.place.streams.items()}

    @property
    def has_choice(self) -> bool:
        """Whether both plans can answer: from states, and from rows that are still there."""
        plan = self.plan
        if plan.split is None or plan.whole is None or not plan.sample.is_by_time or self.place.is_rowless:
            return False
        return not any(w.kind in HELD for w in plan.windows)


@dataclass
class Step:
    """What one step has made, to be committed."""

    place: Place
    came: Sequence[Arrived] = ()
    deliveries: list[tuple[Instant, pa.Table]] = field(default_factory=list)
    answer: pa.Table | None = None
    new: dict[int, list[pa.Table]] = field(default_factory=dict)
    rewritten: set[int] = field(default_factory=set)
    lows: dict[int, int] = field(default_factory=dict)
    """By stream: the first row still needed, where windows are counted in rows and nobody holds these."""


@dataclass(frozen=True)
class Look:
    """The streams of a query at a snapshot: their tables, and where their rows end; `reader` reads all else.

    Rows that are committed later arrive no sooner than `arrived_until`.
    """

    arrived_until: Mapping[int, int]
    snapshot: Snapshot
    tables: Mapping[int, TableInfo]
    upto: Mapping[int, int]
    reader: Reader

    def is_idle(self, due: Iterable[Sequence[Instant]], came: Iterable[Arrived]) -> bool:
        """Whether the clock alone has moved on: nothing has come, nothing is due."""
        if any(due) or any(len(found.ids) for found in came):
            return False
        return all(t.time is not None and t.time.is_arrival for t in self.tables.values())
