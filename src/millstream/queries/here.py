"""The kernel in the driver: small baskets and small answers, which are not worth a Spark job.

Runs a text only if every word and type of it is proven to mean the same as on Spark (`execute.translate`);
everything else gives None, and goes to Spark.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.execute import kernel, translate
from millstream.execute.relation import ONE_PARTITION_ROWS
from millstream.storage.scan import ROW
from millstream.views.kernels import THREADS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.plan.incremental import Part

HERE_ROWS = ONE_PARTITION_ROWS
"""Baskets and windows of so many rows would be one task on one core: they are not worth a job."""
MOST_ROWS = 8 * HERE_ROWS
"""An answer is made here of so many rows of states at most."""


def partials(
    parts: Sequence[Part], schemas: Sequence[pa.Schema], rows: Mapping[str, pa.Table]
) -> list[pa.Table] | None:
    """What parts make of new rows; None if the kernel cannot."""
    texts = [_fragment(p, s, rows) for p, s in zip(parts, schemas, strict=True)]
    words = [w for w in texts if w is not None]
    if len(words) < len(texts):
        return None
    try:
        made = _run(words, {n: t for n, t in rows.items() if any(n in w for w in words)})
        return [m.cast(s) for m, s in zip(made, schemas, strict=True)]
    except kernel.failures():
        return None


def _fragment(part: Part, schema: pa.Schema, rows: Mapping[str, pa.Table]) -> str | None:
    text = part.fragment
    if part.grouping != ", ".join(part.keys) or ROW in text or part.prepared:
        return None
    if not translate.are_proven(f.type for f in schema):
        return None
    if any(pa.types.is_floating(schema.field(k).type) for k in part.keys):
        return None
    return _proven(text, {n: t for n, t in rows.items() if n in text})


def _proven(text: str, tables: Mapping[str, pa.Table]) -> str | None:
    columns = [f for t in tables.values() for f in t.schema]
    used = [f.type for f in columns if f"`{f.name.lower()}`" in text.lower() or f.name.startswith("__ms_")]
    if not translate.are_proven(used):
        return None
    words = translate.to_duckdb(text)
    kinds = frozenset((f.name.lower(), translate.kind_of(f.type)) for f in columns)
    return words if words is not None and translate.conversions_are_proven(text, kinds) else None


def answer(text: str, tables: Mapping[str, pa.Table], types: Sequence[pa.DataType]) -> pa.Table | None:
    """The rows of a text over Arrow tables; None if the kernel cannot."""
    if sum(t.num_rows for t in tables.values()) > MOST_ROWS or not translate.are_proven(types):
        return None
    words = _proven(text, tables)
    if words is None:
        return None
    try:
        return _run([words], tables)[0]
    except kernel.failures():
        return None


_lock = threading.Lock()
_open = ExitStack()


@cache
def _connection() -> Any:
    """One DuckDB for the process: to open it costs more than a small answer."""
    return _open.enter_context(kernel.connect({}, THREADS))


def _run(texts: Sequence[str], tables: Mapping[str, pa.Table]) -> list[pa.Table]:
    with _lock:
        connection = _connection()
        try:
            for name, rows in tables.items():
                connection.register(name, rows)
            return [connection.execute(text).to_arrow_table() for text in texts]
        finally:
            for name in tables:
                connection.unregister(name)
