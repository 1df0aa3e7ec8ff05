"""The Python API of design §1, as a program would use it."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import millstream
from millstream import Condition, MillstreamError
from millstream.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream import Database

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
ROWS = [(1, "one", NOON), (2, None, None)]
FORMS = {
    "tuples": ROWS,
    "lists": [list(row) for row in ROWS],
    "dicts": [{"id": 1, "NAME": "one", "at": NOON}, {"id": 2}],
    "a table": pa.table({"id": [1, 2], "name": ["one", None], "at": [NOON, None]}),
    "a table in another order": pa.table({"at": [NOON, None], "id": [1, 2], "name": ["one", None]}),
    "a batch": pa.RecordBatch.from_pydict({"id": [1, 2], "name": ["one", None], "at": [NOON, None]}),
    "pandas": pd.DataFrame({"id": [1, 2], "name": ["one", None], "at": [NOON, None]}),
    "text for times": [(1, "one", "2024-01-01 12:00:00+00:00"), (2, None, None)],
}


@pytest.fixture
def quiet(tmp_path: Path) -> Any:
    """A database that has no Spark and would fail to get one."""
    with millstream.connect(tmp_path / "d", spark="nowhere", clock=ManualClock(), background=False) as db:
        yield db


def condition_of(action: Any) -> Condition:
    with pytest.raises(MillstreamError) as caught:
        action()
    return caught.value.condition


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_gives_the_same_rows(db: Database, form: str) -> None:
    db.sql("CREATE TABLE t (id BIGINT, name STRING, at TIMESTAMP)")
    assert db.insert("t", FORMS[form]) == 2
    assert db.sql("SELECT * FROM t ORDER BY id").fetchall() == ROWS


def test_a_spark_frame_is_inserted_by_name(db: Database, spark: SparkSession) -> None:
    db.sql("CREATE TABLE t (id BIGINT, name STRING, at TIMESTAMP)")
    frame = spark.sql("SELECT 'one' AS name, 1 AS id UNION ALL SELECT NULL, 2")
    assert db.insert("t", frame) == 2
    assert db.sql("SELECT id, name, at FROM t ORDER BY id").fetchall() == [(1, "one", None), (2, None, None)]


def test_a_result_comes_in_every_shape(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.sql("CREATE TABLE t (id INT, price DECIMAL(5,2))")
    db.insert("t", [(1, Decimal("1.50")), (2, None)])
    result = db.sql("SELECT * FROM t ORDER BY id")
    assert result.columns == ["id", "price"]
    assert result.to_arrow().schema.types == [pa.int32(), pa.decimal128(5, 2)]
    assert result.to_pandas()["id"].tolist() == [1, 2]
    assert result.fetchall() == [(1, Decimal("1.50")), (2, None)]
    assert result.fetchone() == (1, Decimal("1.50"))
    assert [row[0] for row in result] == [1, 2]
    assert result.head(1).num_rows == 1
    assert [r["id"] for r in db.sql("SELECT id FROM t ORDER BY id").to_spark().collect()] == [1, 2]
    assert "<table" in result._repr_html_()
    result.show()
    assert "1.50" in capsys.readouterr().out


def test_a_status_has_no_rows_and_says_so(quiet: Database) -> None:
    result = quiet.sql("CREATE TABLE t (id INT)")
    assert (result.is_query, result.status, result.columns) == (False, "CREATE TABLE", [])
    assert condition_of(result.to_arrow) is Condition.INVALID_ARGUMENT
    assert quiet.sql("INSERT INTO t VALUES (1), (2)").row_count == 2


def test_parameters_are_values_never_text(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT, name STRING, day DATE)")
    nasty = "'; DROP TABLE t; --"
    db.sql("INSERT INTO t VALUES (:id, :name, :day)", id=1, name=nasty, day=date(2024, 1, 1))
    found = db.sql("SELECT id FROM t WHERE name = :name AND day = :day", name=nasty, day=date(2024, 1, 1))
    assert found.fetchall() == [(1,)]
    assert db.sql("DELETE FROM t WHERE id = :id", id=1).row_count == 1
    assert condition_of(lambda: db.sql("SELECT :id").fetchall()) is Condition.UNBOUND_PARAMETER
    assert condition_of(lambda: db.sql("INSERT INTO t VALUES (:id, 'a', NULL)")) is Condition.UNBOUND_PARAMETER


def test_definitions_inserts_and_listings_need_no_spark(quiet: Database) -> None:
    quiet.sql("CREATE TABLE t (id INT, at TIMESTAMP)")
    quiet.sql("INSERT INTO t VALUES (1, '2024-01-01')")
    quiet.insert("t", [(2, None)])
    assert quiet.sql("SHOW TABLES").fetchall() == [("t", "table", 2, None)]
    assert [o.name for o in quiet.objects()] == ["t"]
    assert quiet.sql("EXPLAIN SELECT * FROM t").is_query
    assert not quiet.spark_started


def test_a_result_keeps_the_snapshot_it_saw(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT)")
    db.insert("t", [(1,)])
    before = db.sql("SELECT * FROM t")
    db.insert("t", [(2,)])
    db.sql("DELETE FROM t WHERE id = 1")
    assert before.fetchall() == [(1,)]
    assert db.sql("SELECT * FROM t").fetchall() == [(2,)]


def test_many_threads_may_use_one_database(db: Database) -> None:
    db.sql("CREATE TABLE t (thread INT, number INT)")
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(20):
                db.insert("t", [(thread, number)])
            assert db.sql("SELECT count(*) FROM t WHERE thread = :t", t=thread).fetchall() == [(20,)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert db.sql("SELECT count(*), count(DISTINCT thread, number) FROM t").fetchall() == [(80, 80)]


def test_concurrent_updates_of_one_table_all_count(db: Database) -> None:
    db.sql("CREATE TABLE counter (n INT)")
    db.insert("counter", [(0,)])
    threads = [threading.Thread(target=lambda: db.sql("UPDATE counter SET n = n + 1") and None) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db.sql("SELECT n FROM counter").fetchall() == [(3,)]


def test_a_transaction_block_commits_or_rolls_back_as_one(quiet: Database) -> None:
    quiet.sql("CREATE TABLE a (id INT)")
    quiet.sql("CREATE TABLE b (id INT)")
    with quiet.transaction():
        quiet.insert("a", [(1,)])
        quiet.insert("b", [(1,)])
    with pytest.raises(MillstreamError), quiet.transaction():  # noqa: PT012
        quiet.insert("a", [(2,)])
        quiet.insert("nowhere", [(2,)])
    counts = {name: rows for name, _, rows, _ in quiet.sql("SHOW TABLES").fetchall()}
    assert counts == {"a": 1, "b": 1}


def test_a_transaction_belongs_to_its_thread(quiet: Database) -> None:
    quiet.sql("CREATE TABLE t (id INT)")
    quiet.sql("BEGIN")
    quiet.insert("t", [(1,)])
    other = threading.Thread(target=lambda: quiet.insert("t", [(2,)]) and None)
    other.start()
    other.join()
    quiet.sql("ROLLBACK")
    assert quiet.sql("SHOW TABLES").fetchall()[0][2] == 1


def test_script_runs_statement_after_statement(quiet: Database) -> None:
    text = "CREATE TABLE t (s STRING); INSERT INTO t VALUES ('a;b'); -- over\n SHOW TABLES;"
    assert [r.status for r in quiet.script(text)] == ["CREATE TABLE", "INSERT 1", "SHOW"]


def test_memory_database_leaves_nothing_behind() -> None:
    db = millstream.connect(background=False)
    path = db.path
    db.sql("CREATE TABLE t (id INT)")
    assert path.exists()
    db.close()
    db.close()
    assert not path.exists()
    assert condition_of(lambda: db.sql("SHOW TABLES")) is Condition.CLOSED


def test_spark_functions_and_views_of_the_user_stay_theirs(db: Database, spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("theirs")
    assert condition_of(lambda: db.sql("SELECT * FROM theirs")) is Condition.UNKNOWN_TABLE
    spark.catalog.dropTempView("theirs")


def test_stream_insert_reports_late_rows_and_drops_what_nobody_needs(quiet: Database) -> None:
    quiet.sql("CREATE STREAM s (id INT, at TIMESTAMP) TIMESTAMP BY at WATERMARK INTERVAL '10' SECOND")
    quiet.insert("s", [(1, "2024-01-01 00:01:00"), (2, "2024-01-01 00:00:55"), (3, "2024-01-01 00:00:49")])
    columns = quiet.sql("SHOW STREAMS").to_arrow().to_pylist()[0]
    assert (columns["watermark"], columns["received"], columns["late"], columns["held"]) == (
        "2024-01-01 00:00:50",
        3,
        1,
        3,
    )
    quiet.advance("s", "2024-01-01 00:02:00")
    assert quiet.sql("SHOW STREAMS").to_arrow().to_pylist()[0]["watermark"] == "2024-01-01 00:02:00"


def test_errors_tell_condition_place_and_way_out(quiet: Database) -> None:
    quiet.sql("CREATE TABLE flights (id INT)")
    with pytest.raises(MillstreamError) as caught:
        quiet.sql("SELECT *\nFROM fligths")
    assert str(caught.value) == (
        "[UNKNOWN_TABLE] no table, stream or view 'fligths'\n"
        "LINE 2: FROM fligths\n"
        "             ^^^^^^^\n"
        "HINT: Did you mean 'flights'?"
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1/0",
        "SELECT element_at(array(1), 5)",
        "SELECT CAST('x' AS INT)",
        "SELECT assert_true(false)",
        "SELECT raise_error('no')",
        "SELECT (SELECT * FROM VALUES (1), (2))",
        "SELECT from_json('{', 'nonsense schema')",
        "SELECT * FROM range(1, 2, 0)",
        "SELECT sum(a) OVER (PARTITION BY) FROM VALUES (1) AS t(a)",
        "SELECT explode(1)",
        "SELECT unix_timestamp('x', 'yyyy-MM-dd QQQQQ nonsense')",
        "SELECT 9223372036854775807 + 1",
        "SELECT map('a', 1, 'a', 2)",
        "SELECT java_method('java.lang.Nope', 'x')",
        "SELECT reflect('java.util.UUID', 'fromString', 'x')",
    ],
)
def test_no_java_stack_trace_reaches_a_user(db: Database, text: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        db.sql(text).fetchall()
    shown = str(caught.value)
    assert "\tat " not in shown
    assert "java." not in shown.replace("java.lang.Nope", "").replace("java.util.UUID", "")
    assert "org.apache" not in shown
    assert caught.value.condition is not Condition.INTERNAL


def test_deliveries_of_a_query_that_is_not_there(quiet: Database) -> None:
    assert condition_of(lambda: quiet.subscribe("q")) is Condition.UNKNOWN_TABLE
    assert condition_of(lambda: quiet.results("q", since=0)) is Condition.UNKNOWN_TABLE


def test_decimals_round_half_away_from_zero_however_they_come(db: Database) -> None:
    db.sql("CREATE TABLE t (how STRING, d DECIMAL(5,2))")
    db.insert("t", pa.table({"how": ["arrow"], "d": pa.array([Decimal("2.005")], pa.decimal128(6, 3))}))
    db.insert("t", pa.table({"how": ["minus"], "d": pa.array([Decimal("-2.005")], pa.decimal128(6, 3))}))
    db.sql("INSERT INTO t VALUES ('literal', 2.005)")
    db.sql("INSERT INTO t SELECT 'query', 2.005")
    found = dict(db.sql("SELECT * FROM t").fetchall())
    expected = {"arrow": "2.01", "minus": "-2.01", "literal": "2.01", "query": "2.01"}
    assert found == {how: Decimal(text) for how, text in expected.items()}


def test_a_failed_copy_within_a_transaction_leaves_the_stream_where_it_was(
    quiet: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.storage import segment

    monkeypatch.setattr(segment, "SEGMENT_ROWS", 2)
    quiet.sql("CREATE STREAM s (id INT, t BIGINT) TIMESTAMP BY t")
    (tmp_path / "s.csv").write_text("1,10\n2,20\n3,30\n4,x\n")
    monkeypatch.setattr("millstream.ingest.copy_from.BLOCK_BYTES", 10)
    quiet.sql("BEGIN")
    assert condition_of(lambda: quiet.sql(f"COPY s FROM '{tmp_path}/s.csv'")) is Condition.BAD_RECORD
    quiet.sql("COMMIT")
    stream = quiet.sql("SHOW STREAMS").to_arrow().to_pylist()[0]
    assert (stream["received"], stream["watermark"], stream["held"]) == (0, None, 0)


def test_a_stream_without_a_time_column_takes_its_watermark_from_the_clock(quiet: Database) -> None:
    quiet.sql("CREATE STREAM s (id INT)")
    quiet.insert("s", [(1,)])
    assert quiet.sql("SHOW STREAMS").to_arrow().to_pylist()[0]["watermark"] == "2024-01-01 00:00:00"


def test_row_ids_survive_an_update_of_rows_that_were_inlined(db: Database) -> None:
    db.sql("CREATE TABLE t (id INT)")
    db.sql("INSERT INTO t VALUES (10), (20), (30)")
    db.sql("DELETE FROM t WHERE id = 20")
    db.sql("UPDATE t SET id = 11 WHERE id = 10")
    table = db._lake.catalog.tables()["t"]
    scan = db._lake.scan(table, db._lake.catalog.current)
    from millstream.storage import segment

    found = {
        row_id: value
        for file in scan.files
        for data, ids in [segment.read(db._lake.folder(table), table, file)]
        for row_id, value in zip(ids.to_pylist(), data.column("id").to_pylist(), strict=True)
    }
    assert found == {0: 11, 2: 30}


@pytest.mark.parametrize(
    "text",
    ["INSERT INTO t VALUES (1)", "DELETE FROM t", "DELETE FROM t WHERE id = 1", "CREATE TABLE u (a INT)", "BEGIN"],
)
def test_a_reading_database_refuses_every_change(quiet: Database, text: str) -> None:
    quiet.sql("CREATE TABLE t (id INT)")
    with millstream.connect(quiet.path, spark="nowhere", read_only=True) as reader:
        assert condition_of(lambda: reader.sql(text)) is Condition.READ_ONLY
        assert reader.sql("SHOW TABLES").fetchall()[0][0] == "t"


@pytest.mark.parametrize("value", [object(), 10**40, Decimal("NaN"), (1,), {"a": 1}, {1}, "\ud800"])
def test_a_parameter_that_sql_does_not_know_is_refused(quiet: Database, value: Any) -> None:
    quiet.sql("CREATE TABLE t (id BIGINT)")
    for text in ("SELECT :p", "INSERT INTO t VALUES (:p)", "DELETE FROM t WHERE id = :p"):
        assert condition_of(lambda text=text: quiet.sql(text, p=value)) is Condition.INVALID_ARGUMENT


def inserted(db: Database, type_: str, data: Any) -> Any:
    db.sql(f"CREATE OR REPLACE TABLE c (v {type_})")
    db.insert("c", data)
    return db.sql("SELECT v FROM c").fetchone()


def test_numbers_from_arrow_go_into_other_number_columns_as_in_sql(db: Database) -> None:
    assert inserted(db, "DECIMAL(10,2)", pd.DataFrame({"v": [5]})) == (Decimal("5.00"),)
    assert inserted(db, "INT", pa.table({"v": pa.array([Decimal("1.9")])})) == (1,)
    assert inserted(db, "DOUBLE", pa.table({"v": [2**53 + 1]})) == (float(2**53),)
    with pytest.raises(MillstreamError) as caught:
        inserted(db, "DECIMAL(3,2)", pa.table({"v": [50]}))
    assert caught.value.condition is Condition.NUMERIC_OVERFLOW


def test_a_filtered_pandas_frame_is_inserted_without_its_index(db: Database) -> None:
    frame = pd.DataFrame({"v": [1, 2, 3]})
    assert inserted(db, "INT", frame[frame.v > 2]) == (3,)


def test_structs_with_other_fields_and_times_that_overflow_are_refused(quiet: Database) -> None:
    quiet.sql("CREATE TABLE s (v STRUCT<a: INT, b: INT>)")
    other = pa.table({"v": pa.array([{"p": 1, "q": 2}])})
    assert condition_of(lambda: quiet.insert("s", other)) is Condition.TYPE_MISMATCH
    quiet.sql("CREATE TABLE n (v TIMESTAMP_NTZ)")
    late = pa.table({"v": pa.array([18446744073710], pa.timestamp("s"))})
    assert condition_of(lambda: quiet.insert("n", late)) in (Condition.INVALID_VALUE, Condition.NUMERIC_OVERFLOW)


@pytest.mark.parametrize(
    ("type_", "value"),
    [("DATE", 5), ("TIMESTAMP", 5), ("TIMESTAMP_NTZ", 1.5), ("BINARY", "abc"), ("STRING", b"abc")],
)
def test_python_values_of_another_family_are_refused(quiet: Database, type_: str, value: Any) -> None:
    quiet.sql(f"CREATE TABLE t (v {type_})")
    assert condition_of(lambda: quiet.insert("t", [(value,)])) is Condition.TYPE_MISMATCH


def test_the_day_of_a_moment_is_that_of_utc(db: Database) -> None:
    db.sql("CREATE TABLE t (v DATE)")
    db.insert("t", [(datetime.fromisoformat("2024-01-01 01:00+02:00"),)])
    assert db.sql("SELECT v FROM t").fetchone() == (date(2023, 12, 31),)
