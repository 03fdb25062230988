"""Commands that find and repair problems of recordings: `check`, `edit`, `verify`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli import exits
from warpdata.cli.console import Output
from warpdata.errors import FileFinding, WarpError

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.episodes.check.report import Group
    from warpdata.episodes.collection.edits import Edits, Effect, EpisodeEntry

_SHOWN = 3
"""Findings of one rule and signal that are printed one by one; more are counted."""
_OK, _DAMAGED, _NOT_FOUND, _NOT_READ = "ok", "damaged", "not found", "not read"


@cli.command(
    "find problems in episodes",
    cli.address("episodes, or one", optional=True),
    cli.flag("--raw", "ignore the edits: recordings as they were made"),
    cli.flag("--deep", "decode every frame too"),
    cli.flag("--rules", "list the rules and stop"),
    cli.many("--mute", "RULE", "ignore this rule (may be repeated)"),
    cli.flag("--all", "one line per finding, not per rule and signal"),
    cli.runner("check episodes"),
    cli.JSON,
    example="warp check robot_data --mute no-actions",
)
def run_check(args: cli.Namespace, console: Console) -> Output:
    """Print every finding with its rule and severity; exit code 3 if data is damaged."""
    from warpdata._api.checking import check_dataset
    from warpdata.episodes.check.report import RULES

    if args.rules:
        rules = {rule: {"severity": severity, "says": text} for rule, (severity, text) in RULES.items()}
        rows = [{"rule": rule, **about} for rule, about in rules.items()]
        return Output(rules, rows=rows, columns={"rule": "rule", "severity": "severity", "meaning": "says"})
    if args.address is None:
        raise ValueError("ADDRESS is missing: name a root of recordings or an episode")
    with console.progress("checking") as bar, cli.name_errors():
        report = check_dataset(
            cli.full_address(args),
            progress=bar,
            deep=args.deep,
            mute=args.mute,
            raw=args.raw,
            catalog=args.catalog,
            jobs=args.jobs,
            ray=cli.ray_address(args),
        )
    lines = [
        f"{group.severity}[{group.rule}] {line}"
        for group in report.groups()
        for line in _group_lines(group, one_by_one=args.all)
    ]
    muted = f", {', '.join(args.mute)} muted" if args.mute else ""
    return Output(
        report.to_json(),
        lines,
        footer=[f"{report.episodes} episodes, {len(report.findings)} findings{muted}"],
        style={"damaged[": "red", "warning[": "yellow", "info[": "dim"},
        code=exits.DAMAGED if report.is_damaged else exits.OK,
    )


def _group_lines(group: Group, *, one_by_one: bool) -> list[str]:
    """Each finding of a group, or the first one and the episodes that have more."""
    if one_by_one or len(group.findings) <= _SHOWN:
        return [
            f"{finding.episode}{f'/{finding.signal}' if finding.signal else ''}: {finding.message}"
            for finding in group.findings
        ]
    where = f"{group.signal}: " if group.signal else ""
    episodes = list(dict.fromkeys(finding.episode for finding in group.findings))
    more = f" and {len(episodes) - _SHOWN} more" if len(episodes) > _SHOWN else ""
    shown = ", ".join(episodes[:_SHOWN]) + more
    return [f"{where}{len(group.findings)} findings in {shown}; first: {group.findings[0].message}"]


# Edits.

_EPISODE = cli.arg("episode", metavar="ID", nargs="?", help="the episode, unless ROOT#ID names it")
_TIME = {"type": cli.moment_argument, "metavar": "TIME", "help": cli.MOMENT}
_GAP = "move later ones to follow the previous one by this much: 0.1s, 250ms or nanoseconds"
_VERBS: dict[str, tuple[str, list[cli.Argument]]] = {
    "drop": ("hide an episode", [_EPISODE]),
    "undrop": ("show a dropped episode again", [_EPISODE]),
    "set-static": (
        "give a static item another value",
        [_EPISODE, cli.arg("name"), cli.arg("value", help="JSON, or plain text")],
    ),
    "trim": (
        "show only the records with start <= ts < end",
        [_EPISODE, cli.arg("--start", "--start-ns", **_TIME), cli.arg("--end", "--end-ns", **_TIME)],
    ),
    "split": ("show one episode as two", [_EPISODE, cli.arg("at", **_TIME)]),
    "concat": (
        "show several episodes as one",
        [
            cli.arg("episodes", nargs="+", metavar="ID", help="the episodes, in order"),
            cli.arg("--gap", "--gap-ns", type=cli.time_argument, metavar="TIME", help=_GAP),
        ],
    ),
    "undo": ("take back an edit", [cli.arg("seq", type=int, nargs="?")]),
    "log": ("list the edits", []),
}


@cli.command(
    "drop, trim, split and label episodes",
    cli.arg("root", metavar="ROOT", help="a local root of recordings; ROOT#ID names the episode too"),
    cli.flag("--dry-run", "show the effect, change nothing"),
    cli.JSON,
    verbs=_VERBS,
    example="warp edit robot_data#3 trim --start 0.2s",
)
def run_edit(args: cli.Namespace, _: Console) -> Output:
    """Make one edit, or show what it would do."""
    edits = _open_edits(args)
    if args.verb == "log":
        return Output(edits.log, [json.dumps(edit, ensure_ascii=False) for edit in edits.log])
    with cli.name_errors():
        effect = _apply(edits, args)
    lines = [f"- {_entry_text(entry)}" for entry in effect.before]
    lines += [f"+ {_entry_text(entry)}" for entry in effect.after]
    lines.append("nothing was changed (dry run)" if effect.seq is None else f"edit {effect.seq}")
    return Output(effect.to_json(), lines)


def _open_edits(args: cli.Namespace) -> Edits:
    """The edit log of a root; the episode of the address is the edited one, or the first of several."""
    from warpdata._api import address_kind, divided_address, open_recordings

    root, inside = divided_address(args.root)
    kind = address_kind(root)
    if kind == "dataset":
        raise ValueError(f"{root} is published and immutable: edit its recordings and publish them again")
    if kind != "recordings":
        raise ValueError(f"no root of recordings: {root} (only recordings can be edited)")
    if args.verb == "concat":
        args.episodes = [*([] if inside is None else [inside]), *args.episodes]
    elif "episode" not in args:
        if inside is not None:
            raise ValueError(f"{args.verb} concerns the whole root: use {root}")
    elif (inside is None) == (args.episode is None):
        raise ValueError(f"name one episode: warp edit {root}#ID {args.verb}, or {args.verb} ID")
    else:
        args.episode = inside or args.episode
    return open_recordings(root).edits


def _entry_text(entry: EpisodeEntry) -> str:
    """An episode: its id, the recordings it shows, its changed items."""
    parts = []
    for part in entry.parts:
        window = ""
        if part.start_ns is not None or part.end_ns is not None:
            start, end = ("" if ts_ns is None else str(ts_ns) for ts_ns in (part.start_ns, part.end_ns))
            window = f"[{start}:{end}]"
        shift = f" moved by {part.shift_ns} ns" if part.shift_ns else ""
        parts.append(f"{part.number:012d}{window}{shift}{_items_text(part.static or {}, ' ')}")
    items = _items_text(entry.static, ", ")
    return f"{entry.id}: {' + '.join(parts)}{items}{', dropped' if entry.is_dropped else ''}"


def _items_text(items: Any, before: str) -> str:
    return "".join(
        f"{before}{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in items.items()
    )


def _apply(edits: Edits, args: cli.Namespace) -> Effect:
    from warpdata.episodes.collection.local import LocalDataset

    dry = args.dry_run
    if args.verb in ("drop", "undrop"):
        change = edits.drop if args.verb == "drop" else edits.undrop
        return change(args.episode, dry_run=dry)
    if args.verb == "set-static":
        try:
            value = json.loads(args.value)
        except ValueError:
            value = args.value
        return edits.set_static(args.episode, args.name, value, dry_run=dry)
    if args.verb == "concat":
        return edits.concat(args.episodes, gap_ns=args.gap, dry_run=dry)
    if args.verb == "undo":
        return edits.undo(args.seq, dry_run=dry)
    first_ts_ns = LocalDataset(edits.root).open(args.episode).first_ts_ns
    if args.verb == "split":
        return edits.split(args.episode, args.at(first_ts_ns), dry_run=dry)
    start, end = (None if moment is None else moment(first_ts_ns) for moment in (args.start, args.end))
    return edits.trim(args.episode, start, end, dry_run=dry)


# Checksums.


@cli.command(
    "check checksums and structure",
    cli.arg("files", nargs="+", metavar="ADDRESS", help=f"files, folders or datasets: {cli.FORMS}"),
    cli.CATALOG,
    cli.flag("--full", "also read windows, values and chunk files"),
    cli.JSON,
    example="warp verify --full ep_001.wshard",
)
def run_verify(args: cli.Namespace, console: Console) -> Output:
    """Verify each file; exit code 3 if one is damaged, 1 if one cannot be read."""
    reports: list[dict[str, Any]] = []
    targets = [target for address in args.files for target in _verify_targets(address, args)]
    with console.progress("verify") as bar:
        for done, (path, catalog) in enumerate(targets):
            bar(done, len(targets))
            status, findings = _verify(path, catalog, full=args.full)
            reports.append({"path": path, "status": status, "findings": [asdict(each) for each in findings]})
    statuses = {report["status"] for report in reports}
    code = exits.DAMAGED if _DAMAGED in statuses else exits.OK if statuses == {_OK} else exits.ERROR
    style = {f": {status}": "green" if status == _OK else "red" for status in statuses}
    lines = [line for report in reports for line in _verified_lines(report)]
    return Output(reports, lines, style=style, code=code)


def _verified_lines(report: dict[str, Any]) -> list[str]:
    status = report["status"]
    lines = [f"{report['path']}: {status}"]
    for finding in report["findings"]:
        part, message = finding["part"], finding["message"]
        where = f"{part}: " if part and part not in message else ""
        level = "note" if not finding["is_damage"] and status in (_OK, _DAMAGED) else "error"
        lines.append(f"  {level}[{finding['code']}] {where}{message}")
        if finding["hint"]:
            lines.append(f"    hint: {finding['hint']}")
    return lines


def _verify_targets(address: str, args: cli.Namespace) -> list[tuple[str, str | None]]:
    """Addresses with their catalogs; a folder stands for everything of ours in it."""
    from warpdata.catalog.manage.versions import list_datasets
    from warpdata.catalog.read.filekinds import is_catalog, things_in

    targets: list[tuple[str, str | None]] = []
    for path in things_in(address) if os.path.isdir(address) else ():
        if not is_catalog(path):
            targets.append((path, args.catalog))
            continue
        with cli.open_access(path) as access:
            for catalog in access.catalogs:
                targets += [(f"{d.dataset_id}@{d.version}", path) for d in list_datasets(catalog)]
    return targets or [(address, args.catalog)]


def _verify(path: str, catalog: str | None, *, full: bool) -> tuple[str, list[FileFinding]]:
    """Status and findings of one address; missing and unreachable ones are not damaged."""
    try:
        with cli.name_errors():
            findings = _findings_at(path, catalog, full=full)
    except WarpError as error:
        status = _status_of(path, error)
        return status, [replace(FileFinding.of(error), is_damage=status == _DAMAGED)]
    return _DAMAGED if any(finding.is_damage for finding in findings) else _OK, findings


def _status_of(path: str, error: WarpError) -> str:
    from warpdata import errors
    from warpdata._api import is_published
    from warpdata.catalog.read.filekinds import is_ours

    if isinstance(error, errors.BlobNotFoundError):
        # A file that an existing file or dataset names is missing: damage.
        return _DAMAGED if os.path.lexists(path) or is_published(path) else _NOT_FOUND
    if isinstance(error, errors.DatasetNotFoundError):
        return _NOT_FOUND
    if isinstance(error, errors.BadMagicError) and (os.path.isdir(path) or not is_ours(path)):
        return _NOT_READ
    elsewhere = (errors.StoreError, errors.OfflineError, errors.BudgetExceededError, errors.MissingExtraError)
    return _NOT_READ if isinstance(error, elsewhere) else _DAMAGED


def _findings_at(path: str, catalog: str | None, *, full: bool) -> list[FileFinding]:
    from warpdata._api import address_kind, divided_address, foreign_episodes, open_vectors
    from warpdata.cli.commands.corpus import verify_corpus
    from warpdata.errors import BadMagicError

    base, inside = divided_address(path)
    try:
        kind = address_kind(base)
    except BadMagicError:
        if foreign_episodes(base) is None:
            raise
        kind = "recordings"
    if kind == "shards" and os.path.isdir(base):
        return _shard_folder_findings(base, inside, full=full)
    if inside is not None or kind in ("recordings", "directory", "shards"):
        return _episode_findings(path, catalog, full=full)
    if kind == "dataset":
        from warpdata.catalog.manage.reports import verify_dataset

        with cli.open_named(cli.Namespace(catalog=catalog), path) as dataset:
            report, _ = verify_dataset(dataset)
        hint = "Restore the blob from a copy."
        return [FileFinding("blob_damage", text, hint=hint) for text in report["damaged"]]
    if kind == "vectors":
        with open_vectors(path) as store:
            return store.verify()
    if kind in ("corpus", "rows"):
        return verify_corpus(path)
    return _journal_findings(path) if kind == "journal" else _shard_findings(path, full=full)


def _shard_folder_findings(folder: str, inside: str | None, *, full: bool) -> list[FileFinding]:
    """Findings of every shard of a local folder, or of that of one episode; a chunk list stands for its chunks."""
    from warpdata._api import open_episodes
    from warpdata.episodes.collection.local import shards_in

    findings: list[FileFinding] = []
    names = shards_in(folder)
    for name in names if inside is None else [names[open_episodes(folder).position(inside)]]:
        try:
            own = _shard_findings(os.path.join(folder, name), full=full)
        except WarpError as error:
            own = [FileFinding.of(error)]
        findings += [replace(finding, message=f"{name}: {finding.message}") for finding in own]
    return findings


def _shard_findings(path: str, *, full: bool) -> list[FileFinding]:
    from warpdata._api import locate
    from warpdata.episodes.check.run import unplayable_cameras
    from warpdata.formats.wshard.verify import verify_shard

    source = locate(path)[1]
    findings = list(verify_shard(source, full=full))
    if any(finding.is_damage for finding in findings):
        return findings
    return [*findings, *unplayable_cameras(source, full=full)]


def _episode_findings(path: str, catalog: str | None, *, full: bool) -> list[FileFinding]:
    """Damage of recordings without their edits, or of the episodes of shards."""
    from warpdata._api.checking import check_dataset
    from warpdata.errors import StoreError

    report = check_dataset(path, deep=full, raw=True, catalog=catalog)
    if not report.episodes:
        raise StoreError("a folder without episodes", path=path, hint="Name the files to verify.")
    return [
        FileFinding(
            finding.details.get("code", finding.rule),
            f"{finding.episode}: {finding.message}",
            finding.details.get("block"),
        )
        for finding in report.findings
        if finding.severity == "damaged"
    ]


def _journal_findings(path: str) -> list[FileFinding]:
    from warpdata.formats.journal.reader import JournalReader

    scan = JournalReader.open(path).scan()
    lost = [f"bytes {part.start} to {part.end}: {part.why}" for part in scan.lost]
    if scan.is_cut:
        lost.append(f"the file ends at {scan.end_offset}, right behind a record: what followed is gone")
    return [FileFinding("journal_damage", text, hint="Run `warp salvage`.") for text in lost]
