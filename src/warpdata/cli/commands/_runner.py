"""What the commands share that work on many episodes: where the work is done."""

from __future__ import annotations

import argparse


def add_runner(parser: argparse.ArgumentParser, what: str) -> None:
    """`--jobs` and `--ray`."""
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help=f"processes that {what}")
    parser.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS",
        help=f"{what} on a Ray cluster instead: at ADDRESS, at RAY_ADDRESS, or a new one here",
    )  # fmt: skip


def ray_of(args: argparse.Namespace) -> str | bool | None:
    """The cluster a command names: an address, True for the usual one, None for none."""
    found: str | None = args.ray
    return True if found == "" else found
