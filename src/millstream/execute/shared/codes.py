"""Where values lie among sorted constants: 2i + 1 if a value equals the ith, 2i if it lies before it.

There are five ways to find that out, each the fastest where it is taken (`bench sharing --only filters`):

    Alike    no constants: all values are alike, of whatever type
    Direct   numbers, constants not far apart: a table with the code of every value between them
    Hashed   numbers far apart that are only compared for being equal: a hash table of the constants
    Words    text: a hash table of the constants, looked up once for each word of a batch
    Sorted   everything else: binary search

Where all comparisons are for being equal, what equals no constant is all the same, and may have any even code.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

MOST_DIRECT = 1 << 20
"""A table has so many values at most: 4 MB."""
LEAST_HASHED = 256
"""Among fewer constants a binary search is as fast as a hash table."""
FAR = 1 << 62


class Codes(Protocol):
    """See the module's contract; NULLs have any code."""

    def of(self, values: pa.ChunkedArray) -> Numbers: ...


def codes_among(constants: Sequence[Any], kind: pa.DataType, *, is_equality: bool) -> Codes:
    """The fastest way for constants of a type; `is_equality` if values are only compared for being equal."""
    if not constants:
        return Alike()
    if pa.types.is_string(kind):
        return Words(constants, is_equality)
    if pa.types.is_float64(kind):
        return Sorted(np.array(constants, np.float64), kind)
    numbers = np.array(constants, np.int64)
    if numbers[0] > -FAR and numbers[-1] < FAR and numbers[-1] - numbers[0] < MOST_DIRECT:
        return Direct(numbers, kind)
    if is_equality and len(numbers) >= LEAST_HASHED:
        return Hashed(numbers, kind)
    return Sorted(numbers, kind)


class Alike:
    """Without looking."""

    def of(self, values: pa.ChunkedArray) -> Numbers:
        return np.zeros(len(values), np.int64)


@dataclass(frozen=True)
class Sorted:
    """By binary search."""

    constants: NDArray[Any]
    kind: pa.DataType

    def of(self, values: pa.ChunkedArray) -> Numbers:
        return self.of_numbers(plain(values, self.kind))

    def of_numbers(self, numbers: NDArray[Any]) -> Numbers:
        constants = self.constants
        left = np.searchsorted(constants, numbers)
        at = np.minimum(left, len(constants) - 1)
        found = 2 * left + (constants[at] == numbers)
        if pa.types.is_float64(self.kind):
            found += np.isnan(constants[at]) & np.isnan(numbers)
        return np.asarray(found, np.int64)


@dataclass(frozen=True)
class Direct:
    """By a table of all values from one before the least constant to one behind the largest."""

    constants: Numbers
    kind: pa.DataType

    @cached_property
    def _table(self) -> NDArray[np.int32]:
        between = np.arange(self.constants[0] - 1, self.constants[-1] + 2)
        return Sorted(self.constants, self.kind).of_numbers(between).astype(np.int32)

    def of(self, values: pa.ChunkedArray) -> Numbers:
        low, high = self.constants[0] - 1, self.constants[-1] + 1
        at = np.clip(plain(values, self.kind), low, high) - low
        return np.asarray(self._table[at], np.int64)


@dataclass(frozen=True)
class Hashed:
    """By a hash table."""

    constants: Numbers
    kind: pa.DataType

    @cached_property
    def _table(self) -> Any:
        return pd.Index(self.constants)

    def of(self, values: pa.ChunkedArray) -> Numbers:
        found = self._table.get_indexer(plain(values, self.kind))
        return np.asarray(np.maximum(2 * found + 1, 0), np.int64)


@dataclass(frozen=True)
class Words:
    """By a hash table of Python's, for each word once."""

    constants: Sequence[str]
    is_equality: bool

    @cached_property
    def _table(self) -> dict[str, int]:
        return {word: 2 * i + 1 for i, word in enumerate(self.constants)}

    def of(self, values: pa.ChunkedArray) -> Numbers:
        encoded = values.combine_chunks().dictionary_encode()
        found = [self._code(word) for word in encoded.dictionary.to_pylist()]
        places = encoded.indices.fill_null(len(found)).to_numpy()
        return np.asarray(np.array([*found, 0], np.int64)[places])

    def _code(self, word: str) -> int:
        found = self._table.get(word)
        if found is not None:
            return found
        return 0 if self.is_equality else 2 * bisect_left(self.constants, word)


def plain(values: pa.ChunkedArray, kind: pa.DataType) -> NDArray[Any]:
    """Values as NumPy compares them; NULLs as anything."""
    if pa.types.is_float64(kind):
        return np.asarray(values.fill_null(0.0).to_numpy(), np.float64)
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    return np.asarray(values.fill_null(0).to_numpy(), np.int64)
