"""Rows on disk: Parquet segments, inlined rows, and their upkeep, over the catalogue.

    lock          one writing process for a database directory
    statistics    Arrow columns → what the catalogue records of them
    segment       Arrow rows → a durable Parquet file
    inline        Arrow rows ↔ rows in the catalogue
    prune         which files can hold a match
    period        a streaming table's visible part, and its compartments
    index         value indices: sorted copies of segments
    scan          a table at a snapshot: its files and inlined rows, pruned
    watermark     a stream's time, row by row
    transaction   changes to several tables, committed as one snapshot
    upkeep        flush, compaction, expiry, basket clean-up, orphans
    retention     whole compartments dropped when the period slides
    reader        a statement's view of it all at one moment
    continuous/   continuous reads: the hot part, and the access interface
    lake          the front: a database directory, opened

Knows nothing of SQL text, plans or Spark.
"""
