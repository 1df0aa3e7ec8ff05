"""At any moment a continuous view equals its plain query over all rows inserted since it was created.

Each feed is one test of 50 views over shared streams; everything that is wrong in it is told together.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.law.feed import EXECUTORS, Run, only
from tests.law.grammar import a_feed
from tests.law.variants import VARIANTS, in_larger_batches
from tests.law.ways import IN_PARTITIONS, way_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database
    from tests.law.coverage import Coverage
    from tests.law.grammar import Feed
    from tests.law.ways import Way, Work

    Open = Callable[[], Database]

METAMORPHIC_SEED, METAMORPHIC_QUERIES = 1_000_012, 5
"""Its feed begins with the kernel in tasks; its variants go on with either executor."""


def check(feed: Feed, open_database: Open, coverage: Coverage, way: Way | None = None) -> Work:
    run = Run(feed, open_database, coverage, way=way)
    work = run.run()
    if not run.is_lawful:
        pytest.fail(run.report(), pytrace=False)
    return work


def test_views_equal_their_plain_queries(
    seed: int, open_database: Open, coverage: Coverage, views: list[int] | None
) -> None:
    feed = a_feed(seed)
    work = check(feed if views is None else only(feed, views), open_database, coverage)
    assert views is not None or way_of(seed).is_seen_in(work)


@pytest.mark.parametrize("variant", VARIANTS)
def test_how_rows_are_brought_changes_no_view(variant: str, open_database: Open, coverage: Coverage) -> None:
    feed = a_feed(METAMORPHIC_SEED, METAMORPHIC_QUERIES)
    work = check(VARIANTS[variant](feed, Random(variant)), open_database, coverage)
    assert work.most_tasks > 1
    assert work.executors == set(EXECUTORS)


def test_the_number_of_partitions_changes_no_view(open_database: Open, coverage: Coverage) -> None:
    feed = a_feed(METAMORPHIC_SEED + 1, METAMORPHIC_QUERIES)
    work = check(in_larger_batches(feed, Random("partitions")), open_database, coverage, IN_PARTITIONS)
    assert IN_PARTITIONS.is_seen_in(work)
