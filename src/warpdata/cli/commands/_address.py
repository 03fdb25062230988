"""What the commands that look at data share: how it is named and opened."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.timeline.episode import Episode

FORMS = "a path, a URL or ws/name[@version], with #ID inside"


def add_address(parser: argparse.ArgumentParser, what: str, *, inside: bool = True) -> None:
    """ADDRESS, the episode inside it as a second word unless told otherwise, and `--catalog`."""
    from warpdata.cli.commands._dataset import add_catalog_argument

    parser.add_argument("address", metavar="ADDRESS", help=f"{what}: {FORMS}")
    if inside:
        parser.add_argument("episode", nargs="?", metavar="ID", help="which episode inside, the same as #ID")
    add_catalog_argument(parser)


def address_of(args: argparse.Namespace) -> str:
    """The address a command was given, with the episode inside."""
    episode = getattr(args, "episode", None)
    return args.address if episode is None else f"{args.address}#{episode}"


@contextmanager
def naming_errors() -> Iterator[None]:
    """A name that is not there is a wrong argument."""
    try:
        yield
    except KeyError as error:
        raise ValueError(error.args[0]) from None


def opened_thing(args: argparse.Namespace) -> Any:
    """Whatever is at the address."""
    from warpdata._api import open as open_address

    with naming_errors():
        return open_address(address_of(args), catalog=args.catalog)


def opened_episode(args: argparse.Namespace) -> Episode:
    """The episode at the address."""
    from warpdata._api import open_episode

    with naming_errors():
        return open_episode(address_of(args), catalog=args.catalog)


def opened_episodes(args: argparse.Namespace) -> Episodes:
    """The episodes at the address."""
    from warpdata._api import open_episodes

    with naming_errors():
        return open_episodes(address_of(args), catalog=args.catalog)


def time_argument(text: str) -> int:
    """A length of time: `0.1s`, `250ms`, or a number of nanoseconds."""
    from warpdata.timeline.times import parse_time_ns

    try:
        return parse_time_ns(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


MOMENT = "0.1s or 250ms after the first record, or a recorded time in nanoseconds"


def moment_argument(text: str) -> Callable[[int], int]:
    """A moment of an episode: `0.1s` or `250ms` after its first record, or a recorded time in nanoseconds."""
    ts_ns = time_argument(text)
    is_recorded_time = text.strip().lstrip("+-").isdigit()
    return lambda first_ts_ns: ts_ns if is_recorded_time else first_ts_ns + ts_ns


def within(episode: Episode, start: Callable[[int], int] | None, end: Callable[[int], int] | None) -> Episode:
    """The part of an episode between two moments."""
    if start is None and end is None:
        return episode
    first = episode.first_ts_ns
    from_ns, to_ns = start and start(first), end and end(first)
    length_s = (episode.last_ts_ns - first) / 1e9
    if from_ns is not None and to_ns is not None and from_ns >= to_ns:
        raise ValueError("--end lies before --start, or at it")
    if (from_ns is not None and from_ns > episode.last_ts_ns) or (to_ns is not None and to_ns <= first):
        raise ValueError(f"nothing was recorded there: the episode goes from 0 to {length_s:.3f} s")
    part: Episode = episode.time[from_ns:to_ns]
    return part
