"""Fixtures of the recovery tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.recovery.processes import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    started = Nursery()
    yield started
    started.close()
