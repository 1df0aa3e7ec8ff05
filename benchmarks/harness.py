"""What the benchmarks share: options, repeated timings, the machine's record, results as a table or JSON.

A benchmark gives `main` a list of parts; each part runs in a directory of its own and returns
measures. A measure is one number with its target and the samples it was taken from; where it is a
ratio, both sides were timed in the same run, in turns. Targets are stated for scale 1: at other scales
numbers are given and nothing is judged. Nothing here knows what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

GIB = 1024**3
FSYNCS = 200
PAGE = b"\0" * 4096


@dataclass(frozen=True, slots=True)
class Target:
    """What a measure should be: `at_least` or `at_most` a bound."""

    bound: float
    at_least: bool

    def met_by(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {shown(self.bound)}"


def at_least(bound: float) -> Target:
    return Target(bound, at_least=True)


def at_most(bound: float) -> Target:
    return Target(bound, at_least=False)


@dataclass(frozen=True, slots=True)
class Measure:
    """One result: a number, what it should be, what it was taken from, and what else is worth knowing."""

    name: str
    value: float
    unit: str
    target: Target | None = None
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def record(self, judged: bool) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": significant(self.value),
            "unit": self.unit,
            "target": str(self.target) if self.target else None,
            "met": self.target.met_by(self.value) if self.target and judged else None,
            "samples": {name: [significant(s) for s in taken] for name, taken in self.samples.items()},
            **self.notes,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """What a part is given: how much data to take, an empty directory on the disk to measure, where plots go."""

    scale: float
    folder: Path
    plots: Path | None = None

    def scaled(self, count: int, least: int = 1) -> int:
        return max(least, round(count * self.scale))


Part = Callable[[Run], Sequence[Measure]]


def seconds(work: Callable[[], object]) -> float:
    """How long the work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(works: Mapping[str, Callable[[int], object]], repeats: int) -> dict[str, list[float]]:
    """Time each work `repeats` times, one after the other, so that a busy moment hits them all.

    Each is told which repeat it is. What earlier work left to be written goes to disk before the
    clock starts.
    """
    samples: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats):
        for name, work in works.items():
            os.sync()
            started = time.perf_counter()
            work(repeat)
            samples[name].append(time.perf_counter() - started)
    return samples


def ratio(samples: Mapping[str, Sequence[float]], over: str, under: str) -> float:
    """The median of one side over the median of the other."""
    return statistics.median(samples[over]) / statistics.median(samples[under])


def fsync_ms(folder: Path, count: int = FSYNCS) -> float:
    """The median cost of appending a page to a file and making it durable, in milliseconds."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        return 1_000 * statistics.median(seconds(lambda: _append(file.fileno())) for _ in range(count))


def _append(handle: int) -> None:
    os.write(handle, PAGE)
    os.fsync(handle)


def machine(folder: Path) -> dict[str, Any]:
    """Where the numbers come from."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "spark": metadata.version("pyspark"),
        "pyarrow": metadata.version("pyarrow"),
        "disk_fsync_ms": significant(fsync_ms(folder)),
    }


def significant(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def shown(value: float) -> str:
    """`1,234`, `12.3`, `0.0123`: as many digits as tell something."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def main(name: str, parts: Mapping[str, Part], description: str, argv: Sequence[str] | None = None) -> int:
    """Run the parts asked for and print what they measured."""
    options = _parse(parts, description, argv)
    console = Console(stderr=True, highlight=False)
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"millstream-bench-{name}-", dir=options.dir))
    try:
        record = {"benchmark": name, "scale": options.scale, "machine": machine(folder)}
        measures: list[Measure] = []
        for part in options.only or parts:
            measures += _run(parts[part], part, Run(options.scale, folder / part, options.plots), console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    judged = options.scale == 1
    if options.json:
        print(json.dumps({**record, "results": [m.record(judged) for m in measures]}, indent=2))
    else:
        _show(Console(highlight=False), record, measures, judged)
    return 0


def _parse(parts: Mapping[str, Part], description: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--scale", type=_scale, default=1.0, metavar="S", help="how much data (default: 1)")
    parser.add_argument("--only", action="append", choices=tuple(parts), help="run this part; may be given often")
    parser.add_argument("--dir", metavar="DIR", help="where to write (default: the temporary directory)")
    parser.add_argument(
        "--plots", metavar="DIR", type=Path, help="where to write plots, as SVG (default: nowhere)"
    )
    return parser.parse_args(argv)


def _scale(text: str) -> float:
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100")
    return value


def _run(part: Part, name: str, run: Run, console: Console) -> Sequence[Measure]:
    """One part in its directory, which is gone afterwards to leave the disk to the next."""
    run.folder.mkdir()
    console.print(Text(f"{name} …", style="dim"))
    started = time.perf_counter()
    try:
        measures = part(run)
    finally:
        shutil.rmtree(run.folder, ignore_errors=True)
    console.print(Text(f"{name}: {time.perf_counter() - started:.1f} s", style="dim"))
    return measures


def _show(console: Console, record: Mapping[str, Any], measures: Sequence[Measure], judged: bool) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", border_style="dim")
    table.add_column("measure", overflow="fold")
    for heading in ("measured", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for measure in measures:
        target = str(measure.target) if measure.target else ""
        value = f"{shown(measure.value)} {measure.unit}"
        table.add_row(Text(measure.name), value, target, _verdict(measure, judged))
    about = record["machine"]
    console.print(table)
    console.print(
        Text(
            f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']},"
            f" Spark {about['spark']}, one fsync {about['disk_fsync_ms']} ms",
            style="dim",
        )
    )
    if not judged:
        console.print(Text(f"Scale {record['scale']}: targets are for scale 1.", style="dim"))


def _verdict(measure: Measure, judged: bool) -> Text:
    if measure.target is None or not judged:
        return Text("")
    return Text("met", "green") if measure.target.met_by(measure.value) else Text("missed", "bold red")


def own_python(program: str, *arguments: str) -> list[str]:
    """The command line that runs a piece of Python in a process of its own."""
    return [sys.executable, "-c", program, *arguments]
