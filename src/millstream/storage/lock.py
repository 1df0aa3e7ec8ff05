"""One writing process for a database directory, held by an advisory file lock.

The kernel gives the lock back when its holder dies, however it dies, so there is no stale lock.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from millstream.errors import Condition, MachineError

if TYPE_CHECKING:
    from pathlib import Path


class DirectoryLock:
    """The right to write to a database; taken on creation, given back by `release`."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._file, 64, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise MachineError(
                Condition.DATABASE_LOCKED,
                f"another process has the database {str(path.parent)!r} open",
                detail=f"It is process {holder}." if holder else None,
                hint="Close it there, or open it here with read_only=True (--read-only).",
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._file)
