"""Deliveries of continuous queries, and those who wait for them.

A subscription holds a place, not results: deliveries are read from the catalogue when asked for, so a subscriber
that does not read costs nothing. One that falls behind what is kept is told so and cut off. An error in a callback
ends its subscription, and whoever closes it or waits for it is given the error. Safe for many threads.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.errors import Condition, MillstreamError, StatementError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from datetime import datetime

    import pandas as pd
    import pyarrow as pa

LOOK_EVERY = 1.0
"""So many seconds pass before a process that only reads looks again for what another one has delivered."""
T = TypeVar("T")
CLOSED = "the database was closed"


@dataclass(frozen=True)
class Delivery:
    """What a continuous query gave at one instant.

    `skipped` counts the instants with empty windows left out just before; `snapshot` is the version of the
    database that answered.
    """

    query: str
    instant: int | datetime
    sequence: int
    snapshot: int
    skipped: int
    _rows: Callable[[], pa.Table] = field(repr=False, compare=False)

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._rows()

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows as tuples."""
        table = self.to_arrow()
        columns = [c.to_pylist() for c in table.columns]
        return list(zip(*columns, strict=True)) if columns else [() for _ in range(table.num_rows)]

    def __repr__(self) -> str:
        return f"<Delivery {self.sequence} of {self.query} at {self.instant}>"


class Board:
    """Tells those who wait that a query has delivered, or has ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._listeners: list[Callable[[], None]] = []

    @property
    def version(self) -> int:
        return self._version

    def tell(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def wait(self, seen: int, timeout: float | None) -> bool:
        """Wait until something has changed since a version; False if the time is over."""
        return bool(self.until(lambda: self._version != seen, timeout))

    def until(self, look: Callable[[], T], timeout: float | None) -> T:
        """Look now and at every change, until something is found; what was seen last if the time is over."""
        with self._changed:
            return self._changed.wait_for(look, timeout)

    def listen(self, listener: Callable[[], None]) -> None:
        with self._changed:
            self._listeners.append(listener)

    def leave(self, listener: Callable[[], None]) -> None:
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)


class Subscription:
    """The deliveries of a query after a sequence number, as they come: iterate, or `async for`.

    Ends with the query's or the database's end, or if nothing comes for `timeout` seconds; `reason` then says
    which. `close()` ends it from any thread.
    """

    def __init__(
        self,
        query: str,
        since: int,
        fetch: Callable[[int], list[Delivery] | str],
        board: Board,
        timeout: float | None = None,
    ) -> None:
        self.query = query
        self.sequence = since
        """The number of the last delivery given."""
        self._fetch = fetch
        self._board = board
        self._timeout = timeout
        self._ready: list[Delivery] = []
        self._closed = False
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        """What has ended a subscription with a callback, if it was an error."""
        self.reason: str | None = None
        """Why it has ended, once it has."""

    def close(self) -> None:
        """End it; raises what a callback has raised, or what has ended the query."""
        self._end("the subscription was closed")
        if self.error is not None:
            raise self.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until a callback has been given everything; False if the time is over. Raises as `close` does."""
        if self._thread is not None:
            self._thread.join(timeout)
        if self.error is not None:
            raise self.error
        return self._thread is None or not self._thread.is_alive()

    def start(self, callback: Callable[[Delivery], None]) -> None:
        """Call back with every delivery, from a thread of its own, until the end or an error."""
        name = f"millstream-{self.query}"
        self._thread = threading.Thread(target=self._run, args=(callback,), name=name, daemon=True)
        self._thread.start()

    def _run(self, callback: Callable[[Delivery], None]) -> None:
        try:
            for one in self:
                callback(one)
        except BaseException as error:
            self.error = error
            self._end(str(error))
            raise

    def _end(self, reason: str) -> None:
        self._closed = True
        self.reason = self.reason or reason
        self._board.tell()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        found = self._board.until(self._next, self._timeout)
        if found is None:
            self._note_silence()
            raise StopIteration
        return found

    def _note_silence(self) -> None:
        self.reason = self.reason or f"nothing has come for {self._timeout} seconds"

    def _next(self) -> Delivery | None:
        """The next delivery that is there; None if there is none yet."""
        if self._closed:
            raise StopIteration
        if not self._ready:
            fetched = self._fetch(self.sequence)
            if isinstance(fetched, str):
                self.reason = self.reason or fetched
                raise StopIteration
            self._ready = fetched
            if fetched and fetched[0].sequence > self.sequence + 1:
                self._closed = True
                raise _too_slow(self.query, self.sequence, fetched[0].sequence)
        if not self._ready:
            return None
        found = self._ready.pop(0)
        self.sequence = found.sequence
        return found

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:
                # The loop was closed before the iterator was: nobody waits any more.
                self._board.leave(listener)

        self._board.listen(listener)
        try:
            while (found := await self._awaited(changed)) is not None:
                yield found
        finally:
            self._board.leave(listener)

    async def _awaited(self, changed: asyncio.Event) -> Delivery | None:
        """The next delivery; None at the end."""
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    changed.clear()
                    found = self._next()
                    if found is not None:
                        return found
                    await changed.wait()
        except TimeoutError:
            self._note_silence()
            return None
        except StopIteration:
            return None


class Watch:
    """Tells a board of what another process commits, as nobody else does: looks for a new version every second."""

    def __init__(self, board: Board, version: Callable[[], int]) -> None:
        self._board = board
        self._version = version
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        seen: int | None = None
        while not self._stopped.wait(LOOK_EVERY):
            try:
                now = self._version()
            except MillstreamError:
                # Whoever waits will look, and meet the error.
                now = None
            if now is None or now != seen:
                self._board.tell()
            seen = now

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _too_slow(query: str, last: int, first: int) -> StatementError:
    return StatementError(
        Condition.SUBSCRIBER_TOO_SLOW,
        f"the subscriber to {query!r} has fallen behind what is kept",
        detail=f"It has read up to delivery {last}; the oldest one kept is {first}.",
        hint=f"Subscribe again, with since={first - 1} to go on with what is left.",
    )
