"""Arguments of commands as values, the ones that commands share, and how they are opened.

A command is a function under `@command(summary, *arguments, example=…)`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from warpdata.errors import ConflictError

if TYPE_CHECKING:
    from warpdata.catalog.access import Access
    from warpdata.catalog.dataset import Dataset
    from warpdata.cli.console import Console, Output
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.timeline.episode import Episode

Namespace = argparse.Namespace


class Argument(NamedTuple):
    """What `add_argument` of argparse takes."""

    names: tuple[str, ...]
    options: dict[str, Any]


class Command(NamedTuple):
    """A command, or an action of one: its arguments, and the function that runs it."""

    run: Callable[[Namespace, Console], Output]
    summary: str
    arguments: list[Argument]
    example: str
    verbs: Mapping[str, tuple[str, list[Argument]]]
    """Verbs after the arguments, each with a short line and arguments of its own."""
    when_stopped: str
    """Hint after Ctrl-C."""

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to a parser."""
        for argument in self.arguments:
            parser.add_argument(*argument.names, **argument.options)
        parser.set_defaults(run=self.run, when_stopped=self.when_stopped)
        if not self.verbs:
            return
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        flags = [argument for argument in self.arguments if argument.options.get("action") == "store_true"]
        for verb, (text, arguments) in self.verbs.items():
            sub = verbs.add_parser(verb, help=text, description=text)
            for argument in arguments:
                sub.add_argument(*argument.names, **argument.options)
            for argument in flags:  # accepted after the verb too
                sub.add_argument(*argument.names, **argument.options | {"default": argparse.SUPPRESS})


def command(
    summary: str,
    *arguments: Argument | Sequence[Argument],
    example: str,
    verbs: Mapping[str, tuple[str, list[Argument]]] | None = None,
    when_stopped: str = "",
) -> Callable[[Callable[[Namespace, Console], Output]], Command]:
    """Make a command of a function."""
    flat: list[Argument] = []
    for argument in arguments:
        flat += [argument] if isinstance(argument, Argument) else argument
    return lambda run: Command(run, summary, flat, example, verbs or {}, when_stopped)


def arg(*names: str, **options: Any) -> Argument:
    """An argument as argparse takes it."""
    return Argument(names, options)


def flag(name: str, text: str) -> Argument:
    """An option without a value."""
    return arg(name, action="store_true", help=text)


def many(name: str, metavar: str, text: str) -> Argument:
    """An option that may be repeated."""
    return arg(name, action="append", default=[], metavar=metavar, help=text)


def number(*names: str, default: int | None, text: str, metavar: str = "N") -> Argument:
    """An option with a whole number."""
    return arg(*names, type=int, default=default, metavar=metavar, help=text)


FORMS = "a path, a URL or ws/name[@version], with #ID inside"
MOMENT = "0.1s or 250ms after the first record, or a recorded time in nanoseconds"
JSON = flag("--json", "print the result as JSON")
CATALOG = arg("--catalog", help="path or URL of the catalog (default: WARP_CATALOG)")
OVERWRITE = flag("--overwrite", "replace an existing target")
REMOTE_DATASET = [arg("dataset", help="workspace/name, optionally with @hash or @tag"), CATALOG, JSON]
MODE = arg("--mode", choices=("auto", "remote", "hybrid", "local"), help="default: WARP_MODE")
DATASET = [*REMOTE_DATASET, MODE]
TABLE_VIEW = [
    arg("--table", default="main"),
    arg("--columns", help="names separated by commas"),
    arg("--filter", help="a SQL condition"),
]
PUBLISHING = [
    arg("--message", default="", help="message of the version"),
    many("--tag", "TAG", "tag of the version (may be repeated)"),
    arg("--sign", metavar="KEY.pem", help="put an Ed25519 signature beside the manifest"),
]
STORAGE = [
    arg(
        "--compression",
        metavar="NAME",
        help="none, zstd, lz4 (every program reads these), zstd-seekable (rows can be read one by one, not by every "
        "program) or auto; a level behind a colon: zstd:19; default: none",
    ),
    arg(
        "--compat",
        default="default",
        metavar="WORD",
        help="strict: write nothing that one of the existing programs cannot read",
    ),
]


def address(what: str, *, inside: bool = True, optional: bool = False) -> list[Argument]:
    """ADDRESS, the episode inside as a second word unless `inside` is false, and `--catalog`."""
    episode = arg("episode", nargs="?", metavar="ID", help="the episode inside, the same as #ID")
    main = arg("address", metavar="ADDRESS", nargs="?" if optional else None, help=f"{what}: {FORMS}")
    return [main, *([episode] if inside else []), CATALOG]


def output(text: str) -> list[Argument]:
    """The output path, as the last argument or as --output."""
    return [
        arg("output", nargs="?", default=argparse.SUPPRESS, metavar="OUTPUT", help=text),
        arg("-o", "--output", dest="output", metavar="OUTPUT", help="the same, as an option"),
    ]


def runner(what: str) -> list[Argument]:
    """`--jobs` and `--ray`."""
    ray = f"{what} on a Ray cluster instead: at ADDRESS, at RAY_ADDRESS, or a new one here"
    return [
        number("--jobs", default=1, text=f"processes that {what}"),
        arg("--ray", nargs="?", const="", metavar="ADDRESS", help=ray),
    ]


def check_free(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise if the target exists and may not be replaced."""
    if os.path.lexists(path) and not overwrite:
        raise ConflictError("target exists", path=path, hint="Choose another name, or use --overwrite.")


def full_address(args: Namespace) -> str:
    """The address of a command, with the episode inside."""
    episode = getattr(args, "episode", None)
    return args.address if episode is None else f"{args.address}#{episode}"


@contextmanager
def name_errors() -> Iterator[None]:
    """Turn an unknown name into a usage error."""
    try:
        yield
    except KeyError as error:
        raise ValueError(error.args[0]) from None


def open_one(args: Namespace) -> Episode:
    """The episode at the address."""
    from warpdata._api import open_episode

    with name_errors():
        return open_episode(full_address(args), catalog=args.catalog)


def open_many(args: Namespace, *, edited: bool = True) -> Episodes:
    """The episodes at the address."""
    from warpdata._api import open_episodes

    with name_errors():
        return open_episodes(full_address(args), catalog=args.catalog, edited=edited)


def open_named(args: Namespace, name: str | None = None) -> Dataset:
    """The dataset that a command names."""
    from warpdata._api import dataset

    return dataset(name or args.dataset, catalog=args.catalog, mode=getattr(args, "mode", None))


@contextmanager
def open_access(catalog: str | None, mode: str | None = None) -> Iterator[Access]:
    """The catalogs that a command names."""
    from warpdata.catalog.access import Access, access_options, catalog_tuple
    from warpdata.settings import Settings

    access = Access(access_options(Settings.from_env(), catalogs=catalog_tuple(catalog), mode=mode))
    try:
        yield access
    finally:
        access.close()


def split_names(text: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


def time_argument(text: str) -> int:
    """A duration in nanoseconds: `0.1s`, `250ms`, or a number of nanoseconds."""
    from warpdata.timeline.times import parse_time_ns

    try:
        return parse_time_ns(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def moment_argument(text: str) -> Callable[[int], int]:
    """A moment of an episode: `0.1s` or `250ms` after its first record, or a recorded time in nanoseconds."""
    ts_ns = time_argument(text)
    is_recorded_time = text.strip().lstrip("+-").isdigit()
    return lambda first_ts_ns: ts_ns if is_recorded_time else first_ts_ns + ts_ns


def ray_address(args: Namespace) -> str | bool | None:
    """The Ray cluster: an address, True for the default one, None for none."""
    ray: str | None = args.ray
    return True if ray == "" else ray


def import_function(address: str) -> Callable[..., Any]:
    """Import a function by `module:name`, from the current folder or the installed packages."""
    from warpdata.errors import nearest

    module_name, colon, name = address.partition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"{address!r} is not MODULE:FUNCTION, such as my_model:predict")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ValueError(
            f"no module {module_name!r} in this folder or among the installed packages"
        ) from None
    for part in name.split("."):
        if not hasattr(value, part):
            raise ValueError(f"{module_name} has no {name!r}.{nearest(part, dir(value))}")
        value = getattr(value, part)
    if not callable(value):
        raise ValueError(f"{address} is a {type(value).__name__}, not a function")
    return value  # type: ignore[no-any-return]
