"""Batches of a scheduled join: their rows, and how tasks get them.

A batch never changes. Many units look into it, in the driver and in Spark's tasks: these are sent no rows but the
name of a file, so that a batch is written once and read once by each worker, however many slices it has.
"""

from __future__ import annotations

import pickle
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millstream.storage import segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Places = NDArray[np.integer[Any]]

MOST_UNPACKED = 8
"""A worker keeps so many of the batches that it was sent last."""


@dataclass(frozen=True)
class Rows:
    """Rows of a stream, under names in lower case; `enter` is from when on they are in windows."""

    rows: pa.Table
    ids: Numbers
    times: Numbers
    enter: Numbers

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, kept: NDArray[np.bool_] | Numbers) -> Rows:
        places = np.flatnonzero(kept) if kept.dtype == bool else kept
        times = self.times[places]
        enter = times if self.enter is self.times else self.enter[places]
        return Rows(self.rows.take(pa.array(places)), self.ids[places], times, enter)

    def of(self, columns: Sequence[str]) -> Rows:
        """The same rows with some of their columns."""
        return replace(self, rows=self.rows.select(list(columns)))

    @property
    def bytes(self) -> int:
        enter = 0 if self.enter is self.times else self.enter.nbytes
        return int(self.rows.nbytes + self.ids.nbytes + self.times.nbytes + enter)

    @staticmethod
    def together(parts: Sequence[Rows]) -> Rows:
        times = np.concatenate([p.times for p in parts])
        is_plain = all(p.enter is p.times for p in parts)
        return Rows(
            pa.concat_tables([p.rows for p in parts]),
            np.concatenate([p.ids for p in parts]),
            times,
            times if is_plain else np.concatenate([p.enter for p in parts]),
        )


class Parcel:
    """The rows of a batch, which many units look into.

    Tasks are sent the name of a file, which is written when the first of them is sent and goes with the parcel; a
    worker that has read it keeps it for the next slices.
    """

    def __init__(self, rows: Rows, folder: Path | None = None) -> None:
        self.rows = rows
        self._folder = folder
        self._path: Path | None = None

    def __reduce__(self) -> tuple[object, ...]:
        if self._folder is None:
            return Parcel, (self.rows,)
        if self._path is None:
            self._path = self._folder / f"{uuid.uuid4().hex}.batch"
            weakref.finalize(self, self._path.unlink, missing_ok=True)
            with segment.storage_errors():
                self._path.write_bytes(pickle.dumps(self.rows, pickle.HIGHEST_PROTOCOL))
        return unpacked, (self._path,)


@lru_cache(MOST_UNPACKED)
def unpacked(path: Path) -> Parcel:
    """What was sent to a task; it has always the same to say."""
    with segment.storage_errors():
        return Parcel(pickle.loads(path.read_bytes()))
