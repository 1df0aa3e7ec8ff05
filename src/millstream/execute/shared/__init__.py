"""Operators that many queries share: each row is worked on once, however many it serves."""
