"""The coverage of the law of continuous queries, printed at the end; its options are those of `tests/law`.

pytest tests/law/windows                     300 cases in six feeds, the same each time
pytest tests/law/windows --cases 1000        20 feeds
pytest tests/law/windows --first-seed 100    other feeds
pytest tests/law/windows --inserts 45        longer feeds, as in `make law`
pytest tests/law/windows --view 17           one query of each feed alone
"""

from __future__ import annotations

import pytest

from tests.law.windows.coverage import Coverage

COVERAGE = pytest.StashKey[Coverage]()
INSERTS = 30
"""In `make test`."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(COVERAGE, None)
    if found is not None and found.cases:
        terminalreporter.section("the law of continuous queries: coverage")
        for line in found.lines():
            terminalreporter.write_line(line)


@pytest.fixture
def window_coverage(request: pytest.FixtureRequest) -> Coverage:
    return request.config.stash.setdefault(COVERAGE, Coverage())


@pytest.fixture
def inserts(request: pytest.FixtureRequest) -> int:
    """How long each feed is."""
    found: int = request.config.getoption("inserts", None) or INSERTS
    return found
