"""Commands about published versions: `publish`, `versions`, `tags`, `diff`, `copy`, `catalog`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from warpdata.cli import arguments as cli
from warpdata.cli.console import Output, human_bytes
from warpdata.errors import BadMagicError, DatasetNotFoundError, StoreError, nearest

if TYPE_CHECKING:
    from warpdata.catalog.access import Access, DatasetName
    from warpdata.catalog.build.builder import DatasetBuilder
    from warpdata.catalog.manage.versions import Expired

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
_EXTEND = "add to the newest version instead of replacing it: files and rows join the parts of their name"
_LANES = "keep the prediction lanes of the newest version; those of changed episodes are stale"
_BIND = "a column that names members of an artifact"


class PublishArguments(cli.Publishing, total=False):
    """Options of `DatasetBuilder.publish`."""

    repair: Annotated[bool, "read existing blobs back and replace damaged ones"]
    retries: Annotated[int, "try again when latest moved meanwhile"]


@cli.command("warp publish lab/arm robot_data --tag v1")
def run_publish(
    warp: cli.Warp,
    dataset: str,
    sources: Annotated[Sequence[str], cli.Arg(_SOURCES, "SOURCE")] = (),
    *,
    table: Annotated[Sequence[list[str]], cli.Arg("a table", "NAME=FILES", nargs="+")] = (),
    artifact: Annotated[Sequence[list[str]], cli.Arg("raw files", "NAME[:KIND]=PATH", nargs="+")] = (),
    webdataset: Annotated[Sequence[list[str]], cli.Arg("tar files", "NAME=TARS", nargs="+")] = (),
    bind: Annotated[Sequence[str], cli.Arg(_BIND, "TABLE.COLUMN=ARTIFACT[:REF_TYPE]")] = (),
    draft: str | None = None,
    chunk_bytes: Annotated[str, cli.Arg("longer episodes are stored in chunks", "SIZE")] = "1GiB",
    optimize: Annotated[bool, "write parquet again, sized for range reads"] = False,
    zstd: Annotated[bool, "compress packed tar shards in groups of members"] = False,
    description: Annotated[str | None, "what the dataset is"] = None,
    license: Annotated[str | None, "its license"] = None,  # noqa: A002 - the option
    staging: Annotated[str | None, cli.Arg("folder for temporary files", "FOLDER")] = None,
    extend: Annotated[bool, _EXTEND] = False,
    keep_lanes: Annotated[bool, _LANES] = False,
    set_latest: Annotated[bool, "let latest name this version"] = True,
    **options: Unpack[PublishArguments],
) -> Output:
    """Publish a version of a dataset."""
    from warpdata.catalog.build.builder import DatasetBuilder

    with (
        contextlib.ExitStack() as opened,
        DatasetBuilder(dataset, catalog=warp.catalog, staging=staging) as builder,
        _open_draft(warp, builder, draft, dataset) as revised,
        warp.progress("sending") as bar,
    ):
        if extend:
            builder.extend()
        elif keep_lanes:
            with contextlib.suppress(DatasetNotFoundError):
                newest = opened.enter_context(warp.open_dataset(dataset))
                lanes = [lane.artifact.name for lane in newest.lanes.values()]
                builder.keep(newest, tables=[], artifacts=lanes)
        _add_sources(builder, sources, chunk_bytes, optimize)
        for name, files in map(_named_files, table):
            builder.add_table(name, files, optimize=optimize)
        _add_artifacts(builder, artifact, webdataset, bind, zstd)
        notes = {"description": description, "license": license}
        builder.describe(**{key: value for key, value in notes.items() if value is not None})
        done = builder.publish(set_latest=set_latest, expect_latest=revised, progress=bar, **options)
    sent = f"{done.blobs_sent} blobs sent ({human_bytes(done.bytes_sent)}), {done.blobs_present} were there"
    lines = [str(done), sent]
    if done.blobs_replaced:
        lines.append(f"{done.blobs_replaced} of them took the place of damaged ones")
    if done.signed_by:
        lines.append(f"signed by {done.signed_by}")
    if not done.is_new and not done.blobs_sent:
        lines.append("this version was published before: nothing changed")
    return Output(done, lines)


@contextlib.contextmanager
def _open_draft(
    warp: cli.Warp, builder: DatasetBuilder, draft: str | None, name: str
) -> Iterator[str | None]:
    """Apply the edits of a draft; yields the version it was made of, which `latest` must still name."""
    if draft is None:
        yield None
        return
    from warpdata.episodes.collection.draft import Draft, draft_source

    of = draft_source(draft)
    if of is None or of.partition("@")[0] != name:
        raise ValueError(f"not a draft of {name}: {draft}" + (f" is one of {of}" if of else ""))
    with warp.open_dataset(of) as before:
        builder.revise(before, Draft(before.episodes, draft, of=of).episodes())
        yield before.version


def _add_artifacts(
    builder: DatasetBuilder,
    artifacts: Sequence[list[str]],
    tars: Sequence[list[str]],
    bindings: Sequence[str],
    zstd: bool,
) -> None:
    from warpdata.formats.tarshard.writer import PackOptions

    options = PackOptions(compression="zstd") if zstd else None
    for name, files in map(_named_files, artifacts):
        name, _, kind = name.partition(":")
        builder.add_artifact(name, files, kind=kind or "tar_shards", options=options)
    for name, files in map(_named_files, tars):
        builder.add_webdataset(name, files)
    for word in bindings:
        left, _, right = word.partition("=")
        table, dot, column = left.partition(".")
        artifact, _, kind = right.partition(":")
        if not dot or not artifact:
            raise ValueError(f"--bind is {word!r}; write TABLE.COLUMN=ARTIFACT:REF_TYPE")
        builder.bind(table, column, artifact, kind or "file")


def _add_sources(builder: DatasetBuilder, sources: Sequence[str], chunk_bytes: str, optimize: bool) -> None:
    """Add each kind of source as one part."""
    from warpdata._api import address_kind, divided_address, open_episodes
    from warpdata.catalog.build.tables import table_kind
    from warpdata.catalog.read.filekinds import SUPPORTED

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
            groups.setdefault("episodes", []).append(open_episodes(source))
    for kind, paths in groups.items():
        if kind == "episodes":
            builder.add_episodes("recordings", paths, chunk_bytes=chunk_bytes)
        elif kind == "table":
            builder.add_table("main", paths, optimize=optimize)
        else:
            builder.add_artifact(_NAMES[kind], paths, kind=kind)


def _named_files(words: list[str]) -> tuple[str, Any]:
    """`name=path` and the further paths of a pattern that the shell expanded."""
    name, equals, first = words[0].partition("=")
    if not equals or not name or not first:
        raise ValueError(f"{words[0]!r} is not NAME=PATH")
    return name, first if len(words) == 1 else [first, *words[1:]]


@cli.command("warp versions list lab/arm")
def run_versions_list(warp: cli.Warp, dataset: str, *, limit: int | None = None) -> Output:
    """List the versions, newest first."""
    with warp.open_dataset(dataset) as opened:
        versions = opened.versions(limit=limit)
    lines = []
    for version in versions:
        marks = ", ".join((["latest"] if version.is_latest else []) + list(version.tags))
        lines.append(f"{version.version[:12]} {version.created_at} {f'({marks})' if marks else ''}")
        lines.append(f"    {version.rows} rows, {human_bytes(version.bytes)}  {version.message}")
    return Output(versions, lines, style={version.version[:12]: "yellow" for version in versions})


@cli.command("warp versions delete lab/arm 1f2e3d4c")
def run_versions_delete(
    warp: cli.Warp,
    dataset: str,
    versions: Annotated[Sequence[str], cli.Arg("versions by their first 8 digits or more", "HASH")] = (),
) -> Output:
    """Delete versions; those that latest or a tag points at stay."""
    from warpdata.catalog.access import parse_name
    from warpdata.catalog.manage.versions import delete_versions

    name = parse_name(dataset)
    chosen = versions or ([name.hash_prefix] if name.hash_prefix else [])
    if versions:
        _check_plain(name)
    if not chosen:
        raise ValueError("no versions to delete: name them by the first digits of their hashes")
    with warp.open_access() as access:
        return _show_expired(delete_versions(access, name, [word.removeprefix("@") for word in chosen]))


@cli.command("warp versions expire lab/arm --keep 5 --older-than 30d")
def run_versions_expire(
    warp: cli.Warp,
    dataset: str,
    *,
    keep: Annotated[int, "the newest N stay"] = 0,
    older_than: str = "0s",
    delete: Annotated[bool, "delete them (otherwise they are only listed)"] = False,
) -> Output:
    """Delete old versions, or list them; those that latest or a tag points at stay."""
    from warpdata.catalog.access import parse_duration, parse_name
    from warpdata.catalog.manage.versions import expire_versions

    name = parse_name(dataset)
    _check_plain(name)
    if not (keep or older_than != "0s"):
        raise ValueError("nothing expires: give --keep N from 1 on, --older-than AGE, or both")
    age_s = parse_duration(older_than)
    with warp.open_access() as access:
        return _show_expired(expire_versions(access, name, keep_last=keep, older_than_s=age_s, delete=delete))


def _check_plain(name: DatasetName) -> None:
    if str(name) != name.dataset_id:
        raise ValueError(f"name the dataset without a version ({name.dataset_id}), not {name}")


def _show_expired(expired: Expired) -> Output:
    verb = "deleted" if expired.is_deleted else "would be deleted (add --delete)"
    lines = [f"{expired.dataset_id}@{version}" for version in expired.versions]
    lines.append(f"{len(expired.versions)} versions {verb}, {expired.kept} stay")
    if expired.is_deleted and expired.versions:
        lines.append("their blobs are reclaimed by `warp catalog gc --delete`")
    return Output(expired, lines)


@cli.command("warp tags list lab/arm")
def run_tags_list(warp: cli.Warp, dataset: str) -> Output:
    """List the tags."""
    return _tags_after(warp, dataset, lambda _, __: None)


@cli.command("warp tags set lab/arm@1f2e3d4c stable")
def run_tags_set(warp: cli.Warp, dataset: str, tag: str) -> Output:
    """Set a tag on a version, and list the tags."""
    from warpdata.catalog.manage.versions import set_tag

    return _tags_after(warp, dataset, lambda access, name: set_tag(access, access.catalogs[0], name, tag))


@cli.command("warp tags delete lab/arm stable")
def run_tags_delete(warp: cli.Warp, dataset: str, tag: str) -> Output:
    """Delete a tag, and list the others; its version stays."""
    from warpdata.catalog.manage.versions import delete_tag

    return _tags_after(warp, dataset, lambda access, name: delete_tag(access.catalogs[0], name, tag))


def _tags_after(warp: cli.Warp, dataset: str, change: Callable[[Access, DatasetName], object]) -> Output:
    from warpdata.catalog.access import parse_name
    from warpdata.catalog.manage.versions import list_tags

    name = parse_name(dataset)
    with warp.open_access() as access:
        change(access, name)
        tags = list_tags(access.catalogs[0], name)
    return Output(tags, [f"{tag}  {version[:12]}" for tag, version in tags.items()])


@cli.command("warp diff lab/arm@v1 @v2")
def run_diff(
    warp: cli.Warp, dataset: str, other: Annotated[str, "another dataset, or @hash or @tag of the same one"]
) -> Output:
    """Compare two versions by their manifests; no data is read."""
    with warp.open_dataset(dataset) as opened:
        diff = opened.diff(other.removeprefix("@") if "/" not in other else other)
    lines = [f"{diff.before[:12]} -> {diff.after[:12]}"]
    if diff.is_empty:
        return Output(diff.as_dict(), [*lines, "the same version"])
    for kind, changes in (("table", diff.tables), ("artifact", diff.artifacts)):
        for change in changes:
            sign = {"added": "+", "removed": "-", "changed": "~"}[change.change]
            entries = f"{change.rows_before or 0} -> {change.rows_after or 0} entries"
            shards = f"{len(change.shards_added)} shards added, {len(change.shards_removed)} removed"
            parts = [f"{sign} {kind} {change.name}: {entries}", shards]
            for word in ("added", "removed", "changed"):
                names = getattr(change, f"columns_{word}")
                parts += [f"columns {word}: {', '.join(names)}"] if names else []
            lines.append("; ".join(parts))
    for sign, bindings in (("+", diff.bindings_added), ("-", diff.bindings_removed)):
        lines += [f"{sign} binding {binding}" for binding in bindings]
    shared, added = human_bytes(diff.bytes_shared), human_bytes(diff.bytes_added)
    lines.append(f"rows {diff.rows_before} -> {diff.rows_after}; {shared} shared, {added} new")
    return Output(diff.as_dict(), lines)


@cli.command("warp copy lab/arm --to s3://bucket/catalog")
def run_copy(
    warp: cli.Warp,
    dataset: str,
    *,
    to: Annotated[str, cli.Arg("the catalog to copy to", "CATALOG")],
    all_versions: Annotated[bool, cli.Arg("every version, oldest first", option="all")] = False,
    tags: Annotated[bool, cli.Arg("copy tags too")] = True,
    set_latest: Annotated[bool | None, "move latest there (default: unless a version is named)"] = None,
) -> Output:
    """Copy the versions and blobs that another catalog lacks."""
    from warpdata.catalog.access import parse_name
    from warpdata.catalog.manage.copies import copy_dataset

    options: dict[str, Any] = {"all_versions": all_versions, "set_latest": set_latest, "tags": tags}
    with (
        warp.open_access(mode="remote") as source,
        warp.open_access(to, "remote") as target,
        warp.progress("copying") as bar,
    ):
        done = copy_dataset(source, target, parse_name(dataset), progress=bar, **options)
    lines = [f"{done.dataset_id}@{version}" for version in done.versions]
    lines.append(f"{done.blobs_sent} blobs copied ({human_bytes(done.bytes_sent)}) to {done.target}")
    return Output(done, lines)


@cli.command(
    "warp catalog list lab/",
    columns={
        "dataset": "dataset_id",
        "latest": lambda row: row["version"][:12],
        "moves": "sequence",
        "catalog": "catalog",
    },
    right=("moves",),
    needs_catalog=True,
)
def run_catalog_list(
    warp: cli.Warp, workspace: Annotated[str, "workspace/ (default: all)"] = ""
) -> list[dict[str, Any]]:
    """List published datasets and their latest versions; only pointers are read."""
    from warpdata.catalog.manage.versions import list_datasets
    from warpdata.catalog.publish.pointers import is_empty

    with warp.open_access() as access:
        # An empty catalog does not hide the others.
        used = []
        for catalog in access.catalogs:
            try:
                if catalog.store is None or not is_empty(catalog.store):
                    used.append(catalog)
            except StoreError:  # cannot be listed: reading it reports the error
                used.append(catalog)
        catalogs = used or access.catalogs
        rows = [
            asdict(dataset) | {"catalog": place.address}
            for place in catalogs
            for dataset in list_datasets(place, workspace)
        ]
        if workspace and not rows:
            name = workspace.strip("/")
            known = {d.dataset_id.partition("/")[0] for place in catalogs for d in list_datasets(place)}
            hint = f"There are: {', '.join(sorted(known)) or 'none'}.{nearest(name, known)}"
            raise DatasetNotFoundError(f"no workspace {name!r}", hint=hint)
    return rows


@cli.command("warp catalog gc --delete", needs_catalog=True)
def run_catalog_gc(
    warp: cli.Warp,
    *,
    dry_run: bool = False,
    delete: Annotated[bool, "delete blobs older than the grace period"] = False,
    older_than: str = "7d",
) -> Output:
    """Find or delete blobs that no version uses."""
    from warpdata.catalog.access import parse_duration
    from warpdata.catalog.manage.versions import collect

    if delete and dry_run:
        raise ValueError("--delete and --dry-run exclude each other")
    grace_s = parse_duration(older_than)
    with warp.open_access() as access:
        garbage = collect(access.catalogs[0], delete=delete, grace_s=grace_s)
    verb = "deleted" if garbage.is_deleted else "unused"
    size, count = human_bytes(garbage.bytes), len(garbage.blobs)
    lines = [*garbage.blobs, f"{count} blobs {verb} ({size}) beside {garbage.versions} versions"]
    if garbage.leftovers:
        lines.append(f"{len(garbage.leftovers)} cards and signatures of deleted versions {verb}")
    if garbage.young_blobs:
        lines.append(f"{garbage.young_blobs} unused blobs are younger than the grace period")
    return Output(garbage, lines)
