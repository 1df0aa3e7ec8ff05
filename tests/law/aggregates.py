"""Every aggregate that the grammar knows, one entry each.

An entry makes a measure over a source: the call in three tongues, with FILTER at times, the type of
its result and how it is judged. `AGGREGATES` is the list the coverage table is made from. A measure that is not
`is_exact` stands only where its value reaches the result unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.law.expressions import conditional, perhaps_made, predicate
from tests.law.pieces import (
    BAG,
    EXACT,
    FLOAT,
    VARIANCE,
    Kind,
    Match,
    Source,
    Sql,
    Term,
    Type,
    chance,
    each,
    sql,
)

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate call over a source."""

    sql: Sql
    type: Type
    match: Match
    is_exact: bool


Maker = Callable[["Random", Source, "Sql | None"], "Measure | None"]
"""Makes a measure with a FILTER's condition; None where the source has no column for it."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An entry: its name in the coverage table, and its maker. `is_plain` ones may be asked for anywhere."""

    name: str
    make: Maker
    is_plain: bool = False

    def over(self, rng: Random, source: Source, *, filtered: bool | None = None) -> Measure | None:
        """The aggregate over a source, with FILTER by chance or as told."""
        wants = chance(rng, 0.2) if filtered is None else filtered
        condition = predicate(rng, source.terms, 1).covering("shape:filter clause") if wants else None
        found = self.make(rng, source, condition)
        return found and replace(found, sql=found.sql.covering(f"aggregate:{self.name}"))


def filtered(call: Sql | str, condition: Sql | None) -> Sql:
    """A call with its FILTER."""
    return sql("{f}", f=call) if condition is None else sql("{f} FILTER (WHERE {c})", f=call, c=condition)


def column(
    rng: Random, source: Source, allowed: Callable[[Term], bool], *, may_be_case: bool = True
) -> Term | None:
    """A column or an expression over one, of a kind that is allowed."""
    found = [t for t in source.terms if allowed(t) and t.is_exact]
    if not found:
        return None
    term = perhaps_made(rng, rng.choice(found))
    if not allowed(term):
        term = rng.choice(found)
    return conditional(rng, source.terms, term) if may_be_case and chance(rng, 0.12) else term


def simple(
    call: str,
    allowed: Callable[[Term], bool],
    result: Callable[[Term], Type],
    match: Match | None = None,
    duck: str | None = "",
) -> Maker:
    """A call of one column; `duck` is DuckDB's call where it is another one, None where there is none."""

    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        term = column(rng, source, allowed)
        if term is None:
            return None
        text = filtered(sql(call, x=term.sql), condition)
        if duck is None:
            text = text.without_duck()
        elif duck:
            text = replace(text, duck=filtered(sql(duck, x=term.sql), condition).duck)
        type_ = result(term)
        return Measure(text, type_, match or fitting(type_), is_exact=match in (None, EXACT) and not term.has_nan)

    return make


def fitting(type_: Type) -> Match:
    return FLOAT if type_ is Type.DOUBLE else EXACT


def is_number(term: Term) -> bool:
    return term.type.is_number


def is_clean_number(term: Term) -> bool:
    """For exact percentiles: an order without NaN."""
    return term.type.is_number and not term.has_nan


def is_averaged(term: Term) -> bool:
    """A decimal's average is rounded to a scale of Spark's choosing; it has its own entry."""
    return term.type.is_number and term.type is not Type.DECIMAL


def is_small(term: Term) -> bool:
    """For sums of squares: small numbers."""
    is_of_type = term.type.is_narrow or term.type in (Type.INT, Type.DOUBLE)
    return is_of_type and not term.has_nan and not term.is_large


def is_whole(term: Term) -> bool:
    return term.type.is_whole or term.type.is_narrow


def is_scalar(term: Term) -> bool:
    return term.type is not Type.LIST


def is_clean(term: Term) -> bool:
    return is_scalar(term) and not term.has_nan


def its_type(term: Term) -> Type:
    return term.type


def summed(term: Term) -> Type:
    return Type.LONG if is_whole(term) else term.type


def long(_: Term) -> Type:
    return Type.LONG


def double(_: Term) -> Type:
    return Type.DOUBLE


def count_star(rng: Random, source: Source, condition: Sql | None) -> Measure:
    del source
    return Measure(filtered(rng.choice(["count(*)", "count(1)"]), condition), Type.LONG, EXACT, is_exact=True)


def count_if(rng: Random, source: Source, condition: Sql | None) -> Measure:
    """DuckDB says null where the condition is null in all rows."""
    call = filtered(sql("count_if({p})", p=predicate(rng, source.terms)), condition)
    whole = None if call.duck is None else f"coalesce({call.duck}, 0)"
    return Measure(replace(call, duck=whole), Type.LONG, EXACT, is_exact=True)


def count_distinct_pairs(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
    """Spark leaves out pairs with a null; DuckDB has to be told."""
    terms = [t for t in source.terms if is_clean(t) and t.is_exact]
    if len(terms) < 2:
        return None
    x, y = rng.sample(terms, 2)
    call = filtered(sql("count(DISTINCT {x}, {y})", x=x.sql, y=y.sql), condition)
    complete = sql("{x} IS NOT NULL AND {y} IS NOT NULL AND ({c})", x=x.sql, y=y.sql, c=condition or "TRUE")
    duck = sql("count(DISTINCT ({x}, {y})) FILTER (WHERE {c})", x=x.sql, y=y.sql, c=complete).duck
    return Measure(replace(call, duck=duck), Type.LONG, EXACT, is_exact=True)


def of_condition(call: str, duck: str) -> Maker:
    """`bool_and` and its like: of a BOOLEAN column or of a condition."""

    def make(rng: Random, source: Source, condition: Sql | None) -> Measure:
        term = column(rng, source, lambda t: t.type is Type.BOOL) if chance(rng, 0.6) else None
        given = term.sql if term is not None else predicate(rng, source.terms, 1)
        text = replace(sql(call, x=given), duck=sql(duck, x=given).duck)
        return Measure(filtered(text, condition), Type.BOOL, EXACT, is_exact=True)

    return make


def of_two(call: str) -> Maker:
    """Covariance and correlation: two small columns."""

    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        x, y = column(rng, source, is_small), column(rng, source, is_small)
        if x is None or y is None:
            return None
        text = filtered(sql(call, x=double_of(x), y=double_of(y)), condition)
        return Measure(text, Type.DOUBLE, VARIANCE, is_exact=False)

    return make


def correlation(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
    """Of one row, or of a column that does not vary, Spark says null and DuckDB NaN."""
    found = of_two("corr({x}, {y})")(rng, source, condition)
    if found is None or found.sql.duck is None:
        return found
    return replace(found, sql=replace(found.sql, duck=f"nullif({found.sql.duck}, CAST('NaN' AS DOUBLE))"))


def double_of(term: Term) -> Sql:
    return term.sql if term.type is Type.DOUBLE else sql("CAST({x} AS DOUBLE)", x=term.sql)


def by_sequence(spark: str, duck: str) -> Maker:
    """`min_by` and `max_by`: of the stream's own columns, for a join may repeat a sequence number."""

    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        term = column(rng, source, lambda t: is_scalar(t) and t.is_of_stream, may_be_case=False)
        if term is None or source.sequence is None:
            return None
        call = each(f"{spark}({{x}}, {{n}})", f"{duck}({{x}}, {{n}})")
        return along(call, call.plain, term, source.sequence, condition)

    return make


def by_time(view: str, plain: str, duck: str) -> Maker:
    """`first` and `last`: by the stream's time, which the references have to say."""

    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        term = column(rng, source, lambda t: is_scalar(t) and t.is_of_stream, may_be_case=False)
        if term is None or source.time is None:
            return None
        call = Sql(f"{view}({{x}})", f"{plain}({{x}}, {{n}})", f"{duck}({{x}}, {{n}})")
        return along(call, call.plain, term, source.time, condition)

    return make


def along(call: Sql, plain: str, term: Term, order: Term, condition: Sql | None) -> Measure:
    """The value of a term where something is least or greatest."""
    said = sql(call.view, x=term.sql, n=order.sql)
    meant = sql(plain, x=term.sql, n=order.sql)
    foreign = sql(call.duck or "", x=term.sql, n=order.sql)
    text = filtered(replace(said, plain=meant.plain, duck=foreign.duck), condition)
    return Measure(text, term.type, fitting(term.type), is_exact=not term.has_nan)


def percentile(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
    term = column(rng, source, is_clean_number)
    if term is None:
        return None
    rank = str(rng.choice([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]))
    form = rng.choice(["percentile({x}, {p})", "percentile_cont({p}) WITHIN GROUP (ORDER BY {x})"])
    text = filtered(sql(form, x=term.sql, p=rank), condition)
    duck = filtered(sql("quantile_cont({x}, {p})", x=double_of(term), p=rank), condition).duck
    return Measure(replace(text, duck=duck), Type.DOUBLE, FLOAT, is_exact=False)


def percentile_approx(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
    rank = rng.choice([0.1, 0.25, 0.5, 0.75, 0.95])
    name = rng.choice(["percentile_approx", "approx_percentile"])
    call = f"{name}({{x}}, {rank})"
    made = judged_by_all(rng, source, condition, call, Match(Kind.QUANTILE, rank), is_clean_number)
    # There are no sketches of decimals, and a view that asks for one is refused.
    return None if made is not None and made.type is Type.DECIMAL else made


def mode(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
    return judged_by_all(rng, source, condition, "mode({x})", Match(Kind.MODE), is_clean)


def judged_by_all(
    rng: Random, source: Source, condition: Sql | None, call: str, match: Match, allowed: Callable[[Term], bool]
) -> Measure | None:
    """An answer that is judged by all the values it was made from."""
    term = column(rng, source, allowed)
    if term is None:
        return None
    said = filtered(sql(call, x=term.sql), condition)
    every = collected(term, condition, "collect_list({x})", "list({x})")
    return Measure(replace(said, plain=every.plain, duck=every.duck), term.type, match, is_exact=False)


def any_value(call: str) -> Maker:
    """Judged by all values, nulls too, which `collect_list` keeps inside of structures alone."""

    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        term = column(rng, source, is_scalar)
        # Spark takes `any_value(DISTINCT (…))` for a call of a function DISTINCT.
        if term is None or (condition is None and "DISTINCT" in call and term.sql.view.startswith("(")):
            return None
        said = filtered(sql(call, x=term.sql), condition)
        every = filtered(sql("collect_list(struct({x} AS v))", x=term.sql), condition)
        foreign = filtered(sql("list({x})", x=term.sql), condition).duck
        text = replace(
            said, plain=f"transform({every.plain}, s -> s.v)", duck=foreign and f"coalesce({foreign}, [])"
        )
        return Measure(text, term.type, Match(Kind.ANY), is_exact=False)

    return make


def collect(spark: str, duck: str) -> Maker:
    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        term = column(rng, source, is_scalar)
        if term is None:
            return None
        return Measure(collected(term, condition, spark, duck), Type.LIST, BAG, is_exact=False)

    return make


def collected(term: Term, condition: Sql | None, spark: str, duck: str) -> Sql:
    """Spark drops nulls and gives an empty list where nothing is left; DuckDB has to be told."""
    text = filtered(sql(spark, x=term.sql), condition)
    kept = sql("{x} IS NOT NULL AND ({c})", x=term.sql, c=condition or "TRUE")
    foreign = filtered(sql(duck, x=term.sql), kept).duck
    return replace(text, duck=None if foreign is None else f"coalesce({foreign}, [])")


SKETCH = Match(Kind.SKETCH)
SPREADS = ("stddev_pop", "stddev_samp", "var_pop", "var_samp")


def approx_count_distinct(call: str) -> Maker:
    def make(rng: Random, source: Source, condition: Sql | None) -> Measure | None:
        term = column(rng, source, is_scalar)
        if term is None:
            return None
        exact = filtered(sql("count(DISTINCT {x})", x=term.sql), condition)
        said = filtered(sql(call, x=term.sql), condition)
        return Measure(replace(exact, view=said.view), Type.LONG, SKETCH, is_exact=False)

    return make


AGGREGATES: tuple[Aggregate, ...] = (
    Aggregate("count(*)", count_star, is_plain=True),
    Aggregate("count", simple("count({x})", is_scalar, long), is_plain=True),
    Aggregate("count_if", count_if, is_plain=True),
    Aggregate("sum", simple("sum({x})", is_number, summed), is_plain=True),
    Aggregate("min", simple("min({x})", is_scalar, its_type), is_plain=True),
    Aggregate("max", simple("max({x})", is_scalar, its_type), is_plain=True),
    Aggregate("avg", simple("avg({x})", is_averaged, double, FLOAT)),
    Aggregate("avg of decimals", simple("avg({x})", lambda t: t.type is Type.DECIMAL, its_type, EXACT, None)),
    Aggregate("stddev_pop", simple("stddev_pop({x})", is_small, double, VARIANCE)),
    Aggregate("stddev_samp", simple("stddev_samp({x})", is_small, double, VARIANCE)),
    Aggregate("stddev", simple("stddev({x})", is_small, double, VARIANCE)),
    Aggregate("var_pop", simple("var_pop({x})", is_small, double, VARIANCE)),
    Aggregate("var_samp", simple("var_samp({x})", is_small, double, VARIANCE)),
    Aggregate("variance", simple("variance({x})", is_small, double, VARIANCE)),
    Aggregate("covar_pop", of_two("covar_pop({x}, {y})")),
    Aggregate("covar_samp", of_two("covar_samp({x}, {y})")),
    Aggregate("corr", correlation),
    Aggregate("bool_and", of_condition("bool_and({x})", "bool_and({x})")),
    Aggregate("bool_or", of_condition("bool_or({x})", "bool_or({x})")),
    Aggregate("every", of_condition("every({x})", "bool_and({x})")),
    Aggregate("bit_and", simple("bit_and({x})", is_whole, its_type)),
    Aggregate("bit_or", simple("bit_or({x})", is_whole, its_type)),
    Aggregate("bit_xor", simple("bit_xor({x})", is_whole, its_type)),
    Aggregate("min_by", by_sequence("min_by", "arg_min_null")),
    Aggregate("max_by", by_sequence("max_by", "arg_max_null")),
    Aggregate("first", by_time("first", "min_by", "arg_min_null")),
    Aggregate("last", by_time("last", "max_by", "arg_max_null")),
    Aggregate("count(DISTINCT)", simple("count(DISTINCT {x})", is_scalar, long), is_plain=True),
    Aggregate("count(DISTINCT a, b)", count_distinct_pairs),
    Aggregate("min(DISTINCT)", simple("min(DISTINCT {x})", is_scalar, its_type)),
    Aggregate("max(DISTINCT)", simple("max(DISTINCT {x})", is_scalar, its_type)),
    Aggregate("sum(DISTINCT)", simple("sum(DISTINCT {x})", is_number, summed)),
    Aggregate("avg(DISTINCT)", simple("avg(DISTINCT {x})", is_averaged, double, FLOAT)),
    *(Aggregate(f"{s}(DISTINCT)", simple(f"{s}(DISTINCT {{x}})", is_small, double, VARIANCE)) for s in SPREADS),
    Aggregate("bool_and(DISTINCT)", of_condition("bool_and(DISTINCT {x})", "bool_and(DISTINCT {x})")),
    Aggregate("bool_or(DISTINCT)", of_condition("bool_or(DISTINCT {x})", "bool_or(DISTINCT {x})")),
    Aggregate("bit_and(DISTINCT)", simple("bit_and(DISTINCT {x})", is_whole, its_type)),
    Aggregate("bit_or(DISTINCT)", simple("bit_or(DISTINCT {x})", is_whole, its_type)),
    Aggregate("any_value", any_value("any_value({x})")),
    Aggregate("any_value(DISTINCT)", any_value("any_value(DISTINCT {x})")),
    Aggregate("approx_count_distinct", approx_count_distinct("approx_count_distinct({x})")),
    Aggregate("approx_count_distinct(DISTINCT)", approx_count_distinct("approx_count_distinct(DISTINCT {x})")),
    Aggregate("percentile", percentile),
    Aggregate("median", simple("median({x})", is_clean_number, double, FLOAT, "median(CAST({x} AS DOUBLE))")),
    Aggregate("percentile_approx", percentile_approx),
    Aggregate("collect_list", collect("collect_list({x})", "list({x})")),
    Aggregate("array_agg", collect("array_agg({x})", "list({x})")),
    Aggregate("collect_list(DISTINCT)", collect("collect_list(DISTINCT {x})", "list(DISTINCT {x})")),
    Aggregate("collect_set", collect("collect_set({x})", "list(DISTINCT {x})")),
    Aggregate("collect_set(DISTINCT)", collect("collect_set(DISTINCT {x})", "list(DISTINCT {x})")),
    Aggregate("mode", mode),
)

BY_NAME = {a.name: a for a in AGGREGATES}
