"""A unit of a scheduled join: the rows of a batch, matched with those of the other stream that lie in a slice.

How far a row of a batch and one of the other stream are away from each other a ruler tells, by time or by rows. A
slice is all that is further away than `low` and at most `high`; for a batch that is one or two stretches of the
other stream, and so some of its files, and of these some row groups. Only what is asked for of them is read; only
matches are kept.

The same work is done in the driver and in Spark's tasks. Nothing here knows queries, but for the tests that say
which pairs anybody wants where no columns are to be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.execute import kernel
from millstream.plan.sharing import ROWS
from millstream.plan.standing import FOR_EVER, ROW_NUMBER, rows_name
from millstream.queries import here
from millstream.queries.combining import relation
from millstream.queries.lookup import Lookup
from millstream.queries.parcels import Rows
from millstream.queries.rulers import ByTime
from millstream.schema import ROW_ID_COLUMN, instant
from millstream.storage import segment
from millstream.storage.watermark import times_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from millstream.catalog.records import DataFile, TableInfo
    from millstream.plan.sharing import Equality
    from millstream.queries.parcels import Parcel
    from millstream.queries.rulers import Ruler

    Numbers = NDArray[np.int64]
    Places = NDArray[np.integer[Any]]
    Spans = tuple[tuple[int, int], ...]
    Passes = Callable[["Unit", "Pairs"], NDArray[np.bool_]]

MOST_READ = 4_194_304
"""So many rows of a stream are looked up together; each time, all batches are hashed."""

NEARLY_ALL = 0.75
"""If so many of the rows that were read may be in a slice, the others are not left out."""

MOST_FOUND = 16_777_216
"""A unit with more results than this is for Spark, and its queries are stepped alone."""


class UnprovenError(Exception):
    """The kernel cannot say which pairs pass the tests; Spark can."""


class Trouble(Enum):
    """Why a unit has no results."""

    UNPROVEN = "the kernel cannot say which pairs pass the tests"
    TOO_MANY = "it has more results than are held"
    NOT_LOOKED_UP = "the kernel could not look its rows up"


@dataclass(frozen=True)
class Reach:
    """The rows of a stream that a turn takes: those below a number whose time has been passed, from `since` on.

    A row is *active* if it may be in a result that was not there before the turn: it has come since `position`, or
    its time is behind `passed`, or it is late, or numbered from `unanswered` on. `late` has the watermarks met by
    late rows, whose times are in `late_span`.
    """

    since: int
    below: int
    mark: int
    position: int
    passed: int
    unanswered: int = FOR_EVER
    late: Mapping[int, int] = field(default_factory=dict)
    late_span: tuple[int, int] | None = None

    def enter(self, ids: Numbers, times: Numbers) -> Numbers:
        """From when on rows are in windows."""
        if not self.late:
            return times
        made = times.copy()
        for place in np.flatnonzero(self.is_late(ids)).tolist():
            made[place] = max(int(made[place]), self.late[int(ids[place])])
        return made

    def is_late(self, ids: Numbers) -> NDArray[np.bool_]:
        return np.isin(ids, list(self.late)) if self.late else np.zeros(len(ids), bool)

    def has(self, ids: Numbers, times: Numbers) -> NDArray[np.bool_]:
        return (ids >= self.since) & (ids < self.below) & (times <= self.mark)

    def is_active(self, ids: Numbers, times: Numbers) -> NDArray[np.bool_]:
        found = (ids >= self.position) | (times > self.passed) | (ids >= self.unanswered)
        return found | self.is_late(ids)


@dataclass(frozen=True)
class Unit:
    """See the module's contract; `leaf` is the batch's own, 0 or 1, and `reach` tells of the other's rows."""

    parcel: Parcel
    leaf: int
    equalities: tuple[Equality, ...]
    reach: Reach
    low: int
    high: int
    table: TableInfo
    """The other stream."""
    columns: tuple[str, ...]
    """What is read of it, its time and what is to be equal included; in lower case."""
    tests: tuple[str, ...] = ()
    """If there are any: pairs that pass none of them are for nobody."""
    ruler: Ruler = ByTime()

    @property
    def batch(self) -> Rows:
        return self.parcel.rows

    def opened(self) -> Unit:
        """The same with its batch at hand."""
        return replace(self, parcel=self.parcel.opened())

    @property
    def time_column(self) -> str:
        assert self.table.time is not None
        return self.table.time.column.lower()

    @property
    def is_for_old(self) -> bool:
        """Whether pairs with active rows are found from the other side."""
        return self.leaf == 1

    def __len__(self) -> int:
        return len(self.parcel)

    def may_use(self, ids: Numbers, times: Numbers) -> NDArray[np.bool_]:
        """Which rows of the other stream may be in the slice, as far as these alone can tell."""
        kept = self.reach.has(ids, times) & self.ruler.may_be_in(self, ids, times)
        return kept & ~self.reach.is_active(ids, times) if self.is_for_old else kept

    @property
    def own_columns(self) -> list[str]:
        return [e.left_column if e.left == self.leaf else e.right_column for e in self.equalities]

    @property
    def others_columns(self) -> list[str]:
        own = [(e.left, e.left_column, e.right_column) for e in self.equalities]
        return [right if left == self.leaf else column for left, column, right in own]


@dataclass(frozen=True)
class Pairs:
    """Places in a unit's batch, and those of their partners among `rows`."""

    mine: Places
    theirs: Places
    rows: Rows

    def __len__(self) -> int:
        return len(self.mine)

    @property
    def bytes(self) -> int:
        return int(self.mine.nbytes + self.theirs.nbytes + self.rows.bytes)

    def only(self, kept: NDArray[np.bool_]) -> Pairs:
        """Some of the pairs, and the rows that they need."""
        used, places = np.unique(self.theirs[kept], return_inverse=True)
        return Pairs(self.mine[kept], places.astype(np.int32), self.rows.only(used.astype(np.int64)))

    @staticmethod
    def together(parts: Sequence[Pairs]) -> Pairs:
        offsets = np.cumsum([0, *(len(p.rows) for p in parts[:-1])])
        return Pairs(
            np.concatenate([p.mine for p in parts]),
            np.concatenate([p.theirs + np.int32(o) for p, o in zip(parts, offsets, strict=True)]),
            Rows.together([p.rows for p in parts]),
        )


def matched(unit: Unit, rows: pa.Table, ids: Numbers, passes: Passes) -> Pairs | Trouble:
    """What a unit makes of some rows of the other stream."""
    [found] = matched_by_all([unit], Batches.of([unit]), rows, ids, passes)
    return found


@dataclass(frozen=True)
class Batches:
    """The batches of some units that have the same leaf, each once, and what finds the rows of all in turn."""

    parcels: tuple[Parcel, ...]
    starts: Numbers
    lookup: Lookup

    @staticmethod
    def of(units: Sequence[Unit]) -> Batches:
        parcels = tuple(dict.fromkeys(unit.parcel for unit in units))
        starts = np.cumsum([0, *map(len, parcels)])
        return Batches(parcels, starts, Lookup([p.rows.rows for p in parcels], units[0].own_columns))

    def apart(self, places: Places) -> list[tuple[Parcel, NDArray[np.bool_] | slice, int]]:
        """For each batch which of some places in all of them are in it, and where it begins."""
        if len(self.parcels) == 1:
            return [(self.parcels[0], slice(None), 0)]
        owner = np.searchsorted(self.starts, places, "right") - 1
        return [(p, owner == n, int(self.starts[n])) for n, p in enumerate(self.parcels)]


def matched_by_all(
    units: Sequence[Unit], batches: Batches, rows: pa.Table, ids: Numbers, passes: Passes
) -> list[Pairs | Trouble]:
    """What units with the same columns make of some rows.

    A row is looked up once, however many units there are; to which of them it is of use is asked of pairs alone.
    """
    times, columns = times_of(rows.column(units[0].time_column)), units[0].others_columns
    places = _looked_up(units, ids, times)
    found: list[list[Pairs]] = [[no_pairs(unit)] for unit in units]
    failed, counts = dict[int, Trouble](), [0] * len(units)
    for mine, at in batches.lookup.pairs(_some(rows, columns, places), columns):
        if len(failed) == len(units):
            break
        for parcel, own, start in batches.apart(mine):
            some, theirs = mine[own] - start, places[at[own]]
            for number, unit in enumerate(units):
                if unit.parcel is not parcel or number in failed:
                    continue
                good = unit.may_use(ids[theirs], times[theirs])
                others = Rows(rows, ids, times, unit.reach.enter(ids, times))
                try:
                    found[number].append(_in_slice(unit, others, some[good], theirs[good], passes))
                except UnprovenError:
                    failed[number] = Trouble.UNPROVEN
                counts[number] += len(found[number][-1])
                if counts[number] > MOST_FOUND:
                    failed[number] = Trouble.TOO_MANY
                if number in failed:
                    found[number].clear()
    return [failed[n] if n in failed else Pairs.together(parts) for n, parts in enumerate(found)]


def _looked_up(units: Sequence[Unit], ids: Numbers, times: Numbers) -> Numbers:
    """Which rows are looked up, as far as that can be told at little cost: what else is asked is asked of pairs.

    Without columns that are to be equal, each row is a pair with each.
    """
    if not units[0].equalities:
        return np.flatnonzero(np.logical_or.reduce([unit.may_use(ids, times) for unit in units]))
    kept = np.logical_or.reduce([unit.ruler.may_be_in(unit, ids, times) for unit in units])
    return np.arange(len(ids)) if kept.sum() >= NEARLY_ALL * len(ids) else np.flatnonzero(kept)


def _some(rows: pa.Table, columns: Sequence[str], places: Numbers) -> pa.Table:
    """Columns of some rows; without columns, as many rows."""
    if not columns or len(places) == rows.num_rows:
        return rows.slice(0, len(places))
    return rows.select(columns).take(pa.array(places))


def _in_slice(unit: Unit, others: Rows, mine: Places, theirs: Places, passes: Passes) -> Pairs:
    """Those of some pairs that are as far away as the slice, and wanted."""
    away = unit.ruler.away(unit.batch, others, mine, theirs)
    kept = (away <= unit.high) & ((away > unit.low) | (unit.low == 0))
    found = Pairs(mine[kept].astype(np.int32), theirs[kept], others)
    if unit.tests and len(found):
        return found.only(passes(unit, found))
    return found.only(np.ones(len(found), bool))


def sides(unit: Unit, found: Pairs) -> tuple[dict[int, Rows], dict[int, Numbers]]:
    """Pairs as combinations of a row of each leaf."""
    rows = {unit.leaf: unit.batch, 1 - unit.leaf: found.rows}
    places = {unit.leaf: found.mine.astype(np.int64), 1 - unit.leaf: found.theirs.astype(np.int64)}
    return dict(sorted(rows.items())), places


def by_kernel(unit: Unit, found: Pairs) -> NDArray[np.bool_]:
    """Which pairs pass one of the tests."""
    rows = relation(*sides(unit, found), unit.tests)
    text = " OR ".join(f"coalesce({test}, false)" for test in unit.tests)
    asked = f"SELECT {ROW_NUMBER}, {text} AS c0 FROM {rows_name(0)} AS {ROWS}"
    values = here.answer(asked, {rows_name(0): rows}, [pa.bool_()])
    if values is None:
        raise UnprovenError
    made = np.zeros(len(found), bool)
    made[values.column(0).to_numpy()] = np.asarray(values.column(1).to_numpy(), bool)
    return made


def no_pairs(unit: Unit) -> Pairs:
    none = np.empty(0, np.int32)
    return Pairs(none, none, no_rows(unit.table, unit.columns))


def no_rows(table: TableInfo, columns: Sequence[str]) -> Rows:
    schema = pa.schema([f.with_name(f.name.lower()) for f in table.schema.arrow])
    none = np.empty(0, np.int64)
    return Rows(pa.schema([schema.field(c) for c in columns]).empty_table(), none, none, none)


# Reading


@dataclass(frozen=True)
class Portion:
    """What is to be read of a stream for a unit, by its number: rows in files or the catalogue.

    Only those of some times, and with numbers between some, are asked for.
    """

    number: int
    folder: str
    table: TableInfo
    columns: tuple[str, ...]
    time_column: str
    spans: Spans
    numbers: Spans
    files: tuple[DataFile, ...]
    inlined: tuple[pa.Table, Numbers] | None = None
    unit: Unit | None = None

    @property
    def asked(self) -> Unit:
        assert self.unit is not None
        return self.unit

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files) + (0 if self.inlined is None else self.inlined[0].num_rows)


def run(portions: Sequence[Portion], passes: Passes = by_kernel) -> list[tuple[int, Pairs | Trouble]]:
    """What a task makes of its portions, with their units' numbers."""
    found: list[tuple[int, Pairs | Trouble]] = []
    for own in _alike(portions):
        try:
            for number, pairs in _run_alike(own, passes):
                found.append((number, pairs))
                if sum(len(pairs) for _, pairs in found if isinstance(pairs, Pairs)) > MOST_FOUND:
                    return [(number, Trouble.TOO_MANY)]
        except kernel.failures():
            return [(own[0].number, Trouble.NOT_LOOKED_UP)]
    return found


def _run_alike(portions: Sequence[Portion], passes: Passes) -> Iterator[tuple[int, Pairs | Trouble]]:
    units = {p.number: p.asked for p in portions}
    batches = Batches.of(list(units.values()))
    for rows, ids in _many(read(source) for source in _sources(portions)):
        made = zip(units, matched_by_all(list(units.values()), batches, rows, ids, passes), strict=True)
        yield from ((n, pairs) for n, pairs in made if isinstance(pairs, Trouble) or len(pairs))


def _alike(portions: Sequence[Portion]) -> Iterable[list[Portion]]:
    """Portions whose rows are looked up together: of the same columns of a stream, for the same leaf."""
    made: dict[object, list[Portion]] = {}
    for portion in portions:
        made.setdefault((portion.table.id, portion.asked.leaf, portion.columns), []).append(portion)
    return made.values()


def _sources(portions: Sequence[Portion]) -> Iterator[Portion]:
    """Each file and what is in the catalogue once, with all that is asked for of it."""
    asked: dict[int | None, list[Portion]] = {}
    for portion in portions:
        for file in portion.files:
            asked.setdefault(file.id, []).append(replace(portion, files=(file,), inlined=None))
        if portion.inlined is not None:
            asked.setdefault(None, []).append(replace(portion, files=()))
    for own in asked.values():
        spans = tuple(dict.fromkeys(span for p in own for span in p.spans))
        numbers = tuple(dict.fromkeys(span for p in own for span in p.numbers))
        # What is in the catalogue is cut at where a unit's reach begins.
        widest = min(own, key=lambda p: p.asked.reach.since)
        yield replace(widest, spans=spans, numbers=numbers)


def _many(reads: Iterable[Iterable[tuple[pa.Table, Numbers]]]) -> Iterator[tuple[pa.Table, Numbers]]:
    """What is read, in larger pieces."""
    tables, numbers, count = list[pa.Table](), list["Numbers"](), 0
    for rows, ids in chain.from_iterable(reads):
        tables.append(rows)
        numbers.append(ids)
        count += len(ids)
        if count >= MOST_READ:
            yield pa.concat_tables(tables), np.concatenate(numbers)
            tables, numbers, count = [], [], 0
    if tables:
        yield pa.concat_tables(tables), np.concatenate(numbers)


def read(portion: Portion) -> Iterator[tuple[pa.Table, Numbers]]:
    """The rows of a portion under names in lower case, and their numbers; others may be among them."""
    names = {n.lower(): n for n in portion.table.schema.names}
    columns = [names[c] for c in portion.columns]
    schema = pa.schema([portion.table.schema.arrow.field(c) for c in columns])
    for file in portion.files:
        rows, ids = _read_file(portion, file, schema, names[portion.time_column])
        yield rows.rename_columns(list(portion.columns)), ids
    if portion.inlined is not None:
        rows, ids = portion.inlined
        yield rows.select(columns).rename_columns(list(portion.columns)), ids


def _read_file(portion: Portion, file: DataFile, schema: pa.Schema, time_column: str) -> tuple[pa.Table, Numbers]:
    """Columns of those row groups of a file that may have rows that are asked for, and the rows' numbers."""
    with segment.storage_errors(), pq.ParquetFile(Path(portion.folder) / file.path) as opened:
        footer, present = opened.metadata, opened.schema_arrow.names
        starts = np.cumsum(
            [file.row_id_start, *(footer.row_group(g).num_rows for g in range(footer.num_row_groups))]
        )
        is_plain = ROW_ID_COLUMN not in present
        groups = [
            g
            for g in range(footer.num_row_groups)
            if _may_have(footer, g, time_column, portion.spans)
            and (not is_plain or overlaps(int(starts[g]), int(starts[g + 1]) - 1, portion.numbers))
        ]
        data = opened.read_row_groups(groups, [n for n in (*schema.names, ROW_ID_COLUMN) if n in present])
    if is_plain:
        ids = np.concatenate([np.empty(0, np.int64), *(np.arange(starts[g], starts[g + 1]) for g in groups)])
    else:
        ids = np.asarray(data.column(ROW_ID_COLUMN).to_numpy(), np.int64)
    return segment.completed(schema, data), ids


def _may_have(footer: pq.FileMetaData, group: int, time_column: str, spans: Spans) -> bool:
    place = footer.schema.names.index(time_column)
    known = footer.row_group(group).column(place).statistics
    if known is None or not known.has_min_max:
        return True
    return overlaps(instant(known.min), instant(known.max), spans)


def overlaps(low: int, high: int, spans: Spans) -> bool:
    """Whether something between two values, both included, is in one of some spans."""
    return any(low <= end and start <= high for start, end in spans)
