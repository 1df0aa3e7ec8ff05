"""Rows from outside → Arrow rows of a table's schema, checked.

    progress    how far a long job is, for whoever wants to show it
    convert     Arrow, pandas, rows, dicts → the table's Arrow schema
    literals    INSERT … VALUES without Spark, where every value is a plain literal
    copy_from   CSV, JSON and Parquet files → batches, bad lines named

Knows nothing of plans.
"""
