"""One SQL database that holds the catalogue: connections, transactions and errors.

SQLite in WAL mode with `synchronous=FULL`: a commit is on disk when it returns. One connection
writes (its user is the committing thread), readers take theirs from a small pool. SQL elsewhere stays in
the common subset of SQLite and PostgreSQL.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.errors import Condition, MachineError, MillstreamError, StatementError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Connection = sqlite3.Connection

BUSY_SECONDS = 30.0
MOST_IDLE = 8


class Store:
    """The catalogue's SQLite database."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._idle: list[Connection] = []
        self._reading = 0
        self._closed = False
        self._changed = threading.Condition()
        self._writer: Connection | None = None

    def _connect(self) -> Connection:
        mode = "ro" if self.read_only else "rwc"
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        if not self.read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _take_reader(self) -> Connection:
        with self._changed:
            if self._closed:
                raise closed()
            self._reading += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect()
        except BaseException:
            self._give_back(None)
            raise

    def _give_back(self, connection: Connection | None) -> None:
        with self._changed:
            self._reading -= 1
            self._changed.notify_all()
            if connection is not None and len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
                return
        if connection is not None:
            connection.close()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: everything inside sees one state of the catalogue."""
        with translated():
            connection = self._take_reader()
            try:
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    connection.execute("COMMIT")
            finally:
                self._give_back(connection)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction; durable on leaving, undone if the body raises. For one thread at a time."""
        with translated():
            if self._writer is None:
                self._writer = self._connect()
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close all connections when those who read are done, or take too long. Nobody may be writing."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._reading == 0, BUSY_SECONDS)
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undo only the body's changes if it raises; the surrounding transaction goes on."""
    connection.execute("SAVEPOINT work")
    try:
        yield
    except BaseException:
        # A full disk makes SQLite undo the whole transaction; then there is no savepoint to go back to.
        if connection.in_transaction:
            connection.execute("ROLLBACK TO work")
            connection.execute("RELEASE work")
        raise
    connection.execute("RELEASE work")


@contextmanager
def translated() -> Iterator[None]:
    """SQLite's exceptions as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _as_machine_error(error) from error


def _as_machine_error(error: sqlite3.Error) -> MillstreamError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return disk_full(str(error))
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return MachineError(
            Condition.CATALOG_CORRUPT,
            "the catalogue cannot be read",
            detail=str(error),
            hint="Restore the database directory from a backup.",
        )
    if code == sqlite3.SQLITE_BUSY:
        return MachineError(
            Condition.DATABASE_LOCKED,
            "another program holds the catalogue for writing",
            detail=str(error),
            hint="Close the other program, or try again.",
        )
    return MachineError(
        Condition.STORAGE_FAILED,
        "the catalogue could not be read or written",
        detail=str(error),
        hint="Look at the disk's health and the directory's permissions.",
    )


def disk_full(detail: str) -> MachineError:
    """The error for a disk without room; nothing of the failed statement was kept."""
    return MachineError(
        Condition.DISK_FULL,
        "no room left on the disk",
        detail=detail,
        hint="Free some space and run the statement again; nothing of it was kept.",
    )


def closed() -> StatementError:
    """The error for whoever comes after `close`."""
    return StatementError(
        Condition.CLOSED, "the database is closed", hint="Open it again with millstream.connect(…)."
    )
