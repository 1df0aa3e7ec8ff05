"""SQL-file tests: parsing, running, reporting and regenerating `tests/sql/*.slt`."""
