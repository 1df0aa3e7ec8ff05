"""Real processes that a test starts, listens to and kills."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Nursery:
    """Starts jobs of a module like `tests.recovery.child`, one at a time; a job is one process."""

    def __init__(self, module: str = "tests.recovery.child", *arguments: str) -> None:
        paths = [str(ROOT), *(p for p in sys.path if p)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout.fileno()
        self._buffer = b""

    def start(self, job: str, **named: Any) -> int:
        """Start a job; returns its process id when it lives."""
        self._input.write((json.dumps({"job": job, **named}) + "\n").encode())
        word, pid = self.line().split()
        assert word == "start"
        return int(pid)

    def line(self, seconds: float = PATIENCE) -> str:
        """The next line, or an empty one if none comes in time."""
        while b"\n" not in self._buffer:
            if not select.select([self._output], [], [], seconds)[0]:
                return ""
            self._buffer += os.read(self._output, 1 << 16) or b"\nnursery closed\n"
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def until(self, wanted: Callable[[str], bool], seconds: float = PATIENCE) -> list[str]:
        """Lines up to the first wanted one, or up to the first pause of so many seconds."""
        lines: list[str] = []
        while line := self.line(seconds):
            lines.append(line)
            if wanted(line):
                break
        return lines

    def kill_after(self, pid: int, acknowledged: int, moment: float) -> list[str]:
        """SIGKILL the job a moment after it has acknowledged so much (none: while it still opens)."""
        heard = 0

        def enough(line: str) -> bool:
            nonlocal heard
            word = line.split(" ", 1)[0]
            heard += word == "ack"
            return heard >= acknowledged or word in ("failed", "end")

        lines = self.until(enough) if acknowledged else []
        lines += self.until(lambda _: False, seconds=moment)
        trouble = [line for line in lines if line.startswith(("failed", "end "))]
        assert not trouble, "the job has failed by itself:\n" + "\n".join(trouble).replace("\\n", "\n")
        return lines + self.kill(pid)

    def kill(self, pid: int) -> list[str]:
        """SIGKILL the job and read what it still said."""
        os.kill(pid, signal.SIGKILL)
        return self.end()

    def end(self) -> list[str]:
        """Wait for the job's end and read what it still said."""
        lines = self.until(lambda line: line.startswith("end "))
        assert lines, "the job does not end"
        assert lines[-1].startswith("end ")
        return lines[:-1]

    def close(self) -> None:
        self._input.close()
        self._process.wait()
        os.close(self._output)
