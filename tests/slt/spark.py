"""The one Spark of a test run, and databases that use it.

Starting Spark costs seconds, so it starts when first asked for and is shared by everything: fixtures,
SQL files, regeneration. The process that asked for it stops it with `stop_spark`.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.clock import Clock
    from tests.slt.runner import Database


SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    # To compile a query costs more than to interpret it over a few rows. What tests run in processes of their own
    # (crashes, examples, the command line) has Spark as users have it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Spark looks through the plan again after every rule that changes it, for mistakes of its own.
    "spark.sql.lightweightPlanChangeValidation": "false",
    # By the size of the heap each grouping would take 64 MiB at once, which garbage collection then sees to.
    "spark.buffer.pageSize": "1m",
}

JAVA = " ".join(
    [
        # No threads of its own beside other busy processes; young objects are most of them, and have room to die.
        "-XX:+UseSerialGC -Xms1g -Xmn512m",
        # Planning is a little of very much code: half of the processor time went into optimizing it. With the
        # first compiler alone the cache of code would be 48 MiB, which Spark fills and empties again and again.
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
    ]
)
"""How Java runs for tests, here and in the processes that they start."""


def prepare_java() -> None:
    """For every Java from now on, unless the environment says otherwise."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA)


@cache
def shared_spark() -> SparkSession:
    """The session, started on the first call."""
    from millstream.execute.session import STARTUP, start

    prepare_java()
    return start("local[2]", STARTUP | SETTINGS)


def stop_spark() -> None:
    """Stop the session if it was ever started."""
    if shared_spark.cache_info().currsize:
        shared_spark().stop()
        shared_spark.cache_clear()


def open_database(path: Path, clock: Clock) -> Database:
    """A database on the shared Spark whose scheduler runs only when stepped."""
    import millstream

    database = millstream.connect(str(path), spark=shared_spark(), clock=clock, background=False)
    return cast("Database", database)


def jobs(spark: SparkSession) -> int:
    """How many jobs Spark has been given since it started; its status tracker hears of them later and forgets."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
