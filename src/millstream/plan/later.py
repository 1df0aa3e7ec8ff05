"""Statements that parse today and run in a later part of the road map: what they are told."""

from __future__ import annotations

from millstream.errors import Condition, StatementError
from millstream.schema import ObjectKind
from millstream.sql import statements as st

LATER: dict[type[st.Statement], tuple[str, int]] = {
    st.CreateReceptor: ("receptors", 7),
}
LATER_KINDS = {
    ObjectKind.RECEPTOR: 7,
    ObjectKind.EMITTER: 7,
}


def not_supported_yet(statement: st.Statement) -> StatementError:
    """The answer to a statement that parses today and runs in a later part."""
    what, part = LATER.get(type(statement), (type(statement).__name__, 5))
    if isinstance(statement, st.Drop):
        what, part = f"{statement.kind.value} objects", LATER_KINDS.get(statement.kind, 5)
    if isinstance(statement, st.Explain):
        what, part = f"EXPLAIN {statement.mode or 'of a name'}", 5
    return StatementError(
        Condition.NOT_SUPPORTED_YET,
        f"{what} are not built yet" if what[-1] == "s" else f"{what} is not built yet",
        detail=f"The statement is understood; it comes with part {part} of the road map.",
        hint="Tables, streams, continuous views and continuous queries work today.",
    )
