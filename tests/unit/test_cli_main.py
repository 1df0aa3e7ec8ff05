"""The command line from the outside: arguments in, output and exit code out."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import millstream.database
from millstream.cli import bench
from millstream.cli.main import main
from millstream.errors import Condition, MachineError
from tests.unit.cli_fakes import NUMBERS, FakeDatabase, failure


@pytest.fixture
def db(monkeypatch) -> FakeDatabase:
    database = FakeDatabase({"SELECT": NUMBERS, "BAD": failure(), "NOTHING": NUMBERS.slice(0, 0)})

    def connect(path, **options):
        database.connected_with = {"path": path, **options}
        return database

    monkeypatch.setattr(millstream.database, "connect", connect)
    return database


@pytest.fixture
def piped(monkeypatch):
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_statement_given_with_c_is_run_and_shown(db, capsys):
    assert main(["sql", "./mydb", "-c", "SELECT; CREATE", "-c", "INSERT 3"]) == 0
    out = capsys.readouterr().out
    assert "zero" in out
    assert "3 rows" in out
    assert "CREATE\nINSERT 3\n" in out
    assert db.ran == ["SELECT", "CREATE", "INSERT 3"]
    assert db.closed


def test_options_reach_the_connection(db):
    main(["sql", "./mydb", "-c", "X", "--master", "local[1]", "--read-only"])
    assert db.connected_with["path"] == "./mydb"
    assert db.connected_with["spark"] == "local[1]"
    assert db.connected_with["read_only"] is True
    assert callable(db.connected_with["progress"])


def test_an_error_is_told_on_stderr_with_all_it_knows_and_code_1(db, capsys):
    assert main(["sql", "./mydb", "-c", "BAD; NEXT"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "[UNKNOWN_TABLE] there is no table 'flighs'",
        "LINE 2: FROM flighs",
        "             ^^^^^^",
        "DETAIL: The catalogue has 3 tables.",
        "HINT: Did you mean 'flights'?",
    ]
    assert db.ran == ["BAD"]
    assert db.closed


def test_keep_going_runs_the_rest_and_still_gives_code_1(db, piped):
    piped("BAD;\nNEXT;\n")
    assert main(["sql", "./mydb", "-", "--keep-going"]) == 1
    assert db.ran == ["BAD", "NEXT"]


def test_an_error_in_a_file_says_where(db, tmp_path, capsys):
    script = tmp_path / "load.sql"
    script.write_text("FIRST;\n\nSECOND\n;\nBAD;", encoding="utf-8")
    assert main(["sql", "./mydb", "-f", str(script)]) == 1
    assert capsys.readouterr().err.startswith(f"{script}:5: [UNKNOWN_TABLE]")
    assert db.ran == ["FIRST", "SECOND", "BAD"]


@pytest.mark.usefixtures("db")
def test_a_file_that_is_not_there_is_an_error(capsys):
    assert main(["sql", "./mydb", "-f", "/nowhere/x.sql"]) == 1
    assert capsys.readouterr().err.startswith("[FILE_NOT_FOUND] no file '/nowhere/x.sql'")


@pytest.mark.usefixtures("db")
def test_a_file_that_is_not_text_is_an_error(tmp_path, capsys):
    (tmp_path / "x.sql").write_bytes(b"\xff\xfe\x00")
    assert main(["sql", "./mydb", "-f", str(tmp_path / "x.sql")]) == 1
    assert capsys.readouterr().err.startswith("[FILE_UNREADABLE]")


@pytest.mark.usefixtures("db")
def test_csv_holds_data_only(capsys):
    assert main(["sql", "./mydb", "-c", "CREATE; SELECT", "--format", "csv"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "n,word\n0,zero\n1,\n2,two\n"
    assert captured.err == "CREATE\n"


@pytest.mark.usefixtures("db")
def test_quiet_drops_statuses(capsys):
    main(["sql", "./mydb", "-q", "-c", "CREATE; SELECT", "--format", "json"])
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1] == '{"n": 1, "word": null}'
    assert captured.err == ""


@pytest.mark.usefixtures("db")
def test_rows_limits_a_table_but_never_csv(capsys):
    main(["sql", "./mydb", "-c", "SELECT", "--rows", "1"])
    assert capsys.readouterr().out.endswith("… 2 more rows\n")
    main(["sql", "./mydb", "-c", "SELECT", "--rows", "1", "--format", "csv"])
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_wide_table_is_not_cut_in_a_pipe(db, capsys):
    db.replies["WIDE"] = pa.table({f"column_{i}": ["v" * 120] for i in range(9)})
    main(["sql", "./mydb", "-c", "WIDE"])
    assert "…" not in capsys.readouterr().out


@pytest.mark.usefixtures("db")
def test_a_table_in_a_pipe_has_no_colour(capsys):
    main(["sql", "./mydb", "-c", "SELECT; BAD"])
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err


def test_a_failure_that_nobody_foresaw_is_an_internal_error(db, capsys):
    db.replies["BOOM"] = RuntimeError("boom")
    assert main(["sql", "./mydb", "-c", "BOOM"]) == 1
    assert capsys.readouterr().err.startswith("[INTERNAL] unexpected RuntimeError: boom\nHINT: ")


def test_debug_shows_the_traceback(db, capsys):
    db.replies["BOOM"] = RuntimeError("boom")
    main(["sql", "./mydb", "--debug", "-c", "BOOM"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_error_message_cannot_drive_the_terminal(db, capsys):
    db.replies["EVIL"] = MachineError(Condition.STORAGE_FAILED, "file \x1b[2J [bold]x", hint="Line\none.")
    main(["sql", "./mydb", "-c", "EVIL"])
    assert capsys.readouterr().err == "[STORAGE_FAILED] file \\x1b[2J [bold]x\nHINT: Line\none.\n"


def test_a_database_that_does_not_open_is_an_error(monkeypatch, capsys):
    def refuse(path, **_options):
        raise MachineError(Condition.DATABASE_LOCKED, f"{path} is open in another process")

    monkeypatch.setattr(millstream.database, "connect", refuse)
    assert main(["sql", "./mydb", "-c", "X"]) == 1
    assert capsys.readouterr().err == "[DATABASE_LOCKED] ./mydb is open in another process\n"


def test_the_shell_reads_a_pipe_without_prompting(db, piped, capsys):
    piped("\\dt\nSELECT;\n\\x\nSELECT;\n")
    assert main(["shell"]) == 0
    captured = capsys.readouterr()
    assert "flights" in captured.out
    assert "── row 1 ──" in captured.out
    assert "millstream>" not in captured.out
    assert db.connected_with["path"] == ":memory:"


def test_the_shell_stops_a_pipe_at_the_first_failure(db, piped):
    piped("BAD;\nNEXT;\n")
    assert main(["shell", "./mydb"]) == 1
    assert db.ran == ["BAD"]


def test_a_wrong_shortcut_in_a_pipe_is_a_failure(db, piped, capsys):
    piped("\\tming\nNEXT;\n")
    assert main(["shell", "./mydb"]) == 1
    assert capsys.readouterr().err.startswith(
        "<stdin>:1: [SYNTAX_ERROR] there is no shortcut \\tming\nHINT: Did you mean '\\timing'"
    )
    assert db.ran == []


def test_serving_is_not_supported_yet(capsys):
    assert main(["serve", "./mydb"]) == 1
    assert capsys.readouterr().err.startswith("[NOT_SUPPORTED_YET]")


@pytest.mark.parametrize(
    "argv",
    [
        ["sql"],
        ["sql", "db", "--wrong"],
        ["sql", "db", "-c", "X", "-f", "y.sql"],
        ["sql", "db", "-c", "X", "--format", "xml"],
        ["sql", "db", "-c", "X", "--rows", "few"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_leaves_with_code_2(argv, capsys):
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    assert "usage: millstream" in capsys.readouterr().err


def test_a_statement_in_the_place_of_the_folder_is_not_taken_for_one(db, piped, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    piped("")
    assert main(["sql", "SELECT 'x'"]) == 2
    assert """millstream sql :memory: -c 'SELECT '"'"'x'"'"''""" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["sql", "a new folder", "-c", "CREATE"]) == 0
    (tmp_path / "my data").mkdir()
    assert main(["sql", "my data"]) == 0
    assert db.ran == ["CREATE"]


def test_no_command_shows_the_help_with_code_2(capsys):
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["shell", "sql", "serve", "demo", "bench"])
def test_every_command_has_help_with_a_description(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert "millstream" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("millstream ")


def test_ctrl_c_gives_code_130(db):
    def press() -> str:
        os.kill(os.getpid(), 2)
        db.cancelled.wait(10)
        raise RuntimeError("job was cancelled")

    db.replies["SLOW"] = press
    assert main(["sql", "./mydb", "-c", "SLOW; NEXT"]) == 130
    assert db.ran == ["SLOW"]
    assert db.closed


def test_a_reader_that_goes_away_is_no_error_message():
    program = (
        "import sys, pyarrow as pa\n"
        "import millstream.database\n"
        "from tests.unit.cli_fakes import FakeDatabase\n"
        "table = pa.table({'n': range(20_000)})\n"
        "millstream.database.connect = lambda path, **_: FakeDatabase({'SELECT': table})\n"
        "from millstream.cli.main import main\n"
        "sys.exit(main(['sql', 'x', '-c', 'SELECT; SELECT', *sys.argv[1:]]))\n"
    )
    for options in (["--format", "csv"], ["--rows", "all"]):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
        process.stderr.close()


@pytest.fixture
def benchmarks(tmp_path) -> Path:
    (tmp_path / "linear_road.py").write_text('"""Cars on a road.\n\nMore."""\nimport sys\nsys.exit(len(sys.argv))')
    (tmp_path / "_common.py").write_text("")
    return tmp_path


def test_benchmarks_are_listed_with_what_they_say_of_themselves(benchmarks):
    programs = bench.available(benchmarks)
    assert list(programs) == ["linear_road"]
    assert bench.first_line(programs["linear_road"]) == "Cars on a road."


def test_a_benchmark_gets_its_options_and_gives_its_exit_code(benchmarks, monkeypatch):
    monkeypatch.setattr(bench.run, "__defaults__", (benchmarks,))
    assert main(["bench", "linear_road", "--json", "--scale", "3", "--cars", "5"]) == 6


def test_a_benchmark_that_is_not_there_is_an_error_with_a_suggestion(benchmarks, monkeypatch, capsys):
    monkeypatch.setattr(bench.run, "__defaults__", (benchmarks,))
    assert main(["bench", "linearroad"]) == 1
    assert "Did you mean 'linear_road'?" in capsys.readouterr().err


def test_without_the_source_tree_the_reason_is_told(tmp_path):
    with pytest.raises(MachineError) as error:
        bench.available(tmp_path / "benchmarks")
    assert error.value.condition is Condition.FILE_NOT_FOUND
