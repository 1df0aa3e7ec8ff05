"""Reading views: the upper fragment over merged states and tables as they are, kept until one of them changes.

A read with nothing new starts no job. A result of many rows is not kept: the query that reads the view then has
the upper fragment inside.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millstream.errors import Condition, StatementError
from millstream.execute import query
from millstream.execute.relation import identity
from millstream.plan.bind import bind_text
from millstream.plan.incremental import NOW
from millstream.storage.scan import Scan
from millstream.views.keeping import SPARK_SQL, placed_upper
from millstream.views.overlay import Overlay, table_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

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
        if found is not None and self._is_at(found, kept, reader):
            return found.scan
        with self._lock_of(view.id):
            made_of = self._made_of(kept, reader)
            found = self._kept.get(view.id)
            if found is None or found.made_of != made_of:
                return self._compute(kept, reader, made_of)
            self._kept[view.id] = replace(found, snapshot_id=reader.snapshot().id)
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

    def _compute(self, kept: Kept, reader: Reader, made_of: tuple[object, ...]) -> Scan | BoundQuery:
        snapshot = reader.snapshot()
        scans = {table_name(t.id): self._lake.scan(t, snapshot) for t in kept.states}
        whole = [i for i, t in enumerate(kept.states) if self._keeper.is_whole(t, scans[table_name(t.id)])]
        now = self._lake.clock.now().replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        text = placed_upper(kept, whole).replace(NOW, f"TIMESTAMP '{now}'")
        is_small = sum(s.rows for s in scans.values()) <= MOST_KEPT_ROWS
        rows = self._by_kernel(text, kept, reader, scans) if is_small else None
        if rows is None:
            bound = bind_text(text, Overlay(reader, scans))
            if not is_small:
                return replace(bound, names=kept.view.schema.names)
            rows = query.run(self._keeper.spark, bound, self._keeper.relations, {}).to_arrow()
        data = rows.rename_columns(list(kept.view.schema.names)).cast(kept.view.schema.arrow)
        scan = Scan(kept.view, snapshot.id, (), inlined=data, token=uuid.uuid4().hex)
        if reader.is_at_a_commit:
            self._kept[kept.view.id] = _Result(made_of, snapshot.id, scan)
        return scan

    def _by_kernel(self, text: str, kept: Kept, reader: Reader, scans: Mapping[str, Scan]) -> pa.Table | None:
        """The rows as the kernel gives them, in the driver; None if it cannot."""
        if self._keeper.executor == SPARK_SQL:
            return None
        snapshot = reader.snapshot()
        tables = reader.tables(snapshot)
        above = {n: reader.scan(tables[n.lower()], snapshot, ()) for n in kept.plan.above if n.lower() in tables}
        return self._keeper.kernels.answer(text, {**scans, **above}, [c.type for c in kept.view.schema.columns])
