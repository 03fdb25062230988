"""`warp`: find the command, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from warpdata._version import __version__
from warpdata.cli.arguments import Command
from warpdata.cli.console import Console, Exit, give_up, printable, take_every_text
from warpdata.errors import SettingsError, WarpError, nearest
from warpdata.settings import Settings

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Record": {
        "record": ("record", "record a simulated robot"),
        "salvage": ("record", "finish interrupted recordings"),
        "replay": ("record", "play an episode back"),
        "demo": ("record", "run the whole way from sensor to training"),
    },
    "Look": {
        "show": ("look", "list episodes, or show one"),
        "view": ("look", "view episodes in the browser"),
        "list": ("look", "list episodes with sizes and flags"),
        "inspect": ("look", "show the structure of a file or dataset"),
        "query": ("tables", "run SQL over tables or episodes"),
    },
    "Clean": {
        "check": ("clean", "find problems in episodes"),
        "edits": ("clean", "drop, trim, split and label episodes"),
        "verify": ("clean", "check checksums and structure"),
    },
    "Publish": {
        "publish": ("publish", "publish a version of a dataset"),
        "versions": ("publish", "list, delete or expire versions"),
        "tags": ("publish", "list, set or delete tags"),
        "diff": ("publish", "compare two versions"),
        "copy": ("publish", "copy versions to another catalog"),
        "catalog": ("publish", "list datasets, delete unused blobs"),
    },
    "Use published data": {
        "info": ("tables", "show the metadata of a dataset"),
        "schema": ("tables", "show the columns of a table"),
        "head": ("tables", "show the first rows of a table"),
        "stream": ("tables", "write a table to standard output"),
        "cat": ("tables", "write a raw file to standard output"),
        "warm": ("tables", "download a dataset into the cache"),
    },
    "Train": {
        "init": ("train", "write a loader script for a dataset"),
        "why": ("train", "name the samples of a training step"),
        "lanes": ("train", "compute and compare predictions"),
    },
    "Formats": {
        "import": ("formats", "bring a foreign set in"),
        "export": ("formats", "write a foreign set"),
        "convert": ("formats", "convert between foreign formats"),
        "pack": ("formats", "write an episode as one .wshard"),
        "unpack": ("formats", "write a packed episode as a directory"),
        "chunk": ("formats", "cut an episode into chunks"),
        "join": ("formats", "join chunks into one file"),
        "spec": ("formats", "print the specification of a format"),
    },
    "Vectors and corpora": {
        "embed": ("vectors", "compute vectors of episodes"),
        "similar": ("vectors", "find moments like one of an episode"),
        "vectors": ("vectors", "create, search and check vector files"),
        "corpus": ("corpus", "look at and convert activation corpora"),
    },
    "Upkeep": {
        "doctor": ("upkeep", "check the installation and credentials"),
        "cache": ("upkeep", "show, shrink or clear the cache"),
        "repair": ("upkeep", "replace damaged blobs of a dataset"),
        "completion": ("upkeep", "print a shell completion script"),
    },
}
"""Every command by job, in the order of `warp --help`: its module below `commands`, which is imported when the command
runs, and a short line."""

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

OTHER_NAMES = {
    "list-remote": "catalog list", "gc-remote": "catalog gc", "episodes": "list", "cache stats": "cache show",
    "corpus info": "corpus show", "corpus stats": "corpus measure", "vectors info": "vectors show",
}  # fmt: skip
"""Names that documents and older scripts use, and the commands they mean."""


def load_commands(name: str) -> dict[str, Command]:
    """The function of a command as "", or those of its actions by name: `run_NAME`, or `run_NAME_ACTION` of each."""
    module = importlib.import_module(f"warpdata.cli.commands.{COMMANDS[name][0]}")
    prefix = f"run_{name.replace('-', '_')}"
    commands = {key: value for key, value in vars(module).items() if isinstance(value, Command)}
    if prefix in commands:
        return {"": commands[prefix]}
    start = f"{prefix}_"
    actions = {key: command for key, command in commands.items() if key.startswith(start)}
    return {key.removeprefix(start).replace("_", "-"): command for key, command in actions.items()}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that suggests the nearest command, choice or option.

    `complete` adds the arguments of a command when they are first needed.
    """

    def __init__(self, *args: Any, complete: Callable[[Parser], None] | None = None, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **options)
        self._complete = complete
        # A list of numbers may begin with a minus; argparse would take it for an option.
        self._negative_number_matcher = re.compile(r"-\.?\d[\d.,eE+-]*$")

    def complete(self) -> None:
        """Add the arguments if they are missing."""
        complete, self._complete = self._complete, None
        if complete is not None:
            complete(self)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is not None and value not in choices:
            known = [str(choice) for choice in choices]
            text = f"invalid choice: {value!r} (choose from {', '.join(known)}).{nearest(str(value), known)}"
            raise argparse.ArgumentError(action, text)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if arg_strings == ["--"] and action.option_strings and action.nargs is None:
            # Older Pythons take it for an empty list.
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse; unknown options are reported by the command that lacks them."""
        self.complete()
        parsed, rest = super().parse_known_args(args, namespace)
        if rest and not self._subparsers:
            option = next((word for word in rest if word.startswith("-")), "")
            hint = nearest(option.partition("=")[0], self._option_string_actions) if option else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}{'.' + hint if hint else ''}")
        return parsed, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print without the control codes of file names; unlike argparse, raise if it cannot be written."""
        try:
            file.write("\n".join(map(printable, message.split("\n"))))
            file.flush()
        except OSError:
            if file is sys.stdout:
                raise
            give_up(file)


def present_names(words: Sequence[str]) -> list[str]:
    """The words of a command with its present name."""
    first = next((i for i, word in enumerate(words) if not word.startswith("-")), 0)
    for other, present in OTHER_NAMES.items():
        end = first + len(other.split())
        if list(words[first:end]) == other.split():
            return [*words[:first], *present.split(), *words[end:]]
    return list(words)


def build_parser() -> Parser:
    """The parser of `warp` with every command."""
    width = max(map(len, COMMANDS))
    listing = "\n\n".join(
        f"{title}:\n" + "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in group.items())
        for title, group in GROUPS.items()
    )
    parser = Parser(
        prog="warp",
        usage="warp COMMAND …",
        description="One data system from the sensor to the training step.",
        epilog=f"{listing}\n\n`warp COMMAND --help` shows its options and an example.",
    )
    parser.add_argument("--version", action="version", version=f"warp {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog="warp", help=argparse.SUPPRESS)
    for name, (_, summary) in COMMANDS.items():
        commands.add_parser(
            name, description=f"{summary.capitalize()}.", complete=partial(_add_command, name)
        )
    return parser


def _add_command(name: str, parser: Parser) -> None:
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    commands = load_commands(name)
    if "" in commands:
        _fill_parser(parser, commands[""])
        return
    parser.epilog = "examples:\n" + "\n".join(f"  {action.example}" for action in commands.values())
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for word, action in commands.items():
        _fill_parser(actions.add_parser(word, help=action.summary), action)


def _fill_parser(parser: argparse.ArgumentParser, command: Command) -> None:
    parser.description = inspect.cleandoc(command.function.__doc__ or "")
    parser.epilog = f"example:\n  {command.example}"
    command.add_to(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `warp` with these arguments and return its exit code."""
    take_every_text()
    parser = build_parser()
    console = Console(color=False, show_progress=False)
    args = argparse.Namespace(debug=False)
    try:
        args = parser.parse_args(present_names(sys.argv[1:] if argv is None else argv))  # imports the command
        if args.command is None:
            parser.print_help()
            return Exit.OK
        settings = Settings.from_env()
        args.debug = args.debug or settings.debug
        console = Console(
            as_json=getattr(args, "json", False),
            color=settings.color,
            show_progress=settings.progress,
            pictures=settings.pictures,
        )
        code = console.show(args.run(args, console))
        sys.stdout.flush()
        return code
    except SettingsError as error:
        return _fail(console, args, error.code, str(error), error.hint, Exit.USAGE)
    except WarpError as error:
        return _fail(console, args, error.code, str(error), error.hint)
    except (ValueError, TypeError, LookupError) as error:
        # The text of a KeyError is its argument in quotes.
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return _fail(console, args, "usage", text, exit_code=Exit.USAGE)
    except OSError as error:
        return _report_os_error(console, args, error)
    except KeyboardInterrupt:
        hint = getattr(args, "when_stopped", "")
        return _fail(console, args, "interrupted", "stopped by the user", hint, Exit.STOPPED)


def _report_os_error(console: Console, args: argparse.Namespace, error: OSError) -> int:
    """Report an error of the system; a closed pipe (`warp … | head`) is not an error."""
    try:
        sys.stdout.flush()
    except OSError:
        give_up(sys.stdout)
    return Exit.OK if isinstance(error, BrokenPipeError) else _fail(console, args, "os", str(error))


def _fail(
    console: Console,
    args: argparse.Namespace,
    code: str,
    message: str,
    hint: str = "",
    exit_code: int = Exit.ERROR,
) -> int:
    if args.debug:
        traceback.print_exc()
    console.error(code, message, hint)
    return exit_code
