"""Commands for upkeep: `repair`, `gc-remote`, `cache`, `doctor`, `completion`."""

from __future__ import annotations

import argparse
import math
import os
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import arguments as cli
from warpdata.cli import exits
from warpdata.cli.console import Output, human_bytes

if TYPE_CHECKING:
    from warpdata.cli.console import Console


@cli.command(
    "replace damaged blobs of a dataset",
    cli.REMOTE_DATASET,
    cli.many("--from", "CATALOG", "a catalog with a copy"),
    cli.arg(
        "--files", nargs="+", default=[], metavar="PATH", help="files or folders the dataset was made from"
    ),
    example="warp repair lab/arm --from backup",
)
def run_repair(args: cli.Namespace, console: Console) -> Output:
    """Read every blob and replace the bad ones; exit code 3 if some are lost."""
    from warpdata.catalog.access import parse_name
    from warpdata.catalog.manage.copies import mend_version

    with ExitStack() as opened, console.progress("reading") as progress:
        access = opened.enter_context(cli.open_access(args.catalog))
        sources = [
            opened.enter_context(cli.open_access(catalog, "remote")) for catalog in getattr(args, "from")
        ]
        name = parse_name(args.dataset)
        done = mend_version(access, name, sources=sources, files=args.files, progress=progress)
    lines = [f"{done.dataset_id}@{done.version}: {done.blobs} blobs, {len(done.replaced)} replaced"]
    if done.is_manifest_replaced:
        lines.append("the manifest was damaged and is replaced")
    lines += [f"lost: {sha256}" for sha256 in done.lost]
    if done.lost:
        lines.append("  name a catalog with a copy (--from) or the files it was made from (--files)")
    code = exits.DAMAGED if done.lost else exits.OK
    return Output(asdict(done), lines, style={"lost:": "red"}, code=code)


@cli.command(
    "find or delete unused blobs",
    cli.CATALOG,
    cli.JSON,
    cli.flag("--dry-run", "only list (the default)"),
    cli.flag("--delete", "delete blobs older than the grace period"),
    cli.arg("--grace-hours", type=float, default=168.0, help="younger blobs stay (default 168)"),
    example="warp gc-remote --delete",
)
def run_gc_remote(args: cli.Namespace, _: Console) -> Output:
    """List or delete blobs that no version uses."""
    from warpdata.catalog.manage.versions import collect

    if args.delete and args.dry_run:
        raise ValueError("--delete and --dry-run exclude each other")
    if not 0 <= args.grace_hours < math.inf:
        raise ValueError(f"--grace-hours must be a number from 0, not {args.grace_hours}")
    with cli.open_access(args.catalog) as access:
        garbage = collect(access.catalogs[0], delete=args.delete, grace_s=args.grace_hours * 3600)
    verb = "deleted" if garbage.is_deleted else "unused"
    size, count = human_bytes(garbage.bytes), len(garbage.blobs)
    lines = [*garbage.blobs, f"{count} blobs {verb} ({size}) beside {garbage.versions} versions"]
    if garbage.leftovers:
        lines.append(f"{len(garbage.leftovers)} cards and signatures of deleted versions {verb}")
    if garbage.young_blobs:
        lines.append(f"{garbage.young_blobs} unused blobs are younger than the grace period")
    return Output(asdict(garbage), lines)


_LIMIT = "gc: bytes that may stay, such as 500GB or 200MB; a bare number is GB (default WARP_CACHE_SIZE_GB)"


@cli.command(
    "show, shrink or clear the cache",
    cli.arg("action", choices=("stats", "gc", "clear")),
    cli.arg("address", nargs="?", help="clear: the URL of a file, or a dataset; everything by default"),
    cli.arg("--limit", metavar="GB", help=_LIMIT),
    cli.JSON,
    example="warp cache gc --limit 50GB",
)
def run_cache(args: cli.Namespace, _: Console) -> Output:
    """Show, shrink or clear the cache."""
    from warpdata.catalog.access import parse_size
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


@cli.command("check the installation and credentials", cli.CATALOG, cli.JSON, example="warp doctor")
def run_doctor(args: cli.Namespace, _: Console) -> Output:
    """Print every check; exit code 1 if a required one fails."""
    from warpdata.catalog.access import access_options, catalog_tuple
    from warpdata.catalog.manage.doctor import examine
    from warpdata.settings import Settings

    settings = Settings.from_env()
    checks = examine(settings, access_options(settings, catalogs=catalog_tuple(args.catalog)))
    is_ok = all(check.is_ok for check in checks if check.is_needed)
    lines = []
    for check in checks:
        mark = "ok  " if check.is_ok else "FAIL" if check.is_needed else "note"
        lines.append(f"{mark}  {check.name}: {check.found}")
        lines += [f"      {check.remedy}"] if check.remedy else []
    return Output(
        {"is_ok": is_ok, "checks": [asdict(check) for check in checks]},
        lines,
        style={"ok  ": "green", "FAIL": "red", "note": "red"},
        code=exits.OK if is_ok else exits.ERROR,
    )


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


@cli.command(
    "print a shell completion script",
    cli.arg("shell", choices=("bash", "zsh", "fish")),
    example='eval "$(warp completion bash)"',
)
def run_completion(args: cli.Namespace, _: Console) -> Output:
    """Print a completion script, made from the parser."""
    from warpdata.cli.main import COMMANDS

    words = _words_by_command()
    if args.shell == "fish":
        lines = []
        for name, flags in words.items():
            summary = COMMANDS[name][1].replace("'", "")
            lines.append(f"complete -c warp -n __fish_use_subcommand -a {name} -d '{summary}'")
            seen = f"complete -c warp -n '__fish_seen_subcommand_from {name}'"
            lines += [f"{seen} -l {flag[2:]}" for flag in flags if flag.startswith("--")]
        return Output(lines=lines)
    cases = "\n".join(f'    {name}) words="{" ".join(flags)}" ;;' for name, flags in words.items())
    script = (_ZSH if args.shell == "zsh" else _BASH).format(cases=cases, commands=" ".join(words))
    return Output(lines=script.splitlines())


def _words_by_command() -> dict[str, list[str]]:
    """Command -> its flags and actions."""
    from warpdata.cli.main import build_parser

    (commands,) = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    words: dict[str, list[str]] = {}
    for name, parser in commands.choices.items():
        parser.complete()
        words[name] = []
        for action in parser._actions:
            words[name] += [option for option in action.option_strings if option.startswith("--")]
            if not action.option_strings and action.choices:
                words[name] += [str(choice) for choice in action.choices]
    return words
