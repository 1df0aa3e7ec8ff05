"""A database for tests of the command line: answers from a script, no storage, no Spark."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millstream.cli.activity import Activity
from millstream.cli.printer import Printer, Settings
from millstream.cli.runner import Runner
from millstream.cli.worker import Worker
from millstream.errors import Condition, Span, StatementError

Reply = pa.Table | str | Exception | Callable[[], "Reply"]


@dataclass(frozen=True)
class FakeObject:
    name: str
    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class FakeResult:
    status: str = ""
    table: pa.Table | None = None

    @property
    def is_query(self) -> bool:
        return self.table is not None

    def head(self, rows: int) -> pa.Table:
        return self.to_arrow().slice(0, rows)

    def to_arrow(self) -> pa.Table:
        return self.table


OBJECTS = (
    FakeObject("flights", "table", ("id", "carrier", "dep delay")),
    FakeObject("calls", "stream", ("id", "cost", "ts")),
    FakeObject("reports", "streaming table", ("vid", "spd")),
    FakeObject("spend", "continuous view", ("id", "total")),
)


@dataclass
class FakeDatabase:
    """Replies to each statement as told; a statement without a reply gives its own text as status."""

    replies: dict[str, Reply] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    closed: bool = False
    spark_started: bool = False
    connected_with: dict[str, Any] = field(default_factory=dict)

    def script(self, text: str) -> Iterator[FakeResult]:
        for statement in filter(None, (part.strip() for part in text.split(";"))):
            self.ran.append(statement)
            yield self._answer(self.replies.get(statement, statement))

    def _answer(self, reply: Reply) -> FakeResult:
        if callable(reply):
            return self._answer(reply())
        if isinstance(reply, Exception):
            raise reply
        return FakeResult(reply) if isinstance(reply, str) else FakeResult(table=reply)

    def objects(self) -> list[FakeObject]:
        return list(OBJECTS)

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed = True


NUMBERS = pa.table({"n": list(range(3)), "word": ["zero", None, "two"]})


def failure() -> StatementError:
    """An error with everything an error can have."""
    text = "SELECT *\nFROM flighs"
    return StatementError(
        Condition.UNKNOWN_TABLE,
        "there is no table 'flighs'",
        detail="The catalogue has 3 tables.",
        hint="Did you mean 'flights'?",
        span=Span(14, 20),
        text=text,
    )


@dataclass
class Desk:
    """A runner over a fake database, and what it printed."""

    db: FakeDatabase
    settings: Settings = field(default_factory=Settings)
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.printer = Printer(self.settings, self.out, self.err)
        self.worker = Worker(self.printer.note)
        self.runner = Runner(self.db, self.worker, self.printer, Activity(self.printer.err), stopwatch=lambda: 0.0)

    @property
    def printed(self) -> list[str]:
        return [line.rstrip() for line in self.out.getvalue().splitlines()]

    @property
    def told(self) -> str:
        return self.err.getvalue()
