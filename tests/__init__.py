"""Millstream's tests; a package so that `tests.slt` can be imported and run as a module."""
