"""Aggregates of queries over windows: those of views, so that answers can be taken from each other.

EMIT NEW and EMIT CHANGES compare answers value by value. So there an aggregate whose last digits depend on how it
was computed (`ROUNDED`) is asked for as a whole number of it, and one that may be any of several values (`JUDGED`)
not at all. Lists are asked for sorted. Rows of a window may have the same time: `first` and `last` go by arrival
then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.law.aggregates import (
    AGGREGATES,
    SPREADS,
    Aggregate,
    Maker,
    Measure,
    collected,
    column,
    filtered,
    fitting,
    is_scalar,
    is_small,
)
from tests.law.pieces import EXACT, Type, sql

if TYPE_CHECKING:
    from random import Random

    from tests.law.pieces import Source, Sql

REPLACED = {
    *("first", "last"),
    *("array_agg", "collect_list", "collect_list(DISTINCT)", "collect_set", "collect_set(DISTINCT)"),
}
OF_VIEWS = {"avg of decimals", "any_value", "any_value(DISTINCT)"}
"""Not asked for: for Spark alone; judged by all values of a group, nulls too."""
ROUNDED = {
    *("stddev_pop", "stddev_samp", "stddev", "var_pop", "var_samp", "variance"),
    *(f"{spread}(DISTINCT)" for spread in SPREADS),
    *("covar_pop", "covar_samp", "corr", "percentile", "median"),
}
JUDGED = {
    *("approx_count_distinct", "approx_count_distinct(DISTINCT)"),
    *("percentile_approx", "mode"),
}


def by_time(name: str, plain: str) -> Maker:
    """`first` and `last`: by time, of equal times by arrival, which the references have to say."""

    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        term = column(rng, source, lambda t: is_scalar(t) and t.is_of_stream, may_be_case=False)
        if term is None or source.time is None or source.sequence is None:
            return None
        given = {"x": term.sql, "t": source.time.sql, "n": source.sequence.sql}
        meant = sql(plain + "({x}, struct({t}, {n}))", **given)
        foreign = sql(name + "({x} ORDER BY {t}, {n})", **given)
        call = replace(sql(name + "({x})", **given), plain=meant.plain, duck=foreign.duck)
        return Measure(filtered(call, condition), term.type, fitting(term.type), is_exact=not term.has_nan)

    return make


def in_order(spark: str, duck: str) -> Maker:
    """The values of a group, sorted."""

    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        term = column(rng, source, is_scalar)
        if term is None:
            return None
        found = collected(term, condition, spark, duck)
        text = replace(sql("array_sort({c})", c=found), duck=f"list_sort({found.duck})")
        return Measure(text, Type.LIST, EXACT, is_exact=False)

    return make


MEASURES = (
    *(a for a in AGGREGATES if a.name not in REPLACED | OF_VIEWS),
    Aggregate("first", by_time("first", "min_by")),
    Aggregate("last", by_time("last", "max_by")),
    Aggregate("array_sort(collect_list)", in_order("collect_list({x})", "list({x})")),
    Aggregate("array_sort(array_agg)", in_order("array_agg({x})", "list({x})")),
    Aggregate("array_sort(collect_set)", in_order("collect_set({x})", "list(DISTINCT {x})")),
)


def without_last_digits(aggregate: Aggregate, rng: Random, source: Source) -> Measure | None:
    """A whole number of an aggregate of small numbers; no value that is likely lies where digits would tell."""
    small = tuple(t for t in source.terms if is_small(t))
    found = aggregate.over(rng, replace(source, terms=small)) if small else None
    if found is None:
        return None
    double = "CAST({} AS DOUBLE)"
    factor, shift = double.format("7.3105857863"), double.format("0.2718281828")
    text = sql(f"CAST(floor({{m}} * {factor} + {shift}) AS BIGINT)", m=found.sql)
    return Measure(text, Type.LONG, EXACT, is_exact=False)
