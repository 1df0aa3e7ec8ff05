"""Seven joins of two streams with windows from a second to ten minutes: one join, scheduled by LWO, SWF or Greedy.

distributions  the four window distributions of the paper's table 1: response under each policy, and memory
bursts         small-large windows, Pareto bursts of 1 to 5 at the same overall rate: response under each policy
sharing        rows a second: shared, each query by itself, and as Structured Streaming joins on the same Spark
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _joined import ALONE, SHARED, STREAMING, Contest, contest
from _joins import (
    DISTRIBUTIONS,
    LONGEST,
    SMALL_LARGE,
    Feed,
    Load,
    Outcome,
    arrivals,
    check,
    drive,
    expected,
    prepare,
    resumed,
    scheduled_from,
)
from _svg import Plot, Series
from harness import Measure, Run, Target, at_least, at_most, main

from millstream.queries.scheduled import MANY_ROWS
from millstream.schedule.join_policies import GREEDY, LWO, POLICIES


@dataclass(frozen=True)
class Pace:
    """Rows a second of each stream, and how many seconds are between arrivals, on average."""

    rate: int
    distance: float


PACE = Pace(50_000, 8.0)
OWN_PACES = {"uniform": Pace(65_000, 8.0)}
"""At these rates the largest slice of all takes a second or more; with uniform windows it has fewer rows."""
MEETS = 0.1
"""Partners of a row in the longest window: with many more, delivering costs more than joining."""
ARRIVALS, FEWEST_BURSTS = 16, 3
"""A run has so many arrivals, or more if that were fewer bursts; with half as many one that comes at a bad moment
makes a third of the average."""
LEAST = 0.4
"""A run lasts so many seconds at least, at whatever scale."""
FEW = 15
"""Windows up to so many seconds are small."""
BURSTS = (1, 2, 3, 4, 5)
ALL_FROM = 0.1
"""The smallest scale at which bursts of all sizes are tried; below, the smallest and the largest."""

Outcomes = Mapping[str, Outcome]
"""By policy."""


def _load(run: Run, pace: Pace = PACE) -> Load:
    return Load(run.scaled(pace.rate, 20), MEETS)


def _feed(run: Run, load: Load, burst: int, seed: int, distance: float = PACE.distance) -> Feed:
    """The arrivals of one run, so many that bursts have just the size that they are to have on average.

    At small scales it lasts fewer seconds, with as many arrivals or a few less.
    """
    whole = burst * max(FEWEST_BURSTS, round(ARRIVALS / burst))
    number, lasting = max(4, round(whole * min(1.0, 10 * run.scale))), whole * distance
    short = max(LEAST, lasting * min(1.0, run.scale)) / lasting
    due = arrivals(burst, number, lasting * short, seed)
    # What arrives before the second one on average is not counted.
    warm = distance * short if run.scale >= 1 else 0.0
    return Feed.of(load, due, round(load.rate * distance), warm)


def _policies(run: Run, prepared: Path, load: Load, feed: Feed, windows: Sequence[int], name: str) -> Outcomes:
    """The same arrivals under each policy; all have to deliver what DuckDB counts."""
    right, found = expected(load, feed, windows), {}
    for policy in POLICIES:
        with resumed(prepared, run.folder / policy, windows, policy) as db:
            found[policy] = drive(db, feed, windows)
        check(f"{name}, {policy}", found[policy].delivered, right)
    return found


def _prepared(run: Run, load: Load) -> Path:
    """A database with the history, made once for each rate."""
    folder = run.folder / f"prepared-{load.rate}"
    if not folder.exists():
        prepare(folder, load)
    return folder


# distributions


def distributions(run: Run) -> Sequence[Measure]:
    """Figures 7 and 8."""
    found, measures = dict[str, Outcomes](), list[Measure]()
    with scheduled_from(run.scaled(MANY_ROWS) if run.scale < 1 else MANY_ROWS):
        for seed, (name, windows) in enumerate(DISTRIBUTIONS.items()):
            pace = OWN_PACES.get(name, PACE)
            load = _load(run, pace)
            feed = _feed(run, load, 1, seed, pace.distance)
            found[name] = _policies(run, _prepared(run, load), load, feed, windows, name)
            measures += _measures(load, name, found[name])
    _plot_averages(run, "distributions", "Average response, all windows", "distribution", list(found.values()))
    for name, outcomes in found.items():
        _plot_windows(run, name.replace(" ", "-"), name, outcomes)
    return measures


def _measures(load: Load, name: str, outcomes: Outcomes) -> list[Measure]:
    averages = {policy: o.average for policy, o in outcomes.items()}
    best = min(averages, key=lambda policy: averages[policy])
    samples = {policy: _windows(o) for policy, o in outcomes.items()}
    over = averages[GREEDY] / averages[best]
    target = at_least(5) if name == SMALL_LARGE else None
    return [
        Measure(f"{name}: average response, greedy over the best", over, "×", at_most(1.1), samples,
                {"best": best, "averages": averages, **_notes(load, outcomes)}),
        _small(name, outcomes, target),
        *_memory(name, outcomes),
        _largest(name, outcomes),
    ]  # fmt: skip


def _small(name: str, outcomes: Outcomes, target: Target | None) -> Measure:
    few = {policy: _few(o) for policy, o in outcomes.items()}
    faster = few[LWO] / few[GREEDY]
    notes = {"seconds": few}
    return Measure(f"{name}: windows of {FEW} s at most, lwo over greedy", faster, "×", target, {}, notes)


def _few(outcome: Outcome) -> float:
    return float(np.mean([r.average for w, r in outcome.responses.items() if w <= FEW]))


def _memory(name: str, outcomes: Outcomes) -> list[Measure]:
    return [
        Measure(f"{name}, {policy}: memory beside the buffers", 100 * o.extra_bytes / max(1, o.buffer_bytes),
                "%", at_most(10), {}, {"buffer_bytes": o.buffer_bytes, "most_extra_bytes": o.extra_bytes})
        for policy, o in outcomes.items()
    ]  # fmt: skip


def _largest(name: str, outcomes: Outcomes) -> Measure:
    """Whether slices are what a rate is stated for: with smaller ones a job is shared, and nobody waits for it."""
    part, seconds = _largest_slice(outcomes)
    return Measure(f"{name}: largest slice", seconds, "s", at_least(1), {}, {"slice": list(part)})


def _largest_slice(outcomes: Outcomes) -> tuple[tuple[int, int], float]:
    """The largest that is not a whole window, and its time under the policy that took longest for it."""
    parts = [(part, taken) for o in outcomes.values() for part, taken in o.slices.items() if part != (0, LONGEST)]
    return max(parts, key=lambda own: own[1], default=((0, 0), 0.0))


def _windows(outcome: Outcome) -> list[float]:
    return [r.average for r in outcome.responses.values()]


def _notes(load: Load, outcomes: Outcomes) -> dict[str, object]:
    """What was run, and what else was measured."""
    part, seconds = _largest_slice(outcomes)
    return {
        "rows_per_second_and_stream": load.rate,
        "largest_slice": list(part),
        "largest_slice_seconds": seconds,
        "most_extra_percent": {p: 100 * o.extra_bytes / max(1, o.buffer_bytes) for p, o in outcomes.items()},
        "by_window": {
            policy: {w: [r.average, r.p95, r.longest, r.results] for w, r in o.responses.items()}
            for policy, o in outcomes.items()
        },
        "average_of_results": {policy: o.average_of_results for policy, o in outcomes.items()},
        "utilisation": {policy: round(o.utilisation, 2) for policy, o in outcomes.items()},
        "jobs": {policy: len(o.units) for policy, o in outcomes.items()},
        "most_behind_s": {policy: round(o.behind, 2) for policy, o in outcomes.items()},
        "left_at_the_end_s": {policy: round(o.left, 2) for policy, o in outcomes.items()},
    }


# bursts


def bursts(run: Run) -> Sequence[Measure]:
    """Figure 10."""
    load, windows, found = _load(run), DISTRIBUTIONS[SMALL_LARGE], dict[int, Outcomes]()
    sizes = BURSTS if run.scale >= ALL_FROM else (BURSTS[0], BURSTS[-1])
    with scheduled_from(run.scaled(MANY_ROWS) if run.scale < 1 else MANY_ROWS):
        prepared = _prepared(run, load)
        for size in sizes:
            name = f"bursts of {size}"
            found[size] = _policies(run, prepared, load, _feed(run, load, size, 10 + size), windows, name)
    title = "Average response, all windows, small-large"
    _plot_averages(run, "bursts", title, "expected size of bursts", list(found.values()), sizes)
    _plot_windows(run, f"bursts-{sizes[-1]}", f"bursts of {sizes[-1]}", found[sizes[-1]])
    return [measure for size, outcomes in found.items() for measure in _burst_measures(load, size, outcomes)]


def _burst_measures(load: Load, size: int, outcomes: Outcomes) -> list[Measure]:
    averages = {policy: o.average for policy, o in outcomes.items()}
    better = 100 * (1 - averages[GREEDY] / averages[LWO])
    target = at_least(40) if size == BURSTS[-1] else None
    samples = {policy: _windows(o) for policy, o in outcomes.items()}
    notes = {"averages": averages, **_notes(load, outcomes)}
    name = f"bursts of {size}"
    return [
        Measure(f"{name}: average response, greedy below lwo", better, "%", target, samples, notes),
        *_memory(name, outcomes),
        _largest(name, outcomes),
    ]


# sharing


def sharing(run: Run) -> Sequence[Measure]:
    """All seven together, each alone, and on Structured Streaming."""
    with scheduled_from(run.scaled(MANY_ROWS) if run.scale < 1 else MANY_ROWS):
        found = contest(run, DISTRIBUTIONS[SMALL_LARGE])
    rate = found.rows / statistics.median(found.samples[SHARED])
    notes = {
        "rows_per_second_and_stream": found.rate,
        "rows": found.rows,
        "results": dict(found.results),
        "apart": dict(found.apart),
    }
    return [
        Measure("seven joins, shared: rows a second", rate, "/s", None, found.samples, notes),
        *(_over(found, other) for other in (ALONE, STREAMING)),
    ]


def _over(found: Contest, other: str) -> Measure:
    times = statistics.median(found.samples[other]) / statistics.median(found.samples[SHARED])
    return Measure(f"seven joins: rows a second, shared over {other}", times, "×", at_least(3))


# plots


def _plot_windows(run: Run, name: str, title: str, outcomes: Outcomes) -> None:
    """Figures 8 and 10 b, c: a response for each window."""
    for which in ("average", "longest"):
        lines = {
            policy: [(float(w), getattr(r, which)) for w, r in o.responses.items()]
            for policy, o in outcomes.items()
        }
        _save(run, f"{name}-{which}", Plot(
            f"{title}: {which} response for each window", "window (s)", "response (s)",
            [Series(policy, points) for policy, points in lines.items()],
        ))  # fmt: skip


def _plot_averages(
    run: Run, name: str, title: str, across: str, found: Sequence[Outcomes], at: Sequence[int] = ()
) -> None:
    """Figures 7 and 10 a."""
    places = at or range(1, len(found) + 1)
    if not at:
        across += ": " + ", ".join(f"{n} {d}" for n, d in enumerate(DISTRIBUTIONS, start=1))
    series = [
        Series(policy, [(float(x), o[policy].average) for x, o in zip(places, found, strict=True)], dots=not at)
        for policy in POLICIES
    ]
    _save(run, name, Plot(title, across, "response (s)", series))


def _save(run: Run, name: str, plot: Plot) -> None:
    if run.plots is not None:
        plot.save(run.plots / f"joins-{name}.svg")


PARTS = {"distributions": distributions, "bursts": bursts, "sharing": sharing}

if __name__ == "__main__":
    sys.exit(main("joins", PARTS, __doc__ or ""))
