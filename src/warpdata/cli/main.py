"""`warp`: find the command, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import keyword
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from warpdata._version import __version__
from warpdata.cli import exits
from warpdata.cli.console import Console
from warpdata.cli.parser import Parser
from warpdata.errors import SettingsError, WarpError
from warpdata.settings import Settings

COMMANDS = (
    "inspect",
    "verify",
    "salvage",
    "chunk",
    "join",
    "pack",
    "unpack",
    "episodes",
    "show",
    "view",
    "record",
    "replay",
    "edit",
    "check",
    "import",
    "export",
    "convert",
    "corpus",
    "vectors",
    "info",
    "schema",
    "head",
    "stream",
    "query",
    "cat",
    "publish",
    "list-remote",
    "log",
    "diff",
    "tag",
    "versions",
    "copy",
    "repair",
    "warm",
    "cache",
    "why",
    "lane",
    "lanes",
    "embed",
    "gc-remote",
    "init",
    "demo",
    "doctor",
    "spec",
    "completion",
)
"""In the order `warp --help` lists them; each is a module of `warpdata.cli.commands`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `warp` with these arguments and return its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return exits.OK
    as_json = getattr(args, "json", False)
    try:
        settings = Settings.from_env()
    except SettingsError as error:
        plain = Console(as_json=as_json, color=False, show_progress=False)
        return _fail(plain, error.code, str(error), error.hint, debug=args.debug, exit_code=exits.USAGE)
    console = Console(
        as_json=as_json, color=settings.color, show_progress=settings.progress, pictures=settings.pictures
    )
    return _run(args, console, debug=args.debug or settings.debug)


def build_parser() -> argparse.ArgumentParser:
    """The parser of `warp` with every command."""
    parser = Parser(prog="warp", description="One data system from the sensor to the training step.")
    parser.add_argument("--version", action="version", version=f"warp {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in COMMANDS:
        module = command_module(name)
        sub = commands.add_parser(name, help=module.HELP, description=module.HELP)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def command_module(name: str) -> ModuleType:
    """The module of a command; `-` in the command is `_` in the module, and a word of Python has a `_` behind it."""
    module = f"{name.replace('-', '_')}{'_' if keyword.iskeyword(name) else ''}"
    return importlib.import_module(f"warpdata.cli.commands.{module}")


def _run(args: argparse.Namespace, console: Console, *, debug: bool) -> int:
    try:
        code: int = args.run(args, console)
        sys.stdout.flush()
        return code
    except WarpError as error:
        return _fail(console, error.code, str(error), error.hint, debug=debug)
    except (ValueError, TypeError, LookupError) as error:
        # The text of a KeyError is its argument in quotes.
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return _fail(console, "usage", text, "", debug=debug, exit_code=exits.USAGE)
    except BrokenPipeError:
        # The reader of a pipe went away (`warp … | head`); that is not a fault.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except OSError as error:
        return _fail(console, "os", str(error), "", debug=debug)
    except KeyboardInterrupt:
        return _fail(console, "interrupted", "stopped by the user", "", debug=debug, exit_code=130)


def _fail(
    console: Console, code: str, message: str, hint: str, *, debug: bool, exit_code: int = exits.ERROR
) -> int:
    if debug:
        traceback.print_exc()
    console.error(code, message, hint)
    return exit_code
