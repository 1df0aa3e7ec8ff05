"""Groups of continuous queries that are answered together, and the blocks in which their deliveries are kept.

A group has one place and consumes its streams under one name, however many queries are in it. What a step delivers
to all of them is one block: rows, and marks that say which are whose. Place and block change in one commit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection


@dataclass(frozen=True)
class Stored:
    """A group as it is stored; `place` is how far it is."""

    id: int
    place: str


@dataclass(frozen=True)
class Member:
    """A query in a group: rows of each stream from `since` on are for it; `sequence` deliveries came before."""

    id: int
    query: int
    since: Mapping[int, int]
    sequence: int


@dataclass(frozen=True)
class BlockInfo:
    """A block that is kept: its number and its size in bytes."""

    id: int
    size: int


@dataclass(frozen=True)
class StoredBlock:
    """A block: both parts are Arrow tables, written by `queries.packed`."""

    snapshot_id: int
    committed_at: str
    rows: bytes
    marks: bytes


def consumer(group_id: int) -> str:
    """The name under which a group consumes its streams."""
    return f"query group {group_id}"


def find(connection: Connection, key: str) -> Stored | None:
    row = connection.execute("SELECT group_id, place FROM millstream_group WHERE key = ?", (key,)).fetchone()
    return None if row is None else Stored(*row)


def every(connection: Connection) -> list[str]:
    """The keys of all groups, in the order of their making."""
    return [key for (key,) in connection.execute("SELECT key FROM millstream_group ORDER BY group_id")]


def create(commit: Commit, key: str, place: str) -> Stored:
    made = commit.connection.execute("INSERT INTO millstream_group (key, place) VALUES (?, ?)", (key, place))
    return Stored(int(made.lastrowid or 0), place)


def moved_on(commit: Commit, group_id: int, place: str) -> None:
    commit.connection.execute("UPDATE millstream_group SET place = ? WHERE group_id = ?", (place, group_id))


def join(commit: Commit, group_id: int, query: int, since: Mapping[int, int], sequence: int) -> None:
    commit.connection.execute(
        "INSERT INTO millstream_member (group_id, view_id, since, sequence) VALUES (?, ?, ?, ?)",
        (group_id, query, json.dumps(dict(since)), sequence),
    )


def leave(commit: Commit, query: int) -> None:
    """Take a query out of its group, if it is in one; a group that nobody is in ends."""
    gone = commit.connection.execute("DELETE FROM millstream_member WHERE view_id = ?", (query,))
    if not gone.rowcount:
        return
    ended = commit.connection.execute(
        "SELECT group_id FROM millstream_group g WHERE NOT EXISTS"
        " (SELECT 1 FROM millstream_member m WHERE m.group_id = g.group_id)"
    ).fetchall()
    for (group_id,) in ended:
        commit.connection.execute("DELETE FROM millstream_consumer WHERE name = ?", (consumer(group_id),))


def is_empty(connection: Connection, group_id: int) -> bool:
    row = connection.execute("SELECT 1 FROM millstream_member WHERE group_id = ? LIMIT 1", (group_id,)).fetchone()
    return row is None


def members(connection: Connection, group_id: int, after: int = 0) -> list[Member]:
    """Those in a group that have joined after a member, in the order of joining."""
    rows = connection.execute(
        "SELECT member_id, view_id, since, sequence FROM millstream_member WHERE group_id = ? AND member_id > ?"
        " ORDER BY member_id",
        (group_id, after),
    )
    return [Member(i, query, _positions(since), sequence) for i, query, since, sequence in rows]


def every_member(connection: Connection) -> set[int]:
    """The queries that are in groups."""
    return {query for (query,) in connection.execute("SELECT view_id FROM millstream_member")}


def membership(connection: Connection, query: int) -> Member | None:
    """What a query is in its group; None if it is in none."""
    row = connection.execute(
        "SELECT member_id, view_id, since, sequence FROM millstream_member WHERE view_id = ?", (query,)
    ).fetchone()
    return None if row is None else Member(row[0], row[1], _positions(row[2]), row[3])


def _positions(text: str) -> dict[int, int]:
    return {int(stream): position for stream, position in json.loads(text).items()}


def drop_of_stream(commit: Commit, stream_id: int) -> None:
    """Forget the groups on a stream that goes, and what they have delivered."""
    for group_id, key in commit.connection.execute("SELECT group_id, key FROM millstream_group").fetchall():
        if str(stream_id) in key.split(","):
            for table in ("millstream_block", "millstream_member", "millstream_group"):
                commit.connection.execute(f"DELETE FROM {table} WHERE group_id = ?", (group_id,))


# Blocks


def add_block(commit: Commit, group_id: int, block: StoredBlock) -> int:
    """Add a block behind all others; returns its number."""
    made = commit.connection.execute(
        "INSERT INTO millstream_block (group_id, snapshot_id, committed_at, rows, marks) VALUES (?, ?, ?, ?, ?)",
        (group_id, block.snapshot_id, block.committed_at, block.rows, block.marks),
    )
    return int(made.lastrowid or 0)


def blocks(connection: Connection, group_id: int, after: int = 0) -> list[BlockInfo]:
    """The blocks that are kept, the oldest first."""
    rows = connection.execute(
        "SELECT block_id, length(rows) + length(marks) FROM millstream_block WHERE group_id = ? AND block_id > ?"
        " ORDER BY block_id",
        (group_id, after),
    )
    return [BlockInfo(*row) for row in rows]


def block(connection: Connection, block_id: int) -> StoredBlock | None:
    row = connection.execute(
        "SELECT snapshot_id, committed_at, rows, marks FROM millstream_block WHERE block_id = ?", (block_id,)
    ).fetchone()
    return None if row is None else StoredBlock(*row)


def marks(connection: Connection, block_id: int) -> tuple[str, bytes] | None:
    """When a block was committed and what it says of its rows, without these."""
    row: tuple[str, bytes] | None = connection.execute(
        "SELECT committed_at, marks FROM millstream_block WHERE block_id = ?", (block_id,)
    ).fetchone()
    return row


def remove_blocks(commit: Commit, group_id: int) -> None:
    commit.connection.execute("DELETE FROM millstream_block WHERE group_id = ?", (group_id,))


def fold(commit: Commit, block_ids: Iterable[int], made: StoredBlock) -> None:
    """Let one block stand in the place of the last of some, and for all of them."""
    *gone, last = block_ids
    commit.connection.executemany("DELETE FROM millstream_block WHERE block_id = ?", [(i,) for i in gone])
    commit.connection.execute(
        "UPDATE millstream_block SET snapshot_id = ?, committed_at = ?, rows = ?, marks = ? WHERE block_id = ?",
        (made.snapshot_id, made.committed_at, made.rows, made.marks, last),
    )
