"""The one thread that talks to the database, so that Ctrl-C never cuts a statement in half.

The main thread waits here. A first Ctrl-C asks the database to cancel and goes on waiting for the
statement to end in its own way; a third one gives up the process, which storage survives as it
survives a power cut. Spark, started in this thread, does not take over the handling of signals.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")

INTERRUPTED = 130
PATIENCE = 2


class CancelledError(Exception):
    """The statement ended because Ctrl-C asked it to."""


class Worker:
    """Runs calls one after the other, outside the main thread."""

    def __init__(self, warn: Callable[[str], None], give_up: Callable[[int], object] = os._exit) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="millstream-statement")
        self._warn = warn
        self._give_up = give_up

    def call(self, function: Callable[[], T], cancel: Callable[[], None] | None = None) -> T:
        """The function's result; `CancelledError` where it fails after Ctrl-C."""
        future = self._pool.submit(function)
        presses = 0
        while True:
            try:
                return self._outcome(future, presses > 0)
            except KeyboardInterrupt:
                presses += 1
                self._interrupt(presses, cancel)

    def _outcome(self, future: Future[T], cancelled: bool) -> T:
        if not cancelled:
            return future.result()
        try:
            return future.result()
        except Exception as error:
            raise CancelledError from error

    def _interrupt(self, presses: int, cancel: Callable[[], None] | None) -> None:
        if presses > PATIENCE:
            self._give_up(INTERRUPTED)
        elif presses == PATIENCE:
            self._warn("still stopping; press Ctrl-C once more to leave at once")
        elif cancel is not None:
            with suppress(MillstreamError):
                cancel()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
