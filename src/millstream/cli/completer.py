"""Completion for the shell: keywords, names in the catalogue, shortcuts and paths.

Names come from `Database.objects()`, which reads the catalogue and never starts Spark; they are read
once for each prompt, at the first key that needs them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prompt_toolkit.completion import Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from millstream.database import KEYWORDS
from millstream.errors import MillstreamError
from millstream.settings import USE_INDEXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prompt_toolkit.completion import CompleteEvent

    from millstream.database import ObjectInfo

WORD = re.compile(r"[\w$]*$")
QUALIFIER = re.compile(r"(`(?:[^`]|``)+`|\w+)\.[\w$]*$")
SHORTCUT = re.compile(r"\s*\\\S*$")
SHORTCUT_ARGUMENT = re.compile(r"\s*(\\\S+)\s+(.*)$", re.DOTALL)
COPY_PATH = re.compile(r"\bcopy\b.*\b(?:from|to)\s+'([^']*)$", re.IGNORECASE | re.DOTALL)
IDENTIFIER = r"(`(?:[^`]|``)+`|\w+)"
ALIASED = re.compile(
    rf"(?:\b(?:from|join|update|into)\s+|,\s*){IDENTIFIER}\s*(?:\[[^\]]*\]\s*)?(?:\bas\s+)?{IDENTIFIER}",
    re.IGNORECASE,
)
NAME_COMES_NEXT = re.compile(
    r"\b(from|join|into|update|table|stream|view|query|describe|desc|copy|advance|subscribe|pause|resume|on|truncate)"
    r"\s+[\w$]*$",
    re.IGNORECASE,
)
VALID = re.compile(r"\bvalid\s*\(\s*[\w$]*$", re.IGNORECASE)
SET = re.compile(r"\s*set\s+(?:(\w+)\s*(?:=|\bto\b)\s*)?\w*$", re.IGNORECASE)


class ShellCompleter(Completer):
    """Offers what can stand at the cursor, nearest first."""

    def __init__(
        self, objects: Callable[[], list[ObjectInfo]], shortcuts: Mapping[str, tuple[str, Sequence[str]]]
    ) -> None:
        self._load = objects
        self._known: list[ObjectInfo] | None = None
        self._shortcuts = shortcuts
        self._paths = PathCompleter(expanduser=True)

    def forget(self) -> None:
        """Read the catalogue anew at the next key."""
        self._known = None

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        if SHORTCUT.match(before):
            yield from self._shortcut_names(before.strip())
        elif match := SHORTCUT_ARGUMENT.match(before):
            yield from self._shortcut_arguments(match[1], match[2], event)
        elif match := COPY_PATH.search(before):
            yield from self._paths.get_completions(Document(match[1]), event)
        elif not _inside_quotes(before):
            yield from self._sql(before)

    def _shortcut_names(self, typed: str) -> Iterator[Completion]:
        for name, (help_, _) in self._shortcuts.items():
            if name.startswith(typed):
                yield Completion(name, -len(typed), display_meta=help_)

    def _shortcut_arguments(self, name: str, typed: str, event: CompleteEvent) -> Iterator[Completion]:
        kinds = self._shortcuts.get(name, ("", ()))[1]
        if "FILE" in kinds:
            yield from self._paths.get_completions(Document(typed), event)
        elif "NAME" in kinds:
            yield from self._matching(typed, self._object_names())
        else:
            yield from self._matching(typed, ((kind, "") for kind in kinds))

    def _sql(self, before: str) -> Iterator[Completion]:
        word = WORD.search(before)
        typed = word[0] if word else ""
        if qualifier := QUALIFIER.search(before):
            yield from self._matching(typed, self._columns_of(_bare(qualifier[1]), before))
        elif setting := SET.match(before):
            yield from self._matching(typed, _settings(setting[1]))
        elif VALID.search(before):
            yield from self._matching(typed, self._streaming(before))
        elif NAME_COMES_NEXT.search(before):
            yield from self._matching(typed, self._object_names())
            yield from self._keywords(typed)
        elif typed:
            yield from self._matching(typed, self._columns_in(before))
            yield from self._keywords(typed)
            yield from self._matching(typed, self._object_names())

    def _matching(self, typed: str, names: Iterable[tuple[str, str]]) -> Iterator[Completion]:
        for name, meta in names:
            if name.lower().startswith(typed.lower()):
                yield Completion(_quoted(name), -len(typed), display=name, display_meta=meta)

    def _keywords(self, typed: str) -> Iterator[Completion]:
        for keyword in KEYWORDS:
            if typed and keyword.startswith(typed.upper()):
                yield Completion(keyword.lower() if typed.islower() else keyword, -len(typed))

    def _objects(self) -> list[ObjectInfo]:
        if self._known is None:
            try:
                self._known = self._load()
            except MillstreamError:
                self._known = []
        return self._known

    def _object_names(self) -> Iterator[tuple[str, str]]:
        return ((o.name, str(o.kind)) for o in self._objects())

    def _columns_in(self, text: str) -> Iterator[tuple[str, str]]:
        """The columns of every object that the text names, each once."""
        words = {w.lower() for w in re.findall(r"\w+", text)}
        named = [o for o in self._objects() if o.name.lower() in words] or self._objects()
        columns = {c: o.name for o in named for c in o.columns}
        return iter(columns.items())

    def _streaming(self, text: str) -> Iterator[tuple[str, str]]:
        """What VALID can name: the aliases of streaming tables in the text, then the tables themselves."""
        names = [o.name for o in self._objects() if str(o.kind) == "streaming table"]
        lower = {n.lower() for n in names}
        aliases = {m[2]: m[1] for m in ALIASED.finditer(text) if _bare(m[1]).lower() in lower}
        yield from ((_bare(a), n) for a, n in aliases.items() if a.upper() not in KEYWORDS)
        yield from ((n, "streaming table") for n in names)

    def _columns_of(self, qualifier: str, text: str) -> Iterator[tuple[str, str]]:
        """The columns behind a name or an alias."""
        aliased = ((_bare(m[1]).lower(), _bare(m[2]).lower()) for m in ALIASED.finditer(text))
        wanted = {qualifier.lower(), *(name for name, alias in aliased if alias == qualifier.lower())}
        return ((c, o.name) for o in self._objects() if o.name.lower() in wanted for c in o.columns)


def _settings(name: str | None) -> Iterator[tuple[str, str]]:
    """The settings there are, or the values that one can have."""
    if name is None:
        yield USE_INDEXES, "setting"
    elif name.lower() == USE_INDEXES:
        yield from (("on", ""), ("off", ""))


def _inside_quotes(text: str) -> bool:
    return text.count("'") % 2 == 1 or text.count('"') % 2 == 1


def _bare(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return name
    return "`" + name.replace("`", "``") + "`"
