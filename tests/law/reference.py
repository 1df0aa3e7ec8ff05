"""What views ought to say: the plain query over the rows inserted since, asked of DuckDB and of Spark.

DuckDB runs in memory over the Arrow rows and never touches the database. Spark gets the same rows in ordinary
tables of the same database (`s0_rows`, `t0_v2`) and the query through `db.sql`. Both hold each stream once, with
the number of the insert that brought a row, and each version of each table; a view's start picks what it sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from tests.law.compare import Answer
from tests.law.pieces import placed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.database import Database
    from tests.law.data import Relation
    from tests.law.grammar import Query

ARRIVED = "arrived"


@dataclass(frozen=True, slots=True)
class Start:
    """When a view was created: the inserts there were, and the version of every table."""

    inserts: int
    versions: dict[str, int]


@dataclass(slots=True)
class Past:
    """All that happened: inserts in order, and the versions of tables."""

    inserts: list[tuple[str, pa.Table]] = field(default_factory=list)
    versions: dict[str, list[pa.Table]] = field(default_factory=dict)

    def now(self) -> Start:
        return Start(len(self.inserts), {name: len(v) - 1 for name, v in self.versions.items()})

    def place(self, name: str, is_pinned: bool, start: Start) -> str:
        """What stands for a relation in a reference's text."""
        if name not in self.versions:
            return f"(SELECT * FROM {name}_rows WHERE {ARRIVED} >= {start.inserts})"
        return f"{name}_v{start.versions[name] if is_pinned else len(self.versions[name]) - 1}"

    def text(self, template: str, start: Start) -> str:
        return placed(template, lambda name, is_pinned: self.place(name, is_pinned, start))


def numbered(rows: pa.Table, number: int) -> pa.Table:
    return rows.append_column(pa.field(ARRIVED, pa.int32()), pa.array([number] * rows.num_rows, pa.int32()))


class Reference:
    """Keeps a copy of the past, brought up to date when it is asked."""

    name = ""

    def __init__(self, past: Past, streams: Iterable[Relation], tables: Iterable[Relation]) -> None:
        self.past = past
        self.streams = {s.name: s for s in streams}
        self.tables = {t.name: t for t in tables}
        self._inserts = 0
        self._versions: set[tuple[str, int]] = set()
        self._is_new = True

    def answer(self, template: str, start: Start) -> Answer:
        """The answer of a text with its relations put in."""
        self._catch_up()
        return Answer.of(self.ask(self.past.text(template, start)))

    def _catch_up(self) -> None:
        if self._is_new:
            for relation in self.streams.values():
                self.create(f"{relation.name}_rows", numbered(relation.schema.empty_table(), 0))
            self._is_new = False
        self._copy_inserts()
        self._copy_versions()

    def _copy_inserts(self) -> None:
        waiting: dict[str, list[pa.Table]] = {}
        for number in range(self._inserts, len(self.past.inserts)):
            name, rows = self.past.inserts[number]
            waiting.setdefault(name, []).append(numbered(rows, number))
        for name, parts in waiting.items():
            self.add(f"{name}_rows", pa.concat_tables(parts))
        self._inserts = len(self.past.inserts)

    def _copy_versions(self) -> None:
        for name, versions in self.past.versions.items():
            for number, rows in enumerate(versions):
                if (name, number) not in self._versions:
                    self.create(f"{name}_v{number}", rows)
                    self._versions.add((name, number))

    def create(self, name: str, rows: pa.Table) -> None:
        raise NotImplementedError

    def add(self, name: str, rows: pa.Table) -> None:
        raise NotImplementedError

    def ask(self, text: str) -> pa.Table:
        raise NotImplementedError


class DuckReference(Reference):
    """DuckDB, in memory, without its optimizer: that of 1.5.5 makes `date_trunc('DAY', NULL) = …` false."""

    name = "DuckDB"

    def __init__(self, past: Past, streams: Iterable[Relation], tables: Iterable[Relation]) -> None:
        super().__init__(past, streams, tables)
        self._connection: Any = duckdb.connect(":memory:")
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET threads = 1")
        self._connection.execute("PRAGMA disable_optimizer")

    def create(self, name: str, rows: pa.Table) -> None:
        self._with_rows(rows, f"CREATE TABLE {name} AS FROM given")

    def add(self, name: str, rows: pa.Table) -> None:
        self._with_rows(rows, f"INSERT INTO {name} FROM given")

    def _with_rows(self, rows: pa.Table, statement: str) -> None:
        self._connection.register("given", rows)
        self._connection.execute(statement)
        self._connection.unregister("given")

    def ask(self, text: str) -> pa.Table:
        return self._connection.execute(text).to_arrow_table()

    def close(self) -> None:
        self._connection.close()


class SparkReference(Reference):
    """Spark over ordinary tables; `db` is the database as it is open now."""

    name = "Spark"
    db: Database

    def create(self, name: str, rows: pa.Table) -> None:
        relation = {**self.streams, **self.tables}[name.split("_")[0]]
        extra = f", {ARRIVED} INT" if relation.is_stream else ""
        self.db.sql(f"CREATE TABLE {name} ({relation.definition}{extra})")
        self.add(name, rows)

    def add(self, name: str, rows: pa.Table) -> None:
        self.db.insert(name, rows)

    def ask(self, text: str) -> pa.Table:
        return self.db.sql(text).to_arrow()


def expected(
    query: Query, start: Start, duck: DuckReference, spark: SparkReference, *, by_spark: bool
) -> tuple[Answer, str]:
    """The reference's answer and the name of who gave it: DuckDB where it can, Spark where told or needed."""
    if by_spark or query.sql.duck is None:
        return spark.answer(query.sql.plain, start), spark.name
    return duck.answer(query.sql.duck, start), duck.name
