"""A continuous view's query → its plan: static, stream and upper fragments, after Umbra's planning steps.

    1  views opened, WITH inlined, names qualified                          normal.py
    2  every part told apart: static, a stream's rows, or groups            here
    3  what is below a grouping checked; stream sides probe                 shape.py
    4  static parts below a grouping evaluated once and kept                here
    5  groupings split into partial results and their merge                 block.py, aggregates.py
    6  what is left reads merged states and tables: the upper fragment      here

ORDER BY without LIMIT is dropped. What cannot be kept up to date is refused, underlined, with a change that helps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.plan.incremental import NOW, ONCE, Part, Static, ViewPlan, static_name, stream_name
from millstream.rewrite import block, names, shape
from millstream.rewrite.normal import normal
from millstream.rewrite.refuse import refused
from millstream.schema import quote
from millstream.storage.scan import ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Known:
    """A table or stream as the rewriter sees it; `time` is the time column of a stream."""

    id: int
    name: str
    columns: tuple[str, ...]
    is_stream: bool
    time: str | None = None


class Role(Enum):
    """What a part of a query is: without streams, rows of a stream, or made of groups of streams."""

    STATIC = 1
    ROWS = 2
    GROUPS = 3


def plan_view(
    tree: exp.Query,
    known: Mapping[str, Known],
    opened: Callable[[str], exp.Query | None],
    types: Callable[[str, Sequence[Static]], Mapping[str, str]],
) -> ViewPlan:
    """The fragments of a view. `known` has all tables and streams by lower-case name, `opened` opens views.

    `types` tells the types of a fragment's columns, given the static parts it may speak of.
    """
    query, clock = told_the_time(normal(tree, opened, {name: k.columns for name, k in known.items()}))
    rewriter = Rewriter(known, types)
    role = rewriter.visit(query)
    if role is Role.STATIC:
        raise refused(
            "this view reads no stream, so there is nothing to keep up to date",
            None,
            "Use CREATE VIEW, or read a STREAM or STREAMING TABLE in it.",
        )
    if role is Role.ROWS:
        raise shape.ungrouped(rewriter.first_stream(query))
    if isinstance(query, exp.Select | exp.SetOperation):
        _forget_order(query)
    above = {t.name.lower() for t in query.find_all(exp.Table) if t.name.lower() in known}
    return ViewPlan(
        tuple(rewriter.statics),
        tuple(rewriter.parts),
        rewriter.upper(query),
        tuple(sorted(known[n].name for n in above)),
        clock,
    )


@dataclass
class Rewriter:
    known: Mapping[str, Known]
    types_with: Callable[[str, Sequence[Static]], Mapping[str, str]]
    statics: list[Static] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    def upper(self, query: exp.Query) -> str:
        """The upper fragment as text."""
        text = names.text(query)
        for name, meaning in self.texts.items():
            text = text.replace(name, meaning)
        return text

    def types(self, sql: str) -> Mapping[str, str]:
        return self.types_with(sql, self.statics)

    def first_stream(self, query: exp.Expr) -> exp.Expr | None:
        return next((t for t in query.find_all(exp.Table) if self._is_stream(t)), None)

    def _is_stream(self, table: exp.Table) -> bool:
        found = self.known.get(table.name.lower())
        return found is not None and found.is_stream

    # Telling parts apart

    def visit(self, query: exp.Expr) -> Role:
        """The role of a query; groupings of streams inside have been replaced when this returns."""
        match query:
            case exp.Subquery():
                role = self.visit(query.this)
                if role is Role.ROWS:
                    shape.check_flows(query)
                return role
            case exp.Select():
                return self._select(query)
            case exp.SetOperation():
                return self._set_operation(query)
            case exp.Table() if self._is_stream(query):
                return Role.ROWS
        if any(self._is_stream(t) for t in query.find_all(exp.Table)):
            raise refused("a stream stands where it cannot be kept up to date", query, "Read it in FROM.")
        return Role.STATIC

    def _set_operation(self, query: exp.SetOperation) -> Role:
        roles = [self.visit(query.this), self.visit(query.expression)]
        if Role.ROWS not in roles:
            return Role.GROUPS if Role.GROUPS in roles else Role.STATIC
        if query.args.get("distinct") is not False:
            # Without ALL duplicates go anyway, so they may go early: each side is a grouping.
            for side, role in ((query.this, roles[0]), (query.expression, roles[1])):
                if role is Role.ROWS:
                    self._distinct(side)
            return Role.GROUPS
        if not isinstance(query, exp.Union):
            raise refused(
                f"{query.key.upper()} ALL counts rows of a stream against others",
                query,
                f"Use {query.key.upper()} without ALL, or group the stream first.",
            )
        if Role.GROUPS in roles:
            raise refused(
                "UNION ALL of a stream's rows and of groups of a stream, below a grouping",
                query,
                "Group each side in its own query and UNION ALL the groups.",
            )
        for side, role in ((query.this, roles[0]), (query.expression, roles[1])):
            if role is Role.STATIC:
                self._only_once(side)
        shape.check_flows(query)
        return Role.ROWS

    @staticmethod
    def _only_once(side: exp.Expr) -> None:
        """Static rows beside a stream's count once, when the view is made."""
        once = names.parsed_query(f"SELECT 1 FROM (SELECT 1) AS u WHERE {ONCE}")
        assert isinstance(once, exp.Select)
        inner = side.this if isinstance(side, exp.Subquery) else side
        assert isinstance(inner, exp.Query)
        columns = [exp.column(n, table="u", quoted=True) for n in inner.named_selects]
        once.set("expressions", [exp.alias_(c, c.name, quoted=True) for c in columns])
        side.replace(once)
        once.args["from_"].this.set("this", inner)

    def _distinct(self, side: exp.Expr) -> None:
        """Make a query of a stream's rows a DISTINCT one, which is a grouping."""
        while isinstance(side, exp.Subquery):
            side = side.this
        if isinstance(side, exp.SetOperation):
            wrapped = names.parsed_query("SELECT DISTINCT * FROM (SELECT 1) AS u")
            names_of = side.named_selects
            assert isinstance(wrapped, exp.Select)
            wrapped.set("expressions", [exp.column(n, table="u", quoted=True) for n in names_of])
            inner = side.copy()
            wrapped.args["from_"].this.set("this", inner)
            side.replace(wrapped)
            side = wrapped
        assert isinstance(side, exp.Select)
        side.set("distinct", exp.Distinct())
        self._group(side)

    def _select(self, select: exp.Select) -> Role:
        sources = names.sources(select)
        roles = [self.visit(s) for s in sources]
        rows = [i for i, r in enumerate(roles) if r is Role.ROWS]
        groups = [i for i, r in enumerate(roles) if r is Role.GROUPS]
        inner = self._subqueries(select)
        if not rows:
            _forget_order(select)
            return Role.GROUPS if groups or Role.GROUPS in inner.values() else Role.STATIC
        shape.check_one_stream(select, rows, groups)
        shape.check_joins(select, rows[0])
        is_grouping = self._is_grouping(select)
        self._check_subqueries(select, inner, is_grouping=is_grouping)
        shape.check_rows(select, self._below(select, is_grouping=is_grouping))
        if not select.args.get("group") and not any(_has_aggregate(e) for e in select.expressions):
            shape.check_windows(select)
        if not is_grouping:
            shape.check_flows(select)
            return Role.ROWS
        self._group(select)
        return Role.GROUPS

    @staticmethod
    def _is_grouping(select: exp.Select) -> bool:
        if select.args.get("group") or select.args.get("distinct"):
            return True
        clauses = [*select.expressions, *([select.args["having"]] if select.args.get("having") else [])]
        return any(found for clause in clauses for found in [_has_aggregate(clause)])

    def _below(self, select: exp.Select, *, is_grouping: bool) -> list[exp.Expr]:
        """What is said of single rows: everything but the answers of a grouping and what is lifted."""
        joins = [j.args["on"] for j in select.args.get("joins") or [] if j.args.get("on")]
        if not is_grouping:
            where = [select.args["where"].this] if select.args.get("where") else []
            return [*select.expressions, *joins, *where]
        said = select.args.get("group")
        keys = [said] if said is not None else []
        return [*joins, *keys, *_distinct_items(select), *names.aggregates_of(select)]

    # Subqueries in expressions

    def _subqueries(self, select: exp.Select) -> dict[int, Role]:
        """The roles of the queries in a select's expressions; those that ask if there is a row are groupings."""
        found: dict[int, Role] = {}
        for query in _queries_in(select):
            role = self.visit(query)
            if role is Role.ROWS:
                self._whether(query)
                role = Role.GROUPS
            found[id(query)] = role
        return found

    def _whether(self, query: exp.Expr) -> None:
        parent = query.parent
        inner = query
        while isinstance(inner, exp.Subquery):
            inner = inner.this
        if not isinstance(parent, exp.Exists | exp.In) or not isinstance(inner, exp.Select):
            raise refused(
                "a scalar subquery over a stream's rows",
                query,
                "Use an aggregate in it, such as max(…), so that it is one value whatever comes.",
            )
        if isinstance(parent, exp.Exists):
            inner.set("expressions", [exp.alias_(exp.true(), "one", quoted=True)])
        self._group(inner, only_whether=True)

    def _check_subqueries(self, select: exp.Select, inner: Mapping[int, Role], *, is_grouping: bool) -> None:
        """Groups of streams may be asked of in HAVING or the answers of a grouping, not of single rows."""
        for query in _queries_in(select):
            if inner.get(id(query)) is not Role.GROUPS:
                continue
            if not is_grouping or not _is_above(query, select):
                raise refused(
                    "a stream in a subquery below the grouping of another",
                    query,
                    "Group first, and compare with the subquery in HAVING or in a query around.",
                )

    # Groupings

    def _group(self, select: exp.Select, *, only_whether: bool = False) -> None:
        if not select.args.get("group") and any(_has_aggregate(e) for e in select.expressions):
            # One row is distinct anyway.
            select.set("distinct", None)
        streams = self._place_streams(select)
        source = block.Source(streams, self._source_text(select), self._order(select))
        made = block.group(select, source, self.types, len(self.parts), self.texts, only_whether=only_whether)
        self.parts += made.parts
        self.texts |= made.texts

    def _source_text(self, select: exp.Select) -> str:
        """FROM with its joins and lateral views, where all that is static has been pinned."""
        self._pin(select)
        clauses = [
            select.args["from_"].this,
            *(select.args.get("joins") or []),
            *(select.args.get("laterals") or []),
        ]
        return " ".join(names.text(c) for c in clauses)

    def _place_streams(self, select: exp.Select) -> tuple[int, ...]:
        """Put place-holders for the streams below; returns which they are."""
        found: list[int] = []
        for source in names.sources(select):
            for table in source.find_all(exp.Table):
                if self._is_stream(table):
                    stream = self.known[table.name.lower()]
                    found += [] if stream.id in found else [stream.id]
                    alias = table.alias_or_name
                    table.set("this", exp.to_identifier(stream_name(stream.id), quoted=False))
                    table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        return tuple(found)

    def _order(self, select: exp.Select) -> str | None:
        """What first and last go by: the time and place of the stream's row, if the stream itself is in FROM."""
        by_place = {stream_name(k.id): k for k in self.known.values() if k.is_stream}
        for source in names.sources(select):
            if isinstance(source, exp.Table) and source.name in by_place:
                time, alias = by_place[source.name].time, source.alias_or_name
                return None if time is None else f"struct(`{alias}`.`{time}` AS t, `{alias}`.`{ROW}` AS r)"
        return None

    def _pin(self, select: exp.Select) -> None:
        """Replace the static parts below a grouping by what they are now, with the columns that are asked for."""
        for source in names.sources(select):
            if not _has_stream(source):
                self._pin_source(source, select)
            else:
                for table in list(source.find_all(exp.Table)):
                    if not table.name.startswith("__ms_"):
                        self._pin_source(table, table.parent_select or select)
        for clause in (*self._row_clauses(select),):
            for table in list(clause.find_all(exp.Table)):
                if not table.name.startswith("__ms_"):
                    self._pin_source(table, table.parent_select or select)

    def _row_clauses(self, select: exp.Select) -> list[exp.Expr]:
        said = [select.args.get("where"), select.args.get("group"), *(select.args.get("joins") or [])]
        every = (*said, *names.aggregates_of(select), *_distinct_items(select))
        return [c for c in every if c is not None]

    def _pin_source(self, source: exp.Expr, scope: exp.Select) -> None:
        alias = source.alias_or_name
        columns = sorted(names.columns_asked(scope, alias.lower()))
        listed = ", ".join(f"{quote(alias)}.{quote(c)}" for c in columns) or "1 AS one"
        tables = tuple(sorted({t.name for t in source.find_all(exp.Table)}))
        static = Static(f"SELECT {listed} FROM {names.text(source)}", tables)
        if static not in self.statics:
            self.statics.append(static)
        name = static_name(self.statics.index(static))
        placed = names.parsed_query(f"SELECT 1 FROM {name} AS {quote(alias)}").args["from_"].this
        source.replace(placed)


def told_the_time(query: exp.Query) -> tuple[exp.Query, str]:
    """Calls of the clock as the moment of the read, and how fine it is asked."""
    asked: set[str] = set()

    def visit(node: exp.Expr) -> exp.Expr:
        if not names.calls_the_clock(node):
            return node
        day = isinstance(node, exp.CurrentDate) or names.name_of(node) in ("curdate", "current_week")
        asked.add("day" if day else "instant")
        if names.name_of(node) == "current_week":
            return names.parsed(f"weekofyear(CAST({NOW} AS DATE))")
        if isinstance(node, exp.Localtimestamp):
            return names.parsed(f"CAST({NOW} AS TIMESTAMP_NTZ)")
        return names.parsed(f"CAST({NOW} AS DATE)" if day else NOW)

    made = query.transform(visit)
    assert isinstance(made, exp.Query)
    return made, max(asked, default="")


def _forget_order(query: exp.Query) -> None:
    """The rows of a view have no order, unless it decides which of them there are."""
    if not query.args.get("limit") and not query.args.get("offset"):
        query.set("order", None)


def _distinct_items(select: exp.Select) -> list[exp.Expr]:
    """What a DISTINCT groups by."""
    is_key = select.args.get("distinct") and not select.args.get("group")
    return [e for e in select.expressions if not _has_aggregate(e)] if is_key else []


def _has_aggregate(clause: exp.Expr) -> bool:
    """Whether an aggregate stands in a clause that no OVER takes."""
    found: list[exp.Expr] = []
    names.collect_aggregates(clause, found)
    return bool(found)


def _has_stream(node: exp.Expr) -> bool:
    return any(t.name.startswith("__ms_stream_") for t in node.find_all(exp.Table))


def _queries_in(select: exp.Select) -> list[exp.Expr]:
    """The queries in a select's expressions, without those in FROM."""
    clauses = [*select.expressions]
    clauses += [select.args[c] for c in ("where", "having", "group", "order", "qualify") if select.args.get(c)]
    clauses += [j.args["on"] for j in select.args.get("joins") or [] if j.args.get("on")]
    return [n for clause in clauses for n in names.own_nodes(clause) if isinstance(n, names.QUERIES)]


def _is_above(query: exp.Expr, select: exp.Select) -> bool:
    """Whether a subquery is asked of groups: in HAVING, or among the answers outside of aggregates."""
    node: exp.Expr | None = query
    while node is not None and node.parent is not select:
        if names.is_aggregate(node):
            return False
        node = node.parent
    return node is not None and (node.arg_key in ("having", "expressions", "order", "qualify"))
