"""State modules (SteMs): the rows of a stream that joins may still need, once for all queries, indexed as asked.

A SteM takes rows in, is probed with values of an attribute, and gives rows up when no window holds them any more.
Which attributes it has an index for is a matter of who probes it; an index is built once and grows with the rows.
Joins of any number of streams are made by probing one SteM after the other with what was found so far; what was
found is kept nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

LONG_AGO = -(2**62)


class TooManyError(Exception):
    """A probe would find more rows than it may."""


@dataclass
class Words:
    """Numbers for text, the same wherever it stands."""

    known: dict[str, int] = field(default_factory=dict)

    def numbers(self, values: pa.ChunkedArray) -> Numbers:
        encoded = values.combine_chunks().dictionary_encode()
        own = [self.known.setdefault(w, len(self.known)) for w in encoded.dictionary.to_pylist()]
        places = encoded.indices.fill_null(len(own)).to_numpy(zero_copy_only=False)
        return np.asarray(np.array([*own, -1], np.int64)[places])


@dataclass(frozen=True)
class Keys:
    """Values of an attribute as numbers, which are equal just if the values are; NULL equals nothing."""

    numbers: Numbers
    known: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, places: Numbers | NDArray[np.bool_]) -> Keys:
        return Keys(self.numbers[places], self.known[places])

    def and_then(self, more: Keys) -> Keys:
        return Keys(np.concatenate([self.numbers, more.numbers]), np.concatenate([self.known, more.known]))

    def equal(self, other: Keys) -> NDArray[np.bool_]:
        """Where both have the same value."""
        return np.asarray((self.numbers == other.numbers) & self.known & other.known)


def keys_of(values: pa.ChunkedArray, words: Words) -> Keys:
    """The keys of values of a type that has one form."""
    known = np.asarray(values.is_valid().to_numpy(), np.bool_)
    if pa.types.is_string(values.type):
        return Keys(words.numbers(values), known)
    kind = values.type
    whole = values.cast(pa.int32()) if pa.types.is_date32(kind) or pa.types.is_boolean(kind) else values
    return Keys(np.asarray(whole.cast(pa.int64()).fill_null(0).to_numpy(), np.int64), known)


@dataclass(frozen=True)
class Run:
    """Rows in the order of one attribute."""

    keys: Numbers
    places: Numbers

    @staticmethod
    def of(keys: Keys, first: int) -> Run:
        places = np.flatnonzero(keys.known)
        order = np.argsort(keys.numbers[places], kind="stable")
        return Run(keys.numbers[places][order], places[order] + first)

    def and_then(self, more: Run) -> Run:
        keys = np.concatenate([self.keys, more.keys])
        order = np.argsort(keys, kind="stable")
        return Run(keys[order], np.concatenate([self.places, more.places])[order])

    def bounds(self, keys: Keys) -> tuple[Numbers, Numbers]:
        """Where the rows with each of some values begin, and how many there are."""
        low = np.searchsorted(self.keys, keys.numbers, "left")
        counts = np.searchsorted(self.keys, keys.numbers, "right") - low
        return low, np.where(keys.known, counts, 0)

    def pairs(self, low: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
        probing = np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum(counts)
        found = np.repeat(low - ends + counts, counts) + np.arange(len(probing))
        return probing, self.places[found]


class Index:
    """The rows of a SteM by one attribute: sorted runs, each of less than half as many rows as the one before."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._covered = 0

    def cover(self, keys: Keys) -> None:
        """Take in the rows that have come since."""
        if self._covered == len(keys):
            return
        self._runs.append(Run.of(keys.at(np.arange(self._covered, len(keys))), self._covered))
        self._covered = len(keys)
        while len(self._runs) > 1 and len(self._runs[-2].keys) < 2 * len(self._runs[-1].keys):
            last = self._runs.pop()
            self._runs[-1] = self._runs[-1].and_then(last)

    def probe(self, keys: Keys, most: int) -> tuple[Numbers, Numbers]:
        """The rows with equal values, as pairs of a key's place and a row's."""
        bounds = [run.bounds(keys) for run in self._runs]
        if sum(int(counts.sum()) for _, counts in bounds) > most:
            raise TooManyError
        found = [run.pairs(*own) for run, own in zip(self._runs, bounds, strict=True)]
        none = np.empty(0, np.int64)
        return (
            np.concatenate([none, *(probing for probing, _ in found)]),
            np.concatenate([none, *(rows for _, rows in found)]),
        )


class SteM:
    """See the module's contract. Rows have a number, a time, and the time from which on they are in windows."""

    def __init__(self, schema: pa.Schema, words: Words, since: int = 0) -> None:
        self._words = words
        self.since = self.upto = since
        """It was given all rows between these numbers."""
        self.lost = LONG_AGO
        """The largest time of the rows that it has given up."""
        self.rows: pa.Table = schema.empty_table()
        self.ids = self.times = self.enter = np.empty(0, np.int64)
        self._keys: dict[str, Keys] = {}
        self._indexes: dict[str, Index] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def insert(self, rows: pa.Table, ids: Numbers, times: Numbers, enter: Numbers, upto: int) -> None:
        """Take in rows that have come; it has been given all below `upto` then."""
        self.upto = upto
        self.rows = pa.concat_tables([self.rows, rows])
        self.ids = np.concatenate([self.ids, ids])
        self.times = np.concatenate([self.times, times])
        self.enter = np.concatenate([self.enter, enter])
        for name, known in self._keys.items():
            self._keys[name] = known.and_then(keys_of(rows.column(name), self._words))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Give all other rows up."""
        self.lost = max(self.lost, int(self.times[~kept].max(initial=LONG_AGO)))
        self.rows = self.rows.filter(pa.array(kept)).combine_chunks()
        self.ids, self.times, self.enter = self.ids[kept], self.times[kept], self.enter[kept]
        self._keys = {name: known.at(kept) for name, known in self._keys.items()}
        self._indexes.clear()

    def rename(self, words: Words) -> None:
        """Number text anew."""
        self._words = words
        self._keys.clear()
        self._indexes.clear()

    def keys(self, column: str) -> Keys:
        """The values of an attribute, as numbers."""
        if column not in self._keys:
            self._keys[column] = keys_of(self.rows.column(column), self._words)
        return self._keys[column]

    def probe(self, column: str, keys: Keys, most: int) -> tuple[Numbers, Numbers]:
        """The rows whose attribute equals some values, as pairs of a value's place and a row's."""
        index = self._indexes.setdefault(column, Index())
        index.cover(self.keys(column))
        return index.probe(keys, most)
