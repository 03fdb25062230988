"""`warp verify`: read files or published datasets and say what is damaged."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.commands._address import FORMS, naming_errors
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.bytekit.findings import FileFinding
    from warpdata.cli.console import Console
    from warpdata.errors import WarpError

_OK, _DAMAGED, _NOT_FOUND, _NOT_READ = "ok", "damaged", "not found", "not read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp verify`."""
    parser.add_argument("files", nargs="+", metavar="ADDRESS", help=f"files, folders or datasets: {FORMS}")
    parser.add_argument("--catalog", help="datasets: folder or address of the catalog")
    parser.add_argument("--full", action="store_true", help="also read windows, values and chunk files")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Verify each file; one that cannot be read does not stop the others."""
    reports = []
    things = [thing for address in args.files for thing in _things(address, args)]
    with console.progress("verify") as bar:
        for done, (path, catalog) in enumerate(things):
            bar(done, len(things))
            status, findings = _findings(path, argparse.Namespace(full=args.full, catalog=catalog))
            reports.append({"path": path, "status": status, "findings": findings})
    console.emit(reports)
    for report in reports:
        _print(report, console)
    found = {report["status"] for report in reports}
    if _DAMAGED in found:
        return exits.DAMAGED
    return exits.OK if found == {_OK} else exits.ERROR


def _things(address: str, args: argparse.Namespace) -> list[tuple[str, str | None]]:
    """What is verified, each with where datasets are looked for: of a folder everything of ours in it."""
    from warpdata.catalog.read.filekinds import is_catalog, things_in

    found: list[tuple[str, str | None]] = []
    for path in things_in(address) if os.path.isdir(address) else ():
        found += [(name, path) for name in _datasets_in(path)] if is_catalog(path) else [(path, args.catalog)]
    return found or [(address, args.catalog)]


def _datasets_in(catalog: str) -> list[str]:
    from warpdata.catalog.manage.history import list_datasets
    from warpdata.cli.commands._dataset import open_access

    access = open_access(argparse.Namespace(catalog=catalog))
    try:
        return [f"{one.dataset_id}@{one.version}" for each in access.catalogs for one in list_datasets(each)]
    finally:
        access.close()


def _findings(path: str, args: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """What is true of one file, and why; what is not there or cannot be reached is not damaged."""
    from dataclasses import asdict, replace

    from warpdata.bytekit.findings import FileFinding
    from warpdata.errors import WarpError

    try:
        with naming_errors():
            found = _found_at(path, args)
    except WarpError as error:
        status = _status(path, error)
        found = [replace(FileFinding.of(error), is_damage=status == _DAMAGED)]
    else:
        status = _DAMAGED if any(each.is_damage for each in found) else _OK
    return status, [asdict(each) for each in found]


def _status(path: str, error: WarpError) -> str:
    from warpdata import errors
    from warpdata.catalog.read.filekinds import is_ours
    from warpdata.cli.commands._dataset import is_dataset

    if isinstance(error, errors.BlobNotFoundError):
        # Something that the file or dataset itself names is missing where it is there: that is damage.
        is_there = os.path.lexists(path) or is_dataset(path)
        return _DAMAGED if is_there else _NOT_FOUND
    if isinstance(error, errors.DatasetNotFoundError):
        return _NOT_FOUND
    if isinstance(error, errors.BadMagicError) and (os.path.isdir(path) or not is_ours(path)):
        return _NOT_READ
    elsewhere = (errors.StoreError, errors.OfflineError, errors.BudgetExceededError, errors.MissingExtraError)
    return _NOT_READ if isinstance(error, elsewhere) else _DAMAGED


def _found_at(path: str, args: argparse.Namespace) -> list[FileFinding]:
    from warpdata._api import address_kind, divided_address, foreign_episodes
    from warpdata.errors import BadMagicError

    base, inside = divided_address(path)
    try:
        kind = address_kind(base)
    except BadMagicError:
        if foreign_episodes(base) is None:
            raise
        kind = "recordings"
    if kind == "shards" and os.path.isdir(base):
        return _shards(base, inside, full=args.full)
    if inside is not None or kind in ("recordings", "directory", "shards"):
        return _episodes(path, args)
    if kind == "dataset":
        return _dataset(path, args)
    if kind == "vectors":
        return _vectors(path)
    if kind in ("corpus", "rows"):
        return _corpus(path)
    return _journal(path) if kind == "journal" else _shard(path, full=args.full)


def _shards(folder: str, inside: str | None, *, full: bool) -> list[FileFinding]:
    """The shards of a folder of this disk, or the one of an episode, each as if it were named alone; a chunk list
    stands for its chunks."""
    from dataclasses import replace

    from warpdata._api import open_episodes
    from warpdata.bytekit.findings import FileFinding
    from warpdata.episodes.collection.shard_folder import shards_in
    from warpdata.errors import WarpError

    found: list[FileFinding] = []
    names = shards_in(folder)
    for name in names if inside is None else [names[open_episodes(folder).position(inside)]]:
        try:
            own = _shard(os.path.join(folder, name), full=full)
        except WarpError as error:
            own = [FileFinding.of(error)]
        found += [replace(each, message=f"{name}: {each.message}") for each in own]
    return found


def _shard(path: str, *, full: bool) -> list[FileFinding]:
    from warpdata._api import located
    from warpdata.episodes.check.shards import unplayable_cameras
    from warpdata.formats.wshard.verify import verify_shard

    where = located(path)
    found = list(verify_shard(where, full=full))
    if any(each.is_damage for each in found):
        return found
    return [*found, *unplayable_cameras(where, full=full)]


def _episodes(path: str, args: argparse.Namespace) -> list[FileFinding]:
    """Recordings as they were made, or the episodes of shards: what of them is damaged."""
    from warpdata._api.checking import check_dataset
    from warpdata.bytekit.findings import FileFinding
    from warpdata.errors import StoreError

    report = check_dataset(path, deep=args.full, raw=True, catalog=args.catalog)
    if not report.episodes:
        raise StoreError("a folder without episodes", path=path, hint="Name what is to be verified.")
    return [
        FileFinding(
            each.details.get("code", each.rule), f"{each.episode}: {each.message}", each.details.get("block")
        )
        for each in report.findings
        if each.severity == "damaged"
    ]


def _corpus(path: str) -> list[FileFinding]:
    """A corpus, or one shard of one: with the corpus.json beside it every byte is checked."""
    from warpdata.cli.commands.corpus import corpus_findings

    return corpus_findings(path)


def _vectors(path: str) -> list[FileFinding]:
    from warpdata._api import open_vectors

    with open_vectors(path) as store:
        return store.verify()


def _dataset(name: str, args: argparse.Namespace) -> list[FileFinding]:
    from warpdata.bytekit.findings import FileFinding
    from warpdata.catalog.manage.reports import verify_dataset
    from warpdata.cli.commands._dataset import open_named

    with open_named(args, name) as dataset:
        report, _ = verify_dataset(dataset)
    return [
        FileFinding("blob_damage", text, hint="Restore the blob from a copy.") for text in report["damaged"]
    ]


def _journal(path: str) -> list[FileFinding]:
    from warpdata.bytekit.findings import FileFinding
    from warpdata.formats.journal.reader import JournalReader

    scan = JournalReader.open(path).scan()
    lost = [f"bytes {each.start} to {each.end}: {each.why}" for each in scan.lost]
    if scan.is_cut:
        lost.append(f"the file ends at {scan.end_offset}, right behind a record: what followed is gone")
    return [FileFinding("journal_damage", each, hint="Run `warp salvage`.") for each in lost]


def _print(report: dict[str, Any], console: Console) -> None:
    is_ok = report["status"] == _OK
    console.print(f"{report['path']}: {console.paint(report['status'], 'green' if is_ok else 'red')}")
    for each in report["findings"]:
        where = f"{each['part']}: " if each["part"] and each["part"] not in each["message"] else ""
        level = "note" if not each["is_damage"] and report["status"] in (_OK, _DAMAGED) else "error"
        console.print(f"  {level}[{each['code']}] {where}{each['message']}")
        if each["hint"]:
            console.print(f"    hint: {each['hint']}")
