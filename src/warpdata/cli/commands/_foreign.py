"""What the commands about foreign formats share: options by name, and the receipt."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.arguments import add_runner, ray_of
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpdata.cli.console import Console
    from warpdata.episodes.salvage.receipt import Receipt
    from warpdata.formats.episodedir.images import VideoOptions


def add_common(parser: argparse.ArgumentParser) -> None:
    """Arguments of every conversion."""
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE",
        help="an option of the format, as wd.convert.<format>.read or .write has it; the value as JSON or text",
    )  # fmt: skip
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="skip: go on behind a damaged episode, and count it",
    )
    parser.add_argument("--fps", type=float, help="steps per second, where the source does not say")
    parser.add_argument(
        "--codec",
        help="encode raw frames as h264, h265 or av1; without it an import keeps every pixel, and LeRobot has av1",
    )
    add_json_flag(parser)


def add_import(parser: argparse.ArgumentParser) -> None:
    """Arguments of bringing a set in."""
    add_runner(parser, "convert episodes")
    parser.add_argument("--catalog", help="the catalog of a published target (default: WARP_CATALOG)")


def add_export(parser: argparse.ArgumentParser) -> None:
    """Arguments of one rate."""
    parser.add_argument("--rate", type=float, help="steps per second, for formats that need one rate")
    parser.add_argument("--clock", metavar="SIGNAL", help="or: a step for every record of this signal")
    parser.add_argument(
        "--align", choices=("hold", "nearest", "linear"), help="what stands at a step; default: hold"
    )
    parser.add_argument("--version", dest="format_version", metavar="V", help="of the format: v3.0, v2.1, …")
    parser.add_argument("--task", help="the task of episodes that have none")
    parser.add_argument(
        "--from",
        dest="source_format",
        metavar="FORMAT",
        help="the format of the source, if it does not say it",
    )
    parser.add_argument(
        "--read", action="append", default=[], metavar="NAME=VALUE",
        help="an option of the source's format, as wd.convert.<format>.read has it",
    )  # fmt: skip


def options_of(given: Sequence[str]) -> dict[str, Any]:
    """The options that were given by name."""
    import json

    found: dict[str, Any] = {}
    for each in given:
        name, mark, text = each.partition("=")
        if not mark:
            raise ValueError(f"{each!r} is not NAME=VALUE")
        try:
            found[name.replace("-", "_")] = json.loads(text)
        except ValueError:
            found[name.replace("-", "_")] = text
    return found


def import_options(args: argparse.Namespace) -> dict[str, Any]:
    """What `wd.import_episodes` gets, and the options of the format."""
    return {"jobs": args.jobs, "ray": ray_of(args), "on_error": args.on_error, "catalog": args.catalog,
            "video": _codec(args.codec), **_fps(args), **options_of(args.option)}  # fmt: skip


def _fps(args: argparse.Namespace) -> dict[str, Any]:
    return {} if args.fps is None else {"fps": args.fps}


def _codec(name: str | None, **more: Any) -> VideoOptions | None:
    from warpdata.formats.episodedir.images import VideoOptions

    return None if name is None else VideoOptions(codec=name, **more)


def export_options(args: argparse.Namespace) -> dict[str, Any]:
    """What `wd.export_episodes` gets, and the options of the format, by option or by name."""
    said = {"rate": args.rate, "clock": args.clock, "align": args.align, "version": args.format_version,
            "task": args.task, "on_error": args.on_error if args.on_error != "stop" else None,
            "jobs": args.jobs if args.jobs != 1 else None, "source_format": args.source_format,
            "source_options": _fps(args) | options_of(args.read) or None,
            "video": _codec(args.codec, gop_size=2)}  # fmt: skip
    return {**{name: value for name, value in said.items() if value is not None}, **options_of(args.option)}


def show(receipt: Receipt, console: Console) -> int:
    """Print the receipt; 3 where episodes were skipped."""
    console.emit(receipt.to_json())
    console.print_receipt(receipt)
    return exits.OK if receipt.is_complete else exits.DAMAGED
