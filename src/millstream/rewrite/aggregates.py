"""The one table of aggregates: how each is kept as partial results, merged, and finished.

An aggregate is either *decomposed* (each partial has an expression over new rows, one that merges partial
rows, and the answer is computed from the merged ones) or kept by its *values* (how often each value came, from
which an ordinary aggregate over values and their counts gives the answer). All expressions are Spark SQL.

Places in the templates: in a partial `{0}`, `{1}` are the arguments and `{f}` stands where FILTER may; in a
merge and in a final `{0}`, `{1}` are the aggregate's own partial columns, in order; `{m0}` in a merge is the
first prepared column, a window expression over the partial rows of a group, for what needs to know the whole
before it can add up.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decomposed:
    """Pairs of (partial, merge), the final expression, and what a merge needs prepared."""

    partials: tuple[tuple[str, str], ...]
    final: str
    prepared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ByValues:
    """The answer as an aggregate over distinct values `{0}`, … and their counts `{c}`; `{p}` is one more argument.

    `if_none` is the answer of a group that has no value.
    """

    final: str
    if_none: str = "NULL"


Aggregate = Decomposed | ByValues


def _same(name: str) -> Decomposed:
    """Merged by the function that it is."""
    return Decomposed(((f"{name}({{0}}){{f}}", f"{name}({{0}})"),), "{0}")


_COUNT = Decomposed((("count({all}){f}", "sum({0})"),), "coalesce({0}, 0L)")


def _mean(of: str) -> str:
    """The mean of a group's means, by their counts {0}; that of equal ones is exact."""
    weighted = f"try_divide(sum({{0}} * {of}) OVER w, sum({{0}}) OVER w)"
    return f"CASE WHEN min({of}) OVER w = max({of}) OVER w THEN min({of}) OVER w ELSE {weighted} END"


_MEAN = _mean("{1}")
_MOMENTS = (
    ("count({0}){f}", "sum({0})"),
    ("avg(CAST({0} AS DOUBLE)){f}", "max({m0})"),
    ("var_pop(CAST({0} AS DOUBLE)){f} * count({0}){f}", "sum({2} + {0} * power({1} - {m0}, 2))"),
)


def _variance(final: str) -> Decomposed:
    return Decomposed(_MOMENTS, final, (_MEAN,))


_MEAN_X = _mean("{1}")
_MEAN_Y = _mean("{2}")
_X = "CASE WHEN {1} IS NOT NULL THEN CAST({0} AS DOUBLE) END"
_Y = "CASE WHEN {0} IS NOT NULL THEN CAST({1} AS DOUBLE) END"
_JOINT = (
    ("count({0}, {1}){f}", "sum({0})"),
    (f"avg({_X}){{f}}", "max({m0})"),
    (f"avg({_Y}){{f}}", "max({m1})"),
    ("covar_pop({0}, {1}){f} * count({0}, {1}){f}", "sum({3} + {0} * ({1} - {m0}) * ({2} - {m1}))"),
)
_SPREADS = (
    (f"var_pop({_X}){{f}} * count({{0}}, {{1}}){{f}}", "sum({4} + {0} * power({1} - {m0}, 2))"),
    (f"var_pop({_Y}){{f}} * count({{0}}, {{1}}){{f}}", "sum({5} + {0} * power({2} - {m1}, 2))"),
)


def _by(name: str, extreme: str) -> Decomposed:
    """`max_by` and `min_by`: the value and what it is judged by travel together."""
    return Decomposed(
        ((f"{name}({{0}}, {{1}}){{f}}", f"{name}({{0}}, {{1}})"), (f"{extreme}({{1}}){{f}}", f"{extreme}({{1}})")),
        "{0}",
    )


def _in_time(name: str, extreme: str) -> Decomposed:
    """`first` and `last`: {0} is the value, {1} the row's time and place. In a structure a null is a value too."""
    return Decomposed(
        (
            (f"{name}(struct({{0}} AS v), {{1}}){{f}}", f"{name}({{0}}, {{1}})"),
            (f"{extreme}({{1}}){{f}}", f"{extreme}({{1}})"),
        ),
        "{0}.v",
    )


AVG_OF_DECIMAL = Decomposed(
    (("sum({0}){f}", "sum({0})"), ("count({0}){f}", "sum({1})")), "CAST(try_divide({0}, {1}) AS {result})"
)
"""An average of exact numbers is exact; {result} is its type."""


def quantile(kind: str) -> Decomposed:
    """`percentile_approx` by a sketch of BIGINT or DOUBLE; {p} is the part, {result} the type of the answer."""
    made, merged, n, at = (
        f"kll_sketch_agg_{kind}({{0}}){{f}}",
        f"kll_merge_agg_{kind}({{0}})",
        f"kll_sketch_get_n_{kind}({{0}})",
        f"kll_sketch_get_quantile_{kind}({{0}}, {{p}})",
    )
    return Decomposed(((made, merged),), f"CAST(CASE WHEN {n} > 0 THEN {at} END AS {{result}})")


DECOMPOSED: dict[str, Decomposed] = {
    "count": _COUNT,
    "count_if": Decomposed((("count_if({0}){f}", "sum({0})"),), "coalesce({0}, 0L)"),
    "sum": _same("sum"),
    "min": _same("min"),
    "max": _same("max"),
    "bool_and": _same("bool_and"),
    "bool_or": _same("bool_or"),
    "bit_and": _same("bit_and"),
    "bit_or": _same("bit_or"),
    "bit_xor": _same("bit_xor"),
    # A basket in which FILTER leaves no row gives a null that is nobody's value.
    "any_value": Decomposed((("any_value({0}){f}", "any_value({0}, true)"),), "{0}"),
    "avg": Decomposed(
        (("sum(CAST({0} AS DOUBLE)){f}", "sum({0})"), ("count({0}){f}", "sum({1})")), "try_divide({0}, {1})"
    ),
    "var_pop": _variance("try_divide({2}, {0})"),
    "var_samp": _variance("try_divide({2}, {0} - 1)"),
    "stddev_pop": _variance("sqrt(try_divide({2}, {0}))"),
    "stddev_samp": _variance("sqrt(try_divide({2}, {0} - 1))"),
    "covar_pop": Decomposed(_JOINT, "try_divide({3}, {0})", (_MEAN_X, _MEAN_Y)),
    "covar_samp": Decomposed(_JOINT, "try_divide({3}, {0} - 1)", (_MEAN_X, _MEAN_Y)),
    "corr": Decomposed(_JOINT + _SPREADS, "try_divide({3}, sqrt({4} * {5}))", (_MEAN_X, _MEAN_Y)),
    "min_by": _by("min_by", "min"),
    "max_by": _by("max_by", "max"),
    "first": _in_time("min_by", "min"),
    "last": _in_time("max_by", "max"),
    "approx_count_distinct": Decomposed(
        (("hll_sketch_agg(CAST({0} AS STRING)){f}", "hll_union_agg({0})"),),
        "coalesce(hll_sketch_estimate({0}), 0L)",
    ),
}

BY_VALUES: dict[str, ByValues] = {
    "percentile": ByValues("percentile({0}, {p}, {c})"),
    "median": ByValues("percentile({0}, 0.5, {c})"),
    "percentile_cont": ByValues("percentile({0}, {p}, {c})"),
    "mode": ByValues("max_by({0}, {c})"),
    "collect_list": ByValues("flatten(collect_list(array_repeat({0}, CAST({c} AS INT))))", "array()"),
    "collect_set": ByValues("collect_set({0})", "array()"),
}
DISTINCT: dict[str, ByValues] = {
    "count": ByValues("count({all})", "0L"),
    "sum": ByValues("sum({0})"),
    "avg": ByValues("avg({0})"),
    "collect_list": ByValues("collect_list({0})", "array()"),
    **{name: ByValues(f"{name}({{0}})") for name in ("var_pop", "var_samp", "stddev_pop", "stddev_samp")},
}
"""What DISTINCT makes of an aggregate; of all others it makes nothing new."""
SAME_WITH_DISTINCT = frozenset({
    "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "any_value", "collect_set", "approx_count_distinct",
})  # fmt: skip
SYNONYMS = {
    "mean": "avg", "std": "stddev_samp", "stddev": "stddev_samp", "variance": "var_samp", "every": "bool_and",
    "some": "bool_or", "any": "bool_or", "first_value": "first", "last_value": "last", "array_agg": "collect_list",
    "approx_percentile": "percentile_approx", "countif": "count_if",
}  # fmt: skip
NOT_DECOMPOSABLE = frozenset({
    "skewness", "kurtosis", "regr_slope", "regr_intercept", "regr_r2", "regr_avgx", "regr_avgy", "regr_count",
    "regr_sxx", "regr_sxy", "regr_syy", "listagg", "string_agg", "histogram_numeric", "count_min_sketch",
    "percentile_disc",
    "bitmap_construct_agg", "bitmap_or_agg", "bitmap_and_agg", "grouping_sets", "hll_sketch_agg", "hll_union_agg",
    "kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float", "kll_merge_agg_bigint",
    "kll_merge_agg_double", "kll_merge_agg_float", "approx_top_k", "schema_of_json_agg", "schema_of_variant_agg",
    "try_avg", "try_sum", "max_min", "product", "theta_sketch_agg", "theta_union_agg", "theta_intersection_agg",
})  # fmt: skip
"""Aggregates of Spark that no entry here stands for: named, so that they can be refused by name."""
SUPPORTED = tuple(sorted({*DECOMPOSED, *BY_VALUES, "percentile_approx"}))


def canonical(name: str) -> str:
    """The name under which the table has a function."""
    lowered = name.lower()
    return SYNONYMS.get(lowered, lowered)


def is_aggregate(name: str) -> bool:
    """Whether a function of that name is an aggregate, supported or not."""
    known = canonical(name)
    return known in SUPPORTED or known in NOT_DECOMPOSABLE
