"""Where a demonstration is shown: numbered steps, short sentences, SQL, small tables, block charts.

Everything fits in 80 columns. Colour, spinners and moving parts appear on a terminal only; in a pipe
the same story comes out as plain text.
"""

from __future__ import annotations

import re
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from millstream.cli.printer import console_on, error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType

    from millstream.errors import MillstreamError

PLAIN_WIDTH = 80
WIDEST = 96
INDENT = 3
SQL_INDENT = 5
EIGHTHS = " ▁▂▃▄▅▆▇█"
PARTS = " ▏▎▍▌▋▊▉█"
UPPER_WORD = re.compile(r"\b[A-Z]{2,}\b")
LITERAL = re.compile(r"'[^'\n]*'|(?<![\w.])\d+(?![\w.])")
COMMENT = re.compile(r"--.*$", re.MULTILINE)


class Stage:
    """Shows a story on a console, step by step."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._step = 0

    @classmethod
    def on(cls, stream: TextIO) -> Stage:
        console = console_on(stream)
        console.width = min(console.width, WIDEST) if console.is_terminal else PLAIN_WIDTH
        return cls(console)

    def title(self, title: str, about: str) -> None:
        self.gap()
        self.show(Text(title, style="bold"), 0)
        self.show(Text(about, style="dim"), 0)

    def step(self, title: str) -> None:
        """Begin the next numbered step."""
        self._step += 1
        head = Text.assemble((f"{self._step:>2}", "bold cyan"), (f" {title} ", "bold"))
        head.append("─" * max(0, self.console.width - head.cell_len - 1), style="dim")
        self.gap()
        self.show(head, 0)

    def say(self, sentences: str) -> None:
        """Plain sentences, wrapped to the console."""
        self.show(Text(" ".join(sentences.split())))

    def aside(self, remark: str) -> None:
        """What may be skipped: timings, statuses."""
        self.show(Text(remark, style="dim"))

    def gap(self) -> None:
        self.console.print()

    def show(self, renderable: RenderableType, indent: int = INDENT) -> None:
        """Anything at all, set in from the left."""
        if self.console.is_terminal:
            self.console.print(Padding(renderable, (0, 0, 0, indent)))
            return
        with self.console.capture() as captured:
            self.console.print(Padding(renderable, (0, 0, 0, indent)))
        # Rich fills lines up to the width, which is right for a screen and clutter in a file.
        for line in captured.get().splitlines():
            self.console.file.write(line.rstrip() + "\n")
        self.console.file.flush()

    @contextmanager
    def moving(self, first: RenderableType) -> Iterator[Callable[[RenderableType], None]]:
        """A picture that changes; hands out what replaces it. In a pipe only the last one is shown."""
        last = first

        def replace(picture: RenderableType) -> None:
            nonlocal last
            last = picture
            live.update(_set_in(picture), refresh=True)

        with Live(_set_in(first), console=self.console, auto_refresh=False, transient=True) as live:
            yield replace
        self.show(last)

    def sql(self, statement: str) -> None:
        """A statement as the reader could type it."""
        self.gap()
        self.show(highlighted(textwrap.dedent(statement).strip()), SQL_INDENT)
        self.gap()

    def error(self, error: MillstreamError) -> None:
        """A failure, as the shell would tell it."""
        self.show(error_text(error), SQL_INDENT)

    @contextmanager
    def busy(self, what: str) -> Iterator[Clock]:
        """Show a spinner while the block runs; hands out what tells how long it took."""
        clock = Clock()
        with self.console.status(Text(f"{what} …", style="dim"), spinner="dots"):
            yield clock
        clock.stop()


def _set_in(renderable: RenderableType) -> Padding:
    return Padding(renderable, (0, 0, 0, INDENT))


class Clock:
    """How long something took: runs from its making to `stop`."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def stop(self) -> None:
        self._stopped = time.perf_counter()

    @property
    def seconds(self) -> float:
        end = time.perf_counter() if self._stopped is None else self._stopped
        return end - self._started

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s" if self.seconds >= 10 else f"{self.seconds:.2f} s"


def highlighted(statement: str) -> Text:
    """SQL with its keywords, literals and comments set apart."""
    text = Text(statement, no_wrap=True, overflow="ellipsis")
    text.highlight_regex(UPPER_WORD, "cyan")
    text.highlight_regex(LITERAL, "green")
    text.highlight_regex(COMMENT, "dim not bold")
    return text


def folded(line: str, width: int) -> str:
    """A line broken where it is too long, its parts set in further than its beginning."""
    own = len(line) - len(line.lstrip())
    return textwrap.fill(line.strip(), width, initial_indent=" " * own, subsequent_indent=" " * (own + 2))


def grid(headings: Sequence[str], rows: Sequence[Sequence[RenderableType]], right: Sequence[int] = ()) -> Table:
    """A calm table; the columns in `right` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", border_style="dim")
    for place, heading in enumerate(headings):
        justify = "right" if place in right else "left"
        table.add_column(Text(heading), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table


def bar(value: float, largest: float, width: int = 24, style: str = "yellow") -> Text:
    """A horizontal bar, exact to an eighth of a character."""
    eighths = round(8 * width * max(0.0, value) / largest) if largest > 0 else 0
    whole, rest = divmod(eighths, 8)
    return Text(("█" * whole + (PARTS[rest] if rest else "")).ljust(width), style=style)


def columns(values: Mapping[str, float], height: int = 6, unit: str = "") -> Text:
    """A chart of upright columns: a label below each, the largest value beside the top."""
    largest = max(values.values(), default=0.0)
    top = f"{largest:.0f}{unit}"
    width = max((len(label) for label in values), default=1)
    chart = Text(no_wrap=True, overflow="crop")
    for level in reversed(range(height)):
        chart.append(f"{top if level == height - 1 else '0' if level == 0 else '':>{len(top)}} ", style="dim")
        for value in values.values():
            chart.append(_cell(value, largest, level, height) * width + " ", style="yellow")
        chart.append("\n")
    return chart.append(" " * (len(top) + 1) + " ".join(f"{n:>{width}}" for n in values), style="dim")


def _cell(value: float, largest: float, level: int, height: int) -> str:
    eighths = round(8 * height * max(0.0, value) / largest) if largest > 0 else 0
    return EIGHTHS[min(8, max(0, eighths - 8 * level))]
