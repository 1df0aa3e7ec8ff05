"""TPC-H with `lineitem` as a stream: data by `tpchgen-cli`, and the queries Q1, Q3, Q6, Q15 and Q20.

Money is decimal, as generated, or whole cents and percents, which every executor can add up exactly: Q15
compares sums for equality, so floating point will not do. Orders without a limit are left out, as
the rows of a view have none; Q15 has its view as a common table expression.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _aim import Query, Split, Workload, store_stream, store_table

GENERATOR = "tpchgen-cli"
STREAM = "lineitem"
TABLES = ("customer", "nation", "orders", "part", "partsupp", "supplier")
WHOLE = frozenset({"l_quantity"})
"""Decimals without a fraction."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """How amounts are stored and counted with."""

    name: str
    one: str
    """What a discount is taken from."""
    discounts: str


DECIMALS = Numbers("decimals", "1", "0.05 AND 0.07")
INTEGERS = Numbers("integers", "100", "5 AND 7")


def queries(numbers: Numbers) -> Mapping[str, Query]:
    net = f"l_extendedprice * ({numbers.one} - l_discount)"
    return {
        "q1": Query(
            "SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty,"
            f" sum(l_extendedprice) AS sum_base_price, sum({net}) AS sum_disc_price,"
            f" sum({net} * ({numbers.one} + l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty,"
            " avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order"
            " FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY"
            " GROUP BY l_returnflag, l_linestatus"
        ),
        "q3": Query(
            f"SELECT l_orderkey, sum({net}) AS revenue, o_orderdate, o_shippriority"
            " FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey"
            " AND l_orderkey = o_orderkey AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'"
            " GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate LIMIT 10"
        ),
        "q6": Query(
            "SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem"
            " WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR"
            f" AND l_discount BETWEEN {numbers.discounts} AND l_quantity < 24"
        ),
        "q15": _q15(net),
        "q20": _q20(),
    }


def _q15(net: str) -> Query:
    revenue = (
        f"SELECT l_suppkey AS supplier_no, sum({net}) AS total_revenue FROM lineitem"
        " WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-01-01' + INTERVAL '3' MONTH"
        " GROUP BY l_suppkey"
    )
    best = "SELECT s_suppkey, s_name, s_address, s_phone, total_revenue FROM supplier"
    return Query(
        f"WITH revenue AS ({revenue}) {best}, revenue WHERE s_suppkey = supplier_no"
        " AND total_revenue = (SELECT max(total_revenue) FROM revenue)",
        # A window, so that the grouping is gone through once.
        Split(
            revenue,
            f"{best}, (SELECT *, max(total_revenue) OVER () AS most FROM grouped)"
            " WHERE s_suppkey = supplier_no AND total_revenue = most",
        ),
    )


def _q20() -> Query:
    shipped = "l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR"
    of_offer = "l_partkey = ps_partkey AND l_suppkey = ps_suppkey"
    offers = (
        "SELECT s_name, s_address FROM supplier, nation WHERE s_suppkey IN (SELECT ps_suppkey FROM partsupp"
        " WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%')"
        " AND ps_availqty > ({})) AND s_nationkey = n_nationkey AND n_name = 'CANADA'"
    )
    return Query(
        offers.format(f"SELECT 0.5 * sum(l_quantity) FROM lineitem WHERE {of_offer} AND {shipped}"),
        Split(
            f"SELECT l_partkey, l_suppkey, sum(l_quantity) AS quantity FROM lineitem WHERE {shipped}"
            " GROUP BY l_partkey, l_suppkey",
            offers.format(f"SELECT 0.5 * sum(quantity) FROM grouped WHERE {of_offer}"),
        ),
    )


def workload(numbers: Numbers) -> Workload:
    return Workload(STREAM, queries(numbers))


def store(folder: Path, numbers: Numbers, factor: float, batches: int) -> None:
    """The data of a scale factor: lineitem as files to be inserted one by one, and the tables."""
    made = folder / "made"
    _generate(made, factor, f"--tables={STREAM}", f"--parts={batches}")
    _generate(made, factor, f"--tables={','.join(TABLES)}")
    store_stream(folder, _lineitem(made / STREAM, numbers))
    for table in TABLES:
        store_table(folder, table, _stored(pq.read_table(made / f"{table}.parquet"), numbers))
    shutil.rmtree(made)


def _generate(folder: Path, factor: float, *options: str) -> None:
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    program = shutil.which(GENERATOR, path=places)
    if program is None:
        raise SystemExit(f"{GENERATOR} is not installed; install it with 'pip install {GENERATOR}'")
    command = [program, "parquet", "--quiet", f"--scale-factor={factor}", f"--output-dir={folder}", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _lineitem(folder: Path, numbers: Numbers) -> Iterator[pa.Table]:
    """The parts in the order of their numbers, which stand before the last dot of their names."""
    for part in sorted(folder.iterdir(), key=lambda path: int(path.stem.rpartition(".")[2])):
        yield _stored(pq.read_table(part), numbers)


def _stored(table: pa.Table, numbers: Numbers) -> pa.Table:
    """The columns in the types they are stored in; nothing says that they have no nulls."""
    columns = {name: _column(name, table.column(name), numbers) for name in table.column_names}
    return pa.table(columns)


def _column(name: str, values: pa.ChunkedArray, numbers: Numbers) -> pa.ChunkedArray:
    if pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if not pa.types.is_decimal(values.type) or numbers == DECIMALS:
        return values
    return (values if name in WHOLE else pc.multiply(values, pa.scalar(Decimal(100)))).cast(pa.int64())
