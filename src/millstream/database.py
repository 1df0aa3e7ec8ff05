"""The Python API: `connect`, `Database`, and what they hand out.

These names are stable: other programs are written against them. A `Database` may be used from many
threads; a transaction (BEGIN … COMMIT) belongs to the thread that began it.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream import sql
from millstream.clock import SystemClock
from millstream.deliver.result import Result
from millstream.deliver.subscription import Delivery, Subscription
from millstream.engine import Engine
from millstream.errors import Condition, StatementError
from millstream.execute import functions
from millstream.execute.session import Spark
from millstream.ingest.progress import Listener, Progress, ignore
from millstream.schedule.runner import Runner
from millstream.schedule.upkeep import ADVANCE, advance_views, answer_queries, upkeep_net
from millstream.sql import is_complete
from millstream.sql.names import KEYWORDS
from millstream.sql.statements import Name
from millstream.storage.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from types import TracebackType

    from pyspark.sql import SparkSession

    from millstream.clock import Clock
    from millstream.schema import ObjectKind

__all__ = [
    "KEYWORDS",
    "Database",
    "Delivery",
    "ObjectInfo",
    "Progress",
    "Result",
    "Subscription",
    "connect",
    "is_complete",
]

IN_MEMORY = ":memory:"
REMEMBERED_LENGTH = 4_000
remembered = lru_cache(maxsize=512)(sql.parse_one)
"""Statements by their text: one with parameters is parsed once, however often it runs."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A table or stream, for listings and completion."""

    name: str
    kind: ObjectKind
    columns: tuple[str, ...]


def connect(
    path: str | Path = IN_MEMORY,
    *,
    spark: SparkSession | str | None = None,
    read_only: bool = False,
    clock: Clock | None = None,
    background: bool = True,
    progress: Listener | None = None,
    on_spark_start: Callable[[], None] | None = None,
) -> Database:
    """Open the database in a directory, creating it if it is not there.

    `":memory:"` makes a throw-away one. `spark` is a session of yours or a master's address
    (`local[*]` by default, `spark://…`, `sc://…`); Spark starts when a statement first needs it.
    `background=False` leaves upkeep to `drain()`.
    """
    return Database(
        path,
        spark=Spark(spark or "local[*]", on_spark_start),
        read_only=read_only,
        clock=clock or SystemClock(),
        background=background,
        progress=progress or ignore,
    )


class Database:
    """An open database; use `connect` to get one, and `with` or `close()` to let it go."""

    def __init__(
        self,
        path: str | Path,
        *,
        spark: Spark,
        read_only: bool,
        clock: Clock,
        background: bool,
        progress: Listener,
    ) -> None:
        self._temporary = tempfile.mkdtemp(prefix="millstream-") if str(path) == IN_MEMORY else None
        root = Path(self._temporary or path).expanduser().absolute()
        self.path = root
        self._spark = spark
        self._lake = Lake(root, clock, read_only=read_only)
        self._net = None if read_only else upkeep_net(self._lake, clock)
        self._engine = Engine(self._lake, spark, self._net, progress)
        if self._net is not None:
            answer_queries(self._net, self._lake, self._engine.queries)
            advance_views(self._net, self._lake, self._engine.views.advance_all)
        self._runner = Runner(self._net, clock) if self._net is not None and background else None
        self._engine.queries.has_scheduler = self._runner is not None
        self._closed = False

    def sql(self, text: str, /, **parameters: Any) -> Result:
        """Run one statement. Parameters stand in it as `:name` and are given by name."""
        self._check_open()
        parse = remembered if len(text) <= REMEMBERED_LENGTH else sql.parse_one
        return self._engine.run(parse(text), parameters)

    def script(self, text: str) -> Iterator[Result]:
        """Run the statements of a text one after the other, as the results are asked for."""
        self._check_open()
        for part in sql.split(text):
            yield self.sql(part)

    def insert(self, name: str, data: Any) -> int:
        """Insert Arrow, pandas or Spark data, tuples or dicts; durable on return. Returns the row count."""
        self._check_open()
        return self._engine.insert(name, data)

    def advance(self, stream: str, to: int | str | datetime) -> None:
        """No row of the stream older than `to` will come."""
        self._check_open()
        self._engine.advance(stream, to)

    def drain(self) -> None:
        """Return when everything that is due has been processed and delivered."""
        self._check_open()
        if self._net is not None:
            self._engine.queries.advance_all()
            self._net.demand(ADVANCE)
            self._net.run_until_idle()

    def subscribe(
        self,
        query: str,
        since: int | None = None,
        *,
        callback: Callable[[Delivery], None] | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """The deliveries of a continuous query as they come: iterate, `async for`, or give a callback.

        Begins with the next delivery, or after number `since`; `since=0` begins with the oldest one kept. Ends
        when the query is dropped, the database closes, or nothing has come for `timeout` seconds. A callback is
        called from a thread of its own; if it raises, the subscription ends, and `error`, `wait()` and `close()`
        tell the error.
        """
        self._check_open()
        made = self._engine.queries.handing.subscribe(self._engine.queries.known.find(Name(query)), since, timeout)
        if callback is not None:
            made.start(callback)
        return made

    def results(self, query: str, since: int = 0) -> list[Delivery]:
        """The deliveries of a continuous query that are kept (the last 1,000), after number `since`."""
        self._check_open()
        return self._engine.queries.handing.results(self._engine.queries.known.find(Name(query)), since)

    def create_function(self, name: str, function: Callable[..., Any], returns: str = "STRING") -> None:
        """Make a Python function usable in SQL under a name; `returns` is the SQL type of what it gives.

        It belongs to the open database: after opening it again, create it again before views that call it go on.
        """
        self._check_open()
        functions.create(self._spark, name, function, returns)

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """Statements of this thread inside the block commit together, or not at all."""
        self.sql("BEGIN")
        try:
            yield self
        except BaseException:
            self.sql("ROLLBACK")
            raise
        self.sql("COMMIT")

    def objects(self) -> list[ObjectInfo]:
        """All tables and streams, by name."""
        self._check_open()
        found = sorted(self._lake.catalog.tables().values(), key=lambda t: t.name.lower())
        return [ObjectInfo(t.name, t.kind, t.schema.names) for t in found]

    @property
    def spark(self) -> SparkSession:
        """The Spark session behind the database; starts it if need be."""
        return self._spark.session()

    @property
    def spark_started(self) -> bool:
        return self._spark.started

    def cancel(self) -> None:
        """Stop what Spark is doing for this database; its statements end with an error."""
        if self._spark.started:
            self._spark.cancel()

    def close(self) -> None:
        """Let the database go; a second call does nothing. Spark stays for other databases."""
        if self._closed:
            return
        self._closed = True
        if self._runner is not None:
            self._runner.stop()
        self._engine.close()
        self._lake.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Database {self.path}{' (closed)' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise StatementError(
                Condition.CLOSED, "the database is closed", hint="Open it again with millstream.connect(…)."
            )
