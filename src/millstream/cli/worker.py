"""The one thread that talks to the database, so that Ctrl-C never cuts a statement in half.

The main thread waits here. A first Ctrl-C asks the database to cancel and goes on waiting for the
statement to end in its own way; a third one gives up the process, which storage survives as it
survives a power cut. Spark, started in this thread, does not take over the handling of signals.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
        presses = 0

        def pressed() -> None:
            nonlocal presses
            presses += 1
            self._interrupt(presses, cancel)

        with _ctrl_c_calls(pressed):
            future = self._pool.submit(function)
            wait([future])
        error = future.exception()
        if presses and error is not None:
            raise CancelledError from error
        return future.result()

    def _interrupt(self, presses: int, cancel: Callable[[], None] | None) -> None:
        if presses > PATIENCE:
            self._give_up(INTERRUPTED)
        elif presses == PATIENCE:
            self._warn("still stopping; press Ctrl-C once more to leave at once")
        # The second press cancels too: at the first, Spark may not have been there to hear it.
        if presses <= PATIENCE and cancel is not None:
            with suppress(MillstreamError):
                cancel()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


@contextmanager
def _ctrl_c_calls(pressed: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C call a function instead of raising `KeyboardInterrupt` wherever we happen to be."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: pressed())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
