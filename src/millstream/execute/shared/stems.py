"""State modules (SteMs): the rows of a stream that joins may still need, once for all queries, indexed as asked.

A SteM takes rows in, is probed with values of an attribute, and gives rows up when no window holds them any more.
Which attributes it has an index for is a matter of who probes it. Joins of any number of streams are made by
probing one SteM after the other with what was found so far; what was found is kept nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

NOTHING = np.iinfo(np.int64).min
"""The key of NULL, which equals nothing."""


@dataclass
class Words:
    """Numbers for text, the same wherever it stands."""

    known: dict[str, int] = field(default_factory=dict)

    def numbers(self, values: pa.ChunkedArray) -> Numbers:
        encoded = values.combine_chunks().dictionary_encode()
        own = [self.known.setdefault(w, len(self.known)) for w in encoded.dictionary.to_pylist()]
        places = encoded.indices.fill_null(len(own)).to_numpy(zero_copy_only=False)
        return np.asarray(np.array([*own, NOTHING], np.int64)[places])


def keys_of(values: pa.ChunkedArray, words: Words) -> Numbers:
    """Values of a type that has one form as numbers that are equal just if the values are."""
    if pa.types.is_string(values.type):
        return words.numbers(values)
    kind = values.type
    whole = values.cast(pa.int32()) if pa.types.is_date32(kind) or pa.types.is_boolean(kind) else values
    numbers = whole.cast(pa.int64())
    return np.asarray(numbers.fill_null(NOTHING).to_numpy(), np.int64)


@dataclass(frozen=True)
class Index:
    """The rows of a SteM in the order of one attribute."""

    keys: Numbers
    places: Numbers

    @staticmethod
    def of(keys: Numbers) -> Index:
        order = np.argsort(keys, kind="stable")
        first = int(np.searchsorted(keys[order], NOTHING, "right"))
        return Index(keys[order][first:], order[first:])

    def probe(self, keys: Numbers) -> tuple[Numbers, Numbers]:
        """The rows with equal values, as pairs of a key's place and a row's."""
        low, high = np.searchsorted(self.keys, keys, "left"), np.searchsorted(self.keys, keys, "right")
        counts = high - low
        probing = np.repeat(np.arange(len(keys)), counts)
        ends = np.cumsum(counts)
        found = np.repeat(low - ends + counts, counts) + np.arange(len(probing))
        return probing, self.places[found]


class SteM:
    """See the module's contract. Rows have a number, a time, and the time from which on they are in windows."""

    def __init__(self, schema: pa.Schema, words: Words, since: int = 0) -> None:
        self._words = words
        self.since = self.upto = since
        """It has the rows between these numbers, but for those that were given up."""
        self.rows: pa.Table = schema.empty_table()
        self.ids = self.times = self.enter = np.empty(0, np.int64)
        self._keys: dict[str, Numbers] = {}
        self._indexes: dict[str, Index] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def insert(self, rows: pa.Table, ids: Numbers, times: Numbers, enter: Numbers, upto: int) -> None:
        """Take in rows that have come; it has all below `upto` then."""
        self.upto = upto
        self.rows = pa.concat_tables([self.rows, rows])
        self.ids = np.concatenate([self.ids, ids])
        self.times = np.concatenate([self.times, times])
        self.enter = np.concatenate([self.enter, enter])
        for name, known in self._keys.items():
            self._keys[name] = np.concatenate([known, keys_of(rows.column(name), self._words)])
        self._indexes.clear()

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Give all other rows up."""
        self.rows = self.rows.filter(pa.array(kept)).combine_chunks()
        self.ids, self.times, self.enter = self.ids[kept], self.times[kept], self.enter[kept]
        self.since = int(self.ids.min(initial=self.upto))
        self._keys = {name: known[kept] for name, known in self._keys.items()}
        self._indexes.clear()

    def keys(self, column: str) -> Numbers:
        """The values of an attribute, as numbers."""
        if column not in self._keys:
            self._keys[column] = keys_of(self.rows.column(column), self._words)
        return self._keys[column]

    def probe(self, column: str, keys: Numbers) -> tuple[Numbers, Numbers]:
        """The rows whose attribute equals some values, as pairs of a value's place and a row's."""
        if column not in self._indexes:
            self._indexes[column] = Index.of(self.keys(column))
        return self._indexes[column].probe(keys)

    @property
    def attributes(self) -> list[str]:
        """The attributes that have been probed."""
        return sorted(self._keys)
