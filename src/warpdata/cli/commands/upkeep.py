"""Commands for upkeep: `verify`, `repair`, `gc-remote`, `cache`, `doctor`, `completion`."""

from __future__ import annotations

import argparse
import math
import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.arguments import (
    FORMS,
    add_catalog_argument,
    add_dataset_arguments,
    naming_errors,
    open_access,
    open_named,
)
from warpdata.cli.console import Output, add_json_flag, human_bytes

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.cli.parser import Parser
    from warpdata.errors import FileFinding, WarpError

_OK, _DAMAGED, _NOT_FOUND, _NOT_READ = "ok", "damaged", "not found", "not read"


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp verify`."""
    parser.add_argument("files", nargs="+", metavar="ADDRESS", help=f"files, folders or datasets: {FORMS}")
    add_catalog_argument(parser)
    parser.add_argument("--full", action="store_true", help="also read windows, values and chunk files")
    add_json_flag(parser)


def run_verify(args: argparse.Namespace, console: Console) -> int:
    """Verify each file; exit code 3 if one is damaged, 1 if one cannot be read."""
    reports = []
    targets = [target for address in args.files for target in _verify_targets(address, args)]
    with console.progress("verify") as bar:
        for done, (path, catalog) in enumerate(targets):
            bar(done, len(targets))
            status, findings = _verify(path, argparse.Namespace(full=args.full, catalog=catalog))
            reports.append({"path": path, "status": status, "findings": findings})
    console.emit(reports)
    for report in reports:
        _print_verified(report, console)
    statuses = {report["status"] for report in reports}
    if _DAMAGED in statuses:
        return exits.DAMAGED
    return exits.OK if statuses == {_OK} else exits.ERROR


def _verify_targets(address: str, args: argparse.Namespace) -> list[tuple[str, str | None]]:
    """Addresses with their catalogs; a folder stands for everything of ours in it."""
    from warpdata.catalog.manage.history import list_datasets
    from warpdata.catalog.read.filekinds import is_catalog, things_in

    targets: list[tuple[str, str | None]] = []
    for path in things_in(address) if os.path.isdir(address) else ():
        if not is_catalog(path):
            targets.append((path, args.catalog))
            continue
        with open_access(path) as access:
            for catalog in access.catalogs:
                targets += [(f"{d.dataset_id}@{d.version}", path) for d in list_datasets(catalog)]
    return targets or [(address, args.catalog)]


def _verify(path: str, args: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Status and findings of one address; missing and unreachable ones are not damaged."""
    from warpdata.errors import FileFinding, WarpError

    try:
        with naming_errors():
            findings = _findings_at(path, args)
    except WarpError as error:
        status = _status_of(path, error)
        findings = [replace(FileFinding.of(error), is_damage=status == _DAMAGED)]
    else:
        status = _DAMAGED if any(finding.is_damage for finding in findings) else _OK
    return status, [asdict(finding) for finding in findings]


def _status_of(path: str, error: WarpError) -> str:
    from warpdata import errors
    from warpdata._api import is_published
    from warpdata.catalog.read.filekinds import is_ours

    if isinstance(error, errors.BlobNotFoundError):
        # A file that an existing file or dataset names is missing: damage.
        exists = os.path.lexists(path) or is_published(path)
        return _DAMAGED if exists else _NOT_FOUND
    if isinstance(error, errors.DatasetNotFoundError):
        return _NOT_FOUND
    if isinstance(error, errors.BadMagicError) and (os.path.isdir(path) or not is_ours(path)):
        return _NOT_READ
    elsewhere = (errors.StoreError, errors.OfflineError, errors.BudgetExceededError, errors.MissingExtraError)
    return _NOT_READ if isinstance(error, elsewhere) else _DAMAGED


def _findings_at(path: str, args: argparse.Namespace) -> list[FileFinding]:
    from warpdata._api import address_kind, divided_address, foreign_episodes, open_vectors
    from warpdata.cli.commands.corpus import corpus_findings
    from warpdata.errors import BadMagicError

    base, inside = divided_address(path)
    try:
        kind = address_kind(base)
    except BadMagicError:
        if foreign_episodes(base) is None:
            raise
        kind = "recordings"
    if kind == "shards" and os.path.isdir(base):
        return _shard_folder_findings(base, inside, full=args.full)
    if inside is not None or kind in ("recordings", "directory", "shards"):
        return _episode_findings(path, args)
    if kind == "dataset":
        return _dataset_findings(path, args)
    if kind == "vectors":
        with open_vectors(path) as store:
            return store.verify()
    if kind in ("corpus", "rows"):
        return corpus_findings(path)
    return _journal_findings(path) if kind == "journal" else _shard_findings(path, full=args.full)


def _shard_folder_findings(folder: str, inside: str | None, *, full: bool) -> list[FileFinding]:
    """Findings of every shard of a local folder, or of that of one episode; a chunk list stands for its chunks."""
    from warpdata._api import open_episodes
    from warpdata.episodes.collection.shard_folder import shards_in
    from warpdata.errors import FileFinding, WarpError

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
    from warpdata._api import located
    from warpdata.episodes.check.sets import unplayable_cameras
    from warpdata.formats.wshard.verify import verify_shard

    source = located(path)
    findings = list(verify_shard(source, full=full))
    if any(finding.is_damage for finding in findings):
        return findings
    return [*findings, *unplayable_cameras(source, full=full)]


def _episode_findings(path: str, args: argparse.Namespace) -> list[FileFinding]:
    """Damage of recordings without their edits, or of the episodes of shards."""
    from warpdata._api.checking import check_dataset
    from warpdata.errors import FileFinding, StoreError

    report = check_dataset(path, deep=args.full, raw=True, catalog=args.catalog)
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


def _dataset_findings(name: str, args: argparse.Namespace) -> list[FileFinding]:
    from warpdata.catalog.manage.reports import verify_dataset
    from warpdata.errors import FileFinding

    with open_named(args, name) as dataset:
        report, _ = verify_dataset(dataset)
    hint = "Restore the blob from a copy."
    return [FileFinding("blob_damage", text, hint=hint) for text in report["damaged"]]


def _journal_findings(path: str) -> list[FileFinding]:
    from warpdata.errors import FileFinding
    from warpdata.formats.journal.reader import JournalReader

    scan = JournalReader.open(path).scan()
    lost = [f"bytes {part.start} to {part.end}: {part.why}" for part in scan.lost]
    if scan.is_cut:
        lost.append(f"the file ends at {scan.end_offset}, right behind a record: what followed is gone")
    return [FileFinding("journal_damage", text, hint="Run `warp salvage`.") for text in lost]


def _print_verified(report: dict[str, Any], console: Console) -> None:
    status = report["status"]
    console.print(f"{report['path']}: {status}", {status: "green" if status == _OK else "red"})
    for finding in report["findings"]:
        part, message = finding["part"], finding["message"]
        where = f"{part}: " if part and part not in message else ""
        level = "note" if not finding["is_damage"] and status in (_OK, _DAMAGED) else "error"
        console.print(f"  {level}[{finding['code']}] {where}{message}")
        if finding["hint"]:
            console.print(f"    hint: {finding['hint']}")


def add_repair(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp repair`."""
    add_dataset_arguments(parser, mode=False)
    parser.add_argument(
        "--from", dest="sources", action="append", default=[], metavar="CATALOG", help="a catalog with a copy"
    )
    parser.add_argument(
        "--files", nargs="+", default=[], metavar="PATH", help="files or folders the dataset was made from"
    )


def run_repair(args: argparse.Namespace, console: Console) -> Output:
    """Read every blob and replace the bad ones; exit code 3 if some are lost."""
    from warpdata.catalog.manage.mending import mend_version
    from warpdata.catalog.names import parse_name

    with ExitStack() as opened, console.progress("reading") as progress:
        access = opened.enter_context(open_access(args.catalog))
        sources = [opened.enter_context(open_access(catalog, "remote")) for catalog in args.sources]
        name = parse_name(args.dataset)
        done = mend_version(access, name, sources=sources, files=args.files, progress=progress)
    lines = [f"{done.dataset_id}@{done.version}: {done.blobs} blobs, {len(done.replaced)} replaced"]
    if done.is_manifest_replaced:
        lines.append("the manifest was damaged and is replaced")
    lines += [f"lost: {sha256}" for sha256 in done.lost]
    if done.lost:
        lines.append("  name a catalog with a copy (--from) or the files it was made from (--files)")
    code = exits.DAMAGED if done.lost else exits.OK
    return Output(asdict(done), lines, style={"lost": "red"}, code=code)


def add_gc_remote(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp gc-remote`."""
    add_catalog_argument(parser)
    add_json_flag(parser)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="only list (the default)")
    choice.add_argument("--delete", action="store_true", help="delete blobs older than the grace period")
    parser.add_argument("--grace-hours", type=float, default=168.0, help="younger blobs stay (default 168)")


def run_gc_remote(args: argparse.Namespace, _: Console) -> Output:
    """List or delete blobs that no version uses."""
    from warpdata.catalog.manage.remotegc import collect

    if not 0 <= args.grace_hours < math.inf:
        raise ValueError(f"--grace-hours must be a number from 0, not {args.grace_hours}")
    with open_access(args.catalog) as access:
        garbage = collect(access.catalogs[0], delete=args.delete, grace_s=args.grace_hours * 3600)
    verb = "deleted" if garbage.is_deleted else "unused"
    size, count = human_bytes(garbage.bytes), len(garbage.blobs)
    lines = [*garbage.blobs, f"{count} blobs {verb} ({size}) beside {garbage.versions} versions"]
    if garbage.leftovers:
        lines.append(f"{len(garbage.leftovers)} cards and signatures of deleted versions {verb}")
    if garbage.young_blobs:
        lines.append(f"{garbage.young_blobs} unused blobs are younger than the grace period")
    return Output(asdict(garbage), lines)


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp cache`."""
    parser.add_argument("action", choices=("stats", "gc", "clear"))
    address = "clear: the URL of a file, or a dataset; everything by default"
    parser.add_argument("address", nargs="?", help=address)
    limit = (
        "gc: bytes that may stay, such as 500GB or 200MB; a bare number is GB (default WARP_CACHE_SIZE_GB)"
    )
    parser.add_argument("--limit", metavar="GB", help=limit)
    add_json_flag(parser)


def run_cache(args: argparse.Namespace, _: Console) -> Output:
    """Show, shrink or clear the cache."""
    from warpdata.catalog.names import parse_size
    from warpdata.settings import Settings
    from warpdata.stores.pagecache import PageCache

    settings = Settings.from_env()
    if args.address is not None and args.action != "clear":
        raise ValueError(f"`warp cache {args.action}` takes no address")
    cache = PageCache(os.path.expanduser(settings.cache_dir), settings.cache_bytes)
    lines, freed = [], {}
    if args.action == "gc":
        limit = args.limit
        if limit is not None and limit.strip().replace(".", "", 1).isdigit():
            limit = f"{limit}GB"
        freed = {"freed_bytes": cache.gc(None if limit is None else parse_size(limit))}
    elif args.action == "clear":
        freed = {"freed_bytes": cache.remove(None if args.address is None else _cache_names(args.address))}
    if freed:
        lines.append(f"freed {human_bytes(freed['freed_bytes'])}")
    stats = cache.stats()
    cache.close()
    lines += [
        f"folder  {stats.folder}",
        f"used    {human_bytes(stats.used_bytes)} of {human_bytes(stats.limit_bytes)}",
        f"blobs   {stats.blobs}, of which {stats.whole_blobs} are whole and checked",
        f"files   {stats.files}",
    ]
    return Output(asdict(stats) | freed, lines)


def _cache_names(address: str) -> set[str]:
    """Names in the cache of the file at a URL, or of every blob of a dataset."""
    from warpdata._api import dataset, store_folder

    if "://" not in address:
        with dataset(address) as opened:
            return set(opened.manifest.blobs())
    folder, _, name = address.rpartition("/")
    cache_name = store_folder(folder).file(name).address.cache_name
    return {cache_name} if cache_name else set()


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp doctor`."""
    add_catalog_argument(parser)
    add_json_flag(parser)


def run_doctor(args: argparse.Namespace, console: Console) -> int:
    """Print every check; exit code 1 if a required one fails."""
    from warpdata.catalog.access import access_options, catalog_tuple
    from warpdata.catalog.manage.doctor import examine
    from warpdata.settings import Settings

    settings = Settings.from_env()
    checks = examine(settings, access_options(settings, catalogs=catalog_tuple(args.catalog)))
    is_ok = all(check.is_ok for check in checks if check.is_needed)
    console.emit({"is_ok": is_ok, "checks": [asdict(check) for check in checks]})
    for check in checks:
        mark = "ok  " if check.is_ok else "FAIL" if check.is_needed else "note"
        style = {mark: "green" if check.is_ok else "red"}
        console.print(f"{mark}  {check.name}: {check.found}", style)
        if check.remedy:
            console.print(f"      {check.remedy}")
    return exits.OK if is_ok else exits.ERROR


_BASH = """_warp() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" words=""
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands} --help --version --debug"; fi
  case "$cur" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -W "${{words//--[a-z-]*/}}" -- "$cur") $(compgen -f -- "$cur")) ;;
  esac
}}
complete -o filenames -F _warp warp
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n" + _BASH


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run_completion(args: argparse.Namespace, console: Console) -> int:
    """Print a completion script, made from the parser."""
    from warpdata.cli.main import COMMANDS, build_parser

    words = _words_by_command(build_parser())
    if args.shell == "fish":
        lines = []
        for name, flags in words.items():
            summary = COMMANDS[name].summary.replace("'", "")
            lines.append(f"complete -c warp -n __fish_use_subcommand -a {name} -d '{summary}'")
            seen = f"complete -c warp -n '__fish_seen_subcommand_from {name}'"
            lines += [f"{seen} -l {flag[2:]}" for flag in flags if flag.startswith("--")]
        console.print("\n".join(lines))
        return exits.OK
    cases = "\n".join(f'    {name}) words="{" ".join(flags)}" ;;' for name, flags in words.items())
    script = (_ZSH if args.shell == "zsh" else _BASH).format(cases=cases, commands=" ".join(words))
    console.print(script)
    return exits.OK


def _words_by_command(parser: Parser) -> dict[str, list[str]]:
    """Command -> its flags and actions."""
    words: dict[str, list[str]] = {}
    for group in parser._actions:
        if isinstance(group, argparse._SubParsersAction):
            for name, command in group.choices.items():
                command.complete()
                words[name] = _words_of(command)
    return words


def _words_of(parser: argparse.ArgumentParser) -> list[str]:
    words: list[str] = []
    for action in parser._actions:
        words += [option for option in action.option_strings if option.startswith("--")]
        if not action.option_strings and action.choices:
            words += [str(choice) for choice in action.choices]
    return words
