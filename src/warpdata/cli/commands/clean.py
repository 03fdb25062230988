"""Commands that find and repair problems of recordings: `check`, `edits`, `verify`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from warpdata import errors
from warpdata.cli import arguments as cli
from warpdata.cli.console import Exit, Output, count_text
from warpdata.errors import FileFinding, WarpError

if TYPE_CHECKING:
    from warpdata.episodes.check.report import Group
    from warpdata.episodes.collection.edits import Edits, Effect, EpisodeEntry

_SHOWN = 3
"""Findings of one rule and signal that are printed one by one; more are counted."""
_OK, _DAMAGED, _NOT_FOUND, _NOT_READ = "ok", "damaged", "not found", "not read"


@cli.command("warp check robot_data --mute no-actions")
def run_check(
    warp: cli.Warp,
    address: str | None = None,
    episode: str | None = None,
    *,
    rules: Annotated[bool, "list the rules and stop"] = False,
    all_findings: bool = False,
    mute: Annotated[Sequence[str], cli.Arg("ignore this rule (may be repeated)", "RULE")] = (),
    raw: bool = False,
    deep: Annotated[bool, "decode every frame too"] = False,
    **work: Unpack[cli.Work],
) -> Output:
    """Find problems in episodes; exit code 3 if data is damaged."""
    from warpdata._api.checking import check_dataset
    from warpdata.episodes.check.report import RULES

    if rules:
        meanings = {rule: {"severity": severity, "meaning": text} for rule, (severity, text) in RULES.items()}
        rows = [{"rule": rule, **about} for rule, about in meanings.items()]
        columns = {name: name for name in ("rule", "severity", "meaning")}
        return Output(meanings, rows=rows, columns=columns)
    if address is None:
        raise ValueError("ADDRESS is missing: name a root of recordings or an episode")
    where = cli.join_address(address, episode)
    with warp.progress("checking") as bar:
        report = check_dataset(
            where, deep=deep, mute=mute, raw=raw, progress=bar, catalog=warp.catalog, **work
        )
    lines = [
        f"{group.severity}[{group.rule}] {line}"
        for group in report.groups()
        for line in _group_lines(group, one_by_one=all_findings)
    ]
    muted = f", {', '.join(mute)} muted" if mute else ""
    return Output(
        report,
        lines,
        footer=[
            f"{count_text(report.episodes, 'episode')}, {count_text(len(report.findings), 'finding')}{muted}"
        ],
        style={"damaged[": "red", "warning[": "yellow", "info[": "dim"},
        code=Exit.DAMAGED if report.is_damaged else Exit.OK,
    )


def _group_lines(group: Group, *, one_by_one: bool) -> list[str]:
    """Each finding of a group, or the first one and the episodes that have more."""
    if one_by_one or len(group.findings) <= _SHOWN:
        places = ["/".join(filter(None, (finding.episode, finding.signal))) for finding in group.findings]
        return [f"{place}: {finding.message}" for place, finding in zip(places, group.findings, strict=True)]
    where = f"{group.signal}: " if group.signal else ""
    episodes = list(dict.fromkeys(finding.episode for finding in group.findings))
    more = f" and {len(episodes) - _SHOWN} more" if len(episodes) > _SHOWN else ""
    shown = ", ".join(episodes[:_SHOWN]) + more
    return [f"{where}{len(group.findings)} findings in {shown}; first: {group.findings[0].message}"]


# Edits.


@cli.command("warp edits list robot_data")
def run_edits_list(_: cli.Warp, root: str) -> Output:
    """List the edits of a root."""
    log = _open_edits(root)[0].log
    return Output(log, [json.dumps(edit, ensure_ascii=False) for edit in log])


@cli.command("warp edits drop robot_data#3")
def run_edits_drop(_: cli.Warp, root: str, episode: str | None = None, *, dry_run: bool = False) -> Output:
    """Hide an episode."""
    return _edit_one(root, episode, lambda edits, name: edits.drop(name, dry_run=dry_run))


@cli.command("warp edits undrop robot_data#3")
def run_edits_undrop(_: cli.Warp, root: str, episode: str | None = None, *, dry_run: bool = False) -> Output:
    """Show a dropped episode again."""
    return _edit_one(root, episode, lambda edits, name: edits.undrop(name, dry_run=dry_run))


@cli.command("warp edits set robot_data#3 success=true")
def run_edits_set(
    _: cli.Warp,
    root: Annotated[str, cli.Arg("an episode of a local root of recordings", "ROOT#ID")],
    item: Annotated[str, cli.Arg("a static item and its new value, JSON or text", "NAME=VALUE")],
    *,
    dry_run: bool = False,
) -> Output:
    """Give a static item another value."""
    ((key, value),) = cli.named_values([item]).items()
    return _edit_one(root, None, lambda edits, name: edits.set_static(name, key, value, dry_run=dry_run))


@cli.command("warp edits trim robot_data#3 --start 0.2s")
def run_edits_trim(
    _: cli.Warp,
    root: str,
    episode: str | None = None,
    *,
    start: cli.Moment | None = None,
    end: cli.Moment | None = None,
    dry_run: bool = False,
) -> Output:
    """Show only the records with start <= ts < end."""

    def change(edits: Edits, name: str) -> Effect:
        first_ns = _first_ts_ns(edits, name)
        window = (None if moment is None else moment(first_ns) for moment in (start, end))
        return edits.trim(name, *window, dry_run=dry_run)

    return _edit_one(root, episode, change)


@cli.command("warp edits split robot_data#3 --at 1.5s")
def run_edits_split(
    _: cli.Warp, root: str, episode: str | None = None, *, at: cli.Moment, dry_run: bool = False
) -> Output:
    """Show one episode as two."""
    return _edit_one(
        root, episode, lambda edits, name: edits.split(name, at(_first_ts_ns(edits, name)), dry_run=dry_run)
    )


_GAP = "move later ones to follow the previous one by this much: 0.1s, 250ms or nanoseconds"


@cli.command("warp edits concat robot_data 3 4 --gap 100ms")
def run_edits_concat(
    _: cli.Warp,
    root: str,
    episodes: Annotated[Sequence[str], cli.Arg("the episodes, in order", "ID")],
    *,
    gap: Annotated[int | None, cli.Arg(_GAP, "TIME", convert=cli.time_argument)] = None,
    dry_run: bool = False,
) -> Output:
    """Show several episodes as one."""
    edits, inside = _open_edits(root, may_name=True)
    names = [*([] if inside is None else [inside]), *episodes]
    return _show_effect(edits.concat(names, gap_ns=gap, dry_run=dry_run))


@cli.command("warp edits undo robot_data")
def run_edits_undo(
    _: cli.Warp,
    root: str,
    edit: Annotated[int | None, "number of the edit; default: the last one"] = None,
    *,
    dry_run: bool = False,
) -> Output:
    """Take back an edit."""
    return _show_effect(_open_edits(root)[0].undo(edit, dry_run=dry_run))


def _edit_one(root: str, episode: str | None, change: Callable[[Edits, str], Effect]) -> Output:
    edits, inside = _open_edits(root, may_name=True)
    if (inside is None) == (episode is None):
        raise ValueError(f"name one episode: {edits.root}#ID, or {edits.root} ID")
    return _show_effect(change(edits, str(inside or episode)))


def _open_edits(address: str, *, may_name: bool = False) -> tuple[Edits, str | None]:
    """The edit log of a root, and the episode that the address names."""
    from warpdata._api import address_kind, divided_address, open_recordings

    root, inside = divided_address(address)
    kind = address_kind(root)
    if kind == "dataset":
        raise ValueError(f"{root} is published and immutable: edit its recordings and publish them again")
    if kind != "recordings":
        raise ValueError(f"no root of recordings: {root} (only recordings can be edited)")
    if inside is not None and not may_name:
        raise ValueError(f"this concerns the whole root: use {root}")
    return open_recordings(root).edits, inside


def _first_ts_ns(edits: Edits, name: str) -> int:
    from warpdata.episodes.collection.local import LocalDataset

    return LocalDataset(edits.root).open(name).first_ts_ns


def _show_effect(effect: Effect) -> Output:
    lines = [f"- {_entry_text(entry)}" for entry in effect.before]
    lines += [f"+ {_entry_text(entry)}" for entry in effect.after]
    lines.append("nothing was changed (dry run)" if effect.seq is None else f"edit {effect.seq}")
    return Output(effect, lines)


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


# Checksums.


@cli.command("warp verify --full ep_001.wshard", needs_catalog=True)
def run_verify(
    warp: cli.Warp,
    files: Annotated[Sequence[str], cli.Arg(f"files, folders or datasets: {cli.FORMS}", "ADDRESS")],
    *,
    full: Annotated[bool, "also read windows, values and chunk files"] = False,
) -> Output:
    """Check checksums and structure; exit code 3 if something is damaged, 1 if it cannot be read."""
    reports: list[dict[str, Any]] = []
    lines: list[str] = []
    targets = [target for address in files for target in _verify_targets(warp, address)]
    with warp.progress("verify") as bar:
        for done, (path, place) in enumerate(targets):
            bar(done, len(targets))
            status, findings = _verify(path, place, full=full)
            reports.append({"path": path, "status": status, "findings": list(map(asdict, findings))})
            lines.append(f"{path}: {status}")
            for finding in findings:
                where = f"{finding.part}: " if finding.part and finding.part not in finding.message else ""
                level = "note" if not finding.is_damage and status in (_OK, _DAMAGED) else "error"
                lines.append(f"  {level}[{finding.code}] {where}{finding.message}")
                lines += [f"    hint: {finding.hint}"] if finding.hint else []
    statuses = {report["status"] for report in reports}
    code = Exit.DAMAGED if _DAMAGED in statuses else Exit.OK if statuses == {_OK} else Exit.ERROR
    style = {f": {status}": "green" if status == _OK else "red" for status in statuses}
    return Output(reports, lines, style=style, code=code)


def _verify_targets(warp: cli.Warp, address: str) -> list[tuple[str, str | None]]:
    """Addresses with their catalogs; a folder stands for everything of ours in it."""
    from warpdata.catalog.manage.versions import list_datasets
    from warpdata.catalog.read.filekinds import is_catalog, things_in

    targets: list[tuple[str, str | None]] = []
    for path in things_in(address) if os.path.isdir(address) else ():
        if not is_catalog(path):
            targets.append((path, warp.catalog))
            continue
        with warp.open_access(path) as access:
            for place in access.catalogs:
                targets += [(f"{d.dataset_id}@{d.version}", path) for d in list_datasets(place)]
    return targets or [(address, warp.catalog)]


def _verify(path: str, catalog: str | None, *, full: bool) -> tuple[str, list[FileFinding]]:
    """Status and findings of one address; missing and unreachable ones are not damaged."""
    from warpdata._api import is_published
    from warpdata.catalog.read.filekinds import is_ours

    elsewhere = (errors.StoreError, errors.OfflineError, errors.BudgetExceededError, errors.MissingExtraError)
    try:
        findings = _findings_at(path, catalog, full=full)
        return _DAMAGED if any(finding.is_damage for finding in findings) else _OK, findings
    except WarpError as error:
        failure = error
    if isinstance(failure, errors.BlobNotFoundError):
        # A file that an existing file or dataset names is missing: damage.
        status = _DAMAGED if os.path.lexists(path) or is_published(path) else _NOT_FOUND
    elif isinstance(failure, errors.DatasetNotFoundError):
        status = _NOT_FOUND
    elif isinstance(failure, errors.BadMagicError) and (os.path.isdir(path) or not is_ours(path)):
        status = _NOT_READ
    else:
        status = _NOT_READ if isinstance(failure, elsewhere) else _DAMAGED
    return status, [replace(FileFinding.of(failure), is_damage=status == _DAMAGED)]


def _findings_at(path: str, catalog: str | None, *, full: bool) -> list[FileFinding]:
    from warpdata._api import address_kind, divided_address, foreign_episodes, open_dataset, open_vectors
    from warpdata.cli.commands.corpus import verify_corpus

    base, inside = divided_address(path)
    try:
        kind = address_kind(base)
    except errors.BadMagicError:
        if foreign_episodes(base) is None:
            raise
        kind = "recordings"
    if kind == "shards" and os.path.isdir(base):
        return _shard_folder_findings(base, inside, full=full)
    if inside is not None or kind in ("recordings", "directory", "shards"):
        return _episode_findings(path, catalog, full=full)
    if kind == "dataset":
        with open_dataset(path, catalog=catalog) as dataset:
            damaged = dataset.verify()
        hint = "Restore the blob from a copy."
        return [FileFinding("blob_damage", text, hint=hint) for text in damaged]
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

    report = check_dataset(path, deep=full, raw=True, catalog=catalog)
    if not report.episodes:
        raise errors.StoreError("a folder without episodes", path=path, hint="Name the files to verify.")
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
