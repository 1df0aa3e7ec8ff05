"""How far a row of one stream and one of the other are away from each other: by time, or by rows.

The distance of two rows is the smallest window that has both at some instant. A *slice* is all that is further
away than `low` and at most `high`. For a batch of rows and a slice a ruler tells which rows of the other stream
may be in it, so that no others have to be read, and for pairs how far they are.

- `ByTime`: from the earlier time of the two to when both have entered.
- `ByRows`: how many rows of either stream stand from a row on when the later of the two comes; rows of the same
  time stand in the order in which they came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from millstream.plan.standing import FOR_EVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from millstream.queries.lines import Line
    from millstream.queries.parcels import Places, Rows
    from millstream.queries.slices import Unit

    Numbers = NDArray[np.int64]
    Spans = tuple[tuple[int, int], ...]

EVERYTHING: Spans = ((-FOR_EVER, FOR_EVER),)


class Ruler(Protocol):
    """Measures from the rows of a unit's batch to those of the other stream."""

    def times(self, unit: Unit) -> Spans:
        """The stretches of the other stream's time that may be in the slice."""
        ...

    def numbers(self, unit: Unit) -> Spans:
        """The numbers, from the first to the last, of rows that may be."""
        ...

    def only(self, unit: Unit) -> Ruler:
        """What of the ruler is needed for the slice."""
        ...

    def may_be_in(self, unit: Unit, ids: Numbers, times: Numbers) -> NDArray[np.bool_]:
        """Which rows of the other stream may be in the slice."""
        ...

    def away(self, batch: Rows, others: Rows, mine: Places, theirs: Places) -> Numbers:
        """How far pairs are, as places in the batch and among the others."""
        ...


@dataclass(frozen=True)
class ByTime:
    """See the module's contract."""

    def times(self, unit: Unit) -> Spans:
        times, enter, low, high = unit.batch.times, unit.batch.enter, unit.low, unit.high
        away = enter - times
        stays = (away > low) & (away <= high)
        older = (int(enter.min()) - high, int(np.where(stays, enter, enter - low).max()))
        newer = (int(times.min()) + low, min(int(times.max()) + high, unit.reach.mark))
        # A late row has entered later than its time says.
        late = () if unit.reach.late_span is None else (unit.reach.late_span,)
        return tuple(span for span in (older, newer, *late) if span[0] <= span[1])

    def numbers(self, unit: Unit) -> Spans:  # noqa: ARG002 - it goes by time
        return EVERYTHING

    def only(self, unit: Unit) -> ByTime:  # noqa: ARG002 - there is nothing
        return self

    def may_be_in(self, unit: Unit, ids: Numbers, times: Numbers) -> NDArray[np.bool_]:  # noqa: ARG002
        return within(times, self.times(unit))

    def away(self, batch: Rows, others: Rows, mine: Places, theirs: Places) -> Numbers:
        entered = np.maximum(batch.enter[mine], others.enter[theirs])
        return np.asarray(entered - np.minimum(batch.times[mine], others.times[theirs]), np.int64)


@dataclass(frozen=True)
class ByRows:
    """See the module's contract; the lines of the batch's stream and of the other, up to the turn's last rows."""

    own: Line
    other: Line

    def times(self, unit: Unit) -> Spans:  # noqa: ARG002 - it goes by places
        return EVERYTHING

    def numbers(self, unit: Unit) -> Spans:
        return self.other.numbers(self._places(unit))

    def only(self, unit: Unit) -> ByRows:
        own = self.own.places(unit.batch.ids)
        return ByRows(
            self.own.only(((int(own.min()), int(own.max()) + 1),)),
            self.other.only(self._places(unit)),
        )

    def may_be_in(self, unit: Unit, ids: Numbers, times: Numbers) -> NDArray[np.bool_]:  # noqa: ARG002
        spans = self._places(unit)
        return within(self.other.places(ids), tuple((first, end - 1) for first, end in spans))

    def _places(self, unit: Unit) -> Spans:
        """The places of the other stream, from the first to behind the last, that may be in the slice."""
        times, own = unit.batch.times, self.own.places(unit.batch.ids)
        first = max(0, int(self.other.upto(times).min()) - unit.high)
        if int((self.own.upto(times) - own).max()) > unit.low:
            # So many rows of one time that some are far away whatever their partners are.
            return ((first, self.other.end),)
        # When rows of the turn itself come, rows of the batch may be far away.
        is_far = self.own.end - int(own.min()) > unit.low
        newer = (self.other.end - len(self.other.times), self.other.end) if is_far else (0, 0)
        return (first, self.other.end - unit.low), newer

    def away(self, batch: Rows, others: Rows, mine: Places, theirs: Places) -> Numbers:
        at = np.maximum(batch.times[mine], others.times[theirs])
        own = self.own.upto(at) - self.own.places(batch.ids)[mine]
        their = self.other.upto(at) - self.other.places(others.ids)[theirs]
        return np.asarray(np.maximum(own, their), np.int64)


def within(values: Numbers, spans: Spans) -> NDArray[np.bool_]:
    """Which values are in one of some spans, both ends included."""
    found = np.zeros(len(values), bool)
    for low, high in spans:
        found |= (values >= low) & (values <= high)
    return found
