"""What is delivered of an answer: all of it, what is new in it, or what has changed since the last.

Also the order of rows: as ORDER BY says; without it by arrival, and joins by the largest time, then the number of
the later row, then those of the others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.plan.standing import ROW_NUMBER, TIME
from millstream.rewrite.lift import RANK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from millstream.plan.standing import Answering

CHANGE = "_change"


def in_order(rows: pa.Table, answering: Answering) -> pa.Table:
    """The rows as they are delivered."""
    if rows.num_rows < 2:
        return rows
    if answering.is_ranked:
        return rows.take(np.argsort(_numbers(rows, RANK), kind="stable"))
    if not answering.rows:
        return rows
    times = np.stack([_numbers(rows, f"{TIME}{i}") for i in range(answering.rows)])
    ids = np.stack([_numbers(rows, f"{ROW_NUMBER}{i}") for i in range(answering.rows)])
    if answering.rows == 1:
        return rows.take(np.argsort(ids[0], kind="stable"))
    latest_first = np.lexsort((ids, times), axis=0)[::-1]
    ordered = np.take_along_axis(ids, latest_first, axis=0)
    # Rows of different streams may have the same numbers, and a stream joined with itself has two rows as two
    # pairs: the row that FROM has first decides.
    return rows.take(np.lexsort((*ids[::-1], *ordered[::-1], times.max(axis=0))))


def _numbers(rows: pa.Table, name: str) -> NDArray[np.int64]:
    column = rows.column(name)
    return (
        np.asarray(column.fill_null(-1).to_numpy(), np.int64)
        if column.null_count
        else np.asarray(column, np.int64)
    )


def _keys(rows: pa.Table) -> list[str]:
    """Rows as text that is the same for the same values, of which 0.0 and -0.0 are one."""
    columns = [(pc.add(c, 0.0) if pa.types.is_floating(c.type) else c).to_pylist() for c in rows.columns]
    return [repr(row) for row in zip(*columns, strict=True)] if columns else [""] * rows.num_rows


def _beyond(keys: Sequence[str], known: Counter[str]) -> list[int]:
    """The places of the rows that there are more of than known."""
    left, places = known.copy(), []
    for place, key in enumerate(keys):
        if left[key] > 0:
            left[key] -= 1
        else:
            places.append(place)
    return places


def _taken(rows: pa.Table, places: list[int]) -> pa.Table:
    return rows.take(pa.array(places, pa.int64()))


def new_rows(answer: pa.Table, last: pa.Table | None) -> pa.Table:
    """The rows of an answer that the last one had not, as multisets."""
    if last is None:
        return answer
    return _taken(answer, _beyond(_keys(answer), Counter(_keys(last))))


def changes(answer: pa.Table, last: pa.Table | None) -> pa.Table:
    """The rows that went, marked `-`, then those that came, marked `+`."""
    before = answer.slice(0, 0) if last is None else last
    went = _taken(before, _beyond(_keys(before), Counter(_keys(answer))))
    came = new_rows(answer, before)
    marks = pa.array(["-"] * went.num_rows + ["+"] * came.num_rows, pa.string())
    return pa.concat_tables([went, came]).add_column(0, CHANGE, marks)
