"""The catalogue's tables: DuckLake 1.0's, to the letter, and Millstream's own beside them.

`create` makes an empty catalogue, `upgrade` brings an older one up to `FORMAT` step by step. The
format version is Millstream's; DuckLake's own version stands in `ducklake_metadata`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from millstream.errors import Condition, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.catalog.store import Connection

FORMAT = 5
DUCKLAKE_VERSION = "1.0"

DUCKLAKE_TABLES = """
CREATE TABLE ducklake_metadata (key VARCHAR NOT NULL, value VARCHAR NOT NULL, scope VARCHAR, scope_id BIGINT);
CREATE TABLE ducklake_snapshot (snapshot_id BIGINT PRIMARY KEY, snapshot_time VARCHAR, schema_version BIGINT,
  next_catalog_id BIGINT, next_file_id BIGINT);
CREATE TABLE ducklake_snapshot_changes (snapshot_id BIGINT PRIMARY KEY, changes_made VARCHAR, author VARCHAR,
  commit_message VARCHAR, commit_extra_info VARCHAR);
CREATE TABLE ducklake_schema (schema_id BIGINT PRIMARY KEY, schema_uuid VARCHAR, begin_snapshot BIGINT,
  end_snapshot BIGINT, schema_name VARCHAR, path VARCHAR, path_is_relative BIGINT);
CREATE TABLE ducklake_table (table_id BIGINT, table_uuid VARCHAR, begin_snapshot BIGINT, end_snapshot BIGINT,
  schema_id BIGINT, table_name VARCHAR, path VARCHAR, path_is_relative BIGINT);
CREATE TABLE ducklake_view (view_id BIGINT, view_uuid VARCHAR, begin_snapshot BIGINT, end_snapshot BIGINT,
  schema_id BIGINT, view_name VARCHAR, dialect VARCHAR, sql VARCHAR, column_aliases VARCHAR);
CREATE TABLE ducklake_tag (object_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, key VARCHAR,
  value VARCHAR);
CREATE TABLE ducklake_column_tag (table_id BIGINT, column_id BIGINT, begin_snapshot BIGINT,
  end_snapshot BIGINT, key VARCHAR, value VARCHAR);
CREATE TABLE ducklake_data_file (data_file_id BIGINT PRIMARY KEY, table_id BIGINT, begin_snapshot BIGINT,
  end_snapshot BIGINT, file_order BIGINT, path VARCHAR, path_is_relative BIGINT, file_format VARCHAR,
  record_count BIGINT, file_size_bytes BIGINT, footer_size BIGINT, row_id_start BIGINT, partition_id BIGINT,
  encryption_key VARCHAR, mapping_id BIGINT, partial_max BIGINT);
CREATE TABLE ducklake_file_column_stats (data_file_id BIGINT, table_id BIGINT, column_id BIGINT,
  column_size_bytes BIGINT, value_count BIGINT, null_count BIGINT, min_value VARCHAR, max_value VARCHAR,
  contains_nan BIGINT, extra_stats VARCHAR);
CREATE TABLE ducklake_file_variant_stats (data_file_id BIGINT, table_id BIGINT, column_id BIGINT,
  variant_path VARCHAR, shredded_type VARCHAR, column_size_bytes BIGINT, value_count BIGINT,
  null_count BIGINT, min_value VARCHAR, max_value VARCHAR, contains_nan BIGINT, extra_stats VARCHAR);
CREATE TABLE ducklake_delete_file (delete_file_id BIGINT PRIMARY KEY, table_id BIGINT, begin_snapshot BIGINT,
  end_snapshot BIGINT, data_file_id BIGINT, path VARCHAR, path_is_relative BIGINT, format VARCHAR,
  delete_count BIGINT, file_size_bytes BIGINT, footer_size BIGINT, encryption_key VARCHAR, partial_max BIGINT);
CREATE TABLE ducklake_column (column_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, table_id BIGINT,
  column_order BIGINT, column_name VARCHAR, column_type VARCHAR, initial_default VARCHAR,
  default_value VARCHAR, nulls_allowed BIGINT, parent_column BIGINT, default_value_type VARCHAR,
  default_value_dialect VARCHAR);
CREATE TABLE ducklake_table_stats (table_id BIGINT, record_count BIGINT, next_row_id BIGINT,
  file_size_bytes BIGINT);
CREATE TABLE ducklake_table_column_stats (table_id BIGINT, column_id BIGINT, contains_null BIGINT,
  contains_nan BIGINT, min_value VARCHAR, max_value VARCHAR, extra_stats VARCHAR);
CREATE TABLE ducklake_partition_info (partition_id BIGINT, table_id BIGINT, begin_snapshot BIGINT,
  end_snapshot BIGINT);
CREATE TABLE ducklake_partition_column (partition_id BIGINT, table_id BIGINT, partition_key_index BIGINT,
  column_id BIGINT, transform VARCHAR);
CREATE TABLE ducklake_file_partition_value (data_file_id BIGINT, table_id BIGINT, partition_key_index BIGINT,
  partition_value VARCHAR);
CREATE TABLE ducklake_files_scheduled_for_deletion (data_file_id BIGINT, path VARCHAR,
  path_is_relative BIGINT, schedule_start VARCHAR);
CREATE TABLE ducklake_inlined_data_tables (table_id BIGINT, table_name VARCHAR, schema_version BIGINT);
CREATE TABLE ducklake_column_mapping (mapping_id BIGINT, table_id BIGINT, type VARCHAR);
CREATE TABLE ducklake_name_mapping (mapping_id BIGINT, column_id BIGINT, source_name VARCHAR,
  target_field_id BIGINT, parent_column BIGINT, is_partition BIGINT);
CREATE TABLE ducklake_schema_versions (begin_snapshot BIGINT, schema_version BIGINT, table_id BIGINT);
CREATE TABLE ducklake_macro (schema_id BIGINT, macro_id BIGINT, macro_name VARCHAR, begin_snapshot BIGINT,
  end_snapshot BIGINT);
CREATE TABLE ducklake_macro_impl (macro_id BIGINT, impl_id BIGINT, dialect VARCHAR, sql VARCHAR, type VARCHAR);
CREATE TABLE ducklake_macro_parameters (macro_id BIGINT, impl_id BIGINT, column_id BIGINT,
  parameter_name VARCHAR, parameter_type VARCHAR, default_value VARCHAR, default_value_type VARCHAR);
CREATE TABLE ducklake_sort_info (sort_id BIGINT, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT);
CREATE TABLE ducklake_sort_expression (sort_id BIGINT, table_id BIGINT, sort_key_index BIGINT,
  expression VARCHAR, dialect VARCHAR, sort_direction VARCHAR, null_order VARCHAR);
"""

MILLSTREAM_TABLES = """
CREATE TABLE millstream_meta (key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL);
CREATE TABLE millstream_stream (table_id BIGINT PRIMARY KEY, max_time BIGINT, advanced_to BIGINT,
  late_rows BIGINT NOT NULL, received_rows BIGINT NOT NULL, dropped_to BIGINT NOT NULL);
CREATE TABLE millstream_consumer (stream_id BIGINT NOT NULL, name VARCHAR NOT NULL, position BIGINT NOT NULL,
  PRIMARY KEY (stream_id, name));
CREATE INDEX millstream_data_file ON ducklake_data_file (table_id, end_snapshot);
CREATE INDEX millstream_file_stats ON ducklake_file_column_stats (table_id, column_id);
CREATE INDEX millstream_file_stats_by_file ON ducklake_file_column_stats (data_file_id);
CREATE INDEX millstream_column_stats ON ducklake_table_column_stats (table_id);
CREATE INDEX millstream_snapshot_time ON ducklake_snapshot (snapshot_time);
"""

FORMAT_2 = """
ALTER TABLE millstream_stream ADD COLUMN refused_rows BIGINT NOT NULL DEFAULT 0;
CREATE TABLE millstream_segment (data_file_id BIGINT PRIMARY KEY, table_id BIGINT NOT NULL, low BIGINT NOT NULL,
  high BIGINT NOT NULL);
CREATE INDEX millstream_segment_time ON millstream_segment (table_id, high, low);
CREATE TABLE millstream_index (index_id BIGINT PRIMARY KEY, index_name VARCHAR NOT NULL, table_id BIGINT NOT NULL,
  column_id BIGINT NOT NULL, method VARCHAR NOT NULL, begin_snapshot BIGINT NOT NULL, end_snapshot BIGINT);
CREATE TABLE millstream_index_copy (index_id BIGINT NOT NULL, data_file_id BIGINT NOT NULL, path VARCHAR NOT NULL,
  file_size_bytes BIGINT NOT NULL, row_groups VARCHAR NOT NULL, PRIMARY KEY (index_id, data_file_id));
CREATE INDEX millstream_index_copy_by_file ON millstream_index_copy (data_file_id);
CREATE TABLE millstream_discarded_copy (path VARCHAR PRIMARY KEY);
CREATE TABLE millstream_view (view_id BIGINT PRIMARY KEY, view_name VARCHAR NOT NULL, sql VARCHAR NOT NULL,
  begin_snapshot BIGINT NOT NULL, end_snapshot BIGINT);
"""
"""The time of each segment of streaming tables, value indices and the sorted copies they are made of, views."""

FORMAT_3 = """
CREATE TABLE millstream_continuous_view (view_id BIGINT PRIMARY KEY, view_columns VARCHAR NOT NULL,
  plan VARCHAR NOT NULL, states VARCHAR NOT NULL, statics VARCHAR NOT NULL, has_history BIGINT NOT NULL);
CREATE TABLE millstream_view_progress (view_id BIGINT PRIMARY KEY, failure VARCHAR, refreshed_at VARCHAR);
"""
"""Continuous views: their plans and the tables of their state; how they are doing."""

FORMAT_4 = """
CREATE TABLE millstream_query (view_id BIGINT PRIMARY KEY, query_columns VARCHAR NOT NULL, plan VARCHAR NOT NULL,
  target BIGINT);
CREATE TABLE millstream_query_progress (view_id BIGINT PRIMARY KEY, status VARCHAR NOT NULL, failure VARCHAR,
  place VARCHAR NOT NULL, answer BLOB, answered_at VARCHAR);
CREATE TABLE millstream_delivery (view_id BIGINT NOT NULL, sequence BIGINT NOT NULL, instant BIGINT NOT NULL,
  snapshot_id BIGINT NOT NULL, skipped BIGINT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (view_id, sequence));
CREATE TABLE millstream_piece (piece_id INTEGER PRIMARY KEY, view_id BIGINT NOT NULL, part BIGINT NOT NULL,
  tier BIGINT NOT NULL, leave BIGINT NOT NULL, data BLOB NOT NULL);
CREATE INDEX millstream_piece_of ON millstream_piece (view_id, part, tier);
CREATE TABLE millstream_advance (stream_id BIGINT NOT NULL, position BIGINT NOT NULL, advanced_to BIGINT NOT NULL);
"""
"""Continuous queries: plans, places, deliveries, pieces of state; where among its rows a stream was advanced."""

FORMAT_5 = """
CREATE TABLE millstream_group (group_id INTEGER PRIMARY KEY, key VARCHAR NOT NULL UNIQUE, place VARCHAR NOT NULL);
CREATE TABLE millstream_member (member_id INTEGER PRIMARY KEY AUTOINCREMENT, group_id BIGINT NOT NULL,
  view_id BIGINT NOT NULL UNIQUE, since VARCHAR NOT NULL, sequence BIGINT NOT NULL);
CREATE INDEX millstream_member_of ON millstream_member (group_id, member_id);
CREATE TABLE millstream_block (block_id INTEGER PRIMARY KEY AUTOINCREMENT, group_id BIGINT NOT NULL,
  snapshot_id BIGINT NOT NULL, committed_at VARCHAR NOT NULL, rows BLOB NOT NULL, marks BLOB NOT NULL);
CREATE INDEX millstream_block_of ON millstream_block (group_id, block_id);
"""
"""Queries that are answered together: their groups, who is in them, and blocks of deliveries to many queries."""


def is_empty(connection: Connection) -> bool:
    """Whether nothing was ever committed to this database file: a crash may leave it like that."""
    return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def create(connection: Connection, now: str, data_path: str) -> None:
    """An empty catalogue: snapshot 0 with the schema `main`."""
    _run(connection, DUCKLAKE_TABLES + MILLSTREAM_TABLES + FORMAT_2 + FORMAT_3 + FORMAT_4 + FORMAT_5)
    connection.executemany(
        "INSERT INTO ducklake_metadata (key, value) VALUES (?, ?)",
        [
            ("version", DUCKLAKE_VERSION),
            ("created_by", "Millstream"),
            ("data_path", data_path),
            ("encrypted", "false"),
        ],
    )
    connection.execute("INSERT INTO millstream_meta (key, value) VALUES ('format', ?)", (str(FORMAT),))
    connection.execute("INSERT INTO ducklake_snapshot VALUES (0, ?, 0, 1, 0)", (now,))
    connection.execute(
        "INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) VALUES (0, ?)",
        ('created_schema:"main"',),
    )
    connection.execute(
        "INSERT INTO ducklake_schema VALUES (0, ?, 0, NULL, 'main', 'main/', 1)", (str(uuid.uuid4()),)
    )


def _run(connection: Connection, script: str) -> None:
    """Run statements one by one inside the caller's transaction, which `executescript` would end."""
    for statement in script.split(";"):
        connection.execute(statement)


def set_data_path(connection: Connection, data_path: str) -> None:
    """Record where the files are now: a database directory may be moved between two openings."""
    connection.execute("UPDATE ducklake_metadata SET value = ? WHERE key = 'data_path'", (data_path,))


def data_path(connection: Connection) -> str:
    row = connection.execute("SELECT value FROM ducklake_metadata WHERE key = 'data_path'").fetchone()
    return str(row[0])


def format_version(connection: Connection) -> int:
    tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'millstream_meta'").fetchone()
    if tables is None:
        raise MachineError(
            Condition.NOT_A_DATABASE,
            "the catalogue is not one of Millstream's",
            hint="Give the directory of a database, or a new or empty directory to create one in.",
        )
    row = connection.execute("SELECT value FROM millstream_meta WHERE key = 'format'").fetchone()
    return int(row[0])


MIGRATIONS: dict[int, Callable[[Connection], None]] = {
    1: lambda connection: _run(connection, FORMAT_2),
    2: lambda connection: _run(connection, FORMAT_3),
    3: lambda connection: _run(connection, FORMAT_4),
    4: lambda connection: _run(connection, FORMAT_5),
}
"""From the format version of the key to the next."""


def upgrade(connection: Connection) -> None:
    """Run the migrations from the catalogue's format up to ours, in the caller's transaction."""
    found = format_version(connection)
    _check_not_newer(found)
    for version in range(found, FORMAT):
        MIGRATIONS[version](connection)
    if found != FORMAT:
        connection.execute("UPDATE millstream_meta SET value = ? WHERE key = 'format'", (str(FORMAT),))


def check_current(connection: Connection) -> None:
    """Refuse a catalogue that this Millstream cannot read as it is."""
    found = format_version(connection)
    _check_not_newer(found)
    if found < FORMAT:
        raise MachineError(
            Condition.FORMAT_TOO_OLD,
            f"the database has format {found}, this Millstream reads {FORMAT}",
            hint="Open it once for writing, which upgrades it.",
        )


def _check_not_newer(found: int) -> None:
    if found > FORMAT:
        raise MachineError(
            Condition.FORMAT_TOO_NEW,
            f"the database has format {found}, this Millstream reads up to {FORMAT}",
            hint="Upgrade Millstream to the version that wrote this database.",
        )
