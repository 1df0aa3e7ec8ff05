"""Continuous queries in the catalogue: their plans, how far they are, what they have delivered, what they keep.

Place, deliveries and pieces of state change in one commit, so that every instant is answered once, whatever is
killed. Deliveries and pieces are Arrow tables in the catalogue itself: they are small, many, and soon gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import groups
from millstream.catalog.records import StandingInfo, TableInfo
from millstream.schema import ObjectKind, Schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection

RUNNING, PAUSED, FAILED = "running", "paused", "failed"
PLAIN, COMPRESSED = pa.ipc.IpcWriteOptions(), pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""What is packed is mostly small: to hand it to threads takes four times as long as compressing it."""
LEAST_COMPRESSED = 16_384
"""Of fewer bytes than this there is little to save, and to set up a compressor costs as much as they do."""


@dataclass(frozen=True)
class Delivered:
    """A delivery as it is stored; `data` is written by `packed`."""

    sequence: int
    instant: int
    snapshot_id: int
    skipped: int
    data: bytes


@dataclass(frozen=True)
class Piece:
    """Some rows of a part's state; none is needed after `leave`. Many pieces of a tier become one of the next."""

    part: int
    tier: int
    leave: int
    data: bytes


@dataclass(frozen=True)
class Standing:
    """How a query is doing."""

    status: str
    failure: str | None
    place: str
    answer: bytes | None
    answered_at: str | None


def packed(rows: pa.Table) -> bytes:
    """An Arrow table as bytes."""
    sink = pa.BufferOutputStream()
    options = PLAIN if rows.nbytes < LEAST_COMPRESSED else COMPRESSED
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    made: bytes = sink.getvalue().to_pybytes()
    return made


def unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def provisional(name: str, definition: str, schema: Schema, info: StandingInfo) -> TableInfo:
    """A continuous query that is not in the catalogue yet."""
    ids = tuple(range(1, len(schema.columns) + 1))
    kind = ObjectKind.CONTINUOUS_QUERY
    return TableInfo(-1, name, kind, schema, ids, "", 0, definition=definition, standing=info)


def create(commit: Commit, query: TableInfo, columns: str) -> None:
    assert query.standing is not None
    commit.connection.execute(
        "INSERT INTO millstream_query VALUES (?, ?, ?, ?)",
        (query.id, columns, query.standing.plan, query.standing.target),
    )
    commit.connection.execute(
        "INSERT INTO millstream_query_progress VALUES (?, ?, NULL, '', NULL, NULL)", (query.id, RUNNING)
    )


def drop(commit: Commit, query_id: int) -> None:
    for table in ("millstream_query_progress", "millstream_delivery", "millstream_piece"):
        commit.connection.execute(f"DELETE FROM {table} WHERE view_id = ?", (query_id,))
    commit.connection.execute("DELETE FROM millstream_consumer WHERE name = ?", (consumer(query_id),))
    groups.leave(commit, query_id)


def consumer(query_id: int) -> str:
    """The name under which a query consumes its streams."""
    return f"query {query_id}"


def standing(connection: Connection, query_id: int) -> Standing | None:
    row = connection.execute(
        "SELECT status, failure, place, answer, answered_at FROM millstream_query_progress WHERE view_id = ?",
        (query_id,),
    ).fetchone()
    return None if row is None else Standing(*row)


def every_standing(connection: Connection) -> dict[int, Standing]:
    """How all queries are doing, by id, without their answers."""
    rows = connection.execute(
        "SELECT view_id, status, failure, place, NULL, answered_at FROM millstream_query_progress"
    )
    return {view_id: Standing(*rest) for view_id, *rest in rows}


def every_with_status(connection: Connection, status: str) -> set[int]:
    """The queries that are doing so."""
    rows = connection.execute("SELECT view_id FROM millstream_query_progress WHERE status = ?", (status,))
    return {view_id for (view_id,) in rows}


def set_status(commit: Commit, query_id: int, status: str, failure: str | None = None) -> None:
    commit.connection.execute(
        "UPDATE millstream_query_progress SET status = ?, failure = ? WHERE view_id = ?",
        (status, failure, query_id),
    )


def pause(commit: Commit, query_id: int) -> None:
    """Let a query that runs be paused; one that has failed goes on telling why."""
    commit.connection.execute(
        "UPDATE millstream_query_progress SET status = ? WHERE view_id = ? AND status = ?",
        (PAUSED, query_id, RUNNING),
    )


def moved_on(commit: Commit, query_id: int, place: str, answer: bytes | None, at: str | None) -> None:
    """Store a query's new place; `answer` and `at` only if it has answered."""
    commit.connection.execute(
        "UPDATE millstream_query_progress SET place = ?, answer = coalesce(?, answer),"
        " answered_at = coalesce(?, answered_at) WHERE view_id = ?",
        (place, answer, at, query_id),
    )


def deliver(commit: Commit, query_id: int, made: Iterable[Delivered], keep: int) -> None:
    """Add deliveries, and let go of those beyond the last `keep`."""
    rows = [(query_id, d.sequence, d.instant, d.snapshot_id, d.skipped, d.data) for d in made]
    if not rows:
        return
    commit.connection.executemany("INSERT INTO millstream_delivery VALUES (?, ?, ?, ?, ?, ?)", rows)
    commit.connection.execute(
        "DELETE FROM millstream_delivery WHERE view_id = ? AND sequence <= ?", (query_id, rows[-1][1] - keep)
    )


def delivered(connection: Connection, query_id: int, since: int, most: int = -1) -> list[Delivered]:
    """The deliveries that are kept, after a sequence number."""
    rows = connection.execute(
        "SELECT sequence, instant, snapshot_id, skipped, data FROM millstream_delivery"
        " WHERE view_id = ? AND sequence > ? ORDER BY sequence LIMIT ?",
        (query_id, since, most),
    )
    return [Delivered(*row) for row in rows]


def add_pieces(commit: Commit, query_id: int, pieces: Iterable[Piece]) -> None:
    commit.connection.executemany(
        "INSERT INTO millstream_piece (view_id, part, tier, leave, data) VALUES (?, ?, ?, ?, ?)",
        [(query_id, p.part, p.tier, p.leave, p.data) for p in pieces],
    )


def remove_pieces(
    commit: Commit, query_id: int, part: int, *, tier: int | None = None, until: int | None = None
) -> None:
    """Remove a part's pieces, or those alone of a tier, or those alone that are not needed after a place."""
    tests = "" if tier is None else f" AND tier = {tier}"
    tests += "" if until is None else f" AND leave <= {until}"
    commit.connection.execute(
        f"DELETE FROM millstream_piece WHERE view_id = ? AND part = ?{tests}", (query_id, part)
    )


def pieces(connection: Connection, query_id: int, part: int | None = None, tier: int | None = None) -> list[Piece]:
    """The pieces of a query, or of one tier of a part, the oldest first."""
    tests = "" if part is None else f" AND part = {part} AND tier = {tier}"
    rows = connection.execute(
        f"SELECT part, tier, leave, data FROM millstream_piece WHERE view_id = ?{tests} ORDER BY piece_id",
        (query_id,),
    )
    return [Piece(*row) for row in rows]


def note_advance(commit: Commit, stream_id: int, position: int, advanced_to: int) -> None:
    """Remember before which row a stream was advanced, for the queries that have not come so far."""
    commit.connection.execute(
        "DELETE FROM millstream_advance WHERE stream_id = ? AND position < coalesce((SELECT min(position)"
        " FROM millstream_consumer WHERE stream_id = ? AND name LIKE 'query %'), position + 1) AND position < ?",
        (stream_id, stream_id, position),
    )
    commit.connection.execute(
        "INSERT INTO millstream_advance VALUES (?, ?, ?)", (stream_id, position, advanced_to)
    )


def advances(connection: Connection, stream_id: int, since: int) -> list[tuple[int, int]]:
    """Where a stream was advanced from a row id on, and to what, in order."""
    rows = connection.execute(
        "SELECT position, advanced_to FROM millstream_advance WHERE stream_id = ? AND position >= ?"
        " ORDER BY position, advanced_to",
        (stream_id, since),
    )
    return rows.fetchall()


def state_sizes(connection: Connection) -> dict[int, int]:
    """How many bytes queries keep as state, by id; those that keep none are left out."""
    rows = connection.execute("SELECT view_id, sum(length(data)) FROM millstream_piece GROUP BY view_id")
    return dict(rows.fetchall())
