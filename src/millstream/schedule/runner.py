"""A thread that steps a net: woken when tokens come, or when the clock reaches the next due time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.schedule.net import Net


class Runner:
    """Runs a net in the background until stopped."""

    def __init__(self, net: Net, clock: Clock) -> None:
        self._net = net
        self._clock = clock
        self._wake = threading.Condition()
        self._woken = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="millstream-scheduler", daemon=True)
        net.changed = self._tell
        self._thread.start()

    def _tell(self) -> None:
        with self._wake:
            self._woken = True
            self._wake.notify()

    def _run(self) -> None:
        while self._wait():
            self._net.step()

    def _wait(self) -> bool:
        """Wait for tokens, for the next due time, or for the end; False at the end."""
        with self._wake:
            if not (self._woken or self._stopped):
                self._wake.wait(self._seconds_to_next())
            self._woken = False
            return not self._stopped

    def _seconds_to_next(self) -> float | None:
        due = self._net.next_due()
        return None if due is None else max(0.01, (due - self._clock.now()).total_seconds())

    def stop(self) -> None:
        """Let the action in progress end, then end the thread."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()
