"""A stream's time, row by row: what an insert does to the watermark and which of its rows are late.

A row is late if its time is below the watermark that the rows before it made, one by one: how
inserts are cut into batches changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from millstream.catalog.records import StreamState

NEVER = np.iinfo(np.int64).min


def times_of(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A time column without nulls as integers: microseconds, or the number itself."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return np.asarray(column.cast(pa.int64()).to_numpy(), dtype=np.int64)


def after_rows(state: StreamState, delay: int, times: NDArray[np.int64], *, arrival: bool) -> StreamState:
    """The state after rows with these times, in this order."""
    received = state.received_rows + len(times)
    if not len(times):
        return state
    if arrival:
        return replace(state, received_rows=received, max_time=_later(state.max_time, int(times.max())))
    before = np.empty(len(times), dtype=np.int64)
    before[0] = NEVER if state.max_time is None else state.max_time
    np.maximum.accumulate(np.concatenate([before[:1], times[:-1]]), out=before)
    marks = np.where(before < NEVER + delay, NEVER, before - delay)
    if state.advanced_to is not None:
        marks = np.maximum(marks, state.advanced_to)
    late = int(np.count_nonzero(times < marks))
    return replace(
        state,
        max_time=_later(state.max_time, int(times.max())),
        late_rows=state.late_rows + late,
        received_rows=received,
    )


def _later(known: int | None, new: int) -> int:
    return new if known is None else max(known, new)
