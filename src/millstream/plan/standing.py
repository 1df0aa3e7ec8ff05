"""A continuous query as records: its windows, when it answers, what it keeps, and the text that answers.

The texts are Spark SQL in which instants, windows and states stand as place-holders. A window's rows carry when
they enter it and when they leave it (`ENTER`, `LEAVE`, on the axis of instants; `LAST`, by their own time), their
time (`TIME`) and their number (`ROW_NUMBER`). Plain data: the records go into the catalogue as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from millstream.plan.incremental import Part, part_from, stream_name
from millstream.plan.sharing import Shared, shared_from
from millstream.schema import Duration

if TYPE_CHECKING:
    from collections.abc import Sequence

INSTANTS = "__ms_instants__"
"""The place-holder of the instants to answer: `n` counts them, `x` is the place on the axis of the sample, `p` the
place before, `tau` the time as a number, `now` the same as the stream's time has it."""
N = "__ms_n"
TIME, ROW_NUMBER = "__ms_t", "__ms_r"
ENTER, LEAVE, LAST = "__ms_e", "__ms_u", "__ms_l"
FOR_EVER = 2**62


def window_name(number: int) -> str:
    """The place-holder of a window's rows at each instant, by the window's place in the plan."""
    return f"__ms_window_{number}__"


def rows_name(number: int) -> str:
    """The place-holder of the rows that a window has held or may hold."""
    return f"__ms_rows_{number}__"


def basket_name(stream_id: int) -> str:
    """The place-holder of the rows of a stream that a text reads, by the stream's table id."""
    return f"__ms_basket_{stream_id}__"


def side_name(place: int) -> str:
    """The place-holder of one side of a join of windows, in the text of its pairs."""
    return f"__ms_side_{place}__"


def new_name(number: int) -> str:
    """The place-holder of a window's rows that are new."""
    return f"__ms_new_{number}__"


def old_name(number: int) -> str:
    """The place-holder of a window's rows that were there before."""
    return f"__ms_old_{number}__"


def all_name(number: int) -> str:
    """The place-holder of both."""
    return f"__ms_all_{number}__"


class WindowKind(StrEnum):
    INTERVAL = "interval"
    ROWS = "rows"
    PARTITION = "partition"
    LANDMARK = "landmark"
    CUT = "cut"
    """TUMBLE and HOP."""
    SESSION = "session"


class Sampling(StrEnum):
    """What makes an instant: the clock of the stream, rows that came, new times, ends of windows, a commit."""

    INTERVAL = "interval"
    ROWS = "rows"
    REALTIME = "realtime"
    ENDS = "ends"
    SESSION = "session"
    COMMIT = "commit"


@dataclass(frozen=True)
class Window:
    """A stream as a query reads it in one place. `length` is the interval, the gap of a session, or what resets a
    landmark (0 for never); `period` is how long the streaming table keeps its rows (0 for ever)."""

    stream: int
    name: str
    kind: WindowKind
    length: int = 0
    rows: int = 0
    keys: tuple[str, ...] = ()
    period: int = 0
    is_kept: bool = False
    """Whether it is a streaming table, whose rows from before the query count."""


@dataclass(frozen=True)
class Sample:
    """Instants are multiples of `step` from `offset` on (INTERVAL, ENDS), or come after `step` rows (ROWS)."""

    kind: Sampling
    step: int = 0
    offset: int = 0

    @property
    def is_half_open(self) -> bool:
        """Whether a row that is exactly as late as the instant is not in its window."""
        return self.kind in (Sampling.ENDS, Sampling.SESSION)

    @property
    def is_by_time(self) -> bool:
        """Whether the axis of instants is the stream's time."""
        return self.kind is not Sampling.ROWS


@dataclass(frozen=True)
class Answering:
    """A text that gives the answers of many instants: the number first, then the columns, then the order.

    `rows` and `is_ranked` tell what it is ordered by; `leaves` are the windows that the rows are of.
    """

    text: str
    rows: int = 0
    is_ranked: bool = False
    leaves: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pairs:
    """A join of windows as a window of its own, numbered behind them: `text` gives its rows, from `side_name`s."""

    number: int
    windows: tuple[int, ...]
    columns: tuple[str, ...]
    text: str

    def of(self, names: Sequence[str]) -> str:
        """All pairs of rows of these relations."""
        text = self.text
        for place, name in enumerate(names):
            text = text.replace(side_name(place), name)
        return text

    def new(self) -> str:
        """The pairs that new rows make: with all rows of windows before theirs, with old ones of those behind."""
        made = []
        for new in range(len(self.windows)):
            names = [
                (all_name if i < new else new_name if i == new else old_name)(w)
                for i, w in enumerate(self.windows)
            ]
            made.append(self.of(names))
        return " UNION ALL ".join(made)


def opened(text: str, pairs: Sequence[Pairs]) -> str:
    """A fragment in which pairs stand for all pairs of the windows' rows."""
    for pair in pairs:
        text = text.replace(stream_name(pair.number), f"({pair.of([stream_name(w) for w in pair.windows])})")
    return text


@dataclass(frozen=True)
class QueryPlan:
    """All of a continuous query. `whole` answers from the windows' rows, `split` from states that `parts` feed.

    `deltas` gives the derivations of a query that selects, projects and joins, under EMIT NEW. `plain` answers one
    instant; `reasons` say why there is no `whole` or no `split`.
    """

    windows: tuple[Window, ...]
    sample: Sample
    emit: str
    is_integer_time: bool
    plain: str
    whole: Answering | None
    split: Answering | None = None
    deltas: Answering | None = None
    parts: tuple[Part, ...] = ()
    tables: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    """The columns of each part's state, as the catalogue writes schemas."""
    pairs: tuple[Pairs, ...] = ()
    """Joins of windows that parts group the pairs of."""
    into: tuple[str, ...] = ()
    """Of a standing insert: the columns that its rows fill."""
    shared: Shared | None = None
    """What is shared with other queries, if it selects, projects and joins streams alone."""
    alone: str = ""
    """Why it is not."""

    @property
    def is_selection(self) -> bool:
        """Whether it delivers rows of one stream as they are committed, and can share the work."""
        return self.shared is not None and self.sample.kind is Sampling.COMMIT

    @cached_property
    def streams(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(w.stream for w in self.windows))

    def pairs_of(self, part: Part) -> Pairs | None:
        """The join of windows that a part groups the pairs of."""
        return next((p for p in self.pairs if stream_name(p.number) in part.source), None)

    @cached_property
    def paired(self) -> frozenset[int]:
        """The windows whose rows are needed for pairs."""
        return frozenset(w for p in self.pairs for w in p.windows)

    @cached_property
    def mixed(self) -> frozenset[int]:
        """The windows whose rows are grouped together with those of a streaming table.

        When rows of that change, what was made of all of them is made anew, so all have to be there still.
        """
        several = [p.streams for p in self.parts if len(p.streams) > 1]
        return frozenset(w for ws in several if any(self.windows[w].is_kept for w in ws) for w in ws)

    @property
    def is_monotone(self) -> bool:
        """Whether what was delivered stays right whatever comes."""
        return self.deltas is not None

    @property
    def is_nested(self) -> bool:
        """Whether it joins streams by nested loops: nothing is to be equal."""
        return self.shared is not None and len(self.shared.leaves) > 1 and not self.shared.equalities

    @property
    def is_counted_join(self) -> bool:
        """Whether it joins the newest rows of streams, as many of each."""
        if self.shared is None or len(self.shared.leaves) != 2 or self.sample.kind is not Sampling.REALTIME:
            return False
        kinds = {(w.kind, w.rows, w.is_kept) for w in self.windows}
        return (
            self.is_monotone
            and len(kinds) == 1
            and self.windows[0].kind is WindowKind.ROWS
            and not self.windows[0].is_kept
        )

    @property
    def is_early(self) -> bool:
        """Whether it delivers what it has as soon as the watermark reaches it.

        A window that moves row by row may lose a row to another one of the same time, so it waits.
        """
        if not self.is_monotone or any(w.kind in (WindowKind.ROWS, WindowKind.PARTITION) for w in self.windows):
            return False
        return self.sample.kind in (Sampling.INTERVAL, Sampling.REALTIME)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> QueryPlan:
        made: dict[str, Any] = json.loads(text)
        answering = {
            n: made[n] and Answering(**made[n] | {"leaves": tuple(made[n]["leaves"])})
            for n in ("whole", "split", "deltas")
        }
        sample = made["sample"] | {"kind": Sampling(made["sample"]["kind"])}
        tuples = {n: tuple(made[n]) for n in ("tables", "reasons", "schemas", "into")}
        windows = tuple(_window(w) for w in made["windows"])
        rest = {
            "windows": windows,
            "sample": Sample(**sample),
            "parts": tuple(part_from(p) for p in made["parts"]),
            "pairs": tuple(
                Pairs(p["number"], tuple(p["windows"]), tuple(p["columns"]), p["text"])
                for p in made.get("pairs", [])
            ),
        }
        shared = made.get("shared")
        rest["shared"] = None if shared is None else shared_from(shared)
        return cls(**(made | answering | tuples | rest))


def _window(made: dict[str, Any]) -> Window:
    return Window(**(made | {"kind": WindowKind(made["kind"]), "keys": tuple(made["keys"])}))


def explained(name: str, plan: QueryPlan, *, is_split: bool) -> str:
    """A query as text for people: its windows, when it answers, what it keeps, and what answers."""
    lines = [f"Continuous query {name}"]
    lines += [f"Window {i}: {_window_text(w, plan)}" for i, w in enumerate(plan.windows, start=1)]
    lines.append(f"Answers: {_sample_text(plan)}, EMIT {plan.emit}")
    if plan.is_monotone:
        lines += ["Derivations: each is delivered once, from new rows and the windows of the others"]
    elif is_split and plan.split is not None:
        lines.append("Incremental: partial results of panes, merged for each instant")
        lines += [f"Pairs {p.number - len(plan.windows) + 1}: {_pairs_text(p)}" for p in plan.pairs]
        for number, part in enumerate(plan.parts, start=1):
            lines += [
                f"Stream fragment {number}: runs on each basket",
                f"  {part.fragment}",
                f"  keeps: {part.why}",
            ]
        lines += ["Upper fragment: runs for the instants that are due", f"  {plan.split.text}"]
    else:
        lines.append("Re-evaluated: the windows' rows, for all instants that are due at once")
        lines += [f"  because {reason}" for reason in plan.reasons]
        lines.append(f"  {plan.whole.text if plan.whole is not None else plan.plain}")
    if plan.tables:
        lines.append(f"Read at each instant: {', '.join(plan.tables)}")
    text = "\n".join(lines)
    for number, window in enumerate(plan.windows):
        for made in (window_name(number), f"__ms_stream_{number}__"):
            text = text.replace(made, f"window_{number + 1}_of_{window.name}")
    for pair in plan.pairs:
        text = text.replace(stream_name(pair.number), f"pairs_{pair.number - len(plan.windows) + 1}")
    for number in range(len(plan.parts)):
        text = text.replace(f"__ms_merged_{number}__", f"merged_state_{number + 1}")
    for name, meaning in {INSTANTS: "instants", N: "instant", ENTER: "enter", LEAVE: "leave"}.items():
        text = text.replace(name, meaning)
    return text


def _pairs_text(pairs: Pairs) -> str:
    return f"new rows with all, old rows with new\n  {pairs.of([window_name(w) for w in pairs.windows])}"


def _length(amount: int, plan: QueryPlan) -> str:
    return Duration(amount, plan.is_integer_time).sql().removeprefix("INTERVAL ")


def _window_text(window: Window, plan: QueryPlan) -> str:
    length = _length(window.length, plan)
    forms = {
        WindowKind.INTERVAL: f"the last {length}",
        WindowKind.ROWS: f"the newest {window.rows} rows",
        WindowKind.PARTITION: f"the newest {window.rows} rows for each {', '.join(window.keys)}",
        WindowKind.LANDMARK: f"everything, anew every {length}" if window.length else "everything so far",
        WindowKind.CUT: f"cut into windows of {length}",
        WindowKind.SESSION: f"cut into sessions by gaps of {length}",
    }
    return f"{window.name}, {forms[window.kind]}"


def _sample_text(plan: QueryPlan) -> str:
    sample, step = plan.sample, _length(plan.sample.step, plan)
    return {
        Sampling.INTERVAL: f"every {step} of stream time",
        Sampling.ROWS: f"after every {sample.step} rows",
        Sampling.REALTIME: "at every new time",
        Sampling.ENDS: f"when a window ends, every {step}",
        Sampling.SESSION: "when a session ends",
        Sampling.COMMIT: "as rows are committed",
    }[sample.kind]
