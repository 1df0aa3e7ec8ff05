"""The words for kinds of objects, as DROP, ALTER, SHOW CREATE and others name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import did_you_mean
from millstream.schema import ObjectKind

if TYPE_CHECKING:
    from millstream.sql.cursor import Cursor

KINDS: dict[tuple[str, ...], ObjectKind] = {
    ("STREAMING", "TABLE"): ObjectKind.STREAMING_TABLE,
    ("STREAMING", "VIEW"): ObjectKind.STREAMING_VIEW,
    ("CONTINUOUS", "VIEW"): ObjectKind.CONTINUOUS_VIEW,
    ("CONTINUOUS", "QUERY"): ObjectKind.CONTINUOUS_QUERY,
    ("FOREIGN", "TABLE"): ObjectKind.STREAM,
    ("TABLE",): ObjectKind.TABLE,
    ("STREAM",): ObjectKind.STREAM,
    ("VIEW",): ObjectKind.VIEW,
    ("QUERY",): ObjectKind.CONTINUOUS_QUERY,
    ("INDEX",): ObjectKind.INDEX,
    ("RECEPTOR",): ObjectKind.RECEPTOR,
    ("EMITTER",): ObjectKind.EMITTER,
}


def read_kind(cursor: Cursor) -> ObjectKind:
    """The kind that stands here; SYNTAX_ERROR if none does."""
    for words, kind in KINDS.items():
        if cursor.accept(*words):
            return kind
    names = [" ".join(words) for words in KINDS]
    hint = did_you_mean(cursor.source(), [w for words in KINDS for w in words])
    raise cursor.error(
        f"expected a kind of object but found {cursor.found()}", hint=hint or f"The kinds are {', '.join(names)}."
    )


def skip_kind(cursor: Cursor) -> None:
    """Step over a kind if a name follows it; a lone `stream` is itself a name."""
    for words in KINDS:
        if cursor.at(*words) and cursor.is_name(len(words)):
            cursor.index += len(words)
            return
