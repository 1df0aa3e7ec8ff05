"""What a step reads: the rows of a query's streams, as arrays and as relations for the texts of its plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.plan.incremental import stream_name
from millstream.plan.standing import (
    ENTER,
    LEAVE,
    ROW_NUMBER,
    Sampling,
    WindowKind,
    all_name,
    basket_name,
    new_name,
    old_name,
    rows_name,
)
from millstream.queries.answering import Feed
from millstream.queries.arrivals import Arrived, Came, arrived
from millstream.queries.tasks import Large, with_marks
from millstream.queries.windows import Marking, Numbering, enter_of, late_name, rows_sql
from millstream.schema import TIMESTAMP
from millstream.storage import segment, state
from millstream.storage.scan import ROW
from millstream.storage.watermark import NEVER, times_of
from millstream.views.overlay import new_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from millstream.catalog.records import Snapshot, TableInfo
    from millstream.plan.standing import QueryPlan
    from millstream.queries.instants import Instant
    from millstream.queries.place import Place
    from millstream.queries.run import Look, Run
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan


class Feeder:
    """Reads streams at a look."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._last_ids: dict[int, int] = {}

    def arrived(self, place: Place, look: Look, stream_id: int) -> Arrived:
        """The rows of a stream that are new to a query."""
        table, seen = look.tables[stream_id], place.streams[stream_id]
        scan = state.new_rows(self._lake, table, look.snapshot, seen.position, self._last_ids)
        return arrived(self._lake, table, scan, look.upto[stream_id], seen, look.arrived_until[stream_id])

    def arrived_before(self, place: Place, look: Look, stream_id: int, *, is_stale: bool) -> Arrived:
        """The rows that a query has seen, as they are stored now."""
        table, seen = look.tables[stream_id], place.streams[stream_id]
        since = replace(seen, position=0 if is_stale else seen.low)
        scan = state.new_rows(self._lake, table, look.snapshot, since.position, self._last_ids)
        found = arrived(
            self._lake, table, scan, seen.position, replace(since, mark=None), look.arrived_until[stream_id]
        )
        known = found.ids < seen.position
        late = dict(place.late.get(stream_id, []))
        met = np.array([late.get(int(i), NEVER) for i in found.ids[known]], np.int64)
        return Arrived(stream_id, Came(found.ids[known], found.times[known], met), seen, since)

    def rows(self, table: TableInfo, look: Look, found: Arrived) -> pa.Table:
        """The new rows themselves, in the order in which they came."""
        return self._read(table, look, found.before.position, found.seen.position)[0]

    def between(self, table: TableInfo, look: Look, since: int, below: int) -> pa.Table:
        """The rows of a stream between two numbers, in the order in which they came."""
        return self._read(table, look, since, below)[0]

    def new(self, table: TableInfo, look: Look, found: Arrived) -> Scan:
        """Where the new rows are."""
        return self.since(table, look.snapshot, found.before.position)

    def since(self, table: TableInfo, snapshot: Snapshot, row: int) -> Scan:
        """Where the rows of a stream from a number on are."""
        return state.new_rows(self._lake, table, snapshot, row, self._last_ids)

    def _read(self, table: TableInfo, look: Look, since: int, below: int) -> tuple[pa.Table, NDArray[np.int64]]:
        """The rows of a stream between two numbers, and their numbers."""
        scan = state.new_rows(self._lake, table, look.snapshot, since, self._last_ids)
        parts, ids = [table.schema.arrow.empty_table()], [np.empty(0, np.int64)]
        for file in scan.files:
            data, own = segment.read(self._lake.folder(table), table, file)
            parts.append(data)
            ids.append(np.asarray(own.to_numpy(zero_copy_only=False), np.int64))
        if scan.inlined is not None and scan.inlined_ids is not None:
            parts.append(scan.inlined)
            ids.append(np.asarray(scan.inlined_ids.to_numpy(zero_copy_only=False), np.int64))
        every = np.concatenate(ids)
        order = np.argsort(every, kind="stable")
        low, high = np.searchsorted(every[order], [since, below])
        order = order[low:high]
        return pa.concat_tables(parts).take(pa.array(order, pa.int64())), every[order]

    def _marked(self, marking: Marking, look: Look, found: Arrived, since: int) -> pa.Table:
        """The rows of a window that is not held, with their marks: what `rows_sql` gives, here."""
        table = look.tables[found.stream]
        assert table.time is not None
        rows, ids = self._read(table, look, since, found.seen.position)
        marks = marking.marks(ids, times_of(rows.column(table.time.column)))
        return with_marks(rows, marks | {ROW: ids})

    @staticmethod
    def _marking(
        plan: QueryPlan, number: int, found: Arrived, place: Place, counted: int, unsampled: int
    ) -> Marking:
        window, sample = plan.windows[number], plan.sample
        if sample.is_by_time:
            return Marking(window, sample, dict([*place.late.get(found.stream, []), *found.late]))
        numbers = None
        if not _is_plain(found):
            numbers = (found.ids, np.asarray(np.cumsum(found.counted) - found.counted + counted, np.int64))
        return Marking(window, sample, {}, found.before.position, counted, unsampled, numbers)

    def feed(
        self,
        run: Run,
        place: Place,
        look: Look,
        came: Sequence[Arrived],
        counted: int,
        *,
        is_new: bool,
        due: Sequence[Instant] = (),
        most_here: int = 0,
    ) -> Feed:
        """The rows of a query's windows: new ones alone, or all that may be needed; here, where they are few."""
        feed, plan, unsampled = Feed(), run.plan, run.place.unsampled
        by_stream = {a.stream: a for a in came}
        for number, window in enumerate(plan.windows):
            table, found = look.tables[window.stream], by_stream[window.stream]
            if number in run.held and not is_new:
                feed.put(rows_name(number), _typed(run.held[number].with_stretches(), plan))
                feed.rows[number] = rows_name(number)
                continue
            since = found.before.position if is_new else min(found.before.position, found.before.low)
            marking = self._marking(plan, number, found, place, counted, unsampled)
            if found.seen.position - since <= most_here:
                rows = self._marked(marking, look, found, since)
                if is_new:
                    rows = _in_windows(rows)
                    feed.put(stream_name(number), rows)
                feed.put(rows_name(number), rows)
                feed.rows[number] = rows_name(number)
                continue
            scan = state.new_rows(self._lake, table, look.snapshot, since, self._last_ids)
            feed.scans[basket_name(table.id)] = new_rows(scan)
            if is_new:
                feed.large[number] = Large(scan, marking, found.seen.position)
            late = self._late(plan, place, found, counted, is_new=is_new)
            if late is not None:
                feed.put(late_name(number), late)
            numbering = None
            if not plan.sample.is_by_time:
                numbering = Numbering(found.before.position, counted, unsampled)
            bounds = self._bounds(plan, number, due) if not is_new else None
            feed.rows[number] = rows_sql(
                window, number, table, plan.sample, has_late=late is not None, numbering=numbering, bounds=bounds,
                below=found.seen.position,
            )  # fmt: skip
        return feed

    def tell_new_from_old(
        self,
        feed: Feed,
        run: Run,
        place: Place,
        look: Look,
        came: Sequence[Arrived],
        counted: int,
        most_here: int,
    ) -> None:
        """Let new and old rows of windows stand under names of their own, for pairs."""
        by_stream = {a.stream: a for a in came}
        for number in run.plan.paired:
            found = by_stream[run.plan.windows[number].stream]
            position = found.before.position
            rows = feed.arrow.get(rows_name(number))
            if rows is None:
                every = f"SELECT * FROM ({feed.rows[number]}) WHERE {LEAVE} >= {ENTER}"
                feed.texts[all_name(number)] = f"({every})"
                feed.texts[old_name(number)] = f"({every} AND {ROW_NUMBER} < {position}L)"
                if found.seen.position - position > most_here:
                    feed.texts[new_name(number)] = f"({every} AND {ROW_NUMBER} >= {position}L)"
                    continue
                # Spark joins rows that it knows to be few without a shuffle.
                marking = self._marking(run.plan, number, found, place, counted, run.place.unsampled)
                feed.put(new_name(number), _in_windows(self._marked(marking, look, found, position)))
                continue
            rows = _in_windows(rows)
            is_new = pc.greater_equal(rows.column(ROW_NUMBER), position)
            feed.put(all_name(number), rows)
            feed.put(new_name(number), rows.filter(is_new))
            feed.put(old_name(number), rows.filter(pc.invert(is_new)))

    @staticmethod
    def _bounds(plan: QueryPlan, number: int, due: Sequence[Instant]) -> tuple[int, int] | None:
        window = plan.windows[number]
        if not due or window.kind not in (WindowKind.INTERVAL, WindowKind.CUT):
            return None
        return min(i.tau for i in due) - window.length, max(i.tau for i in due)

    @staticmethod
    def _late(plan: QueryPlan, place: Place, found: Arrived, counted: int, *, is_new: bool) -> pa.Table | None:
        """What the plain formulas do not know: watermarks that late rows met, numbers after rows not counted."""
        if plan.sample.is_by_time:
            late = found.late if is_new else place.late.get(found.stream, [])
            if not late:
                return None
            ids, met = zip(*late, strict=True)
            return pa.table({"id": pa.array(ids, pa.int64()), "met": pa.array(met, pa.int64())})
        if _is_plain(found):
            return None
        before = np.cumsum(found.counted) - found.counted + counted
        return pa.table({"id": pa.array(found.ids, pa.int64()), "met": pa.array(before, pa.int64())})


def _in_windows(rows: pa.Table) -> pa.Table:
    """Those rows alone that are in the window at some instant."""
    return rows.filter(pc.greater_equal(rows.column(LEAVE), rows.column(ENTER)))


def _is_plain(found: Arrived) -> bool:
    """Whether all rows count, one number after the other."""
    if not len(found.ids):
        return True
    return bool(found.counted.all()) and int(found.ids[-1]) - found.before.position + 1 == len(found.ids)


def enter(plan: QueryPlan, found: Arrived, counted: int, place: Place | None = None) -> NDArray[np.int64]:
    """From which place on the axis of instants rows are in a window; `counted` rows came before.

    With a place they are rows that have been seen up to there.
    """
    if plan.sample.is_by_time:
        return enter_of(plan.sample, found.enter)
    if place is not None:
        return np.where(found.ids < place.unsampled, 0, place.accepted // plan.sample.step + 1)
    before = np.cumsum(found.counted) - found.counted + counted
    return np.asarray(before // plan.sample.step + 1, np.int64)


def _typed(rows: pa.Table, plan: QueryPlan) -> pa.Table:
    """Session windows have their bounds as the stream's time is."""
    if plan.is_integer_time or "window_start" not in rows.column_names:
        return rows
    for name in ("window_start", "window_end"):
        place = rows.column_names.index(name)
        rows = rows.set_column(place, name, rows.column(place).cast(TIMESTAMP))
    return rows


def first_on_time(plan: QueryPlan, place: Place, came: list[Arrived]) -> list[Arrived]:
    """The first row of all counts as on time: the instants from its own on exist since it came."""
    with_rows = [a for a in came if len(a.times)]
    if plan.sample.kind not in (Sampling.INTERVAL, Sampling.ENDS) or place.next is not None or not with_rows:
        return came
    first = min(with_rows, key=lambda a: int(a.times[0]))
    met = first.met.copy()
    if first.times[0] < met[0]:
        place.first_late = int(first.times[0])
    met[0] = NEVER
    return [replace(a, rows=replace(a.rows, met=met)) if a is first else a for a in came]
