"""Position reports as in Linear Road, and questions about them.

Every vehicle reports each 30 seconds of stream time, in an order that differs from round to round, and
drives on from segment to segment of its expressway. Any stretch of rows can be made by itself and is the
same each time: what a report says follows from its vehicle and its round alone. Questions ask for keys
in a period; no two have the same constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa

PERIOD = 30
EXPRESSWAYS, SEGMENTS, LANES = 10, 100, 5
FEET_PER_SEGMENT = 5_280
FEET_PER_MPH = 44
"""How far a mile an hour brings a vehicle between two of its reports."""
LEAST_SPEED, MOST_SPEED = 40, 100
COLUMNS = "(vid INT, spd INT, xway INT, lane INT, dir INT, seg INT, pos INT, t BIGINT)"
SCHEMA = pa.schema(
    {n: pa.int32() for n in ("vid", "spd", "xway", "lane", "dir", "seg", "pos")} | {"t": pa.int64()}
)
ORDERS = 97
"""After so many rounds the vehicles report in an order that was there before."""
HALF_AN_HOUR = 1_800
LIST_PERIOD = (5_700, 6_000)
LISTED = (55, 64)
"""Longer lists of scattered vehicles touch most pages of any layout we have: see the note on value indices."""
STRETCH = 5
Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The vehicles of one simulation; their reports never end."""

    vehicles: int

    def seconds(self, rows: int) -> int:
        """The stream time that so many rows take."""
        return rows * PERIOD // self.vehicles

    def reports(self, first: int, count: int) -> pa.Table:
        """The rows from number `first` on, in the order of their times."""
        number = np.arange(first, first + count, dtype=np.int64)
        rounds = number // self.vehicles
        vid = self._who(number, rounds)
        chance, of_vehicle = _scrambled(vid * 1_000_003 + rounds), _scrambled(vid)
        usual = LEAST_SPEED + of_vehicle % (MOST_SPEED - LEAST_SPEED)
        pos = (of_vehicle // 64 + rounds * usual * FEET_PER_MPH) % (SEGMENTS * FEET_PER_SEGMENT)
        columns = {
            "vid": vid,
            "spd": usual - chance % 10,
            "xway": of_vehicle // 7 % EXPRESSWAYS,
            "lane": chance // 16 % LANES,
            "dir": of_vehicle // 128 % 2,
            "seg": pos // FEET_PER_SEGMENT,
            "pos": pos,
            "t": number * PERIOD // self.vehicles,
        }
        return pa.table(
            [pa.array(columns[f.name].astype(f.type.to_pandas_dtype())) for f in SCHEMA], schema=SCHEMA
        )

    def _who(self, number: Numbers, rounds: Numbers) -> Numbers:
        """In each round every vehicle once: a place times a factor that shares no divisor with their number."""
        coprime = (f for f in count_from(self.vehicles // 3 + 1) if gcd(f, self.vehicles) == 1)
        factors = np.array(list(islice(coprime, ORDERS)))
        place = number - rounds * self.vehicles
        who: Numbers = (place * factors[rounds % len(factors)] + rounds * 7_919) % self.vehicles
        return who


def _scrambled(numbers: Numbers) -> Numbers:
    """Numbers that look random, 30 bits each, the same for the same number."""
    mixed = (numbers + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(34)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Question:
    """Keys in a period of time; both ends belong to it."""

    shape: str
    column: str
    keys: str
    low: int
    high: int
    also: str = ""

    def sql(self, table: str) -> str:
        return self._text(table, self.column)

    def sql_by_time_alone(self, table: str) -> str:
        """The same rows, but no index or statistics speak of the result of a function."""
        return self._text(table, f"abs({self.column})")

    def _text(self, table: str, key: str) -> str:
        return (
            f"SELECT * FROM {table} p WHERE {self.also}{key} {self.keys}"
            f" AND VALID(p) BETWEEN {self.low} AND {self.high}"
        )


@dataclass(frozen=True, slots=True)
class Known:
    """What one who asks knows: the traffic, how long it has gone on, and how large answers should be."""

    traffic: Traffic
    until: int
    least: int
    most: int


Asking = Callable[[Known, np.random.Generator], Question]


def neighbours(known: Known, random: np.random.Generator) -> Question:
    """Vehicles with consecutive numbers in half an hour."""
    low, high, reports = _period(known, random, HALF_AN_HOUR)
    wanted = int(random.integers(known.least, known.most + 1))
    width = min(known.traffic.vehicles - 1, max(1, wanted // reports))
    first = int(random.integers(0, known.traffic.vehicles - width))
    return Question("vid BETWEEN", "vid", f"BETWEEN {first} AND {first + width - 1}", low, high)


def listed(known: Known, random: np.random.Generator) -> Question:
    """Vehicles from anywhere, in about one and a half hours."""
    low, high, _ = _period(known, random, int(random.integers(*LIST_PERIOD)))
    count = min(known.traffic.vehicles, int(random.integers(*LISTED)))
    vids = np.sort(random.choice(known.traffic.vehicles, count, replace=False))
    return Question("vid IN", "vid", f"IN ({', '.join(map(str, vids.tolist()))})", low, high)


def places(known: Known, random: np.random.Generator) -> Question:
    """Five neighbouring segments of one expressway, up to half an hour."""
    low, high, _ = _period(known, random, int(random.integers(HALF_AN_HOUR // 2, HALF_AN_HOUR)))
    first = int(random.integers(0, SEGMENTS - STRETCH + 1))
    road = int(random.integers(0, EXPRESSWAYS))
    keys = f"BETWEEN {first} AND {first + STRETCH - 1}"
    return Question("seg BETWEEN", "seg", keys, low, high, also=f"xway = {road} AND ")


RANGES: tuple[Asking, ...] = (neighbours, places)
SHAPES: tuple[Asking, ...] = (*RANGES, listed)


def ask(known: Known, number: int, shapes: Sequence[Asking] = SHAPES) -> Question:
    """The question with a number: the shapes in turns, with constants of its own."""
    return shapes[number % len(shapes)](known, np.random.default_rng((number, known.until)))


def _period(known: Known, random: np.random.Generator, length: int) -> tuple[int, int, int]:
    """The first and last second, and how often each vehicle reports in it."""
    length = min(length, known.until)
    low = int(random.integers(0, known.until - length + 1))
    return low, low + length - 1, max(1, length // PERIOD)
