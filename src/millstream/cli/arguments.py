"""The command line as argparse knows it; every `--help` page teaches by examples.

Nothing is run here and nothing heavy is imported, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
from importlib import metadata
from typing import TYPE_CHECKING, Any

from millstream.cli.printer import Format
from millstream.deliver.render import DEFAULT_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

IN_MEMORY = ":memory:"

DESCRIPTION = "A streaming database for Spark users: one SQL for live streams, their history and ordinary tables."

EXAMPLES = """\
examples:
  millstream shell ./mydb                   type SQL at a prompt; ./mydb is created if it is not there
  millstream sql ./mydb -c "SHOW TABLES"    run statements and leave
  millstream sql ./mydb -f load.sql         run a file of statements
  millstream sql ./mydb -c "SELECT * FROM t" --format csv > t.csv
  echo "SELECT 1 + 1;" | millstream sql :memory: -
  millstream demo                           see what it can do

'millstream COMMAND --help' tells more about a command."""

SHELL = """\
Statements end with ';' and may span lines. Type \\? for the backslash commands, \\q or Ctrl-D to leave.
Ctrl-C cancels the running statement. Without a terminal, statements are read from standard input, and
the first one that fails ends the run with exit code 1.

examples:
  millstream shell                          a database in memory, gone when you leave
  millstream shell ./mydb --read-only       look, but change nothing
  millstream shell ./mydb < load.sql        the same, fed by a file
  millstream shell ./mydb --master spark://host:7077"""

SQL = """\
Rows go to standard output, errors to standard error. Spark starts only if a statement needs it.

examples:
  millstream sql ./mydb -c "CREATE TABLE t (id BIGINT)" -c "INSERT INTO t VALUES (1), (2)"
  millstream sql ./mydb -f report.sql --format json | jq .total
  cat load.sql | millstream sql ./mydb -

exit codes: 0 all went well, 1 a statement failed, 2 the command line is wrong"""

SERVE = """\
Serving comes in a later version. Until then, use 'millstream shell' and 'millstream sql', or
millstream.connect() in Python."""

DEMO = """\
examples:
  millstream demo                           the first tour
  millstream demo NAME                      another one"""

BENCH = """\
Options that are not listed here are handed to the benchmark as they are.

examples:
  millstream bench                          list the benchmarks
  millstream bench NAME --json              run one; the results as JSON"""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments as a namespace; leaves with exit code 2 where they make no sense."""
    parser = build_parser()
    arguments, others = parser.parse_known_args(argv)
    if others and arguments.command != "bench":
        getattr(arguments, "parser", parser).error(f"unrecognized arguments: {' '.join(others)}")
    arguments.others = others
    return arguments


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser("millstream", **_texts(DESCRIPTION, EXAMPLES))
    parser.add_argument("--version", action="version", version=f"millstream {version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    database, output = _database_options(), _output_options()
    _add_shell(commands, [database, output])
    _add_sql(commands, [database, output])
    _add_serve(commands, [database])
    _add_demo(commands)
    _add_bench(commands)
    return parser


def version() -> str:
    """The version of the installed package."""
    try:
        return metadata.version("millstream")
    except metadata.PackageNotFoundError:
        return "from source"


def _texts(description: str, epilog: str) -> dict[str, Any]:
    return {
        "description": description,
        "epilog": epilog,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def _database_options() -> argparse.ArgumentParser:
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("database")
    group.add_argument("--master", metavar="URL", help="the Spark to use: local[*] (default), spark://…, sc://…")
    group.add_argument("--read-only", action="store_true", help="refuse every statement that changes something")
    group.add_argument("--debug", action="store_true", help="show Python tracebacks with errors")
    return parent


def _output_options() -> argparse.ArgumentParser:
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("output")
    group.add_argument("--format", choices=tuple(Format), default=Format.TABLE, help="how rows are written")
    group.add_argument(
        "--rows",
        metavar="N",
        type=_row_limit,
        default=DEFAULT_ROWS,
        help=f"how many rows a table shows, or 'all' (default: {DEFAULT_ROWS}; csv and json always give all)",
    )
    group.add_argument("-x", "--expanded", action="store_true", help="one line for each column of a row")
    group.add_argument("-q", "--quiet", action="store_true", help="rows and errors only: no statuses, no banner")
    group.add_argument("--keep-going", action="store_true", help="go on after a statement that failed")
    return parent


def _row_limit(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of rows nor 'all'")
    return int(text)


def _add_shell(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    description = "Type SQL at a prompt with history and completion, or feed it through a pipe."
    shell = commands.add_parser(
        "shell", help="type SQL at a prompt", parents=parents, **_texts(description, SHELL)
    )
    shell.set_defaults(parser=shell)
    shell.add_argument("database", metavar="DB", nargs="?", help="the database's folder (default: in memory)")


def _add_sql(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    description = "Run statements from the command line, a file or standard input, and leave."
    sql = commands.add_parser("sql", help="run statements and leave", parents=parents, **_texts(description, SQL))
    sql.set_defaults(parser=sql)
    sql.add_argument("database", metavar="DB", help="the database's folder, or :memory:")
    source = sql.add_mutually_exclusive_group()
    source.add_argument(
        "-c", "--command", dest="texts", metavar="SQL", action="append", help="statements; may be given often"
    )
    source.add_argument("-f", "--file", metavar="FILE", help="a file of statements, or - for standard input")
    source.add_argument(
        "stdin", metavar="-", nargs="?", choices=("-",), help="read statements from standard input"
    )


def _add_serve(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    description = "Serve a database to other programs over the network."
    serve = commands.add_parser(
        "serve", help="serve a database over the network", parents=parents, **_texts(description, SERVE)
    )
    serve.set_defaults(parser=serve)
    serve.add_argument("database", metavar="DB", help="the database's folder")


def _add_demo(commands: Any) -> None:
    description = "Run a demonstration on data that comes with Millstream."
    demo = commands.add_parser("demo", help="see what it can do", **_texts(description, DEMO))
    demo.set_defaults(parser=demo)
    demo.add_argument("name", metavar="NAME", nargs="?", help="which one")


def _add_bench(commands: Any) -> None:
    description = "Run one of the benchmarks of the source tree."
    bench = commands.add_parser("bench", help="run a benchmark", **_texts(description, BENCH))
    bench.add_argument("name", metavar="NAME", nargs="?", help="which one (default: list them)")
    bench.add_argument("--json", action="store_true", help="print the results as JSON")
    bench.add_argument("--scale", metavar="X", help="how much data, in the benchmark's own measure")
