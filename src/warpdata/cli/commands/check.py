"""`warp check`: what is wrong with recorded episodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.console import add_json_flag, table

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "check a dataset or an episode; exit code 3 if data is damaged"

_STYLES = {"damaged": "red", "warning": "yellow", "info": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp check`."""
    parser.add_argument(
        "path",
        nargs="?",
        help="a root of recordings, an episode directory, a .wshard or a chunk list; a path or a URL",
    )
    parser.add_argument("--deep", action="store_true", help="decode every frame too")
    parser.add_argument("--rules", action="store_true", help="list the rules and stop")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print every finding with its rule and severity."""
    from warpdata._api import check_dataset
    from warpdata.episodes.check import RULES

    if args.rules:
        console.emit({rule: {"severity": s, "says": text} for rule, (s, text) in RULES.items()})
        for line in table(
            [[rule, s, text] for rule, (s, text) in RULES.items()], ["rule", "severity", "says"]
        ):
            console.print(line)
        return exits.OK
    if args.path is None:
        raise ValueError("give a root of recordings or an episode")
    with console.progress("checking") as bar:
        report = check_dataset(args.path, progress=bar, deep=args.deep)
    console.emit(report.to_json())
    for each in report.findings:
        where = f"{each.episode}/{each.signal}" if each.signal else each.episode
        console.print(
            f"{console.paint(each.severity, _STYLES[each.severity])}[{each.rule}] {where}: {each.message}"
        )
    console.print(f"{report.episodes} episodes, {len(report.findings)} findings")
    return exits.DAMAGED if report.is_damaged else exits.OK
