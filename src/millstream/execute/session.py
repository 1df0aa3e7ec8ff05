"""Spark, started when first needed and set up the way every fragment expects it.

One session for each process: databases opened in one process share it. A session that the user
brings is used through a session of its own where Spark allows that, so that our settings and
temporary views stay ours.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import Condition, MachineError
from millstream.execute import java
from millstream.storage import index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

SETTINGS: dict[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Up to here an IN skips pages by each of its values, beyond by the least and the largest alone; to try
    # hundreds of values on every page costs more than it saves.
    "spark.sql.parquet.pushdown.inFilterThreshold": str(index.MOST_LOOKUPS),
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.pyspark.plotting.max_rows": "1000",
    "spark.sql.caseSensitive": "false",
}
STARTUP: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "4",
    "spark.python.worker.reuse": "true",
    "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/millstream-warehouse",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_starting = threading.Lock()
SPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")


class Spark:
    """The Spark behind a database; `session()` starts it on first use."""

    def __init__(self, given: SparkSession | str, on_start: Callable[[], None] | None = None) -> None:
        self._given = given
        self._on_start = on_start
        self._session: SparkSession | None = None
        self._lock = threading.Lock()
        self.functions: set[str] = set()
        """The names of Python functions that have been registered."""

    @property
    def started(self) -> bool:
        return self._session is not None

    def session(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    def cancel(self) -> None:
        """Stop all running jobs of this Spark; their statements end with an error."""
        session = self.session()
        interrupt = getattr(session, "interruptAll", None)
        if type(session).__module__.startswith("pyspark.sql.connect") and interrupt is not None:
            interrupt()
        else:
            session.sparkContext.cancelAllJobs()

    def _start(self) -> SparkSession:
        for name in SPARK_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if not isinstance(self._given, str):
            session = own_session(self._given)
        else:
            if self._on_start is not None:
                self._on_start()
            session = start(self._given)
        for key, value in SETTINGS.items():
            session.conf.set(key, value)
        return session


def own_session(given: SparkSession) -> SparkSession:
    """A session beside the user's, where their Spark can make one (Spark Connect cannot)."""
    new_session = getattr(given, "newSession", None)
    if new_session is None or type(given).__module__.startswith("pyspark.sql.connect"):
        return given
    return new_session()  # type: ignore[no-any-return]


def start(master: str, settings: Mapping[str, str] = STARTUP) -> SparkSession:
    """A session on a Spark of our own, or beside the one that this process already has."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName("Millstream")
    if master.startswith("sc://"):
        return builder.remote(master).getOrCreate()  # type: ignore[no-any-return]
    with _starting:
        # A process can have one Spark context only, and PySpark tells of it nowhere else.
        if SparkContext._active_spark_context is not None:
            return own_session(builder.getOrCreate())
        _launch(master, settings)
        session: SparkSession = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        return session


def _launch(master: str, settings: Mapping[str, str]) -> None:
    """Start the JVM and its Spark context, which `builder.getOrCreate` then finds.

    Its workers run this Python. What it prints goes to a log file, not to the user's terminal.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    if home := java.find():
        os.environ["JAVA_HOME"] = home
    conf = SparkConf().setMaster(master).setAppName("Millstream").setAll(list(settings.items()))
    launch: Any = launch_gateway
    with tempfile.NamedTemporaryFile("w", prefix="millstream-spark-", suffix=".log", delete=False) as log:
        atexit.register(Path(log.name).unlink, missing_ok=True)
        try:
            SparkContext(conf=conf, gateway=launch(conf, {"stdout": log, "stderr": log}))
        except (PySparkException, Py4JError, OSError, RuntimeError) as error:
            raise MachineError(
                Condition.SPARK_FAILED,
                f"Spark did not start on {master!r}",
                detail=str(error).splitlines()[0],
                hint=_last_words(Path(log.name)) or "Check the master's address and that `java -version` works.",
            ) from error


def _last_words(log: Path) -> str | None:
    """What the JVM said before it gave up, if it said anything that names an error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if "rror" in line or "xception" in line]
    return f"Spark said: {telling[0]}" if telling else None
