"""Each rule that answers windows incrementally, on its own fixture: queries in, texts out.

A fixture in `tests/plans/windows/` is one rule: `# rule`, then cases of `query`, `----` and what comes out. To
write them anew after a change that is meant: `python -m tests.plans.test_window_rules`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlglot
from sqlglot import exp

from millstream.plan.standing import Sample, Sampling, Window, WindowKind, window_name
from millstream.rewrite import standing
from millstream.rewrite.panes import merged
from millstream.sql.dialect import WINDOW, Millstream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FIXTURES = Path(__file__).parent / "windows"
COLUMNS = {
    "s": ("k", "v", "d", "t"),
    "r": ("k", "w", "t"),
    "tumbling": ("k", "v", "window_start", "window_end"),
    "dim": ("k", "name"),
    "other": ("k", "price"),
}
STREAMS = {"s": 1, "r": 2, "tumbling": 3}
LENGTH = 10
"""Of the windows that are cut."""
SAMPLES = {
    "INTERVAL": Sample(Sampling.INTERVAL, 5),
    "ROWS": Sample(Sampling.ROWS, 10),
    "REALTIME": Sample(Sampling.REALTIME),
    "ENDS": Sample(Sampling.ENDS, LENGTH),
}
KINDS = {
    "concatenation", "compensation", "expanding", "synchronous", "landmark", "last_k", "distinct_top_k",
    "sketches", "lifting",
}  # fmt: skip
"""What splitting and lifting do to all queries, by the kinds of them."""
Case = tuple[str, str]


def planned(query: str) -> str:
    """What the rewriter makes of a query whose last words are `SAMPLE …`."""
    body, _, word = query.rpartition(" SAMPLE ")
    tree = sqlglot.parse_one(body, read=Millstream)
    assert isinstance(tree, exp.Query)
    windows: list[Window] = []
    columns: dict[str, Sequence[str]] = dict(COLUMNS)

    def placed(table: exp.Table) -> None:
        if table.name not in STREAMS:
            return
        alias, said = table.alias_or_name, table.meta.get(WINDOW)
        kind = WindowKind(said.kind.value) if said is not None else WindowKind.LANDMARK
        length = said.length.amount if said is not None and said.length is not None else 0
        if table.name == "tumbling":
            kind, length = WindowKind.CUT, LENGTH
        rows = (said.rows or 0) if said is not None else 0
        keys = said.partition_by if said is not None else ()
        window = Window(STREAMS[table.name], table.name, kind, length, rows, keys)
        if window not in windows:
            windows.append(window)
            columns[window_name(len(windows) - 1)] = COLUMNS[table.name]
        table.set("this", exp.to_identifier(window_name(windows.index(window)), quoted=False))
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))

    normal = standing.read(tree, columns, lambda _: None, placed)
    own = [columns[window_name(i)] for i in range(len(windows))]
    texts = standing.plan_texts(normal, windows, own, SAMPLES[word], types)
    return "\n".join(_lines(texts))


def types(sql: str, _: object) -> Mapping[str, str]:
    """All columns are BIGINT, but for `d`, which is a DOUBLE."""
    found = sqlglot.parse_one(sql, read=Millstream)
    assert isinstance(found, exp.Query)
    return {e.alias_or_name: "double" if ".`d`" in e.sql("spark") else "bigint" for e in found.selects}


def _lines(texts: standing.Texts) -> Iterator[str]:
    if texts.deltas is not None:
        yield f"derivations: {texts.deltas.text}"
    for pairs in texts.pairs:
        yield f"pairs {pairs.number}: {pairs.new()}"
    for number, part in enumerate(texts.parts):
        yield f"fragment {number}: {part.fragment}"
        yield f"merged {number}: {merged(part, number)}"
    if texts.split is not None:
        yield f"upper: {texts.split.text}"
    elif texts.whole is not None:
        yield f"whole: {texts.whole.text}"
    yield from (f"because: {reason}" for reason in texts.reasons)


def cases(path: Path) -> list[Case]:
    found = re.split(r"\n\n+", path.read_text(encoding="utf-8").strip())
    pairs = [block.split("\n----\n", 1) for block in found if not block.startswith("#")]
    return [(pair[0], pair[1] if len(pair) > 1 else "") for pair in pairs]


def every() -> Iterator[tuple[str, str, str]]:
    for path in sorted(FIXTURES.glob("*.txt")):
        for query, expected in cases(path):
            yield path.stem, query, expected


@pytest.mark.parametrize(("rule", "query", "expected"), list(every()), ids=lambda x: x[:60])
def test_a_rule_makes_what_its_fixture_says(rule: str, query: str, expected: str) -> None:
    assert planned(query) == expected, f"{rule}: python -m tests.plans.test_window_rules writes it anew"


def test_there_is_a_fixture_for_every_rule() -> None:
    stems = {p.stem for p in FIXTURES.glob("*.txt")}
    rules = {rule.__name__ for rule in standing.RULES}
    assert rules == {rule.__module__.rpartition(".")[2] for rule in standing.RULES}
    assert stems == rules | KINDS


if __name__ == "__main__":
    for fixture in sorted(FIXTURES.glob("*.txt")):
        head = "\n".join(line for line in fixture.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
        blocks = [f"{query}\n----\n{planned(query)}" for query, _ in cases(fixture)]
        fixture.write_text("\n\n".join([head, *blocks]) + "\n", encoding="utf-8")
