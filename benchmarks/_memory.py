"""What a process and those it has started need of the memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Resident:
    """The memory that the processes of a contender have at one moment, in bytes."""

    driver: int = 0
    jvm: int = 0
    workers: int = 0

    @property
    def total(self) -> int:
        return self.driver + self.jvm + self.workers


def resident(root: int) -> Resident:
    """What a process and those below it have resident now; pages that two of them share count twice."""
    parents, names = _processes()
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    jvms = {pid for pid in family if names[pid] == "java"}
    # By name, as a JVM that starts a program is there twice for a moment, under the name of a thread.
    workers = {pid for pid in family - {root} if names[pid].startswith("python")}
    return Resident(_resident(root), sum(map(_resident, jvms)), sum(map(_resident, workers)))


def _processes() -> tuple[dict[int, int], dict[int, str]]:
    """The parent and the name of every process there is."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = stat.read_text().rpartition(")")
        except OSError:
            continue
        pid, _, name = before.partition(" (")
        parents[int(pid)], names[int(pid)] = int(after.split()[1]), name
    return parents, names


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
