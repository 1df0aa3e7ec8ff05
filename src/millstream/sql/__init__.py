"""SQL text to statements, and nothing beyond: no catalogue, no Spark.

    text ── split ──► statement texts ── dialect.tokenize ──► tokens ── Cursor ──► Statement
             quotes and comments                                │                     ▲
             respected                                          └─ query: Query ──────┘
                                                                   sqlglot's tree, base tables, spans

Statements are read by hand-written readers over a cursor of sqlglot tokens, one module a family
(`create`, `continuous`, `manipulate`, `copy`, `inspect`, `control`); queries and expressions inside them by
the Millstream dialect of sqlglot. Every span is an offset into the statement's own text. All that is
refused is refused with a `StatementError` that points at the words at fault.
"""

from __future__ import annotations

from millstream.sql.parse import parse, parse_one
from millstream.sql.split import is_complete, split

__all__ = ["is_complete", "parse", "parse_one", "split"]
