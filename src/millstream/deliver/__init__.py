"""Results on their way out.

    render     Arrow rows → tables for a terminal, HTML, CSV, JSON
    result     what a statement gives back to its caller
    copy_to    a query's rows → a file

Knows nothing of plans.
"""
