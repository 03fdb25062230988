"""`warp`: find the command, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import keyword
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from types import ModuleType

from warpdata._version import __version__
from warpdata.cli import exits
from warpdata.cli.console import Console, give_up, take_every_text
from warpdata.cli.parser import Parser
from warpdata.errors import SettingsError, WarpError
from warpdata.settings import Settings

COMMANDS = {
    "inspect": "show the blocks of a file, or the tables, artifacts and bindings of a dataset",
    "verify": "check every checksum of files and report damage; exit code 3 if there is any, 1 if one cannot be read",
    "salvage": "turn the journals of crashed recordings into valid episodes; exit code 3 if anything was lost",
    "chunk": "cut an episode into chunks of N steps and write their chunk list",
    "join": "write a chunked episode as one file",
    "pack": "write a recorded episode as one .wshard; cameras keep their encoded bytes",
    "unpack": "write a packed episode as a directory again, byte for byte as it was",
    "episodes": "list the episodes at an address: id, duration, signals, size, flags",
    "show": "list the episodes at an address, or show one: signals, rates, sparklines, static items",
    "view": "view episodes in the browser: cameras and plots on one time axis, edits, live recordings",
    "record": "record a simulated two-joint arm with camera, force and events",
    "replay": "play an episode back: live values of every signal",
    "edit": "edit a dataset: drop, undrop, set-static, trim, split, concat, undo, log",
    "check": "check a dataset or an episode; exit code 3 if data is damaged",
    "import": "bring a set of a foreign format in: LeRobot, RLDS, HDF5, MCAP, …",
    "export": "write episodes as a set of a foreign format: LeRobot, RLDS, MCAP, …",
    "convert": "convert a set of any format to any other",
    "corpus": "look at, check, convert and sample activation corpora",
    "vectors": "vector files: create, add, search, index, verify, sign",
    "info": "show the manifest and metadata of a dataset",
    "schema": "show the columns of a dataset's table",
    "head": "show the first rows of a dataset's table",
    "stream": "stream a dataset's table to standard output as Arrow IPC, ndjson or parquet",
    "query": "run SQL over the tables of a dataset",
    "cat": "write one member of an artifact to standard output, or list the members",
    "publish": "publish recordings, tables and raw files as a version of a dataset",
    "list-remote": "list the published datasets of a workspace, or of all",
    "log": "list the versions of a dataset, newest first",
    "diff": "show what changed between two dataset versions",
    "tag": "list, set or delete the tags of a dataset",
    "versions": "list, delete or expire versions; gc-remote then reclaims their blobs",
    "copy": "copy versions of a dataset to another catalog",
    "repair": "replace damaged or missing blobs of a dataset from the cache, other catalogs or files",
    "warm": "bring the shards of a dataset into the cache, whole and checked",
    "cache": "show the cache (stats) or free space in it (gc)",
    "why": "name the samples of a training step: dataset, episode, time and blob, from a state that a loader saved",
    "lane": "compute predictions over the episodes of a dataset and publish them as a lane of a new version",
    "lanes": "list the prediction lanes of a dataset, say which are stale, compare them with the truth",
    "embed": "compute vectors of episodes, steps, windows or frames, and keep them where searches find them",
    "gc-remote": "list the blobs of a catalog that no version uses; --delete removes them",
    "init": "write a loader for a dataset, with decoders for its bindings and a smoke test",
    "demo": "record, crash, salvage, check, publish, train, predict and search with a simulated arm",
    "doctor": "check credentials, catalogs, cache, engine and codecs",
    "spec": "print the specification of a file format",
    "completion": 'print a shell completion script: eval "$(warp completion bash)"',
}
"""What each does, in the order of `warp --help`; each is a module of `warpdata.cli.commands`, loaded when asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `warp` with these arguments and return its exit code."""
    take_every_text()
    parser = build_parser()
    plain = Console(color=False, show_progress=False)
    try:
        args = parser.parse_args(argv)  # which loads the command
        if args.command is None:
            parser.print_help()
            return exits.OK
    except KeyboardInterrupt:
        return _stopped(plain, debug=False)
    except OSError as error:
        return _unwritten(plain, error, debug=False)
    as_json = getattr(args, "json", False)
    try:
        settings = Settings.from_env()
    except SettingsError as error:
        return _fail(plain, error.code, str(error), error.hint, debug=args.debug, exit_code=exits.USAGE)
    console = Console(
        as_json=as_json, color=settings.color, show_progress=settings.progress, pictures=settings.pictures
    )
    return _run(args, console, debug=args.debug or settings.debug)


def build_parser() -> Parser:
    """The parser of `warp` with every command."""
    parser = Parser(prog="warp", description="One data system from the sensor to the training step.")
    parser.add_argument("--version", action="version", version=f"warp {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, description=text, complete=partial(_add_command, name))
    return parser


def _add_command(name: str, parser: Parser) -> None:
    module = command_module(name)
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)


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
    except OSError as error:
        return _unwritten(console, error, debug=debug)
    except KeyboardInterrupt:
        return _stopped(console, getattr(args, "when_stopped", ""), debug=debug)


def _unwritten(console: Console, error: OSError, *, debug: bool) -> int:
    """The exit code where the system refused; that the reader of a pipe went away (`warp … | head`) is no fault."""
    try:
        sys.stdout.flush()
    except OSError:
        give_up(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return exits.OK
    return _fail(console, "os", str(error), "", debug=debug)


def _stopped(console: Console, hint: str = "", *, debug: bool) -> int:
    return _fail(console, "interrupted", "stopped by the user", hint, debug=debug, exit_code=130)


def _fail(
    console: Console, code: str, message: str, hint: str, *, debug: bool, exit_code: int = exits.ERROR
) -> int:
    if debug:
        traceback.print_exc()
    console.error(code, message, hint)
    return exit_code
