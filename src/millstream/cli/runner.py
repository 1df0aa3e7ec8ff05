"""Runs statements and says how it went: the life of one piece of SQL text on the command line.

A failure is printed, never raised; what comes back is an `Outcome`, whose value is the exit code.
Statements of one text run one after the other, each printed before the next begins.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from millstream.cli.printer import Format
from millstream.cli.worker import INTERRUPTED, CancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from millstream.cli.activity import Activity
    from millstream.cli.feed import Chunk
    from millstream.cli.printer import Printer
    from millstream.cli.worker import Worker
    from millstream.database import Database, ObjectInfo, Result


MOST_FETCHED = 100_000


class Outcome(IntEnum):
    """How a run ended; as an exit code."""

    OK = 0
    FAILED = 1
    CANCELLED = INTERRUPTED


@dataclass(frozen=True, slots=True)
class Answer:
    """What one statement gave: rows, or a status where `table` is None."""

    status: str
    table: pa.Table | None


class Runner:
    """Takes SQL text to the database and its answers to the printer."""

    def __init__(
        self,
        db: Database,
        worker: Worker,
        printer: Printer,
        activity: Activity,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.printer = printer
        self._db = db
        self._worker = worker
        self._activity = activity
        self._stopwatch = stopwatch

    def run(self, chunk: Chunk) -> Outcome:
        """Run every statement of the chunk, up to the first that fails."""
        try:
            self._run(chunk.text)
        except (CancelledError, KeyboardInterrupt):
            self.printer.note("cancelled")
            return Outcome.CANCELLED
        except BrokenPipeError:
            raise
        except Exception as error:
            self.printer.error(error, chunk.where)
            return Outcome.FAILED
        return Outcome.OK

    def objects(self) -> list[ObjectInfo]:
        return self._worker.call(self._db.objects)

    def _run(self, text: str) -> None:
        results = self._db.script(text)
        started = self._stopwatch()
        while (answer := self._next(results)) is not None:
            seconds = self._stopwatch() - started
            self._print(answer)
            self.printer.timing(seconds)
            started = self._stopwatch()

    def _next(self, results: Iterator[Result]) -> Answer | None:
        with self._activity.showing():
            return self._worker.call(lambda: self._next_answer(results), self._db.cancel)

    def _next_answer(self, results: Iterator[Result]) -> Answer | None:
        result = next(results, None)
        if result is None:
            return None
        return Answer(result.status, self._fetched(result) if result.is_query else None)

    def _fetched(self, result: Result) -> pa.Table:
        """All rows where all are printed; else no more than somebody could want counted."""
        settings = self.printer.settings
        if settings.format is not Format.TABLE or settings.max_rows is None:
            return result.to_arrow()
        table = result.head(MOST_FETCHED)
        if table.num_rows == MOST_FETCHED:
            self.printer.note(f"Only the first {MOST_FETCHED:,} rows were fetched; LIMIT or COPY … TO takes more.")
        return table

    def _print(self, answer: Answer) -> None:
        if answer.table is None:
            self.printer.status(answer.status)
        else:
            self.printer.rows(answer.table)


def run_all(chunks: Iterable[Chunk], run: Callable[[Chunk], Outcome], keep_going: bool) -> Outcome:
    """Run chunk after chunk; a failure ends it unless `keep_going`, Ctrl-C always does."""
    worst = Outcome.OK
    for chunk in chunks:
        outcome = run(chunk)
        worst = max(worst, outcome)
        if outcome is Outcome.CANCELLED or (outcome is Outcome.FAILED and not keep_going):
            break
    return worst
