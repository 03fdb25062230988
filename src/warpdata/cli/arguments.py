"""Arguments that commands share, and how they are opened: addresses, datasets, times, functions."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.catalog.access import Access
    from warpdata.catalog.dataset import Dataset
    from warpdata.catalog.table import Table
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.timeline.episode import Episode

FORMS = "a path, a URL or ws/name[@version], with #ID inside"
MOMENT = "0.1s or 250ms after the first record, or a recorded time in nanoseconds"


def add_address(
    parser: argparse.ArgumentParser, what: str, *, inside: bool = True, optional: bool = False
) -> None:
    """ADDRESS, the episode inside as a second word unless `inside` is false, and `--catalog`."""
    nargs = "?" if optional else None
    parser.add_argument("address", metavar="ADDRESS", nargs=nargs, help=f"{what}: {FORMS}")
    if inside:
        parser.add_argument("episode", nargs="?", metavar="ID", help="the episode inside, the same as #ID")
    add_catalog_argument(parser)


def add_catalog_argument(parser: argparse.ArgumentParser) -> None:
    """`--catalog`, for commands that read one."""
    parser.add_argument("--catalog", help="folder or address of the catalog (default: WARP_CATALOG)")


def add_dataset_arguments(parser: argparse.ArgumentParser, *, json: bool = True, mode: bool = True) -> None:
    """The name of a dataset and how to reach it."""
    parser.add_argument("dataset", help="workspace/name, optionally with @hash or @tag")
    add_catalog_argument(parser)
    if mode:
        parser.add_argument(
            "--mode", choices=("auto", "remote", "hybrid", "local"), help="default: WARP_MODE"
        )
    if json:
        add_json_flag(parser)


def add_table_view(parser: argparse.ArgumentParser) -> None:
    """`--table`, `--columns` and `--filter`."""
    parser.add_argument("--table", default="main")
    parser.add_argument("--columns", help="names separated by commas")
    parser.add_argument("--filter", help="a SQL condition")


def add_runner(parser: argparse.ArgumentParser, what: str) -> None:
    """`--jobs` and `--ray`."""
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help=f"processes that {what}")
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help=f"{what} on a Ray cluster instead: at ADDRESS, at RAY_ADDRESS, or a new one here",
    )


def add_actions(
    parser: argparse.ArgumentParser, actions: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]
) -> None:
    """Subcommands: name -> (help, what adds its arguments). The chosen name is `args.action`."""
    verbs = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (text, add) in actions.items():
        add(verbs.add_parser(name, help=text, description=text))


def address_of(args: argparse.Namespace) -> str:
    """The address of a command, with the episode inside."""
    episode = getattr(args, "episode", None)
    return args.address if episode is None else f"{args.address}#{episode}"


@contextmanager
def naming_errors() -> Iterator[None]:
    """Turn an unknown name into a usage error."""
    try:
        yield
    except KeyError as error:
        raise ValueError(error.args[0]) from None


def open_one(args: argparse.Namespace, *, edited: bool = True) -> Episode:
    """The episode at the address."""
    from warpdata._api import open_episode

    with naming_errors():
        return open_episode(address_of(args), catalog=args.catalog, edited=edited)


def open_many(args: argparse.Namespace, *, edited: bool = True) -> Episodes:
    """The episodes at the address."""
    from warpdata._api import open_episodes

    with naming_errors():
        return open_episodes(address_of(args), catalog=args.catalog, edited=edited)


def open_named(args: argparse.Namespace, name: str | None = None) -> Dataset:
    """The dataset that a command names."""
    from warpdata._api import dataset

    return dataset(name or args.dataset, catalog=args.catalog, mode=getattr(args, "mode", None))


@contextmanager
def open_access(catalog: str | None, mode: str | None = None) -> Iterator[Access]:
    """The catalogs that a command names."""
    from warpdata.catalog.access import Access, access_options, catalog_tuple
    from warpdata.settings import Settings

    options = access_options(Settings.from_env(), catalogs=catalog_tuple(catalog), mode=mode)
    access = Access(options)
    try:
        yield access
    finally:
        access.close()


def select_view(dataset: Dataset, args: argparse.Namespace) -> Table:
    """The rows and columns that `--table`, `--columns` and `--filter` select."""
    view = dataset.table(args.table)
    if args.columns is not None:
        view = view.select(split_names(args.columns) or [])
    return view if args.filter is None else view.filter(args.filter)


def split_names(text: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


def split_assignment(word: str, example: str = "NAME=PATH") -> tuple[str, str]:
    """The two sides of NAME=VALUE."""
    name, equals, value = word.partition("=")
    if not equals or not name or not value:
        raise ValueError(f"{word!r} is not {example}")
    return name, value


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


def cut_episode(
    episode: Episode, start: Callable[[int], int] | None, end: Callable[[int], int] | None
) -> Episode:
    """The part of an episode between two moments."""
    if start is None and end is None:
        return episode
    first = episode.first_ts_ns
    from_ns, to_ns = start and start(first), end and end(first)
    length_s = (episode.last_ts_ns - first) / 1e9
    if from_ns is not None and to_ns is not None and from_ns >= to_ns:
        raise ValueError("--end is not after --start")
    if (from_ns is not None and from_ns > episode.last_ts_ns) or (to_ns is not None and to_ns <= first):
        raise ValueError(f"no records in this range: the episode goes from 0 to {length_s:.3f} s")
    part: Episode = episode.time[from_ns:to_ns]
    return part


def ray_of(args: argparse.Namespace) -> str | bool | None:
    """The Ray cluster: an address, True for the default one, None for none."""
    address: str | None = args.ray
    return True if address == "" else address


def function_of(address: str) -> Callable[..., Any]:
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
