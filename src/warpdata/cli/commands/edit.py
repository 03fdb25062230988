"""`warp edit`: change what readers of a dataset see; recordings stay, every edit can be undone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from warpdata.cli import exits
from warpdata.cli.commands._address import MOMENT, moment_argument, naming_errors, time_argument
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.episodes.collection.edits import Edits, Effect, EpisodeEntry, RecordingPart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp edit`."""
    parser.add_argument(
        "root", metavar="ROOT", help="a root of recordings on this machine; ROOT#ID names the episode too"
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
    concat.add_argument("episodes", nargs="+", metavar="ID", help="which episodes, in their order")
    gap = "move later ones to follow the one before by this much: 0.1s, 250ms or nanoseconds"
    concat.add_argument("--gap", "--gap-ns", type=time_argument, metavar="TIME", help=gap)
    verbs.add_parser("undo", help="take back an edit").add_argument("seq", type=int, nargs="?")
    verbs.add_parser("log", help="list the edits")
    for verb in verbs.choices.values():  # also behind the verb, where people write them
        verb.add_argument("--dry-run", action="store_true", default=argparse.SUPPRESS)
        verb.add_argument("--json", action="store_true", default=argparse.SUPPRESS)


def _add_episode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("episode", metavar="ID", nargs="?", help="which episode, unless ROOT#ID says it")


def run(args: argparse.Namespace, console: Console) -> int:
    """Make one edit, or show what it would do."""
    edits = _edits(args)
    if args.verb == "log":
        console.emit(edits.log)
        for edit in edits.log:
            console.print(json.dumps(edit, ensure_ascii=False))
        return exits.OK
    with naming_errors():
        effect = _effect(edits, args)
    console.emit(effect.to_json())
    for sign, entries in (("-", effect.before), ("+", effect.after)):
        for entry in entries:
            console.print(f"{sign} {_line(entry)}")
    console.print("nothing was changed (dry run)" if effect.seq is None else f"edit {effect.seq}")
    return exits.OK


def _edits(args: argparse.Namespace) -> Edits:
    """The edits of a root; only recordings on this machine can be edited."""
    from warpdata._api import address_kind, divided_address, open_recordings

    root, inside = divided_address(args.root)
    kind = address_kind(root)
    if kind == "dataset":
        raise ValueError(
            f"{root} is published and stays as it is: edit its recordings and publish them again"
        )
    if kind != "recordings":
        raise ValueError(f"{root} is no root of recordings, which only can be edited")
    _take_episode(args, root, inside)
    return open_recordings(root).edits


def _take_episode(args: argparse.Namespace, root: str, inside: str | None) -> None:
    """The episode that the address names is the one that is edited, or the first of several."""
    if args.verb == "concat":
        args.episodes = [*([] if inside is None else [inside]), *args.episodes]
    elif "episode" not in args:
        if inside is not None:
            raise ValueError(f"{args.verb} concerns the whole root: say {root}")
    elif (inside is None) == (args.episode is None):
        raise ValueError(f"name one episode: warp edit {root}#ID {args.verb}, or {args.verb} ID")
    else:
        args.episode = inside or args.episode


def _line(entry: EpisodeEntry) -> str:
    """An episode as a person reads it: its id, which recordings it shows, what was set."""
    shown = " + ".join(_part_text(part) for part in entry.parts)
    items = "".join(
        f", {name} = {json.dumps(value, ensure_ascii=False)}" for name, value in entry.static.items()
    )
    return f"{entry.id}: {shown}{items}{', dropped' if entry.is_dropped else ''}"


def _part_text(part: RecordingPart) -> str:
    window = ""
    if part.start_ns is not None or part.end_ns is not None:
        ends = ["" if end is None else str(end) for end in (part.start_ns, part.end_ns)]
        window = f"[{ends[0]}:{ends[1]}]"
    items = "".join(
        f" {name} = {json.dumps(value, ensure_ascii=False)}" for name, value in (part.static or {}).items()
    )
    return f"{part.number:012d}{window}{f' moved by {part.shift_ns} ns' if part.shift_ns else ''}{items}"


def _effect(edits: Edits, args: argparse.Namespace) -> Effect:
    dry = args.dry_run
    verbs: dict[str, Any] = {
        "drop": lambda: edits.drop(args.episode, dry_run=dry),
        "undrop": lambda: edits.undrop(args.episode, dry_run=dry),
        "set-static": lambda: edits.set_static(args.episode, args.name, _value(args.value), dry_run=dry),
        "trim": lambda: edits.trim(
            args.episode, _moment(edits, args, args.start), _moment(edits, args, args.end), dry_run=dry
        ),
        "split": lambda: edits.split(args.episode, cast("int", _moment(edits, args, args.at)), dry_run=dry),
        "concat": lambda: edits.concat(args.episodes, gap_ns=args.gap, dry_run=dry),
        "undo": lambda: edits.undo(args.seq, dry_run=dry),
    }
    effect: Effect = verbs[args.verb]()
    return effect


def _moment(edits: Edits, args: argparse.Namespace, moment: Callable[[int], int] | None) -> int | None:
    """A moment of the episode that is edited, as a recorded time."""
    from warpdata.episodes.collection.local import LocalDataset

    if moment is None:
        return None
    episode = LocalDataset(edits.root).open(args.episode)
    return moment(episode.first_ts_ns)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
