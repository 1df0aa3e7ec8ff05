"""How the database of a feed works, which no answer may depend on: decided by the feed's seed, here alone.

    seed % 4   begins with   merges states       takes in baskets
    0          kernel        in the driver       in the driver
    1          Spark alone   in the driver       by Spark SQL
    2          kernel        in the driver       in Spark's tasks, with the kernel
    3          Spark alone   by Spark            by Spark SQL

Baskets of a feed are small. They go to tasks where little counts as small: every insert is a file of its own, a
task reads some of the files, and more than `MOST_HERE` rows the driver does not read itself.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from millstream.queries import here, matching, tasks
from millstream.storage import inline
from tests.law.feed import EXECUTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KERNEL, SPARK_SQL = EXECUTORS
MOST_HERE = 6
MOST_TASKS = 3
"""Of one job, on any machine."""


@dataclass(frozen=True, slots=True)
class Manner:
    """The executor that a feed begins with, who merges states, and where large baskets are taken in."""

    executor: str
    merges_here: bool = True
    has_tasks: bool = False


MANNERS = (
    Manner(KERNEL),
    Manner(SPARK_SQL),
    Manner(KERNEL, has_tasks=True),
    Manner(SPARK_SQL, merges_here=False),
)


def manner_of(seed: int) -> Manner:
    return MANNERS[seed % len(MANNERS)]


@dataclass(slots=True)
class Jobs:
    """What tasks were given to do: for each job how many there were, by what they did."""

    made: list[tuple[str, int]] = field(default_factory=list)

    @property
    def works(self) -> set[str]:
        """What has been done by several tasks at once."""
        return {work for work, count in self.made if count > 1}


@contextmanager
def working(manner: Manner) -> Iterator[Jobs]:
    """The limits of a manner; tells what tasks did for queries meanwhile."""
    jobs, in_tasks = Jobs(), tasks.in_tasks

    def noted(session: Any, work: Callable[..., Any], shares: Sequence[Any]) -> list[Any]:
        found = in_tasks(session, work, shares)
        jobs.made.append((getattr(work, "func", work).__qualname__, len(found)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        if manner.has_tasks:
            patch.setattr(here, "HERE_ROWS", MOST_HERE)
            patch.setattr(inline, "MOST_ROWS", 0)
            patch.setattr(os, "cpu_count", lambda: MOST_TASKS)
        for module in (tasks, matching):
            patch.setattr(module, "in_tasks", noted)
        yield jobs
