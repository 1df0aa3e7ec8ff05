"""Rows of batches, found by the values of their columns that are to be equal to those of other rows.

Without such columns each row fits each. NULL is equal to nothing. Pairs come some at a time, as places in the
batches and among the other rows, in no order. The kernel looks them up, in the thread that calls: it hashes the
smaller side and looks for the rows of the larger one.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millstream.execute import kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Places = NDArray[np.int64]

MOST_PAIRS = 2_097_152
"""So many pairs are looked at together."""
MINE, THEIRS, PLACE = "mine", "theirs", "place"
_open = ExitStack()


class Lookup:
    """See the module's contract; some tables of batches are looked into as if they were one."""

    def __init__(self, batches: Sequence[pa.Table], columns: Sequence[str]) -> None:
        self._count = sum(b.num_rows for b in batches)
        self._columns = len(columns)
        self._mine = _keys(pa.concat_tables([b.select(columns) for b in batches])) if columns else None

    def pairs(self, rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Places, Places]]:
        """Those that are equal, the batches' columns to these of some rows, one by one."""
        if not self._count or not rows.num_rows:
            return iter(())
        if self._mine is None:
            return self._every(rows.num_rows)
        return self._equal(_keys(rows.select(columns)))

    def _every(self, others: int) -> Iterator[tuple[Places, Places]]:
        some = max(1, MOST_PAIRS // self._count)
        own = np.arange(self._count)
        for first in range(0, others, some):
            theirs = np.arange(first, min(others, first + some))
            yield np.tile(own, len(theirs)), np.repeat(theirs, len(own))

    def _equal(self, theirs: pa.Table) -> Iterator[tuple[Places, Places]]:
        same = " AND ".join(f"m.c{n} = t.c{n}" for n in range(self._columns))
        asked = f"SELECT m.{PLACE}, t.{PLACE} FROM {THEIRS} AS t JOIN {MINE} AS m ON {same}"
        with _connection().cursor() as cursor:
            cursor.register(MINE, self._mine)
            cursor.register(THEIRS, theirs)
            for found in cursor.execute(asked).to_arrow_reader(MOST_PAIRS):
                mine, others = (np.asarray(c.to_numpy(), np.int64) for c in found.columns)
                yield mine, others


@cache
def _connection() -> Any:
    """One DuckDB for the process; each look-up has a cursor and a thread of its own."""
    return _open.enter_context(kernel.connect({}))


def _keys(rows: pa.Table) -> pa.Table:
    """Values in forms that are equal just if they are, and where they stand."""
    columns = [_plain(c) for c in rows.columns]
    columns.append(pa.chunked_array([np.arange(rows.num_rows, dtype=np.int32)]))
    return pa.table(columns, [*(f"c{n}" for n in range(rows.num_columns)), PLACE])


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers of any size are equal to each other; times are numbers."""
    if pa.types.is_integer(values.type) or pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values
