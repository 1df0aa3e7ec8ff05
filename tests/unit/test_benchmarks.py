"""The benchmarks run and report; how fast they are is nobody's business here."""

from __future__ import annotations

import json

import pytest

from benchmarks import harness
from benchmarks.harness import Measure, at_least, at_most
from millstream.cli import bench

HISTORY_RESULTS = (
    "no index over indices",
    "four times the rows",
    "beside inserts, p95",
    "two indices",
    "time held",
)
RESULTS = ("load", "db.insert", "parameters", "literals", "time range", "open")


def test_the_ingest_benchmark_measures_everything_it_promises(capfd):
    assert bench.run("ingest", ["--json", "--scale", "0.002"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert record["benchmark"] == "ingest"
    assert {"cores", "memory_gib", "python", "spark", "disk_fsync_ms"} <= record["machine"].keys()
    assert len(record["results"]) == len(RESULTS)
    for expected, result in zip(RESULTS, record["results"], strict=True):
        assert expected in result["name"]
        assert result["value"] > 0
        assert result["target"]
        assert result["met"] is None
        assert all(result["samples"].values())


def test_the_history_benchmark_measures_everything_it_promises(capfd, tmp_path):
    assert bench.run("history", ["--json", "--scale", "0.001", "--plots", str(tmp_path)]) == 0
    record = json.loads(capfd.readouterr().out)
    names = " ".join(result["name"] for result in record["results"])
    for promised in HISTORY_RESULTS:
        assert promised in names
    assert all(result["value"] > 0 and result["met"] is None for result in record["results"])
    assert {p.name for p in tmp_path.iterdir()} >= {"history-retention-disk.svg", "history-mixed.svg"}


JOINS_RESULTS = (
    "greedy over the best",
    "lwo over greedy",
    "memory beside",
    "greedy below lwo",
    "shared over each",
)


def test_the_joins_benchmark_measures_everything_it_promises(capfd, tmp_path):
    assert bench.run("joins", ["--json", "--scale", "0.001", "--plots", str(tmp_path)]) == 0
    record = json.loads(capfd.readouterr().out)
    names = " ".join(result["name"] for result in record["results"])
    for promised in JOINS_RESULTS:
        assert promised in names
    assert all(result["met"] is None for result in record["results"])
    plots = {p.name for p in tmp_path.iterdir()}
    assert {"joins-distributions.svg", "joins-small-large-average.svg", "joins-bursts.svg"} <= plots


def test_targets_say_which_side_is_good():
    assert at_least(5).met_by(5)
    assert not at_least(5).met_by(4.9)
    assert at_most(2).met_by(2)
    assert not at_most(2).met_by(2.1)
    assert str(at_least(1000)) == "≥ 1,000"
    assert str(at_most(0.5)) == "≤ 0.5"


def test_works_are_timed_in_turns_and_told_which_repeat_it_is():
    ran: list[tuple[str, int]] = []
    samples = harness.in_turns({"a": lambda i: ran.append(("a", i)), "b": lambda i: ran.append(("b", i))}, 2)
    assert ran == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [len(taken) for taken in samples.values()] == [2, 2]


def test_a_ratio_is_one_of_medians():
    assert harness.ratio({"slow": [10, 12, 99], "fast": [2, 3, 4]}, "slow", "fast") == 4


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (12.345, "12.3"), (0.01234, "0.0123"), (5.0, "5")])
def test_numbers_show_the_digits_that_tell_something(value, text):
    assert harness.shown(value) == text


def _part(run: harness.Run) -> list[Measure]:
    assert run.folder.is_dir()
    return [
        Measure("good", 3, "×", at_least(2), {"taken": [3.0]}, {"extra": "told"}),
        Measure("bad", 1, "×", at_least(2)),
        Measure("plain", run.scaled(1_000), "rows"),
    ]


def test_results_at_scale_1_are_judged(tmp_path, capsys):
    assert harness.main("x", {"part": _part}, "About.", ["--json", "--dir", str(tmp_path)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [r["met"] for r in record["results"]] == [True, False, None]
    assert record["results"][0]["samples"] == {"taken": [3.0]}
    assert record["results"][0]["extra"] == "told"
    assert list(tmp_path.iterdir()) == []


def test_results_are_a_table_for_people(tmp_path, capsys):
    harness.main("x", {"part": _part}, "About.", ["--dir", str(tmp_path), "--scale", "0.5", "--only", "part"])
    captured = capsys.readouterr()
    assert "500 rows" in captured.out
    assert "targets are for scale 1" in captured.out
    assert "missed" not in captured.out
    assert "part …" in captured.err


def test_a_scale_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        harness.main("x", {"part": _part}, "About.", ["--scale", "-1"])
    assert "not between" in capsys.readouterr().err


def test_every_benchmark_says_what_it_is():
    programs = bench.available()
    assert "ingest" in programs
    assert all(bench.first_line(program) for program in programs.values())
