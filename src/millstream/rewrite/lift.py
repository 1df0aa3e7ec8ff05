"""A query over windows → the same query for many instants at once.

Every source that differs from instant to instant (a *leaf*: a window's rows, or a merged state) has the instant's
number as a column, `N`. Lifting carries it through: it joins the join conditions, the grouping, the partitions of
window functions and of LIMIT, the conditions on subqueries, and stands first in the result. What does not
depend on the instant stays as it is. The rows with one number are what the query gives at that instant alone.

Raises `UnliftableError`, with the reason, on the few shapes for which there is no rule; such a query is asked
instant by instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.plan.standing import INSTANTS, ROW_NUMBER, TIME, N
from millstream.rewrite import names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RANK = "__ms_rank"
HERE, CLOCK, REAL, SCALAR = "__ms_here", "__ms_clock", "__ms_real", "__ms_s"
INNER = ("", "INNER", "CROSS")


class UnliftableError(Exception):
    """There is no rule for a shape; the message names it."""


@dataclass(frozen=True)
class Lifted:
    """A lifted query: its number stands first, then its own columns, then what it is ordered by.

    `rows` counts the pairs of time and row number (`__ms_t0`, `__ms_r0`, …) of the rows that a result row is made
    of; there are none unless the query selects, projects and joins. `is_ranked` says that `RANK` comes last.
    """

    query: exp.Query
    rows: int = 0
    is_ranked: bool = False


def lift(query: exp.Query, is_leaf: Callable[[str], bool], *, has_rows: bool = True) -> Lifted:
    """The query for all instants; its tables are told apart by `is_leaf`. The query is changed in place.

    `has_rows` says that leaves are rows of streams, which have a time and a number.
    """
    lifter = _Lifter(is_leaf, has_rows)
    holder = exp.Subquery(this=query)
    rows = lifter.rows_of(query)
    is_lifted = lifter.visit(query, is_top=True)
    made = holder.this
    if not is_lifted:
        raise UnliftableError("it reads no stream")
    return Lifted(made, rows, lifter.is_ranked)


def is_monotone(query: exp.Query, is_leaf: Callable[[str], bool]) -> bool:
    """Whether rows that a query has given stay right whatever comes: it selects, projects and joins."""
    return _Lifter(is_leaf).rows_of(query) > 0


@dataclass
class _Lifter:
    is_leaf: Callable[[str], bool]
    has_rows: bool = True
    is_ranked: bool = False
    scalars: int = 0

    # What a query is made of

    def depends(self, node: exp.Expr) -> bool:
        return any(self.is_leaf(t.name) for t in node.find_all(exp.Table))

    def rows_of(self, query: exp.Expr) -> int:
        """Of how many rows of leaves each row is made, if the query selects, projects and joins; else 0."""
        while isinstance(query, exp.Subquery) and not query.args.get("limit"):
            query = query.this
        if not self.has_rows:
            return 0
        if not isinstance(query, exp.Select) or any(query.args.get(c) for c in NOT_SIMPLE):
            return 0
        expressions = [*query.expressions, *([query.args["where"]] if query.args.get("where") else [])]
        nodes = [n for e in expressions for n in names.own_nodes(e)]
        if any(isinstance(n, exp.Window) or names.is_aggregate(n) for n in nodes):
            return 0
        if any(isinstance(n, names.QUERIES) and self.depends(n) for n in nodes):
            return 0
        joins = query.args.get("joins") or []
        if any(j.side or j.kind.upper() not in INNER for j in joins):
            return 0
        counts = [self._rows_of_source(s) for s in names.sources(query) if self.depends(s)]
        return 0 if not counts or 0 in counts else sum(counts)

    def _rows_of_source(self, source: exp.Expr) -> int:
        return 1 if isinstance(source, exp.Table) else self.rows_of(source)

    # Queries

    def visit(self, query: exp.Expr, *, is_top: bool = False, exports: bool = False) -> bool:
        """Lift a query in its place; False if it is the same at every instant."""
        if not self.depends(query):
            return False
        match query:
            case exp.Subquery():
                if any(query.args.get(c) for c in ("limit", "offset")):
                    raise UnliftableError("LIMIT behind brackets")
                return self.visit(query.this, is_top=is_top, exports=exports)
            case exp.Select():
                self._select(query, is_top=is_top, exports=exports or is_top)
            case exp.SetOperation():
                self._set_operation(query, is_top=is_top)
            case _:
                raise UnliftableError(f"a window inside of {query.key.upper()}")
        return True

    def _set_operation(self, query: exp.SetOperation, *, is_top: bool) -> None:
        outputs = query.named_selects
        for side in (query.this, query.expression):
            if not self.visit(side):
                side.replace(_at_every_instant(side))
        if not query.args.get("by_name"):
            _unquote_sides(query)
        limits = [query.args.get(c) for c in ("order", "limit", "offset")]
        for clause in ("order", "limit", "offset", "sort"):
            query.set(clause, None)
        if any(limits):
            order, limit, offset = limits
            items = [] if order is None else [_output_item(o, outputs, []) for o in order.expressions]
            self._ranked(query, outputs, items, limit, offset, is_top=is_top)

    def _select(self, select: exp.Select, *, is_top: bool, exports: bool) -> None:
        outputs = select.named_selects
        rows = self.rows_of(select) if exports else 0
        number = self._sources(select, exports=exports and rows > 0)
        number = self._scalars(select, number)
        self._tests(select, number)
        number = self._told_the_time(select, number)
        if _is_global(select):
            number = self._global(select, number)
        elif select.args.get("group"):
            _grouped_by(select, number)
        for window in _windows(select):
            window.set("partition_by", [number.copy(), *(window.args.get("partition_by") or [])])
        order, limit, offset = (select.args.get(c) for c in ("order", "limit", "offset"))
        for clause in ("order", "limit", "offset", "sort", "cluster", "distribute"):
            select.set(clause, None)
        pairs = self._pairs(select) if rows else []
        select.set("expressions", [_named(number, N), *select.expressions, *pairs])
        if limit is not None or offset is not None or (order is not None and is_top):
            items = [] if order is None else list(order.expressions)
            self._rank(select, number, outputs, items, limit, offset, is_top=is_top)

    # FROM

    def _sources(self, select: exp.Select, *, exports: bool) -> exp.Expr:
        """Lift the sources of a select and have them meet at the same instant; gives the instant's number."""
        if select.args.get("laterals") and any(self.depends(v) for v in select.args["laterals"]):
            raise UnliftableError("a window in a LATERAL VIEW")
        lifted = [self._source(s, exports=exports) for s in names.sources(select)]
        joins = select.args.get("joins") or []
        if not any(lifted):
            return self._begin_with_instants(select, joins)
        number = _number_of(names.sources(select)[0]) if lifted[0] else None
        for place, join in enumerate(joins, start=1):
            number = self._join(select, join, number, is_lifted=lifted[place])
        assert number is not None
        return number

    def _source(self, source: exp.Expr, *, exports: bool) -> bool:
        if isinstance(source, exp.Table):
            return self.is_leaf(source.name)
        if isinstance(source, exp.Subquery):
            return self.visit(source, exports=exports)
        if self.depends(source):
            raise UnliftableError(f"a window inside of {source.key.upper()}")
        return False

    def _begin_with_instants(self, select: exp.Select, joins: Sequence[exp.Join]) -> exp.Expr:
        """Only subqueries depend on the instant: what is asked is asked at each."""
        if any(j.side in ("RIGHT", "FULL") for j in joins):
            raise UnliftableError("an outer join whose other side is the same at every instant")
        first = select.args.get("from_")
        here = names.parsed_query(f"SELECT 1 FROM {INSTANTS} AS {HERE}").args["from_"]
        select.set("from_", here)
        if first is not None:
            select.set("joins", [exp.Join(this=first.this, kind="CROSS"), *joins])
        return exp.column("n", table=HERE)

    def _join(
        self, select: exp.Select, join: exp.Join, number: exp.Expr | None, *, is_lifted: bool
    ) -> exp.Expr | None:
        side, kind = join.side.upper(), join.kind.upper()
        if join.method or join.args.get("using"):
            raise UnliftableError("NATURAL JOIN or USING between windows")
        if not is_lifted:
            if number is None or side not in ("RIGHT", "FULL"):
                return number
            join.set("this", _spread(join.this))
        elif number is None and (side in ("LEFT", "FULL") or kind in ("SEMI", "ANTI")):
            number = self._begin_with_instants(select, select.args["joins"])
        own = _number_of(join.this)
        if number is None:
            return own
        test = exp.EQ(this=number.copy(), expression=own)
        on = join.args.get("on")
        join.set("on", test if on is None else exp.And(this=test, expression=exp.Paren(this=on)))
        if kind == "CROSS":
            join.set("kind", None)
        if side == "FULL":
            return exp.Coalesce(this=number.copy(), expressions=[own.copy()])
        return own.copy() if side == "RIGHT" else number

    # Subqueries in expressions

    def _scalars(self, select: exp.Select, number: exp.Expr) -> exp.Expr:
        """Subqueries that are one value at each instant, as joins: Spark takes them nowhere near a grouping."""
        for query in _queries_in(select):
            inner = _unwrapped(query)
            if not self.depends(query) or not _is_scalar(query) or _is_correlated(inner):
                continue
            name = f"{SCALAR}{self.scalars}"
            self.scalars += 1
            self.visit(inner)
            inner = _unwrapped(query)
            value = inner.named_selects[1]
            text = (
                f"SELECT {N}, CASE WHEN count(*) > 1 THEN raise_error('a subquery gave more than one row')"
                f" ELSE first(`{value}`) END AS v FROM (SELECT 1) AS q GROUP BY {N}"
            )
            one = names.parsed_query(text)
            one.args["from_"].this.set("this", inner.copy())
            source = exp.Subquery(this=one, alias=exp.TableAlias(this=exp.to_identifier(name)))
            test = exp.EQ(this=number.copy(), expression=exp.column(N, table=name))
            join = exp.Join(this=source, side="LEFT", on=test)
            query.replace(exp.column("v", table=name))
            select.append("joins", join)
            if select.args.get("group"):
                select.args["group"].set(
                    "expressions", [exp.column("v", table=name), *select.args["group"].expressions]
                )
        return number

    def _tests(self, select: exp.Select, number: exp.Expr) -> None:
        """IN, EXISTS, and subqueries that speak of the rows around them: of the same instant."""
        for query in _queries_in(select):
            if not self.depends(query):
                continue
            inner = _unwrapped(query)
            if isinstance(inner, exp.Select) and _is_correlated(inner):
                self._correlated(inner, number)
                continue
            outputs = inner.named_selects
            self.visit(inner)
            listed = ", ".join(f"q.`{o}`" for o in outputs)
            around = names.parsed_query(f"SELECT {listed} FROM (SELECT 1) AS q WHERE q.{N} = 1")
            inner = _unwrapped(query)
            around.args["where"].this.set("expression", number.copy())
            inner.replace(around)
            around.args["from_"].this.set("this", inner)

    def _correlated(self, inner: exp.Select, number: exp.Expr) -> None:
        own = self._sources(inner, exports=False)
        self._scalars(inner, own)
        self._tests(inner, own)
        own = self._told_the_time(inner, own)
        for window in _windows(inner):
            window.set("partition_by", [own.copy(), *(window.args.get("partition_by") or [])])
        inner.where(exp.EQ(this=own, expression=number.copy()), copy=False)

    def _told_the_time(self, select: exp.Select, number: exp.Expr) -> exp.Expr:
        """The clock of a continuous query is its instant."""
        asked = [n for e in _clauses(select) for n in names.own_nodes(e) if names.says_the_time(n)]
        if not asked:
            return number
        tau = exp.column("now", table=CLOCK)
        for node in asked:
            node.replace(tau.copy())
        clock = names.parsed_query(f"SELECT 1 FROM {INSTANTS} AS {CLOCK}").args["from_"].this
        test = exp.EQ(this=exp.column("n", table=CLOCK), expression=number.copy())
        select.append("joins", exp.Join(this=clock, on=test))
        group = select.args.get("group")
        if group is not None and not group.args.get("all"):
            group.set("expressions", [tau, *group.expressions])
        return number

    # Groupings without keys

    def _global(self, select: exp.Select, number: exp.Expr) -> exp.Expr:
        """One row for each instant, also without rows: instants LEFT JOIN rows, and FILTER for real ones."""
        own = names.aliases(select)
        columns: dict[str, str] = {}
        outside: dict[str, exp.Column] = {}
        clauses = [*select.expressions, *(select.args[c] for c in ("having", "order") if select.args.get(c))]
        aggregates = names.aggregates_of(select)
        inside = {id(n) for a in aggregates for n in a.walk()}
        for column in [c for clause in clauses for c in clause.find_all(exp.Column)]:
            if column.table.lower() not in own:
                continue
            if column.table == CLOCK and id(column) not in inside:
                column.replace(exp.column("now", table=HERE))
                continue
            if column.table.startswith(SCALAR) and id(column) not in inside:
                outside[column.table] = column.copy()
                continue
            name = columns.setdefault(names.text(column), f"c{len(columns)}")
            column.replace(exp.column(name, table="__ms_all"))
        for aggregate in names.aggregates_of(select):
            _only_real(aggregate)
        listed = [f"{names.text(number)} AS {N}", f"TRUE AS {REAL}", *(f"{c} AS {n}" for c, n in columns.items())]
        rows = names.parsed_query(f"SELECT {', '.join(listed)} FROM (SELECT 1) AS u")
        for clause in ("from_", "joins", "laterals", "where"):
            rows.set(clause, select.args.get(clause))
            select.set(clause, None)
        text = f"SELECT 1 FROM {INSTANTS} AS {HERE} LEFT JOIN (SELECT 1) AS __ms_all ON __ms_all.{N} = {HERE}.n"
        around = names.parsed_query(text)
        around.args["joins"][0].this.set("this", rows)
        select.set("from_", around.args["from_"])
        number = exp.column("n", table=HERE)
        values = [j.copy() for j in rows.args.get("joins") or [] if j.this.alias_or_name in outside]
        for join in values:
            join.args["on"].set("this", number.copy())
        select.set("joins", [*around.args["joins"], *values])
        keys = [number.copy(), *outside.values()]
        if any(c.table == HERE and c.name == "now" for clause in clauses for c in clause.find_all(exp.Column)):
            keys.append(exp.column("now", table=HERE))
        select.set("group", exp.Group(expressions=keys))
        return number

    # LIMIT and order

    def _rank(
        self,
        select: exp.Select,
        number: exp.Expr,
        outputs: Sequence[str],
        items: list[exp.Expr],
        limit: exp.Expr | None,
        offset: exp.Expr | None,
        *,
        is_top: bool,
    ) -> None:
        if select.args.get("distinct"):
            made = [_output_item(i, outputs, select.expressions[1:]) for i in items]
            self._ranked(select, outputs, made, limit, offset, is_top=is_top)
            return
        meant = [_with_meaning(i, select.expressions) for i in items] or self._row_items(select)
        window = exp.Window(
            this=exp.RowNumber(),
            partition_by=[number.copy()],
            order=exp.Order(expressions=meant or [exp.Ordered(this=number.copy())]),
        )
        select.set("expressions", [*select.expressions, _named(window, RANK)])
        self._cut(select, outputs, limit, offset, is_top=is_top)

    def _row_items(self, select: exp.Select) -> list[exp.Expr]:
        """Without ORDER BY, rows of one stream go by their arrival."""
        leaves = [s for s in names.sources(select) if isinstance(s, exp.Table) and self.is_leaf(s.name)]
        if len(leaves) != 1 or select.args.get("group") or not leaves[0].name.startswith("__ms_window"):
            return []
        return [exp.Ordered(this=exp.column(ROW_NUMBER, table=leaves[0].alias_or_name))]

    def _ranked(
        self,
        query: exp.Query,
        outputs: Sequence[str],
        items: list[exp.Expr],
        limit: exp.Expr | None,
        offset: exp.Expr | None,
        *,
        is_top: bool,
    ) -> None:
        """The rank among the rows of a whole query, by what it gives."""
        listed = ", ".join([f"q.{N}", *(f"q.`{o}`" for o in outputs)])
        by = ", ".join(names.text(i) for i in items) or f"q.{N}"
        text = (
            f"SELECT {listed}, row_number() OVER (PARTITION BY q.{N} ORDER BY {by}) AS {RANK} FROM (SELECT 1) AS q"
        )
        around = names.parsed_query(text)
        query.replace(around)
        around.args["from_"].this.set("this", query)
        self._cut(around, outputs, limit, offset, is_top=is_top)

    def _cut(
        self,
        query: exp.Query,
        outputs: Sequence[str],
        limit: exp.Expr | None,
        offset: exp.Expr | None,
        *,
        is_top: bool,
    ) -> None:
        """Leave the rows within LIMIT; the rank stays where it decides the order of the answer."""
        if is_top:
            self.is_ranked = True
        if limit is None and offset is None:
            return
        skip = names.text(offset.expression) if offset is not None else "0"
        tests = [f"q.{RANK} > {skip}"]
        if limit is not None:
            tests.append(f"q.{RANK} <= {skip} + {names.text(limit.expression)}")
        listed = [f"q.{N}", *(f"q.`{o}`" for o in outputs), *([f"q.{RANK}"] if is_top else [])]
        around = names.parsed_query(f"SELECT {', '.join(listed)} FROM (SELECT 1) AS q WHERE {' AND '.join(tests)}")
        query.replace(around)
        around.args["from_"].this.set("this", query)

    # The rows that a row is made of

    def _pairs(self, select: exp.Select) -> list[exp.Expr]:
        found: list[exp.Expr] = []
        for source in names.sources(select):
            if not self.depends(source):
                continue
            alias = source.alias_or_name
            count = self._rows_in(source)
            marks = [("", "")] if isinstance(source, exp.Table) else [(str(i), str(i)) for i in range(count)]
            for t, r in marks:
                number = len(found) // 2
                found.append(_named(exp.column(f"{TIME}{t}", table=alias, quoted=True), f"{TIME}{number}"))
                found.append(
                    _named(exp.column(f"{ROW_NUMBER}{r}", table=alias, quoted=True), f"{ROW_NUMBER}{number}")
                )
        return found

    @staticmethod
    def _rows_in(source: exp.Expr) -> int:
        """How many pairs a source has got; it has been lifted already."""
        if isinstance(source, exp.Table):
            return 1
        inner = _unwrapped(source)
        return sum(n.startswith(TIME) for n in inner.named_selects)


NOT_SIMPLE = ("group", "having", "distinct", "limit", "offset", "order", "qualify", "windows", "laterals", "sort")


def _number_of(source: exp.Expr) -> exp.Expr:
    return exp.column(N, table=exp.to_identifier(source.alias_or_name, quoted=True))


def _named(node: exp.Expr, name: str) -> exp.Expr:
    return exp.alias_(node.copy(), name)


def _unwrapped(query: exp.Expr) -> exp.Query:
    while isinstance(query, exp.Subquery):
        query = query.this
    assert isinstance(query, exp.Query)
    return query


def _clauses(select: exp.Select) -> list[exp.Expr]:
    found = [*select.expressions]
    found += [select.args[c] for c in ("where", "having", "group", "order", "qualify") if select.args.get(c)]
    found += [j.args["on"] for j in select.args.get("joins") or [] if j.args.get("on")]
    return [*found, *(select.args.get("windows") or [])]


def _queries_in(select: exp.Select) -> list[exp.Expr]:
    """The queries in a select's expressions, without those in FROM."""
    return [n for clause in _clauses(select) for n in names.own_nodes(clause) if isinstance(n, names.QUERIES)]


def _windows(select: exp.Select) -> list[exp.Window]:
    """What a select says OVER, itself or by the name of a window; a name alone is partitioned already."""
    found = [n for e in _clauses(select) for n in names.own_nodes(e) if isinstance(n, exp.Window)]
    return [w for w in found if w.args.get("alias") is None or w.args.get("over") is None]


def _is_scalar(query: exp.Expr) -> bool:
    parent = query.parent
    return isinstance(query, exp.Subquery) and not isinstance(parent, exp.In | exp.Exists | exp.Subquery)


def _is_correlated(query: exp.Expr) -> bool:
    """Whether a query speaks of columns of a query around it."""

    def visit(node: exp.Expr, known: frozenset[str]) -> bool:
        if isinstance(node, exp.Select):
            known |= names.aliases(node)
        if isinstance(node, exp.Column) and node.table and node.table.lower() not in known:
            return True
        return any(visit(child, known) for child in node.iter_expressions())

    return visit(query, frozenset())


def _is_global(select: exp.Select) -> bool:
    """Whether a select makes one row of all: it has aggregates and no GROUP BY."""
    return not select.args.get("group") and bool(names.aggregates_of(select))


def _grouped_by(select: exp.Select, number: exp.Expr) -> None:
    group = select.args["group"]
    if group.args.get("all"):
        keys = [e.unalias() for e in select.expressions if not _has_aggregate(e)]
        select.set("group", exp.Group(expressions=[number.copy(), *(k.copy() for k in keys)]))
        return
    said = group.args.get("grouping_sets")
    if said and group.expressions:
        raise UnliftableError("GROUP BY … GROUPING SETS with a list in front")
    group.set("expressions", [number.copy(), *group.expressions, *(said or [])])
    group.set("grouping_sets", None)


def _has_aggregate(clause: exp.Expr) -> bool:
    found: list[exp.Expr] = []
    names.collect_aggregates(clause, found)
    return bool(found)


def _only_real(aggregate: exp.Expr) -> None:
    """Let an aggregate see the rows alone that there are, not the one that stands for none."""
    real = exp.column(REAL, table="__ms_all")
    found = aggregate.find(exp.Filter)
    if found is not None:
        where = found.expression
        where.set("this", exp.And(this=real, expression=exp.Paren(this=where.this)))
        return
    inner = aggregate.copy()
    aggregate.replace(exp.Filter(this=inner, expression=exp.Where(this=real)))


def _at_every_instant(query: exp.Expr) -> exp.Expr:
    made = names.parsed_query(f"SELECT {HERE}.n AS {N}, q.* FROM {INSTANTS} AS {HERE} CROSS JOIN (SELECT 1) AS q")
    made.args["joins"][0].this.set("this", _unwrapped(query).copy())
    return made


def _spread(source: exp.Expr) -> exp.Expr:
    """A source that is the same at every instant, once for each."""
    alias = source.alias_or_name
    text = f"SELECT 1 FROM (SELECT {HERE}.n AS {N}, q.* FROM {INSTANTS} AS {HERE} CROSS JOIN x AS q) AS `{alias}`"
    made: exp.Expr = names.parsed_query(text).args["from_"].this
    inner = source.copy()
    inner.set("alias", exp.TableAlias(this=exp.to_identifier("q")))
    made.this.args["joins"][0].set("this", inner)
    return made


def _unquote_sides(query: exp.SetOperation) -> None:
    """A side of a set operation that has come to be a subquery in brackets stays one."""
    for key in ("this", "expression"):
        side = query.args[key]
        if isinstance(side, exp.Select) and side.args.get("order"):
            side.set("order", None)


def _with_meaning(item: exp.Expr, expressions: Sequence[exp.Expr]) -> exp.Expr:
    """An item of ORDER BY with what it calls by the name of an output."""
    meanings = {e.alias_or_name.lower(): e.unalias() for e in expressions}
    copy = item.copy()
    holder = exp.Paren(this=copy)
    for column in [c for c in holder.find_all(exp.Column) if not c.table]:
        meaning = meanings.get(column.name.lower())
        if meaning is not None:
            column.replace(exp.Paren(this=meaning.copy()))
    made: exp.Expr = holder.this
    return made


def _output_item(item: exp.Expr, outputs: Sequence[str], expressions: Sequence[exp.Expr]) -> exp.Expr:
    """An item of ORDER BY by the columns that a query gives."""
    known = {o.lower(): o for o in outputs}
    meanings = {names.text(e.unalias()): e.alias_or_name for e in expressions}
    copy = item.copy()
    said = copy.this if isinstance(copy, exp.Ordered) else copy
    name = meanings.get(names.text(said))
    if name is None and isinstance(said, exp.Literal) and said.is_int:
        name = outputs[int(said.this) - 1]
    if name is None and isinstance(said, exp.Column) and said.name.lower() in known:
        name = known[said.name.lower()]
    if name is None:
        raise UnliftableError("ORDER BY something that DISTINCT or a set operation does not give")
    column = exp.column(name, table="q", quoted=True)
    if isinstance(copy, exp.Ordered):
        copy.set("this", column)
        return copy
    return column
