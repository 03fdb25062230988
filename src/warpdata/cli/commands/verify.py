"""`warp verify`: read files and say what is damaged."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "check every checksum of files and report damage; exit code 3 if there is any"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp verify`."""
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--full", action="store_true", help="also read windows, values and chunk files")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Verify each file; one that cannot be read does not stop the others."""
    reports = []
    with console.progress("verify") as bar:
        for done, path in enumerate(args.files):
            bar(done, len(args.files))
            reports.append({"path": path, "findings": _findings(path, full=args.full)})
    console.emit(reports)
    for report in reports:
        _print(report, console)
    damaged = any(each["is_damage"] for report in reports for each in report["findings"])
    return exits.DAMAGED if damaged else exits.OK


def _findings(path: str, *, full: bool) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from warpdata.cli.sniff import file_kind
    from warpdata.errors import WarpError
    from warpdata.formats.wshard.verify import Finding, verify_shard

    try:
        kind = file_kind(path)
        if kind == "vectors":
            found = _vectors(path)
        else:
            found = _journal(path) if kind == "journal" else verify_shard(path, full=full)
    except WarpError as error:
        found = [Finding(error.code, str(error), error.block, error.hint)]
    return [asdict(each) for each in found]


def _vectors(path: str) -> list[Any]:
    from warpdata.formats.wshard.verify import Finding
    from warpdata.search.store import VectorStore

    with VectorStore.open(path) as store:
        return [Finding(damage.code, damage.message) for damage in store.verify()]


def _journal(path: str) -> list[Any]:
    from warpdata.formats.journal.reader import JournalReader
    from warpdata.formats.wshard.verify import Finding

    scan = JournalReader.open(path).scan()
    return [
        Finding("journal_damage", f"bytes {each.start} to {each.end}: {each.why}", hint="Run `warp salvage`.")
        for each in scan.damage
    ]


def _print(report: dict[str, Any], console: Console) -> None:
    damage = [each for each in report["findings"] if each["is_damage"]]
    word = console.paint("damaged", "red") if damage else console.paint("ok", "green")
    console.print(f"{report['path']}: {word}")
    for each in report["findings"]:
        where = f"block {each['block']!r}: " if each["block"] and each["block"] not in each["message"] else ""
        level = "error" if each["is_damage"] else "note"
        console.print(f"  {level}[{each['code']}] {where}{each['message']}")
        if each["hint"]:
            console.print(f"    hint: {each['hint']}")
