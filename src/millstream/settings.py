"""SET and SHOW SETTINGS: the few things that can be switched while a database is open.

A setting holds for the open database, all threads of it, until it is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Condition, StatementError, did_you_mean

if TYPE_CHECKING:
    from millstream.sql.statements import Name
    from millstream.storage.lake import Lake

USE_INDEXES = "use_indexes"
SWITCHES = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class Settings:
    """The settings of one open database."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def set(self, name: Name, value: str) -> None:
        """Change a setting; refuses names and values that are not known."""
        if name.text.lower() != USE_INDEXES:
            raise StatementError(
                Condition.UNKNOWN_OPTION,
                f"no setting {name.text!r}",
                hint=did_you_mean(name.text, [USE_INDEXES]) or "SHOW SETTINGS lists the settings there are.",
                span=name.span,
            )
        switched = SWITCHES.get(value.strip().strip("'\"").lower())
        if switched is None:
            raise StatementError(
                Condition.INVALID_ARGUMENT,
                f"{name.text} is on or off, not {value}",
                hint=f"Write SET {USE_INDEXES} = on, or = off.",
                span=name.span,
            )
        self._lake.chooser.enabled = switched

    def shown(self) -> list[tuple[str, str]]:
        """Every setting and its value."""
        return [(USE_INDEXES, "on" if self._lake.chooser.enabled else "off")]
