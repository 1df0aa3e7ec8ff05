"""SQL types and column definitions to Arrow types and `Column`s.

`read_type` and `read_columns` read DDL text and point at exactly the word they refuse; `arrow_type` maps a
type that sqlglot has read, as in CAST. Every type of Spark that has a stored form is here; the others are
refused with UNKNOWN_TYPE and the name of what to store instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from sqlglot import exp

from millstream.errors import Condition, Span, StatementError, did_you_mean
from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ, Column
from millstream.sql.names import TYPE_WORDS, check_column_name

if TYPE_CHECKING:
    from millstream.sql.cursor import Cursor
    from millstream.sql.statements import Name

SCALARS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}
DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
TEXTS = {"CHAR": True, "CHARACTER": True, "VARCHAR": False}
NESTED = ("ARRAY", "MAP", "STRUCT")
INSTEAD: dict[str, str] = {
    "INTERVAL": "Store the length as BIGINT, for instance in microseconds.",
    "VARIANT": "Store it as STRING and read it with from_json or get_json_object.",
    "JSON": "Store it as STRING and read it with from_json or get_json_object.",
    "JSONB": "Store it as STRING and read it with from_json or get_json_object.",
    "OBJECT": "Store it as a STRUCT or as STRING.",
    "TIME": "Store it as STRING, or as BIGINT microseconds since midnight.",
    "TIMESTAMP_TZ": "Store the instant as TIMESTAMP, and the zone as STRING beside it.",
    "TIMESTAMPTZ": "Store the instant as TIMESTAMP, and the zone as STRING beside it.",
    "DATETIME": "Use TIMESTAMP, or TIMESTAMP_NTZ for local time.",
    "CLOB": "Use STRING.",
    "UUID": "Use STRING.",
    "SERIAL": "Use BIGINT and give the numbers yourself.",
    "BIGSERIAL": "Use BIGINT and give the numbers yourself.",
    "BLOB": "Use BINARY.",
    "BYTEA": "Use BINARY.",
    "VARBINARY": "Use BINARY.",
    "BOOL": "Use BOOLEAN.",
    "BIT": "Use BOOLEAN.",
    "INT2": "Use SMALLINT.",
    "INT4": "Use INT.",
    "INT8": "Use BIGINT.",
    "FLOAT4": "Use FLOAT.",
    "FLOAT8": "Use DOUBLE.",
    "DOUBLE PRECISION": "Use DOUBLE.",
    "CHARACTER VARYING": "Use VARCHAR(n) or STRING.",
    "CHAR VARYING": "Use VARCHAR(n) or STRING.",
    "VOID": "A column needs a type of its own; STRING takes anything.",
    "GEOMETRY": "Store it as BINARY (WKB) or STRING (WKT).",
    "GEOGRAPHY": "Store it as BINARY (WKB) or STRING (WKT).",
}
REFUSED_CONSTRAINTS: dict[str, str] = {
    "PRIMARY KEY": "Keys are not enforced; leave it out, and use CREATE INDEX for fast look-ups.",
    "PRIMARY": "Keys are not enforced; leave it out, and use CREATE INDEX for fast look-ups.",
    "FOREIGN KEY": "Keys are not enforced; leave it out.",
    "REFERENCES": "Keys are not enforced; leave it out.",
    "UNIQUE": "Keys are not enforced; leave it out.",
    "CHECK": "Filter the rows in the INSERT … SELECT instead.",
    "CONSTRAINT": "Only NOT NULL is kept; leave the constraint out.",
    "DEFAULT": "Give the value in the INSERT instead.",
    "GENERATED": "Compute the column in a view instead.",
    "IDENTITY": "Give the numbers yourself.",
    "AUTO_INCREMENT": "Give the numbers yourself.",
    "COLLATE": "Only the binary order of strings is kept; leave it out.",
    "MASK": "Leave it out.",
}
TABLE_CONSTRAINTS = ("PRIMARY KEY", "FOREIGN KEY", "UNIQUE", "CHECK", "CONSTRAINT")
MAX_PRECISION = 38
MAX_NESTING = 100


@dataclass(frozen=True, slots=True)
class SqlType:
    """An Arrow type, and the length that only SQL knows of."""

    arrow: pa.DataType
    max_length: int | None = None
    padded: bool = False


def read_columns(cursor: Cursor) -> tuple[Column, ...]:
    """`(name TYPE [NOT NULL] [COMMENT '…'], …)`; names are unique whatever their case."""
    cursor.expect("(")
    columns = read_column_list(cursor)
    cursor.expect(")")
    return tuple(column for _, column in columns)


def read_column_list(cursor: Cursor) -> list[tuple[Name, Column]]:
    """The same without parentheses, each column beside its name in the text."""
    columns: dict[str, tuple[Name, Column]] = {}
    while True:
        _refuse_table_constraint(cursor)
        name, column = _column(cursor)
        if name.text.lower() in columns:
            cursor.fail(
                f"column {name.text!r} is there twice",
                hint="Give each column its own name; case makes no difference.",
                at=name.span,
                condition=Condition.DUPLICATE_COLUMN,
            )
        columns[name.text.lower()] = name, column
        if not cursor.accept(","):
            return list(columns.values())


def _refuse_table_constraint(cursor: Cursor) -> None:
    word = cursor.word()
    # UNIQUE and CHECK are also good column names; a constraint goes on with a parenthesis or a name.
    if word in ("PRIMARY KEY", "FOREIGN KEY") or (word in TABLE_CONSTRAINTS and cursor.word(1) == "("):
        _refuse_constraint(cursor)
    if word == "CONSTRAINT" and cursor.word(2) in TABLE_CONSTRAINTS:
        _refuse_constraint(cursor)


def _refuse_constraint(cursor: Cursor) -> NoReturn:
    word = cursor.word()
    cursor.fail(f"{word} is not supported", hint=REFUSED_CONSTRAINTS[word], condition=Condition.NOT_SUPPORTED)


def _column(cursor: Cursor) -> tuple[Name, Column]:
    name = cursor.name("a column name")
    check_column_name(name)
    cursor.accept(":")
    type_ = read_type(cursor)
    nullable, comment = _constraints(cursor)
    return name, Column(name.text, type_.arrow, nullable, type_.max_length, type_.padded, comment)


def _constraints(cursor: Cursor) -> tuple[bool, str | None]:
    nullable, comment = True, None
    while True:
        if cursor.accept("NOT", "NULL"):
            nullable = False
        elif cursor.accept("COMMENT"):
            comment = cursor.string("the comment in quotes")
        elif cursor.word() in REFUSED_CONSTRAINTS:
            _refuse_constraint(cursor)
        elif not cursor.accept("NULL"):
            return nullable, comment


def read_type(cursor: Cursor, depth: int = 0) -> SqlType:
    """A type; CHAR and VARCHAR keep their length only at the outermost level."""
    word = cursor.word()
    if depth > MAX_NESTING:
        cursor.fail("the type is nested too deeply", hint="Use fewer levels of ARRAY, MAP and STRUCT.")
    if word in SCALARS:
        cursor.index += 1
        return SqlType(SCALARS[word])
    if word in DECIMALS:
        return SqlType(_decimal(cursor))
    if word in TEXTS and cursor.word(1) == "(":
        return _text(cursor)
    if word in NESTED:
        return SqlType(_nested(cursor, word, depth))
    raise _no_type(cursor)


def _no_type(cursor: Cursor) -> StatementError:
    word = cursor.word()
    if cursor.at_end or cursor.at_any((",", ")", "NOT", "COMMENT")):
        return cursor.error(
            f"expected a type but found {cursor.found()}", hint="Write a type behind the name, such as BIGINT."
        )
    hint = INSTEAD.get(word) or did_you_mean(cursor.source(), TYPE_WORDS)
    if word in TEXTS:
        hint = f"Give a length, as in {word}(20), or use STRING."
    return cursor.error(
        f"there is no type {cursor.source()[:40]}",
        hint=hint or f"The types are {', '.join(TYPE_WORDS)}.",
        condition=Condition.UNKNOWN_TYPE,
    )


def _decimal(cursor: Cursor) -> pa.DataType:
    first = cursor.index
    cursor.index += 1
    precision, scale = 10, 0
    if cursor.accept("("):
        precision = cursor.integer("a precision")
        scale = cursor.integer("a scale") if cursor.accept(",") else 0
        cursor.expect(")")
    return _decimal_of(precision, scale, cursor.since(first))


def _decimal_of(precision: int, scale: int, span: Span | None) -> pa.DataType:
    if not 1 <= precision <= MAX_PRECISION or scale > precision:
        raise StatementError(
            Condition.UNKNOWN_TYPE,
            f"there is no type DECIMAL({precision}, {scale})",
            hint=f"The precision is 1 to {MAX_PRECISION}, and the scale is not more than the precision.",
            span=span,
        )
    return pa.decimal128(precision, scale)


def _text(cursor: Cursor) -> SqlType:
    first = cursor.index
    padded = TEXTS[cursor.word()]
    cursor.index += 2
    length = cursor.integer("a length")
    cursor.expect(")")
    if not 1 <= length < 2**31:
        cursor.fail(
            "the length must be at least 1",
            hint="Use STRING for text of any length.",
            at=cursor.since(first),
            condition=Condition.UNKNOWN_TYPE,
        )
    return SqlType(pa.string(), length, padded)


def _nested(cursor: Cursor, word: str, depth: int) -> pa.DataType:
    cursor.index += 1
    cursor.expect("<")
    if word == "ARRAY":
        type_ = pa.list_(read_type(cursor, depth + 1).arrow)
    elif word == "MAP":
        type_ = _map(cursor, depth)
    else:
        type_ = _struct(cursor, depth)
    cursor.expect(">")
    return type_


def _map(cursor: Cursor, depth: int) -> pa.DataType:
    key_at = cursor.index
    key = read_type(cursor, depth + 1).arrow
    if pa.types.is_map(key):
        cursor.fail(
            "a map cannot be the key of a map",
            hint="Use a STRUCT or STRING key.",
            at=cursor.since(key_at),
            condition=Condition.UNKNOWN_TYPE,
        )
    cursor.expect(",")
    return pa.map_(key, read_type(cursor, depth + 1).arrow)


def _struct(cursor: Cursor, depth: int) -> pa.DataType:
    fields: dict[str, pa.Field] = {}
    while True:
        name = cursor.name("a field name")
        cursor.accept(":")
        type_ = read_type(cursor, depth + 1).arrow
        _constraints(cursor)
        if name.text.lower() in fields:
            cursor.fail(
                f"field {name.text!r} is there twice",
                hint="Give each field its own name; case makes no difference.",
                at=name.span,
                condition=Condition.DUPLICATE_COLUMN,
            )
        fields[name.text.lower()] = pa.field(name.text, type_)
        if not cursor.accept(","):
            return pa.struct(list(fields.values()))


_DTYPES: dict[exp.DType, pa.DataType] = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.CHAR: pa.string(),
    exp.DType.VARCHAR: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMP: TIMESTAMP,
    exp.DType.TIMESTAMPTZ: TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}


def arrow_type(type_: exp.DataType) -> pa.DataType:
    """The Arrow type of a type in a query's tree; UNKNOWN_TYPE for one that is not stored."""
    kind = type_.this
    if kind in _DTYPES:
        return _DTYPES[kind]
    if kind == exp.DType.DECIMAL:
        return _decimal_of(*_numbers(type_), None)
    if kind in (exp.DType.ARRAY, exp.DType.LIST) and type_.expressions:
        return pa.list_(arrow_type(type_.expressions[0]))
    if kind == exp.DType.MAP and len(type_.expressions) == 2:
        return pa.map_(arrow_type(type_.expressions[0]), arrow_type(type_.expressions[1]))
    if kind == exp.DType.STRUCT:
        return pa.struct([pa.field(f.name, arrow_type(f.args["kind"])) for f in type_.expressions])
    name = type_.sql("spark")
    raise StatementError(
        Condition.UNKNOWN_TYPE,
        f"there is no type {name}",
        hint=INSTEAD.get(name.upper()) or f"The types are {', '.join(TYPE_WORDS)}.",
    )


def _numbers(type_: exp.DataType) -> tuple[int, int]:
    numbers = [int(p.name) for p in type_.expressions]
    precision, scale, *_ = numbers + [10, 0][len(numbers) :]
    return precision, scale
