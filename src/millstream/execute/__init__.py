"""Queries and writes on Spark, through the API that classic PySpark and Spark Connect share.

    java       a Java that Spark can run on
    session    Spark, started when first needed
    types      Arrow types → Spark types
    relation   a scan (files and inlined rows) → a Spark data frame under a name
    query      a bound query → a data frame; its rows → Arrow
    write      a data frame → segments, written by Spark's tasks
    failures   Spark's errors → ours; no Java stack trace gets through

Knows nothing of SQL text beyond the text it is given, nor of when to run.
"""
