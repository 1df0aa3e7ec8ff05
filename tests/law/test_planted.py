"""Bugs planted on purpose: each must make some generated view break the law. Runs with `--planted`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from millstream.execute import kernel
from millstream.execute.kernel import Old
from millstream.plan.incremental import Part, Partial
from millstream.rewrite import aggregates, block
from millstream.rewrite.aggregates import ByValues, Decomposed
from millstream.storage import state
from millstream.views.keeping import Keeper
from millstream.views.kernels import Kernels
from tests.law.feed import Run, only
from tests.law.grammar import a_feed
from tests.law.ways import IN_TASKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database
    from tests.law.coverage import Coverage
    from tests.law.grammar import Feed, Query

    Plant = Callable[[pytest.MonkeyPatch], None]

pytestmark = pytest.mark.planted
SEEDS, VIEWS = (2, 4, 6, 8, 10), 6
"""So many views of a feed that have to do with the bug are asked, all in tasks; of some feeds until one tells."""


def _entry(name: str, **changed: Any) -> Plant:
    """The table has a wrong entry for an aggregate."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setitem(aggregates.DECOMPOSED, name, replace(aggregates.DECOMPOSED[name], **changed))

    return plant


def _spread_without_the_mean(patch: pytest.MonkeyPatch) -> None:
    for name in ("var_pop", "var_samp", "stddev_pop", "stddev_samp"):
        entry = aggregates.DECOMPOSED[name]
        wrong = (*entry.partials[:2], (entry.partials[2][0], "sum({2})"))
        patch.setitem(aggregates.DECOMPOSED, name, Decomposed(wrong, entry.final, entry.prepared))


def _no_null_group(patch: pytest.MonkeyPatch) -> None:
    merged = Part.merged

    def wrong(self: Part, rows: str, where: str | None = None, keys: tuple[str, ...] | None = None) -> str:
        sql = merged(self, rows, where, keys)
        by = self.keys if keys is None else keys
        return f"SELECT * FROM ({sql}) AS q WHERE {by[0]} IS NOT NULL" if by else sql

    patch.setattr(Part, "merged", wrong)
    patch.setattr(Keeper, "is_whole", lambda *_: False)


def _sets_mixed_up(patch: pytest.MonkeyPatch) -> None:
    """Rows of different grouping sets merge where their keys are alike."""
    merged = Part.merged

    def wrong(self: Part, rows: str, where: str | None = None, keys: tuple[str, ...] | None = None) -> str:
        by = self.keys if keys is None else keys
        if "g" not in by:
            return merged(self, rows, where, keys)
        sql = merged(self, rows, where, tuple(k for k in by if k != "g"))
        return f"SELECT {', '.join(by)}{sql[sql.index(', CAST') :]}".replace(" g,", " max(g) AS g,", 1)

    patch.setattr(Part, "merged", wrong)
    patch.setattr(Keeper, "is_whole", lambda *_: False)


def _last_row_again(patch: pytest.MonkeyPatch) -> None:
    position = Keeper._position
    patch.setattr(Keeper, "_position", lambda self, v, s: max(0, position(self, v, s) - 1))


def _first_row_lost(patch: pytest.MonkeyPatch) -> None:
    new_rows = state.new_rows

    def wrong(lake: Any, stream: Any, snapshot: Any, since: int, last_ids: Any) -> Any:
        return new_rows(lake, stream, snapshot, since + 1, last_ids)

    patch.setattr(state, "new_rows", wrong)


def _no_filter(patch: pytest.MonkeyPatch) -> None:
    over = Partial.over
    patch.setattr(Partial, "over", lambda self, also=None: over(replace(self, filter=None), also))


def _having_lost(patch: pytest.MonkeyPatch) -> None:
    read_state = block._read_state

    def wrong(select: Any, *rest: Any, **more: Any) -> None:
        select.set("having", None)
        read_state(select, *rest, **more)

    patch.setattr(block, "_read_state", wrong)


def _a_share_is_lost(patch: pytest.MonkeyPatch) -> None:
    """The last of several tasks takes no rows."""
    bucket = kernel.bucket

    def wrong(keys: Any, number: int, of: int) -> str | None:
        return "false" if number and number == of - 1 else bucket(keys, number, of)

    patch.setattr(kernel, "bucket", wrong)


def _all_state_for_one_task(patch: pytest.MonkeyPatch) -> None:
    """The first task merges all that is there, the others their own rows with nothing."""

    def wrong(self: Kernels, table: Any, pieces: Any, _: Any) -> tuple[Old, ...]:
        return tuple(Old(str(self._lake.folder(table) / file.path), 0) for file in pieces)

    patch.setattr(Kernels, "_old", wrong)


def _rows_counted_as_values(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(aggregates.DISTINCT, "count", ByValues("sum({c})", "0L"))


BUGS: dict[str, tuple[Plant, str]] = {
    "counts merge by the largest": (
        _entry("count", partials=(("count({all}){f}", "max({0})"),)),
        "aggregate:count(*)",
    ),
    "sums keep one of the partials": (
        _entry("sum", partials=(("sum({0}){f}", "any_value({0})"),)),
        "aggregate:sum",
    ),
    "least values merge by the largest": (_entry("min", partials=(("min({0}){f}", "max({0})"),)), "aggregate:min"),
    "averages of averages": (
        _entry("avg", partials=(("avg(CAST({0} AS DOUBLE)){f}", "avg({0})"),), final="{0}"),
        "aggregate:avg",
    ),
    "variances without the mean of the whole": (_spread_without_the_mean, "aggregate:stddev"),
    "the null group is dropped": (_no_null_group, "shape:group by name"),
    "the last row counts twice": (_last_row_again, "shape:group by name"),
    "the first row is lost": (_first_row_lost, "shape:group by name"),
    "grouping sets are mixed up": (_sets_mixed_up, "rollup"),
    "FILTER is forgotten": (_no_filter, "filter"),
    "HAVING is lost": (_having_lost, "having"),
    "exclusive or merges as or": (
        _entry("bit_xor", partials=(("bit_xor({0}){f}", "bit_or({0})"),)),
        "aggregate:bit_xor",
    ),
    "a task loses its share": (_a_share_is_lost, "aggregate:count"),
    "one task takes the state of all": (_all_state_for_one_task, "aggregate:count"),
    "values are counted as often as they came": (_rows_counted_as_values, "aggregate:count(DISTINCT)"),
}


def concerned(feed: Feed, label: str) -> list[int]:
    """Views that have to do with a bug: by label, or by a word of their text."""

    def has(query: Query) -> bool:
        return any(c.startswith(label) for c in query.sql.covers) or label.upper() in query.sql.view.upper()

    return [q.number for q in feed.queries if has(q)][:VIEWS]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(
    bug: str, opened: Callable[[str], Database], coverage: Coverage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, label = BUGS[bug]
    plant(monkeypatch)
    for seed in SEEDS:
        feed = a_feed(seed)
        numbers = concerned(feed, label)
        assert numbers, f"no view of seed {seed} has to do with {label}"
        run = Run(only(feed, numbers), partial(opened, str(seed)), coverage, way=IN_TASKS)
        run.run()
        if any(failure.what.startswith("not what") for failure in run.failures.values()):
            return
    pytest.fail(f"no view of seeds {SEEDS} gave a wrong answer: {bug}")
