"""The words of the language, and which names are taken.

`KEYWORDS` is for completion; `RESERVED_WORDS` cannot name anything unless backquoted; names with a
`RESERVED_PREFIXES` prefix belong to Millstream and its catalogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Condition, StatementError

if TYPE_CHECKING:
    from millstream.sql.statements import Name

STATEMENT_WORDS: tuple[str, ...] = (
    "ADVANCE", "ALTER", "BEGIN", "COMMIT", "COPY", "CREATE", "DELETE", "DESC", "DESCRIBE", "DROP", "EXPLAIN",
    "FROM", "INSERT", "PAUSE", "REFRESH", "RESUME", "ROLLBACK", "SELECT", "SET", "SHOW", "START", "SUBSCRIBE",
    "TABLE", "TRUNCATE", "UPDATE", "VALUES", "WITH",
)  # fmt: skip

# Statements of Spark and PostgreSQL that people will try here.
FOREIGN_STATEMENT_WORDS: frozenset[str] = frozenset({
    "ADD", "ANALYZE", "CACHE", "CALL", "CLEAR", "COMMENT", "DECLARE", "EXECUTE", "GRANT", "LIST", "LOAD",
    "MERGE", "MSCK", "OPTIMIZE", "PREPARE", "REPAIR", "RESET", "REVOKE", "UNCACHE", "UNSET", "USE", "VACUUM",
})  # fmt: skip

CLAUSE_WORDS: tuple[str, ...] = (
    "ALL", "AND", "AS", "AS OF", "ASC", "BETWEEN", "BTREE", "BY", "CASCADE", "CASE", "CAST", "CHANGES", "COLUMNS",
    "COMMENT", "CONTINUOUS", "CROSS", "CSV", "DELIMITER", "DESC", "DISTINCT", "EDDY", "ELSE", "EMIT", "EMITTERS",
    "END", "EXCEPT", "EXISTS", "EXTENDED", "FALSE", "FILES", "FOREIGN", "FORMAT", "FULL", "GROUP BY", "HASH",
    "HAVING", "HEADER", "HISTORY", "HOP", "IF", "IN", "INCREMENTAL", "INDEX", "INDEXES", "INNER", "INTERSECT",
    "INTERVAL", "INTO", "IS", "JOBS", "JOIN", "JOINS", "JSON", "LANDMARK", "LATERAL", "LEFT", "LIKE", "LIMIT",
    "LOGICAL", "NEW", "NOT", "NULL", "OFFSET", "ON", "OPTIONS", "OR", "ORDER BY", "OVER", "OVERLAPS", "OVERWRITE",
    "PARQUET", "PARTITION BY", "PREV", "QUERIES", "QUERY", "RANGE", "REALTIME", "RECEPTOR", "RECEPTORS",
    "REPLACE", "RESET", "RIGHT", "ROWS", "SAMPLE", "SERVER", "SESSION", "SETTINGS", "SHARED", "SNAPSHOTS",
    "SPARK", "STREAM", "STREAMING", "STREAMS", "TABLES", "THEN", "TIMESTAMP BY", "TO", "TRANSACTION", "TRUE",
    "TUMBLE", "UNBOUNDED", "UNION", "USING", "VALID", "VERSION", "VIEW", "VIEWS", "WATERMARK", "WHEN", "WHERE",
    "WINDOW",
)  # fmt: skip

TYPE_WORDS: tuple[str, ...] = (
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "CHAR", "DATE", "DEC", "DECIMAL", "DOUBLE", "FLOAT", "INT",
    "INTEGER", "LONG", "MAP", "NUMERIC", "REAL", "SHORT", "SMALLINT", "STRING", "STRUCT", "TIMESTAMP",
    "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TINYINT", "VARCHAR",
)  # fmt: skip

KEYWORDS: tuple[str, ...] = tuple(sorted({*STATEMENT_WORDS, *CLAUSE_WORDS, *TYPE_WORDS}))

RESERVED_WORDS: frozenset[str] = frozenset({
    "AND", "AS", "CASE", "CREATE", "CROSS", "DISTINCT", "DROP", "ELSE", "EXCEPT", "EXISTS", "FALSE", "FROM",
    "FULL", "GROUP", "HAVING", "IN", "INNER", "INSERT", "INTERSECT", "INTO", "IS", "JOIN", "LATERAL", "LIKE",
    "NATURAL", "NOT", "NULL", "ON", "OR", "ORDER", "SELECT", "SET", "TABLE", "THEN", "TO", "TRUE", "UNION",
    "USING", "VALUES", "WHEN", "WHERE", "WITH",
})  # fmt: skip

RESERVED_PREFIXES: tuple[str, ...] = ("_ducklake", "ducklake_", "millstream_", "ms_")
RESERVED_COLUMN_PREFIXES: tuple[str, ...] = ("_ducklake",)


def check_name(name: Name) -> None:
    """Raise RESERVED_NAME for an object's name that belongs to Millstream."""
    _check(name, RESERVED_PREFIXES)


def check_column_name(name: Name) -> None:
    """Raise RESERVED_NAME for a column's name that belongs to the catalogue."""
    _check(name, RESERVED_COLUMN_PREFIXES)


def _check(name: Name, prefixes: tuple[str, ...]) -> None:
    if not name.text.lower().startswith(prefixes):
        return
    prefix = next(p for p in prefixes if name.text.lower().startswith(p))
    raise StatementError(
        Condition.RESERVED_NAME,
        f"names that start with {prefix!r} are kept for Millstream",
        hint="Choose another name.",
        span=name.span,
    )
