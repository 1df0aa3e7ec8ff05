"""One step of a group: a basket goes through the operators that its queries share, once, and one commit delivers.

Nothing here is done for each row, and nothing that touches Spark or the disk for each query: a basket costs one
pass, one job at most for tests and one for expressions that no operator knows, one block, one commit. A query
whose test or expression fails on a row leaves the group in the same commit, at the place before the basket.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.catalog import groups, queries, streams, views
from millstream.catalog.commits import time_text
from millstream.catalog.groups import BlockInfo
from millstream.errors import MillstreamError
from millstream.plan.incremental import stream_name
from millstream.plan.standing import ROW_NUMBER, TIME
from millstream.queries import matching
from millstream.queries.blocks import Block, block_of, expression_name, fold
from millstream.queries.evaluating import Asked, evaluate
from millstream.queries.groups import key_of
from millstream.queries.place import Place
from millstream.schedule.eddy import drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.catalog.commits import Commit
    from millstream.execute.session import Spark
    from millstream.queries.answering import Answers
    from millstream.queries.arrivals import Arrived
    from millstream.queries.evaluating import Values
    from millstream.queries.feeding import Feeder
    from millstream.queries.groups import Group
    from millstream.queries.known import Known
    from millstream.queries.run import Look
    from millstream.schema import Schema
    from millstream.storage.lake import Lake

    Numbers = NDArray[np.int64]

BOOLEAN = pa.bool_()


class StaleError(Exception):
    """A group is stored in another place than the one it was stepped from, or nobody is in it any more."""


@dataclass
class Basket:
    """What a step has made of a basket so far: rows that are wanted, whose they are, and who has failed."""

    rows: pa.Table
    queries: Numbers
    places: Numbers
    failed: dict[int, MillstreamError] = field(default_factory=dict)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        self.queries, self.places = self.queries[kept], self.places[kept]

    def own(self) -> dict[int, tuple[int, int]]:
        """Where the pairs of each query begin and end."""
        if not len(self.queries):
            return {}
        starts = np.flatnonzero(np.concatenate([[True], self.queries[1:] != self.queries[:-1]]))
        ends = np.append(starts[1:], len(self.queries))
        names = self.queries[starts].tolist()
        return dict(zip(names, zip(starts.tolist(), ends.tolist(), strict=True), strict=True))

    def fail(self, failed: Mapping[int, MillstreamError]) -> None:
        if failed:
            self.failed |= failed
            self.keep(~np.isin(self.queries, list(failed)))


@dataclass(frozen=True)
class Asking:
    """Expressions that some queries ask for: the columns of a block for them, and the rows that want them."""

    names: tuple[str, ...]
    texts: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    queries: tuple[int, ...]
    stretches: tuple[tuple[int, int], ...]
    """Where the pairs of each query are in the basket."""
    places: Numbers

    @property
    def asked(self) -> list[Asked]:
        return [Asked(t, k, self.places) for t, k in zip(self.texts, self.kinds, strict=True)]

    def alone(self, query: int, basket: Basket) -> Asking:
        """The same for one of the queries."""
        stretch = self.stretches[self.queries.index(query)]
        return replace(self, queries=(query,), stretches=(stretch,), places=_places(basket, [stretch]))


def _askings(group: Group, basket: Basket, schema_of: Callable[[int], Schema | None]) -> list[Asking]:
    """What is asked for beside columns; those who ask for the same have it together."""
    own, found = basket.own() if group.asking else {}, dict[tuple[str, ...], list[int]]()
    kinds: dict[tuple[str, ...], tuple[pa.DataType, ...]] = {}
    for query in group.asking & own.keys():
        shared, schema = group.shared(query), schema_of(query)
        if schema is None:
            # It was dropped a moment ago: nobody will ask for its rows.
            continue
        of_query = tuple(f.type for f, o in zip(schema.arrow, shared.outputs, strict=True) if o.text)
        key = (*shared.texts, *(str(k) for k in of_query))
        found.setdefault(key, []).append(query)
        kinds[key] = of_query
    made = []
    for key, who in found.items():
        stretches = tuple(own[q] for q in who)
        names = tuple(expression_name(i, k) for i, k in enumerate(kinds[key]))
        texts = key[: len(names)]
        made.append(Asking(names, texts, kinds[key], tuple(who), stretches, _places(basket, stretches)))
    return made


def _places(basket: Basket, stretches: Sequence[tuple[int, int]]) -> Numbers:
    """The rows of some pairs, each once."""
    return np.unique(np.concatenate([basket.places[low:high] for low, high in stretches]))


class Sharer:
    """Steps groups; not for several threads on one group at once."""

    def __init__(self, lake: Lake, known: Known, answers: Answers, spark: Spark, feeder: Feeder) -> None:
        self._lake = lake
        self._known = known
        self._answers = answers
        self._spark = spark
        self._feeder = feeder

    def step(self, group: Group, look: Look) -> tuple[int, list[int]]:
        """Take in what has come; the number of deliveries, and the queries that have failed and left."""
        place = group.place.copy()
        found = self._feeder.arrived(place, look, group.stream)
        place.streams[group.stream] = found.seen
        basket = self._matched(group, look, found)
        self._begin_where_they_joined(group, basket)
        self._test(group, basket)
        rows = self._with_expressions(group, basket)
        block = self._block(group, rows, basket, look)
        self._commit(group, place, found, block, basket.failed)
        return self._moved_on(group, place, block, basket.failed)

    # The operators

    def _matched(self, group: Group, look: Look, found: Arrived) -> Basket:
        table = look.tables[group.stream]
        if not len(found.ids) or not group.plans:
            return Basket(table.schema.arrow.empty_table(), *np.empty((2, 0), np.int64))
        matcher = group.selections.ready()
        feed = self._feeder.feed(
            group.as_run(table), group.place, look, [found], 0, is_new=True, most_here=self._answers.most_here
        )
        if 0 in feed.large:
            group.order = drawn(group.policy, matcher.operators)
            made = matching.in_spark(self._lake, self._spark.session, matcher, feed.large[0], group.order)
            matching.learn(group.policy, made.matches.passed)
        else:
            made, group.order = matching.here(matcher, feed.arrow[stream_name(0)], group.policy)
        return Basket(made.rows, made.matches.queries, made.matches.rows)

    @staticmethod
    def _begin_where_they_joined(group: Group, basket: Basket) -> None:
        """Those who have joined behind rows of the basket do not have these."""
        if not group.since:
            return
        late = np.array(sorted(group.since), np.int64)
        first = np.array([group.since[q] for q in late.tolist()], np.int64)
        at = np.minimum(np.searchsorted(late, basket.queries), len(late) - 1)
        ids = basket.rows.column(ROW_NUMBER).to_numpy()[basket.places] if len(basket.queries) else basket.places
        basket.keep((late[at] != basket.queries) | (ids >= first[at]))

    # What operators do not know

    def _test(self, group: Group, basket: Basket) -> None:
        """Let those with other tests keep only the rows that pass them."""
        own = {q: s for q, s in basket.own().items() if q in group.tested} if group.tested else {}
        if not own:
            return
        by_text: dict[str, list[int]] = {}
        for query in own:
            by_text.setdefault(group.shared(query).test or "", []).append(query)
        asked = [(_tested(text, _places(basket, [own[q] for q in who])), who) for text, who in by_text.items()]
        kept, failed = np.ones(len(basket.queries), bool), dict[int, MillstreamError]()
        for one, who, values in self._answered(basket, own, asked):
            if isinstance(values, MillstreamError):
                failed |= dict.fromkeys(who, values)
                continue
            passes = values.to_numpy()
            for query in who:
                low, high = own[query]
                kept[low:high] = passes[np.searchsorted(one.places, basket.places[low:high])]
        basket.keep(kept)
        basket.fail(failed)

    def _answered(
        self, basket: Basket, own: Mapping[int, tuple[int, int]], asked: Sequence[tuple[Asked, list[int]]]
    ) -> Iterator[tuple[Asked, list[int], Values]]:
        """What tests say, and to whom; one that fails is asked again, apart for those who have other rows."""
        apart: dict[tuple[str, bytes], tuple[Asked, list[int]]] = {}
        found = evaluate(self._answers, basket.rows, [one for one, _ in asked])
        for (one, who), values in zip(asked, found, strict=True):
            if not isinstance(values, MillstreamError) or len(who) == 1:
                yield one, who, values
                continue
            for query in who:
                alone = replace(one, places=_places(basket, [own[query]]))
                key = (one.text, alone.places.tobytes())
                apart.setdefault(key, (alone, []))[1].append(query)
        found = evaluate(self._answers, basket.rows, [one for one, _ in apart.values()])
        yield from ((one, who, values) for (one, who), values in zip(apart.values(), found, strict=True))

    def _schema(self, query_id: int) -> Schema | None:
        found = self._known.get(query_id)
        return None if found is None else found.schema

    def _with_expressions(self, group: Group, basket: Basket) -> pa.Table:
        """The rows for a block: those of the stream, behind them some of their own for those who ask for more."""
        rows = basket.rows.select([n for n in basket.rows.column_names if group.columns[n] or n == TIME])
        asking = _askings(group, basket, self._schema)
        found = evaluate(self._answers, basket.rows, [a for one in asking for a in one.asked])
        if any(isinstance(values, MillstreamError) for values in found):
            basket.fail(self._failing(basket, asking))
            return self._with_expressions(group, basket)
        parts, at, values = [rows], rows.num_rows, iter(found)
        for one in asking:
            part = rows.take(pa.array(one.places))
            for name in one.names:
                part = part.append_column(name, next(values))
            for low, high in one.stretches:
                basket.places[low:high] = at + np.searchsorted(one.places, basket.places[low:high])
            parts.append(part)
            at += part.num_rows
        return pa.concat_tables(parts, promote_options="default")

    def _failing(self, basket: Basket, asking: Sequence[Asking]) -> dict[int, MillstreamError]:
        """Those on whose own rows an expression fails."""
        apart = [one.alone(query, basket) for one in asking for query in one.queries]
        found = iter(evaluate(self._answers, basket.rows, [a for one in apart for a in one.asked]))
        errors = [[v for _ in one.names if isinstance(v := next(found), MillstreamError)] for one in apart]
        return {one.queries[0]: e[0] for one, e in zip(apart, errors, strict=True) if e}

    # What is left behind

    @staticmethod
    def _block(group: Group, rows: pa.Table, basket: Basket, look: Look) -> Block | None:
        if not len(basket.queries):
            return None
        instants = rows.column(TIME).to_numpy()[basket.places]
        made = block_of(rows, basket.queries, basket.places, instants, group.counters)
        return replace(made, rows=made.rows.drop_columns([TIME]), snapshot=look.snapshot.id)

    def _commit(
        self,
        group: Group,
        place: Place,
        found: Arrived,
        block: Block | None,
        failed: Mapping[int, MillstreamError],
    ) -> None:
        def work(commit: Commit) -> tuple[BlockInfo, Block] | None:
            check_in_force(commit, group)
            groups.moved_on(commit, group.id, place.to_json())
            name = groups.consumer(group.id)
            streams.set_consumer(commit, group.stream, name, place.streams[group.stream].position)
            for query, error in failed.items():
                take_out(commit, group, query, found.before.position)
                queries.set_status(commit, query, queries.FAILED, told(error))
            if block is None:
                return None
            made = replace(block, at=time_text(commit.now))
            stored = made.stored()
            size = len(stored.rows) + len(stored.marks)
            return BlockInfo(groups.add_block(commit, group.id, stored), size), made

        added = self._lake.catalog.commit(work)
        if added is not None:
            group.blocks.added(*added)
            group.had(added[1])
            self._tidy(group)
            self._lake.committed([])

    def _tidy(self, group: Group) -> None:
        """Make the oldest blocks one when there are too many."""
        ids = group.blocks.to_fold()
        if not ids:
            return
        there = {q.id for q in self._known.every()}
        last = {q: number for q, (number, _) in dict(group.blocks.last_numbers()).items() if q in there}
        made = fold([b for b in (group.blocks.get(i) for i in ids) if b is not None], last).stored()
        self._lake.catalog.commit(lambda commit: groups.fold(commit, ids, made))
        group.blocks.folded(ids, BlockInfo(ids[-1], len(made.rows) + len(made.marks)), last)

    @staticmethod
    def _moved_on(
        group: Group, place: Place, block: Block | None, failed: Mapping[int, MillstreamError]
    ) -> tuple[int, list[int]]:
        group.place = place
        group.since = {q: s for q, s in group.since.items() if s > group.seen.position}
        counts = np.empty(0, np.int64) if block is None else block.counts()
        for query in failed:
            group.remove(query)
        return int(counts.sum()), list(failed)


def _tested(text: str, places: Numbers) -> Asked:
    return Asked(f"coalesce({text}, false)", BOOLEAN, places)


def check_in_force(commit: Commit, group: Group) -> None:
    """Statements may have come in between: whoever stands in another place now is to be looked at anew."""
    stored = groups.find(commit.connection, key_of(group.stream))
    if stored is None or Place.from_json(stored.place) != group.place:
        raise StaleError
    if groups.is_empty(commit.connection, group.id):
        raise StaleError


def take_out(commit: Commit, group: Group, query: int, position: int) -> None:
    """Let a query go on by itself from where the group is; `position` is that of the rows that it has had."""
    if not views.is_there(commit.connection, query):
        return
    groups.leave(commit, query)
    if query in group.since:
        # It has had nothing: its own place is still that of its beginning.
        position = group.since[query]
    else:
        seen = replace(group.seen, position=position, low=position, born=position)
        place = Place(streams={group.stream: seen}, sequence=group.counters[query])
        queries.moved_on(commit, query, place.to_json(), None, group.answered_at.get(query))
    streams.set_consumer(commit, group.stream, queries.consumer(query), position)


def told(error: MillstreamError) -> str:
    """An error as a failed query is marked with it."""
    return f"{error.message} ({error.detail})" if error.detail else error.message
