"""What is going on while a statement runs: a spinner, or a bar for work that reports its progress.

Shown on stderr, only on a terminal and only when a statement takes long enough to be noticed; gone
when it ends. `report` is the callback that `millstream.connect(progress=…)` takes and may be called
from any thread.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
from rich.text import Text

from millstream.deliver.render import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, RenderableType

    from millstream.database import Progress as Report

NOTICEABLE = 0.3


class Activity:
    """Shows one running statement at a time. `label` names work that reports nothing."""

    def __init__(
        self, console: Console, label: Callable[[], str] = lambda: "running", delay: float = NOTICEABLE
    ) -> None:
        self.label = label
        self._console = console
        self._delay = delay
        self._shown: _Shown | None = None

    def report(self, report: Report) -> None:
        if self._shown is not None:
            self._shown.update(report)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show activity while the block runs."""
        if not self._console.is_terminal:
            yield
            return
        self._shown = _Shown(self._console, lambda: self.label())
        timer = threading.Timer(self._delay, self._shown.start)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            self._shown.stop()
            self._shown = None


class _Shown:
    """One statement's display."""

    def __init__(self, console: Console, label: Callable[[], str]) -> None:
        columns = (SpinnerColumn(), _Label(label), _Bar(bar_width=30), _Count(), TimeElapsedColumn())
        self._display = Progress(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._display.add_task("", total=None, unit="")
        self._stage = ""
        self.start = self._display.start
        self.stop = self._display.stop

    def update(self, report: Report) -> None:
        if report.done == report.total:
            self._begin("")
            return
        if report.stage != self._stage:
            self._begin(report.stage)
        self._display.update(self._task, completed=report.done, total=report.total, unit=report.unit)

    def _begin(self, stage: str) -> None:
        # A task cannot go back to an unknown total, so every stage gets a new one.
        self._display.remove_task(self._task)
        self._stage, self._task = stage, self._display.add_task(printable(stage), total=None, unit="")


class _Label(ProgressColumn):
    def __init__(self, label: Callable[[], str]) -> None:
        super().__init__()
        self._label = label

    def render(self, task: Task) -> Text:
        return Text(f"{task.description or self._label()}…")


class _Bar(BarColumn):
    def render(self, task: Task) -> RenderableType:  # type: ignore[override]
        return super().render(task) if task.total else Text()


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.completed and not task.total:
            return Text()
        done, unit = f"{task.completed:,.0f}", task.fields["unit"]
        return Text(f"{done} of {task.total:,.0f} {unit}" if task.total else f"{done} {unit}", style="dim")
