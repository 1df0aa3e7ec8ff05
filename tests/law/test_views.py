"""At any moment a continuous view equals its plain query over all rows inserted since it was created.

Each feed is one test of 50 views over shared streams; everything that is wrong in it is told together.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.law.feed import Run, only
from tests.law.grammar import a_feed
from tests.law.variants import VARIANTS, as_they_come

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database
    from tests.law.coverage import Coverage
    from tests.law.grammar import Feed

    Open = Callable[[], Database]

METAMORPHIC_SEED, METAMORPHIC_QUERIES = 1_000_003, 5


def check(feed: Feed, open_database: Open, coverage: Coverage) -> None:
    run = Run(feed, open_database, coverage)
    run.run()
    if not run.is_lawful:
        pytest.fail(run.report(), pytrace=False)


def test_views_equal_their_plain_queries(
    seed: int, open_database: Open, coverage: Coverage, views: list[int] | None
) -> None:
    feed = a_feed(seed)
    check(feed if views is None else only(feed, views), open_database, coverage)


@pytest.mark.parametrize("variant", VARIANTS)
def test_how_rows_are_brought_changes_no_view(variant: str, open_database: Open, coverage: Coverage) -> None:
    feed = a_feed(METAMORPHIC_SEED, METAMORPHIC_QUERIES)
    check(VARIANTS[variant](feed, Random(variant)), open_database, coverage)


def test_the_number_of_partitions_changes_no_view(open_database: Open, coverage: Coverage) -> None:
    def opened() -> Database:
        """A database has a session of its own, which takes over no settings of the one that it was given."""
        db = open_database()
        db._engine.spark.session().conf.set("spark.sql.shuffle.partitions", "7")
        return db

    check(as_they_come(a_feed(METAMORPHIC_SEED, METAMORPHIC_QUERIES)), opened, coverage)
