"""CSV, JSON (a value a line) and Parquet files → tables of the target's schema, in bounded memory.

A record that cannot be read stops everything with its line number, unless bad records are to be
skipped; then they are counted. Nothing is committed here.
"""

from __future__ import annotations

import csv
import glob
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from millstream.errors import Condition, DataError, StatementError, did_you_mean
from millstream.ingest import convert, text
from millstream.ingest.progress import Listener, Progress, ignore
from millstream.schema import Column, is_nested

if TYPE_CHECKING:
    from millstream.ingest.convert import Target
    from millstream.sql.statements import CopyOptions

BLOCK_BYTES = 8 * 1024 * 1024
JSON_ROWS = 10_000


@dataclass
class Copy:
    """One COPY … FROM: where from, where to, how, and how many records were skipped."""

    target: Target
    options: CopyOptions
    listener: Listener = ignore
    skipped: int = 0
    _total: int = 0
    _done: int = field(default=0)

    def tables(self, paths: list[Path]) -> Iterator[pa.Table]:
        """The files' rows, file by file."""
        read = {"CSV": self._csv, "JSON": self._json, "PARQUET": self._parquet}[self.options.format.value]
        self._total = sum(p.stat().st_size for p in paths)
        for path in paths:
            before = self._done
            try:
                yield from read(path)
            except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
                raise unreadable(path, error) from error
            self._advance(before + path.stat().st_size - self._done)
        self.listener(Progress("copy", self._total, self._total, "bytes"))

    def _advance(self, size: int) -> None:
        self._done = min(self._done + size, max(self._total - 1, 0))
        self.listener(Progress("copy", self._done, self._total, "bytes"))

    # CSV

    def _csv(self, path: Path) -> Iterator[pa.Table]:
        columns = self._csv_columns(path)
        record = 0
        for batch in self._csv_batches(path, columns):
            arrays, failures = [], text.Failures()
            for i, column in enumerate(columns):
                read, failed = text.read_column(batch.column(i), column)
                arrays.append(read)
                failures = failed | failures
            if failures and not self.options.skip_errors:
                first = min(failures)
                line = csv_line(path, self.options, self._has_header, len(columns), record + first)
                raise bad_record(path, line, failures[first])
            data = pa.table(arrays, names=[c.name for c in columns])
            record += batch.num_rows
            self._advance(batch.nbytes)
            yield self.target.widened(self._without(data, failures))

    def _without(self, data: pa.Table, failures: text.Failures) -> pa.Table:
        if not failures:
            return data
        self.skipped += len(failures)
        return data.filter(pa.array([i not in failures for i in range(data.num_rows)]))

    def _csv_columns(self, path: Path) -> list[Column]:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = next(csv.reader(file, delimiter=self.options.delimiter), [])
        names = {c.name.lower(): c for c in self.target.filled}
        sniffed = bool(first) and all(n.strip().lower() in names for n in first)
        self._has_header = sniffed if self.options.header is None else self.options.header
        columns = [self._header_column(n, names) for n in first] if self._has_header else list(self.target.filled)
        if len(set(columns)) < len(columns):
            raise StatementError(
                Condition.DUPLICATE_COLUMN,
                "the file's header names a column twice",
                hint="Rename one of them, or say HEADER false if the first line is data.",
            )
        for column in columns:
            if is_nested(column.type):
                raise StatementError(
                    Condition.NOT_SUPPORTED,
                    f"CSV cannot hold column {column.name!r} of type {column.sql_type}",
                    hint="Use JSON or Parquet for nested values.",
                )
        return columns

    def _header_column(self, name: str, names: dict[str, Column]) -> Column:
        found = names.get(name.strip().lower())
        if found is None:
            raise StatementError(
                Condition.UNKNOWN_COLUMN,
                f"the file's header names {name!r}, which is no column of {self.target.name!r}",
                hint=did_you_mean(name, [c.name for c in names.values()])
                or "Correct the header, or say HEADER false if the first line is data.",
            )
        return found

    def _csv_batches(self, path: Path, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        names = [str(i) for i in range(len(columns))]
        skipped_rows: list[arrow_csv.InvalidRow] = []

        def on_invalid(row: Any) -> str:
            if self.options.skip_errors:
                self.skipped += 1
                return "skip"
            skipped_rows.append(row)
            return "error"

        try:
            reader = arrow_csv.open_csv(
                path,
                arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=BLOCK_BYTES,
                    column_names=names,
                    skip_rows_after_names=int(self._has_header),
                ),
                arrow_csv.ParseOptions(
                    delimiter=self.options.delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=len(columns) > 1,
                    invalid_row_handler=on_invalid,
                ),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    null_values=[self.options.null],
                ),
            )
            yield from reader
        except pa.ArrowInvalid as error:
            if str(error).startswith("Empty CSV"):
                return
            raise self._misfit(path, len(columns), error) from error

    def _misfit(self, path: Path, width: int, error: Exception) -> Exception:
        for number, fields in csv_records(path, self.options, self._has_header, width):
            if len(fields) != width:
                return bad_record(path, number, f"{width} fields expected and {len(fields)} found")
        return unreadable(path, error)

    # JSON

    def _json(self, path: Path) -> Iterator[pa.Table]:
        names = {c.name.lower(): c for c in self.target.filled}
        with path.open(encoding="utf-8-sig") as file:
            numbered = enumerate(file, 1)
            while chunk := list(itertools.islice(numbered, JSON_ROWS)):
                rows = [row for number, line in chunk if (row := self._json_row(path, number, line, names))]
                self._advance(sum(len(line) for _, line in chunk))
                columns = list(names.values())
                arrays = [pa.array([r.get(c.name) for r in rows], c.type) for c in columns]
                yield self.target.widened(pa.table(arrays, names=[c.name for c in columns]))

    def _json_row(self, path: Path, number: int, line: str, names: dict[str, Column]) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            return {c.name: v for c, v in self._json_values(line, names)}
        except (ValueError, ArithmeticError, TypeError, AttributeError, RecursionError, pa.ArrowInvalid) as error:
            if self.options.skip_errors:
                self.skipped += 1
                return None
            raise bad_record(path, number, str(error)) from error

    def _json_values(self, line: str, names: dict[str, Column]) -> Iterator[tuple[Column, Any]]:
        parsed = json.loads(line, parse_float=Decimal)
        if not isinstance(parsed, dict):
            raise ValueError("a JSON object is expected on every line")
        by_name = {k.lower(): v for k, v in parsed.items()}
        for name in by_name.keys() - names.keys():
            raise ValueError(f"no column {name!r} in {self.target.name!r}")
        for name, column in names.items():
            try:
                value = text.from_json(by_name.get(name), column.type)
                pa.scalar(value, column.type)
            except (ValueError, ArithmeticError, TypeError, AttributeError, pa.ArrowInvalid) as error:
                raise ValueError(
                    f"{by_name.get(name)!r} is not a value for column {column.name!r} of type {column.sql_type}"
                ) from error
            self._check_value(column, value)
            yield column, value

    @staticmethod
    def _check_value(column: Column, value: Any) -> None:
        if value is None and not column.nullable:
            raise ValueError(f"column {column.name!r} must not be null")
        if column.max_length is not None and value is not None and len(value) > column.max_length:
            raise ValueError(f"too long for column {column.name!r} of type {column.sql_type}")

    # Parquet

    def _parquet(self, path: Path) -> Iterator[pa.Table]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                data = convert.fit(pa.Table.from_batches([batch]), self.target)
                self._advance(batch.nbytes)
                yield self.target.widened(data)


def files_of(pattern: str) -> list[Path]:
    """The files that a path or a pattern with * names, in order."""
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    found = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]
    if found:
        return found
    near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
    raise DataError(
        Condition.FILE_NOT_FOUND,
        f"no file {str(path)!r}" if not path.is_dir() else f"{str(path)!r} is a directory",
        hint=near or "Check the path; it is relative to the directory Millstream runs in. * matches many files.",
    )


def csv_records(path: Path, options: CopyOptions, has_header: bool, width: int) -> Iterator[tuple[int, list[str]]]:
    """(first line, fields) of every data record; an empty line is a record only where there is one column."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file, delimiter=options.delimiter)
        line = 1
        for number, fields in enumerate(reader):
            if (fields or width == 1) and not (number == 0 and has_header):
                yield line, fields or [""]
            line = reader.line_num + 1


def csv_line(path: Path, options: CopyOptions, has_header: bool, width: int, record: int) -> int:
    """The line on which a data record starts."""
    return next(itertools.islice(csv_records(path, options, has_header, width), record, None), (0, []))[0]


def bad_record(path: Path, line: int, reason: str) -> DataError:
    return DataError(
        Condition.BAD_RECORD,
        f"line {line} of {path.name!r} cannot be loaded: {reason}",
        detail="Nothing of the file was loaded.",
        hint="Correct the line, or load the rest with ON ERROR SKIP.",
    )


def unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        Condition.FILE_UNREADABLE,
        f"{str(path)!r} cannot be read",
        detail=str(error).splitlines()[0] if str(error) else None,
        hint="Check that the file is what the statement says it is: CSV, JSON (one object a line) or Parquet.",
    )
