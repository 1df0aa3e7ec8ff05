"""How far a query is, as plain data: goes into the catalogue as JSON with every commit, and comes back equal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.plan.standing import FOR_EVER


@dataclass
class Seen:
    """Where a query is in a stream: rows below `position` have been seen; `low` is the first row still needed.

    `max_time`, `advanced_to` are the stream's at that place; `mark` is the watermark there.
    """

    position: int
    low: int
    max_time: int | None = None
    advanced_to: int | None = None
    mark: int | None = None
    born: int = 0
    """Rows below this number were there before the query: they are in windows, but make no instants."""
    born_time: int | None = None
    """The largest time among these, if later rows may be older."""


@dataclass
class Place:
    """See the module's contract."""

    streams: dict[int, Seen] = field(default_factory=dict)
    created_at: int | None = None
    """The watermark when the query was made: instants come after it."""
    next: int | None = None
    """The next instant of SAMPLE INTERVAL, TUMBLE and HOP, once there is one."""
    begun: list[int] = field(default_factory=list)
    """Streams whose first row has come, as far as these say what the first instant is."""
    samples: int = 0
    accepted: int = 0
    largest: int | None = None
    unsampled: int = 0
    """The first row that has come since the last of SAMPLE ROWS."""
    pending: list[int] = field(default_factory=list)
    """Times of accepted rows that the watermark has not passed (SAMPLE REALTIME)."""
    answered: int | None = None
    """The last instant answered, on the axis of the sample."""
    passed: int | None = None
    """The watermark of all streams at the last step: what is monotone has been delivered up to there."""
    first_late: int | None = None
    """The time of the first row, where it came late and counts as on time all the same."""
    filled: list[tuple[int, int]] = field(default_factory=list)
    """When windows are not empty, from the next instant on; short gaps are not told."""
    late: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By stream: late rows, and the watermark each met, as long as instants before that are not answered."""
    ledger: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By window: stretches of rows still needed: first row, last row, and after which time none of them is."""
    sequence: int = 0
    snapshot: int = 0
    """The version of the database that its state was made of."""
    is_split: bool = False
    """Whether the query is answered from states of panes."""
    is_counted: bool = False
    """Whether it joins the newest rows of streams, and these are kept in the streams for it."""
    is_rowless: bool = False
    """Whether rows of its windows have been given up, so that it can be answered from states alone."""

    def copy(self) -> Place:
        """One to go on with; this one stays as it is."""
        return replace(
            self,
            streams={k: replace(s) for k, s in self.streams.items()},
            begun=list(self.begun),
            pending=list(self.pending),
            filled=list(self.filled),
            late={k: list(v) for k, v in self.late.items()},
            ledger={k: list(v) for k, v in self.ledger.items()},
        )

    def to_json(self) -> str:
        made = vars(self) | {"streams": {k: vars(s) for k, s in self.streams.items()}}
        return json.dumps(made, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Place:
        made: dict[str, Any] = json.loads(text)
        made["streams"] = {int(k): Seen(**v) for k, v in made["streams"].items()}
        made.setdefault("begun", [] if made["next"] is None else list(made["streams"]))
        until = made.pop("covered", None)
        # Before stretches were told apart, they were taken to be one.
        made["filled"] = [tuple(x) for x in made.get("filled", [] if until is None else [(-FOR_EVER, until)])]
        for name in ("late", "ledger"):
            made[name] = {int(k): [tuple(x) for x in v] for k, v in made[name].items()}
        return cls(**made)
