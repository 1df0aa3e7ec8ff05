"""Continuous views: made, kept up to date as streams move on, and read.

making.py     a definition → fragments, pinned tables, empty state (or one filled from history)
keeping.py    new rows of a stream → partial results of all views on it, in one job and one commit
reading.py    state → a view's rows, kept until something changes
overlay.py    what the names in fragments stand for
"""
