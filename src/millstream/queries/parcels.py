"""Batches of a scheduled join: their rows, indexed by the columns that are to be equal, and how tasks get them.

A batch never changes. Many units look into it, in the driver and in Spark's tasks: these are sent no rows but the
name of a file, so that a batch is written once and read once by each worker, however many slices it has.
"""

from __future__ import annotations

import pickle
import uuid
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.storage import segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Places = NDArray[np.integer[Any]]

MOST_PAIRS = 2_097_152
"""So many pairs are looked at together."""
MOST_UNPACKED = 8
"""A worker keeps so many of the batches that it was sent last."""
NOBODY = -1


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


@dataclass(frozen=True)
class Index:
    """A batch by the values of its columns that are to be equal to others; without any, each row fits each.

    Combinations of values have numbers without gaps, made column by column.
    """

    keys: pa.Table
    """The columns, which are the batch's own."""
    firsts: tuple[Places, ...]
    """For each column where its different values stand first."""
    pairs: tuple[Numbers, ...]
    """For each column but the first: what there is of combinations so far with its values, in order."""
    starts: Places
    order: Places

    @staticmethod
    def of(rows: pa.Table, columns: Sequence[str]) -> Index:
        if not columns:
            return Index.of_any(rows.num_rows)
        keys = rows.select(columns)
        encoded = [_comparable(c).combine_chunks().dictionary_encode() for c in keys.columns]
        own, pairs = _places(encoded[0].indices), []
        for more in encoded[1:]:
            both = _paired(own, _places(more.indices), len(more.dictionary))
            known, places = np.unique(both[both >= 0], return_inverse=True)
            own = np.full(len(both), NOBODY, np.int64)
            own[both >= 0] = places
            pairs.append(known)
        order = np.argsort(own, kind="stable")
        order = order[np.searchsorted(own[order], 0) :].astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(np.bincount(own[order]))]).astype(np.int32)
        firsts = tuple(_first_places(_places(e.indices), len(e.dictionary)) for e in encoded)
        return Index(keys, firsts, tuple(pairs), starts, order)

    @staticmethod
    def of_any(rows: int) -> Index:
        """So many rows that fit whatever comes."""
        return Index(pa.table({}), (), (), np.array([0, rows]), np.arange(rows, dtype=np.int32))

    @property
    def bytes(self) -> int:
        """Without the columns, which are the batch's."""
        return sum(int(n.nbytes) for n in (*self.firsts, *self.pairs, self.starts, self.order))

    def probe(self, rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Places, Numbers]]:
        """The pairs that are equal, as places in the batch and among the rows; some at a time."""
        if not len(self.order):
            return
        own = self._combinations(rows, columns)
        fits = np.flatnonzero(own >= 0)
        low = self.starts[own[fits]]
        counts = (self.starts[own[fits] + 1] - low).astype(np.int64)
        ends = np.cumsum(counts)
        first = 0
        while first < len(fits):
            begun = int(ends[first] - counts[first])
            last = max(first + 1, int(np.searchsorted(ends, begun + MOST_PAIRS, "right")))
            some = slice(first, last)
            theirs = np.repeat(fits[some], counts[some])
            base = np.repeat(low[some] - (ends[some] - counts[some] - begun), counts[some])
            yield self.order[base + np.arange(len(theirs))], theirs
            first = last

    def _combinations(self, rows: pa.Table, columns: Sequence[str]) -> Numbers:
        """Which combination of values each row has; `NOBODY` where there is none like it, or one is NULL."""
        if not columns:
            return np.zeros(rows.num_rows, np.int64)
        found = [
            _places(pc.index_in(_comparable(rows.column(c)), value_set=_comparable(k.take(pa.array(f)))))
            for c, k, f in zip(columns, self.keys.columns, self.firsts, strict=True)
        ]
        own = found[0]
        for known, firsts, more in zip(self.pairs, self.firsts[1:], found[1:], strict=True):
            both = _paired(own, more, len(firsts))
            at = np.minimum(np.searchsorted(known, both), max(0, len(known) - 1))
            own = np.where(known[at] == both, at, NOBODY) if len(known) else np.full(len(both), NOBODY, np.int64)
        return own


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers of any size are equal to each other."""
    return values.cast(pa.int64()) if pa.types.is_integer(values.type) else values


def _first_places(codes: Numbers, count: int) -> Places:
    """Where each of so many codes stands first."""
    made = np.zeros(count, np.int32)
    backwards = np.flatnonzero(codes >= 0)[::-1]
    # What is written last stands.
    made[codes[backwards]] = backwards
    return made


def _places(found: pa.Array | pa.ChunkedArray) -> Numbers:
    return np.asarray(found.fill_null(NOBODY).to_numpy(zero_copy_only=False), np.int64)


def _paired(own: Numbers, more: Numbers, count: int) -> Numbers:
    """One number for two, the second of which is below a count."""
    return np.where((own < 0) | (more < 0), NOBODY, own * count + more)


class Parcel:
    """The rows of a batch and their index, which many units look into.

    Tasks are sent the name of a file, which is written when the first of them is sent and goes with the parcel; a
    worker that has read it keeps it for the next slices.
    """

    def __init__(self, rows: Rows, index: Index, folder: Path | None = None) -> None:
        self.rows = rows
        self.index = index
        self._folder = folder
        self._path: Path | None = None

    @property
    def bytes(self) -> int:
        return self.rows.bytes + self.index.bytes

    def __reduce__(self) -> tuple[object, ...]:
        if self._folder is None:
            return Parcel, (self.rows, self.index)
        if self._path is None:
            self._path = self._folder / f"{uuid.uuid4().hex}.batch"
            weakref.finalize(self, self._path.unlink, missing_ok=True)
            with segment.storage_errors():
                # The index's columns are those of the rows.
                what = self.rows, replace(self.index, keys=pa.table({})), self.index.keys.column_names
                self._path.write_bytes(pickle.dumps(what, pickle.HIGHEST_PROTOCOL))
        return unpacked, (self._path,)


@lru_cache(MOST_UNPACKED)
def unpacked(path: Path) -> Parcel:
    """What was sent to a task; it has always the same to say."""
    with segment.storage_errors():
        rows, index, columns = pickle.loads(path.read_bytes())
    return Parcel(rows, replace(index, keys=rows.rows.select(columns)))
