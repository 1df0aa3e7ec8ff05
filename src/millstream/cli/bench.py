"""`millstream bench`: runs a benchmark program of the source tree in a process of its own.

The programs are the files of `benchmarks/` beside `src/`; each explains itself in its docstring and
takes its own options. An installed package has none, and says so.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import Condition, MachineError, StatementError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

HARNESS = "harness"
"""What the programs share; no program itself."""
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def run(name: str, options: Sequence[str], folder: Path = BENCHMARKS) -> int:
    """Run one program with its options; gives its exit code."""
    programs = available(folder)
    if name not in programs:
        hint = did_you_mean(name, programs) or "Run 'millstream bench' for the list."
        raise StatementError(Condition.INVALID_ARGUMENT, f"there is no benchmark {name!r}", hint=hint)
    return subprocess.run([sys.executable, programs[name], *options], check=False).returncode


def available(folder: Path = BENCHMARKS) -> dict[str, Path]:
    """The programs by name."""
    if not folder.is_dir():
        raise MachineError(
            Condition.FILE_NOT_FOUND,
            "the benchmarks are not installed with the package",
            hint="Run this command from a checkout of the source tree, installed with 'pip install -e .'.",
        )
    return {path.stem: path for path in sorted(folder.glob("[!_]*.py")) if path.stem != HARNESS}


def first_line(program: Path) -> str:
    """What the program says of itself."""
    docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]
