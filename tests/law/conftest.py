"""Options of the law tests, how many feeds run, and the coverage table at the end.

    pytest tests/law                     300 cases in six feeds, the same each time
    pytest tests/law --cases 2000        40 feeds
    pytest tests/law --first-seed 100    other feeds
    pytest tests/law --view 17           one view of each feed alone

`MILLSTREAM_LAW_CASES` in the environment stands for `--cases`, for runs that do not name this directory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.law.coverage import Coverage
from tests.law.grammar import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.clock import ManualClock
    from millstream.database import Database

CASES = 300
"""In `make test`; `make law` runs 2,000."""
COVERAGE = pytest.StashKey[Coverage]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("law", "the law of continuous views")
    group.addoption("--cases", type=int, help=f"how many cases to run, {QUERIES} in a feed")
    group.addoption("--first-seed", type=int, default=0, help="the seed of the first feed")
    group.addoption("--inserts", type=int, help="how many inserts a feed of continuous queries has")
    group.addoption("--planted", action="store_true", help="run the tests with bugs planted on purpose, too")
    group.addoption("--view", type=int, action="append", help="run this view of each feed alone; may be repeated")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COVERAGE] = Coverage()
    config.addinivalue_line("markers", "planted: has a bug planted on purpose, which must be found")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("planted", False):
        return
    planted = [i for i in items if i.get_closest_marker("planted") is not None]
    if planted:
        config.hook.pytest_deselected(items=planted)
        items[:] = [i for i in items if i not in planted]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        config = metafunc.config
        cases = config.getoption("cases", None) or int(os.environ.get("MILLSTREAM_LAW_CASES", CASES))
        first = config.getoption("first_seed", 0)
        metafunc.parametrize("seed", range(first, first + max(1, -(-cases // QUERIES))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(COVERAGE, None)
    if found is not None and found.cases:
        terminalreporter.section("the law of continuous views: coverage")
        for line in found.lines():
            terminalreporter.write_line(line)


@pytest.fixture
def coverage(request: pytest.FixtureRequest) -> Coverage:
    return request.config.stash.setdefault(COVERAGE, Coverage())


@pytest.fixture
def views(request: pytest.FixtureRequest) -> list[int] | None:
    """The views asked for; None means all."""
    found: list[int] | None = request.config.getoption("view", None)
    return found


@pytest.fixture
def open_database(database_path: Path, spark: SparkSession, clock: ManualClock) -> Callable[[], Database]:
    """Opens the test's database, again and again if need be."""
    import millstream

    return lambda: millstream.connect(str(database_path), spark=spark, clock=clock, background=False)
