"""Definitions and transactions: the DuckLake 1.0 catalogue in a SQL database.

    store       a SQL database (SQLite): connections, transactions, its errors as ours
    layout      the tables of the catalogue, its format version, migrations
    types       Arrow types and values ↔ the catalogue's text
    records     what is in the catalogue, as frozen records
    commits     group commit: many writers, one transaction, one snapshot
    tables, files, inlined, streams, snapshots
                one theme each: what they read, and what they change within a commit
    catalog     the front: current snapshot, names → records, commit

Knows nothing of SQL text, plans, Spark or Parquet.
"""
