"""Streaming tables: position reports of cars, kept for two hours of stream time and found by time and by car.

    python examples/streaming_tables.py [DIRECTORY]

Without a directory the database is a throw-away one.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

import millstream

CARS, SECONDS, REPORTS = 10_007, 720, 240_000


def reports(start: int) -> pa.Table:
    """Twelve minutes of reports from many cars, in the order of time."""
    number = np.arange(REPORTS, dtype=np.int64)
    t = start + number * SECONDS // REPORTS
    vid = number * 7_919 % CARS
    return pa.table({"vid": vid, "speed": 30 + vid % 40, "seg": (vid * 13 + t // 60) % 100, "t": t})


def main(path: str = ":memory:") -> None:
    with millstream.connect(path) as db:
        # Time is a number of seconds here; reports may be up to 30 seconds out of order.
        db.sql("""
            CREATE STREAMING TABLE reports (vid BIGINT, speed BIGINT, seg BIGINT, t BIGINT)
            TIMESTAMP BY t WATERMARK INTERVAL 30 RANGE INTERVAL 7200
        """)
        db.sql("CREATE INDEX reports_vid ON reports (vid) USING HASH")
        for start in range(0, 3600, SECONDS):
            db.insert("reports", reports(start))

        # The first row moves the watermark to 3600 - 30. The second is late: stored all the same, and counted.
        print(db.sql("INSERT INTO reports VALUES (4711, 0, 55, 3600), (4711, 0, 55, 3500)").status)
        db.sql("SHOW STREAMING TABLES").show()

        # Indices are built in the background; drain() waits for it.
        db.drain()
        db.sql("SHOW INDEXES").show()

        # Where was the car between minute 20 and minute 30? VALID is the time of the row.
        where = "FROM reports r WHERE vid = 4711 AND VALID(r) BETWEEN 1200 AND 1800"
        db.sql(f"SELECT VALID(r) AS at, seg, speed {where} ORDER BY at LIMIT 3").show()
        print("\n".join(line for (line,) in db.sql(f"EXPLAIN SELECT * {where}")))

        # Indices never change an answer; off, everything that is visible is read.
        found = db.sql(f"SELECT count(*), sum(seg) {where}").fetchone()
        db.sql("SET use_indexes = off")
        print("the same without indices:", db.sql(f"SELECT count(*), sum(seg) {where}").fetchone() == found)
        db.sql("SET use_indexes = on")

        # Rows can be changed and deleted, and leave by themselves when stream time has moved on.
        print(db.sql("DELETE FROM reports WHERE VALID(reports) < 60").status)
        for minute in (60, 150, 175):
            db.advance("reports", minute * 60)
            [(count, oldest)] = db.sql("SELECT count(*), min(t) FROM reports").fetchall()
            print(f"minute {minute}: {count} rows, the oldest of second {oldest}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
