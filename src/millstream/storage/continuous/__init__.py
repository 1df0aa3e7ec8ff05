"""Continuous reads of streaming tables: the hot part in memory, and the access interface over it.

access      the front, after Table II of Streaming Tables: scans, resume, push, kill
calls       all calls on one table, and what a call is given
instants    when a pushed call is due, row by row
window      time, row and partitioned windows, read at an instant
hot         the newest rows of a table in memory, with their interval index
block       some of these rows, and a value index over them
look        one consistent look at what storage holds
match       predicates over Arrow rows
"""
