"""Statements that parse today and run in a later part of the road map: what they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Condition, StatementError
from millstream.schema import ObjectKind
from millstream.sql import statements as st

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.catalog.records import TableInfo

LATER: dict[type[st.Statement], tuple[str, int]] = {
    st.CreateView: ("continuous views", 3),
    st.RefreshView: ("continuous views", 3),
    st.CreateContinuousQuery: ("continuous queries", 4),
    st.CreateStreamingView: ("streaming views", 4),
    st.Subscribe: ("subscriptions", 4),
    st.Pause: ("continuous queries", 4),
    st.Resume: ("continuous queries", 4),
    st.CreateReceptor: ("receptors", 7),
}
LATER_KINDS = {
    ObjectKind.CONTINUOUS_VIEW: 3,
    ObjectKind.CONTINUOUS_QUERY: 4,
    ObjectKind.STREAMING_VIEW: 4,
    ObjectKind.RECEPTOR: 7,
    ObjectKind.EMITTER: 7,
}


def check_not_standing(source: st.Query, tables: Mapping[str, TableInfo]) -> None:
    """Refuse an INSERT … SELECT from a stream: it would go on for ever, which comes with continuous queries."""
    for reference in source.tables:
        table = tables.get(reference.name.lower())
        if table is not None and table.kind is ObjectKind.STREAM:
            raise StatementError(
                Condition.NOT_SUPPORTED_YET,
                f"{table.name!r} is a stream, and standing inserts are not built yet",
                detail="They come with continuous queries, part 4 of the road map.",
                hint="Insert the rows into both until then.",
                span=reference.span.shifted(source.offset),
            )


def not_supported_yet(statement: st.Statement) -> StatementError:
    """The answer to a statement that parses today and runs in a later part."""
    what, part = LATER.get(type(statement), (type(statement).__name__, 4))
    if isinstance(statement, st.Drop):
        what, part = f"{statement.kind.value} objects", LATER_KINDS.get(statement.kind, 4)
    if isinstance(statement, st.Explain):
        what, part = f"EXPLAIN {statement.mode or 'of a name'}", 3
    return StatementError(
        Condition.NOT_SUPPORTED_YET,
        f"{what} are not built yet" if what[-1] == "s" else f"{what} is not built yet",
        detail=f"The statement is understood; it comes with part {part} of the road map.",
        hint="Tables, streams and streaming tables, and all of Spark's SELECT work today.",
    )
