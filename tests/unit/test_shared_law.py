"""Selections, aggregates and joins that come and go together: each has what it would have had by itself, in order.

A story is told to one database in which every query is stepped by itself, as it comes; and for each policy to
another, in which they share what they can, with the inserts cut into pieces. `MILLSTREAM_LAW_CASES` says how many
queries are compared, about; `make law` says 2,000.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from millstream.plan.standing import QueryPlan
from millstream.queries import chorus, joining
from tests.stories import STREAMS, a_story, aggregate, create, every, join, queries, selection, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database

TELLINGS = (("tickets", 1_000), ("random", 3), ("fixed", 1))
"""Policies, each with the size of the pieces that inserts are cut into."""
QUERIES = 20
"""So many are compared in a story, about."""
CASES = int(os.environ.get("MILLSTREAM_LAW_CASES", "0"))
STEPS = 9 if CASES else 4
"""A join by itself is a Spark job for each step: stories are short where nobody asks for many."""


@pytest.mark.parametrize("seed", range(max(1, CASES // QUERIES)))
def test_each_query_has_what_it_would_have_alone(
    seed: int, opened: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = a_story(seed, (selection, aggregate, join), STREAMS, STEPS)
    with monkeypatch.context() as patched:
        patched.setattr(chorus, "key_of", lambda *_: None)
        patched.setattr(joining, "key_of", lambda *_: None)
        patched.setattr(QueryPlan, "is_selection", property(lambda _: False))
        with opened("alone") as db:
            create(db, STREAMS)
            told(db, story)
            names, expected = queries(db), every(db)
    for policy, cut in TELLINGS:
        with opened(policy) as db:
            create(db, STREAMS)
            db.sql(f"SET eddy = {policy}")
            told(db, story, cut)
            for name, found in every(db).items():
                assert found == expected[name], f"{policy}, by {cut}: {names[name]}"
