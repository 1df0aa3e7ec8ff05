"""The access interface of streaming tables: continuous scans, after Table II of Streaming Tables.

    seq_scan, index_scan    register a continuous read of a window, once; with a sample it is pushed
    resume                  read a pulled call's window now, or at an instant
    push_due                deliver what is due to the calls that are pushed
    kill                    end a call

A window's contents are the same whichever scan reads them, whatever is in memory, and however inserts were
cut. Every instant of a pushed call is delivered once, in order. A commit only wakes whoever calls `push_due`;
nothing here has a thread, a timer or a wait of its own. Safe for many threads. Deliveries are made by the
thread that calls `push_due`, without any lock that a commit or another call needs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream.errors import Condition, StatementError, did_you_mean
from millstream.schema import EPOCH, ObjectKind, is_nested
from millstream.storage.continuous.calls import Call, Calls, Contents, Request, is_gone
from millstream.storage.continuous.hot import BUDGET
from millstream.storage.continuous.instants import REALTIME, Sample, SampleInterval, SampleRealtime, SampleRows
from millstream.storage.continuous.window import PartitionWindow, RowsWindow, TimeWindow, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from millstream.catalog.records import TableInfo
    from millstream.storage.continuous.match import Predicate
    from millstream.storage.lake import Lake
    from millstream.storage.transaction import Written

__all__ = [
    "REALTIME",
    "Access",
    "CallInfo",
    "Contents",
    "PartitionWindow",
    "RowsWindow",
    "SampleInterval",
    "SampleRealtime",
    "SampleRows",
    "TimeWindow",
]


@dataclass(frozen=True)
class CallInfo:
    """A call as a listing shows it. `model` is `pull` or `push`."""

    call_id: str
    table: TableInfo
    window: Window
    index: str | None
    predicate: Predicate
    sample: Sample | None
    deliveries: int
    failure: Exception | None

    @property
    def model(self) -> str:
        return "pull" if self.sample is None else "push"


class Access:
    """See the module's contract. `wake` is called, from any thread, when `push_due` may have something to do."""

    def __init__(self, lake: Lake, *, budget: int = BUDGET, wake: Callable[[], None] | None = None) -> None:
        self._lake = lake
        self._budget = budget
        self.wake = wake
        self._tables: dict[int, Calls] = {}
        self._lock = threading.RLock()
        self._pushing = threading.Lock()
        self._pusher: int | None = None
        lake.on_commit(self._committed)

    def _committed(self, written: Sequence[Written]) -> None:
        # Without the lock: a commit must not wait for a read.
        is_due = False
        for part in written:
            calls = self._tables.get(part.table.id)
            if calls is not None:
                if part.removes:
                    calls.hot.invalidate()
                is_due = True
        if is_due and self.wake is not None:
            self.wake()

    def seq_scan(
        self,
        call_id: str,
        table: TableInfo,
        window: Window,
        predicate: Predicate = (),
        sample: Sample | None = None,
        deliver: Callable[[Contents], None] | None = None,
    ) -> None:
        """Register a continuous read that looks at every row of the window."""
        self._add(table, Request(call_id, window, predicate, None, sample, deliver))

    def index_scan(
        self,
        call_id: str,
        table: TableInfo,
        window: Window,
        index_column: str,
        predicate: Predicate = (),
        sample: Sample | None = None,
        deliver: Callable[[Contents], None] | None = None,
    ) -> None:
        """Register a continuous read that finds the rows of the window by the values of a column.

        What the values cannot serve (a conjunction without that column, a partitioned window) is looked
        at row by row.
        """
        self._add(table, Request(call_id, window, predicate, index_column, sample, deliver))

    def _add(self, table: TableInfo, request: Request) -> None:
        wanted = _checked(table, request)
        with self._lock:
            if any(wanted.call_id in t.calls for t in self._tables.values()):
                raise StatementError(
                    Condition.INVALID_ARGUMENT,
                    f"there is a call {wanted.call_id!r} already",
                    hint="Give the call another id, or kill the other one first.",
                )
            calls = self._tables.get(table.id) or Calls(self._lake, table.id, self._budget)
            self._tables[table.id] = calls
            try:
                calls.add(wanted)
            finally:
                self._drop_if_unused(calls)

    def _find(self, call_id: str) -> tuple[Calls, Call]:
        for calls in self._tables.values():
            if call_id in calls.calls:
                return calls, calls.calls[call_id]
        known = [c for t in self._tables.values() for c in t.calls]
        raise StatementError(
            Condition.INVALID_ARGUMENT,
            f"there is no call {call_id!r}",
            detail=f"Known calls: {', '.join(known) or 'none'}.",
            hint=did_you_mean(call_id, known) or "Register it with seq_scan or index_scan.",
        )

    def resume(self, call_id: str, at: int | None = None) -> Contents:
        """A pulled call's window at an instant, by default at the stream time."""
        with self._lock:
            calls, call = self._find(call_id)
            if call.schedule is not None:
                raise StatementError(
                    Condition.INVALID_ARGUMENT,
                    f"call {call_id!r} is pushed",
                    hint="Register it without a sample to read it by resume.",
                )
            contents = calls.pull(call, at)
            calls.trim()
            return contents

    def kill(self, call_id: str) -> None:
        """End a call; a delivery in progress is its last."""
        with self._lock:
            calls, call = self._find(call_id)
            call.is_killed = True
            del calls.calls[call_id]
            calls.trim()
            self._drop_if_unused(calls)

    def _drop_if_unused(self, calls: Calls) -> None:
        if not calls.calls:
            self._tables.pop(calls.table.id, None)

    def push_due(self) -> int:
        """Deliver every instant that is due; returns the number of deliveries.

        A `deliver` that raises fails its own call, which is read no more. If a table cannot be read, the
        others are served first and the instants stay due.
        """
        if self._pusher == threading.get_ident():
            return 0
        with self._pushing:
            self._pusher = threading.get_ident()
            try:
                return self._push_all()
            finally:
                self._pusher = None

    def _push_all(self) -> int:
        delivered, errors = 0, []
        for calls in list(self._tables.values()):
            try:
                delivered += self._push(calls)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return delivered

    def _push(self, calls: Calls) -> int:
        with self._lock:
            pushed = [c for c in calls.calls.values() if c.is_pushed]
            if not pushed:
                return 0
            try:
                calls.take_in()
            except StatementError as error:
                if not is_gone(error):
                    raise
                for call in pushed:
                    call.failure = error
                return 0
        delivered = sum(self._deliver(calls, call) for call in pushed)
        with self._lock:
            calls.trim()
        return delivered

    def _deliver(self, calls: Calls, call: Call) -> int:
        delivered = 0
        while (contents := self._next(calls, call)) is not None:
            try:
                if call.request.deliver is not None:
                    call.request.deliver(contents)
            except Exception as error:
                call.failure = error
                break
            call.deliveries += 1
            delivered += 1
        return delivered

    def _next(self, calls: Calls, call: Call) -> Contents | None:
        with self._lock:
            return calls.push(call)

    def settle(self, table_id: int) -> None:
        """Take in what was committed so far.

        For whoever is about to advance a table's time or take rows from it: which rows came before is then
        known, however late `push_due` is called.
        """
        with self._lock:
            calls = self._tables.get(table_id)
            if calls is not None and any(c.is_pushed for c in calls.calls.values()):
                calls.take_in()

    def needed_from(self, table_id: int) -> int | None:
        """The earliest time that a pushed call may still need; retention takes nothing from there on."""
        with self._lock:
            calls = self._tables.get(table_id)
            return None if calls is None else calls.needed_from()

    def next_due(self) -> datetime | None:
        """When the clock alone will make a call due; None if it will not."""
        with self._lock:
            times = [t for calls in self._tables.values() if (t := calls.waits_for()) is not None]
        return EPOCH + timedelta(microseconds=min(times) + 1) if times else None

    def uses_index(self, table_id: int, column: str) -> tuple[str, ...]:
        """The ids of the calls that read the table by the values of this column."""
        with self._lock:
            calls = self._tables.get(table_id)
            requests = [] if calls is None else [c.request for c in calls.calls.values()]
        return tuple(r.call_id for r in requests if r.index is not None and r.index.lower() == column.lower())

    def calls(self) -> tuple[CallInfo, ...]:
        """All calls, table by table, in the order of their registration."""
        with self._lock:
            return tuple(_info(t.table, c) for t in self._tables.values() for c in t.calls.values())


def _info(table: TableInfo, call: Call) -> CallInfo:
    request = call.request
    return CallInfo(
        request.call_id,
        table,
        request.window,
        request.index,
        request.predicate,
        request.sample,
        call.deliveries,
        call.failure,
    )


def _checked(table: TableInfo, request: Request) -> Request:
    """The request with column names as the table spells them; raises if it makes no sense."""
    if table.kind is not ObjectKind.STREAMING_TABLE or table.time is None:
        raise StatementError(
            Condition.WRONG_KIND,
            f"{table.name!r} is not a streaming table",
            hint="Continuous scans read streaming tables.",
        )
    _check_sample(request)
    predicate = tuple(
        tuple(replace(c, column=_column(table, c.column)) for c in conjunction)
        for conjunction in request.predicate
    )
    index = None if request.index is None else _column(table, request.index)
    return replace(request, window=_checked_window(table, request.window), predicate=predicate, index=index)


def _check_sample(request: Request) -> None:
    if (request.sample is None) != (request.deliver is None):
        raise _invalid(
            "a sample and a delivery belong together",
            "Give both for a call that is pushed, or neither for one that is pulled.",
        )
    if isinstance(request.sample, SampleInterval):
        _check_positive("sample interval", request.sample.step)
    if isinstance(request.sample, SampleRows):
        _check_positive("number of sample rows", request.sample.count)


def _checked_window(table: TableInfo, window: Window) -> Window:
    if isinstance(window, TimeWindow):
        if window.length < 0:
            raise _invalid("the window's length is negative", "Give a length of zero or more.")
        return window
    _check_positive("number of rows in a window", window.rows)
    if isinstance(window, RowsWindow):
        return window
    names = tuple(_column(table, name) for name in window.columns)
    _check_keys(table, names)
    return replace(window, columns=names)


def _check_keys(table: TableInfo, names: Iterable[str]) -> None:
    for name in names:
        column = table.schema.get(name)
        if column is not None and is_nested(column.type):
            raise _invalid(
                f"a window cannot be partitioned by {name!r} of type {column.sql_type}",
                "Partition by columns of scalar types.",
            )


def _check_positive(what: str, number: int) -> None:
    if number <= 0:
        raise _invalid(f"the {what} is {number}", "Give a number above zero.")


def _invalid(message: str, hint: str) -> StatementError:
    return StatementError(Condition.INVALID_ARGUMENT, message, hint=hint)


def _column(table: TableInfo, name: str) -> str:
    column = table.schema.get(name)
    if column is None:
        raise StatementError(
            Condition.UNKNOWN_COLUMN,
            f"no column {name!r} in {table.name!r}",
            hint=did_you_mean(name, table.schema.names) or f"It has {', '.join(table.schema.names)}.",
        )
    return column.name
