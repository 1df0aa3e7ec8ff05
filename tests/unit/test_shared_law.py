"""Selections, aggregates and joins that come and go together: each has what it would have had by itself, in order.

A story is told to one database in which every query is stepped by itself, as it comes; and for each policy to
another, in which they share what they can, with the inserts cut into pieces. `MILLSTREAM_LAW_CASES` says how many
queries are compared, about; `make law` says 2,000. Those that are dropped are compared by what they had before.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from millstream.plan.standing import QueryPlan
from millstream.queries import chorus, joining, sharing
from millstream.schedule.eddy import POLICIES, Shuffled, Tickets
from tests.stories import (
    STREAMS,
    a_story,
    aggregate,
    behind,
    create,
    every,
    selection,
    sharing_joins,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.database import Database

DRAWING = {"tickets": Tickets, "random": Shuffled}
"""Policies that draw, by a seed of their own."""
CUTS = (1_000, 3, 1)
"""The sizes of the pieces that inserts are cut into; each policy has another one in the next story."""
QUERIES = 20
"""So many are compared in a story, about."""
CASES = int(os.environ.get("MILLSTREAM_LAW_CASES", "0"))
STEPS = 9 if CASES else 4
"""A join by itself is a Spark job for each step: stories are short where nobody asks for many."""
SIZES = {2} if CASES else {2, 3, 4}
"""In every story joins of so many streams share a step, and find something; of more streams in most of them."""


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> Counter[object]:
    """How many queries shared a step, at most: in families by their number of leaves, in choirs, in groups."""
    most = Counter[object]()

    def noted(owner: Any, method: str, note: Callable[..., tuple[object, Sequence[Any]]]) -> None:
        real = getattr(owner, method)

        def step(self: Any, *args: Any) -> Any:
            kind, there = note(*args)
            most[kind] = max(most[kind], len(there))
            return real(self, *args)

        monkeypatch.setattr(owner, method, step)

    # A family of which somebody has something to answer.
    noted(joining.Joining, "_derive", lambda family, own, _: (
        len(family.streams), own if any(due for _, _, due in own) else ()
    ))  # fmt: skip
    noted(chorus.Chorus, "step", lambda runs, _: ("choir", runs))
    noted(sharing.Sharer, "step", lambda group, _: ("group", group.plans))
    return most


@pytest.mark.parametrize("seed", range(max(1, CASES // QUERIES)))
def test_each_query_has_what_it_would_have_alone(
    seed: int, opened: Callable[[str], Database], company: Counter[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    joins = sharing_joins(seed)
    story = a_story(seed, (selection, aggregate, joins, joins), STREAMS, STEPS)
    texts = {about.split()[3]: about for what, about in story if what == "sql" and about.startswith("CREATE")}
    with monkeypatch.context() as patched:
        patched.setattr(chorus, "key_of", lambda *_: None)
        patched.setattr(joining, "key_of", lambda *_: None)
        patched.setattr(QueryPlan, "is_selection", property(lambda _: False))
        with opened("alone") as db:
            create(db, STREAMS)
            expected = told(db, story) | every(db)
    assert not company
    assert expected.keys() == texts.keys()
    for policy, cut in zip(POLICIES, (*CUTS[seed % 3 :], *CUTS[: seed % 3]), strict=True):
        company.clear()
        if policy in DRAWING:
            monkeypatch.setitem(POLICIES, policy, partial(DRAWING[policy], seed))
        with opened(policy) as db:
            create(db, STREAMS)
            db.sql(f"SET eddy = {policy}")
            gone = told(db, story, cut)
            found = gone | every(db)
        assert all(company[kind] > 1 for kind in (*SIZES, "choir", "group")), company
        assert found.keys() == expected.keys()
        for name, text in texts.items():
            own, other = expected[name], found[name]
            if cut < 1_000 and name in gone.keys() & behind(story):
                other = other[: len(own)] if " JOIN " not in text else within(own, other)
            if cut < 1_000 and " JOIN " in text:
                own, other = by_instant(own), by_instant(other)
            assert other == own, f"{policy}, by {cut}: {text}"
    assert any(gone[name] for name in gone.keys() - behind(story))
    for size in SIZES:
        assert any(rows for n, rows in expected.items() if texts[n].count("] AS x") == size), f"of {size} streams"


def by_instant(rows: list[Any]) -> list[Any]:
    """Rows of one instant in any order: a late row's results follow what pieces before it have led to."""
    return sorted(rows, key=lambda row: (row[0], str(row)))


def within(some: list[Any], rows: list[Any]) -> list[Any]:
    """The rows that are among some others: pieces are stepped, so more is delivered before a DROP."""
    left = Counter(map(str, some))
    made = []
    for row in rows:
        if left[str(row)]:
            left[str(row)] -= 1
            made.append(row)
    return made
