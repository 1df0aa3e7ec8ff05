"""What a step leaves behind: place, state, deliveries and rows of streaming views, in one commit.

Also what is given up: rows that no instant to come can need, in memory and in streams; and state that has come to
too many pieces is made one. Steps that deliver nothing wait to be stored with a later one, where queries are
stepped together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.catalog import queries, stats, streams, views
from millstream.catalog.commits import time_text
from millstream.catalog.queries import Delivered, Piece, packed, unpacked
from millstream.plan.standing import FOR_EVER, Sampling, WindowKind
from millstream.queries import instants
from millstream.queries.assigning import assigned
from millstream.queries.run import STATES
from millstream.queries.windows import HELD, last_of
from millstream.rewrite.panes import U

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import TableInfo
    from millstream.execute.session import Spark
    from millstream.plan.standing import QueryPlan, Window
    from millstream.queries.arrivals import Arrived
    from millstream.queries.place import Place
    from millstream.queries.run import Look, Run, Step
    from millstream.storage.lake import Lake
    from millstream.storage.transaction import Transaction

KEPT_DELIVERIES = 1_000
ENTRIES, MOST_ENTRIES = 16, 64
"""Rows that a window reads again are given up in portions: so many of a step, so many in all."""
MOST_PIECES = 32
"""More pieces than this of a tier are stored as one."""
MOST_ROWS_KEPT = 131_072
"""Up to here the rows of windows stay beside states made of them, so that either plan can answer."""
MOST_UNSAVED, MOST_UNSAVED_ROWS = 64, 65_536
"""So many steps in which nothing was due, and so many rows, are done again after a crash."""
MOST_TIMES = 4
"""A state up to so many times as large as the pieces that are to become one is stored anew itself."""


class Store:
    """Commits steps."""

    def __init__(self, lake: Lake, spark: Spark) -> None:
        self._lake = lake
        self._spark = spark

    def commit(self, run: Run, step: Step, look: Look, *, is_anew: bool = False) -> None:
        """Store what a step has made, and let the query be where it leads; `is_anew` if it leads nowhere."""
        work = self._prepared(run, step, look, is_anew=is_anew)
        target = self._target(run)
        if target is None:
            self._lake.catalog.commit(work)
            if step.deliveries:
                self._lake.committed([])
        else:
            transaction = self._lake.transaction()
            try:
                if any(rows.num_rows for _, rows in step.deliveries):
                    transaction.append(target, self._kept(step, target, run.plan.into, transaction))
                transaction.also(work)
            except BaseException:
                transaction.rollback()
                raise
            transaction.commit()
        self._follow(run, step)
        run.note_saved()

    def commit_all(self, made: Sequence[tuple[Run, Step]], look: Look) -> None:
        """Store the steps of queries that feed nothing, in one commit."""
        works = [self._prepared(run, step, look) for run, step in made]

        def work(commit: Commit) -> None:
            for one in works:
                one(commit)

        self._lake.catalog.commit(work)
        for run, step in made:
            self._follow(run, step)
            run.note_saved()
        if any(step.deliveries for _, step in made):
            self._lake.committed([])

    def commit_due(self, made: Sequence[tuple[Run, Step]], look: Look) -> None:
        """Store the steps that have delivered something, in one commit, and let the others wait for a later one.

        What is stored of those who wait is an earlier place with the state of that place, and the stream keeps the
        rows behind it; so it is as if the steps since then had not been, should they be lost.
        """
        parted: dict[bool, list[tuple[Run, Step]]] = {False: [], True: []}
        for one in made:
            parted[_can_wait(*one)].append(one)
        if parted[False]:
            self.commit_all(parted[False], look)
        for run, step in parted[True]:
            self._tidy_up(run, step, look)
            for number, parts in step.new.items():
                run.unsaved.setdefault(number, []).extend(parts)
            self._follow(run, step)

    def _tidy_up(self, run: Run, step: Step, look: Look) -> None:
        """Give up what is no longer needed where a step leads."""
        self._note_rows(run, step)
        self._trim(run, step.place)
        self._low(run, step, look)

    def _prepared(self, run: Run, step: Step, look: Look, *, is_anew: bool = False) -> Callable[[Commit], bool]:
        """What a step leaves in the catalogue, but for the rows of a table."""
        place = step.place
        if not is_anew:
            self._tidy_up(run, step, look)
        step.new |= {n: [*parts, *step.new.get(n, [])] for n, parts in run.unsaved.items()}
        place.snapshot = look.snapshot.id
        made = self._delivered(step, look)
        place.sequence += len(step.deliveries)
        answer = None
        if step.answer is not None:
            is_delivered = bool(made) and step.deliveries[-1][1] is step.answer
            answer = made[-1].data if is_delivered else packed(step.answer)
        target = self._target(run)

        def work(commit: Commit) -> bool:
            if not views.is_there(commit.connection, run.query.id):
                return False
            at = time_text(commit.now) if made else None
            queries.moved_on(commit, run.query.id, place.to_json(), answer, at)
            queries.deliver(commit, run.query.id, made, KEPT_DELIVERIES)
            self._store_pieces(commit, run, step, _passed(run.plan, place))
            for stream_id, seen in place.streams.items():
                streams.set_consumer(commit, stream_id, queries.consumer(run.query.id), seen.low)
            if target is not None and step.deliveries and not run.plan.into:
                _advance(commit, target, _next_instant(run.plan, place, step))
            return True

        return work

    @staticmethod
    def _follow(run: Run, step: Step) -> None:
        """Let a query be where a step has led it."""
        run.place, run.answer = step.place, step.answer if step.answer is not None else run.answer

    def _target(self, run: Run) -> TableInfo | None:
        assert run.query.standing is not None
        target = run.query.standing.target
        if target is None:
            return None
        return next((t for t in self._lake.catalog.tables().values() if t.id == target), None)

    def _kept(self, step: Step, target: TableInfo, into: tuple[str, ...], transaction: Transaction) -> pa.Table:
        """The rows for a table: of a standing insert as the table has them, of a streaming view with instants."""
        rows = pa.concat_tables([rows for _, rows in step.deliveries])
        if into:
            return transaction.stamped(target, assigned(rows, target, into, self._spark))
        times = np.concatenate([np.full(rows.num_rows, at.tau) for at, rows in step.deliveries])
        assert target.time is not None
        return rows.append_column(target.time.column, pa.array(times, pa.int64())).cast(target.schema.arrow)

    @staticmethod
    def _delivered(step: Step, look: Look) -> list[Delivered]:
        """What is kept of a step's deliveries."""
        first = step.place.sequence + 1
        gone = max(0, len(step.deliveries) - KEPT_DELIVERIES)
        return [
            Delivered(first + i, at.tau, look.snapshot.id, at.skipped, packed(rows))
            for i, (at, rows) in enumerate(step.deliveries[gone:], gone)
        ]

    def _store_pieces(self, commit: Commit, run: Run, step: Step, passed: int) -> None:
        for number in step.rewritten:
            self._rewrite(commit, run, number)
        for number, parts in step.new.items():
            if number in step.rewritten:
                continue
            rows = pa.concat_tables(parts)
            queries.add_pieces(commit, run.query.id, [Piece(number, 0, _leave(rows), packed(rows))])
            tiers = run.pieces.setdefault(number, Counter())
            tiers[0] += 1
            if tiers[0] > MOST_PIECES:
                self._tidy(commit, run, number, passed)

    def _rewrite(self, commit: Commit, run: Run, number: int) -> None:
        """Store a state anew, as one piece."""
        queries.remove_pieces(commit, run.query.id, number)
        rows = self._whole(run, number)
        run.pieces[number] = Counter()
        if rows is not None and rows.num_rows:
            queries.add_pieces(commit, run.query.id, [Piece(number, 0, _leave(rows), packed(rows))])
            run.pieces[number][0] = 1

    def _tidy(self, commit: Commit, run: Run, number: int, passed: int) -> None:
        """Make few pieces of many: all of a tier one of the next; or of a small state one."""
        queries.remove_pieces(commit, run.query.id, number, until=passed)
        tiers = run.pieces[number]
        for tier in range(64):
            if tiers[tier] <= MOST_PIECES:
                return
            found = queries.pieces(commit.connection, run.query.id, number, tier)
            rows = sum(len(p.data) for p in found)
            if number >= STATES or self._size(run, number) <= MOST_TIMES * rows:
                self._rewrite(commit, run, number)
                return
            merged = pa.concat_tables([unpacked(p.data) for p in found])
            merged = merged.filter(pc.greater(merged.column(U), passed))
            queries.remove_pieces(commit, run.query.id, number, tier=tier)
            tiers[tier] = 0
            if merged.num_rows:
                queries.add_pieces(commit, run.query.id, [Piece(number, tier + 1, _leave(merged), packed(merged))])
                tiers[tier + 1] += 1

    @staticmethod
    def _size(run: Run, number: int) -> int:
        """How many bytes a state has in memory, about; what is stored of it is compressed."""
        return run.states[number].rows * 8 if number in run.states else 0

    @staticmethod
    def _whole(run: Run, number: int) -> pa.Table | None:
        if number >= STATES:
            held = run.held.get(number - STATES)
            return None if held is None else held.rows
        pieces = list(run.states[number].tables()) if number in run.states else []
        return pa.concat_tables(pieces) if pieces else None

    @staticmethod
    def _trim(run: Run, place: Place) -> None:
        """Give up what no instant to come can need."""
        x = _passed(run.plan, place)
        tau = x if run.plan.sample.is_by_time else -(2**62)
        for held in run.held.values():
            held.trim(x, tau)
        for state in run.states.values():
            state.expire(x)

    def _low(self, run: Run, step: Step, look: Look) -> None:
        """Move on what rows of streams are still needed."""
        place = step.place
        for stream_id, seen in place.streams.items():
            needed = [seen.position]
            if place.is_counted:
                needed.append(step.lows.get(stream_id, seen.position))
                needed += [h.first for h in run.held.values() if h.window.stream == stream_id]
            for number, window in enumerate(run.plan.windows):
                if window.stream != stream_id:
                    continue
                if self._reads_rows(run, number):
                    needed.append(self._first_needed(run, place, number, seen.position))
                elif run.is_split and window.kind is WindowKind.ROWS and not _is_arrival(look, stream_id):
                    # Should rows come out of order, they are needed themselves.
                    needed.append(max(seen.low, seen.position - window.rows - run.plan.sample.step))
            seen.low = min(needed)

    @staticmethod
    def _reads_rows(run: Run, number: int) -> bool:
        """Whether answers come from the stream's own rows."""
        if run.plan.sample.kind is Sampling.COMMIT:
            return False
        if run.plan.windows[number].kind in HELD:
            return False
        return not run.is_split or run.has_choice or number in run.plan.paired | run.plan.mixed

    @staticmethod
    def _first_needed(run: Run, place: Place, number: int, position: int) -> int:
        ledger, x = place.ledger.get(number, []), _passed(run.plan, place)
        kept = [entry for entry in ledger if entry[2] > x] if run.plan.sample.is_by_time else ledger
        place.ledger[number] = kept
        return kept[0][0] if kept else position

    def _note_rows(self, run: Run, step: Step) -> None:
        """Enter the rows of this step into the ledger of each window that reads them again."""
        place, by_stream = step.place, {a.stream: a for a in step.came}
        for number, window in enumerate(run.plan.windows):
            if self._reads_rows(run, number) and len(by_stream[window.stream].ids):
                entries = place.ledger.setdefault(number, [])
                entries += _entries(window, by_stream[window.stream])
                _shorten(entries)
        rows = sum(last - first + 1 for entries in place.ledger.values() for first, last, _ in entries)
        if run.is_split and rows > MOST_ROWS_KEPT and not run.plan.pairs and not run.plan.mixed:
            # Where so many rows are in the windows, states are the cheaper way for sure.
            place.is_rowless = run.place.is_rowless = True
            place.ledger.clear()


def _can_wait(run: Run, step: Step) -> bool:
    """Whether a step need not be stored yet: nobody has heard of it, and little would have to be done again."""
    if step.deliveries or step.rewritten or any(w.is_kept for w in run.plan.windows):
        return False
    pieces = max((len(p) for p in run.unsaved.values()), default=0)
    rows = sum(seen.position - run.saved[s] for s, seen in step.place.streams.items())
    return pieces < MOST_UNSAVED and rows <= MOST_UNSAVED_ROWS


def _is_arrival(look: Look, stream_id: int) -> bool:
    time = look.tables[stream_id].time
    return time is not None and time.is_arrival


def _leave(rows: pa.Table) -> int:
    """After which place none of some rows of a state is needed."""
    return int(pc.max(rows.column(U)).as_py()) if U in rows.column_names else FOR_EVER


def _passed(plan: QueryPlan, place: Place) -> int:
    """The last place on the axis of instants that nobody will ask for again."""
    mark = instants.mark_of(place)
    if plan.sample.is_by_time and mark is not None:
        return mark - 1
    return -FOR_EVER if plan.sample.is_by_time or place.answered is None else place.answered


def _entries(window: Window, found: Arrived) -> list[tuple[int, int, int]]:
    """New rows for the ledger, some together: the first and the last, and until when they are needed."""
    size = -(-len(found.ids) // ENTRIES)
    leave = last_of(window, found.times) if window.length else np.full(len(found.ids), FOR_EVER)
    made = []
    for low in range(0, len(found.ids), size):
        first, last = int(found.ids[low]), int(found.ids[min(low + size, len(found.ids)) - 1])
        made.append((first, last, int(leave[low : low + size].max())))
    return made


def _shorten(entries: list[tuple[int, int, int]]) -> None:
    """Keep the ledger short: small neighbours become one, needed as long as either."""
    if len(entries) <= MOST_ENTRIES:
        return
    size = 2 * (entries[-1][1] - entries[0][0] + 1) // MOST_ENTRIES
    made = entries[:1]
    for entry in entries[1:]:
        if entry[1] - made[-1][0] < size:
            made[-1] = (made[-1][0], entry[1], max(made[-1][2], entry[2]))
        else:
            made.append(entry)
    entries[:] = made


def _next_instant(plan: QueryPlan, place: Place, step: Step) -> int:
    if plan.is_monotone:
        # More rows of the newest time may come.
        return instants.mark_of(place) or step.deliveries[-1][0].tau
    if place.next is not None and plan.sample.kind in (Sampling.INTERVAL, Sampling.ENDS):
        return place.next
    # The newest rows may make another instant of the same time.
    return step.deliveries[-1][0].tau + (plan.sample.kind is not Sampling.ROWS)


def _advance(commit: Commit, target: TableInfo, to: int) -> None:
    now = streams.state_of(commit, target.id)
    if now.advanced_to is None or now.advanced_to < to:
        streams.save(commit, target.id, replace(now, advanced_to=to))
        position = commit.stats_of(target.id, stats.column_types(target)).next_row_id
        queries.note_advance(commit, target.id, position, to)
        commit.changed(f"deleted_from_table:{target.id}")
