"""`millstream demo`: runs a demonstration by name and answers with an exit code.

A demonstration is a function that tells its story on a `Stage`, in a directory it may fill. The
directory stays when the story has been told, so that its database can be opened again; when the story
breaks off, nothing stays.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.cli import demo_flights
from millstream.cli.demo_stage import Stage
from millstream.errors import Condition, StatementError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Story = Callable[[Stage, Path, SparkSession | None], None]

DEMOS: dict[str, Story] = {"flights": demo_flights.tell}
FIRST = "flights"


def run(name: str | None = None, folder: Path | None = None, spark: SparkSession | None = None) -> int:
    """Tell the story called `name`, the first one if None is named; gives the exit code.

    `folder` is where its database goes (a new temporary directory if it is not given), `spark` a
    session to use instead of starting one.
    """
    story = _find(name or FIRST)
    place = Path(tempfile.mkdtemp(prefix="millstream-demo-")) if folder is None else folder
    try:
        story(Stage.on(sys.stdout), place, spark)
    except BaseException:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    return 0


def _find(name: str) -> Story:
    if name in DEMOS:
        return DEMOS[name]
    raise StatementError(
        Condition.INVALID_ARGUMENT,
        f"there is no demonstration {name!r}",
        hint=did_you_mean(name, DEMOS) or f"There is {', '.join(map(repr, DEMOS))}.",
    )
