"""A Petri net: baskets are places, what consumes them are transitions.

A place counts tokens and knows since when the oldest one waits. A transition fires when its place
holds enough tokens, or holds any for long enough, or is asked for; firing takes the tokens it saw and
may put tokens elsewhere. `Net.step` fires everything that is due once, in the order of declaration, so
a test that steps it by hand sees the same every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.clock import Clock


RETRY_AFTER = timedelta(seconds=10)


@dataclass
class Place:
    """Tokens that wait, and since when."""

    name: str
    tokens: int = 0
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Firing:
    """When a transition fires: at so many tokens, or when the oldest is so old; either is enough."""

    tokens: int | None = None
    age: timedelta | None = None

    def is_due(self, place: Place, now: datetime) -> bool:
        if not place.tokens:
            return False
        if self.tokens is not None and place.tokens >= self.tokens:
            return True
        return self.age is not None and place.since is not None and now - place.since >= self.age

    def due_at(self, place: Place) -> datetime | None:
        """When age alone will make it due; None if it will not."""
        if not place.tokens or self.age is None or place.since is None:
            return None
        return place.since + self.age


@dataclass
class Transition:
    """A named action on the tokens of one place. `fired` and `failure` tell how it has been going."""

    name: str
    place: Place
    firing: Firing
    action: Callable[[int], None]
    fired: int = 0
    failure: Exception | None = None
    demanded: bool = field(default=False)
    retry_at: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        if self.retry_at is not None and now < self.retry_at:
            return False
        return (self.demanded and self.place.tokens > 0) or self.firing.is_due(self.place, now)

    def due_at(self) -> datetime | None:
        """When time alone will make it due; None if it will not."""
        by_age = self.firing.due_at(self.place)
        if self.retry_at is None or not self.place.tokens:
            return by_age
        if by_age is None or self.firing.is_due(self.place, self.retry_at):
            return self.retry_at
        return by_age


class Net:
    """Places and transitions; safe to put tokens into from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places: dict[str, Place] = {}
        self._transitions: list[Transition] = []
        self._lock = threading.RLock()
        self._stepping = threading.Lock()
        self.changed: Callable[[], None] = lambda: None

    @property
    def transitions(self) -> tuple[Transition, ...]:
        return tuple(self._transitions)

    def place(self, name: str) -> Place:
        with self._lock:
            return self._places.setdefault(name, Place(name))

    def transition(self, name: str, place: str, firing: Firing, action: Callable[[int], None]) -> Transition:
        made = Transition(name, self.place(place), firing, action)
        self._transitions.append(made)
        return made

    def put(self, place: str, tokens: int = 1) -> None:
        """Add tokens; whoever waits for the net is told."""
        if tokens <= 0:
            return
        with self._lock:
            target = self.place(place)
            target.tokens += tokens
            target.since = target.since or self._clock.now()
        self.changed()

    def demand(self, name: str) -> None:
        """Make a transition due now, if its place holds anything."""
        with self._lock:
            for transition in self._transitions:
                transition.demanded = transition.demanded or transition.name == name
        self.changed()

    def step(self) -> list[str]:
        """Fire every transition that is due, once; returns the names of those that fired."""
        with self._stepping:
            return [t.name for t in self._transitions if self._fire_if_due(t)]

    def _fire_if_due(self, transition: Transition) -> bool:
        with self._lock:
            place = transition.place
            due = transition.is_due(self._clock.now())
            transition.demanded = False
            if not due:
                return False
            tokens, since = place.tokens, place.since
            place.tokens, place.since = 0, None
        try:
            transition.action(tokens)
        except BaseException as error:
            with self._lock:
                place.tokens += tokens
                place.since = since
            if not isinstance(error, Exception):
                self.changed()
                raise
            # A failed action must not end the process: the tokens are there again, to be tried after a pause.
            transition.failure = error
            transition.retry_at = self._clock.now() + RETRY_AFTER
            self.changed()
            return False
        transition.fired += 1
        transition.failure = transition.retry_at = None
        return True

    def run_until_idle(self, most: int = 1_000) -> list[str]:
        """Step until nothing is due."""
        fired: list[str] = []
        for _ in range(most):
            now = self.step()
            if not now:
                break
            fired += now
        return fired

    def next_due(self) -> datetime | None:
        """When the next transition will be due by age; None if none waits."""
        with self._lock:
            times = [t.due_at() for t in self._transitions]
        return min((t for t in times if t is not None), default=None)
