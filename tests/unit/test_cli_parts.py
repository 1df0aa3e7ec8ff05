"""The parts of the command line: cutting input, asking first, completing, showing activity, waiting."""

from __future__ import annotations

import io
import queue
import signal
import threading

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from rich.console import Console

from millstream.cli import confirm
from millstream.cli.activity import Activity
from millstream.cli.completer import ShellCompleter
from millstream.cli.feed import Chunk, cut
from millstream.cli.printer import error_text
from millstream.cli.shortcuts import BY_NAME
from millstream.cli.worker import CancelledError, Worker
from millstream.database import Progress
from millstream.errors import Condition, StatementError
from tests.unit.cli_fakes import OBJECTS, failure


def pieces(text: str, *, shortcuts: bool = False) -> list[Chunk]:
    return list(cut(io.StringIO(text), "f", shortcuts=shortcuts))


def test_input_is_cut_where_statements_end():
    assert pieces("A;\n\nB\n;\nC; D;\nE") == [
        Chunk("A;\n", "f:1"),
        Chunk("B\n;\n", "f:3"),
        Chunk("C; D;\n", "f:5"),
        Chunk("E", "f:6"),
    ]


def test_a_semicolon_in_a_string_does_not_cut():
    assert [c.text for c in pieces("SELECT ';\n;' AS a;\nB;")] == ["SELECT ';\n;' AS a;\n", "B;"]


def test_blank_input_has_no_pieces():
    assert pieces("\n  \n") == []


def test_shortcuts_are_pieces_only_where_they_are_wanted():
    assert pieces("\\x\nA;", shortcuts=True) == [Chunk("\\x", "f:1"), Chunk("A;", "f:2")]
    assert pieces("\\x\nA;") == [Chunk("\\x\nA;", "f:1")]


def test_a_backslash_within_a_statement_is_no_shortcut():
    assert len(pieces("SELECT\n\\x\n;", shortcuts=True)) == 1


def test_a_piece_comes_out_before_the_next_line_is_read():
    read: list[str] = []

    class Lines(io.StringIO):
        def readline(self, *_args):
            read.append(line := super().readline())
            return line

    next(cut(Lines("A;\nB;\n"), "f"))
    assert read == ["A;\n"]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("DROP TABLE t;", "DROP TABLE t cannot be undone."),
        ("/* x */ truncate  table t", "truncate table t removes every row there is."),
        ("DELETE FROM t", "DELETE FROM t has no WHERE: it deletes every row."),
        ("UPDATE t SET a = (SELECT 1 WHERE true)", None),
        ("INSERT OVERWRITE t VALUES (1)", "INSERT OVERWRITE t VALUES (1) removes every row there is."),
    ],
)
def test_a_statement_that_takes_data_away_is_warned_of(text, warning):
    found = confirm.warnings(text)
    assert len(found) == 1
    assert warning is None or found == [warning]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'DROP TABLE t'",
        "DELETE FROM t WHERE a = 1",
        "UPDATE t SET a = 1 WHERE b IN (SELECT 1)",
        "-- DROP TABLE t\nSELECT 1",
        "INSERT INTO t VALUES (1)",
        "EXPLAIN DELETE FROM t",
        "DROP 'unclosed",
        "",
    ],
)
def test_other_statements_are_not_asked_about(text):
    assert confirm.warnings(text) == []


def test_every_destructive_statement_of_a_text_is_named():
    assert len(confirm.warnings("SELECT 1; DROP TABLE a; DROP TABLE b;")) == 2


def test_a_long_statement_is_shortened_in_the_question():
    (warning,) = confirm.warnings("UPDATE t SET a = '" + "x" * 500 + "'")
    assert len(warning) < 120


@pytest.fixture
def offered():
    """The completions at the end of a text."""
    shortcuts = {name: (s.help, s.arguments) for name, s in BY_NAME.items()}
    completer = ShellCompleter(lambda: list(OBJECTS), shortcuts)
    event = CompleteEvent(completion_requested=True)
    return lambda text: [c.text for c in completer.get_completions(Document(text), event)]


def test_object_names_come_first_after_from(offered):
    assert offered("SELECT * FROM ")[:4] == ["flights", "calls", "reports", "spend"]
    assert offered("SELECT * FROM ca")[0] == "calls"


def test_columns_of_the_named_tables_are_offered(offered):
    assert offered("SELECT * FROM calls WHERE c")[0] == "cost"
    assert "carrier" not in offered("SELECT * FROM calls WHERE c")


def test_columns_behind_an_alias_are_offered(offered):
    assert offered("SELECT * FROM calls AS x WHERE x.") == ["id", "cost", "ts"]
    assert offered("SELECT * FROM calls x WHERE x.t") == ["ts"]
    assert offered("SELECT * FROM calls [ROWS 5] AS x WHERE x.t") == ["ts"]
    assert offered("SELECT flights.c") == ["carrier"]


def test_valid_offers_streaming_tables_and_their_aliases(offered):
    assert offered("SELECT VALID(") == ["reports"]
    assert offered("SELECT * FROM reports AS p WHERE VALID(") == ["p", "reports"]
    assert offered("SELECT * FROM calls c JOIN reports r WHERE valid( r") == ["r", "reports"]
    assert offered("DELETE FROM reports WHERE VALID(") == ["reports"]


def test_settings_and_their_values_are_offered(offered):
    assert offered("SET ") == ["use_indexes"]
    assert offered("set USE") == ["use_indexes"]
    assert offered("SET use_indexes = ") == ["on", "off"]
    assert offered("SET use_indexes TO of") == ["off"]
    assert offered("SET other = o") == []


def test_set_of_an_update_offers_columns(offered):
    assert offered("UPDATE reports SET s")[0] == "spd"


def test_a_name_that_is_no_bare_word_is_quoted(offered):
    assert offered("SELECT flights.d") == ["`dep delay`"]


def test_keywords_follow_the_case_that_is_typed(offered):
    assert "select" in offered("sel")
    assert "SELECT" in offered("SEL")


def test_nothing_is_offered_inside_a_string(offered):
    assert offered("SELECT 'sel") == []


def test_shortcuts_and_their_arguments_are_offered(offered):
    assert offered("\\t") == ["\\timing"]
    assert offered("\\o ") == ["table", "csv", "json"]
    assert offered("\\d cal") == ["calls"]


def test_paths_are_offered_after_i_and_in_copy(offered, tmp_path):
    (tmp_path / "rows.csv").touch()
    assert offered(f"\\i {tmp_path}/ro") == ["ws.csv"]
    assert offered(f"COPY t FROM '{tmp_path}/ro") == ["ws.csv"]


def test_a_catalogue_that_cannot_be_read_offers_keywords_only():
    def refuse():
        raise StatementError(Condition.CLOSED, "the database is closed")

    completer = ShellCompleter(refuse, {})
    event = CompleteEvent(completion_requested=True)
    assert "SELECT" in [c.text for c in completer.get_completions(Document("SEL"), event)]


def test_the_catalogue_is_read_once_for_each_prompt():
    reads: list[int] = []
    completer = ShellCompleter(lambda: reads.append(1) or list(OBJECTS), {})
    event = CompleteEvent(completion_requested=True)
    for forget in (False, False, True):
        if forget:
            completer.forget()
        list(completer.get_completions(Document("SELECT * FROM "), event))
    assert len(reads) == 2


def test_an_error_is_coloured_on_a_terminal_only():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    console.print(error_text(failure(), "f.sql:3"))
    assert console.file.getvalue().startswith("f.sql:3: \x1b[1;31m[UNKNOWN_TABLE]\x1b[0m there is")


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def shown_by(activity: Activity, console: Console, *reports: Progress) -> str:
    """What stands on the terminal once the display has started."""
    with activity.showing():
        for report in reports:
            activity.report(report)
        activity._shown.start()
    return console.file.getvalue()


def test_work_that_reports_nothing_is_named_by_its_label():
    console = terminal()
    assert "starting Spark…" in shown_by(Activity(console, lambda: "starting Spark", 60), console)


def test_work_that_reports_gets_a_bar_and_a_count():
    console = terminal()
    report = Progress("copying rows.csv", 500, 2000, "rows")
    shown = shown_by(Activity(console, delay=60), console, report)
    assert "copying rows.csv…" in shown
    assert "500 of 2,000 rows" in shown


def test_work_of_unknown_size_gets_a_count_alone():
    console = terminal()
    shown = shown_by(Activity(console, delay=60), console, Progress("reading", 500, None, "rows"))
    assert "500 rows" in shown
    assert "of" not in shown


def test_a_stage_that_is_over_gives_way_to_the_label():
    console = terminal()
    shown = shown_by(
        Activity(console, delay=60), console, Progress("copying", 1, 2, "rows"), Progress("copying", 2, 2, "rows")
    )
    assert "running…" in shown
    assert "rows" not in shown


def test_nothing_is_shown_off_a_terminal():
    console = Console(file=io.StringIO(), width=80)
    activity = Activity(console, delay=0)
    with activity.showing():
        activity.report(Progress("copying", 1, 2, "rows"))
    assert console.file.getvalue() == ""


def test_a_report_after_the_statement_is_ignored():
    Activity(terminal()).report(Progress("late", 1, 1, "rows"))


def press_ctrl_c() -> None:
    """The signal to the main thread itself: one to the process may be taken by a thread that does not wake it."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def interrupted(times: int, ended: threading.Event) -> None:
    """Press Ctrl-C, then wait for the statement to be ended."""
    for _ in range(times):
        press_ctrl_c()
    ended.wait(10)
    raise RuntimeError("cancelled")


def test_a_cancelled_call_raises_cancelled():
    ended = threading.Event()
    with Worker(lambda _: None) as worker, pytest.raises(CancelledError):
        worker.call(lambda: interrupted(1, ended), ended.set)


def test_a_call_that_ends_well_in_spite_of_ctrl_c_gives_its_result():
    ended = threading.Event()

    def finishes() -> int:
        press_ctrl_c()
        ended.wait(10)
        return 42

    with Worker(lambda _: None) as worker:
        assert worker.call(finishes, ended.set) == 42


def test_a_third_ctrl_c_gives_up():
    ended, said, left = threading.Event(), [], []
    # A handler may interrupt itself, which a semaphore does not survive.
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()
    cancelled: list[int] = []

    def cancel() -> None:
        cancelled.append(1)
        heard.put(1)

    def press_and_see_it_heard() -> None:
        press_ctrl_c()
        while True:
            try:
                heard.get(timeout=0.5)
                return
            except queue.Empty:
                # It came just before the main thread went to wait: any signal makes it look again.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def stubborn() -> None:
        for _ in range(3):
            press_and_see_it_heard()
        ended.wait(10)

    def leave(code: int) -> None:
        left.append(code)
        heard.put(1)
        ended.set()

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with Worker(said.append, leave) as worker:
            worker.call(stubborn, cancel)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert said == ["still stopping; press Ctrl-C once more to leave at once"]
    assert left == [130]
    assert len(cancelled) == 2


def test_an_error_of_the_database_passes_through():
    def fails() -> None:
        raise failure()

    with Worker(lambda _: None) as worker, pytest.raises(StatementError):
        worker.call(fails)
