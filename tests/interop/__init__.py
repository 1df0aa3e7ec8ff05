"""What DuckDB reads must be what Millstream reports."""
