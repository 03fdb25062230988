"""`warp check`: what is wrong with recorded episodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands._address import FORMS, address_of, naming_errors
from warpdata.cli.commands._dataset import add_catalog_argument
from warpdata.cli.commands._runner import add_runner, ray_of
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.episodes.check.rules import Group

_SHOWN = 3
"""Findings of one rule and signal that are printed one by one; of more, one line says how many."""

_STYLES = {"damaged": "red", "warning": "yellow", "info": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp check`."""
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help=f"episodes, or one: {FORMS}")
    parser.add_argument("episode", nargs="?", metavar="ID", help="which episode inside, the same as #ID")
    add_catalog_argument(parser)
    parser.add_argument("--raw", action="store_true", help="ignore the edits: recordings as they were made")
    parser.add_argument("--deep", action="store_true", help="decode every frame too")
    parser.add_argument("--rules", action="store_true", help="list the rules and stop")
    parser.add_argument(
        "--mute",
        action="append",
        default=[],
        metavar="RULE",
        help="say nothing of this rule (may be repeated)",
    )
    parser.add_argument(
        "--all", action="store_true", help="a line per finding instead of one per rule and signal"
    )
    add_runner(parser, "check episodes")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print every finding with its rule and severity."""
    from warpdata._api.checking import check_dataset
    from warpdata.episodes.check.rules import RULES

    if args.rules:
        console.emit({rule: {"severity": s, "says": text} for rule, (s, text) in RULES.items()})
        console.print_table(
            [[rule, s, text] for rule, (s, text) in RULES.items()], ["rule", "severity", "says"]
        )
        return exits.OK
    if args.address is None:
        raise ValueError("give a root of recordings or an episode")
    with console.progress("checking") as bar, naming_errors():
        report = check_dataset(
            address_of(args), progress=bar, deep=args.deep, mute=args.mute, raw=args.raw, catalog=args.catalog,
            jobs=args.jobs, ray=ray_of(args),
        )  # fmt: skip
    console.emit(report.to_json())
    for group in report.groups():
        label = f"{console.paint(group.severity, _STYLES[group.severity])}[{group.rule}]"
        for line in _lines(group, one_by_one=args.all):
            console.print(f"{label} {line}")
    muted = f", {', '.join(args.mute)} muted" if args.mute else ""
    console.print(f"{report.episodes} episodes, {len(report.findings)} findings{muted}")
    return exits.DAMAGED if report.is_damaged else exits.OK


def _lines(group: Group, *, one_by_one: bool) -> list[str]:
    """What to print of a group: each finding, or the first one and in which episodes there are more."""
    if one_by_one or len(group.findings) <= _SHOWN:
        return [
            f"{each.episode}/{each.signal}: {each.message}"
            if each.signal
            else f"{each.episode}: {each.message}"
            for each in group.findings
        ]
    where = f"{group.signal}: " if group.signal else ""
    episodes = list(dict.fromkeys(each.episode for each in group.findings))
    shown = ", ".join(episodes[:_SHOWN]) + (
        f" and {len(episodes) - _SHOWN} more" if len(episodes) > _SHOWN else ""
    )
    first = group.findings[0]
    return [f"{where}{len(group.findings)} findings in {shown}; first: {first.message}"]
