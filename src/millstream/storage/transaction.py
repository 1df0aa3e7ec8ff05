"""Changes to any number of tables, committed as one snapshot or not at all.

Rows are staged first (segments on disk, inlined rows in memory), then `commit` makes them part of
the catalogue in one transaction. A transaction reads its base snapshot plus its own changes. Removal
is by whole files: what survives of a file's rows is staged as a new segment under the same row ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import finalize

import pyarrow as pa

from millstream.catalog import files, inlined, streams, tables, views
from millstream.catalog.commits import Receipt
from millstream.catalog.records import ColumnStats, DataFile, Segment, TableInfo
from millstream.errors import Condition, MachineError
from millstream.schema import TIMESTAMP, ObjectKind, is_nested
from millstream.storage import constraints, inline, period, segment, watermark
from millstream.storage.scan import Scan, plan, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import Snapshot
    from millstream.storage.index import Chooser
    from millstream.storage.lake import Lake
    from millstream.storage.prune import Comparison

VIEWS = (ObjectKind.VIEW, ObjectKind.CONTINUOUS_VIEW, ObjectKind.CONTINUOUS_QUERY)


@dataclass(frozen=True, slots=True)
class Written:
    """What a commit added to a table, for whoever plans the upkeep."""

    table: TableInfo
    inlined_rows: int
    segments: int
    rows: int
    removes: bool = False
    late: int = 0


@dataclass
class Staged:
    """What a transaction will do to one table."""

    table: TableInfo
    segments: list[Segment] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    inlined_end: tuple[int, int] | None = None
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    row_stats: list[dict[int, ColumnStats]] = field(default_factory=list)
    times: list[NDArray[np.int64]] = field(default_factory=list)
    late: int = 0

    @property
    def removes(self) -> bool:
        return bool(self.removed) or self.inlined_end is not None

    def written(self) -> Written:
        rows = len(self.rows) + sum(s.rows for s in self.segments)
        return Written(self.table, len(self.rows), len(self.segments), rows, self.removes, self.late)


class Transaction:
    """See the module's contract. Not for several threads at once."""

    def __init__(self, lake: Lake, *, is_long: bool = False) -> None:
        self._lake = lake
        self.late_rows = 0
        self.is_long = is_long
        self._staged: dict[int, Staged] = {}
        self._created: dict[str, TableInfo] = {}
        self._dropped: dict[int, TableInfo] = {}
        self._made = 0
        self._also: list[Callable[[Commit], object]] = []
        # First, so that upkeep sees it; what is committed just now may conflict with it all the same.
        lake.began(self)
        self.moment = lake.catalog.pin_now()
        self.base: Snapshot = self.moment.snapshot
        self._unpin = finalize(self, lake.catalog.unpin, self.base.id)

    def tables(self) -> Mapping[str, TableInfo]:
        """The tables as this transaction sees them: those of its base with its own changes."""
        known = self._lake.catalog.tables(self.base)
        kept = {name: t for name, t in known.items() if t.id not in self._dropped}
        return kept | self._created

    def current(self, table: TableInfo) -> TableInfo:
        """The table as it is here, which was looked up earlier: it may have got columns meanwhile."""
        found = self.tables().get(table.name.lower())
        if found is None or found.id != table.id:
            raise conflict(table)
        return found

    def create(self, wanted: TableInfo) -> TableInfo:
        """Stage a new table; until the commit it has a number of this transaction's own."""
        self._made += 1
        table = replace(wanted, id=-self._made)
        self._created[table.name.lower()] = table
        return table

    def drop(self, table: TableInfo) -> None:
        """Stage the end of a table, with all that was staged for it."""
        staged = self._staged.pop(table.id, None)
        if staged is not None:
            segment.remove(self._lake.folder(table), staged.segments)
        if self._created.pop(table.name.lower(), None) is None or table.id >= 0:
            self._dropped[table.id] = table

    def _of(self, table: TableInfo) -> Staged:
        return self._staged.setdefault(table.id, Staged(table))

    def stamped(self, table: TableInfo, data: pa.Table) -> pa.Table:
        """The rows with the time of their arrival, if that is the table's time."""
        if table.time is None or not table.time.is_arrival:
            return data
        place = table.schema.names.index(table.time.column)
        now = pa.scalar(self._lake.stamp(self, table), TIMESTAMP)
        return data.set_column(place, data.schema.field(place), pa.repeat(now, data.num_rows))

    def append(self, table: TableInfo, data: pa.Table) -> int:
        """Stage new rows: inlined if they are few, as segments otherwise."""
        staged = self._of(table)
        data = constraints.checked(table, data)
        if table.inlined_table and inline.is_small(data):
            rows, row_stats = inline.to_rows(table, data)
            staged.rows += rows
            staged.row_stats.append(row_stats)
        else:
            self._settle_own_rows(staged)
            staged.segments += segment.write_all(self._lake.folder(table), table, _parts(table, data))
        self._note_times(staged, data)
        return int(data.num_rows)

    def append_all(self, table: TableInfo, batches: Iterable[pa.Table]) -> int:
        """Stage a stream of batches as segments, in bounded memory."""
        noted = Staged(table)

        def parts() -> Iterable[pa.Table]:
            for part in segment.regrouped(constraints.checked(table, batch) for batch in batches):
                self._note_times(noted, part)
                yield from _parts(table, part)

        written = segment.write_all(self._lake.folder(table), table, parts())
        self._settle_own_rows(self._of(table))
        self._of(table).segments += written
        self._of(table).times += noted.times
        return sum(s.rows for s in written)

    def append_segments(self, table: TableInfo, segments: Sequence[Segment]) -> int:
        """Stage segments that somebody else (a Spark task) has written into the table's folder."""
        staged = self._of(table)
        self._settle_own_rows(staged)
        staged.segments += segments
        if table.time is not None:
            folder = self._lake.folder(table)
            staged.times += [
                watermark.times_of(segment.read_column(folder, part.path, table.time.column)) for part in segments
            ]
        return sum(s.rows for s in segments)

    def _settle_own_rows(self, staged: Staged) -> None:
        """Make staged rows a segment, so that what is staged after them gets later row ids."""
        if staged.rows:
            data, _ = inline.from_rows(staged.table, [(-1, *row) for row in staged.rows])
            staged.segments.append(segment.write(self._lake.folder(staged.table), staged.table, data))
            staged.rows, staged.row_stats = [], []

    @staticmethod
    def _note_times(staged: Staged, data: pa.Table) -> None:
        if staged.table.time is not None and data.num_rows:
            staged.times.append(watermark.times_of(data.column(staged.table.time.column)))

    def scan(self, table: TableInfo, comparisons: Sequence[Comparison] = (), horizon: int | None = None) -> Scan:
        """The table as this transaction sees it: its base snapshot with its own changes."""
        return self._merged(self._stored(table, comparisons, horizon))

    def read(self, table: TableInfo, comparisons: Sequence[Comparison] = (), horizon: int | None = None) -> Scan:
        """The same for a query: through index copies where they help."""
        return self._merged(self._stored(table, comparisons, horizon, self._lake.chooser))

    def _merged(self, found: Scan) -> Scan:
        staged = self._staged.get(found.table.id)
        return found if staged is None else visible(self._with_own(found, staged))

    def _stored(
        self,
        table: TableInfo,
        comparisons: Sequence[Comparison] = (),
        horizon: int | None = None,
        chooser: Chooser | None = None,
    ) -> Scan:
        if table.id < 0:
            return Scan(table, self.base.id, (), horizon=horizon)
        with self._lake.catalog.read() as connection:
            return plan(connection, table, self.base.id, comparisons, horizon, chooser)

    def _with_own(self, found: Scan, staged: Staged) -> Scan:
        own = [_as_file(staged.table, s, -1 - i) for i, s in enumerate(staged.segments)]
        kept = [f for f in found.files if f.id not in staged.removed]
        data, ids = found.inlined, found.inlined_ids
        if staged.inlined_end is not None:
            data, ids = None, None
        if staged.rows:
            new, new_ids = inline.from_rows(staged.table, [(-1, *row) for row in staged.rows])
            data = new if data is None else pa.concat_tables([data, new])
            ids = new_ids if ids is None else pa.concat_arrays([ids, new_ids])
        return replace(found, files=(*kept, *own), inlined=data, inlined_ids=ids)

    def materialise(self, table: TableInfo) -> Scan:
        """Stage all inlined rows as segments, so that every row of the table is in a file."""
        staged = self._of(table)
        folder = self._lake.folder(table)
        self._settle_own_rows(staged)
        if staged.inlined_end is None:
            found = self.scan(table)
            if found.inlined is not None and found.inlined_ids is not None:
                staged.segments.append(segment.write(folder, table, found.inlined, found.inlined_ids))
                staged.inlined_end = (found.inlined_ids[-1].as_py(), found.inlined.num_rows)
        segment.sync_folder(folder)
        return self.scan(table)

    def replace(self, table: TableInfo, gone: Iterable[DataFile], survivors: Sequence[Segment]) -> None:
        """Stage the removal of files and what remains of their rows."""
        staged = self._of(table)
        own = [f for f in gone if f.id < 0]
        dropped = {f.path for f in own}
        segment.remove(self._lake.folder(table), [s for s in staged.segments if s.path in dropped])
        staged.segments = [s for s in staged.segments if s.path not in dropped]
        staged.removed |= {f.id for f in gone if f.id >= 0}
        staged.segments += survivors
        if survivors:
            segment.sync_folder(self._lake.folder(table))

    def clear(self, table: TableInfo) -> int:
        """Stage the removal of every row; returns how many there were."""
        found = self.scan(table)
        staged = self._of(table)
        before = self._stored(table)
        self.replace(table, found.files, [])
        staged.rows, staged.row_stats, staged.times = [], [], []
        if staged.inlined_end is None and before.inlined is not None and before.inlined_ids is not None:
            staged.inlined_end = (before.inlined_ids[-1].as_py(), before.inlined.num_rows)
        return found.rows

    def also(self, work: Callable[[Commit], object]) -> None:
        """Have something else happen in the same commit, after what is staged."""
        self._also.append(work)

    def commit(self) -> None:
        """Make all staged changes one snapshot. On any error nothing is kept."""
        staged = [s for s in self._staged.values() if s.segments or s.removes or s.rows or s.times]
        defines = bool(self._created or self._dropped)
        shareable = not defines and not any(s.removes for s in staged)
        receipt = Receipt()
        try:
            for part in staged:
                if part.removes:
                    self._lake.settle(part.table.id)
            if staged or defines or self._also:
                self._lake.catalog.commit(lambda c: self._apply(c, staged), shareable=shareable, receipt=receipt)
        except BaseException:
            if receipt.committed:
                # Who waits for rows is told of them, whatever becomes of the caller.
                self._tell(staged)
            else:
                self.rollback()
            raise
        self.late_rows = sum(s.late for s in staged)
        self._tell(staged)

    def _tell(self, staged: Sequence[Staged]) -> None:
        try:
            self._lake.committed([s.written() for s in staged])
        finally:
            self._finish()

    def _apply(self, commit: Commit, every: Sequence[Staged]) -> None:
        for table in sorted(self._dropped.values(), key=lambda t: t.kind not in VIEWS):
            check_still_there(commit, table)
            if table.kind in VIEWS:
                end_view(commit, table)
            elif views.has_readers(commit.connection, table.id):
                # A view has come since the statement looked.
                raise conflict(table)
            else:
                tables.drop(commit, table)
        made = {wanted.id: _create(commit, wanted) for wanted in self._created.values()}
        for staged in every:
            if staged.table.id in made:
                staged.table = made[staged.table.id]
            else:
                self._fit(commit, staged)
            _apply(commit, staged)
        for work in self._also:
            work(commit)

    def _fit(self, commit: Commit, staged: Staged) -> None:
        """Fit what was staged to the table as it is now: it may have been looked up before we began."""
        table = self._lake.catalog.tables(commit.base).get(staged.table.name.lower())
        if table is None or table.id != staged.table.id:
            raise conflict(staged.table)
        if table.schema_version != staged.table.schema_version:
            _meet_new_version(table, staged)

    def rollback(self) -> None:
        """Forget all staged changes and delete what was written for them."""
        for staged in self._staged.values():
            segment.remove(self._lake.folder(staged.table), staged.segments)
        self._finish()

    def _finish(self) -> None:
        self._staged.clear()
        self._unpin()
        self._lake.finished(self)

    def removes_from(self, table: TableInfo) -> bool:
        """Whether this transaction takes rows from the table; upkeep leaves it alone meanwhile."""
        staged = self._staged.get(table.id)
        return staged is not None and staged.removes


def _parts(table: TableInfo, data: pa.Table) -> Iterable[pa.Table]:
    """The rows in segments: of bounded size, and each in one compartment of a streaming table."""
    for part in segment.sliced(data):
        if table.kind is ObjectKind.STREAMING_TABLE:
            yield from period.runs(table, part)
        else:
            yield part


def _as_file(table: TableInfo, part: Segment, file_id: int) -> DataFile:
    has_row_ids = part.row_id_start is not None
    file = DataFile(file_id, part.path, part.rows, part.bytes, part.row_id_start or 0, 0, has_row_ids)
    if table.kind is not ObjectKind.STREAMING_TABLE:
        return file
    low, high = part.times(table)
    return replace(file, low=low, high=high)


def _meet_new_version(table: TableInfo, staged: Staged) -> None:
    """Give the rows that were staged the columns that have come meanwhile."""
    if staged.removes:
        raise conflict(staged.table)
    added = table.column_ids[len(staged.table.column_ids) :]
    staged.table = table
    if not table.inlined_table and staged.rows:
        raise conflict(staged.table)
    staged.rows = [(*row, *[None] * len(added)) for row in staged.rows]
    staged.row_stats = [stats | _all_null(table, added, _count(stats)) for stats in staged.row_stats]
    staged.segments = [replace(s, columns=s.columns | _all_null(table, added, s.rows)) for s in staged.segments]


def _all_null(table: TableInfo, column_ids: Sequence[int], rows: int) -> dict[int, ColumnStats]:
    """What is known of columns that came while rows without them were on their way."""
    return {i: ColumnStats(nulls=rows) for i in column_ids if not is_nested(table.column(i).type)}


def _count(known: dict[int, ColumnStats]) -> int:
    return max(s.values + s.nulls for s in known.values())


def _create(commit: Commit, wanted: TableInfo) -> TableInfo:
    names = commit.connection.execute(
        "SELECT table_name FROM ducklake_table WHERE end_snapshot IS NULL"
        " UNION ALL SELECT view_name FROM millstream_view WHERE end_snapshot IS NULL"
    )
    if wanted.name.lower() in {name.lower() for (name,) in names}:
        raise conflict(wanted)
    return views.create(commit, wanted) if wanted.kind in VIEWS else tables.create(commit, wanted)


def end_view(commit: Commit, view: TableInfo) -> None:
    """A view goes with the tables that hold its state, but for those that others share."""
    views.drop(commit, view)
    if view.continuous is not None:
        every = {t.id: t for t in tables.load(commit.connection, commit.base.id).values()}
        others = [v.continuous for v in views.load(commit.connection, commit.snapshot_id).values() if v.continuous]
        shared = {table_id for other in others for table_id in other.statics}
        for table_id in (*view.continuous.states, *view.continuous.statics):
            if table_id in every and table_id not in shared:
                tables.drop(commit, every[table_id])


def _apply(commit: Commit, staged: Staged) -> None:
    table = staged.table
    if staged.removes:
        commit.removed_from.add(table.id)
    if staged.removed:
        files.end(commit, table, staged.removed)
    if staged.inlined_end is not None:
        _end_inlined(commit, staged)
    if staged.segments:
        files.add(commit, table, staged.segments)
    for row_stats in staged.row_stats[:1]:
        merged = row_stats
        for more in staged.row_stats[1:]:
            merged = {i: merged[i].merged(more[i]) for i in merged}
        inlined.insert(commit, table, staged.rows, merged)
    if staged.times and table.time is not None:
        state = streams.state_of(commit, table.id)
        before = state.late_rows
        for times in staged.times:
            state = watermark.after_rows(state, table.time.delay.amount, times, arrival=table.time.is_arrival)
        staged.late = state.late_rows - before
        streams.save(commit, table.id, state)


def check_still_there(commit: Commit, table: TableInfo) -> None:
    """Raise if the table has been dropped meanwhile."""
    row = commit.connection.execute(
        "SELECT 1 FROM ducklake_table WHERE table_id = ? AND end_snapshot IS NULL", (table.id,)
    ).fetchone()
    if row is None and not views.is_there(commit.connection, table.id):
        raise conflict(table)


def check_same_version(commit: Commit, table: TableInfo) -> None:
    """Raise if the table has been dropped or has got columns meanwhile."""
    check_still_there(commit, table)
    row = commit.connection.execute(
        "SELECT max(schema_version) FROM ducklake_schema_versions WHERE table_id = ?", (table.id,)
    ).fetchone()
    if row[0] is not None and row[0] != table.schema_version:
        raise conflict(table)


def conflict(table: TableInfo | str) -> MachineError:
    name = table if isinstance(table, str) else table.name
    return MachineError(
        Condition.WRITE_CONFLICT,
        f"another statement created, changed or dropped {name!r} at the same time",
        hint="Run the statement again.",
    )


def _end_inlined(commit: Commit, staged: Staged) -> None:
    through, count = staged.inlined_end or (0, 0)
    before = commit.connection.total_changes
    inlined.end(commit, staged.table, through)
    if commit.connection.total_changes - before != count:
        raise conflict(staged.table)
    commit.changed(f"inlined_delete:{staged.table.id}")
