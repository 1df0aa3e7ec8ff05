r"""The shell: a prompt on a terminal, or a reader of statements from a pipe.

On a terminal: history, completion, colours, several lines up to the `;`, a question before data is
taken away, Ctrl-C to cancel. From a pipe: no prompts and no questions, statements run as they
come in, and the first failure ends it unless told to keep going. Shortcuts work in both.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.filters import completion_is_selected, has_completions
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer  # type: ignore[import-untyped]
from pygments.token import Keyword, Name, _TokenType  # type: ignore[import-untyped]

from millstream.cli import confirm, shortcuts
from millstream.cli.completer import ShellCompleter
from millstream.cli.feed import Chunk, chunks_of
from millstream.cli.runner import Outcome, Runner, run_all
from millstream.database import KEYWORDS, is_complete
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.key_binding import KeyPressEvent

PROMPT = "millstream> "
CONTINUATION = "        ..> "
LEAVING_WORDS = ("quit", "exit")


class Shell:
    """Reads statements and shortcuts and runs them, one after the other."""

    def __init__(self, runner: Runner, *, keep_going: bool = False) -> None:
        self._runner = runner
        self._keep_going = keep_going
        self._context = shortcuts.Context(runner, self._include)

    def read(self, chunks: Iterable[Chunk]) -> Outcome:
        """Run what comes through a pipe."""
        try:
            return run_all(chunks, self._run, self._keep_going)
        except shortcuts.LeaveError:
            return Outcome.OK

    def interact(self, history: History | None = None) -> Outcome:
        """Prompt until the user leaves; failures have been shown and do not count."""
        completer = ShellCompleter(self._runner.objects, _completions())
        typed = _prompt(completer, history or stored_history())
        asked: PromptSession[str] = PromptSession()
        while True:
            completer.forget()
            try:
                self._obey(typed.prompt(), asked)
            except KeyboardInterrupt:
                continue
            except (EOFError, shortcuts.LeaveError):
                return Outcome.OK

    def _obey(self, text: str, asked: PromptSession[str]) -> None:
        if text.strip().rstrip(";").lower() in LEAVING_WORDS:
            raise shortcuts.LeaveError
        chunk = Chunk(text.strip())
        if chunk.text and (chunk.is_shortcut or _confirmed(text, asked)):
            self._run(chunk)

    def _run(self, chunk: Chunk) -> Outcome:
        if not chunk.is_shortcut:
            return self._runner.run(chunk)
        try:
            return shortcuts.run_shortcut(self._context, chunk.text)
        except MillstreamError as error:
            self._runner.printer.error(error, chunk.where)
            return Outcome.FAILED

    def _include(self, path: str) -> Outcome:
        return run_all(chunks_of(os.path.expanduser(path), shortcuts=True), self._run, self._keep_going)


def stored_history() -> History:
    """The history kept under the XDG state folder; only in memory where that cannot be written."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "millstream"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "history"
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


class MillstreamLexer(SqlLexer):  # type: ignore[misc]
    """Pygments' SQL with Millstream's keywords."""

    keywords = frozenset(KEYWORDS)

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, _TokenType, str]]:
        for position, kind, value in super().get_tokens_unprocessed(text):
            yield position, Keyword if kind is Name and value.upper() in self.keywords else kind, value


def _prompt(completer: ShellCompleter, history: History) -> PromptSession[str]:
    return PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation=CONTINUATION,
        lexer=PygmentsLexer(MillstreamLexer),
        completer=completer,
        complete_while_typing=True,
        auto_suggest=AutoSuggestFromHistory(),
        key_bindings=_bindings(),
        history=history,
    )


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=~completion_is_selected)
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_whole(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @bindings.add("enter", filter=completion_is_selected)
    def take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @bindings.add("tab", filter=~has_completions)
    def complete(event: KeyPressEvent) -> None:
        complete_now(event.current_buffer)

    return bindings


def complete_now(buffer: Buffer) -> None:
    """Insert what is certain and offer the rest.

    The prompt's own Tab does nothing while it still looks up what to offer for the key before.
    """
    event = CompleteEvent(completion_requested=True)
    found = list(buffer.completer.get_completions(buffer.document, event))
    if len(found) == 1:
        buffer.apply_completion(found[0])
    elif found:
        buffer.insert_text(get_common_complete_suffix(buffer.document, found))
        buffer.start_completion()


def is_whole(text: str) -> bool:
    """Whether Enter runs the text: nothing, a shortcut, a word of leave-taking, or whole statements."""
    bare = text.strip()
    return not bare or bare.startswith("\\") or bare.lower() in LEAVING_WORDS or is_complete(text)


def _confirmed(text: str, asked: PromptSession[str]) -> bool:
    for warning in confirm.warnings(text):
        try:
            answer = asked.prompt(f"{warning} Go on? [y/N] ")
        except (KeyboardInterrupt, EOFError):
            return False
        if answer.strip().lower() not in ("y", "yes"):
            return False
    return True


def _completions() -> dict[str, tuple[str, tuple[str, ...]]]:
    return {name: (s.help, s.arguments) for name, s in shortcuts.BY_NAME.items()}
