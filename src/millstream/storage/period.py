"""A streaming table's historical period: what of it is visible, and the compartments it is stored in.

The content at stream time τ is the rows with T ≥ τ - hp; τ is the watermark. The period is cut into
`COMPARTMENTS` of equal width, aligned to multiples of it, plus the current one. A segment that lies in
one compartment goes with it, whole, as soon as all of the compartment is beyond the period; until
then reads leave older rows out (the soft window of the paper).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from millstream.catalog.files import BEFORE_ALL
from millstream.schema import instant
from millstream.storage.watermark import times_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    import pyarrow as pa
    from numpy.typing import NDArray

    from millstream.catalog.records import DataFile, StreamState, TableInfo

COMPARTMENTS = 10
MOST_RUNS = 4
"""More stretches than this in one batch stay together in one segment until upkeep sorts them apart."""


def stream_time(table: TableInfo, state: StreamState, now: datetime) -> int | None:
    """The watermark: the largest time seen minus the delay, what ADVANCE said, or the clock."""
    if table.time is None:
        return None
    return instant(now) if table.time.is_arrival else state.watermark(table.time.delay.amount)


def horizon(table: TableInfo, state: StreamState, now: datetime) -> int | None:
    """The oldest time that is still visible; None if everything is."""
    time = stream_time(table, state, now)
    return None if table.period is None or time is None else time - table.period.amount


def width(table: TableInfo) -> int | None:
    """How much time a compartment spans; None for a table that keeps everything."""
    return None if table.period is None else max(1, -(-table.period.amount // COMPARTMENTS))


def first_kept(table: TableInfo, oldest_visible: int) -> int:
    """The start of the compartment that holds the oldest visible time: everything before it may go."""
    size = width(table) or 1
    return max(oldest_visible // size * size, BEFORE_ALL)


def compartment(table: TableInfo, time: int) -> int:
    size = width(table)
    return 0 if size is None else time // size


def is_straddling(table: TableInfo, file: DataFile) -> bool:
    """Whether a file lies in several compartments."""
    if file.low is None or file.high is None:
        return False
    return compartment(table, file.low) != compartment(table, file.high)


def runs(table: TableInfo, data: pa.Table) -> Iterator[pa.Table]:
    """The rows, in order, cut where the compartment changes; whole if it changes too often.

    Row ids follow the order in which parts are committed, so new rows may be cut but not moved.
    """
    size = width(table)
    cuts = [] if size is None else _changes(_times(table, data) // size)
    if len(cuts) >= MOST_RUNS:
        cuts = []
    for start, end in zip([0, *cuts], [*cuts, data.num_rows], strict=True):
        yield data.slice(start, end - start)


def pieces(table: TableInfo, data: pa.Table, row_ids: pa.Array) -> Iterator[tuple[pa.Table, pa.Array]]:
    """The rows of each compartment, in time order (ties as they came), with their row ids."""
    times = _times(table, data)
    if bool(np.all(times[1:] >= times[:-1])):
        order = np.arange(len(times))
    else:
        order = np.argsort(times, kind="stable")
        data, row_ids = data.take(order), row_ids.take(order)
    size = width(table)
    cuts = [] if size is None else _changes(times[order] // size)
    for start, end in zip([0, *cuts], [*cuts, data.num_rows], strict=True):
        yield data.slice(start, end - start), row_ids.slice(start, end - start)


def _times(table: TableInfo, data: pa.Table) -> NDArray[np.int64]:
    assert table.time is not None
    return times_of(data.column(table.time.column))


def _changes(numbers: NDArray[np.int64]) -> list[int]:
    """Where a number differs from the one before."""
    return [int(i) + 1 for i in np.flatnonzero(np.diff(numbers))]
