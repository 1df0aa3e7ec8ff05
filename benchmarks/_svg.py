"""Line and dot plots as SVG files: what the benchmarks show over time, without a plotting library.

A plot has one pair of axes that start at zero, and one or more series, each a line through its points or
the points alone. Text is plain, so that a plot reads well beside the prose it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from pathlib import Path

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 56, 48
COLOURS = ("#2563a8", "#c2571a", "#3b7d4f", "#7a4fa3")
INK, FAINT = "#333333", "#dddddd"
TICKS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """Points with a name; `dots` are not joined."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """What to draw."""

    title: str
    across: str
    up: str
    series: Sequence[Series]
    limit: float | None = None
    """A level to draw across the plot, such as a target."""

    def save(self, path: Path) -> None:
        path.write_text(self.svg(), encoding="utf-8")

    def svg(self) -> str:
        frame = _Frame.around(self)
        body = [*_axes(self, frame), *_limit(self, frame)]
        for series, colour in zip(self.series, COLOURS, strict=False):
            body += _dots(series, frame, colour) if series.dots else [_line(series, frame, colour)]
        body += _legend(self)
        size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        return "\n".join([opening, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *body, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Frame:
    """How values become places."""

    across: float
    up: float

    @classmethod
    def around(cls, plot: Plot) -> _Frame:
        points = [p for series in plot.series for p in series.points]
        highest = max([y for _, y in points] + ([plot.limit] if plot.limit else []), default=1)
        return cls(max((x for x, _ in points), default=1) or 1, (highest or 1) * 1.05)

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.across

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.up


def ticks(highest: float) -> list[float]:
    """Round numbers from zero up to the highest value, about six of them."""
    rough = highest / TICKS
    size = 10 ** floor(log10(rough))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * 0.999)
    return [step * i for i in range(int(highest / step + 1e-9) + 1)]


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}"'
    return f"<text {place}>{escape(text)}</text>"


def _axes(plot: Plot, frame: _Frame) -> Iterator[str]:
    yield _text(LEFT, 20, plot.title, size=14)
    for value in ticks(frame.up):
        y = frame.y(value)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>'
        yield _text(LEFT - 8, y + 4, f"{value:,.10g}", "end")
    for value in ticks(frame.across):
        yield _text(frame.x(value), HEIGHT - BOTTOM + 18, f"{value:,.10g}", "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, plot.across, "middle")
    yield _text(8, TOP - 14, plot.up)


def _limit(plot: Plot, frame: _Frame) -> Iterator[str]:
    if plot.limit is not None:
        y = f"{frame.y(plot.limit):.1f}"
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="{INK}" stroke-dasharray="5 4"/>'


def _line(series: Series, frame: _Frame, colour: str) -> str:
    points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in series.points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'


def _dots(series: Series, frame: _Frame, colour: str) -> Iterator[str]:
    for x, y in series.points:
        yield f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2.5" fill="{colour}"/>'


def _legend(plot: Plot) -> Iterator[str]:
    x = float(WIDTH - RIGHT)
    for series, colour in reversed(list(zip(plot.series, COLOURS, strict=False))):
        yield _text(x, TOP - 14, series.name, "end")
        x -= 7 * len(series.name) + 14
        yield f'<rect x="{x:.1f}" y="{TOP - 23}" width="10" height="10" fill="{colour}"/>'
        x -= 14
