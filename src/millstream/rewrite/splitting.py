"""What the rules that split a query into panes know of it, and what they leave behind for the next one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millstream.plan.incremental import Static
    from millstream.plan.standing import Pairs, Sample, Window

    Types = Callable[[str, Sequence[Static]], Mapping[str, str]]


@dataclass
class Splitting:
    """A query's windows, its sample, and who tells the types of a fragment; `pairs` are made by a rule."""

    windows: Sequence[Window]
    sample: Sample
    types: Types
    is_integer_time: bool
    pairs: list[Pairs] = field(default_factory=list)


def is_window(name: str) -> bool:
    """Whether a name stands for a window."""
    return name.startswith("__ms_window_")


def number_of(name: str) -> int | None:
    """The place in the plan of the window that a name stands for."""
    return int(name.split("_")[4]) if is_window(name) else None
