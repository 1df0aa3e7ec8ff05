"""Keeping views up to date: new rows of a stream become partial results of every view on it.

One job over the new rows serves all views of a stream, and one commit makes their states and positions move on
together. A view whose fragment fails is found by halving, marked failed and left where it was; the stream and the
others go on. Safe for many threads: one advances at a time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millstream.catalog import files, views
from millstream.catalog.records import DataFile
from millstream.errors import MillstreamError
from millstream.execute import query
from millstream.execute.faults import own_fault
from millstream.execute.kernel import KernelError
from millstream.execute.passes import fuse, union
from millstream.execute.relation import ONE_PARTITION_ROWS
from millstream.execute.write import collect_passes, write_passes, write_rows
from millstream.ingest.progress import Progress
from millstream.plan.bind import bind_text
from millstream.plan.incremental import (
    ONCE,
    Part,
    ViewPlan,
    in_first_run,
    merged_name,
    state_name,
    static_name,
    stream_name,
)
from millstream.schema import ObjectKind
from millstream.storage import segment, state
from millstream.storage.reader import Reader
from millstream.storage.scan import Scan, visible
from millstream.views import merging
from millstream.views.kernels import HERE_ROWS, Kernels, can_merge, can_run
from millstream.views.merging import Done
from millstream.views.overlay import Overlay, new_rows, no_new_rows, table_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from millstream.catalog.records import Segment, Snapshot, TableInfo
    from millstream.execute.failures import Splice
    from millstream.execute.passes import Pass
    from millstream.execute.relation import Relations
    from millstream.execute.session import Spark
    from millstream.ingest.progress import Listener
    from millstream.storage.lake import Lake
    from millstream.views.making import Draft

MOST_ROWS = 4_194_304
"""A job reads about so many rows at most: what it holds stays bounded however far behind a view is."""
MOST_ROWS_HERE = 1_048_576
"""A basket of so many rows at most has its partial results brought to the driver, where they are small."""
TOO_LARGE = "maxResultSize"
"""What Spark says of a result that it would not bring to the driver."""
MOST_PIECES = 8
"""A state of more files than this is merged to one."""


AUTO, KERNEL, SPARK_SQL = EXECUTORS = ("auto", "kernel", "spark_sql")


@dataclass(frozen=True)
class Kept:
    """A continuous view as its keeper knows it: parts with the real names of what they read, and their states."""

    view: TableInfo
    plan: ViewPlan
    parts: tuple[Part, ...]
    states: tuple[TableInfo, ...]


class Keeper:
    """See the module's contract."""

    def __init__(self, lake: Lake, spark: Spark, relations: Relations, listener: Listener) -> None:
        self.lake = lake
        self.spark = spark
        self.relations = relations
        self.listener = listener
        self.lock = threading.RLock()
        self._last_ids: dict[int, int] = {}
        self._whole: dict[int, frozenset[str]] = {}
        self.executor = AUTO
        self.kernels = Kernels(lake, spark, relations.write_scratch)
        self._known: dict[int, Kept] = {}
        with lake.catalog.read() as connection:
            self.positions = views.positions(connection)
            self.failures = views.failures(connection)
        lake.on_removal(self.settle)

    # What there is

    def every(self) -> list[Kept]:
        """All continuous views there are now."""
        now = self.lake.catalog.current
        found = [t for t in self.lake.catalog.tables(now).values() if t.kind is ObjectKind.CONTINUOUS_VIEW]
        return [self.kept(t, now) for t in found]

    def kept(self, view: TableInfo, at: Snapshot | None = None) -> Kept:
        """The view as it is at a snapshot that has it, by default now."""
        known = self._known.get(view.id)
        if known is None:
            known = self._known[view.id] = self._load(view, at or self.lake.catalog.current)
        return known

    def there(self, view: TableInfo) -> Kept | None:
        """The view as it is now; None if it has gone since it was found."""
        now = self.lake.catalog.current
        return None if self.lake.catalog.table(view.id, now) is None else self.kept(view, now)

    def _load(self, view: TableInfo, at: Snapshot) -> Kept:
        info = view.continuous
        assert info is not None
        every = self.lake.catalog.hidden(at)
        plan = ViewPlan.from_json(info.plan)
        return Kept(
            view, plan, tuple(_placed(p, info.statics) for p in plan.parts), tuple(every[i] for i in info.states)
        )

    def forget(self, view_id: int) -> None:
        self._known.pop(view_id, None)
        self.positions.pop(view_id, None)
        self.failures.pop(view_id, None)

    def added(self, view: TableInfo) -> None:
        with self.lake.catalog.read() as connection:
            self.positions[view.id] = views.positions(connection).get(view.id, {})

    def is_behind(self, kept: Kept) -> bool:
        return any(self.lag(kept.view.id, stream_id) > 0 for stream_id in kept.plan.streams)

    def lag(self, view_id: int, stream_id: int) -> int:
        """How many rows of a stream a view has not seen."""
        return self._next_row_id(stream_id) - self._position(view_id, stream_id)

    def _position(self, view_id: int, stream_id: int) -> int:
        known = self.positions.get(view_id)
        if known is None:
            with self.lake.catalog.read() as connection:
                stored = views.positions(connection).get(view_id, {})
            # Another thread may have moved it on meanwhile.
            known = self.positions.setdefault(view_id, stored)
        return known.get(stream_id, 0)

    def _next_row_id(self, stream_id: int) -> int:
        stream = self._stream(stream_id)
        return 0 if stream is None else self.lake.catalog.table_stats(stream).next_row_id

    def _stream(self, stream_id: int, at: Snapshot | None = None) -> TableInfo | None:
        return next((t for t in self.lake.catalog.tables(at).values() if t.id == stream_id), None)

    # Moving on

    def settle(self, table_id: int) -> None:
        """Before rows are taken from a streaming table: every view has seen them."""
        if any(table_id in k.plan.streams for k in self.every()):
            self.advance(table_id)

    def catch_up(self, wanted: Iterable[Kept]) -> None:
        """Bring views up to all rows that are committed now."""
        sound = [k for k in wanted if k.view.id not in self.failures]
        behind = {s for k in sound for s in k.plan.streams if self.lag(k.view.id, s) > 0}
        for stream_id in sorted(behind):
            self.advance(stream_id)

    def catch_up_all(self) -> None:
        self.catch_up(self.every())

    def advance(self, stream_id: int) -> int:
        """Bring every view of a stream up to date; returns how many rows were new to some."""
        with self.lock:
            waiting: dict[int, list[Kept]] = {}
            for kept in self.every():
                if stream_id in kept.plan.streams and kept.view.id not in self.failures:
                    waiting.setdefault(self._position(kept.view.id, stream_id), []).append(kept)
            if not waiting:
                return 0
            upto = self._next_row_id(stream_id)
            # All go to one place, wherever they are: then one job serves them the next time.
            with self.lake.catalog.pinned_now() as moment:
                seen = [self._advance(stream_id, s, k, upto, moment.snapshot) for s, k in sorted(waiting.items())]
            if any(seen):
                # What was merged could not go while we kept the snapshot that it belonged to.
                state.sweep(self.lake, [t for group in waiting.values() for k in group for t in k.states])
            return sum(seen)

    def _advance(self, stream_id: int, since: int, group: Sequence[Kept], upto: int, snapshot: Snapshot) -> int:
        # The stream as it is at the snapshot: a change of its columns moves the rows that it has inlined.
        stream = self._stream(stream_id, snapshot)
        if stream is None:
            return 0
        scan = state.new_rows(self.lake, stream, snapshot, since, self._last_ids)
        upto = max(upto, _last_id(scan, self._last_ids) + 1)
        if upto <= since:
            return 0
        self._run(stream, scan, group, upto)
        return upto - since

    def _run(self, stream: TableInfo, scan: Scan, group: Sequence[Kept], upto: int) -> None:
        """Run the fragments of some views on new rows, and commit what they give."""
        try:
            changes = self._changes(stream, scan, group)
        except Exception as error:
            own = own_fault(error)
            if own is None:
                raise
            if len(group) == 1:
                self._fail(group[0], scan, upto, own)
                return
            half = len(group) // 2
            self._run(stream, scan, group[:half], upto)
            self._run(stream, scan, group[half:], upto)
            return
        moved = {k.view.id: {stream.id: upto} for k in group}
        try:
            is_done = state.commit(self.lake, state.Progress(tuple(changes), moved))
            for view_id, positions in moved.items() if is_done else ():
                self.positions.setdefault(view_id, {}).update(positions)
        except BaseException:
            # It may be durable all the same, so what is stored counts.
            for view_id in moved:
                self.positions.pop(view_id, None)
            raise
        if is_done:
            return
        left = {k.view.id for k in self.every()}
        if still := [k for k in group if k.view.id in left]:
            # A view was dropped meanwhile, and what was made for the others went with it.
            self._run(stream, scan, still, upto)

    def _changes(self, stream: TableInfo, scan: Scan, group: Sequence[Kept]) -> list[state.Change]:
        wanted = [(p, t) for k in group for p, t in zip(k.parts, k.states, strict=True) if stream.id in p.streams]
        if not scan.rows:
            return []
        done: list[tuple[int, Done]] = []
        try:
            for piece in state.in_pieces(scan, MOST_ROWS):
                alone = piece.rows == scan.rows
                by_kernel = self._by_kernel(piece, wanted, alone=alone)
                done += by_kernel.items()
                rest = [i for i in range(len(wanted)) if i not in by_kernel]
                done += zip(rest, self._by_spark(piece, [wanted[i] for i in rest], alone=alone), strict=True)
        except BaseException:
            for target, made in done:
                segment.remove(self.lake.folder(wanted[target][1]), made.new)
            raise
        return [self._change(t, [m for target, m in done if target == i]) for i, (_, t) in enumerate(wanted)]

    def _change(self, table: TableInfo, made: Sequence[Done]) -> state.Change:
        new = tuple(s for m in made for s in m.new)
        if len(made) == 1 and made[0].is_whole:
            self._whole[table.id] = frozenset(s.path for s in new)
        return state.Change(table, new, tuple(f for m in made for f in m.gone))

    def _by_kernel(self, scan: Scan, wanted: Sequence[tuple[Part, TableInfo]], *, alone: bool) -> dict[int, Done]:
        """What the kernel makes of the parts it can run, by their places; nothing if it fails on them."""
        if self.executor == SPARK_SQL:
            return {}
        snapshot = self.lake.catalog.current
        sources = self._sources(" ".join(p.fragment for p, _ in wanted), scan, snapshot)
        chosen = [i for i, (p, t) in enumerate(wanted) if can_run(p, t, sources)]
        if not chosen:
            return {}

        def pieces(table: TableInfo) -> list[DataFile]:
            return self.pieces(table, snapshot) if alone else []

        try:
            done = self.kernels.run(scan, [wanted[i] for i in chosen], sources, pieces)
        except KernelError:
            # Spark says what is wrong in its own words, or is not troubled by it.
            return {}
        return dict(zip(chosen, done, strict=True))

    def _by_spark(self, scan: Scan, wanted: Sequence[tuple[Part, TableInfo]], *, alone: bool) -> list[Done]:
        """One job: the partial results of all parts over a stream's rows, as segments of their states."""
        if not wanted:
            return []
        passes = fuse(enumerate(p for p, _ in wanted))
        reader = Reader(self.lake)
        text = in_first_run(union(passes), False)
        bound = bind_text(text, Overlay(reader, self._sources(text, scan, reader.snapshot())))
        rows = query.run(self.spark, bound, self.relations, {})
        # Each pass has partitions of its own; a task for each costs more than a small basket is worth.
        frame = rows.frame.coalesce(1) if scan.rows <= ONE_PARTITION_ROWS else rows.frame
        if _fits_here(scan, wanted):
            found = self._collected(frame, passes, [t for _, t in wanted], rows.splice)
            if found is not None:
                return self._stored_here(scan, wanted, found, reader.snapshot() if alone else None)
        made = write_passes(frame, passes, [(t, self.lake.folder(t)) for _, t in wanted], rows.splice)
        return [Done(tuple(segments)) for segments in made]

    @staticmethod
    def _collected(
        frame: DataFrame, passes: Sequence[Pass], tables: Sequence[TableInfo], splice: Splice
    ) -> dict[int, pa.Table] | None:
        """The rows of all passes; None if they turn out to be too many for the driver, as joins can make them."""
        try:
            return collect_passes(frame, passes, tables, splice)
        except MillstreamError as error:
            if TOO_LARGE not in f"{error.message} {error.detail}":
                raise
            return None

    def _stored_here(
        self,
        scan: Scan,
        wanted: Sequence[tuple[Part, TableInfo]],
        found: Mapping[int, pa.Table],
        snapshot: Snapshot | None,
    ) -> list[Done]:
        """Store new rows of states, merged with their pieces at a snapshot where that is worth it."""
        old = [self.pieces(t, snapshot) if snapshot is not None else [] for _, t in wanted]
        old = [o if merging.is_worth_it(o, scan.rows) else [] for o in old]
        return merging.store(self.lake, [(*w, found.get(i), old[i]) for i, w in enumerate(wanted)])

    def executors(self, kept: Kept) -> list[str]:
        """Which executor runs each part of a view."""
        snapshot = self.lake.catalog.current
        every = {t.id: t for t in self.lake.catalog.tables().values()}
        scans = [no_new_rows(every[p.streams[0]], snapshot) for p in kept.parts]
        return [
            self.executor_of(p, t, self._sources(p.fragment, s, snapshot))
            for p, t, s in zip(kept.parts, kept.states, scans, strict=True)
        ]

    def executor_of(self, part: Part, table: TableInfo, sources: Mapping[str, Scan]) -> str:
        by_kernel = self.executor != SPARK_SQL and can_run(part, table, sources)
        return "kernel" if by_kernel else "spark-sql"

    def is_whole(self, table: TableInfo, found: Scan) -> bool:
        """Whether a state has one row a group at most, so that nothing need be merged."""
        return len(found.files) <= 1 or self._whole.get(table.id) == frozenset(f.path for f in found.files)

    def _sources(self, text: str, scan: Scan, snapshot: Snapshot) -> dict[str, Scan]:
        """What the names in a fragment stand for: new rows of one stream, none of others, hidden tables."""
        found = {stream_name(scan.table.id): new_rows(scan)}
        for table in self.lake.catalog.tables().values():
            if table.id != scan.table.id and stream_name(table.id) in text:
                found[stream_name(table.id)] = no_new_rows(table, snapshot)
        for table in self.lake.catalog.hidden().values():
            if table_name(table.id) in text:
                found[table_name(table.id)] = self.lake.scan(table, snapshot)
        return found

    def _fail(self, kept: Kept, scan: Scan, upto: int, error: MillstreamError) -> None:
        """Mark a view failed: it stays where it was, and so do the rows it has not seen."""
        detail = f" ({error.detail})" if error.detail else ""
        told = f"rows {scan.since} to {upto - 1} of {scan.table.name}: {error.message}{detail}"
        self.lake.catalog.commit(lambda c: views.set_failure(c, kept.view.id, told))
        self.failures[kept.view.id] = told

    def resume(self, view: TableInfo) -> None:
        """Try a failed view again."""
        self.lake.catalog.commit(lambda c: views.set_failure(c, view.id, None))
        self.failures.pop(view.id, None)
        kept = self.kept(view)
        self.catch_up([kept])

    # Beginnings

    def start(self, draft: Draft, reader: Reader) -> None:
        """Fill the states of a view that is being made with what static rows beside its streams give."""
        wanted = [(p, t) for p, t in zip(draft.plan.parts, draft.states, strict=True) if ONCE in p.fragment]
        every = {t.id: t for t in reader.tables(reader.snapshot()).values()}
        if wanted:
            stream = every[wanted[0][0].streams[0]]
            self._write(draft, wanted, no_new_rows(stream, reader.snapshot()), is_first=True)

    def fill(self, draft: Draft, reader: Reader) -> None:
        """Fill the states of a view that is being made from what its streaming tables hold."""
        snapshot = reader.snapshot()
        every = {t.id: t for t in reader.tables(snapshot).values()}
        for stream_id in draft.plan.streams:
            stream = every[stream_id]
            scan = state.new_rows(self.lake, stream, snapshot, 0, self._last_ids)
            # Rows that come after the snapshot have later numbers than all of its own.
            draft.positions[stream_id] = _last_id(scan, self._last_ids) + 1
            scan = visible(replace(scan, horizon=reader.horizon(stream)))
            wanted = [
                (p, t) for p, t in zip(draft.plan.parts, draft.states, strict=True) if stream_id in p.streams
            ]
            pieces = state.in_pieces(scan, MOST_ROWS)
            for number, piece in enumerate(pieces):
                self._write(draft, wanted, piece, is_first=False)
                self.listener(Progress(f"history of {draft.name}", number + 1, len(pieces), "jobs"))

    def _write(
        self, draft: Draft, wanted: Sequence[tuple[Part, TableInfo]], scan: Scan, *, is_first: bool
    ) -> None:
        """Run fragments of a view that is being made; its tables are not in the catalogue yet."""
        passes = fuse(enumerate(p for p, _ in wanted))
        text, reader = in_first_run(union(passes), is_first), Reader(self.lake)
        sources = self._sources(text, scan, reader.snapshot())
        for number, table in enumerate(draft.statics):
            own = draft.written.get(table.name)
            snapshot = reader.snapshot()
            staged = self.lake.scan(table, snapshot) if own is None else Scan(table, snapshot.id, _staged(own))
            sources[static_name(number)] = staged
        rows = query.run(self.spark, bind_text(text, Overlay(reader, sources)), self.relations, {})
        targets = [(t, self.lake.folder(t)) for _, t in wanted]
        for (_, table), made in zip(wanted, write_passes(rows.frame, passes, targets, rows.splice), strict=True):
            draft.written.setdefault(table.name, []).extend(made)

    # Merging

    def merge(self, kept: Kept) -> int:
        """Make one piece of every state that has come to many; returns how many files went."""
        with self.lock:
            return sum(self._merge(kept.view, p, t) for p, t in zip(kept.parts, kept.states, strict=True))

    def _merge(self, view: TableInfo, part: Part, table: TableInfo) -> int:
        snapshot = self.lake.catalog.current
        with self.lake.catalog.pinned(snapshot.id):
            gone = self.pieces(table, snapshot)
            if len(gone) <= MOST_PIECES or self._whole.get(table.id) == frozenset(f.path for f in gone):
                return 0
            written = self._merged_by_kernel(part, table, gone) or self._merged_by_spark(part, table, snapshot)
            self._whole[table.id] = frozenset(s.path for s in written)
        change = state.Change(table, tuple(written), tuple(gone))
        return len(gone) if state.commit(self.lake, state.Progress((change,), {}, view.id)) else 0

    def _merged_by_kernel(self, part: Part, table: TableInfo, gone: Sequence[DataFile]) -> Sequence[Segment]:
        """One row a group of a state's pieces; nothing if the kernel cannot."""
        if self.executor == SPARK_SQL or not can_merge(part, table):
            return ()
        try:
            done = self.kernels.merge(part, table, gone)
        except KernelError:
            return ()
        return done.new

    def _merged_by_spark(self, part: Part, table: TableInfo, snapshot: Snapshot) -> Sequence[Segment]:
        reader, name = Reader(self.lake), table_name(table.id)
        bound = bind_text(part.merged(name), Overlay(reader, {name: self.lake.scan(table, snapshot)}))
        rows = query.run(self.spark, bound, self.relations, {})
        return write_rows(rows.frame, table, self.lake.folder(table), rows.splice)

    def pieces(self, table: TableInfo, snapshot: Snapshot) -> list[DataFile]:
        with self.lake.catalog.read() as connection:
            return files.live(connection, table.id, snapshot.id)


def _fits_here(scan: Scan, wanted: Sequence[tuple[Part, TableInfo]]) -> bool:
    """Whether the driver may hold what a job makes of some rows: a row of each at most, and sketches are large."""
    return scan.rows <= HERE_ROWS or (
        scan.rows <= MOST_ROWS_HERE and all(merging.can_merge(part) for part, _ in wanted)
    )


def _placed(part: Part, statics: Sequence[int]) -> Part:
    """The part with the real names of its static parts."""

    def placed(text: str) -> str:
        for number, table_id in enumerate(statics):
            text = text.replace(static_name(number), table_name(table_id))
        return text

    projections = tuple((name, placed(sql)) for name, sql in part.projections)
    where = placed(part.where) if part.where else part.where
    return replace(part, source=placed(part.source), where=where, projections=projections)


def placed_upper(kept: Kept, merged: Iterable[int]) -> str:
    """The upper fragment with the real names of its states; those in `merged` hold one row a group already."""
    text, whole = kept.plan.upper, set(merged)
    for number, (part, table) in enumerate(zip(kept.parts, kept.states, strict=True)):
        name = table_name(table.id)
        rows = name if number in whole and part.keys else f"({part.merged(name)})"
        text = text.replace(merged_name(number), rows).replace(state_name(number), name)
    return text


def _last_id(scan: Scan, known: dict[int, int]) -> int:
    """The largest row id of a scan's rows, -1 if it has none."""
    ids = [known.get(f.id, f.row_id_start + f.rows - 1) for f in scan.files]
    if scan.inlined_ids is not None and len(scan.inlined_ids):
        ids.append(scan.inlined_ids[-1].as_py())
    return max(ids, default=-1)


def _staged(segments: Sequence[Segment]) -> tuple[DataFile, ...]:
    return tuple(DataFile(-1 - i, s.path, s.rows, s.bytes, 0, 0) for i, s in enumerate(segments))
