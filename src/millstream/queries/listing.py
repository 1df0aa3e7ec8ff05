"""Continuous queries for people: SHOW QUERIES, DESCRIBE, SHOW CREATE, EXPLAIN; `company` has EXPLAIN SHARED."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.catalog import queries
from millstream.plan import describe
from millstream.plan.standing import explained
from millstream.queries.company import others
from millstream.queries.known import may_share, shown_name
from millstream.queries.place import Place
from millstream.schema import ObjectKind, quote_if_needed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from millstream.catalog.queries import Standing
    from millstream.catalog.records import TableInfo
    from millstream.queries.company import Company
    from millstream.queries.known import Known
    from millstream.queries.run import Run
    from millstream.queries.running import Stepper
    from millstream.queries.together import Together
    from millstream.storage.lake import Lake

    Listed = tuple[str, str, str, str, int, str | None, int, int, str]


@dataclass
class Listing:
    """See the module's contract; `runs` are the queries that have been stepped by themselves."""

    lake: Lake
    known: Known
    together: Together
    runs: Mapping[int, Run]
    company: Company
    stepper: Stepper

    def listed(self) -> list[Listed]:
        """For SHOW QUERIES: name, kind, status, streams, rows behind, last instant, deliveries, bytes, query."""
        self.together.refresh()
        with self.lake.catalog.read() as connection:
            stored = queries.every_standing(connection)
            sizes = queries.state_sizes(connection)
        every = ((q, stored.get(q.id)) for q in self.known.every())
        return [self._listed(q, s, sizes.get(q.id, 0)) for q, s in every if s is not None]

    def _listed(self, query: TableInfo, stored: Standing, size: int) -> Listed:
        plan, place = self.known.plan_of(query), Place.from_json(stored.place)
        assert query.standing is not None
        kind = "standing insert" if plan.into else ObjectKind.STREAMING_VIEW.value
        kind = kind if query.standing.target is not None else ObjectKind.CONTINUOUS_QUERY.value
        streams = [t for s in plan.streams if (t := self.lake.catalog.table(s)) is not None]
        sequence, answered_at = place.sequence, stored.answered_at
        if may_share(query, plan):
            group = self.together.group(plan.streams[0])
            place = place if group is None or query.id not in group.plans else group.place
            number, at = self.together.last(query, plan)
            sequence, answered_at = max(sequence, number), max(answered_at or "", at) or None
        elif (run := self.runs.get(query.id)) is not None:
            # What is stored may be a few steps behind.
            place = run.place
        lag = max((self.lag(t, place) for t in streams), default=0)
        names = ", ".join(t.name for t in streams)
        return (
            shown_name(query), kind, stored.status, names, lag, answered_at, sequence, size,
            query.definition or "",
        )  # fmt: skip

    def lag(self, stream: TableInfo, place: Place) -> int:
        return self.lake.catalog.table_stats(stream).next_row_id - place.streams[stream.id].position

    def details(self, query: TableInfo) -> list[tuple[str, str]]:
        """For DESCRIBE EXTENDED: how a query is answered, and how it is doing."""
        plan = self.known.plan_of(query)
        self.together.refresh()
        with self.lake.catalog.read() as connection:
            stored = queries.standing(connection, query.id)
            size = queries.state_sizes(connection).get(query.id, 0)
        assert stored is not None
        row = self._listed(query, stored, size)
        return [
            ("status", stored.failure if stored.failure else row[2]),
            ("streams", row[3]),
            ("rows behind", str(row[4])),
            ("last answer", row[5] or "never"),
            ("deliveries", str(row[6])),
            ("state", f"{row[7]} bytes"),
            ("read at each instant", ", ".join(plan.tables) or "nothing"),
            ("shared", self.company.of(query)),
        ]

    def written(self, query: TableInfo) -> str:
        """For SHOW CREATE: the statement that would make a query again, with what it feeds."""
        target, into = self.target(query), self.known.plan_of(query).into
        name = quote_if_needed(shown_name(query) if target is None else target.name)
        if target is None:
            return f"CREATE CONTINUOUS QUERY {name} AS {query.definition}"
        if into:
            return f"INSERT INTO {name} ({', '.join(quote_if_needed(c) for c in into)}) {query.definition}"
        return f"CREATE STREAMING VIEW {name} RANGE {describe.range_text(target)} AS {query.definition}"

    def target(self, query: TableInfo) -> TableInfo | None:
        """What a query feeds; None if its deliveries go to subscribers."""
        assert query.standing is not None
        wanted = query.standing.target
        return None if wanted is None else self.lake.catalog.table(wanted)

    def explained(self, query: TableInfo) -> str:
        """For EXPLAIN: windows, instants, what is kept, and what answers."""
        run = self.runs.get(query.id)
        with self.lake.catalog.read() as connection:
            stored = queries.standing(connection, query.id)
        place = run.place if run is not None else None if stored is None else Place.from_json(stored.place)
        is_split = place is not None and place.is_split
        text = explained(shown_name(query), self.known.plan_of(query), is_split=is_split)
        return text if run is None else "\n".join([text, *self._chosen(run), *self._chunks(run)])

    def _chosen(self, run: Run) -> Iterator[str]:
        """Which plan answers, where both can, and why."""
        if not run.has_choice:
            return
        if self.stepper.plan is not None:
            yield f"Chosen by SET incremental: {self.stepper.plan}"
        elif run.company:
            yield f"Not chosen by cost: incremental, {others(run.company)}"
        elif run.choice.costs:
            costs = ", ".join(f"{plan} {cost * 1_000:.1f} ms" for plan, cost in sorted(run.choice.costs.items()))
            yield f"Chosen by cost: {run.choice.plan} ({costs} an answer)"

    def _chunks(self, run: Run) -> Iterator[str]:
        if not run.is_split:
            return
        if self.stepper.chunks is not None:
            yield f"Pre-processed in chunks: {self.stepper.chunks} (SET chunks)"
        elif run.chunks.cost is not None:
            by = f", {others(run.company)}" if run.company else ""
            yield f"Pre-processed in chunks: {run.chunks.m} ({run.chunks.cost * 1_000:.1f} ms an answer{by})"
