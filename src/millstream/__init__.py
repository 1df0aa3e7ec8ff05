"""Millstream: one SQL database for live streams, their history and ordinary tables, on Spark.

import millstream
with millstream.connect("./mydb") as db:
    db.sql("CREATE TABLE t (id BIGINT, name STRING)")
    db.insert("t", [(1, "one")])
    db.sql("SELECT * FROM t").show()
"""

from __future__ import annotations

from importlib.metadata import version

from millstream.database import Database, ObjectInfo, Progress, Result, connect
from millstream.errors import (
    Condition,
    DataError,
    InternalError,
    MachineError,
    MillstreamError,
    StatementError,
)

__version__ = version("millstream")

__all__ = [
    "Condition",
    "DataError",
    "Database",
    "InternalError",
    "MachineError",
    "MillstreamError",
    "ObjectInfo",
    "Progress",
    "Result",
    "StatementError",
    "__version__",
    "connect",
]
