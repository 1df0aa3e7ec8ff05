"""Binding and explaining: what a query's names stand for, and what will be read for it.

    compare    a predicate's conjuncts → comparisons that can prune files
    bind       a parsed query and a snapshot → a bound query: tables, scans, text
    explain    a bound query → text for EXPLAIN

Touches no Spark, no files and no clock.
"""
