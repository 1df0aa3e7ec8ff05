"""DELETE and UPDATE on Spark: find the files that hold matching rows, rewrite those, keep row ids.

Two jobs however many rows: one counts the matches in each file, one writes what remains. Files
without a match are untouched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millstream.execute import assign, query, write
from millstream.execute.failures import Splice, translated
from millstream.execute.relation import FILE, POSITION, visible
from millstream.execute.types import spark_type
from millstream.schema import ROW_ID_COLUMN, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from millstream.catalog.records import DataFile, Segment, TableInfo
    from millstream.execute.relation import Relations
    from millstream.execute.session import Spark
    from millstream.plan.bind import BoundQuery
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan


@dataclass(frozen=True)
class Change:
    """What came of it: how many rows matched, which files go, what is written in their place."""

    rows: int
    gone: tuple[DataFile, ...] = ()
    survivors: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A predicate for Spark, as text over the table's columns; `alias` is how it calls the table.

    `guard` stands before it: rows beyond a streaming table's period must not even be looked at.
    """

    text: str
    alias: str
    splice: Splice
    guard: str = ""

    @property
    def whole(self) -> str:
        return f"({self.guard}{self.text})"


class Mutation:
    """A DELETE or UPDATE on one table, within one transaction's view of it."""

    def __init__(self, spark: Spark, relations: Relations, lake: Lake, parameters: Mapping[str, Any]) -> None:
        self._spark = spark
        self._relations = relations
        self._lake = lake
        self._parameters = dict(parameters)

    def _session(self) -> SparkSession:
        with translated():
            return self._spark.session()

    def condition(self, where: BoundQuery, alias: str) -> Condition:
        prepared = query.prepare(where, self._relations)
        return Condition(f"({prepared.text})", alias, prepared.splice)

    @staticmethod
    def _within_period(scan: Scan, where: Condition) -> Condition:
        """The predicate for the rows that are visible."""
        return replace(where, guard=f"{visible(scan)} AND ") if scan.needs_horizon else where

    def _run(self, before: str, text: str, after: str, splice: Splice, columns: Sequence[str]) -> DataFrame:
        """Spark's frame for a statement around a text of the user's; errors point into that text."""
        known = tuple(dict.fromkeys((*columns, *splice.columns)))
        with translated(replace(splice, prefix=len(before), columns=known)):
            return self._session().sql(before + text + after, args=self._parameters or None)

    def delete(self, scan: Scan, where: Condition) -> Change:
        """Remove the rows for which the predicate is true."""
        where = self._within_period(scan, where)
        names = ", ".join(quote(n) for n in scan.table.schema.names)
        change = self._change(scan, where, names, f"WHERE NOT coalesce({where.whole}, false)", where.splice)
        # Counted by what is left: a predicate with rand() may match other rows the second time.
        left = sum(s.rows for s in change.survivors)
        return replace(change, rows=sum(f.rows for f in change.gone) - left)

    def update(self, scan: Scan, where: Condition, assignments: Sequence[tuple[str, BoundQuery]]) -> Change:
        """Give columns new values in the rows for which the predicate is true."""
        where = self._within_period(scan, where)
        splice = where.splice
        new: dict[str, str] = {}
        for column, expression in assignments:
            prepared = query.prepare(expression, self._relations)
            splice = prepared.splice
            self._check_type(scan, where.alias, column, prepared)
            new[column] = f"({prepared.text})"
        columns = ", ".join(
            f"CASE WHEN coalesce({where.whole}, false)"
            f" THEN CAST({new[c.name]} AS {spark_type(c.type).simpleString()})"
            f" ELSE {quote(c.name)} END AS {quote(c.name)}"
            if c.name in new
            else quote(c.name)
            for c in scan.table.schema.columns
        )
        return self._change(scan, where, columns, "", replace(splice, pieces=(), text=None))

    def _check_type(self, scan: Scan, alias: str, column: str, prepared: query.Prepared) -> None:
        empty = self._relations.of(replace(scan, files=(), inlined=None, inlined_ids=None))
        frame = self._run(
            "SELECT ",
            prepared.text,
            f" FROM {empty.name} AS {quote(alias)}",
            prepared.splice,
            scan.table.schema.names,
        )
        given = frame.schema[0].dataType
        known = scan.table.schema.get(column)
        if known is not None and not assign.assignable(given, spark_type(known.type)):
            raise assign.mismatch(known, given.simpleString().upper())

    def _change(self, scan: Scan, where: Condition, columns: str, keep: str, splice: Splice) -> Change:
        counts = self._matches(scan, where)
        gone = tuple(f for f in scan.files if f.path in counts)
        survivors: list[Segment] = []
        for has_row_ids in (True, False):
            files = tuple(f for f in gone if f.has_row_ids == has_row_ids)
            if files:
                survivors += self._rewrite(replace(scan, files=files), where, columns, keep, splice)
        return Change(sum(counts.values()), gone, tuple(survivors))

    def _matches(self, scan: Scan, where: Condition) -> dict[str, int]:
        empty = not scan.files
        with translated():
            relation = self._relations.of(scan) if empty else self._relations.with_positions(scan)
        file = "''" if empty else FILE
        source = f"SELECT {file} AS f, count(*) AS n FROM {relation.name} AS {quote(where.alias)}"
        before = f"{source} WHERE ({where.guard}("
        found = self._run(before, where.text[1:-1], f")) GROUP BY {file}", where.splice, scan.table.schema.names)
        if empty:
            return {}
        with translated(replace(where.splice, prefix=len(before))):
            return {row["f"]: row["n"] for row in found.toArrow().to_pylist()}

    def _rewrite(self, scan: Scan, where: Condition, columns: str, keep: str, splice: Splice) -> list[Segment]:
        table: TableInfo = scan.table
        with translated(splice):
            relation = self._relations.with_positions(scan)
            frame = self._session().sql(
                f"SELECT {columns}, {ROW_ID_COLUMN}, {FILE}, {POSITION}"
                f" FROM {relation.name} AS {quote(where.alias)} {keep}",
                args=self._parameters or None,
            )
        starts = {f.path: f.row_id_start for f in scan.files} if scan.files[0].has_row_ids else None
        return write.rewrite_rows(frame, table, self._lake.folder(table), starts, splice)
