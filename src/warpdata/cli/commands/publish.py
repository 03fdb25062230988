"""Commands about published versions: `publish`, `versions`, `tags`, `diff`, `copy`, `list-remote`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli.console import Output, human_bytes

if TYPE_CHECKING:
    from warpdata.catalog.access import Access, Catalog
    from warpdata.catalog.build.builder import DatasetBuilder
    from warpdata.catalog.manage.reports import PartChange
    from warpdata.catalog.manage.versions import Expired
    from warpdata.cli.console import Console

_PARTS = {
    **dict.fromkeys(("recordings", "directory", "shards", "episode", "chunk-list"), "episodes"),
    **dict.fromkeys(("corpus", "rows"), "activation_shards"),
    "vectors": "vector_index",
}
_NAMES = {"activation_shards": "activations", "vector_index": "vectors"}


_SOURCES = (
    "recordings (a root, directories, .wshard files, chunk lists, folders of them), a corpus, a vector file, or "
    "table files (parquet, csv, jsonl); the kind is detected"
)
_DRAFT = "edits of a version that `warp view` kept: its episodes with these edits, everything else unchanged"
_STAGING = "folder for temporary files (default: on the catalog's disk, else in the cache folder)"
_EXTEND = "add to the newest version instead of replacing it: files and rows join the parts of their name"
_LANES = "keep the prediction lanes of the newest version; those of changed episodes are stale"


def _files(name: str, metavar: str) -> cli.Argument:
    return cli.arg(name, action="append", default=[], nargs="+", metavar=metavar)


@cli.command(
    "publish a version of a dataset",
    cli.arg("dataset", help="workspace/name"),
    cli.arg("sources", nargs="*", metavar="SOURCE", help=_SOURCES),
    cli.arg(
        "--chunk-bytes", default="1GiB", metavar="SIZE", help="longer episodes are stored in chunks (1GiB)"
    ),
    cli.CATALOG,
    cli.JSON,
    _files("--table", "NAME=FILES"),
    _files("--artifact", "NAME[:KIND]=PATH"),
    _files("--webdataset", "NAME=TARS"),
    cli.arg("--draft", metavar="FOLDER", help=_DRAFT),
    cli.many("--bind", "TABLE.COLUMN=ARTIFACT[:REF_TYPE]", "a column that names members of an artifact"),
    cli.flag("--optimize", "write parquet again, sized for range reads"),
    cli.flag("--zstd", "compress packed tar shards in groups of members"),
    cli.arg("--set-latest", action=argparse.BooleanOptionalAction, default=True),
    cli.PUBLISHING,
    cli.arg("--description"),
    cli.arg("--license"),
    cli.flag("--repair", "read existing blobs back and replace damaged ones"),
    cli.arg("--staging", metavar="FOLDER", help=_STAGING),
    cli.flag("--extend", _EXTEND),
    cli.flag("--keep-lanes", _LANES),
    cli.number("--retries", default=0, text="try again when latest moved meanwhile"),
    example="warp publish lab/arm robot_data --tag v1",
)
def run_publish(args: cli.Namespace, console: Console) -> Output:
    """Publish a version."""
    from warpdata.catalog.build.builder import DatasetBuilder

    with (
        contextlib.ExitStack() as opened,
        DatasetBuilder(args.dataset, catalog=args.catalog, staging=args.staging) as builder,
        _open_draft(builder, args) as revised,
        console.progress("sending") as progress,
    ):
        if args.extend:
            builder.extend()
        elif args.keep_lanes:
            _keep_lanes(builder, args, opened)
        _add_parts(builder, args)
        notes = {"description": args.description, "license": args.license}
        builder.describe(**{key: value for key, value in notes.items() if value is not None})
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
    sent = f"{done.blobs_sent} blobs sent ({human_bytes(done.bytes_sent)}), {done.blobs_present} were there"
    lines = [str(done), sent]
    if done.blobs_replaced:
        lines.append(f"{done.blobs_replaced} of them took the place of damaged ones")
    if done.signed_by:
        lines.append(f"signed by {done.signed_by}")
    if not done.is_new and not done.blobs_sent:
        lines.append("this version was published before: nothing changed")
    return Output(asdict(done), lines)


@contextlib.contextmanager
def _open_draft(builder: DatasetBuilder, args: cli.Namespace) -> Iterator[str | None]:
    """Apply the edits of a draft; yields the version it was made of, which `latest` must still name."""
    if args.draft is None:
        yield None
        return
    from warpdata._api import dataset
    from warpdata.episodes.collection.draft import Draft, draft_source

    of = draft_source(args.draft)
    if of is None or of.partition("@")[0] != args.dataset:
        raise ValueError(f"not a draft of {args.dataset}: {args.draft}" + (f" is one of {of}" if of else ""))
    with dataset(of, catalog=args.catalog) as before:
        builder.revise(before, Draft(before.episodes, args.draft, of=of).episodes())
        yield before.version


def _keep_lanes(builder: DatasetBuilder, args: cli.Namespace, opened: contextlib.ExitStack) -> None:
    from warpdata.errors import DatasetNotFoundError

    try:
        newest = opened.enter_context(cli.open_named(args))
    except DatasetNotFoundError:
        return
    builder.keep(newest, tables=[], artifacts=[lane.artifact.name for lane in newest.lanes.values()])


def _add_parts(builder: DatasetBuilder, args: cli.Namespace) -> None:
    from warpdata.formats.tarshard.writer import PackOptions

    for kind, sources in _group_by_kind(args.sources).items():
        if kind == "episodes":
            builder.add_episodes("recordings", sources, chunk_bytes=args.chunk_bytes)
        elif kind == "table":
            builder.add_table("main", sources, optimize=args.optimize)
        else:
            builder.add_artifact(_NAMES[kind], sources, kind=kind)
    for words in args.table:
        name, source = _named_files(words)
        builder.add_table(name, source, optimize=args.optimize)
    options = PackOptions(compression="zstd") if args.zstd else None
    for words in args.artifact:
        name, source = _named_files(words)
        name, _, kind = name.partition(":")
        builder.add_artifact(name, source, kind=kind or "tar_shards", options=options)
    for words in args.webdataset:
        name, source = _named_files(words)
        builder.add_webdataset(name, source)
    for word in args.bind:
        left, _, right = word.partition("=")
        table, dot, column = left.partition(".")
        artifact, _, kind = right.partition(":")
        if not dot or not artifact:
            raise ValueError(f"--bind is {word!r}; write TABLE.COLUMN=ARTIFACT:REF_TYPE")
        builder.bind(table, column, artifact, kind or "file")


def _group_by_kind(sources: list[str]) -> dict[str, list[Any]]:
    from warpdata._api import address_kind, divided_address, open_episodes
    from warpdata.catalog.build.tables import table_kind
    from warpdata.catalog.read.filekinds import SUPPORTED
    from warpdata.errors import BadMagicError

    groups: dict[str, list[Any]] = {}
    for source in sources:
        if table_kind(Path(source)) is not None:
            groups.setdefault("table", []).append(source)
            continue
        if "://" in source:
            raise ValueError(f"{source} is not on this machine: download it first, or use `warp copy`")
        base, inside = divided_address(source)
        kind = address_kind(base)
        if kind == "dataset":
            raise ValueError(f"no such file or folder: {source}; `warp copy` copies published datasets")
        if kind not in _PARTS:
            raise BadMagicError(f"a {kind} cannot be published", path=source, hint=f"These can: {SUPPORTED}.")
        if inside is None:
            groups.setdefault(_PARTS[kind], []).append(source)
        else:
            with cli.name_errors():
                groups.setdefault("episodes", []).append(open_episodes(source))
    return groups


def _named_files(words: list[str]) -> tuple[str, Any]:
    """`name=path` and the further paths of a pattern that the shell expanded."""
    name, equals, first = words[0].partition("=")
    if not equals or not name or not first:
        raise ValueError(f"{words[0]!r} is not NAME=PATH")
    return name, first if len(words) == 1 else [first, *words[1:]]


@cli.command(
    "list the versions, newest first",
    cli.DATASET,
    cli.number("-n", "--limit", default=None, text="list only the newest N versions"),
    example="warp versions list lab/arm",
)
def run_versions_list(args: cli.Namespace, _: Console) -> Output:
    """List the versions."""
    with cli.open_named(args) as dataset:
        versions = dataset.versions(limit=args.limit)
    lines = []
    for version in versions:
        marks = ", ".join((["latest"] if version.is_latest else []) + list(version.tags))
        lines.append(f"{version.version[:12]} {version.created_at} {f'({marks})' if marks else ''}")
        lines.append(f"    {version.rows} rows, {human_bytes(version.bytes)}  {version.message}")
    style = {version.version[:12]: "yellow" for version in versions}
    return Output([asdict(version) for version in versions], lines, style=style)


@cli.command(
    "delete versions",
    cli.DATASET,
    cli.arg("versions", nargs="*", metavar="HASH", help="versions by their first 8 digits or more"),
    example="warp versions delete lab/arm 1f2e3d4c",
)
def run_versions_delete(args: cli.Namespace, _: Console) -> Output:
    """Delete; versions that latest or a tag points at stay."""
    from warpdata.catalog.access import parse_name
    from warpdata.catalog.manage.versions import delete_versions

    name = parse_name(args.dataset)
    if str(name) != name.dataset_id and args.versions:
        raise ValueError(f"name the dataset without a version ({name.dataset_id}), not {name}")
    chosen = args.versions or ([name.hash_prefix] if name.hash_prefix else [])
    if not chosen:
        raise ValueError("no versions to delete: name them by the first digits of their hashes")
    with cli.open_access(args.catalog) as access:
        return _show_expired(delete_versions(access, name, [word.removeprefix("@") for word in chosen]))


@cli.command(
    "delete old versions, or list them",
    cli.DATASET,
    cli.number("--keep", default=0, text="the newest N stay"),
    cli.arg(
        "--older-than", default="0s", metavar="AGE", help="only versions older than this, such as 30d or 12h"
    ),
    cli.flag("--delete", "delete them (otherwise they are only listed)"),
    example="warp versions expire lab/arm --keep 5 --older-than 30d",
)
def run_versions_expire(args: cli.Namespace, _: Console) -> Output:
    """Delete or list old versions; those that latest or a tag points at stay."""
    from warpdata.catalog.access import parse_duration, parse_name
    from warpdata.catalog.manage.versions import expire_versions

    name = parse_name(args.dataset)
    if str(name) != name.dataset_id:
        raise ValueError(f"name the dataset without a version ({name.dataset_id}), not {name}")
    if not (args.keep or args.older_than != "0s"):
        raise ValueError("nothing expires: give --keep N from 1 on, --older-than AGE, or both")
    older_than_s = parse_duration(args.older_than)
    with cli.open_access(args.catalog) as access:
        expired = expire_versions(
            access, name, keep_last=args.keep, older_than_s=older_than_s, delete=args.delete
        )
    return _show_expired(expired)


def _show_expired(expired: Expired) -> Output:
    verb = "deleted" if expired.is_deleted else "would be deleted (add --delete)"
    lines = [f"{expired.dataset_id}@{version}" for version in expired.versions]
    lines.append(f"{len(expired.versions)} versions {verb}, {expired.kept} stay")
    if expired.is_deleted and expired.versions:
        lines.append("their blobs are reclaimed by `warp gc-remote --delete`")
    return Output(asdict(expired), lines)


@cli.command("list the tags", cli.DATASET, example="warp tags list lab/arm")
def run_tags_list(args: cli.Namespace, _: Console) -> Output:
    """List the tags."""
    return _change_tags(args, None)


@cli.command(
    "set a tag on a version", cli.DATASET, cli.arg("tag"), example="warp tags set lab/arm@1f2e3d4c stable"
)
def run_tags_set(args: cli.Namespace, _: Console) -> Output:
    """Set a tag."""
    from warpdata.catalog.manage.versions import set_tag

    return _change_tags(args, lambda access, name: set_tag(access, access.catalogs[0], name, args.tag))


@cli.command(
    "delete a tag; its version stays", cli.DATASET, cli.arg("tag"), example="warp tags delete lab/arm stable"
)
def run_tags_delete(args: cli.Namespace, _: Console) -> Output:
    """Delete a tag."""
    from warpdata.catalog.manage.versions import delete_tag

    return _change_tags(args, lambda access, name: delete_tag(access.catalogs[0], name, args.tag))


def _change_tags(args: cli.Namespace, change: Callable[[Access, Any], Any] | None) -> Output:
    """Make a change, and print the tags afterwards."""
    from warpdata.catalog.access import parse_name
    from warpdata.catalog.manage.versions import list_tags

    name = parse_name(args.dataset)
    with cli.open_access(args.catalog) as access:
        if change is not None:
            change(access, name)
        tags = list_tags(access.catalogs[0], name)
    return Output(tags, [f"{tag}  {version[:12]}" for tag, version in tags.items()])


@cli.command(
    "compare two versions",
    cli.DATASET,
    cli.arg("other", help="another dataset, or @hash or @tag of the same one"),
    example="warp diff lab/arm@v1 @v2",
)
def run_diff(args: cli.Namespace, _: Console) -> Output:
    """Compare two manifests; no data is read."""
    with cli.open_named(args) as dataset:
        diff = dataset.diff(args.other.removeprefix("@") if "/" not in args.other else args.other)
    lines = [f"{diff.before[:12]} -> {diff.after[:12]}"]
    if diff.is_empty:
        return Output(diff.as_dict(), [*lines, "the same version"])
    for kind, changes in (("table", diff.tables), ("artifact", diff.artifacts)):
        lines += [_change_text(kind, change) for change in changes]
    for sign, bindings in (("+", diff.bindings_added), ("-", diff.bindings_removed)):
        lines += [f"{sign} binding {binding}" for binding in bindings]
    shared, added = human_bytes(diff.bytes_shared), human_bytes(diff.bytes_added)
    lines.append(f"rows {diff.rows_before} -> {diff.rows_after}; {shared} shared, {added} new")
    return Output(diff.as_dict(), lines)


def _change_text(kind: str, change: PartChange) -> str:
    sign = {"added": "+", "removed": "-", "changed": "~"}[change.change]
    parts = [
        f"{sign} {kind} {change.name}: {change.rows_before or 0} -> {change.rows_after or 0} entries",
        f"{len(change.shards_added)} shards added, {len(change.shards_removed)} removed",
    ]
    columns = {"new": change.columns_added, "gone": change.columns_removed, "changed": change.columns_changed}
    return "; ".join(
        [*parts, *(f"columns {key}: {', '.join(names)}" for key, names in columns.items() if names)]
    )


_LATEST = "move latest there (default: unless a version is named)"


@cli.command(
    "copy versions to another catalog",
    cli.REMOTE_DATASET,
    cli.arg("--to", required=True, metavar="CATALOG", help="the catalog to copy to"),
    cli.flag("--all", "every version, oldest first"),
    cli.arg("--tags", action=argparse.BooleanOptionalAction, default=True, help="copy tags too"),
    cli.arg("--set-latest", action=argparse.BooleanOptionalAction, default=None, help=_LATEST),
    example="warp copy lab/arm --to s3://bucket/catalog",
)
def run_copy(args: cli.Namespace, console: Console) -> Output:
    """Copy the blobs and versions that the other catalog lacks."""
    from warpdata.catalog.access import parse_name
    from warpdata.catalog.manage.copies import copy_dataset

    with (
        cli.open_access(args.catalog, "remote") as source,
        cli.open_access(args.to, "remote") as target,
        console.progress("copying") as progress,
    ):
        done = copy_dataset(
            source,
            target,
            parse_name(args.dataset),
            all_versions=args.all,
            set_latest=args.set_latest,
            tags=args.tags,
            progress=progress,
        )
    lines = [f"{done.dataset_id}@{version}" for version in done.versions]
    lines.append(f"{done.blobs_sent} blobs copied ({human_bytes(done.bytes_sent)}) to {done.target}")
    return Output(asdict(done), lines)


@cli.command(
    "list published datasets",
    cli.arg("workspace", nargs="?", default="", help="workspace/ (default: all)"),
    cli.CATALOG,
    cli.JSON,
    example="warp list-remote lab/",
)
def run_list_remote(args: cli.Namespace, _: Console) -> Output:
    """List names and latest versions; only pointers are read."""
    from warpdata.catalog.manage.versions import list_datasets
    from warpdata.errors import DatasetNotFoundError, nearest

    with cli.open_access(args.catalog) as access:
        catalogs = _without_empty(access.catalogs)
        rows = [
            asdict(dataset) | {"catalog": catalog.address}
            for catalog in catalogs
            for dataset in list_datasets(catalog, args.workspace)
        ]
        if args.workspace and not rows:
            name = args.workspace.strip("/")
            known = {d.dataset_id.partition("/")[0] for c in catalogs for d in list_datasets(c)}
            hint = f"There are: {', '.join(sorted(known)) or 'none'}.{nearest(name, known)}"
            raise DatasetNotFoundError(f"no workspace {name!r}", hint=hint)
    columns: dict[str, Any] = {
        "dataset": "dataset_id",
        "latest": lambda row: row["version"][:12],
        "moves": "sequence",
        "catalog": "catalog",
    }
    return Output(rows, rows=rows, columns=columns, right=("moves",))


def _without_empty(catalogs: Sequence[Catalog]) -> Sequence[Catalog]:
    """Catalogs that hold something, or all if none does: an empty one does not hide the others."""
    from warpdata.catalog.publish.pointers import is_empty
    from warpdata.errors import StoreError

    used = []
    for catalog in catalogs:
        try:
            if catalog.store is None or not is_empty(catalog.store):
                used.append(catalog)
        except StoreError:  # cannot be listed: reading it reports the error
            used.append(catalog)
    return used or catalogs
