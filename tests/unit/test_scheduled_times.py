"""Scheduled joins of streams whose time is a timestamp, or that of arrival."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from tests.unit.test_scheduled_joins import (
    STREAMS,
    a_story,
    alone,
    always,
    create,
    equal,
    had,
    in_seconds,
    opened,
    queries,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from millstream.database import Database
    from tests.unit.test_scheduled_joins import Row

__all__ = ["always", "opened"]


def test_time_may_be_timestamps(opened: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch) -> None:
    story, time = in_seconds(a_story(7, equal)), "t TIMESTAMP) TIMESTAMP BY t WATERMARK INTERVAL '2' SECOND"
    with opened("together") as db:
        create(db, time)
        told(db, story)
        found = {name: had(db, name) for name in queries(db)}
    assert any(found.values())
    alone(monkeypatch)
    with opened("alone") as db:
        create(db, time)
        told(db, story, is_alone=True)
        assert {name: had(db, name) for name in queries(db)} == found


def test_time_may_be_that_of_arrival(
    opened: Callable[[str], Database], clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "CREATE CONTINUOUS QUERY q{0} AS SELECT x.a AS p, y.a AS q FROM r x, s y WHERE x.k = y.k " \
        "WINDOW INTERVAL '{0}' SECOND"  # fmt: skip

    def story(name: str) -> dict[str, list[Row]]:
        random = Random("arrivals")
        with opened(name) as db:
            for stream in STREAMS:
                db.sql(f"CREATE STREAM {stream} (k INT, a INT)")
            for step in range(8):
                if step in (0, 1, 4):
                    db.sql(text.format(2 * step + 1))
                for stream in STREAMS:
                    db.insert(stream, [(random.randrange(3), random.randrange(9)) for _ in range(5)])
                clock.advance(timedelta(seconds=random.choice([0, 1, 2])))
                db.drain()
            clock.advance(timedelta(seconds=1))
            db.drain()
            return {query: [row for _, row in had(db, query)] for query in queries(db)}

    found = story("together")
    assert all(found.values())
    alone(monkeypatch)
    assert story("alone") == found
