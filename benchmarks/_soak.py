"""The queries of `soak`, and what each of them has to deliver, worked out by DuckDB from the day's rows alone.

The instants that are due follow from the rows and the contract; nothing of the engine is asked. An answer is a
plain query over the rows in the window of each instant. `s` is in order; `u` is slow and has late rows, whose
`enter` is the watermark they met.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from millstream.database import Database, Delivery

Row = tuple[Any, ...]
Instants = list[tuple[int, int]]
"""What is due: the time of each instant, and how many rows of `s` are there for it."""

WINDOWS = {
    "time": ("[INTERVAL 900]", "x.t BETWEEN i.tau - 900 AND i.tau"),
    "long": ("[INTERVAL 7200]", "x.t BETWEEN i.tau - 7200 AND i.tau"),
    "rows": ("[ROWS 500]", "x.id >= i.n - 500"),
    # Of so many rows each key has some hundred.
    "partition": ("[PARTITION BY k ROWS 5]", "x.id >= i.n - 3000"),
    "landmark": ("[LANDMARK]", "TRUE"),
    "reset": ("[LANDMARK RESET INTERVAL 3600]", "x.t >= i.tau - i.tau % 3600"),
}
NEWEST = " QUALIFY row_number() OVER (PARTITION BY i.i, x.k ORDER BY x.id DESC) <= 5"
SHAPES = {
    "sums": (
        "SELECT k, sum(v) AS a, count(*) AS n FROM s {} GROUP BY k {}",
        "SELECT i, k, sum(v)::BIGINT, count(*) FROM w GROUP BY i, k",
        None,
    ),
    "one": (
        "SELECT max(v) AS a, avg(d) AS b FROM s {} WHERE v > 10 {}",
        "SELECT i, max(v), avg(d) FROM w WHERE v > 10 GROUP BY i",
        (None, None),
    ),
    "named": (
        "SELECT t.name, count(*) AS n FROM s {} x JOIN t ON t.k = x.k GROUP BY t.name {}",
        "SELECT i, name, count(*) FROM w JOIN t USING (k) GROUP BY i, name",
        None,
    ),
    "values": (
        "SELECT count(DISTINCT v) AS n FROM s {} {}",
        "SELECT i, count(DISTINCT v) FROM w GROUP BY i",
        (0,),
    ),
}
"""What is asked, what DuckDB is asked for, and what is right for an empty window where one row always is."""
SESSIONS = (
    "SELECT k, max(t) + 25 AS e, count(*) AS n FROM (SELECT *, sum(begins) OVER (PARTITION BY k ORDER BY id) AS g"
    " FROM (SELECT *, CASE WHEN t - lag(t) OVER (PARTITION BY k ORDER BY id) < 25 THEN 0 ELSE 1 END AS begins"
    " FROM s)) GROUP BY k, g"
)
PAIRS = (
    "SELECT tau, k, v FROM (SELECT a.k, b.v, a.t AS one, b.t AS other, (greatest(a.t, b.t) + 59) // 60 * 60 AS tau"
    " FROM s a JOIN s b ON a.k = b.k AND a.v = b.v + 3 WHERE b.d > 120 AND greatest(a.id, b.id) >= {seen}"
    " AND least(a.id, b.id) >= {seen} - 2000) WHERE one >= tau - 60 AND other >= tau - 30"
)


@dataclass
class Day:
    """The rows that have been inserted so far."""

    duck: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)
    times: list[np.ndarray[Any, Any]] = field(default_factory=list)
    others: list[np.ndarray[Any, Any]] = field(default_factory=list)
    """The times of the rows of `u` that are not late."""
    late: int = 0

    def __post_init__(self) -> None:
        self.duck.execute("SET threads = 1")
        self.duck.execute("CREATE TABLE s (id BIGINT, k INT, v BIGINT, d DOUBLE, t BIGINT)")
        self.duck.execute("CREATE TABLE u (k INT, v BIGINT, t BIGINT, enter BIGINT)")
        self.duck.execute("CREATE TABLE t AS SELECT range::INT AS k, 'name ' || range % 7 AS name FROM range(20)")

    @property
    def s(self) -> np.ndarray[Any, Any]:
        return np.concatenate(self.times)

    def came(self, s: pa.Table, u: pa.Table) -> None:
        first = sum(map(len, self.times))
        self.times.append(s.column("t").to_numpy())
        self.duck.register("new", s)
        self.duck.execute(f"INSERT INTO s SELECT {first} + row_number() OVER () - 1, k, v, d, t FROM new")
        times = u.column("t").to_numpy()
        before = max((int(o[-1]) for o in self.others), default=-1)
        enter = np.maximum.accumulate(np.concatenate([[before], times]))[1:]
        self.others.append(times[times >= enter])
        self.late += int((times < enter).sum())
        self.duck.register("new", u.append_column("enter", pa.array(enter)))
        self.duck.execute("INSERT INTO u SELECT * FROM new")
        self.duck.unregister("new")

    def rows(self, text: str) -> list[Row]:
        return self.duck.execute(text).fetchall()

    def answers(self, text: str, instants: Sequence[tuple[int, int]]) -> list[list[Row]]:
        """The answer at each of some instants."""
        i, tau, n = range(len(instants)), [t for t, _ in instants], [n for _, n in instants]
        self.duck.register("inst", pa.table({"i": pa.array(i, pa.int64()), "tau": tau, "n": n}))
        found: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows(text):
            found[row[0]].append(row[1:])
        return [found[number] for number in i]


# What is due


def every(step: int, *, is_half_open: bool = False, streams: str = "s") -> Callable[[Day], Instants]:
    """The multiples of a step from the first row on, as far as all watermarks have passed them."""

    def due(day: Day) -> Instants:
        known = [np.concatenate(day.times if name == "s" else day.others) for name in streams]
        first, mark = min(int(t[0]) for t in known), min(int(t[-1]) for t in known)
        first, last = (first + 1, mark) if is_half_open else (first, mark - 1)
        found = np.arange(-(-first // step) * step, last + 1, step)
        return list(zip(found.tolist(), np.searchsorted(day.s, found, "right").tolist(), strict=True))

    return due


def every_rows(number: int) -> Callable[[Day], Instants]:
    def due(day: Day) -> Instants:
        times = day.s
        return [(int(times[n - 1]), n) for n in range(number, len(times) + 1, number)]

    return due


def every_time(day: Day) -> Instants:
    """The times of `u` that its watermark has passed."""
    times = np.unique(np.concatenate(day.others))
    return [(t, 0) for t in times[:-1].tolist()]


def every_session(day: Day) -> Instants:
    mark = int(day.s[-1])
    return [(e, 0) for (e,) in day.rows(f"SELECT DISTINCT e FROM ({SESSIONS}) WHERE e <= {mark} ORDER BY e")]


def every_second_view(day: Day) -> Instants:
    """A view that has answered has the next instant as its watermark."""
    times = [t for t, _ in every(300)(day)]
    first = -(-times[0] // 600) * 600
    return [(t, 0) for t in range(first, times[-1] + 300, 600)]


# The queries


@dataclass(frozen=True)
class Asked:
    """A query, when it is to answer, and what: a text over `inst` that gives an instant's number with each row."""

    text: str
    due: Callable[[Day], Instants]
    answer: str
    emit: str = "ALL"
    close: float = 1e-9
    create: str = "CREATE CONTINUOUS QUERY {} AS {}"
    nothing: tuple[Any, ...] | None = None
    """The one row of an empty window, where rows are not grouped by anything."""


def within(condition: str, table: str = "s", more: str = "") -> str:
    return f"(SELECT i.i, i.tau, x.* FROM inst i JOIN {table} x ON {condition}{more})"


def _over(source: str, text: str) -> str:
    return f"WITH w AS {source} {text}"


def _window(name: str) -> str:
    return within(f"x.id < i.n AND {WINDOWS[name][1]}", more=NEWEST if name == "partition" else "")


def _slow(length: int) -> str:
    """The rows of `u` in a window of time."""
    return within(f"x.enter <= i.tau AND i.tau <= x.t + {length}", "u")


SAMPLES = {"interval": ("SAMPLE INTERVAL 300", every(300)), "rows": ("SAMPLE ROWS 600", every_rows(600))}
SUMS = "SELECT i, k, sum(v)::BIGINT, count(*) FROM w GROUP BY i, k"
MOST = "SELECT i, k, max(v) FROM w GROUP BY i, k"
VIEW = "CREATE STREAMING VIEW {} RANGE INTERVAL 7200 AS {}"
VIEWED = within("x.id < i.n AND x.t >= i.tau - 600")
STORED = 3_600
"""The RANGE of `h`, a streaming table of the rows of `s`."""
RANKED = "row_number() OVER (PARTITION BY {}k ORDER BY v DESC, t)"
TOTALS = "SELECT k, count(*) AS n, CAST(sum(v) AS BIGINT) AS a, max(t) AS latest FROM s GROUP BY k"
"""A continuous view."""
MORE = {
    "selection": Asked("SELECT k, v, t FROM s WHERE v = 7", every(1), "v = 7", "COMMIT"),
    "tumble": Asked(
        "SELECT k, count(*) AS n FROM TUMBLE(s, t, INTERVAL 600) GROUP BY k",
        every(600, is_half_open=True),
        _over(within("x.t >= i.tau - 600 AND x.t < i.tau"), "SELECT i, k, count(*) FROM w GROUP BY i, k"),
    ),
    "hop": Asked(
        "SELECT k, sum(v) AS a FROM HOP(s, t, INTERVAL 300, INTERVAL 900) GROUP BY k",
        every(300, is_half_open=True),
        _over(within("x.t >= i.tau - 900 AND x.t < i.tau"), "SELECT i, k, sum(v)::BIGINT FROM w GROUP BY i, k"),
    ),
    "session": Asked(
        "SELECT k, count(*) AS n FROM SESSION(TABLE s PARTITION BY k, DESCRIPTOR(t), INTERVAL 25) GROUP BY k",
        every_session,
        f"SELECT i.i, x.k, x.n FROM inst i JOIN ({SESSIONS}) x ON x.e = i.tau",
    ),
    "pairs": Asked(
        "SELECT a.k, stddev(a.v - b.v) AS x FROM s [INTERVAL 120] a JOIN s [INTERVAL 60] b ON a.k = b.k"
        " AND a.t < b.t GROUP BY a.k SAMPLE INTERVAL 300",
        every(300),
        _over(
            within("x.id < i.n AND x.t >= i.tau - 120"),
            "SELECT a.i, a.k, stddev_samp(a.v - b.v) FROM w a JOIN w b ON a.i = b.i AND a.k = b.k AND a.t < b.t"
            " WHERE b.t >= b.tau - 60 GROUP BY a.i, a.k",
        ),
        close=1e-6,
    ),
    "derivations": Asked(
        "SELECT a.k, b.v FROM s [INTERVAL 60] a JOIN s [INTERVAL 30] b ON a.k = b.k WHERE a.v = b.v + 3"
        " AND b.d > 120 SAMPLE INTERVAL 60 EMIT NEW",
        every(60),
        PAIRS,
        "EARLY",
    ),
    "changes": Asked(
        "SELECT k, max(v) AS a FROM s [INTERVAL 900] GROUP BY k SAMPLE INTERVAL 300 EMIT CHANGES",
        every(300),
        _over(_window("time"), MOST),
        "CHANGES",
    ),
    "new": Asked(
        "SELECT k, max(v) AS a FROM s [INTERVAL 900] GROUP BY k SAMPLE INTERVAL 300 EMIT NEW",
        every(300),
        _over(_window("time"), MOST),
        "NEW",
    ),
    "largest": Asked(
        "SELECT k, v FROM s [INTERVAL 300] ORDER BY v DESC, k, t LIMIT 5 SAMPLE INTERVAL 300",
        every(300),
        _over(
            within("x.id < i.n AND x.t >= i.tau - 300"),
            "SELECT i, k, v FROM w QUALIFY row_number() OVER (PARTITION BY i ORDER BY v DESC, k, t) <= 5",
        ),
    ),
    "spark": Asked(
        "SELECT k, variance(d) AS x, last(v) AS y FROM s [LANDMARK] GROUP BY k SAMPLE INTERVAL 1800",
        every(1_800),
        _over(_window("landmark"), "SELECT i, k, var_samp(d), arg_max(v, id) FROM w GROUP BY i, k"),
    ),
    "sketch": Asked(
        "SELECT k, approx_count_distinct(v) AS n FROM s [INTERVAL 3600] GROUP BY k SAMPLE INTERVAL 1800",
        every(1_800),
        _over(within("x.id < i.n AND x.t >= i.tau - 3600"), "SELECT i, k, count(DISTINCT v) FROM w GROUP BY i, k"),
        close=0.15,
    ),
    "late": Asked(
        "SELECT k, sum(v) AS a, count(*) AS n FROM u [INTERVAL 900] GROUP BY k SAMPLE INTERVAL 300",
        every(300, streams="u"),
        _over(_slow(900), SUMS),
    ),
    "late_landmark": Asked(
        "SELECT sum(v) AS a, count(*) AS n FROM u [LANDMARK] SAMPLE INTERVAL 600",
        every(600, streams="u"),
        _over(within("x.enter <= i.tau", "u"), "SELECT i, sum(v)::BIGINT, count(*) FROM w GROUP BY i"),
        nothing=(None, 0),
    ),
    "late_tumble": Asked(
        "SELECT count(*) AS n FROM TUMBLE(u, t, INTERVAL 600)",
        every(600, is_half_open=True, streams="u"),
        _over(
            within("x.t >= i.tau - 600 AND x.t < i.tau AND x.enter < i.tau", "u"),
            "SELECT i, count(*) FROM w GROUP BY i",
        ),
        nothing=(0,),
    ),
    "realtime": Asked(
        "SELECT count(*) AS n, sum(v) AS a FROM u [INTERVAL 60] SAMPLE REALTIME EMIT ALL",
        every_time,
        _over(_slow(60), "SELECT i, count(*), sum(v)::BIGINT FROM w GROUP BY i"),
        nothing=(0, None),
    ),
    "streams": Asked(
        "SELECT a.k, count(*) AS n, sum(b.v) AS x FROM s [INTERVAL 300] a JOIN u [INTERVAL 600] b ON a.k = b.k"
        " GROUP BY a.k SAMPLE INTERVAL 300",
        every(300, streams="su"),
        f"SELECT a.i, a.k, count(*), sum(b.v)::BIGINT FROM {within('x.id < i.n AND x.t >= i.tau - 300')} a"
        f" JOIN {_slow(600)} b ON a.i = b.i AND a.k = b.k GROUP BY a.i, a.k",
    ),
    "view": Asked(
        "SELECT k, sum(v) AS x FROM s [INTERVAL 600] GROUP BY k SAMPLE INTERVAL 300",
        every(300),
        _over(VIEWED, "SELECT i, k, sum(v)::BIGINT FROM w GROUP BY i, k"),
        create=VIEW,
    ),
    "viewed": Asked(
        "SELECT max(x) AS x, count(*) AS n FROM more_view [INTERVAL 900] SAMPLE INTERVAL 600",
        every_second_view,
        "SELECT i, max(a), count(*) FROM (SELECT i.i, x.k, sum(x.v)::BIGINT AS a"
        " FROM inst i CROSS JOIN range(0, 4) r"
        " JOIN s x ON x.t BETWEEN i.tau - 300 * r.range - 600 AND i.tau - 300 * r.range"
        " WHERE i.tau - 300 * r.range >= {first} GROUP BY i.i, r.range, x.k) GROUP BY i",
        nothing=(None, 0),
    ),
    "stored": Asked(
        "SELECT k, sum(v) AS a, count(*) AS n FROM h [INTERVAL 7200] GROUP BY k SAMPLE INTERVAL 300",
        every(300),
        _over(within(f"x.id < i.n AND x.t >= i.tau - {STORED}"), SUMS),
    ),
    "except": Asked(
        "SELECT k, v FROM s [INTERVAL 60] EXCEPT SELECT k, v FROM s [INTERVAL 900] WHERE d < 60"
        " SAMPLE INTERVAL 300",
        every(300),
        _over(
            _window("time"),
            "SELECT i, k, v FROM w WHERE t >= tau - 60 EXCEPT SELECT i, k, v FROM w WHERE d < 60",
        ),
    ),
    "subquery": Asked(
        "SELECT k, v, t FROM s [INTERVAL 120] WHERE v > 45 + (SELECT avg(v) FROM s [INTERVAL 900])"
        " SAMPLE INTERVAL 300",
        every(300),
        _over(
            _window("time"),
            "SELECT i, k, v, t FROM w JOIN (SELECT i, avg(v) AS a FROM w GROUP BY i) USING (i)"
            " WHERE t >= tau - 120 AND v > 45 + a",
        ),
    ),
    "ranked": Asked(
        f"SELECT k, v, t FROM (SELECT k, v, t, {RANKED.format('')} AS r FROM s [INTERVAL 900]) x WHERE r <= 2"
        " SAMPLE INTERVAL 300",
        every(300),
        _over(_window("time"), f"SELECT i, k, v, t FROM w QUALIFY {RANKED.format('i, ')} <= 2"),
    ),
    "outer": Asked(
        "SELECT a.k, a.v, b.t FROM s [INTERVAL 60] a LEFT JOIN u [INTERVAL 900] b ON a.k = b.k AND a.v < b.v"
        " SAMPLE INTERVAL 300",
        every(300, streams="su"),
        f"SELECT a.i, a.k, a.v, b.t FROM {within('x.id < i.n AND x.t >= i.tau - 60')} a"
        f" LEFT JOIN {_slow(900)} b ON a.i = b.i AND a.k = b.k AND a.v < b.v",
    ),
    "function": Asked(
        "SELECT k, sum(odd(v)) AS a FROM s [INTERVAL 900] GROUP BY k SAMPLE INTERVAL 1800",
        every(1_800),
        _over(_window("time"), "SELECT i, k, sum(2 * v + 1)::BIGINT FROM w GROUP BY i, k"),
    ),
}


def queries() -> dict[str, Asked]:
    found = {
        f"{shape}_{window}_{sample}": Asked(
            text.format(brackets, said), due, _over(_window(window), expected), nothing=nothing
        )
        for shape, (text, expected, nothing) in SHAPES.items()
        for window, (brackets, _) in WINDOWS.items()
        for sample, (said, due) in SAMPLES.items()
    }
    return found | {f"more_{name}": asked for name, asked in MORE.items()}


# What has been delivered


@dataclass
class Check:
    """Compares what each query has delivered since the last time with what it had to."""

    db: Database
    day: Day
    asked: dict[str, Asked]
    seen: dict[str, int] = field(default_factory=dict)
    last: dict[str, Counter[Row]] = field(default_factory=dict)
    """The answer so far of queries that deliver what is new, or changes."""
    rows: int = 0

    def __call__(self) -> None:
        failed = [row[0] for row in self.db.sql("SHOW QUERIES") if row[2] != "running"]
        if failed:
            raise AssertionError(f"not running: {failed}")
        for name, asked in self.asked.items():
            self._query(name, asked)
        self._view()
        self.rows = len(self.day.s)

    def _view(self) -> None:
        """A continuous view has all rows, as soon as it is read."""
        found, wanted = sorted(self.db.sql("SELECT * FROM totals").fetchall()), sorted(self.day.rows(TOTALS))
        if found != wanted:
            raise AssertionError(f"totals: {found} instead of {wanted}")

    def _query(self, name: str, asked: Asked) -> None:
        seen = self.seen.get(name, 0)
        found = self.db.results(name, since=seen)
        numbers = [d.sequence for d in found]
        if numbers != list(range(seen + 1, seen + 1 + len(numbers))):
            raise AssertionError(f"{name}: deliveries {numbers} after {seen}")
        self.seen[name] = seen + len(found)
        if asked.emit == "COMMIT":
            _equal(name, asked, _runs(found), self._selected(asked))
        elif asked.emit == "EARLY":
            _equal(name, asked, _by_instant(found), self._derived(asked))
        else:
            self._answered(name, asked, seen, found)

    def _answered(self, name: str, asked: Asked, seen: int, found: Sequence[Delivery]) -> None:
        due = asked.due(self.day)[seen:]
        instants = [d.instant for d in found]
        if instants != [tau for tau, _ in due]:
            raise AssertionError(f"{name}: instants {instants} instead of {[t for t, _ in due]}")
        first = every(300)(self.day)[0][0]
        wanted = self.day.answers(asked.answer.replace("{first}", str(first)), due)
        empty = [] if asked.nothing is None else [asked.nothing]
        given = [
            (tau, self._emitted(name, asked, rows or empty)) for (tau, _), rows in zip(due, wanted, strict=True)
        ]
        _equal(name, asked, [(d.instant, d.fetchall()) for d in found], given)

    def _emitted(self, name: str, asked: Asked, answer: list[Row]) -> list[Row]:
        """What is delivered of an answer."""
        if asked.emit == "ALL":
            return answer
        last, now = self.last.get(name, Counter()), Counter(answer)
        self.last[name] = now
        if asked.emit == "NEW":
            return list((now - last).elements())
        return [("-", *r) for r in (last - now).elements()] + [("+", *r) for r in (now - last).elements()]

    def _selected(self, asked: Asked) -> list[tuple[Any, list[Row]]]:
        text = f"SELECT k, v, t FROM s WHERE {asked.answer} AND id >= {self.rows} ORDER BY id"
        found: list[tuple[Any, list[Row]]] = []
        for row in self.day.rows(text):
            if not found or found[-1][0] != row[2]:
                found.append((row[2], []))
            found[-1][1].append(row)
        return found

    def _derived(self, asked: Asked) -> list[tuple[Any, list[Row]]]:
        found: dict[int, list[Row]] = defaultdict(list)
        for tau, *row in self.day.rows(asked.answer.format(seen=self.rows)):
            found[tau].append(tuple(row))
        return sorted(found.items())


def _runs(found: Sequence[Delivery]) -> list[tuple[Any, list[Row]]]:
    return [(d.instant, d.fetchall()) for d in found]


def _by_instant(found: Sequence[Delivery]) -> list[tuple[Any, list[Row]]]:
    """What results that come early have told of each instant; none may be empty."""
    made: dict[Any, list[Row]] = defaultdict(list)
    for delivery in found:
        rows = delivery.fetchall()
        if not rows:
            raise AssertionError(f"{delivery.query} delivered nothing at {delivery.instant}")
        made[delivery.instant] += rows
    return sorted(made.items())


def _equal(
    name: str, asked: Asked, found: list[tuple[Any, list[Row]]], expected: list[tuple[Any, list[Row]]]
) -> None:
    if [at for at, _ in found] != [at for at, _ in expected]:
        raise AssertionError(f"{name}: instants {[a for a, _ in found]} instead of {[a for a, _ in expected]}")
    for (at, rows), (_, wanted) in zip(found, expected, strict=True):
        is_ordered = "LIMIT" in asked.text or asked.emit == "COMMIT"
        one, other = (rows, wanted) if is_ordered else (sorted(rows, key=_key), sorted(wanted, key=_key))
        if len(one) != len(other) or not all(_alike(a, b, asked.close) for a, b in zip(one, other, strict=True)):
            raise AssertionError(f"{name} at {at}: {one} instead of {other}")


def _key(row: Row) -> tuple[tuple[bool, Any], ...]:
    return tuple((x is None, x) for x in row)


def _alike(one: Row, other: Row, close: float) -> bool:
    return len(one) == len(other) and all(
        a == b or (isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=close))
        for a, b in zip(one, other, strict=True)
    )
