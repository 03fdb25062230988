"""`warp publish`: make files a version of a dataset."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.commands._address import naming_errors

if TYPE_CHECKING:
    from warpdata.catalog.build.builder import DatasetBuilder
    from warpdata.cli.console import Console

_PARTS = {
    **dict.fromkeys(("recordings", "directory", "shards", "episode", "chunk-list"), "episodes"),
    **dict.fromkeys(("corpus", "rows"), "activation_shards"),
    "vectors": "vector_index",
}
_NAMES = {"activation_shards": "activations", "vector_index": "vectors"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp publish`."""
    from warpdata.cli.commands._dataset import add_catalog_argument
    from warpdata.cli.console import add_json_flag

    parser.add_argument("dataset", help="workspace/name")
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help="recordings (a root, directories, .wshard files, chunk lists, folders of them), a corpus, a vector file, "
        "or table files (parquet, csv, jsonl): what each is is found out",
    )
    parser.add_argument(
        "--chunk-bytes", default="1GiB", metavar="SIZE", help="longer episodes are chunks (1GiB)"
    )
    add_catalog_argument(parser)
    add_json_flag(parser)
    parser.add_argument("--table", action="append", default=[], nargs="+", metavar="NAME=FILES")
    parser.add_argument("--artifact", action="append", default=[], nargs="+", metavar="NAME[:KIND]=PATH")
    parser.add_argument("--webdataset", action="append", default=[], nargs="+", metavar="NAME=TARS")
    parser.add_argument(
        "--draft",
        metavar="FOLDER",
        help="edits of a version that `warp view` kept: its episodes as they show them, all else as it is",
    )
    parser.add_argument("--bind", action="append", default=[], metavar="TABLE.COLUMN=ARTIFACT[:REF_TYPE]")
    parser.add_argument("--optimize", action="store_true", help="write parquet again, sized for range reads")
    parser.add_argument("--zstd", action="store_true", help="compress packed tar shards in groups of members")
    parser.add_argument("--set-latest", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tag", action="append", default=[])
    parser.add_argument("--message", default="")
    parser.add_argument("--description")
    parser.add_argument("--license")
    parser.add_argument("--sign", metavar="KEY.pem", help="put an Ed25519 signature beside the manifest")
    repair = "read back blobs that are there already and replace damaged ones"
    parser.add_argument("--repair", action="store_true", help=repair)
    staging = "where to write on the way (default: on the catalog's disk, else in the cache folder)"
    parser.add_argument("--staging", metavar="FOLDER", help=staging)
    extend = "add to the newest version instead of replacing it: files and rows join the parts of their name"
    parser.add_argument("--extend", action="store_true", help=extend)
    lanes = "keep what models said about episodes of the newest version; of episodes that changed it is stale"
    parser.add_argument("--keep-lanes", action="store_true", help=lanes)
    parser.add_argument("--retries", type=int, default=0, help="try again when latest moved meanwhile")


def run(args: argparse.Namespace, console: Console) -> int:
    """Publish and print the version."""
    from warpdata.catalog.build.builder import DatasetBuilder
    from warpdata.cli.console import human_bytes

    with (
        contextlib.ExitStack() as opened,
        DatasetBuilder(args.dataset, catalog=args.catalog, staging=args.staging) as builder,
        _draft(builder, args) as revised,
        console.progress("sending") as progress,
    ):
        if args.extend:
            builder.extend()
        elif args.keep_lanes:
            _keep_lanes(builder, args, opened)
        _add_parts(builder, args)
        notes = {"description": args.description, "license": args.license}
        builder.describe(**{k: v for k, v in notes.items() if v is not None})
        done = builder.publish(
            set_latest=args.set_latest,
            tags=tuple(args.tag),
            message=args.message,
            sign_key=None if args.sign is None else Path(args.sign),
            retries=args.retries,
            expect_latest=revised,
            repair=args.repair,
            progress=progress,
        )
    console.emit(asdict(done))
    console.print(str(done))
    console.print(
        f"{done.blobs_sent} blobs sent ({human_bytes(done.bytes_sent)}), {done.blobs_present} were there"
    )
    if done.blobs_replaced:
        console.print(f"{done.blobs_replaced} of them took the place of damaged ones")
    if done.signed_by:
        console.print(f"signed by {done.signed_by}")
    if not done.is_new and not done.blobs_sent:
        console.print("this version was published before: nothing changed")
    return exits.OK


@contextlib.contextmanager
def _draft(builder: DatasetBuilder, args: argparse.Namespace) -> Iterator[str | None]:
    """The version a draft was made of, with its edits; open until it is published, and `latest` must still be it."""
    if args.draft is None:
        yield None
        return
    from warpdata._api import dataset
    from warpdata.episodes.collection.draft import Draft, drafted

    of = drafted(args.draft)
    if of is None or of.partition("@")[0] != args.dataset:
        raise ValueError(f"{args.draft} is no draft of {args.dataset}" + (f" but of {of}" if of else ""))
    with dataset(of, catalog=args.catalog) as before:
        builder.revise(before, Draft(before.episodes, args.draft, of=of).episodes())
        yield before.version


def _keep_lanes(builder: DatasetBuilder, args: argparse.Namespace, opened: contextlib.ExitStack) -> None:
    from warpdata._api import dataset
    from warpdata.errors import DatasetNotFoundError

    try:
        newest = opened.enter_context(dataset(args.dataset, catalog=args.catalog))
    except DatasetNotFoundError:
        return
    builder.keep(newest, tables=[], artifacts=[lane.artifact.name for lane in newest.lanes.values()])


def _add_parts(builder: DatasetBuilder, args: argparse.Namespace) -> None:
    from warpdata.formats.tarshard.writer import PackOptions

    for kind, sources in _kinds(args.sources).items():
        if kind == "episodes":
            builder.add_episodes("recordings", sources, chunk_bytes=args.chunk_bytes)
        elif kind == "table":
            builder.add_table("main", sources, optimize=args.optimize)
        else:
            builder.add_artifact(_NAMES[kind], sources, kind=kind)
    for given in args.table:
        name, source = _named(given)
        builder.add_table(name, source, optimize=args.optimize)
    options = PackOptions(compression="zstd") if args.zstd else None
    for given in args.artifact:
        name, source = _named(given)
        name, _, kind = name.partition(":")
        builder.add_artifact(name, source, kind=kind or "tar_shards", options=options)
    for given in args.webdataset:
        name, source = _named(given)
        builder.add_webdataset(name, source)
    for given in args.bind:
        left, _, right = given.partition("=")
        table, dot, column = left.partition(".")
        artifact, _, kind = right.partition(":")
        if not dot or not artifact:
            raise ValueError(f"--bind is {given!r}; write TABLE.COLUMN=ARTIFACT:REF_TYPE")
        builder.bind(table, column, artifact, kind or "file")


def _kinds(sources: list[str]) -> dict[str, list[Any]]:
    """The sources by what they are."""
    from warpdata._api import address_kind, divided_address, open_episodes
    from warpdata.catalog.build.rowsources import table_kind
    from warpdata.catalog.read.filekinds import SUPPORTED
    from warpdata.errors import BadMagicError

    found: dict[str, list[Any]] = {}
    for source in sources:
        if table_kind(Path(source)) is not None:
            found.setdefault("table", []).append(source)
            continue
        if "://" in source:
            raise ValueError(f"{source} is not on this machine: bring it here first, or use `warp copy`")
        base, inside = divided_address(source)
        kind = address_kind(base)
        if kind == "dataset":
            raise ValueError(f"{source} is no file or folder; `warp copy` copies published datasets")
        if kind not in _PARTS:
            raise BadMagicError(
                f"a {kind} cannot be published", path=source, hint=f"What can be: {SUPPORTED}."
            )
        if inside is None:
            found.setdefault(_PARTS[kind], []).append(source)
        else:
            with naming_errors():
                found.setdefault("episodes", []).append(open_episodes(source))
    return found


def _named(given: list[str]) -> tuple[str, Any]:
    """`name=path` and the further paths the shell expanded a pattern to."""
    name, equals, first = given[0].partition("=")
    if not equals or not name or not first:
        raise ValueError(f"{given[0]!r} is not NAME=PATH")
    return name, first if len(given) == 1 else [first, *given[1:]]
