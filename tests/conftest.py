"""Fixtures shared by all tests, and the collection of `tests/sql/*.slt` as pytest items.

Spark starts once per run, when the first test asks for it. Every section of an `.slt` file is an item of
its own with its own database: `pytest tests/sql/joins.slt -k outer` works.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.slt.records import parse_script
from tests.slt.runner import SectionFailed, run_section
from tests.slt.spark import open_database, prepare_java, shared_spark, stop_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.clock import ManualClock
    from millstream.database import Database
    from tests.slt.records import Script, Section


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return shared_spark()


@pytest.fixture
def clock() -> ManualClock:
    from millstream.clock import ManualClock

    return ManualClock()


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "database"


@pytest.fixture
def db(database_path: Path, spark: SparkSession, clock: ManualClock) -> Iterator[Any]:
    """A fresh database on the shared Spark, with a clock that stands still and no background work."""
    import millstream

    with millstream.connect(str(database_path), spark=spark, clock=clock, background=False) as database:
        yield database


def pytest_configure() -> None:
    prepare_java()
    # A shell has what it starts in the background ignore Ctrl-C, which some tests press.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def opened(tmp_path: Path, spark: SparkSession, clock: ManualClock) -> Callable[[str], Database]:
    """Opens databases by name, each as often as need be."""
    import millstream

    return lambda name: millstream.connect(tmp_path / name, spark=spark, clock=clock, background=False)


def pytest_unconfigure() -> None:
    stop_spark()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".slt":
        return SqlFile.from_parent(parent, path=file_path)
    return None


class SqlFile(pytest.File):
    """An `.slt` file; its items are its sections."""

    def collect(self) -> Iterable[pytest.Item]:
        script = parse_script(self.path)
        for section in script.sections:
            yield SqlSection.from_parent(self, name=section.title, script=script, section=section)


class SqlSection(pytest.Item):
    """One section, run on a fresh database."""

    def __init__(self, *, script: Script, section: Section, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.script = script
        self.section = section

    def runtest(self) -> None:
        run_section(self.script, self.section, open_database)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, SectionFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.section.line - 1, f"{self.path.name}: {self.section.title}"
