"""A standing query → what keeps its answer up to date: fragments of SQL, and the state between them.

Knows no Spark, no files and no clock; what it has to know of types it asks through a function.
"""
