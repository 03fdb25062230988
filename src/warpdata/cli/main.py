"""`warp`: find the command, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from warpdata._version import __version__
from warpdata.cli import exits
from warpdata.cli.console import Console, Output, give_up, take_every_text
from warpdata.cli.parser import Parser
from warpdata.errors import SettingsError, WarpError
from warpdata.settings import Settings


class Command(NamedTuple):
    """A row of `warp --help`: the module of `warpdata.cli.commands` that has it, a short line and an example."""

    module: str
    summary: str
    example: str


GROUPS: dict[str, dict[str, Command]] = {
    "Record": {
        "record": Command(
            "record", "record a simulated robot", "warp record robot_data --demo --duration 5s"
        ),
        "salvage": Command("record", "finish interrupted recordings", "warp salvage robot_data"),
        "replay": Command("record", "play an episode back", "warp replay robot_data#3 --speed 2"),
        "demo": Command("record", "run the whole way from sensor to training", "warp demo"),
    },
    "Look": {
        "show": Command("look", "list episodes, or show one", "warp show robot_data#3"),
        "view": Command("look", "view episodes in the browser", "warp view robot_data"),
        "episodes": Command(
            "look", "list episodes with sizes and flags", 'warp episodes robot_data --where "success"'
        ),
        "inspect": Command("look", "show the structure of a file or dataset", "warp inspect ep_001.wshard"),
        "query": Command(
            "tables", "run SQL over tables or episodes", 'warp query lab/arm "select count(*) from episodes"'
        ),
    },
    "Clean": {
        "check": Command("clean", "find problems in episodes", "warp check robot_data --mute no-actions"),
        "edit": Command(
            "clean", "drop, trim, split and label episodes", "warp edit robot_data#3 trim --start 0.2s"
        ),
        "verify": Command("upkeep", "check checksums and structure", "warp verify --full ep_001.wshard"),
    },
    "Publish": {
        "publish": Command(
            "publish", "publish a version of a dataset", "warp publish lab/arm robot_data --tag v1"
        ),
        "versions": Command("publish", "list, delete or expire versions", "warp versions list lab/arm"),
        "tags": Command("publish", "list, set or delete tags", "warp tags set lab/arm@1f2e3d4c stable"),
        "diff": Command("publish", "compare two versions", "warp diff lab/arm@v1 @v2"),
        "copy": Command(
            "publish", "copy versions to another catalog", "warp copy lab/arm --to s3://bucket/catalog"
        ),
        "list-remote": Command("publish", "list published datasets", "warp list-remote lab/"),
    },
    "Use published data": {
        "info": Command("tables", "show the metadata of a dataset", "warp info lab/arm"),
        "schema": Command("tables", "show the columns of a table", "warp schema lab/arm --table main"),
        "head": Command("tables", "show the first rows of a table", "warp head lab/arm -n 3"),
        "stream": Command(
            "tables", "write a table to standard output", "warp stream lab/arm --format ndjson"
        ),
        "cat": Command(
            "tables", "write a raw file to standard output", "warp cat lab/arm --artifact raw --ref a.jpg"
        ),
        "warm": Command("train", "download a dataset into the cache", "warp warm lab/arm --max-bytes 200GB"),
    },
    "Train": {
        "init": Command("train", "write a loader script for a dataset", "warp init lab/arm"),
        "why": Command("train", "name the samples of a training step", "warp why state.json 120"),
        "lanes": Command("train", "compute and compare predictions", "warp lanes list lab/arm"),
    },
    "Formats": {
        "import": Command("import_", "bring a foreign set in", "warp import lerobot/pusht robot_data"),
        "export": Command("export", "write a foreign set", "warp export lerobot robot_data pusht --rate 20"),
        "convert": Command("convert", "convert between foreign formats", "warp convert pusht pusht.zarr"),
        "pack": Command(
            "formats", "write an episode as one .wshard", "warp pack robot_data#3 -o ep_003.wshard"
        ),
        "unpack": Command("formats", "write a packed episode as a directory", "warp unpack ep_003.wshard"),
        "chunk": Command("formats", "cut an episode into chunks", "warp chunk ep_001.wshard --steps 500"),
        "join": Command("formats", "join chunks into one file", "warp join ep_001/ep_001_manifest.wshard"),
        "spec": Command("formats", "print the specification of a format", "warp spec wshard"),
    },
    "Vectors and corpora": {
        "embed": Command("embed", "compute vectors of episodes", "warp embed robot_data state --per window"),
        "vectors": Command(
            "vectors", "create, search and check vector files", "warp vectors info episodes.rvf"
        ),
        "corpus": Command("corpus", "look at and convert activation corpora", "warp corpus info corpus"),
    },
    "Upkeep": {
        "doctor": Command("upkeep", "check the installation and credentials", "warp doctor"),
        "cache": Command("upkeep", "show, shrink or clear the cache", "warp cache gc --limit 50GB"),
        "repair": Command(
            "upkeep", "replace damaged blobs of a dataset", "warp repair lab/arm --from backup"
        ),
        "gc-remote": Command("upkeep", "find or delete unused blobs", "warp gc-remote --delete"),
        "completion": Command("upkeep", "print a shell completion script", 'eval "$(warp completion bash)"'),
    },
}
"""Every command, grouped by job in the order of `warp --help`; its module is imported when the command runs."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `warp` with these arguments and return its exit code."""
    take_every_text()
    parser = build_parser()
    plain = Console(color=False, show_progress=False)
    try:
        args = parser.parse_args(argv)  # imports the command
        if args.command is None:
            parser.print_help()
            return exits.OK
    except KeyboardInterrupt:
        return _report_interrupt(plain, debug=False)
    except OSError as error:
        return _report_os_error(plain, error, debug=False)
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
    width = max(map(len, COMMANDS))
    listing = "\n\n".join(
        f"{title}:\n" + "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in group.items())
        for title, group in GROUPS.items()
    )
    parser = Parser(
        prog="warp",
        usage="warp COMMAND …",
        description="One data system from the sensor to the training step.",
        epilog=f"{listing}\n\n`warp COMMAND --help` shows its options and an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"warp {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog="warp", help=argparse.SUPPRESS)
    for name, command in COMMANDS.items():
        commands.add_parser(
            name,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog=f"example:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            complete=partial(_add_command, name),
        )
    return parser


def _add_command(name: str, parser: Parser) -> None:
    add, run = command_functions(name)
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add(parser)
    parser.set_defaults(run=run)


def command_functions(name: str) -> tuple[Callable[[Any], None], Callable[[Any, Console], int | Output]]:
    """The functions of a command: `add_NAME` and `run_NAME`, or `add_arguments` and `run` of a module for one."""
    module = importlib.import_module(f"warpdata.cli.commands.{COMMANDS[name].module}")
    word = name.replace("-", "_")
    if hasattr(module, f"run_{word}"):
        return getattr(module, f"add_{word}"), getattr(module, f"run_{word}")
    return module.add_arguments, module.run


def _run(args: argparse.Namespace, console: Console, *, debug: bool) -> int:
    try:
        result: int | Output = args.run(args, console)
        code = console.show(result) if isinstance(result, Output) else result
        sys.stdout.flush()
        return code
    except WarpError as error:
        return _fail(console, error.code, str(error), error.hint, debug=debug)
    except (ValueError, TypeError, LookupError) as error:
        # The text of a KeyError is its argument in quotes.
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return _fail(console, "usage", text, "", debug=debug, exit_code=exits.USAGE)
    except OSError as error:
        return _report_os_error(console, error, debug=debug)
    except KeyboardInterrupt:
        return _report_interrupt(console, getattr(args, "when_stopped", ""), debug=debug)


def _report_os_error(console: Console, error: OSError, *, debug: bool) -> int:
    """Report an error of the system; a closed pipe (`warp … | head`) is not an error."""
    try:
        sys.stdout.flush()
    except OSError:
        give_up(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return exits.OK
    return _fail(console, "os", str(error), "", debug=debug)


def _report_interrupt(console: Console, hint: str = "", *, debug: bool) -> int:
    return _fail(console, "interrupted", "stopped by the user", hint, debug=debug, exit_code=130)


def _fail(
    console: Console, code: str, message: str, hint: str, *, debug: bool, exit_code: int = exits.ERROR
) -> int:
    if debug:
        traceback.print_exc()
    console.error(code, message, hint)
    return exit_code
