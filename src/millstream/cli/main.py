"""The `millstream` program: arguments in, exit code out.

Exit codes: 0 all went well, 1 a statement failed (told on stderr), 2 the command line is wrong, 130
cancelled with Ctrl-C, 141 the reader of our output went away. The database and the prompt are
imported only by the commands that need them.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from millstream.cli.arguments import IN_MEMORY, build_parser, parse, version
from millstream.cli.printer import Format, Printer, Settings
from millstream.cli.worker import INTERRUPTED, CancelledError, Worker
from millstream.errors import Condition, MillstreamError, StatementError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from millstream.cli.feed import Chunk
    from millstream.cli.runner import Runner

FAILED = 1
USAGE = 2
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and turn every way it can end into an exit code."""
    _never_fail_on_characters()
    arguments = parse(argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except (KeyboardInterrupt, CancelledError):
        return INTERRUPTED
    except MillstreamError as error:
        _printer(arguments).error(error)
        return FAILED
    return code


def _run(arguments: argparse.Namespace) -> int:
    commands = {"shell": _shell, "sql": _sql, "serve": _serve, "demo": _demo, "bench": _bench}
    if arguments.command is None:
        build_parser().print_help(sys.stderr)
        return USAGE
    return commands[arguments.command](arguments)


def _never_fail_on_characters() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Python flushes stdout at exit; give it a place where that does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shell(arguments: argparse.Namespace) -> int:
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output import create_output

    from millstream.cli.feed import STANDARD_INPUT, chunks_of
    from millstream.cli.shell import Shell

    interactive = sys.stdin.isatty()
    printer = _printer(arguments)
    printer.settings.timing = interactive
    with _opened(arguments, printer) as runner:
        shell = Shell(runner, keep_going=arguments.keep_going or interactive)
        if not interactive:
            return shell.read(chunks_of(STANDARD_INPUT, shortcuts=True))
        _greet(printer, arguments.database)
        with create_app_session(output=create_output(always_prefer_tty=True)):
            return shell.interact()


def _greet(printer: Printer, database: str | None) -> None:
    if printer.settings.quiet:
        return
    kept = database if database not in (None, IN_MEMORY) else "in memory, gone when you leave"
    printer.note(f"Millstream {version()} · database: {kept}")
    printer.note("Statements end with ; · \\? helps · \\q leaves")


def _sql(arguments: argparse.Namespace) -> int:
    from millstream.cli.runner import run_all

    if not arguments.texts and not arguments.file and not arguments.stdin:
        if _is_statement(arguments.database):
            print(_as_statement(arguments.database), file=sys.stderr)
            return USAGE
        if sys.stdin.isatty():
            print("millstream sql: give statements with -c, a file with -f, or - and a pipe", file=sys.stderr)
            return USAGE
    with _opened(arguments, _printer(arguments)) as runner:
        return run_all(_chunks(arguments), runner.run, arguments.keep_going)


def _is_statement(database: str) -> bool:
    """Whether what stands in the place of a folder looks like SQL."""
    return any(c.isspace() for c in database.strip()) and not Path(database).exists()


def _as_statement(text: str) -> str:
    return (
        f"millstream sql: {text!r} would be the database's folder; statements come after -c:\n"
        f"  millstream sql {IN_MEMORY} -c {quote(text)}"
    )


def _chunks(arguments: argparse.Namespace) -> Iterable[Chunk]:
    from millstream.cli.feed import STANDARD_INPUT, Chunk, chunks_of

    if arguments.texts:
        return [Chunk(text) for text in arguments.texts]
    return chunks_of(arguments.file or STANDARD_INPUT)


def _serve(arguments: argparse.Namespace) -> int:
    raise StatementError(
        Condition.NOT_SUPPORTED_YET,
        "serving a database over the network is not supported yet",
        hint=f"Use 'millstream shell {arguments.database}', or millstream.connect() in Python.",
    )


def _demo(arguments: argparse.Namespace) -> int:
    return int(import_module("millstream.cli.demo").run(arguments.name))


def _bench(arguments: argparse.Namespace) -> int:
    from millstream.cli import bench

    if arguments.name is None:
        if not bench.available():
            print("there are no benchmarks in this source tree", file=sys.stderr)
        for name, program in bench.available().items():
            print(f"{name:<24} {bench.first_line(program)}")
        return 0
    scale = ["--scale", arguments.scale] if arguments.scale else []
    return bench.run(arguments.name, [*(["--json"] if arguments.json else []), *scale, *arguments.others])


def _printer(arguments: argparse.Namespace) -> Printer:
    given = vars(arguments)
    settings = Settings(
        format=Format(given.get("format", Format.TABLE)),
        expanded=given.get("expanded", False),
        quiet=given.get("quiet", False),
        debug=given.get("debug", False),
        max_rows=given.get("rows"),
    )
    return Printer(settings, sys.stdout, sys.stderr)


@contextmanager
def _opened(arguments: argparse.Namespace, printer: Printer) -> Iterator[Runner]:
    """A runner on the database that the arguments name; closed at the end."""
    from millstream.cli.activity import Activity
    from millstream.cli.runner import Runner
    from millstream.database import connect

    activity = Activity(printer.err)
    spark_starts = threading.Event()
    with Worker(printer.note) as worker:
        db = worker.call(
            lambda: connect(
                arguments.database or IN_MEMORY,
                spark=arguments.master,
                read_only=arguments.read_only,
                progress=activity.report,
                on_spark_start=spark_starts.set,
            )
        )
        activity.label = lambda: "starting Spark" if spark_starts.is_set() and not db.spark_started else "running"
        try:
            yield Runner(db, worker, printer, activity)
        finally:
            worker.call(db.close)
