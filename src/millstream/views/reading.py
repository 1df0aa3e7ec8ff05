"""Reading views: the upper fragment over merged states and tables as they are, kept until one of them changes.

A read with nothing new starts no job. Views that are read again and again and have become stale are read together,
in one job of Spark. A result of many rows is not kept: the query that reads the view then has the upper fragment
inside.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Condition, MillstreamError, StatementError
from millstream.execute import query
from millstream.execute.relation import identity
from millstream.execute.write import collect_structures
from millstream.plan.bind import bind_text
from millstream.plan.incremental import NOW
from millstream.storage.scan import Scan
from millstream.views.keeping import SPARK_SQL, placed_upper
from millstream.views.overlay import Overlay, table_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from millstream.catalog.records import TableInfo
    from millstream.plan.bind import BoundQuery
    from millstream.storage.reader import Reader
    from millstream.views.keeping import Keeper, Kept

MOST_KEPT_ROWS = 2_097_152
"""Views whose states hold more rows than this are not materialised in the driver."""


@dataclass(frozen=True)
class _Result:
    """A materialised result and what it was made of."""

    made_of: tuple[object, ...]
    snapshot_id: int
    scan: Scan
    by_spark: bool
    is_wanted: bool
    """Whether somebody has read it."""


@dataclass(frozen=True)
class _Wanted:
    """A view whose rows are to be computed: by which text, over which states."""

    kept: Kept
    made_of: tuple[object, ...]
    text: str
    scans: Mapping[str, Scan]

    @property
    def is_small(self) -> bool:
        return sum(s.rows for s in self.scans.values()) <= MOST_KEPT_ROWS


class Readings:
    """Gives the rows of views at a reader's moment; safe for many threads."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._lake = keeper.lake
        self._kept: dict[int, _Result] = {}
        self._locks: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()

    def forget(self, view_id: int) -> None:
        self._kept.pop(view_id, None)

    def read(self, view: TableInfo, reader: Reader) -> Scan | BoundQuery:
        """A scan of the view's rows, or, where they are many, the query that computes them."""
        self._check_sound(view)
        kept = self._keeper.kept(view, reader.snapshot())
        found = self._kept.get(view.id)
        if found is not None and found.is_wanted and self._is_at(found, kept, reader):
            return found.scan
        with self._lock_of(view.id):
            made_of = self._made_of(kept, reader)
            found = self._kept.get(view.id)
            if found is None or found.made_of != made_of:
                return self._compute(self._wanted(kept, reader, made_of), reader)
            if reader.is_at_a_commit:
                self._kept[view.id] = replace(found, snapshot_id=reader.snapshot().id, is_wanted=True)
            return found.scan

    def _is_at(self, found: _Result, kept: Kept, reader: Reader) -> bool:
        """Whether a result was made at the very moment, so that nothing need be looked up."""
        is_same = reader.is_at_a_commit and found.snapshot_id == reader.snapshot().id
        return is_same and found.made_of[-1] == self._clock(kept.plan.clock)

    def _lock_of(self, view_id: int) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(view_id, threading.Lock())

    def _check_sound(self, view: TableInfo) -> None:
        failure = self._keeper.failures.get(view.id)
        if failure is not None:
            raise StatementError(
                Condition.VIEW_FAILED,
                f"the view {view.name!r} has failed",
                detail=failure,
                hint=f"Remove the cause, then RESUME {view.name}; or DROP VIEW {view.name}.",
            )

    def _made_of(self, kept: Kept, reader: Reader) -> tuple[object, ...]:
        """What a result depends on: the states and the tables above at the moment, and the clock if it is used."""
        snapshot = reader.snapshot()
        tables = reader.tables(snapshot)
        above = (t for n in kept.plan.above if (t := tables.get(n.lower())))
        scans = [
            *(self._lake.scan(t, snapshot) for t in kept.states),
            *(reader.scan(t, snapshot, ()) for t in above),
        ]
        return (*(identity(s) for s in scans), self._clock(kept.plan.clock))

    def _clock(self, fineness: str) -> object:
        now = self._lake.clock.now()
        return {"": None, "day": now.date()}.get(fineness, now)

    def _wanted(self, kept: Kept, reader: Reader, made_of: tuple[object, ...]) -> _Wanted:
        scans = {table_name(t.id): self._lake.scan(t, reader.snapshot()) for t in kept.states}
        whole = [i for i, t in enumerate(kept.states) if self._keeper.is_whole(t, scans[table_name(t.id)])]
        now = self._lake.clock.now().replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return _Wanted(kept, made_of, placed_upper(kept, whole).replace(NOW, f"TIMESTAMP '{now}'"), scans)

    def _compute(self, wanted: _Wanted, reader: Reader) -> Scan | BoundQuery:
        if not wanted.is_small:
            bound = bind_text(wanted.text, Overlay(reader, wanted.scans))
            return replace(bound, names=wanted.kept.view.schema.names)
        rows = self._by_kernel(wanted, reader)
        if rows is not None:
            return self._keep(wanted, rows, reader, by_spark=False)
        with self._companions(wanted, reader) as others:
            every = [wanted, *others]
            try:
                found = self._by_spark(every, reader)
            except MillstreamError:
                if not others:
                    raise
                # One of the others may be at fault; whoever reads it will be told.
                every, found = [wanted], self._by_spark([wanted], reader)
            for one, data in zip(every[1:], found[1:], strict=True):
                self._keep(one, data, reader, by_spark=True, is_wanted=False)
        return self._keep(wanted, found[0], reader, by_spark=True)

    def _keep(
        self, wanted: _Wanted, rows: pa.Table, reader: Reader, *, by_spark: bool, is_wanted: bool = True
    ) -> Scan:
        view, snapshot_id = wanted.kept.view, reader.snapshot().id
        data = rows.rename_columns(list(view.schema.names)).cast(view.schema.arrow)
        scan = Scan(view, snapshot_id, (), inlined=data, token=uuid.uuid4().hex)
        if reader.is_at_a_commit:
            self._kept[view.id] = _Result(wanted.made_of, snapshot_id, scan, by_spark, is_wanted)
        return scan

    @contextmanager
    def _companions(self, wanted: _Wanted, reader: Reader) -> Iterator[list[_Wanted]]:
        """Other views that Spark has computed, that somebody has read since, and that have become stale."""
        others = []
        with ExitStack() as locks:
            for view_id, result in list(self._kept.items()) if reader.is_at_a_commit else []:
                is_candidate = view_id != wanted.kept.view.id and result.by_spark and result.is_wanted
                if not is_candidate or not self._is_there(result.scan.table, reader):
                    continue
                lock = self._lock_of(view_id)
                if lock.acquire(blocking=False):
                    locks.callback(lock.release)
                    others += self._if_stale(result, reader)
            yield others

    def _is_there(self, view: TableInfo, reader: Reader) -> bool:
        found = reader.tables(reader.snapshot()).get(view.name.lower())
        return found is not None and found.id == view.id and view.id not in self._keeper.failures

    def _if_stale(self, result: _Result, reader: Reader) -> list[_Wanted]:
        kept = self._keeper.kept(result.scan.table, reader.snapshot())
        made_of = self._made_of(kept, reader)
        if made_of == result.made_of:
            return []
        wanted = self._wanted(kept, reader, made_of)
        return [wanted] if wanted.is_small else []

    def _by_spark(self, wanted: Sequence[_Wanted], reader: Reader) -> list[pa.Table]:
        """The rows of views, of all in one job."""
        scans = {name: scan for one in wanted for name, scan in one.scans.items()}
        text = wanted[0].text if len(wanted) == 1 else _together(wanted)
        bound = bind_text(text, Overlay(reader, scans))
        rows = query.run(self._keeper.spark, bound, self._keeper.relations, {})
        if len(wanted) == 1:
            return [rows.to_arrow()]
        found = collect_structures(rows.frame, rows.splice)
        return [_own_rows(found, i, len(one.kept.view.schema.columns)) for i, one in enumerate(wanted)]

    def _by_kernel(self, wanted: _Wanted, reader: Reader) -> pa.Table | None:
        """The rows as the kernel gives them, in the driver; None if it cannot."""
        if self._keeper.executor == SPARK_SQL:
            return None
        snapshot, kept = reader.snapshot(), wanted.kept
        tables = reader.tables(snapshot)
        above = {n: reader.scan(tables[n.lower()], snapshot, ()) for n in kept.plan.above if n.lower() in tables}
        types = [c.type for c in kept.view.schema.columns]
        return self._keeper.kernels.answer(wanted.text, {**wanted.scans, **above}, types)


def _together(wanted: Sequence[_Wanted]) -> str:
    """One text for several views: the number of the view, and for each view its rows as structures."""
    parts = []
    for number, one in enumerate(wanted):
        names = ", ".join(f"x{i}" for i in range(len(one.kept.view.schema.columns)))
        columns = [f"{f'struct({names})' if i == number else 'NULL'} AS c{i}" for i in range(len(wanted))]
        parts.append(f"SELECT {number} AS view, {', '.join(columns)} FROM ({one.text}) AS q ({names})")
    return " UNION ALL ".join(parts)


def _own_rows(rows: pa.Table, number: int, columns: int) -> pa.Table:
    own = rows.filter(pc.equal(rows.column("view"), number)).column(f"c{number}").combine_chunks()
    return pa.table([own.field(i) for i in range(columns)], names=[f"x{i}" for i in range(columns)])
