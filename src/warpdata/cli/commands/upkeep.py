"""Commands for upkeep: `repair`, `cache`, `doctor`, `completion`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

from warpdata.cli import arguments as cli
from warpdata.cli.console import Exit, Output, human_bytes

if TYPE_CHECKING:
    from warpdata.stores.pagecache import PageCache


@cli.command("warp repair lab/arm --from backup")
def run_repair(
    warp: cli.Warp,
    dataset: str,
    *,
    from_: Annotated[Sequence[str], cli.Arg("a catalog with a copy (may be repeated)", "CATALOG")] = (),
    files: Annotated[Sequence[list[str]], cli.Arg("files it was made from", "PATH", nargs="+")] = (),
) -> Output:
    """Replace damaged blobs of a dataset; every blob is read. Exit code 3 if some are lost."""
    from warpdata.catalog.access import parse_name
    from warpdata.catalog.manage.copies import mend_version

    with ExitStack() as opened, warp.progress("reading") as bar:
        access = opened.enter_context(warp.open_access())
        sources = [opened.enter_context(warp.open_access(place, "remote")) for place in from_]
        paths = [path for group in files for path in group]
        done = mend_version(access, parse_name(dataset), sources=sources, files=paths, progress=bar)
    lines = [f"{done.dataset_id}@{done.version}: {done.blobs} blobs, {len(done.replaced)} replaced"]
    if done.is_manifest_replaced:
        lines.append("the manifest was damaged and is replaced")
    lines += [f"lost: {sha256}" for sha256 in done.lost]
    if done.lost:
        lines.append("  name a catalog with a copy (--from) or the files it was made from (--files)")
    return Output(done, lines, style={"lost:": "red"}, code=Exit.DAMAGED if done.lost else Exit.OK)


@cli.command("warp cache show")
def run_cache_show(_: cli.Warp) -> Output:
    """Show folder and size of the cache."""
    return _show_cache(_open_cache())


@cli.command("warp cache gc --limit 50GB")
def run_cache_gc(
    _: cli.Warp, *, limit: Annotated[str | None, "bytes that may stay, such as 500GB"] = None
) -> Output:
    """Remove what was used longest ago until the rest fits; a bare number is GB."""
    from warpdata.catalog.access import parse_size

    if limit is not None and limit.strip().replace(".", "", 1).isdigit():
        limit = f"{limit}GB"
    cache = _open_cache()
    return _show_cache(cache, cache.gc(None if limit is None else parse_size(limit)))


@cli.command("warp cache clear lab/arm")
def run_cache_clear(
    warp: cli.Warp, address: Annotated[str | None, "URL of a file, or a dataset (default: everything)"] = None
) -> Output:
    """Remove everything, a file or a dataset from the cache."""
    from warpdata._api import store_folder

    cache, names = _open_cache(), None
    if address is not None and "://" not in address:
        with warp.open_dataset(address) as opened:
            names = set(opened.manifest.blobs())
    elif address is not None:
        folder, _, name = address.rpartition("/")
        names = {store_folder(folder).file(name).address.cache_name or ""} - {""}
    return _show_cache(cache, cache.remove(names))


def _open_cache() -> PageCache:
    from warpdata.settings import Settings
    from warpdata.stores.pagecache import PageCache

    settings = Settings.from_env()
    return PageCache(os.path.expanduser(settings.cache_dir), settings.cache_bytes)


def _show_cache(cache: PageCache, freed: int | None = None) -> Output:
    stats = cache.stats()
    cache.close()
    lines = [
        f"folder  {stats.folder}",
        f"used    {human_bytes(stats.used_bytes)} of {human_bytes(stats.limit_bytes)}",
        f"blobs   {stats.blobs}, of which {stats.whole_blobs} are whole and checked",
        f"files   {stats.files}",
    ]
    if freed is None:
        return Output(stats, lines)
    return Output(asdict(stats) | {"freed_bytes": freed}, [f"freed {human_bytes(freed)}", *lines])


@cli.command("warp doctor", needs_catalog=True)
def run_doctor(warp: cli.Warp) -> Output:
    """Check the installation and credentials; exit code 1 if a required check fails."""
    from warpdata.catalog.access import access_options, catalog_tuple
    from warpdata.catalog.manage.doctor import examine
    from warpdata.settings import Settings

    settings = Settings.from_env()
    checks = examine(settings, access_options(settings, catalogs=catalog_tuple(warp.catalog)))
    is_ok = all(check.is_ok for check in checks if check.is_needed)
    lines = []
    for check in checks:
        mark = "ok  " if check.is_ok else "FAIL" if check.is_needed else "note"
        lines.append(f"{mark}  {check.name}: {check.found}")
        lines += [f"      {check.remedy}"] if check.remedy else []
    return Output(
        {"is_ok": is_ok, "checks": checks},
        lines,
        style={"ok  ": "green", "FAIL": "red", "note": "red"},
        code=Exit.OK if is_ok else Exit.ERROR,
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


@cli.command('eval "$(warp completion bash)"', has_json=False)
def run_completion(_: cli.Warp, shell: Literal["bash", "zsh", "fish"]) -> Output:
    """Print a shell completion script, made from the parser."""
    from warpdata.cli.main import COMMANDS, build_parser

    (commands,) = (item for item in build_parser()._actions if isinstance(item, argparse._SubParsersAction))
    words: dict[str, list[str]] = {}
    for name, parser in commands.choices.items():
        parser.complete()
        actions = [item for item in parser._actions if not item.option_strings and item.choices]
        flags = [flag for item in parser._actions for flag in item.option_strings if flag.startswith("--")]
        words[name] = flags + [str(choice) for item in actions for choice in item.choices or ()]
    if shell == "fish":
        lines = []
        for name, flags in words.items():
            summary = COMMANDS[name][1].replace("'", "")
            lines.append(f"complete -c warp -n __fish_use_subcommand -a {name} -d '{summary}'")
            seen = f"complete -c warp -n '__fish_seen_subcommand_from {name}'"
            lines += [f"{seen} -l {flag[2:]}" for flag in flags if flag.startswith("--")]
        return Output(lines=lines)
    cases = "\n".join(f'    {name}) words="{" ".join(flags)}" ;;' for name, flags in words.items())
    script = _BASH.format(cases=cases, commands=" ".join(words))
    first = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return Output(lines=(first + script).splitlines())
