"""What one query makes of combinations of rows, one of each leaf: at which instant, in which order, which columns.

Combinations are places in *sides*, one a leaf: rows with their numbers, their times, and the times from which on
they are in windows. Who finds them, and how, is a matter of others; here each is told apart by windows and
instants exactly as for the query alone, and what fails is left to be told by the query alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.plan.sharing import column_name
from millstream.plan.standing import FOR_EVER, ROW_NUMBER, TIME, Sampling
from millstream.queries import emitting, instants
from millstream.queries.chorus import AloneError
from millstream.queries.evaluating import Asked, evaluate
from millstream.queries.run import Step
from millstream.queries.windows import last_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.plan.sharing import Shared
    from millstream.queries.answering import Answers
    from millstream.queries.arrivals import Arrived
    from millstream.queries.instants import Instant
    from millstream.queries.run import Run
    from millstream.queries.running import Stepper

    Numbers = NDArray[np.int64]


AT = "__ms_at"
"""At which of the instants that are due a combination is delivered."""


class Side(Protocol):
    """Rows of a leaf's stream, under names in lower case."""

    @property
    def rows(self) -> pa.Table: ...
    @property
    def ids(self) -> Numbers: ...
    @property
    def times(self) -> Numbers: ...
    @property
    def enter(self) -> Numbers: ...


def shared_of(run: Run) -> Shared:
    assert run.plan.shared is not None
    return run.plan.shared


def began(stepper: Stepper, run: Run, found: Mapping[int, Arrived]) -> Step:
    """A step of a query from its own place, with what has come for all who are there; nothing is answered yet."""
    place, came = run.place.copy(), []
    for stream in run.plan.streams:
        before, now = place.streams[stream], found[stream].seen
        seen = replace(
            before, position=now.position, max_time=now.max_time, advanced_to=now.advanced_to, mark=now.mark
        )
        came.append(replace(found[stream], before=before, seen=seen))
    instants.take_in(run.plan, place, came)
    stepper.note_late(place, came)
    return Step(place, came)


def answered(step: Step, due: Sequence[Instant]) -> None:
    """Let a step be where all that is due has been answered."""
    if due:
        step.place.answered = due[-1].x
    step.place.passed = instants.mark_of(step.place)


@dataclass(frozen=True)
class Share:
    """A query that is stepped, what is due of it, and which of some combinations may be for it."""

    run: Run
    step: Step
    due: Sequence[Instant]
    mine: Numbers

    @property
    def shared(self) -> Shared:
        return shared_of(self.run)

    @property
    def expressions(self) -> list[tuple[str, pa.DataType]]:
        """What it asks for beside columns, with the types that it wants."""
        kinds = self.run.query.schema.arrow
        return [(o.text, f.type) for o, f in zip(self.shared.outputs, kinds, strict=True) if o.text]


class Combining:
    """See the module's contract."""

    def __init__(self, answers: Answers, stepper: Stepper) -> None:
        self._answers = answers
        self._stepper = stepper

    def deliver_all(
        self,
        shares: Sequence[Share],
        sides: Mapping[int, Side],
        places: Mapping[int, Numbers],
        before: Mapping[int, int],
    ) -> list[Numbers]:
        """Deliver what queries make of combinations, each at the first instant that has it; returns which ones.

        `before` has for each stream the position of the last step. The tests of all queries are one job at most,
        and so are their expressions.
        """
        timed = [self._timed(share, sides, places, before) for share in shares]
        tests = [(s.shared.test, mine) for s, (mine, _) in zip(shares, timed, strict=True)]
        passes = self._values([(f"coalesce({t}, false)", pa.bool_(), m) for t, m in tests if t], sides, places)
        kept = []
        for (test, _), (mine, at) in zip(tests, timed, strict=True):
            good = np.asarray(next(passes).to_numpy(), bool) if test else slice(None)
            kept.append((mine[good], at[good]))
        asked = [(t, k, mine) for s, (mine, _) in zip(shares, kept, strict=True) for t, k in s.expressions]
        values = self._values(asked, sides, places)
        for share, (mine, at) in zip(shares, kept, strict=True):
            own = [next(values) for _ in share.expressions]
            self._hand_out(share, at, _shaped(share, own, sides, {i: p[mine] for i, p in places.items()}))
        return [mine for mine, _ in kept]

    @staticmethod
    def _timed(
        share: Share, sides: Mapping[int, Side], places: Mapping[int, Numbers], before: Mapping[int, int]
    ) -> tuple[Numbers, Numbers]:
        """The combinations that a query has now, and at which instants."""
        own = {leaf: p[share.mine] for leaf, p in places.items()}
        at = first_instants(share.run, share.step, share.due, sides, own, before)
        return share.mine[at >= 0], at[at >= 0]

    def _hand_out(self, share: Share, at: Numbers, rows: pa.Table) -> None:
        deltas = share.run.plan.deltas
        assert deltas is not None
        if not len(at):
            return
        # There may be as many instants as rows, so all are brought in order at once.
        ordered = emitting.in_order(rows.append_column(AT, pa.array(at)), deltas)
        order = np.argsort(ordered.column(AT).to_numpy(), kind="stable")
        shaped = self._stepper.shaped(share.run, ordered.take(pa.array(order))).combine_chunks()
        numbers, starts = np.unique(np.sort(at), return_index=True)
        for number, low, high in zip(numbers.tolist(), starts, [*starts[1:], len(at)], strict=True):
            share.step.deliveries.append((share.due[number], shaped.slice(low, high - low)))

    def _values(
        self,
        wanted: Sequence[tuple[str, pa.DataType, Numbers]],
        sides: Mapping[int, Side],
        places: Mapping[int, Numbers],
    ) -> Iterator[pa.ChunkedArray]:
        """The values of expressions over some combinations each; the same text is evaluated once."""
        of_text: dict[tuple[str, pa.DataType], list[Numbers]] = {}
        for text, kind, mine in wanted:
            if len(mine):
                of_text.setdefault((text, kind), []).append(mine)
        asked = {key: Asked(*key, np.unique(np.concatenate(mine))) for key, mine in of_text.items()}
        rows = relation(sides, places, [text for text, _ in asked]) if asked else pa.table({})
        found: dict[tuple[str, pa.DataType], pa.ChunkedArray] = {}
        for key, values in zip(asked, evaluate(self._answers, rows, list(asked.values())), strict=True):
            if isinstance(values, MillstreamError):
                raise AloneError
            found[key] = values
        for text, kind, mine in wanted:
            if len(mine):
                at = np.searchsorted(asked[text, kind].places, mine)
                yield found[text, kind].take(pa.array(at))
            else:
                yield pa.chunked_array([], kind)

    def tested(
        self, tests: Sequence[str], sides: Mapping[int, Side], places: Mapping[int, Numbers]
    ) -> list[NDArray[np.bool_] | MillstreamError]:
        """Which combinations pass each of some tests; of a test that fails, why."""
        every = np.arange(len(places[0]))
        asked = [Asked(f"coalesce({test}, false)", pa.bool_(), every) for test in tests]
        found = evaluate(self._answers, relation(sides, places, tests), asked)
        return [v if isinstance(v, MillstreamError) else np.asarray(v.to_numpy(), bool) for v in found]


def _shaped(
    share: Share, values: Sequence[pa.ChunkedArray], sides: Mapping[int, Side], places: Mapping[int, Numbers]
) -> pa.Table:
    """A query's columns of combinations, with what they are ordered by."""
    made, columns = iter(values), dict[str, pa.ChunkedArray]()
    for output, named in zip(share.shared.outputs, share.run.query.schema.arrow, strict=True):
        if output.text:
            columns[named.name] = next(made)
        else:
            columns[named.name] = sides[output.leaf].rows.column(output.column).take(pa.array(places[output.leaf]))
    for leaf in sorted(places):
        columns[f"{TIME}{leaf}"] = pa.array(sides[leaf].times[places[leaf]])
        columns[f"{ROW_NUMBER}{leaf}"] = pa.array(sides[leaf].ids[places[leaf]])
    return pa.table(columns)


def relation(sides: Mapping[int, Side], places: Mapping[int, Numbers], texts: Sequence[str]) -> pa.Table:
    """Combinations as the one relation that texts speak of, with those columns alone that they name."""
    words, columns = " ".join(texts), dict[str, pa.ChunkedArray]()
    for leaf, side in sides.items():
        for column in side.rows.column_names:
            name = column_name(leaf, column, len(sides))
            if f"`{name}`" in words:
                columns[name] = side.rows.column(column).take(pa.array(places[leaf]))
    columns[ROW_NUMBER] = pa.chunked_array([pa.array(np.arange(len(places[0])))])
    return pa.table(columns)


def first_instants(
    run: Run,
    step: Step,
    due: Sequence[Instant],
    sides: Mapping[int, Side],
    places: Mapping[int, Numbers],
    before: Mapping[int, int],
) -> Numbers:
    """Which of the instants that are due has each combination first; -1 for none. As `Answers.derivations`."""
    plan, place = run.plan, step.place
    windows = [plan.windows[leaf.window] for leaf in shared_of(run).leaves]
    ids = np.stack([sides[leaf].ids[p] for leaf, p in sorted(places.items())])
    times = np.stack([sides[leaf].times[p] for leaf, p in sorted(places.items())])
    enter = np.max([sides[leaf].enter[p] for leaf, p in sorted(places.items())], axis=0)
    last = np.min([last_of(w, t) for w, t in zip(windows, times, strict=True)], axis=0)
    leave, time = last, times.max(axis=0)
    if plan.sample.kind is Sampling.INTERVAL:
        enter = enter + -(enter - plan.sample.offset) % plan.sample.step
        leave = last - (last - plan.sample.offset) % plan.sample.step
    xs = np.array([i.x for i in due], np.int64)
    taus = np.array([i.tau for i in due], np.int64)
    found = np.searchsorted(xs, enter)
    at = np.minimum(found, len(xs) - 1)
    is_repeated = (
        plan.sample.kind is Sampling.INTERVAL or run.place.answered is None or xs[0] <= run.place.answered
    )
    first = -FOR_EVER if is_repeated or run.place.answered is None else run.place.answered
    good = (found < len(xs)) & (np.concatenate([[first], xs[:-1]])[at] < enter)
    good &= (xs[at] <= leave) & (taus[at] <= last)
    mark = instants.mark_of(place)
    good &= time <= (-FOR_EVER if mark is None else mark)
    if plan.is_early and run.place.passed is not None:
        fresh = time > run.place.passed
        for row, window in enumerate(windows):
            fresh |= ids[row] >= before[window.stream]
        # Late rows may have waited for an instant that nobody was asked about before.
        fresh |= xs[at] > (-FOR_EVER if run.place.answered is None else run.place.answered)
        good &= fresh
    return np.where(good, at, -1)
