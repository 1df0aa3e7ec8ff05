"""How far a long job is: a record for each step, handed to whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` (None: not known) `unit`s of a stage; equal numbers mean that it is over."""

    stage: str
    done: int
    total: int | None
    unit: str


Listener = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """The listener of those who do not want to know."""
