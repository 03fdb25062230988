"""Commands that clean recordings: `check`, `edit`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.arguments import (
    MOMENT,
    add_address,
    add_runner,
    address_of,
    moment_argument,
    naming_errors,
    ray_of,
    time_argument,
)
from warpdata.cli.console import Output, add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.episodes.check.report import Group
    from warpdata.episodes.collection.edits import Edits, Effect, EpisodeEntry, RecordingPart

_SHOWN = 3
"""Findings of one rule and signal that are printed one by one; more are counted."""

_STYLES = {"damaged": "red", "warning": "yellow", "info": "dim"}


def add_check(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp check`."""
    add_address(parser, "episodes, or one", optional=True)
    parser.add_argument("--raw", action="store_true", help="ignore the edits: recordings as they were made")
    parser.add_argument("--deep", action="store_true", help="decode every frame too")
    parser.add_argument("--rules", action="store_true", help="list the rules and stop")
    parser.add_argument(
        "--mute", action="append", default=[], metavar="RULE", help="ignore this rule (may be repeated)"
    )
    parser.add_argument("--all", action="store_true", help="one line per finding, not per rule and signal")
    add_runner(parser, "check episodes")
    add_json_flag(parser)


def run_check(args: argparse.Namespace, console: Console) -> int | Output:
    """Print every finding with its rule and severity; exit code 3 if data is damaged."""
    from warpdata._api.checking import check_dataset
    from warpdata.episodes.check.report import RULES

    if args.rules:
        rows = [{"rule": rule, "severity": s, "says": text} for rule, (s, text) in RULES.items()]
        value = {row["rule"]: {"severity": row["severity"], "says": row["says"]} for row in rows}
        return Output(value, rows=rows, columns={"rule": "rule", "severity": "severity", "meaning": "says"})
    if args.address is None:
        raise ValueError("ADDRESS is missing: name a root of recordings or an episode")
    with console.progress("checking") as bar, naming_errors():
        report = check_dataset(
            address_of(args),
            progress=bar,
            deep=args.deep,
            mute=args.mute,
            raw=args.raw,
            catalog=args.catalog,
            jobs=args.jobs,
            ray=ray_of(args),
        )
    console.emit(report.to_json())
    for group in report.groups():
        for line in _group_lines(group, one_by_one=args.all):
            style = {group.severity: _STYLES[group.severity]}
            console.print(f"{group.severity}[{group.rule}] {line}", style)
    muted = f", {', '.join(args.mute)} muted" if args.mute else ""
    console.print(f"{report.episodes} episodes, {len(report.findings)} findings{muted}")
    return exits.DAMAGED if report.is_damaged else exits.OK


def _group_lines(group: Group, *, one_by_one: bool) -> list[str]:
    """Each finding of a group, or the first one and the episodes that have more."""
    if one_by_one or len(group.findings) <= _SHOWN:
        return [
            f"{finding.episode}/{finding.signal}: {finding.message}"
            if finding.signal
            else f"{finding.episode}: {finding.message}"
            for finding in group.findings
        ]
    where = f"{group.signal}: " if group.signal else ""
    episodes = list(dict.fromkeys(finding.episode for finding in group.findings))
    more = f" and {len(episodes) - _SHOWN} more" if len(episodes) > _SHOWN else ""
    shown = ", ".join(episodes[:_SHOWN]) + more
    return [f"{where}{len(group.findings)} findings in {shown}; first: {group.findings[0].message}"]


def add_edit(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp edit`."""
    parser.add_argument(
        "root", metavar="ROOT", help="a local root of recordings; ROOT#ID names the episode too"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the effect, change nothing")
    add_json_flag(parser)
    verbs: Any = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, text in (("drop", "hide an episode"), ("undrop", "show a dropped episode again")):
        _add_episode(verbs.add_parser(verb, help=text))
    static = verbs.add_parser("set-static", help="give a static item another value")
    _add_episode(static)
    static.add_argument("name")
    static.add_argument("value", help="JSON, or plain text")
    trim = verbs.add_parser("trim", help="show only the records with start <= ts < end")
    _add_episode(trim)
    for option in ("--start", "--end"):
        trim.add_argument(option, f"{option}-ns", type=moment_argument, metavar="TIME", help=MOMENT)
    split = verbs.add_parser("split", help="show one episode as two")
    _add_episode(split)
    split.add_argument("at", type=moment_argument, metavar="TIME", help=MOMENT)
    concat = verbs.add_parser("concat", help="show several episodes as one")
    concat.add_argument("episodes", nargs="+", metavar="ID", help="the episodes, in order")
    gap = "move later ones to follow the previous one by this much: 0.1s, 250ms or nanoseconds"
    concat.add_argument("--gap", "--gap-ns", type=time_argument, metavar="TIME", help=gap)
    verbs.add_parser("undo", help="take back an edit").add_argument("seq", type=int, nargs="?")
    verbs.add_parser("log", help="list the edits")
    for verb in verbs.choices.values():  # accepted after the verb too
        verb.add_argument("--dry-run", action="store_true", default=argparse.SUPPRESS)
        verb.add_argument("--json", action="store_true", default=argparse.SUPPRESS)


def _add_episode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("episode", metavar="ID", nargs="?", help="the episode, unless ROOT#ID names it")


def run_edit(args: argparse.Namespace, _: Console) -> Output:
    """Make one edit, or show what it would do."""
    edits = _open_edits(args)
    if args.verb == "log":
        return Output(edits.log, [json.dumps(edit, ensure_ascii=False) for edit in edits.log])
    with naming_errors():
        effect = _apply(edits, args)
    lines = [f"- {_entry_text(entry)}" for entry in effect.before]
    lines += [f"+ {_entry_text(entry)}" for entry in effect.after]
    lines.append("nothing was changed (dry run)" if effect.seq is None else f"edit {effect.seq}")
    return Output(effect.to_json(), lines)


def _open_edits(args: argparse.Namespace) -> Edits:
    """The edit log of a root; only local recordings can be edited."""
    from warpdata._api import address_kind, divided_address, open_recordings

    root, inside = divided_address(args.root)
    kind = address_kind(root)
    if kind == "dataset":
        raise ValueError(f"{root} is published and immutable: edit its recordings and publish them again")
    if kind != "recordings":
        raise ValueError(f"no root of recordings: {root} (only recordings can be edited)")
    _set_episode(args, root, inside)
    return open_recordings(root).edits


def _set_episode(args: argparse.Namespace, root: str, inside: str | None) -> None:
    """The episode of the address is the edited one, or the first of several."""
    if args.verb == "concat":
        args.episodes = [*([] if inside is None else [inside]), *args.episodes]
    elif "episode" not in args:
        if inside is not None:
            raise ValueError(f"{args.verb} concerns the whole root: use {root}")
    elif (inside is None) == (args.episode is None):
        raise ValueError(f"name one episode: warp edit {root}#ID {args.verb}, or {args.verb} ID")
    else:
        args.episode = inside or args.episode


def _entry_text(entry: EpisodeEntry) -> str:
    """An episode: its id, the recordings it shows, its changed items."""
    parts = " + ".join(_part_text(part) for part in entry.parts)
    return f"{entry.id}: {parts}{_items_text(entry.static, ', ')}{', dropped' if entry.is_dropped else ''}"


def _part_text(part: RecordingPart) -> str:
    window = ""
    if part.start_ns is not None or part.end_ns is not None:
        start, end = ("" if ts_ns is None else str(ts_ns) for ts_ns in (part.start_ns, part.end_ns))
        window = f"[{start}:{end}]"
    shift = f" moved by {part.shift_ns} ns" if part.shift_ns else ""
    return f"{part.number:012d}{window}{shift}{_items_text(part.static or {}, ' ')}"


def _items_text(items: Any, before: str) -> str:
    return "".join(
        f"{before}{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in items.items()
    )


def _apply(edits: Edits, args: argparse.Namespace) -> Effect:
    dry = args.dry_run
    if args.verb == "drop":
        return edits.drop(args.episode, dry_run=dry)
    if args.verb == "undrop":
        return edits.undrop(args.episode, dry_run=dry)
    if args.verb == "set-static":
        return edits.set_static(args.episode, args.name, _parse_value(args.value), dry_run=dry)
    if args.verb == "concat":
        return edits.concat(args.episodes, gap_ns=args.gap, dry_run=dry)
    if args.verb == "undo":
        return edits.undo(args.seq, dry_run=dry)
    from warpdata.episodes.collection.local import LocalDataset

    first_ts_ns = LocalDataset(edits.root).open(args.episode).first_ts_ns

    def moment(value: Callable[[int], int] | None) -> int | None:
        return None if value is None else value(first_ts_ns)

    if args.verb == "split":
        return edits.split(args.episode, args.at(first_ts_ns), dry_run=dry)
    return edits.trim(args.episode, moment(args.start), moment(args.end), dry_run=dry)


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
