"""Rewrites the expected rows and deliveries of `.slt` files from what the database answers now.

    python -m tests.slt.regenerate tests/sql/joins.slt …

Use it with care: it makes whatever the database says today the truth, so read the difference line by
line afterwards. It rewrites rows only. Every other mismatch (a statement that fails, an error that does
not come) is printed and left for a human, and the exit status is then 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.slt.records import ExpectLines, parse_script
from tests.slt.runner import Mismatch, attempt_section

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.clock import Clock
    from tests.slt.records import Script
    from tests.slt.runner import Database


def regenerate(path: Path, open_database: Callable[[Path, Clock], Database]) -> list[Mismatch]:
    """Rewrite the file in place; returns the mismatches that new rows do not settle."""
    script = parse_script(path)
    actual: dict[int, list[str]] = {}
    left: list[Mismatch] = []
    for section in script.sections:
        rows, mismatches = attempt_section(script, section, open_database)
        actual |= rows
        left += [mismatch for mismatch in mismatches if mismatch.line not in rows]
    path.write_text("\n".join(_with_rows(script, actual)), encoding="utf-8")
    return left


def _with_rows(script: Script, actual: dict[int, list[str]]) -> list[str]:
    lines = script.path.read_text(encoding="utf-8").split("\n")
    every = [*script.preamble, *(record for section in script.sections for record in section.records)]
    for record in reversed(every):
        if not isinstance(record, ExpectLines) or record.line not in actual:
            continue
        if record.compared(record.rows) != actual[record.line]:
            start, end = record.block
            lines[start:end] = actual[record.line]
    return lines


def main(arguments: list[str]) -> int:
    from tests.slt.spark import open_database, stop_spark

    left = [mismatch for name in arguments for mismatch in regenerate(Path(name), open_database)]
    stop_spark()
    for mismatch in left:
        print(mismatch, end="\n\n")
    return 1 if left or not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
