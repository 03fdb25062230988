"""A published dataset, open for reading."""

from __future__ import annotations

import functools
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.catalog.access import Access, AccessOptions, Catalog, access_options
from warpdata.catalog.build.staging import Staging
from warpdata.catalog.lanes.compare import LaneReport, compare_lane
from warpdata.catalog.lanes.lane import Lane, LaneStatus
from warpdata.catalog.manage.diff import DatasetDiff, diff_manifests
from warpdata.catalog.manage.history import Version, list_tags, list_versions
from warpdata.catalog.names import DatasetName, parse_name, parse_size
from warpdata.catalog.read import refarray
from warpdata.catalog.read.artifact_contents import EPISODES_TABLE, PublishedSource, one_of_kind, open_corpus
from warpdata.catalog.read.artifacts import Artifact
from warpdata.catalog.read.refarray import RefType
from warpdata.catalog.read.refs import REF_CLASSES, ArtifactOpener, FileRef, RefGroup
from warpdata.catalog.read.resolve import Resolved, Resolver
from warpdata.catalog.read.warm import WarmReport, verify_blobs, warm_blobs
from warpdata.catalog.table import (
    BatchStream,
    ChangedStream,
    Shard,
    StreamOpener,
    StreamRequest,
    Table,
    TableFiles,
    share_asked_for,
)
from warpdata.corpora.source import SourceKeywords, StoreShardSource
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import Runner
from warpdata.errors import DatasetError, WarpError, nearest, require_kind, require_word
from warpdata.formats.manifest.model import CORPUS_KIND, EPISODE_KIND, LANE_KIND, VECTOR_KIND, Manifest
from warpdata.ordering.limits import Tail, checked_integer
from warpdata.settings import Settings
from warpdata.sql.engine import SqlResult, run_sql
from warpdata.stores.pagecache import PageCache
from warpdata.stores.reliable import Budget, Listener, Spent
from warpdata.timeline.cards import html_table, text, titled

if TYPE_CHECKING:
    from warpdata.catalog.lanes.compute import LaneMade
    from warpdata.sql.arrow_source import ArrowSource
    from warpdata.timeline.episode import Episode

TorchOpener = Callable[[Table, StreamRequest, str], Any]


@dataclass(frozen=True, slots=True)
class Streams:
    """What lies above the catalog and is handed down by `_api`: a dataset calls it and imports nothing upward."""

    batches: StreamOpener
    torch: TorchOpener
    plan: Callable[[Table, StreamRequest], ReadPlan]
    vectors: Callable[[RangeReader], Any]
    ray: Callable[[Table], Any]
    runner: Callable[[int, str | bool | None], Runner]
    """Where work on many episodes is done: so many processes, or a cluster."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a pass will read, known before it begins."""

    rows: int
    row_groups: int
    requests: int
    bytes_to_read: int
    is_exact: bool = True
    """False where the cache has no room for the pass, or gets more (`hybrid`): then the bytes are a lower bound."""

    def __repr__(self) -> str:
        about, least = ("", "") if self.is_exact else ("about ", "at least ")
        return (
            f"<ReadPlan: {self.rows} rows in {self.row_groups} row groups, {about}{self.requests} requests,"
            f" {least}{self.bytes_to_read} bytes>"
        )


_SHOWN_EPISODES = 3


class Dataset:
    """One version of a dataset: an immutable manifest, and everything it leads to."""

    def __init__(self, name: DatasetName, resolved: Resolved, access: Access, streams: Streams) -> None:
        for value, kind in ((name, DatasetName), (resolved, Resolved), (access, Access), (streams, Streams)):
            require_kind("Dataset", value, kind, f"made by wd.dataset, of a {kind.__name__}")
        self.name = name
        self.manifest: Manifest = resolved.manifest
        self.catalog: Catalog = resolved.catalog
        self.is_remembered = resolved.is_remembered
        self.signature = resolved.signature
        """Who signed the version and what the signature covers, where that was checked."""
        self.access = access
        self._streams = streams
        self._files = {n: TableFiles(self, n, part) for n, part in self.manifest.tables.items()}
        self._artifacts = {
            n: Artifact(n, part, access, self.catalog) for n, part in self.manifest.artifacts.items()
        }
        self._types: dict[str, RefType] = {}
        self._sources: dict[str, PublishedSource] = {}
        self._is_closed = False

    @property
    def id(self) -> str:
        """workspace/name."""
        return self.manifest.dataset_id

    @property
    def version(self) -> str:
        """The hash that names this version for ever."""
        return self.manifest.version_hash

    @property
    def version_hash(self) -> str:
        """The same, by the name it has in the manifest."""
        return self.version

    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
        return list(self.manifest.tables)

    @property
    def artifacts(self) -> list[str]:
        """Names of the artifacts."""
        return list(self.manifest.artifacts)

    @property
    def spent(self) -> Spent:
        """Requests and bytes so far."""
        return self.access.meter.spent

    def table(self, name: str = "main") -> Table:
        """A table by name; nothing is read."""
        self._check_open()
        if name not in self._files:
            hint = f"It has: {', '.join(self.tables) or 'none'}.{nearest(name, self.tables)}"
            raise DatasetError(f"no table {name!r} in {self.id}", hint=hint)
        return Table(self, name, self._files[name])

    def artifact(self, name: str) -> Artifact:
        """An artifact by name; nothing is read."""
        self._check_open()
        if name not in self._artifacts:
            hint = f"It has: {', '.join(self.artifacts) or 'none'}.{nearest(name, self.artifacts)}"
            raise DatasetError(f"no artifact {name!r} in {self.id}", hint=hint)
        return self._artifacts[name]

    def ref(self, artifact: str, member: str, ref_type: str = "file") -> FileRef:
        """A reference to one member of an artifact."""
        require_word("ref_type", ref_type, REF_CLASSES)
        recipe = refarray.recipe_of(artifact, ref_type, self.recipe)
        return REF_CLASSES[ref_type](
            RefGroup(self.artifact(artifact), self.access.cache, [member], recipe), 0
        )

    @property
    def episodes(self) -> Episodes:
        """All published episodes, each opened when it is asked for; `where` asks the table `episodes`."""
        self._check_open()
        return self._every_episode

    @cached_property
    def _every_episode(self) -> Episodes:
        """A version does not change: the ids of its episodes are looked up once, however often it is asked for them."""
        names = [each.name for each in self._artifacts.values() if each.kind == EPISODE_KIND]
        if not names:
            one_of_kind(self._artifacts, EPISODE_KIND, None)  # raises, and says what there is
        return functools.reduce(operator.add, [self.episodes_of(name) for name in names])

    def episodes_of(self, artifact: str) -> Episodes:
        """The published episodes of one artifact."""
        return Episodes(self.episodes_source(artifact))

    def episodes_source(self, artifact: str) -> PublishedSource:
        """Where the episodes of an artifact come from."""
        if artifact not in self._sources:
            self._sources[artifact] = self._new_source(artifact)
        return self._sources[artifact]

    def _new_source(self, artifact: str) -> PublishedSource:
        found = one_of_kind(self._artifacts, EPISODE_KIND, artifact)
        has_table = EPISODES_TABLE in self.tables and {"id", "artifact", "blob"} <= set(
            self.table(EPISODES_TABLE).schema().names
        )
        kept = self.manifest.metadata.get("source_metadata")
        metadata = kept if isinstance(kept, dict) else None
        facts = self._episode_facts if has_table else None
        return PublishedSource(found, facts, self.recipe, metadata, list(self.lanes.values()))

    @cached_property
    def lanes(self) -> dict[str, Lane]:
        """What models said about the episodes, by the name of the lane; nothing is read."""
        found = [Lane(each) for each in self._artifacts.values() if each.kind == LANE_KIND]
        return {lane.name: lane for lane in found}

    def add_lane(
        self,
        name: str,
        function: Callable[[Episode], Any],
        *,
        of: str | Sequence[str],
        revision: str | None = None,
        message: str = "",
        tags: Sequence[str] = (),
        sign_key: str | os.PathLike[str] | None = None,
        retries: int = 20,
        jobs: int = 1,
        ray: str | bool | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> LaneMade:
        """Compute predictions over all episodes and publish them beside these, as a part of a new version.

        `function(episode)` gives a prediction of the signal `of`: an array with one row per record of it, or a Signal
        with times of its own; where `of` names several, a dictionary of them. Episodes that have not changed keep the
        predictions they have, as long as `revision` is the same: by default it is a hash of the code of the function,
        so say one where weights come from elsewhere. A run that was stopped goes on where it was. `jobs` processes
        compute; `ray` (True, or the address of a cluster) does it there instead; a class is made once in each process
        and then called. The version is the same wherever it was done.
        """
        # Publishing needs this module first.
        from warpdata.catalog.lanes.compute import LaneOptions, make_lane
        from warpdata.catalog.publish.publish import PublishOptions

        self._check_open()
        wanted = LaneOptions(name, (of,) if isinstance(of, str) else tuple(of), revision)
        given = (tags,) if isinstance(tags, str) else tuple(tags)
        key = None if sign_key is None else Path(sign_key)
        notes = PublishOptions(message=message, tags=given, sign_key=key, retries=retries)
        return make_lane(self, wanted, function, notes, progress, self._streams.runner(jobs, ray))

    def lane_status(self, name: str) -> LaneStatus:
        """Which episodes a lane speaks of as they are now, and for which it is stale."""
        sources = [
            self.episodes_source(each.name) for each in self._artifacts.values() if each.kind == EPISODE_KIND
        ]
        known = {
            place: each for source in sources for place, each in zip(source.places(), source.ids, strict=True)
        }
        return self._lane(name).status(known)

    def compare_lane(
        self, name: str, *, worst: int = 5, progress: Callable[[int, int], None] | None = None
    ) -> LaneReport:
        """How far the predictions of a lane are from what was recorded: per signal, and where they are worst."""
        return compare_lane(self._lane(name), self.episodes, worst=worst, progress=progress)

    def _lane(self, name: str) -> Lane:
        if name not in self.lanes:
            hint = f"It has: {', '.join(self.lanes) or 'none'}.{nearest(name, self.lanes)}"
            raise DatasetError(f"no lane {name!r} in {self.id}", hint=hint)
        return self.lanes[name]

    def _episode_facts(self, columns: Sequence[str] | None) -> Any:
        table = self.table(EPISODES_TABLE)
        return (table if columns is None else table.select(columns)).rows_together()

    def corpus(self, artifact: str | None = None, **options: Unpack[SourceKeywords]) -> StoreShardSource:
        """The published activation corpus as a source of rows, read by range."""
        return open_corpus(one_of_kind(self._artifacts, CORPUS_KIND, artifact), **options)

    def vectors(self, artifact: str | None = None) -> Any:
        """The published vector file as a VectorStore, read by range."""
        found = one_of_kind(self._artifacts, VECTOR_KIND, artifact)
        return self._streams.vectors(found.vector_reader())

    def sql(self, query: str, *, extra: dict[str, Table] | None = None) -> SqlResult:
        """A query over the tables by name: `ds.sql("select … from main join labels using (id)")`."""
        self._check_open()
        require_kind("extra", extra, (Mapping, type(None)), "a dictionary of tables by name")
        for name, table in (extra or {}).items():
            require_kind(f"extra[{name!r}]", table, Table, "a table of a dataset")
        given = {name: table.source() for name, table in (extra or {}).items()}
        return run_sql(query, {**self.sources(), **given}, spill=self.spill)

    def sources(self) -> dict[str, ArrowSource]:
        """The tables as the SQL engine sees them."""
        return {name: self.table(name).source() for name in self.tables}

    @property
    def spill(self) -> type[Staging] | None:
        """What makes a folder for a query that needs more than memory; None where this disk may not be used."""
        return None if self.access.options.mode == "remote" else Staging

    def plan(
        self,
        table: str = "main",
        *,
        columns: str | Sequence[str] | None = None,
        batch_size: int = 1000,
        shard: Shard = None,
        limit: int | None = None,
        prefetch: str | int | None = None,
        rank: int | None = None,
        world: int | None = None,
        tail: Tail = "short",
    ) -> ReadPlan:
        """What a pass with these options of `batches` will read."""
        view = self.table(table) if columns is None else self.table(table).select(columns)
        own = share_asked_for(shard, rank, world)
        request = StreamRequest(batch_size, own, limit, prefetch, tail)
        return self._streams.plan(view, request)

    def to_torch(
        self,
        batch_size: int = 1000,
        shard: Shard = "auto",
        prefetch: str | int | None = None,
        *,
        table: str = "main",
        columns: str | Sequence[str] | None = None,
        limit: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        tail: Tail = "short",
        nulls: str = "error",
        shuffle: bool | str = False,
        seed: int = 0,
        epoch: int = 0,
    ) -> Any:
        """A torch IterableDataset of a table's batches as tensors; see `Table.to_torch`."""
        return self.table(table).to_torch(
            batch_size, shard, prefetch,
            columns=columns, limit=limit, rank=rank, world=world, tail=tail, nulls=nulls,
            shuffle=shuffle, seed=seed, epoch=epoch,
        )  # fmt: skip

    def to_ray(
        self,
        table: str = "main",
        *,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
    ) -> Any:
        """A Ray dataset of the rows of a table of this version; columns and condition are applied where it is read.

        Bound columns hold the names of the members, as in the table. Needs `warpdata[ray]`.
        """
        view = self.table(table)
        view = view if columns is None else view.select(columns)
        return self._streams.ray(view if where is None else view.filter(where))

    def warm(
        self,
        tables: Sequence[str] | None = None,
        *,
        artifacts: Sequence[str] | None = None,
        shards: slice | None = None,
        max_bytes: str | int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> WarmReport:
        """Bring shards into the cache, whole and checked; by default everything."""
        limit = None if max_bytes is None else parse_size(max_bytes)
        return warm_blobs(self, self._chosen(tables, artifacts, shards), limit, progress)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Read every blob and compare it with its hash; the names of those that are damaged or missing."""
        return verify_blobs(self, progress)[1]

    def diff(self, other: Dataset | str) -> DatasetDiff:
        """What changed from this version to another one."""
        require_kind("the other version", other, (str, Dataset), "a dataset, or a name or a version of one")
        if isinstance(other, str):
            name = parse_name(other if "/" in other else f"{self.id}@{other}")
            return diff_manifests(self.manifest, Resolver(self.access).resolve(name).manifest)
        return diff_manifests(self.manifest, other.manifest)

    def versions(self, *, limit: int | None = None) -> list[Version]:
        """Every version of the dataset, newest first, or the newest `limit` of them."""
        return list_versions(self.access, self.catalog, self.name, limit=limit)

    def tags(self) -> dict[str, str]:
        """Tag -> version."""
        return list_tags(self.catalog, self.name)

    def close(self) -> None:
        """Close stores and cache; references that are out already go on reading."""
        self._is_closed = True
        for artifact in self._artifacts.values():
            artifact.close()
        self.access.close()

    def open_stream(self, table: Table, request: StreamRequest, *, bound: bool = False) -> BatchStream:
        """A stream over a view of a table; `bound` turns bound columns into references."""
        self._check_open()
        if request.shuffle:
            table.files.check_dense_shards()
        stream = self._streams.batches(table, request)
        types = table.ref_types() if bound else {}
        return ChangedStream(stream, lambda batch: refarray.bound_batch(batch, types)) if types else stream

    def open_torch(self, table: Table, request: StreamRequest, nulls: str) -> Any:
        """A torch dataset over a view of a table."""
        return self._streams.torch(table, request, nulls)

    def ref_type(self, storage: Any, recipe: str) -> RefType:
        """The type of a bound column, kept alive as long as the dataset."""
        key = f"{storage}|{recipe}"
        if key not in self._types:
            self._types[key] = RefType(storage, recipe, self.artifact_and_cache)
        return self._types[key]

    def artifact_and_cache(self, name: str) -> tuple[Artifact, PageCache | None]:
        """What a reference needs to read."""
        return self._artifacts[name], self.access.cache

    @property
    def recipe(self) -> dict[str, Any]:
        """How this very version is opened again elsewhere; it holds no credentials."""
        options = self.access.options
        return {
            "name": f"{self.id}@{self.version}",
            "catalogs": list(options.catalogs),
            "mode": options.mode,
            "cache_dir": options.cache_dir,
            "cache_bytes": options.cache_bytes,
        }

    def _check_open(self) -> None:
        if self._is_closed:
            hint = "Read inside its `with` block, or open it again."
            raise DatasetError("the dataset is closed", path=self.id, hint=hint)

    def _chosen(
        self, tables: Sequence[str] | None, artifacts: Sequence[str] | None, shards: slice | None
    ) -> list[tuple[str, int]]:
        """The shards to warm, as (part, number); none at all is an error, because it is not what anybody meant."""
        everything = tables is None and artifacts is None
        counts = {
            f"table:{name}": len(self.table(name).part.shards)
            for name in (self.tables if everything else _listed(tables))
        } | {
            f"artifact:{name}": len(self.artifact(name).part.shards)
            for name in (self.artifacts if everything else _listed(artifacts))
        }
        if shards is not None and not isinstance(shards, slice):
            raise TypeError(f"shards is a slice such as slice(0, 50), not {shards!r}")
        chosen = [(part, n) for part, count in counts.items() for n in range(count)[shards or slice(None)]]
        if not chosen and not everything and not counts:
            raise ValueError("no table and no artifact is named; leave the names out for everything")
        if not chosen and shards is not None:
            has = ", ".join(f"{part.partition(':')[2]} {count}" for part, count in counts.items())
            between = (
                f"{'' if shards.start is None else shards.start}:{'' if shards.stop is None else shards.stop}"
            )
            raise ValueError(
                f"shards {between} are none; numbers of shards: {has or 'no tables, no artifacts'}"
            )
        return chosen

    def __reduce__(self) -> tuple[Any, ...]:
        name = DatasetName(self.id, hash_prefix=self.version)
        return open_dataset, (name, self.access.options, self._streams)

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        parts = [
            ["table", text(name), f"{part.row_count} rows"] for name, part in self.manifest.tables.items()
        ]
        parts += [["artifact", text(name), text(part.kind)] for name, part in self.manifest.artifacts.items()]
        return titled(
            f"{self.id}@{self.version[:12]}", html_table(["", "name", ""], parts), self._episodes_card()
        )

    def _episodes_card(self) -> str:
        """The first episodes, with a picture of each; no more, because they may lie far away."""
        if not any(part.kind == EPISODE_KIND for part in self.manifest.artifacts.values()):
            return ""
        try:
            return self.episodes[:_SHOWN_EPISODES]._repr_html_()
        except WarpError as error:  # out of reach, or closed: what the version holds is known all the same
            return f"<p>{text(str(error))}</p>"

    def __repr__(self) -> str:
        return f"<Dataset {self.id}@{self.version[:12]}: {', '.join(self.tables + self.artifacts)}>"


def open_dataset(
    name: DatasetName, options: AccessOptions, streams: Streams, listener: Listener | None = None
) -> Dataset:
    """Resolve a name and open its manifest; no data is read."""
    access = Access(options, listener)
    try:
        return Dataset(name, Resolver(access).resolve(name), access, streams)
    except BaseException:
        access.close()
        raise


def opened_version(access: Access, catalog: Catalog, name: DatasetName, version: str) -> Dataset:
    """A version of one catalog through stores that are open already, for its tables and references only."""
    manifest = Resolver(access).manifest(catalog, name, version)
    return Dataset(name, Resolved(manifest, catalog), access, _NO_STREAMS)


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or [])


def budget_of(max_bytes: str | int | None, max_requests: int | None) -> Budget:
    """A budget from what a caller writes."""
    requests = None if max_requests is None else checked_integer("max_requests", max_requests, 1 << 63)
    return Budget(None if max_bytes is None else parse_size(max_bytes), requests)


def reopened_artifacts(recipe: str) -> ArtifactOpener:
    """The artifacts of a dataset whose batches outlived it or came to another process."""
    return open_recipe(json.loads(recipe)["dataset"]).artifact_and_cache


def open_recipe(fields: dict[str, Any]) -> Dataset:
    """The dataset that `recipe` names, or only its name and catalogs; for its tables and references only."""
    given = {key: fields.get(key) for key in ("mode", "cache_dir", "cache_bytes")}
    options = access_options(Settings.from_env(), catalogs=tuple(fields["catalogs"]), **given)
    return open_dataset(parse_name(fields["name"]), options, _NO_STREAMS)


@functools.lru_cache(maxsize=8)
def reopened_dataset(recipe: str) -> Dataset:
    """A dataset that another process named, for its tables and references only; opened once in this one."""
    return open_recipe(json.loads(recipe))


@functools.lru_cache(maxsize=8)
def reopened_episodes(recipe: str, artifact: str) -> PublishedSource:
    """The episodes of a dataset that came to another process."""
    return reopened_dataset(recipe).episodes_source(artifact)


def _no_streams(*_: Any, **__: Any) -> Any:
    raise DatasetError("this dataset was opened for references only")


_NO_STREAMS = Streams(_no_streams, _no_streams, _no_streams, _no_streams, _no_streams, _no_streams)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Tables, artifacts and bindings for `warp info` and `warp inspect`."""
    manifest = dataset.manifest
    return {
        "dataset_id": manifest.dataset_id,
        "version": manifest.version_hash,
        "catalog": dataset.catalog.address,
        "created_at": manifest.created_at,
        "total_rows": manifest.total_rows,
        "total_bytes": manifest.total_bytes,
        "tables": {
            name: {
                "rows": part.row_count,
                "bytes": part.byte_size,
                "shards": len(part.shards),
                "columns": [dict(field) for field in part.fields],
            }
            for name, part in manifest.tables.items()
        },
        "artifacts": {
            name: {"kind": a.kind, "members": len(a), "bytes": a.part.byte_size, "shards": len(a.part.shards)}
            for name, a in dataset._artifacts.items()
        },
        "bindings": [asdict(binding) for binding in manifest.bindings],
        "metadata": dict(manifest.metadata),
        "is_remembered": dataset.is_remembered,
        "signature": None
        if dataset.signature is None
        else {"public_key": dataset.signature.public_key, "covers": dataset.signature.covers},
    }
