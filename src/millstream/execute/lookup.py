"""A lookup → rows, without Spark; as a Spark data frame only for those who ask for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.storage import lookup as storage

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from millstream.execute.query import Rows
    from millstream.plan.lookup import Lookup
    from millstream.storage.lake import Lake


@dataclass(frozen=True)
class FoundRows:
    """A query's rows, not fetched yet, that need no job; `on_spark` runs the same query there."""

    lake: Lake
    lookup: Lookup
    on_spark: Callable[[], Rows]

    @property
    def columns(self) -> list[str]:
        return [called for _, called in self.lookup.columns]

    def to_arrow(self) -> pa.Table:
        names = [name for name, _ in self.lookup.columns]
        found = storage.find(self.lake, self.lookup.scan, self.lookup.comparisons, names)
        return found.rename_columns(self.columns)

    def head(self, rows: int) -> pa.Table:
        return self.to_arrow().slice(0, rows)

    def kept(self) -> DataFrame:
        return self.on_spark().kept()
