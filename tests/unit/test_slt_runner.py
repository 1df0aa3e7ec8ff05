"""The SQL-file runner can fail: whatever is wrong in a file or in the database is reported.

A tiny in-memory database answers from a table of canned replies; no Spark and no storage are involved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.errors import Condition, StatementError
from tests.slt.records import FormatError, parse_script
from tests.slt.regenerate import regenerate
from tests.slt.render import render_delivery, render_row, render_value
from tests.slt.runner import Mismatch, attempt_section

if TYPE_CHECKING:
    from millstream.clock import Clock

HEADER = "# name: sample\n# description: a sample\n# group: runner\n\n"


@dataclass(frozen=True)
class Answer:
    rows: tuple[tuple[Any, ...], ...] | None = None
    status: str = "OK"
    columns: tuple[str, ...] = ("a", "b")

    @property
    def is_query(self) -> bool:
        return self.rows is not None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self.rows or ())


@dataclass(frozen=True)
class FakeDelivery:
    sequence: int
    instant: Any
    rows: tuple[tuple[Any, ...], ...] = ()
    skipped: int = 0

    def to_arrow(self) -> pa.Table:
        return pa.table({"k": [k for k, _ in self.rows], "v": [v for _, v in self.rows]})


@dataclass
class FakeDatabase:
    path: Path
    clock: Clock
    answers: dict[str, Any]
    log: list[str]
    inserted: list[Any] = field(default_factory=list)

    def sql(self, text: str) -> Any:
        self.log.append(text)
        answer = self.answers.get(text, Answer())
        if isinstance(answer, Exception):
            raise answer
        return answer(self) if callable(answer) else answer

    def insert(self, name: str, rows: Any) -> None:
        self.log.append(f"insert {name} {rows}")

    def drain(self) -> None:
        self.log.append("drain")

    def results(self, query: str, since: int = 0) -> list[FakeDelivery]:
        self.log.append(f"results {query} since {since}")
        every = self.answers[f"results {query}"]
        return [delivery for delivery in every if delivery.sequence > since]

    def close(self) -> None:
        self.log.append("close")


@dataclass
class Attempt:
    actual: dict[int, list[str]]
    mismatches: list[Mismatch]
    log: list[str]


@pytest.fixture
def attempt(tmp_path: Path) -> Any:
    """Run the one section of a file made of `text` against canned answers."""

    def run(text: str, answers: dict[str, Any] | None = None) -> Attempt:
        script = parse_script(written(tmp_path, text))
        log: list[str] = []
        rows, mismatches = attempt_section(
            script, script.sections[0], lambda path, clock: FakeDatabase(path, clock, answers or {}, log)
        )
        return Attempt(rows, mismatches, log)

    return run


def written(directory: Path, text: str) -> Path:
    path = directory / "sample.slt"
    path.write_text(HEADER + text, encoding="utf-8")
    return path


def failure(condition: Condition = Condition.UNKNOWN_TABLE, message: str = "there is no table t") -> Exception:
    return StatementError(condition, message, hint="Did you mean 'u'?")


TWO_ROWS = Answer(((1, "x"), (2, None)))


def test_the_right_rows_pass(attempt: Any) -> None:
    outcome = attempt("query\nSELECT\n----\n1 | x\n2 | NULL\n", {"SELECT": TWO_ROWS})
    assert outcome.mismatches == []


@pytest.mark.parametrize(
    "rows",
    ["1 | y\n2 | NULL", "1 | x", "1 | x\n2 | NULL\n3 | z", "2 | NULL\n1 | x", "1\n2", "1 | x\n2 | (empty)"],
)
def test_wrong_rows_are_reported(attempt: Any, rows: str) -> None:
    outcome = attempt(f"query\nSELECT\n----\n{rows}\n", {"SELECT": TWO_ROWS})
    assert [mismatch.line for mismatch in outcome.mismatches] == [5]


def test_a_report_names_the_place_the_sql_and_both_sides(attempt: Any) -> None:
    outcome = attempt("query\nSELECT\n----\n1 | x\n2 | y\n", {"SELECT": TWO_ROWS})
    report = str(outcome.mismatches[0])
    assert "sample.slt:5" in report
    assert "SELECT" in report
    assert "- 2 | y" in report
    assert "+ 2 | NULL" in report


def test_rowsort_forgives_the_order_but_not_the_rows(attempt: Any) -> None:
    assert not attempt("query rowsort\nS\n----\n2 | NULL\n1 | x\n", {"S": TWO_ROWS}).mismatches
    assert attempt("query rowsort\nS\n----\n2 | NULL\n1 | y\n", {"S": TWO_ROWS}).mismatches


def test_header_compares_column_names(attempt: Any) -> None:
    assert not attempt("query header\nS\n----\na | b\n1 | x\n2 | NULL\n", {"S": TWO_ROWS}).mismatches
    assert attempt("query header\nS\n----\na | c\n1 | x\n2 | NULL\n", {"S": TWO_ROWS}).mismatches


def test_take_looks_at_the_first_columns_only(attempt: Any) -> None:
    assert not attempt("query take 1\nS\n----\n1\n2\n", {"S": TWO_ROWS}).mismatches


def test_a_query_that_answers_no_rows_is_not_a_status(attempt: Any) -> None:
    assert not attempt("query\nS\n----\n", {"S": Answer(())}).mismatches
    assert attempt("query\nS\n----\n", {"S": Answer(status="INSERT 0")}).mismatches


def test_the_right_error_passes(attempt: Any) -> None:
    text = "statement error UNKNOWN_TABLE\nSELECT\n----\nno table t\nDid you mean 'u'\n"
    assert not attempt(text, {"SELECT": failure()}).mismatches


def test_an_error_that_does_not_come_is_reported(attempt: Any) -> None:
    outcome = attempt("statement error UNKNOWN_TABLE\nSELECT\n", {"SELECT": TWO_ROWS})
    assert "expected error UNKNOWN_TABLE" in str(outcome.mismatches[0])
    assert "1 | x" in str(outcome.mismatches[0])


def test_a_wrong_condition_is_reported(attempt: Any) -> None:
    outcome = attempt("statement error UNKNOWN_COLUMN\nSELECT\n", {"SELECT": failure()})
    assert "[UNKNOWN_TABLE] there is no table t" in str(outcome.mismatches[0])


def test_a_missing_word_of_the_error_is_reported(attempt: Any) -> None:
    outcome = attempt("statement error UNKNOWN_TABLE\nSELECT\n----\nno column\n", {"SELECT": failure()})
    assert "no column" in str(outcome.mismatches[0])


def test_an_error_that_shows_java_is_reported(attempt: Any) -> None:
    error = failure(message="org.apache.spark.SparkException: boom")
    assert attempt("statement error UNKNOWN_TABLE\nSELECT\n", {"SELECT": error}).mismatches


def test_a_foreign_exception_is_never_an_expected_error(attempt: Any) -> None:
    outcome = attempt("statement error UNKNOWN_TABLE\nSELECT\n", {"SELECT": ValueError("oops")})
    assert "ValueError: oops" in str(outcome.mismatches[0])


def test_an_error_that_comes_only_when_rows_are_fetched_counts(attempt: Any) -> None:
    class Lazy(Answer):
        def fetchall(self) -> list[tuple[Any, ...]]:
            raise failure()

    lazy = Lazy(rows=())
    assert not attempt("statement error UNKNOWN_TABLE\nS\n", {"S": lazy}).mismatches
    assert attempt("statement ok\nS\n", {"S": lazy}).mismatches


def test_a_statement_that_fails_is_reported_and_the_rest_still_runs(attempt: Any) -> None:
    outcome = attempt("statement ok\nBAD\n\nstatement ok\nGOOD\n", {"BAD": failure()})
    assert [mismatch.line for mismatch in outcome.mismatches] == [5]
    assert "GOOD" in outcome.log


@pytest.mark.parametrize(("status", "passes"), [("INSERT 3", True), ("INSERT 13", False), ("OK", False)])
def test_a_count_is_the_last_word_of_the_status(attempt: Any, status: str, passes: bool) -> None:
    outcome = attempt("statement count 3\nI\n", {"I": Answer(status=status)})
    assert (outcome.mismatches == []) is passes


def test_directives_reach_the_database(attempt: Any) -> None:
    text = 'step\n\nrestart\n\ninsert t\n[1, "x", "@2024-01-01 00:00:00", null]\n'
    row = (1, "x", datetime(2024, 1, 1, tzinfo=UTC), None)
    assert attempt(text).log == ["drain", "close", f"insert t {[row]}", "close"]


def test_the_clock_moves_and_survives_a_restart(attempt: Any) -> None:
    answers = {"NOW": lambda database: Answer(((database.clock.now(),),))}
    text = "clock advance 5 minutes\n\nrestart\n\nquery\nNOW\n----\n2024-01-01 00:05:00\n"
    assert not attempt(text, answers).mismatches


THREE_DELIVERIES = {
    "results q": [FakeDelivery(1, 4, (("b", 1), ("a", None))), FakeDelivery(2, 6), FakeDelivery(3, 90, (), 12)]
}
THREE_AS_TEXT = "@4\nb | 1\na | NULL\n@6\n@90 skipped 12\n"


def test_deliveries_are_asked_for_after_a_drain(attempt: Any) -> None:
    outcome = attempt(f"deliveries q\n----\n{THREE_AS_TEXT}", THREE_DELIVERIES)
    assert outcome.mismatches == []
    assert outcome.log == ["drain", "results q since 0", "close"]


@pytest.mark.parametrize(
    "text",
    [
        "@4\nb | 1\na | NULL\n@6\n@90\n",
        "@4\nb | 1\na | NULL\n@90 skipped 12\n",
        "@4\na | NULL\nb | 1\n@6\n@90 skipped 12\n",
        "@4\nb | 1\n@6\na | NULL\n@90 skipped 12\n",
        "@5\nb | 1\na | NULL\n@6\n@90 skipped 12\n",
        "",
    ],
)
def test_wrong_deliveries_are_reported(attempt: Any, text: str) -> None:
    outcome = attempt(f"deliveries q\n----\n{text}", THREE_DELIVERIES)
    assert [mismatch.line for mismatch in outcome.mismatches] == [5]


def test_rowsort_forgives_the_order_within_a_delivery_only(attempt: Any) -> None:
    sorted_rows = THREE_AS_TEXT.replace("b | 1\na | NULL", "a | NULL\nb | 1")
    assert not attempt(f"deliveries q rowsort\n----\n{sorted_rows}", THREE_DELIVERIES).mismatches
    moved = "@4\na | NULL\n@6\nb | 1\n@90 skipped 12\n"
    assert attempt(f"deliveries q rowsort\n----\n{moved}", THREE_DELIVERIES).mismatches


def test_deliveries_are_shown_once_unless_asked_for_again(attempt: Any) -> None:
    later = "restart\n\ndeliveries q\n----\n"
    again = "deliveries q since 0\n----\n" + THREE_AS_TEXT + "\ndeliveries q since 2\n----\n@90 skipped 12\n"
    text = f"deliveries q\n----\n{THREE_AS_TEXT}\n{later}\n{again}\ndeliveries q\n----\n"
    outcome = attempt(text, THREE_DELIVERIES)
    assert outcome.mismatches == []
    assert [line for line in outcome.log if line.startswith("results")] == [
        f"results q since {n}" for n in (0, 3, 0, 2, 3)
    ]


def test_files_and_remembered_versions_are_filled_in(attempt: Any) -> None:
    answers = {"SHOW SNAPSHOTS": Answer(((0, "x"), (7, "y")))}
    outcome = attempt("file a.csv\n1,2\n\nremember V\n\nstatement ok\nAT ${V} ${TMP}/a.csv\n", answers)
    last = outcome.log[-2]
    assert last.startswith("AT 7 ")
    assert last.endswith("files/a.csv")


def test_every_section_gets_a_fresh_database_and_the_preamble(tmp_path: Path) -> None:
    text = "statement ok\nCREATE\n\nsection one\n\nstatement ok\nONE\n\nsection two\n\nstatement ok\nTWO\n"
    script = parse_script(written(tmp_path, text))
    log: list[str] = []
    paths: set[Path] = set()

    def open_database(path: Path, clock: Clock) -> FakeDatabase:
        paths.add(path)
        return FakeDatabase(path, clock, {}, log)

    for section in script.sections:
        attempt_section(script, section, open_database)
    assert log == ["CREATE", "ONE", "close", "CREATE", "TWO", "close"]
    assert len(paths) == 2


@pytest.mark.parametrize(
    "text",
    [
        "statement maybe\nSELECT 1\n",
        "statement ok\n",
        "statement ok\nSELECT 1\n----\n1\n",
        "statement error\nSELECT 1\n",
        "query\nSELECT 1\n",
        "query sorted\nSELECT 1\n----\n1\n",
        "SELECT 1\n",
        "deliveries\n----\n",
        "deliveries q\n",
        "deliveries q sorted\n----\n",
        "deliveries q since noon\n----\n",
        "deliveries q since 1 rowsort\n----\n",
        "deliveries q\nSELECT 1\n----\n@1\n",
        "deliveries q\n----\n1 | x\n",
        "clock advance soon\n",
        "clock advance 5 fortnights\n",
        "insert t\n{}\n",
        "insert t\nnot json\n",
        "restart now\n",
        "section\n",
        "section a\n\nsection a\n",
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError):
        parse_script(written(tmp_path, text))


def test_a_file_without_its_headers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.slt"
    path.write_text("statement ok\nSELECT 1\n", encoding="utf-8")
    with pytest.raises(FormatError, match="# description:"):
        parse_script(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        ("NULL", '"NULL"'),
        ("", "(empty)"),
        (" a", '" a"'),
        ("a\nb", '"a\\nb"'),
        ("a | b", '"a | b"'),
        ("naïve 🦆", "naïve 🦆"),
        (True, "true"),
        (1, "1"),
        (-0.0, "-0.0"),
        (float("nan"), "nan"),
        (1e300, "1e+300"),
        (Decimal("0E-18"), "0.000000000000000000"),
        (Decimal("1.50"), "1.50"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime.fromisoformat("2024-01-01 00:00:00.000005"), "2024-01-01 00:00:00.000005"),
        (datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), "2024-01-01 00:00:00"),
        (b"\xab\x01", "X'AB01'"),
        (bytearray(), "X''"),
        ([1, None, [2]], "[1, NULL, [2]]"),
        ({"a": 1, "b": None}, "{a: 1, b: NULL}"),
        ([("k", 1), ("l", 2)], "{k: 1, l: 2}"),
        ([], "[]"),
    ],
)
def test_values_have_one_spelling(value: Any, text: str) -> None:
    assert render_value(value) == text


def test_cells_are_separated_by_a_bar() -> None:
    assert render_row((1, "a", None)) == "1 | a | NULL"


def test_a_delivery_opens_with_its_instant() -> None:
    rows = pa.table({"a": [1, None], "b": ["x", ""]})
    assert render_delivery(-5, 0, rows) == ["@-5", "1 | x", "NULL | (empty)"]
    assert render_delivery(datetime(2024, 1, 1, tzinfo=UTC), 7, rows[:0]) == ["@2024-01-01 00:00:00 skipped 7"]


def test_regenerating_rewrites_wrong_deliveries(tmp_path: Path) -> None:
    text = (
        "deliveries q\n----\n@4\n\ndeliveries q rowsort since 0\n----\n@4\na | NULL\nb | 1\n@6\n@90 skipped 12\n"
    )
    path = written(tmp_path, text)
    left = regenerate(path, lambda where, clock: FakeDatabase(where, clock, THREE_DELIVERIES, []))
    assert path.read_text(encoding="utf-8") == HEADER + text.replace("@4\n\n", THREE_AS_TEXT + "\n", 1)
    assert left == []


def test_regenerating_rewrites_wrong_rows_and_nothing_else(tmp_path: Path) -> None:
    text = (
        "query\nS\n----\n9 | x\n\n"
        "# a remark\nquery rowsort\nS\n----\n2 | NULL\n1 | x\n\n"
        "statement error UNKNOWN_TABLE\nS\n"
    )
    path = written(tmp_path, text)
    left = regenerate(path, lambda where, clock: FakeDatabase(where, clock, {"S": TWO_ROWS}, []))
    assert path.read_text(encoding="utf-8") == HEADER + text.replace("9 | x", "1 | x\n2 | NULL")
    assert [mismatch.sql for mismatch in left] == ["S"]
    assert "expected error UNKNOWN_TABLE" in left[0].story
