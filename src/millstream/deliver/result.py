"""What a statement gives back: rows, fetched when asked for, or a status."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Protocol

from millstream.deliver import render
from millstream.errors import Condition, StatementError
from millstream.execute.failures import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SHOWN_ROWS = 50


class Rows(Protocol):
    """A query's rows, not fetched yet."""

    @property
    def columns(self) -> list[str]: ...

    def to_arrow(self) -> pa.Table: ...

    def head(self, rows: int) -> pa.Table: ...

    def kept(self) -> DataFrame: ...


class Result:
    """The outcome of `Database.sql`.

    A query's rows are computed once, when first asked for, from the snapshot the query saw. Other
    statements have a `status` such as "INSERT 3" and no rows.
    """

    def __init__(
        self,
        status: str,
        *,
        rows: Rows | None = None,
        table: pa.Table | None = None,
        release: Callable[[], None] | None = None,
        session: Callable[[], SparkSession] | None = None,
    ) -> None:
        self.status = status
        self._rows = rows
        self._table = table
        self._release = release
        self._session = session

    @property
    def is_query(self) -> bool:
        """Whether there are rows to fetch."""
        return self._rows is not None or self._table is not None

    @property
    def columns(self) -> list[str]:
        """The names of the columns; empty for a status."""
        if self._table is not None:
            return list(self._table.column_names)
        return self._rows.columns if self._rows is not None else []

    @property
    def row_count(self) -> int | None:
        """How many rows a statement changed, where it did."""
        last = self.status.rpartition(" ")[2]
        return int(last) if last.isdigit() else None

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        if self._table is None:
            self._table = self._need_rows().to_arrow()
            self._let_go()
        return self._table

    def head(self, rows: int) -> pa.Table:
        """The first rows as an Arrow table; computes no more than these."""
        if self._table is None:
            return self._need_rows().head(rows)
        return self._table.slice(0, rows)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas data frame."""
        return self.to_arrow().to_pandas()

    def to_spark(self) -> DataFrame:
        """The rows as a Spark data frame, for going on in Spark."""
        if self._rows is not None:
            # Frames made from this one need its files too, so the snapshot stays until the database closes.
            self._release = None
            return self._rows.kept()
        if self._session is None:
            raise self._no_rows()
        with translated():
            return self._session().createDataFrame(self.to_arrow())

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples."""
        table = self.to_arrow()
        columns = [c.to_pylist() for c in table.columns]
        return list(zip(*columns, strict=True)) if columns else [() for _ in range(table.num_rows)]

    def fetchone(self) -> tuple[Any, ...] | None:
        """The first row, or None."""
        rows = self.fetchall()
        return rows[0] if rows else None

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())

    def show(self, limit: int = SHOWN_ROWS) -> None:
        """Print the rows, or the status."""
        from rich.console import Console

        console = Console(markup=False)
        console.print(render.to_rich(self.to_arrow(), limit) if self.is_query else self.status)

    def _repr_html_(self) -> str:
        if self.is_query:
            return render.to_html(self.to_arrow(), SHOWN_ROWS)
        return f"<p>{html.escape(self.status)}</p>"

    def __repr__(self) -> str:
        if not self.is_query:
            return f"<Result {self.status}>"
        return f"<Result {', '.join(self.columns)}>"

    def _need_rows(self) -> Rows:
        if self._rows is None:
            raise self._no_rows()
        return self._rows

    def _no_rows(self) -> StatementError:
        return StatementError(
            Condition.INVALID_ARGUMENT,
            f"{self.status!r} has no rows",
            hint="Only queries, SHOW, DESCRIBE and EXPLAIN give rows.",
        )

    def _let_go(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def __del__(self) -> None:
        if getattr(self, "_release", None) is not None:
            self._let_go()
