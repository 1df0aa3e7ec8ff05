"""Every delivery of a continuous query equals its plain query over the rows in its windows.

Each feed is one test of 50 queries over shared streams; everything that is wrong in it is told together. Then one
small feed in other ways, which no query may tell apart.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from millstream.queries import tasks
from tests.law.windows.feed import Run, only
from tests.law.windows.manners import manner_of
from tests.law.windows.steps import a_feed
from tests.law.windows.variants import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database
    from tests.law.windows.coverage import Coverage
    from tests.law.windows.steps import Feed

    Open = Callable[[], Database]

METAMORPHIC_SEED, METAMORPHIC_QUERIES, METAMORPHIC_INSERTS = 1_000_003, 8, 15


def check(feed: Feed, open_database: Open, coverage: Coverage) -> Run:
    run = Run(feed, open_database, coverage)
    run.run()
    if not run.is_lawful:
        pytest.fail(run.report(), pytrace=False)
    return run


def test_queries_equal_their_plain_queries(
    seed: int, inserts: int, open_database: Open, window_coverage: Coverage, views: list[int] | None
) -> None:
    feed = a_feed(seed, length=inserts)
    run = check(feed if views is None else only(feed, views), open_database, window_coverage)
    if manner_of(seed).has_tasks and views is None:
        assert tasks._run.__qualname__ in run.jobs.works


@pytest.mark.parametrize("variant", VARIANTS)
def test_how_a_feed_runs_changes_no_delivery(variant: str, open_database: Open, window_coverage: Coverage) -> None:
    feed = a_feed(METAMORPHIC_SEED, METAMORPHIC_QUERIES, METAMORPHIC_INSERTS)
    check(VARIANTS[variant](feed, Random(variant)), open_database, window_coverage)
