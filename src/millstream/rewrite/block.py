"""A grouping over a stream → a stream fragment with its state, and the same select over the merged state.

The fragment projects what grouping and aggregates need, keeps partial results of every aggregate for each group,
and the select gets its answers from them: keys by name, aggregates by their final expressions. Predicates that
speak of the clock or of an outer query are lifted: their columns join the keys, and they are tested on the merged
state. Where they leave one value of each such column, a group is one row of the state, not grouped again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.plan.incremental import Part, Partial, group_name, merged_name, state_name
from millstream.rewrite import aggregates, names, sets
from millstream.rewrite.aggregates import ByValues, Decomposed
from millstream.rewrite.refuse import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Types = Callable[[str], Mapping[str, str]]


MOST_DIGITS = 24
"""Spark divides sums of longer DECIMALs by counts with fewer digits than its avg gives."""
EXACT = frozenset({"tinyint", "smallint", "int", "date", "boolean"})
"""Types of which no two values equal the same value of another type."""


@dataclass(frozen=True)
class Source:
    """What is below the grouping, as text; what first and last go by: the stream's time and place, if plain."""

    streams: tuple[int, ...]
    text: str
    order: str | None


@dataclass
class _Call:
    """One aggregate of a block: its node, and where its answer comes from once that is known."""

    node: exp.Expr
    name: str
    arguments: list[str]
    constants: list[str]
    condition: str | None
    distinct: bool
    final: str = ""


@dataclass
class _Building:
    """A block under construction."""

    source: Source
    types: Types
    first_state: int
    inner: dict[str, str] = field(default_factory=dict)
    projections: dict[str, str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    grouping: str = ""
    partials: list[Partial] = field(default_factory=list)
    prepared: list[tuple[str, str]] = field(default_factory=list)
    known: dict[tuple[str, str, str | None], list[str]] = field(default_factory=dict)
    where: str | None = None
    values: dict[tuple[tuple[str, ...], str | None], list[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        return group_name(self.first_state)

    def project(self, sql: str, letter: str) -> str:
        """The name under which the fragment's rows have an expression."""
        for name, known in self.projections.items():
            if known == sql and name[0] == letter:
                return name
        name = f"{letter}{sum(n[0] == letter for n in self.projections)}"
        self.projections[name] = sql
        return name


@dataclass(frozen=True)
class Grouped:
    """The parts a block was turned into; the select itself has been rewritten in place.

    `texts` are what some names in its FROM stand for: SQL that sqlglot would not give back as it is.
    """

    parts: tuple[Part, ...]
    texts: Mapping[str, str]


def group(
    select: exp.Select,
    source: Source,
    types: Types,
    first_state: int,
    inner: dict[str, str],
    *,
    only_whether: bool = False,
) -> Grouped:
    """Turn a grouping select into parts; the select then reads their states.

    `inner` are the texts of groupings inside of it, which may speak of its columns.
    `only_whether` is for EXISTS and IN, which ask whether there is a row and not how often.
    """
    building = _Building(source, types, first_state, inner)
    outside = names.aliases(select)
    lifted, kept = _split_where(select, outside)
    building.where = " AND ".join(f"({names.text(c)})" for c in kept) or None
    keys = _keys(select, building, only_whether=only_whether)
    lifted_keys = _lift(lifted, building, outside)
    calls = [] if only_whether else [_call(node, building) for node in names.aggregates_of(select)]
    argument_types = types(_projection(building)) if building.projections else {}
    for call in calls:
        _plan(call, building, argument_types)
    if not (building.keys or building.partials or only_whether):
        # Without a group to name there is one row, and something has to stand in it.
        building.partials.append(Partial("p0", "count(*){f}", "sum(p0)"))
    _replace(select, keys, calls, building)
    pinned = {k for k in lifted_keys if argument_types[k] in EXACT}
    is_one_row = pinned.issuperset(lifted_keys) and pinned <= {_pinned(c, lifted_keys) for c in lifted}
    _read_state(select, building, lifted, only_whether=only_whether, is_one_row=is_one_row)
    parts = (_main_part(building, lifted_keys), *_value_parts(building, lifted_keys))
    return Grouped(tuple(_typed(part, types) for part in parts), building.texts)


def _projection(building: _Building) -> str:
    listed = ", ".join(f"{sql} AS {name}" for name, sql in building.projections.items())
    return f"SELECT {listed} FROM {building.source.text}"


def _typed(part: Part, types: Types) -> Part:
    known = types(part.fragment)
    return replace(part, types=tuple((n, known[n]) for n in (*part.keys, *(p.name for p in part.partials))))


# WHERE


def _split_where(select: exp.Select, own: set[str]) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The conjuncts that have to wait for a read, and the others."""
    where = select.args.get("where")
    parts = names.conjuncts(where.this if where is not None else None)
    lifted = [c for c in parts if _waits(c, own)]
    return lifted, [c for c in parts if c not in lifted]


def _waits(conjunct: exp.Expr, own: set[str]) -> bool:
    nodes = list(names.own_nodes(conjunct))
    outer = any(isinstance(n, exp.Column) and n.table and n.table.lower() not in own for n in nodes)
    return outer or any(names.says_the_time(n) for n in nodes)


def _lift(lifted: Sequence[exp.Expr], building: _Building, own: set[str]) -> list[str]:
    """Give what lifted predicates say of rows keys, and let the predicates speak of these."""
    made: list[str] = []
    for conjunct in lifted:
        if any(isinstance(n, names.QUERIES) for n in names.own_nodes(conjunct)):
            raise refused(
                "a subquery beside the clock or an outer column below a grouping",
                conjunct,
                "Split the predicate with AND, so that each says one thing.",
            )
        for free in _free(conjunct, own):
            name = building.project(names.text(free), "l")
            made += [] if name in made else [name]
            free.replace(exp.column(name))
    return made


def _free(node: exp.Expr, own: set[str]) -> list[exp.Expr]:
    """The largest parts of a predicate that rows alone decide: `CAST(ts AS DATE)` beside the day of the clock."""
    nodes = list(names.own_nodes(node))
    has_own = any(isinstance(n, exp.Column) and n.table.lower() in own for n in nodes)
    if not has_own:
        return []
    if not _waits(node, own) and not isinstance(node, exp.Identifier):
        return [node]
    return [free for child in node.iter_expressions() for free in _free(child, own)]


def _pinned(conjunct: exp.Expr, lifted_keys: Sequence[str]) -> str | None:
    """The lifted column that a predicate leaves one value of."""
    if not isinstance(conjunct, exp.EQ | exp.NullSafeEQ):
        return None
    sides = (conjunct.left, conjunct.right)
    for side, other in (sides, sides[::-1]):
        if _is_lifted(side, lifted_keys) and not any(_is_lifted(n, lifted_keys) for n in names.own_nodes(other)):
            return side.name
    return None


def _is_lifted(node: exp.Expr, lifted_keys: Sequence[str]) -> bool:
    return isinstance(node, exp.Column) and not node.table and node.name in lifted_keys


# Keys


def _keys(select: exp.Select, building: _Building, *, only_whether: bool) -> list[tuple[exp.Expr, str]]:
    """The grouping expressions, each with its name; says in `building` how to group."""
    found = _key_expressions(select, only_whether=only_whether)
    pairs = [(e, building.project(names.text(e), "k")) for e in found]
    building.keys = list(dict.fromkeys(name for _, name in pairs))
    said = select.args.get("group")
    if said is not None:
        sets.check(said)
    has_sets = said is not None and (said.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None)
    building.grouping = sets.renamed(said, pairs) if has_sets and said is not None else ", ".join(building.keys)
    if has_sets:
        building.keys.append("g")
    return pairs


def _key_expressions(select: exp.Select, *, only_whether: bool) -> list[exp.Expr]:
    said = select.args.get("group")
    if said is not None:
        if said.args.get("all"):
            items = (e.unalias() for e in select.expressions)
            return [e for e in items if not any(names.is_aggregate(n) for n in names.own_nodes(e))]
        return sets.leaves(said)
    if only_whether or select.args.get("distinct"):
        return [e.unalias() for e in select.expressions]
    return []


# Aggregates


def _call(node: exp.Expr, building: _Building) -> _Call:
    """Read an aggregate: its arguments are projected, its constants stay."""
    function = names.innermost(node)
    assert function is not None
    name = aggregates.canonical(names.name_of(function))
    conditions = [names.text(f.expression.this) for f in node.find_all(exp.Filter)]
    given, distinct = arguments_of(function)
    if function.args.get("deterministic"):
        raise refused(f"{name} with a second argument", node, "Leave the last argument out.")
    within = node.find(exp.WithinGroup)
    if within is not None:
        given = [*(o.this for o in within.expression.expressions), *given]
        if within.expression.find(exp.Ordered) and any(o.args.get("desc") for o in within.expression.expressions):
            given = [given[0], exp.Sub(this=exp.Literal.number("1"), expression=given[1])]
    if distinct and any(isinstance(g, exp.Star) for g in given):
        raise refused(f"{name}(DISTINCT *)", node, "Name the columns.")
    columns = [g for g in given if not _is_constant(g)] or given[:1]
    constants = [names.text(g) for g in given if all(g is not c for c in columns)]
    if node.find(exp.IgnoreNulls) is not None:
        conditions += [f"{a} IS NOT NULL" for a in (names.text(columns[0]),)]
    condition = " AND ".join(f"({c})" for c in conditions)
    if conditions:
        # What FILTER leaves out is not computed: it may be what cannot be.
        columns = [c if isinstance(c, exp.Column | exp.Star) else _guarded(c, condition) for c in columns]
    arguments = [building.project(names.text(c), "a") for c in columns if not isinstance(c, exp.Star)]
    return _Call(
        node, name, arguments, constants, building.project(condition, "f") if condition else None, distinct
    )


def _guarded(expression: exp.Expr, condition: str) -> exp.Expr:
    return names.parsed(f"CASE WHEN {condition} THEN {names.text(expression)} END")


def arguments_of(function: exp.Expr) -> tuple[list[exp.Expr], bool]:
    """The arguments of an aggregate, and whether DISTINCT stands before them."""
    if isinstance(function, exp.Anonymous):
        given = list(function.expressions)
    else:
        given = [function.this, *(function.args.get("expressions") or []), function.args.get("expression")]
        given += [function.args.get("quantile"), function.args.get("accuracy")]
    given = [g for g in given if isinstance(g, exp.Expr)]
    if given and isinstance(given[0], exp.Distinct):
        return [*given[0].expressions, *given[1:]], True
    return given, False


def _is_constant(node: exp.Expr) -> bool:
    return node.find(exp.Column, exp.Star) is None


def _plan(call: _Call, building: _Building, types: Mapping[str, str]) -> None:
    """Decide how an aggregate is kept, and say how its answer is made."""
    entry = _entry(call, types)
    if entry is None:
        raise refused(
            f"the aggregate {call.name} cannot be kept as partial results",
            call.node,
            f"Use one of {', '.join(aggregates.SUPPORTED)}; or group below and compute it above.",
        )
    if isinstance(entry, ByValues):
        _by_values(call, entry, building)
    else:
        _decompose(call, entry, building, types)


def _entry(call: _Call, types: Mapping[str, str]) -> Decomposed | ByValues | None:
    if call.distinct and call.name not in aggregates.SAME_WITH_DISTINCT:
        return aggregates.DISTINCT.get(call.name)
    if call.name == "avg" and types[call.arguments[0]].startswith("decimal"):
        if _precision(types[call.arguments[0]])[0] > MOST_DIGITS:
            raise refused(
                f"an average of DECIMALs of more than {MOST_DIGITS} digits cannot be kept exactly",
                call.node,
                f"CAST the numbers to DECIMAL({MOST_DIGITS}, …) or DOUBLE, or ask for sum and count.",
            )
        return aggregates.AVG_OF_DECIMAL
    if call.name == "percentile_approx":
        kind = _sketch(types[call.arguments[0]])
        return aggregates.quantile(kind) if kind else None
    if call.name in ("percentile", "percentile_cont") and len(call.constants) != 1:
        return None
    return aggregates.DECOMPOSED.get(call.name) or aggregates.BY_VALUES.get(call.name)


def _sketch(type_: str) -> str | None:
    if type_ in ("tinyint", "smallint", "int", "bigint"):
        return "bigint"
    return "double" if type_ in ("float", "double") else None


def _decompose(call: _Call, entry: Decomposed, building: _Building, types: Mapping[str, str]) -> None:
    arguments = list(call.arguments)
    if call.name in ("first", "last"):
        arguments.append(_order(call, building))
    every = ", ".join(arguments) or "*"
    columns: list[tuple[str, str]] = []
    for partial, _ in entry.partials:
        made = partial.format(*arguments, all=every, f="{f}")
        columns.append((made, f"p{len(building.partials) + len(columns)}"))
    key = (call.name, every, call.condition)
    known = building.known.get(key)
    if known is None:
        known = [name for _, name in columns]
        first = len(building.prepared)
        prepared = {f"m{i}": f"m{first + i}" for i in range(len(entry.prepared))}
        building.prepared += [(f"m{first + i}", sql.format(*known)) for i, sql in enumerate(entry.prepared)]
        for (made, name), (_, merge) in zip(columns, entry.partials, strict=True):
            building.partials.append(Partial(name, made, merge.format(*known, **prepared), call.condition))
        building.known[key] = known
    constant = call.constants[0] if call.constants else ""
    result = _result_type(call, types)
    call.final = entry.final.format(*(f"{building.alias}.{n}" for n in known), p=constant, result=result)


def _result_type(call: _Call, types: Mapping[str, str]) -> str:
    if not call.arguments:
        return ""
    type_ = types.get(call.arguments[0], "")
    if call.name != "avg" or not type_.startswith("decimal"):
        return type_ if "array" not in (call.constants[0].lower() if call.constants else "") else f"array<{type_}>"
    precision, scale = _precision(type_)
    return f"decimal({min(38, precision + 4)},{min(38, scale + 4)})"


def _precision(type_: str) -> tuple[int, int]:
    precision, scale = (int(n) for n in type_.removeprefix("decimal(").removesuffix(")").split(","))
    return precision, scale


def _order(call: _Call, building: _Building) -> str:
    if building.source.order is None:
        raise refused(
            f"{call.name} by time needs the stream itself in the same FROM",
            call.node,
            f"Use {'min' if call.name == 'first' else 'max'}_by(value, time).",
        )
    return building.project(building.source.order, "a")


def _by_values(call: _Call, entry: ByValues, building: _Building) -> None:
    """Keep how often each value came; its aggregate is a column of the state's own join."""
    key = (tuple(call.arguments), call.condition)
    finals = building.values.setdefault(key, [])
    values = [f"x{i}" for i in range(len(call.arguments))]
    constant = call.constants[0] if call.constants else ""
    made = entry.final.format(*values, all=", ".join(values), c="c", p=constant)
    if made not in finals:
        finals.append(made)
    place = list(building.values).index(key)
    column = f"{_values_alias(building, place)}.h{finals.index(made)}"
    call.final = column if entry.if_none == "NULL" else f"coalesce({column}, {entry.if_none})"


# The select over the state


def _replace(
    select: exp.Select, keys: Sequence[tuple[exp.Expr, str]], calls: Sequence[_Call], building: _Building
) -> None:
    """Let the select's expressions speak of the state."""
    finals = {id(c.node): c.final for c in calls}
    ids = [n for n in building.keys if n != "g"]
    own = names.aliases(select)

    def visit(node: exp.Expr) -> exp.Expr:
        if id(node) in finals:
            return names.parsed(finals[id(node)])
        for expression, name in keys:
            # A constant is what it is, also where it is no key.
            if node == expression and not isinstance(node, exp.Literal):
                return exp.column(name, table=building.alias)
        if isinstance(node, exp.GroupingId):
            return exp.column("g", table=building.alias)
        if isinstance(node, exp.Grouping):
            place = next((n for e, n in keys if e == node.expressions[0]), None)
            shift = len(ids) - 1 - ids.index(place) if place in ids else 0
            return names.parsed(f"CAST((shiftright({building.alias}.g, {shift}) & 1) AS TINYINT)")
        if isinstance(node, names.QUERIES):
            _correlate(node, keys, own, building)
            return node
        for child in list(node.iter_expressions()):
            made = visit(child)
            if made is not child:
                child.replace(made)
        return node

    items = []
    for item in select.expressions:
        called = item.alias_or_name
        made = visit(item)
        items.append(made if isinstance(made, exp.Alias) or not called else exp.alias_(made, called, quoted=True))
    select.set("expressions", items)
    for clause in ("having", "order", "qualify"):
        if select.args.get(clause):
            select.set(clause, visit(select.args[clause]))
    for window in select.args.get("windows") or []:
        visit(window)


def _correlate(query: exp.Expr, keys: Sequence[tuple[exp.Expr, str]], own: set[str], building: _Building) -> None:
    """Let a subquery among the answers of a grouping speak of its keys."""
    for table in query.find_all(exp.Table):
        if table.name in building.inner:
            for expression, key in keys:
                said, means = names.text(expression), f"{building.alias}.{key}"
                building.inner[table.name] = building.inner[table.name].replace(said, means)
    inside = {s.alias_or_name.lower() for inner in query.find_all(exp.Select) for s in names.sources(inner)}
    for column in list(query.find_all(exp.Column)):
        if column.table.lower() not in own - inside:
            continue
        name = next((n for e, n in keys if e == column), None)
        if name is None:
            raise refused(
                "a subquery among the answers of a grouping speaks of a column that is not grouped by",
                column,
                "Add the column to GROUP BY, or put the subquery into a query around.",
            )
        column.replace(exp.column(name, table=building.alias))


def _read_state(
    select: exp.Select,
    building: _Building,
    lifted: Sequence[exp.Expr],
    *,
    only_whether: bool,
    is_one_row: bool,
) -> None:
    """Put the merged state in the place of the sources, and HAVING into WHERE.

    `is_one_row` says that the lifted predicates leave one row of the state for each group at most.
    """
    was_distinct = not select.args.get("group") and not building.partials and not building.values
    test = " AND ".join(f"({names.text(c)})" for c in lifted) or None
    rows = state_name(building.first_state)
    if only_whether and test:
        source = f"(SELECT {', '.join(building.keys)} FROM {rows} WHERE {test})"
    elif test and is_one_row and building.keys:
        columns = ", ".join([*building.keys, *(p.name for p in building.partials)])
        source = f"(SELECT {columns} FROM {merged_name(building.first_state)} WHERE {test})"
    elif test:
        source = f"({_stand_in(building).merged(rows, test, tuple(building.keys))})"
    else:
        source = merged_name(building.first_state)
    joins = [_value_join(number, building, test) for number in range(len(building.values))]
    having = select.args.get("having")
    select.set("from_", _from(f"{source} AS {building.alias}"))
    select.set("joins", [j for made in joins for j in made])
    select.set("where", exp.Where(this=having.this) if having is not None else None)
    for clause in ("having", "group", "laterals"):
        select.set(clause, None)
    if was_distinct:
        select.set("distinct", None)


def _from(sql: str) -> exp.From:
    made = names.parsed_query(f"SELECT 1 FROM {sql}").args["from_"]
    assert isinstance(made, exp.From)
    return made


def _values_alias(building: _Building, number: int) -> str:
    return f"_h{building.first_state + 1 + number}"


def _value_join(number: int, building: _Building, test: str | None) -> list[exp.Join]:
    """The join with the answers of the aggregates over one state of values."""
    finals = list(building.values.values())[number]
    state, alias, keys = building.first_state + 1 + number, _values_alias(building, number), building.keys
    columns = ", ".join([*keys, *(f"{sql} AS h{i}" for i, sql in enumerate(finals))])
    rows = f"({_value_stand_in(building, number).merged(state_name(state), test, _value_keys(building, number))})"
    source = rows if test else merged_name(state)
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    name = f"__ms_values_{state}__"
    building.texts[name] = f"(SELECT {columns} FROM {source} AS v{group})"
    on = " AND ".join(f"{building.alias}.{k} <=> {alias}.{k}" for k in keys)
    joined = f"LEFT JOIN {name} AS {alias} ON {on}" if keys else f"CROSS JOIN {name} AS {alias}"
    return list(names.parsed_query(f"SELECT 1 FROM x {joined}").args["joins"])


def _value_keys(building: _Building, number: int) -> tuple[str, ...]:
    arguments = list(building.values)[number][0]
    return (*building.keys, *(f"x{i}" for i in range(len(arguments))))


def _stand_in(building: _Building) -> Part:
    """The main part for a merge inside of the upper fragment."""
    part = _main_part(building, [])
    known = building.types(part.fragment)
    return replace(part, types=tuple(known.items()))


def _value_stand_in(building: _Building, number: int) -> Part:
    return replace(_value_parts(building, [])[number], types=(("c", "bigint"),))


# Parts


def _grouping(building: _Building, more: Sequence[str]) -> str:
    """More columns to group by stand in front, so that grouping_id counts the others as before."""
    return ", ".join([*more, *([building.grouping] if building.grouping else [])])


def _main_part(building: _Building, lifted_keys: Sequence[str]) -> Part:
    wanted = {*building.keys, *lifted_keys}
    used = {n: s for n, s in building.projections.items() if n in wanted or n[0] in "akf"}
    return Part(
        building.source.streams,
        building.source.text,
        building.where,
        tuple(used.items()),
        (*lifted_keys, *building.keys),
        _grouping(building, lifted_keys),
        tuple(building.partials),
        tuple(building.prepared),
        why="partial results of each group" if building.partials else "the groups there are",
    )


def _value_parts(building: _Building, lifted_keys: Sequence[str]) -> list[Part]:
    made = []
    for arguments, condition in building.values:
        renamed = {f"x{i}": building.projections[a] for i, a in enumerate(arguments)}
        keys = {n: s for n, s in building.projections.items() if n[0] == "k" or n in lifted_keys}
        tests = [f"({s}) IS NOT NULL" for s in renamed.values()]
        tests += [f"({building.projections[condition]})"] if condition else []
        tests += [building.where] if building.where else []
        made.append(
            Part(
                building.source.streams,
                building.source.text,
                " AND ".join(tests),
                tuple({**keys, **renamed}.items()),
                (*lifted_keys, *renamed, *building.keys),
                _grouping(building, [*lifted_keys, *renamed]),
                (Partial("c", "count(*){f}", "sum(c)"),),
                why="how often each value came in each group",
            )
        )
    return made
