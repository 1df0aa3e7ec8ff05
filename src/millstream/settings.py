"""SET and SHOW SETTINGS: the few things that can be switched while a database is open.

A setting holds for the open database, all threads of it, until it is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Condition, StatementError, did_you_mean
from millstream.queries.front import INCREMENTAL as CHOICES
from millstream.schedule import join_policies
from millstream.schedule.eddy import POLICIES
from millstream.views.keeping import EXECUTORS

if TYPE_CHECKING:
    from millstream.queries.front import ContinuousQueries
    from millstream.sql.statements import Name
    from millstream.storage.lake import Lake
    from millstream.views.keeping import Keeper

USE_INDEXES, EXECUTOR, INCREMENTAL, CHUNKS = "use_indexes", "executor", "incremental", "chunks"
EDDY, JOIN_POLICY = "eddy", "join_policy"
DEFAULT = "default"
"""What takes a setting of one query back."""
MOST_CHUNKS = 1_024
SWITCHES = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
NAMES = (USE_INDEXES, EXECUTOR, INCREMENTAL, CHUNKS, EDDY, JOIN_POLICY)


class Settings:
    """The settings of one open database."""

    def __init__(self, lake: Lake, keeper: Keeper, queries: ContinuousQueries) -> None:
        self._lake = lake
        self._keeper = keeper
        self._queries = queries

    def set(self, name: Name, value: str, query: Name | None = None) -> None:
        """Change a setting, for all or for one query; refuses names and values that are not known."""
        said = value.strip().strip("'\"").lower()
        if query is not None and name.text.lower() != JOIN_POLICY:
            raise _not_a_value(
                query, f"{name.text} is the same for all queries", f"Write SET {name.text} = {said} without FOR."
            )
        match name.text.lower():
            case "use_indexes":
                self._lake.chooser.enabled = self._switched(name, said)
            case "executor":
                self._keeper.executor = self._chosen(name, said.replace("-", "_"), EXECUTORS)
            case "incremental":
                self._queries.incremental = self._chosen(name, said, CHOICES)
            case "eddy":
                self._queries.eddy = self._chosen(name, said, tuple(POLICIES))
            case "join_policy":
                self._schedule(name, said, query)
            case "chunks":
                self._queries.chunks = self._number(name, said)
            case _:
                raise StatementError(
                    Condition.UNKNOWN_OPTION,
                    f"no setting {name.text!r}",
                    hint=did_you_mean(name.text, NAMES) or "SHOW SETTINGS lists the settings there are.",
                    span=name.span,
                )

    def _schedule(self, name: Name, said: str, query: Name | None) -> None:
        policies = tuple(join_policies.POLICIES)
        if query is None:
            self._queries.join_policy = self._chosen(name, said, policies)
        else:
            policy = None if said == DEFAULT else self._chosen(name, said, (*policies, DEFAULT))
            self._queries.schedule_join(query, policy)

    @staticmethod
    def _switched(name: Name, said: str) -> bool:
        if said not in SWITCHES:
            raise _not_a_value(
                name, f"{name.text} is on or off, not {said}", f"Write SET {USE_INDEXES} = on, or = off."
            )
        return SWITCHES[said]

    @staticmethod
    def _chosen(name: Name, said: str, choices: tuple[str, ...]) -> str:
        if said not in choices:
            *others, last = choices
            hint = f"It is {', '.join(others)} or {last}."
            raise _not_a_value(name, f"no {name.text.lower()} {said!r}", hint)
        return said

    @staticmethod
    def _number(name: Name, said: str) -> int | None:
        if said == "auto":
            return None
        if not said.isdecimal() or not 1 <= int(said) <= MOST_CHUNKS:
            raise _not_a_value(
                name,
                f"{name.text} is auto or a number up to {MOST_CHUNKS}, not {said}",
                "Write SET chunks = auto.",
            )
        return int(said)

    def shown(self) -> list[tuple[str, str]]:
        """Every setting and its value."""
        return [
            (CHUNKS, "auto" if self._queries.chunks is None else str(self._queries.chunks)),
            (EDDY, self._queries.eddy),
            (EXECUTOR, self._keeper.executor),
            (INCREMENTAL, self._queries.incremental),
            (JOIN_POLICY, self._queries.join_policy),
            (USE_INDEXES, "on" if self._lake.chooser.enabled else "off"),
        ]


def _not_a_value(name: Name, message: str, hint: str) -> StatementError:
    return StatementError(Condition.INVALID_ARGUMENT, message, hint=hint, span=name.span)
