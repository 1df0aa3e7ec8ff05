"""What happens inside a window: tables, stored rows and settings change, rows come late or in other batches.

The expected answers are written out: they follow from the contract by hand, not from the model.

    rows      0   3    6    11        τ = 10
              ├───┼────┼────┤
    [INTERVAL 10] SAMPLE INTERVAL 5   answers at 0, 5 and 10
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millstream.database import Database

    Open = Callable[[], Database]

MODES = {
    "incremental, kernel": ("incremental = on", "executor = kernel"),
    "incremental, spark_sql": ("incremental = on", "executor = spark_sql"),
    "re-evaluated": ("incremental = off", "executor = auto"),
}

Answers = list[tuple[Any, Counter[tuple[Any, ...]]]]


class Story:
    """A database to which something happens."""

    def __init__(self, open_database: Open, settings: Sequence[str]) -> None:
        self._open = open_database
        self._settings = settings
        self._connect()

    def _connect(self) -> None:
        self.db = self._open()
        self.say(*(f"SET {setting}" for setting in self._settings))

    def say(self, *statements: str) -> None:
        for statement in statements:
            self.db.sql(statement)

    def come(self, stream: str, *rows: tuple[Any, ...]) -> None:
        """Rows in one batch, and what they make due."""
        self.db.insert(stream, list(rows))
        self.db.drain()

    def restart(self) -> None:
        self.db.close()
        self._connect()

    def answers(self, query: str) -> Answers:
        """All deliveries; their numbers have no gaps."""
        found = self.db.results(query, since=0)
        assert [d.sequence for d in found] == list(range(1, len(found) + 1))
        return [(d.instant, Counter(tuple(row.values()) for row in d.to_arrow().to_pylist())) for d in found]


@pytest.fixture(params=MODES)
def story(request: pytest.FixtureRequest, open_database: Open) -> Iterator[Story]:
    found = Story(open_database, MODES[request.param])
    yield found
    found.db.close()


def answer(time: int, *rows: tuple[Any, ...]) -> tuple[int, Counter[tuple[Any, ...]]]:
    return time, Counter(rows)


CALLS = "CREATE STREAM calls (k INT, v INT, t BIGINT) TIMESTAMP BY t"
KEPT = "CREATE STREAMING TABLE kept (k INT, v INT, t BIGINT) TIMESTAMP BY t RANGE UNBOUNDED"
TOTALS = (
    "CREATE CONTINUOUS QUERY q AS SELECT k, count(*) AS n, sum(v) AS total FROM {s} [INTERVAL 10] GROUP BY k "
    "SAMPLE INTERVAL 5"
)


def test_a_table_that_changes_is_seen_by_later_answers_over_rows_that_were_there(story: Story) -> None:
    story.say(CALLS, "CREATE TABLE names (k INT, name STRING)", "INSERT INTO names VALUES (1, 'one'), (2, 'two')")
    story.say(
        "CREATE CONTINUOUS QUERY q AS SELECT n.name, sum(c.v) AS total FROM calls [INTERVAL 10] AS c "
        "JOIN names AS n ON n.k = c.k GROUP BY n.name SAMPLE INTERVAL 5"
    )
    story.come("calls", (1, 1, 0), (2, 10, 3), (1, 100, 6))
    story.say("UPDATE names SET name = 'eins' WHERE k = 1")
    story.come("calls", (2, 1000, 11))
    story.say("DELETE FROM names WHERE k = 2", "INSERT INTO names VALUES (1, 'uno')")
    story.come("calls", (1, 5, 16))
    assert story.answers("q") == [
        answer(0, ("one", 1)),
        answer(5, ("one", 1), ("two", 10)),
        answer(10, ("eins", 101), ("two", 10)),
        answer(15, ("eins", 100), ("uno", 100)),
    ]


def test_a_table_joined_above_is_read_as_it_is_when_an_instant_is_answered(story: Story) -> None:
    story.say(CALLS, "CREATE TABLE limits (k INT, most INT)", "INSERT INTO limits VALUES (1, 50), (2, 50)")
    story.say(
        "CREATE CONTINUOUS QUERY q AS SELECT x.k, x.total FROM (SELECT k, sum(v) AS total FROM calls "
        "[INTERVAL 10] GROUP BY k) AS x JOIN limits AS l ON l.k = x.k AND x.total > l.most SAMPLE INTERVAL 5"
    )
    story.come("calls", (1, 60, 0), (2, 10, 3), (1, 100, 6))
    story.say("UPDATE limits SET most = 5 WHERE k = 2")
    story.come("calls", (2, 1, 11))
    assert story.answers("q") == [answer(0, (1, 60)), answer(5, (1, 60)), answer(10, (1, 160), (2, 10))]


def test_rows_deleted_from_a_streaming_table_leave_unanswered_instants(story: Story) -> None:
    story.say(KEPT, TOTALS.format(s="kept"))
    story.come("kept", (1, 1, 0), (1, 2, 2), (2, 4, 4), (1, 8, 6))
    story.say("DELETE FROM kept WHERE v = 2", "UPDATE kept SET v = 40 WHERE v = 4")
    story.come("kept", (2, 16, 11))
    assert story.answers("q") == [
        answer(0, (1, 1, 1)),
        answer(5, (1, 2, 3), (2, 1, 4)),
        answer(10, (1, 2, 9), (2, 1, 40)),
    ]


def test_a_deleted_row_lets_an_older_one_back_into_the_newest(story: Story) -> None:
    story.say(KEPT)
    story.say("CREATE CONTINUOUS QUERY q AS SELECT v FROM kept [ROWS 2] SAMPLE INTERVAL 5 EMIT ALL")
    story.come("kept", (1, 1, 0), (1, 2, 2), (2, 4, 4), (1, 8, 6))
    story.say("DELETE FROM kept WHERE v = 8")
    story.come("kept", (2, 16, 11))
    assert story.answers("q") == [answer(0, (1,)), answer(5, (2,), (4,)), answer(10, (2,), (4,))]


@pytest.mark.parametrize(
    "setting", ["executor = kernel", "executor = spark_sql", "incremental = off", "chunks = 64"]
)
def test_a_setting_may_change_inside_a_window(story: Story, setting: str) -> None:
    story.say(CALLS, TOTALS.format(s="calls"))
    story.come("calls", (1, 1, 0), (1, 2, 2), (2, 4, 4), (1, 8, 6))
    story.say(f"SET {setting}")
    story.come("calls", (2, 16, 11), (1, 32, 13), (1, 64, 16))
    assert story.answers("q") == [
        answer(0, (1, 1, 1)),
        answer(5, (1, 2, 3), (2, 1, 4)),
        answer(10, (1, 3, 11), (2, 1, 4)),
        answer(15, (1, 2, 40), (2, 1, 16)),
    ]


def test_a_restart_inside_a_window_changes_nothing(story: Story) -> None:
    story.say(CALLS, TOTALS.format(s="calls"))
    for row in [(1, 1, 0), (1, 2, 2), (2, 4, 4), (1, 8, 6), (2, 16, 11), (1, 32, 13), (1, 64, 16)]:
        story.db.insert("calls", [row])
        story.restart()
        story.db.drain()
    assert story.answers("q") == [
        answer(0, (1, 1, 1)),
        answer(5, (1, 2, 3), (2, 1, 4)),
        answer(10, (1, 3, 11), (2, 1, 4)),
        answer(15, (1, 2, 40), (2, 1, 16)),
    ]


def test_the_slower_of_two_streams_decides_when_and_not_what(story: Story) -> None:
    story.say(CALLS, "CREATE STREAM bills (k INT, w INT, t BIGINT) TIMESTAMP BY t")
    story.say(
        "CREATE CONTINUOUS QUERY q AS SELECT c.k, count(*) AS n, sum(c.v * b.w) AS total FROM calls [INTERVAL 10] "
        "AS c JOIN bills [INTERVAL 4] AS b ON b.k = c.k GROUP BY c.k SAMPLE INTERVAL 5"
    )
    story.come("calls", (1, 1, 0), (2, 10, 3), (1, 100, 9), (1, 1000, 40))
    assert story.answers("q") == []
    story.come("bills", (1, 2, 0), (1, 3, 4))
    assert story.answers("q") == [answer(0, (1, 1, 2))]
    # Late for calls, whose time is 40, although 5 and 10 have not been answered.
    story.come("calls", (1, 7, 2))
    story.come("bills", (2, 5, 8), (1, 7, 11))
    assert story.answers("q")[1:] == [answer(5, (1, 1, 3)), answer(10, (2, 1, 50))]


def test_late_rows_miss_what_was_answered_and_enter_what_comes(story: Story) -> None:
    story.say(CALLS, TOTALS.format(s="calls"))
    story.come("calls", (1, 1, 0), (1, 2, 4), (2, 4, 8))
    story.come("calls", (1, 8, 3), (2, 16, 7), (2, 32, 11))
    story.come("calls", (1, 64, 1), (2, 128, 16))
    assert story.answers("q") == [
        answer(0, (1, 1, 1)),
        answer(5, (1, 2, 3)),
        answer(10, (1, 3, 11), (2, 2, 20)),
        answer(15, (2, 3, 52)),
    ]


def test_late_rows_enter_windows_of_tumble_that_are_open(story: Story) -> None:
    story.say(CALLS)
    story.say(
        "CREATE CONTINUOUS QUERY q AS SELECT window_start, window_end, sum(v) AS total "
        "FROM TUMBLE(calls, t, INTERVAL 10) GROUP BY window_start, window_end"
    )
    story.come("calls", (1, 1, 0), (1, 2, 14), (1, 4, 8), (1, 8, 11), (1, 16, 20))
    assert story.answers("q") == [answer(10, (0, 10, 1)), answer(20, (10, 20, 10))]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_how_rows_are_cut_into_batches_changes_nothing(story: Story, size: int) -> None:
    story.say("CREATE STREAM calls (k INT, v INT, t BIGINT) TIMESTAMP BY t WATERMARK INTERVAL 3")
    story.say(
        TOTALS.format(s="calls"), TOTALS.format(s="calls").replace(" q ", " r ").replace("INTERVAL 5", "ROWS 2")
    )
    rows = [(1, 1, 0), (1, 2, 6), (2, 4, 4), (2, 8, 2), (1, 16, 6), (1, 32, 9), (None, 64, 11), (2, 128, 14)]
    for at in range(0, len(rows), size):
        story.db.insert("calls", rows[at : at + size])
    story.db.drain()
    assert story.answers("q") == [
        answer(0, (1, 1, 1)),
        answer(5, (1, 1, 1), (2, 2, 12)),
        answer(10, (1, 4, 51), (2, 2, 12)),
    ]
    assert story.answers("r") == [
        answer(6, (1, 2, 3)),
        answer(6, (1, 3, 19), (2, 2, 12)),
        answer(11, (1, 3, 50), (2, 2, 12), (None, 1, 64)),
    ]


def test_a_long_gap_delivers_its_first_and_last_instant(story: Story) -> None:
    story.say(CALLS)
    story.say("CREATE CONTINUOUS QUERY q AS SELECT v FROM calls [INTERVAL 5] SAMPLE INTERVAL 10 EMIT ALL")
    story.come("calls", (1, 1, 0), (1, 2, 300_000), (1, 4, 300_001))
    found = story.answers("q")
    assert found == [answer(0, (1,)), answer(10), answer(299_990), answer(300_000, (2,))]
    assert sum(d.skipped or 0 for d in story.db.results("q", since=0)) == 30_001 - 4


def test_a_paused_query_answers_everything_when_it_is_resumed(story: Story) -> None:
    story.say(CALLS, TOTALS.format(s="calls"))
    story.come("calls", (1, 1, 0), (1, 2, 2))
    story.say("PAUSE q")
    story.come("calls", (2, 4, 4), (1, 8, 6), (2, 16, 11))
    story.restart()
    assert story.answers("q") == [answer(0, (1, 1, 1))]
    story.say("RESUME q")
    story.db.drain()
    assert story.answers("q")[1:] == [answer(5, (1, 2, 3), (2, 1, 4)), answer(10, (1, 3, 11), (2, 1, 4))]
