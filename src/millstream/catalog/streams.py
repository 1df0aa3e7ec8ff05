"""A stream's moving state: its times, its counters, and who still needs its rows.

None of it is part of a snapshot, so changing it alone makes none. A stream that a transaction has
only staged is at its beginning.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING

from millstream.catalog import groups
from millstream.catalog.records import StreamState

if TYPE_CHECKING:
    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection

COLUMNS = "max_time, advanced_to, late_rows, received_rows, dropped_to, refused_rows"


def create(commit: Commit, table_id: int) -> None:
    commit.connection.execute(
        f"INSERT INTO millstream_stream (table_id, {COLUMNS}) VALUES (?, NULL, NULL, 0, 0, 0, 0)", (table_id,)
    )
    commit.stream_states[table_id] = StreamState()


def drop(commit: Commit, table_id: int) -> None:
    commit.connection.execute("DELETE FROM millstream_stream WHERE table_id = ?", (table_id,))
    commit.connection.execute("DELETE FROM millstream_consumer WHERE stream_id = ?", (table_id,))
    groups.drop_of_stream(commit, table_id)


def load(connection: Connection, table_id: int) -> StreamState:
    row = connection.execute(f"SELECT {COLUMNS} FROM millstream_stream WHERE table_id = ?", (table_id,)).fetchone()
    return StreamState() if row is None else StreamState(*row)


def load_all(connection: Connection) -> dict[int, StreamState]:
    rows = connection.execute(f"SELECT table_id, {COLUMNS} FROM millstream_stream")
    return {table_id: StreamState(*rest) for table_id, *rest in rows}


def state_of(commit: Commit, table_id: int) -> StreamState:
    """The state inside a commit: what earlier work of the same commit left behind."""
    if table_id not in commit.stream_states:
        commit.stream_states[table_id] = load(commit.connection, table_id)
    return commit.stream_states[table_id]


def save(commit: Commit, table_id: int, state: StreamState) -> None:
    commit.stream_states[table_id] = state
    commit.connection.execute(
        "UPDATE millstream_stream SET max_time = ?, advanced_to = ?, late_rows = ?, received_rows = ?,"
        " dropped_to = ?, refused_rows = ? WHERE table_id = ?",
        (*astuple(state), table_id),
    )


def dropped(commit: Commit, table_id: int, below_row_id: int) -> None:
    save(commit, table_id, replace(state_of(commit, table_id), dropped_to=below_row_id))


def refused(commit: Commit, table_id: int, rows: int) -> None:
    """Count rows that were not taken in."""
    state = state_of(commit, table_id)
    save(commit, table_id, replace(state, refused_rows=state.refused_rows + rows))


def set_consumer(commit: Commit, stream_id: int, name: str, position: int) -> None:
    """Register a consumer, or move it on: rows below `position` are no longer needed by it."""
    updated = commit.connection.execute(
        "UPDATE millstream_consumer SET position = ? WHERE stream_id = ? AND name = ?",
        (position, stream_id, name),
    )
    if updated.rowcount == 0:
        commit.connection.execute(
            "INSERT INTO millstream_consumer (stream_id, name, position) VALUES (?, ?, ?)",
            (stream_id, name, position),
        )


def remove_consumer(commit: Commit, stream_id: int, name: str) -> None:
    commit.connection.execute(
        "DELETE FROM millstream_consumer WHERE stream_id = ? AND name = ?", (stream_id, name)
    )


def consumers(connection: Connection, stream_id: int) -> dict[str, int]:
    rows = connection.execute("SELECT name, position FROM millstream_consumer WHERE stream_id = ?", (stream_id,))
    return dict(rows.fetchall())
