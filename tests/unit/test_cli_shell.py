"""The shell at work: keys go in through a pipe, as a terminal would send them."""

from __future__ import annotations

import os
import stat
import threading

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from millstream.cli.feed import Chunk
from millstream.cli.printer import Format
from millstream.cli.runner import Outcome
from millstream.cli.shell import Shell, is_whole, stored_history
from tests.unit.cli_fakes import NUMBERS, Desk, FakeDatabase, failure

CTRL_C = "\x03"
CTRL_D = "\x04"


@pytest.fixture
def desk():
    made = Desk(FakeDatabase({"SELECT": NUMBERS, "BAD": failure()}))
    with made.worker:
        yield made


@pytest.fixture
def type_keys(desk):
    """Types keys into a shell on the desk, leaves it, and gives the history."""

    def keys(text: str) -> list[str]:
        history = InMemoryHistory()
        with create_pipe_input() as source, create_app_session(input=source, output=DummyOutput()):
            source.send_text(text + CTRL_D)
            assert Shell(desk.runner, keep_going=True).interact(history) is Outcome.OK
        return history.get_strings()

    return keys


def test_a_statement_may_span_lines_and_runs_at_its_semicolon(desk, type_keys):
    history = type_keys("INSERT\rINTO t;\r")
    assert desk.db.ran == ["INSERT\nINTO t"]
    assert history == ["INSERT\nINTO t;"]


def test_an_error_is_shown_and_the_shell_goes_on(desk, type_keys):
    type_keys("BAD;\rNEXT;\r")
    assert "[UNKNOWN_TABLE]" in desk.told
    assert desk.db.ran == ["BAD", "NEXT"]


def test_ctrl_c_clears_the_line(desk, type_keys):
    type_keys(f"INSERT{CTRL_C}NEXT;\r")
    assert desk.db.ran == ["NEXT"]


def test_ctrl_d_leaves(desk, type_keys):
    type_keys("")
    assert desk.db.ran == []


@pytest.mark.parametrize("word", ["\\q", "quit", "exit", "EXIT;"])
def test_leaving_words_leave(desk, type_keys, word):
    type_keys(f"{word}\rNEXT;\r")
    assert desk.db.ran == []


def test_ctrl_c_cancels_the_running_statement(desk, type_keys):
    def slow() -> str:
        os.kill(os.getpid(), 2)
        assert desk.db.cancelled.wait(10)
        raise RuntimeError("job was cancelled")

    desk.db.replies["SLOW"] = slow
    type_keys("SLOW;\rNEXT;\r")
    assert desk.db.ran == ["SLOW", "NEXT"]
    assert "cancelled" in desk.told
    assert "RuntimeError" not in desk.told


@pytest.mark.parametrize("answer", ["n", "", "what", CTRL_C])
def test_a_destructive_statement_is_not_run_without_a_yes(desk, type_keys, answer):
    type_keys(f"DROP TABLE t;\r{answer}\r")
    assert desk.db.ran == []


@pytest.mark.parametrize("answer", ["y", "YES"])
def test_a_destructive_statement_runs_after_a_yes(desk, type_keys, answer):
    history = type_keys(f"DROP TABLE t;\r{answer}\r")
    assert desk.db.ran == ["DROP TABLE t"]
    assert history == ["DROP TABLE t;"]


def test_a_pipe_is_never_asked(desk):
    Shell(desk.runner).read([Chunk("DROP TABLE t;")])
    assert desk.db.ran == ["DROP TABLE t"]


def test_timing_is_switched(desk, type_keys):
    type_keys("\\timing\rX;\r\\timing off\rX;\r")
    assert desk.told.count("Time: 0.000 s") == 1


def test_the_format_is_set(desk, type_keys):
    type_keys("\\o csv\rSELECT;\r")
    assert desk.settings.format is Format.CSV
    assert desk.printed[0] == "n,word"


def test_a_format_that_is_not_there_is_an_error(desk, type_keys):
    type_keys("\\o jsn\r")
    assert "HINT: Did you mean 'json'?" in desk.told


def test_expanded_and_rows_are_set(desk, type_keys):
    type_keys("\\x\r\\rows 1\rSELECT;\r")
    assert desk.printed == ["── row 1 ──", "n     0", "word  zero", "… 2 more rows"]
    assert desk.settings.max_rows == 1


@pytest.mark.parametrize(
    ("shortcut", "names"),
    [
        ("\\d", ["flights", "calls", "reports", "spend"]),
        ("\\dt", ["flights", "reports"]),
        ("\\ds", ["calls", "reports"]),
        ("\\dv", ["spend"]),
    ],
)
def test_objects_are_listed_by_kind(desk, type_keys, shortcut, names):
    type_keys(f"{shortcut}\r")
    assert [line.split()[0] for line in desk.printed[2:-1]] == names


def test_d_with_a_name_describes_it(desk, type_keys):
    type_keys("\\d my table\r")
    assert desk.db.ran == ["DESCRIBE `my table`"]


def test_di_lists_indices_of_all_tables_or_of_one(desk, type_keys):
    type_keys("\\di\r\\di my table\r")
    assert desk.db.ran == ["SHOW INDEXES", "SHOW INDEXES FROM `my table`"]


def test_help_names_every_shortcut(desk, type_keys):
    type_keys("\\?\r")
    for name in ("\\d", "\\dt", "\\di", "\\i FILE", "\\o", "\\timing", "\\x", "\\q", "Ctrl-C"):
        assert any(line.startswith(name) for line in desk.printed)


def test_a_file_is_included_with_its_shortcuts(desk, type_keys, tmp_path):
    script = tmp_path / "a b.sql"
    script.write_text("\\o json\nFIRST;\nSECOND;", encoding="utf-8")
    type_keys(f"\\i '{script}'\r")
    assert desk.db.ran == ["FIRST", "SECOND"]
    assert desk.settings.format is Format.JSON


def test_a_file_that_is_not_there_does_not_end_the_shell(desk, type_keys):
    type_keys("\\i nowhere.sql\r\\i\rNEXT;\r")
    assert "[FILE_NOT_FOUND]" in desk.told
    assert "HINT: Type \\i FILE." in desk.told
    assert desk.db.ran == ["NEXT"]


def test_a_tab_completes_a_name(desk, type_keys):
    type_keys("SELECT * FROM fli\t;\r")
    assert desk.db.ran == ["SELECT * FROM flights"]


def test_a_tab_inserts_what_all_candidates_share(desk, type_keys):
    type_keys("\\ti\t off\r")
    assert "timing is off" in desk.told


def test_history_is_kept_in_the_state_folder_for_its_owner_only(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = stored_history()
    assert isinstance(history, FileHistory)
    path = tmp_path / "millstream" / "history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_history_stays_in_memory_where_the_state_folder_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert isinstance(stored_history(), InMemoryHistory)


@pytest.mark.parametrize("text", ["", "  ", "\\d", "quit", "SELECT 1;", "SELECT ';';  "])
def test_enter_runs(text):
    assert is_whole(text)


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT ';", "SELECT 1 -- ;"])
def test_enter_goes_on_to_the_next_line(text):
    assert not is_whole(text)


def test_statements_never_run_in_the_main_thread(desk, type_keys):
    seen: list[threading.Thread] = []
    desk.db.replies["WHERE AM I"] = lambda: seen.append(threading.current_thread()) or "here"
    type_keys("WHERE AM I;\r")
    assert seen[0] is not threading.main_thread()
