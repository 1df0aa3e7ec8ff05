"""What a user can say, as records.

`parse` turns SQL text into these and nothing else; every later layer consumes them. They hold names,
spans and literal values, never catalogue objects. A statement of a later part is here too: it
parses today and the engine answers NOT_SUPPORTED_YET.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from millstream.errors import Span
from millstream.schema import Column, Duration, ObjectKind

if TYPE_CHECKING:
    from sqlglot import exp

NOWHERE = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier and where it stands."""

    text: str
    span: Span = NOWHERE

    def __str__(self) -> str:
        return self.text


class WindowKind(StrEnum):
    INTERVAL = "interval"
    ROWS = "rows"
    PARTITION = "partition"
    LANDMARK = "landmark"


@dataclass(frozen=True, slots=True)
class Window:
    """`[INTERVAL i]`, `[ROWS k]`, `[PARTITION BY p ROWS k]` or `[LANDMARK [RESET INTERVAL i]]`."""

    kind: WindowKind
    length: Duration | None = None
    rows: int | None = None
    partition_by: tuple[str, ...] = ()
    span: Span = NOWHERE


@dataclass(frozen=True, slots=True)
class AsOf:
    """`VERSION n` (a snapshot id) or `TIMESTAMP '…'` (ISO text)."""

    version: int | None = None
    timestamp: str | None = None
    span: Span = NOWHERE


@dataclass(frozen=True, slots=True)
class TableReference:
    """A base table named in FROM. `span` covers the name; `extra` what must be cut out of the text.

    `extra` holds the spans of window brackets and AS OF clauses, which Spark does not understand.
    References to CTEs of the same query are not listed.
    """

    name: str
    span: Span
    alias: str | None = None
    window: Window | None = None
    as_of: AsOf | None = None
    extra: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Overlaps:
    """`OVERLAPS [PERIOD] (low, high)`: where its words with the parenthesis, its comma and its end stand."""

    opening: Span
    comma: Span
    closing: Span


@dataclass(frozen=True, slots=True)
class Valid:
    """`VALID(name)`, the time of a streaming table's row. `span` covers the call, not the OVERLAPS behind it."""

    span: Span
    name: Name
    overlaps: Overlaps | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT as written. `text` is the query alone and all spans in here are offsets into it.

    `offset` is where `text` starts in the statement. `tree` is sqlglot's view of it, for binding and
    pruning; it is None where sqlglot cannot read what Spark may still accept. `valids` stand in the
    order of the text.
    """

    text: str
    tables: tuple[TableReference, ...]
    tree: exp.Expression | None = field(default=None, compare=False)
    window: Window | None = None
    offset: int = 0
    functions: tuple[Name, ...] = ()
    valids: tuple[Valid, ...] = ()


@dataclass(frozen=True, slots=True)
class Values:
    """`VALUES (…), (…)`: the rows as sqlglot expressions, and the same as a query for Spark."""

    rows: tuple[tuple[exp.Expression, ...], ...] = field(compare=False)
    query: Query


@dataclass(frozen=True, slots=True)
class Sample:
    """`SAMPLE INTERVAL s`, `SAMPLE ROWS n` or `SAMPLE REALTIME` (neither)."""

    interval: Duration | None = None
    rows: int | None = None


class Emit(StrEnum):
    ALL = "ALL"
    NEW = "NEW"
    CHANGES = "CHANGES"


@dataclass(frozen=True, slots=True)
class ContinuousSelect:
    """The body of a continuous query; `text` is all of it, with the clauses behind the query."""

    query: Query
    sample: Sample | None = None
    emit: Emit | None = None
    into: Name | None = None
    options: tuple[tuple[str, Any], ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Any statement; `text` is its own source, to which all spans refer."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class Select(Statement):
    query: Query


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    name: Name
    columns: tuple[Column, ...] = ()
    as_query: Query | None = None
    if_not_exists: bool = False
    or_replace: bool = False
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class CreateStream(Statement):
    name: Name
    columns: tuple[Column, ...]
    time_column: Name | None = None
    watermark: Duration | None = None
    if_not_exists: bool = False
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class CreateStreamingTable(Statement):
    """`period` is None for RANGE UNBOUNDED."""

    name: Name
    columns: tuple[Column, ...]
    time_column: Name | None = None
    watermark: Duration | None = None
    period: Duration | None = None
    if_not_exists: bool = False
    comment: str | None = None
    period_span: Span = NOWHERE


@dataclass(frozen=True, slots=True)
class CreateIndex(Statement):
    name: Name
    table: Name
    columns: tuple[Name, ...]
    method: str = "BTREE"
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateReceptor(Statement):
    name: Name
    into: Name
    format: str
    options: tuple[tuple[str, str], ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateView(Statement):
    """A plain view, or a continuous one (`continuous`)."""

    name: Name
    query: Query
    continuous: bool = False
    with_history: bool = False
    or_replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateContinuousQuery(Statement):
    name: Name
    body: ContinuousSelect
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateStreamingView(Statement):
    name: Name
    period: Duration | None
    body: ContinuousSelect
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Drop(Statement):
    """`table` is for `DROP INDEX name ON table` alone."""

    kind: ObjectKind
    name: Name
    if_exists: bool = False
    cascade: bool = False
    table: Name | None = None


@dataclass(frozen=True, slots=True)
class AddColumns:
    """`ADD COLUMN[S] [IF NOT EXISTS] …`; `names` say where each of the columns stands."""

    columns: tuple[Column, ...]
    names: tuple[Name, ...]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetRange:
    """`SET RANGE INTERVAL … | UNBOUNDED` (None); `span` covers what stands behind RANGE."""

    period: Duration | None
    span: Span = NOWHERE


@dataclass(frozen=True, slots=True)
class AlterTable(Statement):
    """ALTER of a table, a stream or a streaming table."""

    kind: ObjectKind
    name: Name
    action: AddColumns | SetRange


@dataclass(frozen=True, slots=True)
class Insert(Statement):
    table: Name
    source: Query | Values
    columns: tuple[Name, ...] = ()
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Update(Statement):
    """`assignments` and `where` hold expressions, as `Query` fragments: text plus tables of subqueries."""

    table: Name
    alias: str | None
    assignments: tuple[tuple[Name, Query], ...]
    where: Query | None


@dataclass(frozen=True, slots=True)
class Delete(Statement):
    """`where` is an expression, as a `Query` fragment."""

    table: Name
    alias: str | None
    where: Query | None


@dataclass(frozen=True, slots=True)
class Truncate(Statement):
    table: Name


class FileFormat(StrEnum):
    CSV = "CSV"
    JSON = "JSON"
    PARQUET = "PARQUET"


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """`header` None means: look at the file (COPY FROM), or yes (COPY TO)."""

    format: FileFormat
    header: bool | None = None
    delimiter: str = ","
    null: str = ""
    skip_errors: bool = False


@dataclass(frozen=True, slots=True)
class CopyFrom(Statement):
    table: Name
    path: str
    path_span: Span
    options: CopyOptions
    columns: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyTo(Statement):
    query: Query
    path: str
    path_span: Span
    options: CopyOptions


@dataclass(frozen=True, slots=True)
class Advance(Statement):
    """`to` is an int for integer time, else the ISO text of a timestamp."""

    stream: Name
    to: int | str
    to_span: Span = NOWHERE


@dataclass(frozen=True, slots=True)
class Subscribe(Statement):
    query: Name


@dataclass(frozen=True, slots=True)
class Pause(Statement):
    name: Name


@dataclass(frozen=True, slots=True)
class Resume(Statement):
    name: Name


@dataclass(frozen=True, slots=True)
class RefreshView(Statement):
    name: Name


class ShowWhat(StrEnum):
    TABLES = "TABLES"
    STREAMS = "STREAMS"
    STREAMING_TABLES = "STREAMING TABLES"
    STREAMING_VIEWS = "STREAMING VIEWS"
    VIEWS = "VIEWS"
    QUERIES = "QUERIES"
    INDEXES = "INDEXES"
    RECEPTORS = "RECEPTORS"
    EMITTERS = "EMITTERS"
    COLUMNS = "COLUMNS"
    SNAPSHOTS = "SNAPSHOTS"
    FILES = "FILES"
    SETTINGS = "SETTINGS"
    EDDY = "EDDY"
    JOINS = "JOINS"
    CREATE = "CREATE"
    JOBS = "JOBS"


@dataclass(frozen=True, slots=True)
class Show(Statement):
    """`SHOW what [FROM | OF of] [LIKE 'pattern']`; `SHOW CREATE TABLE x` has `of` = x."""

    what: ShowWhat
    of: Name | None = None
    like: str | None = None


@dataclass(frozen=True, slots=True)
class Describe(Statement):
    """DESCRIBE of a named object, or of a query's columns."""

    name: Name | None = None
    query: Query | None = None
    extended: bool = False


class ExplainMode(StrEnum):
    LOGICAL = "LOGICAL"
    INCREMENTAL = "INCREMENTAL"
    SHARED = "SHARED"
    SPARK = "SPARK"


@dataclass(frozen=True, slots=True)
class Explain(Statement):
    """`mode` is None for a plain EXPLAIN. The target is a query or the name of an object."""

    mode: ExplainMode | None = None
    query: Query | None = None
    name: Name | None = None


@dataclass(frozen=True, slots=True)
class SetOption(Statement):
    """SET name = value, for everything or FOR one continuous query."""

    name: Name
    value: str
    query: Name | None = None


@dataclass(frozen=True, slots=True)
class Begin(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Commit(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Rollback(Statement):
    pass
