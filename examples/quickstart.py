"""The quickstart: a stream, a table, inserts of several kinds, a query, a look into the past.

    python examples/quickstart.py [DIRECTORY]

Without a directory the database is a throw-away one.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pyarrow as pa

import millstream


def main(path: str = ":memory:") -> None:
    with millstream.connect(path) as db:
        # A stream takes rows as they happen; its watermark says how far its time has come.
        db.sql("CREATE STREAM calls (id BIGINT, cost DOUBLE, ts TIMESTAMP) TIMESTAMP BY ts")
        db.sql("CREATE TABLE history (id BIGINT, cost DOUBLE, ts TIMESTAMP)")

        # Rows, Arrow, pandas and Spark data all go in the same way, and are on disk when this returns.
        # What belongs together commits together.
        calls = pa.table(
            {
                "id": [1, 2, 1],
                "cost": [60.0, 15.5, 75.0],
                "ts": [datetime(2024, 5, 1, 12, minute, tzinfo=UTC) for minute in (0, 1, 2)],
            }
        )
        with db.transaction():
            db.insert("calls", calls)
            db.insert("history", calls)
        db.insert("history", [(3, 5.0, datetime(2024, 5, 1, 12, 3, tzinfo=UTC))])
        db.advance("calls", "2024-05-01 12:05:00")
        db.sql("SHOW STREAMS").show()

        # Queries are Spark SQL; values are passed as parameters. Spark starts here.
        spend = "SELECT id, sum(cost) AS total FROM history GROUP BY id HAVING total > :least ORDER BY id"
        print(db.sql(spend, least=10).to_pandas())

        # Every change makes a version, and old versions can be read.
        version = max(row[0] for row in db.sql("SHOW SNAPSHOTS"))
        db.sql("DELETE FROM history WHERE id = :id", id=1)
        now = db.sql("SELECT count(*) FROM history").fetchone()
        then = db.sql(f"SELECT count(*) FROM history AS OF VERSION {version}").fetchone()
        print(f"rows now {now}, before the delete {then}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
