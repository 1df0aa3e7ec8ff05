"""Fixtures of the tests with a foreign reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millstream.database import Database


@pytest.fixture
def plain(database_path: Path) -> Iterator[Database]:
    """A database without Spark."""
    with millstream.connect(database_path, clock=ManualClock(), background=False) as database:
        yield database
