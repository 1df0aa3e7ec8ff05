"""The same rows, brought in other ways: no view may tell the difference.

A variant of a feed creates all its views first and keeps the tables as they are; then come all rows of the
streams, in other batches, in another order, or with the database closed and opened in between. After some of the
reads the other executor goes on.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.law.data import cut
from tests.law.grammar import Create, Feed, Insert, Read, Reopen, Switch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.law.grammar import Step

FINE = (0, 1, 3, 11, 40)
MEDIUM = (20, 60, 100)


def inserts(feed: Feed) -> list[Insert]:
    return [step for step in feed.steps if isinstance(step, Insert)]


def with_steps(feed: Feed, between: Sequence[Step]) -> Feed:
    """Views, then what happens, then a read of all."""
    numbers = tuple(q.number for q in feed.queries)
    return replace(feed, steps=(Create(numbers), *between, Read(numbers)))


def all_rows(feed: Feed, stream: str) -> pa.Table:
    return pa.concat_tables([step.rows for step in inserts(feed) if step.stream == stream])


def rebatched(feed: Feed, rng: Random, sizes: Sequence[int], *, is_shuffled: bool = False) -> Feed:
    """Other batches, a few reads between them; `is_shuffled` also takes the rows in another order."""
    waiting = []
    for stream in feed.streams:
        rows = all_rows(feed, stream.name)
        if is_shuffled:
            rows = rows.take(pa.array(rng.sample(range(rows.num_rows), rows.num_rows)))
        waiting.append([Insert(stream.name, part) for part in cut(rng, rows, sizes)])
    steps: list[Step] = []
    numbers = [q.number for q in feed.queries]
    while any(waiting):
        steps.append(rng.choice([w for w in waiting if w]).pop(0))
        if rng.random() < 0.1:
            steps += [Read(tuple(rng.sample(numbers, min(len(numbers), 3)))), Switch()]
    return with_steps(feed, steps)


def at_once(feed: Feed, _: Random) -> Feed:
    """One basket for each stream."""
    numbers = tuple(q.number for q in feed.queries)
    steps: list[Step] = []
    for stream in feed.streams:
        steps += [Insert(stream.name, all_rows(feed, stream.name)), Read(numbers), Switch()]
    return with_steps(feed, steps)


def in_small_batches(feed: Feed, rng: Random) -> Feed:
    return rebatched(feed, rng, FINE)


def in_larger_batches(feed: Feed, rng: Random) -> Feed:
    return rebatched(feed, rng, MEDIUM)


def in_another_order(feed: Feed, rng: Random) -> Feed:
    return rebatched(feed, rng, (*FINE, 100), is_shuffled=True)


def with_restarts(feed: Feed, rng: Random) -> Feed:
    """Closed and opened again between inserts, after a read or without one."""
    steps: list[Step] = []
    numbers = [q.number for q in feed.queries]
    for step in inserts(feed):
        steps.append(step)
        if rng.random() < 0.3:
            steps.append(Read(tuple(rng.sample(numbers, min(len(numbers), 2)))))
        if rng.random() < 0.4:
            steps.append(Reopen())
        if rng.random() < 0.2:
            steps.append(Switch())
    return with_steps(feed, [*steps, Reopen()])


VARIANTS: dict[str, Callable[[Feed, Random], Feed]] = {
    "all rows at once": at_once,
    "small batches": in_small_batches,
    "another order": in_another_order,
    "restarts": with_restarts,
}
