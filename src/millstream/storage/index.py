"""Value indices: sorted copies of segments, built one at a time, and the choice between copy and segment.

A copy holds the rows of one data file sorted by the indexed column (ties as they came), in small row groups
with page bounds, so that a read of few keys touches few pages; HASH adds Bloom filters, for keys that
are rare. A copy never changes and goes with its file. A file is worth a copy when compaction is done
with it. Copies live beside the data, where foreign readers of the lake do not look.
"""

from __future__ import annotations

import os
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.catalog import files, indexes
from millstream.catalog.commits import Receipt
from millstream.catalog.files import AFTER_ALL, BEFORE_ALL
from millstream.catalog.records import IndexCopy, IndexMethod, RowGroup
from millstream.errors import MachineError
from millstream.schema import is_nested
from millstream.storage import period, prune, segment, statistics
from millstream.storage.prune import Operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from millstream.catalog.records import DataFile, IndexInfo, TableInfo
    from millstream.catalog.store import Connection
    from millstream.storage.lake import Lake
    from millstream.storage.prune import Comparison

LEAST_ROWS, LEAST_CLOSED_ROWS = 131_072, 16_384
"""Smaller files are read faster than they are sorted, and compaction will replace them, but for those of a
compartment that is closed."""
ROW_GROUP_ROWS = 65_536
PAGE_ROWS = 1_024
MOST_LOOKUPS = 64
"""Longer lists of values are read through a copy only where whole row groups can be left out."""
SAMPLE_ROWS, REPEATS = 16_384, 8
EQUALITY = (Operator.EQ, Operator.IN)
SERVES = {IndexMethod.HASH: EQUALITY, IndexMethod.BTREE: tuple(Operator)}
MOST_REMEMBERED = 20_000
WORTH_IT = 0.8
"""A copy is read if it leaves at most this part of the rows: its rows are out of time order."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A copy that is read in place of its file, and how much of it can match: rows, and row groups by place."""

    index: IndexInfo
    copy: IndexCopy
    rows: int
    groups: tuple[int, ...]

    @property
    def rows_in_groups(self) -> int:
        return sum(self.copy.groups[i].rows for i in self.groups)


def is_indexable(type_: pa.DataType) -> bool:
    """Types whose order Arrow, Parquet's bounds and Spark agree on."""
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_string(type_)
        or pa.types.is_date(type_)
        or pa.types.is_timestamp(type_)
    )


class Chooser:
    """Picks, for each file of a scan, the copy in which the fewest rows can match.

    `enabled` is the setting `use_indexes`: without it a read takes everything that is visible.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[int, dict[int, IndexCopy]] = {}
        self._lock = threading.Lock()
        self.enabled = True

    def choose(
        self,
        connection: Connection,
        table: TableInfo,
        candidates: Sequence[DataFile],
        comparisons: Sequence[Comparison],
        times: tuple[int, int],
    ) -> dict[int, Choice]:
        """The choice for each file that is better read through a copy."""
        chosen: dict[int, Choice] = {}
        if not comparisons or not candidates:
            return chosen
        for index, useful in self._useful(table, comparisons):
            copies = self._copies(connection, index, table, candidates)
            for file in candidates:
                found = _choice(index, copies.get(file.id), useful)
                best = chosen[file.id].rows if file.id in chosen else WORTH_IT * expected_rows(file, times)
                if found is not None and (found.rows < best or not found.rows):
                    chosen[file.id] = found
        return chosen

    def _useful(
        self, table: TableInfo, comparisons: Sequence[Comparison]
    ) -> Iterator[tuple[IndexInfo, list[Comparison]]]:
        for index in self._lake.catalog.indexes().values():
            if index.table_id == table.id and index.column_id in table.column_ids:
                name = table.column(index.column_id).name
                served = [c for c in comparisons if c.column == name and c.operator in SERVES[index.method]]
                if served:
                    yield index, served

    def _copies(
        self, connection: Connection, index: IndexInfo, table: TableInfo, candidates: Sequence[DataFile]
    ) -> dict[int, IndexCopy]:
        """The index's copies of the candidates; a copy never changes, so each is read once."""
        with self._lock:
            known = self._known.setdefault(index.id, {})
            unknown = [
                f.id for f in candidates if f.rows >= min(LEAST_ROWS, LEAST_CLOSED_ROWS) and f.id not in known
            ]
        if not unknown:
            return known
        found = indexes.copies(connection, index, table.column(index.column_id).type, unknown)
        with self._lock:
            if len(known) > MOST_REMEMBERED:
                known = self._known[index.id] = {}
            known |= found
        return known


def _choice(index: IndexInfo, copy: IndexCopy | None, comparisons: Sequence[Comparison]) -> Choice | None:
    if copy is None:
        return None
    can_match = [all(prune.can_match(g.stats, c) for c in comparisons) for g in copy.groups]
    groups = tuple(i for i, can in enumerate(can_match) if can)
    return Choice(index, copy, sum(_rows_to_read(copy.groups[i], comparisons) for i in groups), groups)


def _rows_to_read(group: RowGroup, comparisons: Sequence[Comparison]) -> int:
    """How many rows of a row group are in pages that can match: few, if a few numbers are looked up."""
    equal = [c for c in comparisons if c.operator in EQUALITY and len(c.values) <= MOST_LOOKUPS]
    low, high = group.stats.low, group.stats.high
    if not equal or not isinstance(low, int) or not isinstance(high, int):
        return group.rows
    wanted: int = min(sum(low <= v <= high for v in c.values) for c in equal)
    return min(group.rows, wanted * (PAGE_ROWS + group.rows // (high - low + 1)))


def expected_rows(file: DataFile, times: tuple[int, int]) -> float:
    """How many rows of a file that is in time order lie in a span of time, if they are spread evenly."""
    if file.low is None or file.high is None or file.high == file.low:
        return file.rows
    low, high = max(times[0], file.low, BEFORE_ALL), min(times[1], file.high, AFTER_ALL)
    return file.rows * max(0, high - low) / (file.high - file.low)


def missing(lake: Lake) -> list[tuple[TableInfo, IndexInfo, DataFile]]:
    """The copies that are still to be made, newest files first: they are asked for most."""
    found = []
    tables = {t.id: t for t in lake.catalog.tables().values()}
    with lake.catalog.read() as connection:
        for index in lake.catalog.indexes().values():
            table = tables.get(index.table_id)
            if table is None or index.column_id not in table.column_ids:
                continue
            done = indexes.built(connection, index.id)
            live = files.live(connection, table.id, lake.catalog.current.id)
            found += [(table, index, f) for f in reversed(to_index(table, live)) if f.id not in done]
    return found


def to_index(table: TableInfo, live: Sequence[DataFile]) -> list[DataFile]:
    """The files that are worth a copy."""
    newest = max((period.compartment(table, f.high) for f in live if f.high is not None), default=0)

    def is_closed(file: DataFile) -> bool:
        return file.high is not None and period.compartment(table, file.high) < newest

    return [f for f in live if f.rows >= (min(LEAST_ROWS, LEAST_CLOSED_ROWS) if is_closed(f) else LEAST_ROWS)]


def build(lake: Lake, table: TableInfo, index: IndexInfo, file: DataFile) -> bool:
    """Make one copy; False if its file has gone meanwhile."""
    try:
        data, _ = segment.read(lake.folder(table), table, file)
    except MachineError:
        if (lake.folder(table) / file.path).exists():
            raise
        return False
    copy = _write(lake.index_folder(table), table, index, file, data)
    receipt, added = Receipt(), []
    try:
        lake.catalog.commit(lambda commit: added.append(indexes.add_copy(commit, copy)), receipt=receipt)
    finally:
        is_added = receipt.committed and added[-1]
        if not is_added:
            (lake.indexes / copy.path).unlink(missing_ok=True)
    return is_added


def _write(folder: Path, table: TableInfo, index: IndexInfo, file: DataFile, data: pa.Table) -> IndexCopy:
    column = table.column(index.column_id)
    ordered = data.take(_order(data.column(column.name)))
    path = folder / f"{index.id}-{uuid.uuid4()}.parquet"
    repeating = _with_dictionary(column.name, data)
    # Without it Arrow has 64 MiB for the filter of each row group until the file is complete.
    most_values = {"ndv": max(1, min(ROW_GROUP_ROWS, data.num_rows))}
    bloom = {column.name: most_values} if index.method is IndexMethod.HASH else None
    with segment.storage_errors():
        try:
            with segment.open_for_write(path) as out:
                pq.write_table(
                    ordered,
                    out,
                    row_group_size=ROW_GROUP_ROWS,
                    max_rows_per_page=PAGE_ROWS,
                    write_page_index=True,
                    use_dictionary=repeating,
                    column_encoding=_deltas(data.schema, repeating),
                    write_statistics=_bounded(table, data),
                    bloom_filter_options=bloom,
                )
                out.flush()
                os.fsync(out.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    segment.sync_folder(folder)
    groups = tuple(
        RowGroup(part.num_rows, statistics.of_column(column, part.column(column.name)))
        for part in segment.sliced(ordered, ROW_GROUP_ROWS)
    )
    return IndexCopy(index.id, file.id, f"{folder.name}/{path.name}", path.stat().st_size, groups)


def _with_dictionary(indexed: str, data: pa.Table) -> list[str]:
    """The columns whose values repeat; the indexed one is sorted, and cheaper as it is."""
    start = data.slice(0, SAMPLE_ROWS)
    return [
        name
        for name in segment.columns_with_dictionary(data.schema)
        if name != indexed and (name not in data.column_names or _repeats(start.column(name)))
    ]


def _deltas(schema: pa.Schema, dictionaries: Sequence[str]) -> dict[str, str]:
    """Integers that hardly repeat are stored as differences, a quarter smaller than as they are."""
    plain = [f for f in schema if f.name not in dictionaries and f.type in (pa.int32(), pa.int64())]
    return {f.name: "DELTA_BINARY_PACKED" for f in plain}


def _repeats(values: pa.ChunkedArray) -> bool:
    return is_nested(values.type) or REPEATS * int(pc.count_distinct(values).as_py()) <= len(values)


def _bounded(table: TableInfo, data: pa.Table) -> list[str]:
    return segment.columns_with_bounds(table, statistics.of_table(table, data))


def _order(values: pa.ChunkedArray) -> pa.Array | NDArray[np.int64]:
    """The places of the rows in the order of their values, ties as they came, nulls last."""
    if values.null_count == 0 and pa.types.is_integer(values.type):
        numbers = np.asarray(values.cast(pa.int64()).to_numpy(), dtype=np.int64)
        low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
        if high - low < 2**32:
            return _radix_order((numbers - low).astype(np.uint32))
    return pc.sort_indices(values)


def _radix_order(numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """NumPy sorts 16 bits by radix, so two such sorts beat any one of 32 bits."""
    by_low = np.argsort((numbers & 0xFFFF).astype(np.uint16), kind="stable")
    by_high = np.argsort((numbers >> 16).astype(np.uint16)[by_low], kind="stable")
    return np.asarray(by_low[by_high], dtype=np.int64)


def build_some(lake: Lake, most: int) -> int:
    """Make some of the copies that are missing; returns how many are still to be made."""
    wanted = missing(lake)
    for table, index, file in wanted[:most]:
        build(lake, table, index, file)
    return len(wanted[most:])


def discard(lake: Lake) -> int:
    """Delete the copies that no reader can have found: of files or indices that are gone."""
    pinned = lake.catalog.oldest_pin()
    keep_from = lake.catalog.current.id if pinned is None else min(pinned, lake.catalog.current.id)
    lake.catalog.maintain(lambda connection: indexes.discard(connection, keep_from))
    return delete_discarded(lake)


def delete_discarded(lake: Lake) -> int:
    """Delete the copies on the list of those that nobody needs."""
    with lake.catalog.read() as connection:
        paths = indexes.discarded(connection)
    for path in paths:
        (lake.indexes / path).unlink(missing_ok=True)
    if paths:
        lake.catalog.maintain(lambda connection: indexes.forget_discarded(connection, paths))
    return len(paths)


def remove_orphans(lake: Lake) -> int:
    """Delete copies that the catalogue does not know, and forget those that are not there any more.

    Only on opening: nobody can be writing then. What is forgotten is built again.
    """
    delete_discarded(lake)
    with lake.catalog.read() as connection:
        known = indexes.every_copy(connection)
    present = {f.relative_to(lake.indexes).as_posix(): f for f in lake.indexes.glob("*/*.parquet")}
    if lost := known - present.keys():
        lake.catalog.maintain(lambda connection: indexes.forget_lost(connection, lost))
    orphans = [file for path, file in present.items() if path not in known]
    for file in orphans:
        file.unlink(missing_ok=True)
    for folder in lake.indexes.glob("*/"):
        if not any(folder.iterdir()):
            folder.rmdir()
    return len(orphans)
