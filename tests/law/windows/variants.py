"""The same feed in other ways: no query may tell the difference.

A variant keeps everything that decides an answer: the rows of each stream in their order, ADVANCE, what happens
to tables and stored rows, when queries are created. It cuts inserts anew, mixes those of different streams, closes
and opens the database, or runs on other settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.law.windows.steps import Drain, Insert, Reopen, Say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from tests.law.windows.steps import Feed, Step


def quiet(feed: Feed) -> list[Step]:
    """The steps without settings, restarts and deliveries that nothing depends on."""
    kept: list[Step] = [s for s in feed.steps if not isinstance(s, Say | Reopen | Drain)]
    found: list[Step] = []
    for step in kept:
        found += [step] if isinstance(step, Insert) else [Drain(), step]
    return [*found, Drain()]


INCREMENTAL = Say("SET incremental = on")
"""Small windows would be evaluated anew otherwise, where that is cheaper."""


def stretches(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps cut into runs of inserts and single other steps."""
    run: list[Step] = []
    for step in steps:
        if isinstance(step, Insert):
            run.append(step)
        else:
            yield from ([run] if run else [])
            yield [step]
            run = []
    yield from ([run] if run else [])


def recut(feed: Feed, rng: Random, sizes: Sequence[int]) -> Feed:
    """Other batches; between two other steps the streams are mixed anew."""
    steps: list[Step] = []
    for stretch in stretches(quiet(feed)):
        waiting = [cut(rng, stretch, s.name, sizes) for s in feed.streams]
        steps += stretch if not isinstance(stretch[0], Insert) else []
        while any(waiting):
            steps.append(rng.choice([w for w in waiting if w]).pop(0))
    return replace(feed, steps=(INCREMENTAL, *steps))


def cut(rng: Random, stretch: Sequence[Step], stream: str, sizes: Sequence[int]) -> list[Insert]:
    inserts = [s for s in stretch if isinstance(s, Insert) and s.stream == stream]
    times = [t for insert in inserts for t in insert.times]
    rows = [r for insert in inserts for r in insert.rows]
    found, at = list[Insert](), 0
    while at < len(rows):
        size = rng.choice(sizes)
        found.append(Insert(stream, tuple(times[at : at + size]), tuple(rows[at : at + size])))
        at += size
    return found


def in_one_batch(feed: Feed, rng: Random) -> Feed:
    return recut(feed, rng, (10_000,))


def row_by_row(feed: Feed, rng: Random) -> Feed:
    return recut(feed, rng, (1,))


def in_other_batches(feed: Feed, rng: Random) -> Feed:
    return recut(feed, rng, (1, 3, 11, 40))


def with_restarts(feed: Feed, rng: Random) -> Feed:
    """Closed and opened again anywhere, with and without delivering what is due before."""
    steps: list[Step] = []
    for step in quiet(feed):
        steps.append(step)
        if rng.random() < 0.15:
            steps += rng.choice([[Reopen()], [Drain(), Reopen()], [Reopen(), Drain()]])
    return replace(feed, steps=(INCREMENTAL, *steps, Reopen()))


def with_drains(feed: Feed, rng: Random) -> Feed:
    """Everything is delivered as soon as it is due."""
    del rng
    steps = [part for step in quiet(feed) for part in (step, Drain())]
    return replace(feed, steps=(INCREMENTAL, *steps))


def under(*settings: str) -> Callable[[Feed, Random], Feed]:
    """All of it under some settings."""

    def make(feed: Feed, rng: Random) -> Feed:
        del rng
        return replace(feed, steps=(*(Say(f"SET {s}") for s in settings), *quiet(feed)))

    return make


def switching(feed: Feed, rng: Random) -> Feed:
    """The settings change between any two steps."""
    choices = ["executor = kernel", "executor = spark_sql", "incremental = on", "incremental = off", "chunks = 4"]
    steps: list[Step] = []
    for step in quiet(feed):
        steps += [Say(f"SET {rng.choice(choices)}"), step]
    return replace(feed, steps=tuple(steps))


def in_chunks(number: int) -> Callable[[Feed, Random], Feed]:
    """Slides are taken in in so many chunks, as rows come: every insert is a chance to take in one."""

    def make(feed: Feed, rng: Random) -> Feed:
        del rng
        steps = [part for s in quiet(feed) for part in ((s, Drain()) if isinstance(s, Insert) else (s,))]
        return replace(feed, steps=(INCREMENTAL, Say(f"SET chunks = {number}"), *steps))

    return make


VARIANTS: dict[str, Callable[[Feed, Random], Feed]] = {
    "one batch": in_one_batch,
    "row by row": row_by_row,
    "other batches": in_other_batches,
    "restarts": with_restarts,
    "delivered at once": with_drains,
    "incremental on, 1 chunk": in_chunks(1),
    "incremental on, 4 chunks": in_chunks(4),
    "incremental on, 64 chunks": in_chunks(64),
    "incremental off": under("incremental = off"),
    "kernel": under("incremental = on", "executor = kernel"),
    "spark_sql": under("incremental = on", "executor = spark_sql"),
    "switching": switching,
}
