"""Continuous views: which parts run low at which station of a car plant, while thousands of parts come and go.

    python examples/continuous_views.py [DIRECTORY]

Without a directory the database is a throw-away one. Streams, columns and the view `low` are the running example
of the paper "Meet Me Halfway: Split Maintenance of Continuous Views".
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pyarrow as pa

import millstream

STATIONS = [
    (1, "Sparta", "Gate 2 - E", "+1 555 0101"),
    (2, "Sparta", "Gate 1 - S", "+1 555 0102"),
    (3, "Regensburg", "Tor 2", "+49 555 0103"),
]
PARTS = ("Wheel", "Seat", "Engine", "Door")
PLACES = [(part, station) for part in PARTS for station, *_ in STATIONS]
COLUMNS = "(part_id BIGINT, part STRING, station INT, worker INT)"
MINUTES, FIRST_STOCK, EACH = 5, 8, 1_000
WHERE = {station: location for station, _, location, _ in STATIONS}

LOW = """
    CREATE CONTINUOUS VIEW low AS
    WITH used AS (
        SELECT part, station, count(*) AS count FROM part_usage GROUP BY part, station
    ), restocked AS (
        SELECT part, station, count(*) AS count FROM part_restock GROUP BY part, station
    )
    SELECT r.part, s.location, s.supplier, r.count - u.count AS here
    FROM station s, used u, restocked r
    WHERE s.id = u.station AND u.station = r.station AND u.part = r.part AND r.count - u.count < 5
"""
WORKERS = """
    CREATE CONTINUOUS VIEW workers AS
    SELECT u.worker, count(*) AS parts, count(DISTINCT u.part) AS kinds, count_if(s.plant = 'Sparta') AS in_sparta
    FROM part_usage u JOIN station s ON s.id = u.station GROUP BY u.worker
"""
TOO_MUCH = """
    CREATE CONTINUOUS VIEW pairs AS
    SELECT u.part, count(*) AS n FROM part_usage u JOIN part_restock r ON r.part_id = u.part_id GROUP BY u.part
"""


def moves(counts: dict[tuple[str, int], int], rng: np.random.Generator) -> pa.Table:
    """So many moves of parts at each place, shuffled."""
    rows = [place for place, count in counts.items() for _ in range(count)]
    order = rng.permutation(len(rows))
    return pa.table(
        {
            "part_id": order,
            "part": [rows[i][0] for i in order],
            "station": pa.array([rows[i][1] for i in order], pa.int32()),
            "worker": pa.array(order % 4 + 1, pa.int32()),
        }
    )


def main(path: str = ":memory:") -> None:
    rng = np.random.default_rng(2013)
    with millstream.connect(path) as db:
        db.sql(f"CREATE STREAM part_usage {COLUMNS}")
        db.sql(f"CREATE STREAM part_restock {COLUMNS}")
        db.sql("CREATE TABLE station (id INT, plant STRING, location STRING, supplier STRING)")
        db.insert("station", STATIONS)
        db.sql(LOW)
        db.sql(WORKERS)

        # Each stream is counted as its rows come; the join with the other and with the stations waits for a read.
        stock = Counter(dict.fromkeys(PLACES, FIRST_STOCK))
        db.insert("part_restock", moves(dict(stock), rng))
        right = True
        for minute in range(MINUTES):
            came = {place: EACH + int(rng.integers(-2, 3)) for place in PLACES}
            went = {place: EACH + int(rng.integers(-2, 4)) for place in PLACES}
            db.insert("part_restock", moves(came, rng))
            db.insert("part_usage", moves(went, rng))
            stock.update(came)
            stock.subtract(went)
            found = {(part, location): here for part, location, _, here in db.sql("SELECT * FROM low")}
            right &= found == {(part, WHERE[station]): n for (part, station), n in stock.items() if n < 5}
            moved = sum(came.values()) + sum(went.values())
            print(f"minute {minute}: {moved:,} parts moved, {len(found)} of {len(PLACES)} places run low")
        print("every answer was right:", right)
        db.sql("SELECT * FROM low ORDER BY here, part LIMIT 3").show()

        # A table above the groupings is read as it is now; one joined with the stream itself is pinned.
        db.sql("UPDATE station SET plant = 'Athens', supplier = '+30 555 0104' WHERE id = 2")
        db.sql("SELECT supplier, count(*) AS parts FROM low GROUP BY supplier ORDER BY supplier").show()
        db.sql("SELECT * FROM workers ORDER BY worker").show()
        for name, value, *_ in db.sql("DESCRIBE EXTENDED workers").fetchall()[-2:]:
            print(f"workers: {name}: {value}")

        # What is kept are groups, however many parts have moved.
        for row in db.sql("SHOW VIEWS").to_arrow().to_pylist():
            print(f"{row['name']}: {row['status']}, {row['lag_rows']} rows behind, {row['state_rows']} rows kept")
        print("\n".join(line for (line,) in db.sql("EXPLAIN INCREMENTAL low")))

        # What cannot be kept up to date is refused, with the change that would help.
        try:
            db.sql(TOO_MUCH)
        except millstream.StatementError as error:
            print(f"[{error.condition.name}] {error.message}. {error.hint}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
