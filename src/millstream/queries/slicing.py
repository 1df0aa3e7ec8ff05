"""Units of scheduled joins, done: which files they need, what is done here, and what in tasks of one job.

What is small is done in the driver, by the same function. Files never change, so the times that they hold are
asked for once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.catalog import stats
from millstream.queries import slices
from millstream.queries.chorus import AloneError
from millstream.queries.parcels import Parcel, Rows
from millstream.queries.slices import Pairs, Portion, Trouble, Unit
from millstream.queries.tasks import MOST_TASKS, in_tasks
from millstream.schema import instant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.catalog.records import DataFile, TableInfo
    from millstream.execute.session import Spark
    from millstream.queries.feeding import Feeder
    from millstream.queries.run import Look
    from millstream.queries.slices import Passes, Reach, Spans
    from millstream.queries.turns import Marked
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan

HERE_ROWS = 2_097_152
"""A unit that reads no more rows than this is done in the driver: in less time than the smallest job takes."""
HERE_PAIRS = 16_777_216
"""And has no more pairs to test, where no columns are to be equal."""
FILES_KNOWN = 65_536


class Slicer:
    """See the module's contract."""

    def __init__(self, lake: Lake, spark: Spark, feeder: Feeder) -> None:
        self._lake = lake
        self._spark = spark
        self._feeder = feeder
        self._times: dict[int, tuple[int, int] | None] = {}

    def rows(self, table: TableInfo, look: Look, wanted: Marked, reach: Reach, columns: Sequence[str]) -> Rows:
        """Some rows of a stream, in the order in which they came."""
        assert table.time is not None
        ids, times = wanted.ids, wanted.times
        if np.any(ids[1:] < ids[:-1]):
            order = np.argsort(ids, kind="stable")
            ids, times = ids[order], times[order]
        scan = self._feeder.since(table, look.snapshot, int(ids[0]))
        spans = ((int(times.min()), int(times.max())),)
        numbers = ((int(ids[0]), int(ids[-1])),)
        portion = self._portion(0, scan, tuple(columns), table.time.column.lower(), spans, numbers)
        parts, found = [], [np.empty(0, np.int64)]
        for rows, own in slices.read(portion):
            kept = np.isin(own, ids)
            parts.append(rows.filter(pa.array(kept)))
            found.append(own[kept])
        every = np.concatenate(found)
        if not len(every):
            return slices.no_rows(table, columns)
        made = pa.concat_tables(parts)
        if np.any(every[1:] < every[:-1]):
            made, every = made.take(pa.array(np.argsort(every, kind="stable"))), np.sort(every)
        if len(every) < len(ids):
            # What no window can need any more may have gone.
            ids, times = every, times[np.searchsorted(ids, every)]
        return Rows(made.combine_chunks(), ids, times, reach.enter(ids, times))

    def parcel(self, rows: Rows) -> Parcel:
        """A batch such as tasks can be sent."""
        return Parcel(rows, self._lake.scratch)

    def portions(self, units: Sequence[Unit], look: Look) -> list[Portion]:
        """What is to be read for each of some units."""
        return [self._of_unit(n, unit, look) for n, unit in enumerate(units)]

    def run(self, portions: Sequence[Portion], passes: Passes) -> tuple[list[Pairs], int]:
        """What is found in portions, and how many jobs that took; `passes` tests pairs where the kernel cannot."""
        large = [p for p in portions if not is_small(p)]
        results = _run_here(_opened([p for p in portions if is_small(p)]))
        for own in in_tasks(self._spark.session, slices.run, _shares(large)) if large else ():
            results += own
        unproven = {n for n, pairs in results if pairs is Trouble.UNPROVEN}
        again = _opened([p for p in portions if p.number in unproven])
        results = [r for r in results if r[0] not in unproven] + slices.run(again, passes)
        found: list[list[Pairs]] = [[slices.no_pairs(p.asked)] for p in portions]
        for number, pairs in results:
            if isinstance(pairs, Trouble):
                raise AloneError
            found[number].append(pairs)
        return [Pairs.together(parts) for parts in found], int(bool(large))

    def _of_unit(self, number: int, unit: Unit, look: Look) -> Portion:
        scan, at_hand = self._feeder.since(unit.table, look.snapshot, unit.reach.since), unit.opened()
        spans, numbers = unit.ruler.times(at_hand), unit.ruler.numbers(at_hand)
        made = self._portion(number, scan, unit.columns, unit.time_column, spans, numbers)
        return replace(made, unit=replace(unit, ruler=unit.ruler.only(at_hand)))

    def _portion(
        self, number: int, scan: Scan, columns: tuple[str, ...], time: str, spans: Spans, numbers: Spans
    ) -> Portion:
        """Where rows of some times and numbers are."""
        self._learn(scan)
        files = tuple(f for f in scan.files if self._may_have(f, spans) and _may_be(f, numbers))
        inlined = None
        if scan.inlined is not None and scan.inlined_ids is not None:
            inlined = (scan.inlined, np.asarray(scan.inlined_ids.to_numpy(zero_copy_only=False), np.int64))
        folder = str(self._lake.folder(scan.table))
        return Portion(number, folder, scan.table, columns, time, spans, numbers, files, inlined)

    def _learn(self, scan: Scan) -> None:
        """Find out which times files hold."""
        table, new = scan.table, [f.id for f in scan.files if f.id not in self._times]
        if not new or table.time is None:
            return
        if len(self._times) > FILES_KNOWN:
            self._times.clear()
            new = [f.id for f in scan.files]
        names = [n.lower() for n in table.schema.names]
        column = table.column_ids[names.index(table.time.column.lower())]
        with self._lake.catalog.read() as connection:
            known = stats.of_files(connection, table, scan.snapshot_id, [column], new)
        for file in new:
            own = known.get(file, {}).get(column)
            has_bounds = own is not None and own.low is not None and own.high is not None
            self._times[file] = (instant(own.low), instant(own.high)) if own is not None and has_bounds else None

    def _may_have(self, file: DataFile, spans: Spans) -> bool:
        known = self._times.get(file.id)
        return known is None or slices.overlaps(*known, spans)


def _may_be(file: DataFile, numbers: Spans) -> bool:
    """Whether a file may have rows with some numbers; only its smallest one is known without a look into it."""
    return any(file.row_id_start <= high for _, high in numbers)


def is_small(portion: Portion) -> bool:
    """Whether a portion is for the driver."""
    unit = portion.asked
    if not unit.equalities and portion.rows * len(unit) > HERE_PAIRS:
        return False
    return portion.rows <= HERE_ROWS


def _opened(portions: Sequence[Portion]) -> list[Portion]:
    """Portions for the driver, each batch read once."""
    parcels = {parcel: parcel.opened() for parcel in dict.fromkeys(p.asked.parcel for p in portions)}
    return [replace(p, unit=replace(p.asked, parcel=parcels[p.asked.parcel])) for p in portions]


def _run_here(portions: Sequence[Portion]) -> list[tuple[int, Pairs | Trouble]]:
    """What is found in the driver: each leaf in a thread, as reading and looking up are not Python's own work."""
    leaves = [own for leaf in (0, 1) if (own := [p for p in portions if p.asked.leaf == leaf])]
    if len(leaves) < 2 or any(p.asked.tests for p in portions):
        return slices.run(portions)
    with ThreadPoolExecutor(len(leaves)) as pool:
        return [found for own in pool.map(slices.run, leaves) for found in own]


def _shares(portions: Sequence[Portion]) -> list[list[Portion]]:
    """The work of some units, cut into as many pieces as there are cores; a file is read in one of them."""
    tasks = min(MOST_TASKS, os.cpu_count() or 1)
    shares: list[list[Portion]] = [[] for _ in range(tasks)]
    pieces: dict[tuple[int, int | None], list[Portion]] = {}
    for portion in portions:
        for file in portion.files:
            own = replace(portion, files=(file,), inlined=None)
            pieces.setdefault((portion.table.id, file.id), []).append(own)
        if portion.inlined is not None:
            pieces.setdefault((portion.table.id, None), []).append(replace(portion, files=()))
    loads = [0] * tasks
    for piece in sorted(pieces.values(), key=lambda own: -own[0].rows):
        least = loads.index(min(loads))
        shares[least] += piece
        loads[least] += piece[0].rows
    return [s for s in shares if s]
