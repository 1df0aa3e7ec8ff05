"""Bugs planted on purpose: each must make some generated query break the law. Runs with `--planted`.

Some queries of a feed that have to do with the bug are asked, of one feed after the other until one is answered
wrongly; the same ones are asked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from millstream.plan.incremental import Part
from millstream.queries import arrivals, emitting, feeding, held, instants, running, windows
from millstream.queries.panes import Panes
from millstream.rewrite import lift, names, push_below_joins
from tests.law.windows.feed import Run, only
from tests.law.windows.grammar import Emit, Query
from tests.law.windows.model import Ends, Every, Realtime
from tests.law.windows.shapes import SHAPES, Kind
from tests.law.windows.steps import a_feed

if TYPE_CHECKING:
    from millstream.database import Database
    from tests.law.windows.coverage import Coverage
    from tests.law.windows.feed import Failure
    from tests.law.windows.steps import Feed

    Open = Callable[[], Database]

Plant = Callable[[pytest.MonkeyPatch], None]
Concerns = Callable[[Query], bool]

pytestmark = pytest.mark.planted
SEEDS, MOST_QUERIES = (4, 5, 0, 8), 4
"""So many queries of a feed that have to do with a bug are asked; of some feeds until one tells."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake, and which queries have to do with it."""

    plant: Plant
    concerns: Concerns

    def queries(self, seed: int) -> list[int]:
        return [q.number for q in a_feed(seed).queries if self.concerns(q)][:MOST_QUERIES]


# The mistakes


def _interval_open_at_the_end(patch: pytest.MonkeyPatch) -> None:
    real = windows.last_of

    def wrong(window: Any, times: Any) -> Any:
        return real(replace(window, length=window.length - 1) if window.kind == "interval" else window, times)

    for module in (windows, feeding, held, running):
        patch.setattr(module, "last_of", wrong, raising=False)


def _late_rows_are_on_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arrivals.Arrived, "late", property(lambda _: []))
    patch.setattr(arrivals.Arrived, "enter", property(lambda self: self.times))


def _watermark_of_the_fastest(patch: pytest.MonkeyPatch) -> None:
    def wrong(place: Any) -> int | None:
        marks = [seen.mark for seen in place.streams.values() if seen.mark is not None]
        return max(marks, default=None)

    patch.setattr(instants, "mark_of", wrong)


def _a_slide_too_long(patch: pytest.MonkeyPatch) -> None:
    real = Panes._expire
    patch.setattr(Panes, "_expire", lambda self, x: real(self, x - 1))


def _a_pane_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What comes for a pane that is there already takes its place."""
    real = Panes._insert

    def wrong(self: Panes, place: int, rows: Any) -> None:
        if place in self._places:
            at = self._places.index(place)
            self._leaves[at] = self._merged([rows])
            self._forget(at)
        else:
            real(self, place, rows)

    patch.setattr(Panes, "_insert", wrong)


def _old_merges_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Panes, "_forget", lambda *_: None)


def _new_rows_as_a_set(patch: pytest.MonkeyPatch) -> None:
    def wrong(answer: Any, last: Any) -> Any:
        known = set() if last is None else set(emitting._keys(last))
        return emitting._taken(answer, [i for i, k in enumerate(emitting._keys(answer)) if k not in known])

    patch.setattr(emitting, "new_rows", wrong)


def _oldest_of_a_tie(patch: pytest.MonkeyPatch) -> None:
    real = held.leaves
    patch.setattr(held, "leaves", lambda codes, times, ids, enter, rows: real(codes, times, -ids, enter, rows))


def _joins_unweighted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(push_below_joins, "_weight", lambda *_, **__: "1L")


def _nothing_made_anew(patch: pytest.MonkeyPatch) -> None:
    def wrong(_: Any, run: Any, __: Any) -> None:
        run.stale = set()

    patch.setattr(running.Stepper, "_make_anew", wrong)


def _sessions_meet_at_the_gap(patch: pytest.MonkeyPatch) -> None:
    """Rows that are a gap apart are of one session."""
    real = held.sessions

    def wrong(codes: Any, times: Any, gap: int, *period: int) -> Any:
        starts, ends = real(codes, times, gap + 1, *period)
        return starts, ends - 1

    patch.setattr(held, "sessions", wrong)


def _no_null_group(patch: pytest.MonkeyPatch) -> None:
    real = Panes._merged
    merged = Part.merged

    def wrong(self: Panes, pieces: Any) -> Any:
        rows = real(self, pieces)
        return rows.filter(rows.column(self._part.keys[0]).is_valid()) if self._part.keys else rows

    def wrong_too(self: Part, rows: str, where: str | None = None, keys: tuple[str, ...] | None = None) -> str:
        sql, by = merged(self, rows, where, keys), self.keys if keys is None else keys
        return f"SELECT * FROM ({sql}) AS q WHERE {by[-1]} IS NOT NULL" if by else sql

    patch.setattr(Panes, "_merged", wrong)
    patch.setattr(Part, "merged", wrong_too)


def _instants_share_a_limit(patch: pytest.MonkeyPatch) -> None:
    """LIMIT counts the rows of all instants together."""
    real = lift._Lifter._rank

    def wrong(self: Any, select: Any, _: Any, *rest: Any, **more: Any) -> None:
        real(self, select, names.parsed("1L"), *rest, **more)

    patch.setattr(lift._Lifter, "_rank", wrong)


def _windows_partitioned_by_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lift, "_windows", lambda _: [])


def _a_row_too_early(patch: pytest.MonkeyPatch) -> None:
    """When a row enters is rounded down to an instant."""
    real = windows.pane_of

    def wrong(window: Any, sample: Any, enter: Any, times: Any) -> Any:
        _, leave = real(window, sample, enter, times)
        return enter - (enter - sample.offset) % max(1, sample.step), leave

    patch.setattr(windows, "pane_of", wrong)


# What they have to do with


def _has_window(*labels: str) -> Concerns:
    return lambda query: any(slot.label in labels for slot in query.slots)


def _may_be_late(query: Query) -> bool:
    return any(slot.stream.has_late for slot in query.slots)


def _has_streams(query: Query) -> bool:
    return len({slot.stream.name for slot in query.slots}) > 1


def _holds_stored_rows(query: Query) -> bool:
    return any(slot.stream.is_kept and slot.label in ("ROWS", "PARTITION") for slot in query.slots)


def _is_grouped(query: Query) -> bool:
    return SHAPES[query.shape].kind is Kind.GROUPED


def _has_panes(query: Query) -> bool:
    """Whether it is a grouping whose windows move on by time."""
    moves = any(slot.label in ("INTERVAL", "HOP") for slot in query.slots)
    return _is_grouped(query) and moves and isinstance(query.slide, Every | Ends | Realtime)


def _has_late_panes(query: Query) -> bool:
    return _has_panes(query) and _may_be_late(query)


def _has_equal_rows(query: Query) -> bool:
    """Whether it tells answers apart in which a row may be twice."""
    return query.emit is not Emit.ALL and not query.is_monotonic and not _is_grouped(query)


def _counts_a_join(query: Query) -> bool:
    return query.shape == "streams counted"


def _has_slides(query: Query) -> bool:
    return isinstance(query.slide, Every | Ends) and query.slide.step > 1


def _has_limit(query: Query) -> bool:
    return " LIMIT " in query.text


def _looks_around(query: Query) -> bool:
    return query.shape in ("prev", "window functions")


BUGS: dict[str, Bug] = {
    "a window of time is open at its far end": Bug(_interval_open_at_the_end, _has_window("INTERVAL")),
    "late rows are taken for rows on time": Bug(_late_rows_are_on_time, _may_be_late),
    "instants go by the fastest stream": Bug(_watermark_of_the_fastest, _has_streams),
    "panes leave a place too late": Bug(_a_slide_too_long, _has_panes),
    "what comes later for a pane replaces it": Bug(_a_pane_forgotten, _has_panes),
    "merges of panes are kept when one changes": Bug(_old_merges_kept, _has_late_panes),
    "EMIT NEW compares sets": Bug(_new_rows_as_a_set, _has_equal_rows),
    "of rows with one time the oldest stay": Bug(_oldest_of_a_tie, _has_window("ROWS", "PARTITION")),
    "joined groups count once": Bug(_joins_unweighted, _counts_a_join),
    "states keep what was deleted": Bug(_nothing_made_anew, _holds_stored_rows),
    "sessions a gap apart are one less": Bug(_sessions_meet_at_the_gap, _has_window("SESSION")),
    "the null group is dropped": Bug(_no_null_group, _is_grouped),
    "LIMIT counts over all instants": Bug(_instants_share_a_limit, _has_limit),
    "window functions run over all instants": Bug(_windows_partitioned_by_nothing, _looks_around),
    "rows enter a slide too early": Bug(_a_row_too_early, _has_slides),
}


# The law


def _run(feed: Feed, open_database: Open, coverage: Coverage) -> Run:
    run = Run(feed, open_database, coverage)
    run.run()
    return run


def _is_wrong(failure: Failure) -> bool:
    """Whether something was delivered that is not what the law says, rather than refused."""
    return any(words in failure.what for words in ("is not what", "missing", "instants instead"))


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(
    bug: str, opened: Callable[[str], Database], window_coverage: Coverage, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = BUGS[bug]
    planted.plant(monkeypatch)
    for seed in SEEDS:
        feed = only(a_feed(seed), planted.queries(seed))
        run = _run(feed, partial(opened, str(seed)), window_coverage)
        if any(map(_is_wrong, run.failures.values())):
            return
    pytest.fail(f"no query of seeds {SEEDS} was answered wrongly: {bug}")


@pytest.mark.parametrize("planted_seed", SEEDS)
def test_without_a_bug_the_same_queries_are_lawful(
    planted_seed: int, open_database: Open, window_coverage: Coverage
) -> None:
    asked = {number for bug in BUGS.values() for number in bug.queries(planted_seed)}
    run = _run(only(a_feed(planted_seed), sorted(asked)), open_database, window_coverage)
    if not run.is_lawful:
        pytest.fail(run.report(), pytrace=False)
