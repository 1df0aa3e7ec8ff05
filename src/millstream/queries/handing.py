"""Handing deliveries over: those that are kept of a query, its last answer, and subscriptions to what is to come.

What a query has delivered by itself and what its group has delivered to it are one sequence.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import queries
from millstream.deliver.subscription import CLOSED, Delivery, Subscription, Watch
from millstream.errors import Condition, StatementError
from millstream.plan import describe
from millstream.queries import storing
from millstream.queries.blocks import shaped
from millstream.queries.emitting import CHANGE
from millstream.queries.known import may_share, shown_name
from millstream.queries.place import Place
from millstream.schema import EPOCH, TIMESTAMP, Column, Schema
from millstream.storage.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from millstream.catalog.queries import Standing
    from millstream.catalog.records import TableInfo
    from millstream.deliver.subscription import Board
    from millstream.plan.sharing import Shared
    from millstream.plan.standing import QueryPlan
    from millstream.queries.known import Known
    from millstream.queries.together import Together
    from millstream.storage.lake import Lake


@dataclass
class Handing:
    """See the module's contract."""

    lake: Lake
    known: Known
    together: Together
    board: Board
    is_closed: Callable[[], bool]

    def __post_init__(self) -> None:
        self._watcher: Watch | None = None
        self._lock = threading.Lock()

    def results(self, query: TableInfo, since: int) -> list[Delivery]:
        """The deliveries that are kept, after a sequence number."""
        found = self._kept(query, since)
        if _gaps(found):
            # Something may have come by itself, and something in the group, between the two looks at them.
            found = self._kept(query, since)
        # What is older than a gap is of no use to those who want all.
        return found[max(_gaps(found), default=0) :][-storing.KEPT_DELIVERIES :]

    def _kept(self, query: TableInfo, since: int) -> list[Delivery]:
        plan = self.known.plan_of(query)
        if since >= self.sequence(query):
            return []
        found = self._own(query, plan, since)
        if may_share(query, plan):
            found = sorted([*found, *self._of_group(query, plan, since)], key=lambda d: d.sequence)
        return found

    def _own(self, query: TableInfo, plan: QueryPlan, since: int) -> list[Delivery]:
        with self.lake.catalog.read() as connection:
            stored = queries.delivered(connection, query.id, since)
        return [
            Delivery(
                shown_name(query), _moment(d.instant, plan), d.sequence, d.snapshot_id, d.skipped,
                partial(queries.unpacked, d.data),
            )
            for d in stored
        ]  # fmt: skip

    def _of_group(self, query: TableInfo, plan: QueryPlan, since: int) -> list[Delivery]:
        blocks = self.together.blocks(plan.streams[0])
        assert plan.shared is not None
        return [
            Delivery(
                shown_name(query), _moment(g.instant, plan), g.sequence, g.snapshot, 0,
                partial(_shaped, g.rows, plan.shared, query.schema.arrow),
            )
            for g in ([] if blocks is None else blocks.of(query.id, since))
        ]  # fmt: skip

    def sequence(self, query: TableInfo) -> int:
        """How many deliveries a query has had."""
        stored = self.standing(query)
        own = 0 if stored is None else Place.from_json(stored.place).sequence
        return max(own, self.together.total(query, self.known.plan_of(query)))

    def standing(self, query: TableInfo) -> Standing | None:
        with self.lake.catalog.read() as connection:
            return queries.standing(connection, query.id)

    def delivered(self, query: TableInfo) -> pa.Table:
        """For SUBSCRIBE: the deliveries that are kept, row by row."""
        plan = self.known.plan_of(query)
        time = pa.int64() if plan.is_integer_time else TIMESTAMP
        columns = delivered_columns(query.schema, plan)
        return describe.deliveries(self.results(query, 0), Schema(columns).arrow, time)

    def read(self, query: TableInfo) -> Scan:
        """The last answer of a query, as a table."""
        stored, last = self.standing(query), self.results(query, self.sequence(query) - 1)
        rows: pa.Table = query.schema.arrow.empty_table()
        if stored is not None and stored.answer is not None:
            rows = queries.unpacked(stored.answer)
        elif last and CHANGE not in (delivered := last[-1].to_arrow()).column_names:
            rows = delivered
        return Scan(query, self.lake.catalog.current.id, (), inlined=rows, token=uuid.uuid4().hex)

    # Subscriptions

    def subscribe(self, query: TableInfo, since: int | None, timeout: float | None) -> Subscription:
        if since is None:
            since = self.sequence(query)
        elif since == 0 and (kept := self.results(query, 0)):
            since = kept[0].sequence - 1
        self._watch()
        return Subscription(shown_name(query), since, partial(self._fetched, query), self.board, timeout)

    def _fetched(self, query: TableInfo, after: int) -> list[Delivery] | str:
        """The deliveries after a number that are there; the reason if no more will come."""
        try:
            if self.is_closed():
                return CLOSED
            stored = self.standing(query)
            if stored is None:
                return f"the continuous query {shown_name(query)!r} was dropped"
            found = self.results(query, after)
            if not found:
                self._check_sound(query, stored)
        except StatementError as error:
            if error.condition is Condition.CLOSED:
                return CLOSED
            raise
        return found

    def _watch(self) -> None:
        with self._lock:
            if self.lake.read_only and self._watcher is None:
                self._watcher = Watch(self.board, lambda: self.lake.catalog.current.id)

    @staticmethod
    def _check_sound(query: TableInfo, stored: Standing) -> None:
        if stored.status == queries.FAILED:
            name = shown_name(query)
            raise StatementError(
                Condition.QUERY_STOPPED,
                f"the continuous query {name!r} has failed",
                detail=stored.failure,
                hint=f"Remove the cause, then RESUME {name}; or DROP CONTINUOUS QUERY {name}.",
            )

    def close(self) -> None:
        self.board.tell()
        if self._watcher is not None:
            self._watcher.stop()


def _gaps(found: Sequence[Delivery]) -> list[int]:
    """The places before which a number is missing."""
    return [i for i, (a, b) in enumerate(pairwise(found), start=1) if b.sequence != a.sequence + 1]


def delivered_columns(schema: Schema, plan: QueryPlan) -> tuple[Column, ...]:
    """The columns of a delivery: those of the answer, and under EMIT CHANGES what has become of the row."""
    change = (Column(CHANGE, pa.string()),) if plan.emit == "CHANGES" else ()
    return (*change, *schema.columns)


def _moment(instant: int, plan: QueryPlan) -> int | datetime:
    return instant if plan.is_integer_time else EPOCH + timedelta(microseconds=instant)


def _shaped(rows: Callable[[], pa.Table], shared: Shared, schema: pa.Schema) -> pa.Table:
    return shaped(rows(), shared, schema)
