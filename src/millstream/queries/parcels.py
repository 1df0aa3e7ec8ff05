"""Batches of a scheduled join: their rows, and how tasks get them.

A batch never changes. Many units look into it, in the driver and in Spark's tasks: these are sent no rows but the
name of a file, so that a batch is packed once, however many slices it has. From then on the file is all that is
held of it, with short keys a quarter of what its rows take in memory; reading it again is little beside a job.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millstream.storage import segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Places = NDArray[np.integer[Any]]

ID, TIME, ENTER = "__ms_id", "__ms_time", "__ms_enter"
"""Columns of a packed batch beside its own."""
PACKED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
"""Numbers and times come nearly to nothing, and packing takes no longer than writing them plain."""


@dataclass(frozen=True)
class Rows:
    """Rows of a stream, under names in lower case; `enter` is from when on they are in windows."""

    rows: pa.Table
    ids: Numbers
    times: Numbers
    enter: Numbers

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, kept: NDArray[np.bool_] | Numbers) -> Rows:
        places = np.flatnonzero(kept) if kept.dtype == bool else kept
        times = self.times[places]
        enter = times if self.enter is self.times else self.enter[places]
        return Rows(self.rows.take(pa.array(places)), self.ids[places], times, enter)

    def of(self, columns: Sequence[str]) -> Rows:
        """The same rows with some of their columns."""
        return replace(self, rows=self.rows.select(list(columns)))

    @property
    def bytes(self) -> int:
        enter = 0 if self.enter is self.times else self.enter.nbytes
        return int(self.rows.nbytes + self.ids.nbytes + self.times.nbytes + enter)

    @staticmethod
    def together(parts: Sequence[Rows]) -> Rows:
        times = np.concatenate([p.times for p in parts])
        is_plain = all(p.enter is p.times for p in parts)
        return Rows(
            pa.concat_tables([p.rows for p in parts]),
            np.concatenate([p.ids for p in parts]),
            times,
            times if is_plain else np.concatenate([p.enter for p in parts]),
        )


PACKED_FROM = 65_536
"""A batch of so many rows is packed when nobody looks into it, whether or not it goes to tasks."""


class Parcel:
    """The rows of a batch, which many units look into: held here until they are packed."""

    def __init__(self, rows: Rows, folder: Path | None = None) -> None:
        self._rows: Rows | None = rows
        self._count = len(rows)
        self._folder = folder
        self._path: Path | None = None
        self._packed = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Rows:
        """The rows; where they are packed, they are read with each call, so see `opened`."""
        if self._rows is not None:
            return self._rows
        assert self._path is not None
        return _read(self._path)

    def opened(self) -> Parcel:
        """The same with its rows at hand, for as long as somebody holds that."""
        return self if self._rows is not None else Parcel(self.rows)

    @property
    def bytes(self) -> int:
        """What is held of it, in memory or else packed."""
        return self._packed if self._rows is None else self._rows.bytes

    def put_away(self) -> None:
        """Nobody looks into it for now."""
        if self._count >= PACKED_FROM:
            self._pack()

    def __reduce__(self) -> tuple[object, ...]:
        self._pack()
        return (Parcel, (self.rows,)) if self._path is None else (_unpacked, (self._path,))

    def _pack(self) -> None:
        if self._folder is None or self._rows is None:
            return
        path = self._folder / f"{uuid.uuid4().hex}.batch"
        weakref.finalize(self, path.unlink, missing_ok=True)
        with segment.storage_errors():
            _write(path, self._rows)
            self._packed = path.stat().st_size
        self._path, self._rows = path, None


def _unpacked(path: Path) -> Parcel:
    return Parcel(_read(path))


def _write(path: Path, rows: Rows) -> None:
    made = rows.rows.append_column(ID, pa.array(rows.ids)).append_column(TIME, pa.array(rows.times))
    if rows.enter is not rows.times:
        made = made.append_column(ENTER, pa.array(rows.enter))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, made.schema, options=PACKED) as writer:
        writer.write_table(made)


def _read(path: Path) -> Rows:
    with segment.storage_errors(), pa.OSFile(str(path)) as file:
        read = pa.ipc.open_file(file).read_all()
    marks = {n: read.column(n).to_numpy() for n in (ID, TIME, ENTER) if n in read.column_names}
    own = read.select([n for n in read.column_names if n not in marks])
    return Rows(own, marks[ID], marks[TIME], marks.get(ENTER, marks[TIME]))
