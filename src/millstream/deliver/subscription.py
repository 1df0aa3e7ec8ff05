"""Deliveries of continuous queries, and those who wait for them.

A subscription holds a place, not results: deliveries are read from the catalogue when asked for, so a subscriber
that does not read costs nothing. One that falls behind what is kept is told so and cut off. Safe for many threads.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from millstream.catalog.queries import unpacked
from millstream.errors import Condition, StatementError
from millstream.schema import EPOCH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from datetime import datetime

    import pandas as pd
    import pyarrow as pa

    from millstream.catalog.queries import Delivered


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
    _data: bytes

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return unpacked(self._data)

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows as tuples."""
        table = self.to_arrow()
        columns = [c.to_pylist() for c in table.columns]
        return list(zip(*columns, strict=True)) if columns else [() for _ in range(table.num_rows)]

    def __repr__(self) -> str:
        return f"<Delivery {self.sequence} of {self.query} at {self.instant}>"


def delivery(query: str, stored: Delivered, *, is_integer_time: bool) -> Delivery:
    at = stored.instant if is_integer_time else EPOCH + timedelta(microseconds=stored.instant)
    return Delivery(query, at, stored.sequence, stored.snapshot_id, stored.skipped, stored.data)


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
        with self._changed:
            return self._changed.wait_for(lambda: self._version != seen, timeout)

    def listen(self, listener: Callable[[], None]) -> None:
        with self._changed:
            self._listeners.append(listener)

    def leave(self, listener: Callable[[], None]) -> None:
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)


class Subscription:
    """The deliveries of a query after a sequence number, as they come: iterate, or `async for`.

    Ends with the query's or the database's end. `close()` ends it from any thread.
    """

    def __init__(
        self,
        query: str,
        since: int,
        fetch: Callable[[int], list[Delivery] | None],
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

    def close(self) -> None:
        self._closed = True
        self._board.tell()

    def run(self, callback: Callable[[Delivery], None]) -> None:
        """Call back with every delivery, until the end."""
        for one in self:
            callback(one)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        while True:
            version = self._board.version
            found = self._next()
            if found is not None:
                return found
            if not self._board.wait(version, self._timeout):
                raise StopIteration

    def _next(self) -> Delivery | None:
        """The next delivery that is there; None if there is none yet."""
        if self._closed:
            raise StopIteration
        if not self._ready:
            fetched = self._fetch(self.sequence)
            if fetched is None:
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
            loop.call_soon_threadsafe(changed.set)

        self._board.listen(listener)
        try:
            while True:
                changed.clear()
                try:
                    found = self._next()
                except StopIteration:
                    return
                if found is not None:
                    yield found
                else:
                    await changed.wait()
        finally:
            self._board.leave(listener)


def _too_slow(query: str, last: int, first: int) -> StatementError:
    return StatementError(
        Condition.SUBSCRIBER_TOO_SLOW,
        f"the subscriber to {query!r} has fallen behind what is kept",
        detail=f"It has read up to delivery {last}; the oldest one kept is {first}.",
        hint=f"Subscribe again, with since={first - 1} to go on with what is left.",
    )
