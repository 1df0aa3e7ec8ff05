"""A bound query → Spark: the user's own text with table names replaced, and nothing else changed.

So Spark gets everything it understands exactly as it was written, and positions in its errors map
back on to the user's text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from millstream.errors import Condition, Span, StatementError
from millstream.execute.failures import NO_SPLICE, Splice, translated
from millstream.schema import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millstream.execute.relation import Relation, Relations
    from millstream.execute.session import Spark
    from millstream.plan.bind import BoundQuery
    from millstream.sql.statements import TableReference

    Edit = tuple[Span, str]

BEHIND_TABLE = re.compile(r"\bTABLE\s+$", re.IGNORECASE)
GAP = r"(?:\s|/\*.*?\*/|--[^\n]*\n)*"
SAMPLE = re.compile(
    rf"{GAP}TABLESAMPLE{GAP}\([^()]*\)(?:{GAP}REPEATABLE{GAP}\([^()]*\))?", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True)
class Prepared:
    """Text for Spark, how to read its errors, and the relations it needs to stay alive."""

    text: str
    splice: Splice
    relations: tuple[Relation, ...]


@dataclass(frozen=True)
class Rows:
    """A query's rows, not fetched yet: a data frame, and how to read its errors."""

    frame: DataFrame
    splice: Splice = NO_SPLICE
    relations: tuple[Relation, ...] = ()

    @property
    def columns(self) -> list[str]:
        return list(self.frame.columns)

    def to_arrow(self) -> pa.Table:
        with translated(self.splice):
            return self.frame.toArrow()

    def head(self, rows: int) -> pa.Table:
        with translated(self.splice):
            return self.frame.limit(rows).toArrow()

    def kept(self) -> DataFrame:
        """The frame, whose relations now stay until the database closes."""
        for relation in self.relations:
            relation.keep()
        return self.frame

    def schema(self) -> pa.Schema:
        """The columns as Arrow sees them; asks Spark for no rows."""
        try:
            with translated(self.splice):
                return to_arrow_schema(self.frame.schema, timezone="UTC")
        except (ValueError, PySparkException) as error:
            raise StatementError(
                Condition.UNKNOWN_TYPE,
                "the query has a column whose type is not known",
                detail=str(error),
                hint="Give NULLs and empty arrays a type, e.g. CAST(NULL AS INT).",
            ) from error


def prepare(bound: BoundQuery, relations: Relations) -> Prepared:
    """Give every table of the query a relation and put their names into its text."""
    made = [relations.of(table.scan) for table in bound.tables]
    views = [prepare(view.query, relations) for view in bound.views]
    sources = [
        *((t.reference, r.name) for t, r in zip(bound.tables, made, strict=True)),
        *((v.reference, _derived(v.query, p.text)) for v, p in zip(bound.views, views, strict=True)),
    ]
    edits = [edit for reference, name in sources for edit in _edits(bound.text, reference, name)]
    text, pieces = splice(bound.text, [*edits, *bound.edits])
    names = tuple((r.name, t.reference.name) for r, t in zip(made, bound.tables, strict=True))
    columns = tuple(dict.fromkeys(c for t in bound.tables for c in t.scan.table.schema.names))
    offset_pieces = tuple((start, length, span.shifted(bound.offset)) for start, length, span in pieces)
    moved = ((0, 0, Span(0, bound.offset)), *offset_pieces)
    names += tuple(pair for view in views for pair in view.splice.names)
    columns += tuple(c for view in views for c in view.splice.columns if c not in columns)
    used = (*made, *(r for view in views for r in view.relations))
    return Prepared(text, Splice(moved, names, bound.statement_text, columns), used)


def _derived(bound: BoundQuery, text: str) -> str:
    """A view's query as a table, its columns under the names that the view gives them."""
    if not bound.names:
        return f"({text})"
    return f"(SELECT * FROM ({text}) AS named ({', '.join(quote(n) for n in bound.names)}))"


def _edits(text: str, reference: TableReference, name: str) -> list[Edit]:
    """Put `name` in the table's place and cut out what Spark does not know.

    A table without an alias gets its own name as one, so that `t.a` keeps its meaning; behind TABLE
    no alias may stand, and TABLESAMPLE comes before it.
    """
    edits = [(reference.span, name), *((cut, " ") for cut in reference.extra)]
    if reference.alias is not None or BEHIND_TABLE.search(text[: reference.span.start]):
        return edits
    alias = f" AS {quote(reference.name)}"
    sample = SAMPLE.match(text, max(reference.span.end, *(cut.end for cut in reference.extra), 0))
    if sample is None:
        return [(reference.span, name + alias), *edits[1:]]
    return [*edits, (Span(sample.end(), sample.end()), alias)]


def splice(text: str, edits: Sequence[Edit]) -> tuple[str, list[tuple[int, int, Span]]]:
    """Replace spans of the text; returns it and where each piece came to stand."""
    out: list[str] = []
    pieces: list[tuple[int, int, Span]] = []
    position = length = 0
    for span, new in sorted(edits, key=lambda e: e[0].start):
        before = text[position : span.start]
        out += [before, new]
        pieces.append((length + len(before), len(new), span))
        length += len(before) + len(new)
        position = span.end
    out.append(text[position:])
    return "".join(out), pieces


def run(
    spark: Spark, bound: BoundQuery, relations: Relations, parameters: Mapping[str, Any], prefix: str = ""
) -> Rows:
    """Hand a query to Spark; it is analysed now and runs when its rows are fetched."""
    with translated():
        session = spark.session()
        prepared = prepare(bound, relations)
    splice_ = prepared.splice
    try:
        with translated(splice_):
            frame = session.sql(prefix + prepared.text, args=dict(parameters) or None)
    except StatementError as error:
        if error.condition is Condition.SYNTAX_ERROR:
            _complain_in_own_words(session, bound)
        raise
    return Rows(frame, splice_, prepared.relations)


def _complain_in_own_words(session: SparkSession, bound: BoundQuery) -> None:
    """Let Spark read the text as the user wrote it, so that its complaint names nothing of ours."""
    text, pieces = splice(bound.text, bound.edits)
    shifted = ((start, length, span.shifted(bound.offset)) for start, length, span in pieces)
    moved = Splice(((0, 0, Span(0, bound.offset)), *shifted), (), bound.statement_text)
    try:
        with translated(moved):
            session.sql(text)
    except StatementError as error:
        if error.condition is Condition.SYNTAX_ERROR:
            raise
