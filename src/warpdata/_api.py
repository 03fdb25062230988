"""Wiring only: the verbs of `import warpdata as wd` that join several packages."""

from __future__ import annotations

import builtins
import functools
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from warpdata.errors import BadMagicError, BlobNotFoundError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from warpdata.bytekit.ranges import RangeReader
    from warpdata.catalog.builder import DatasetBuilder
    from warpdata.catalog.dataset import Dataset
    from warpdata.catalog.table import Table
    from warpdata.convert.importing import OnError
    from warpdata.convert.importing import Progress as Counted
    from warpdata.convert.place import Place
    from warpdata.convert.receipt import Receipt
    from warpdata.corpora.source import FixedOrderSource
    from warpdata.episodes.check import Progress, Report
    from warpdata.episodes.collection import Episodes
    from warpdata.episodes.jobs import Runner
    from warpdata.episodes.local import LocalDataset
    from warpdata.formats.episodedir.images import VideoOptions
    from warpdata.formats.wshard.chunks import ChunkList
    from warpdata.formats.wshard.compression import CompressionChoice
    from warpdata.formats.wshard.episode import WShardEpisode
    from warpdata.formats.wshard.reader import Verify
    from warpdata.loading.windows.loader import Loader
    from warpdata.search.embedders import Embedder
    from warpdata.search.embedding import EmbedJob, EmbedReport, Per
    from warpdata.search.store import VectorStore
    from warpdata.stores.blobstore import BlobStore
    from warpdata.stores.meter import Listener
    from warpdata.timeline.episode import Episode


def open_episode(
    source: str | os.PathLike[str] | RangeReader | bytes | BinaryIO | ChunkList,
    *,
    catalog: str | os.PathLike[str] | None = None,
) -> Episode:
    """Open an episode: a directory, a shard or a chunk list, by path or URL; reads lazily.

    `#id` goes inside a root, a folder of shards or a published dataset: `robot_data#3`, `lab/reacher@v1#3`. A shard
    may also be bytes, a file opened in binary mode or a RangeReader. `catalog`: where datasets are looked for.
    """
    opening = _opening()
    if isinstance(source, opening.ChunkList):
        whole: Episode = opening.Episode(opening.chunks_source(source))
        return whole
    if isinstance(source, str):
        source, inside = divided_address(source)
        if inside is not None:
            return open_episodes(source, catalog=catalog).open(inside)
        if _is_published(source):
            raise _one_of_many(source, open_episodes(source, catalog=catalog))
    place, found = _located(source)
    if found is None and place is not None:
        return _directory(place)
    try:
        episode: Episode = opening.episode_of_shard(opening.ShardReader.open(found), place)
        return episode
    except StoreError:
        if not isinstance(found, str) or not os.path.isdir(found):
            raise
    if _is_root(found) and address_kind(found) in ("recordings", "shards"):
        several = open_episodes(found)
        if len(several):
            raise _one_of_many(found, several)
    return _directory(found)


@functools.cache
def _opening() -> Any:
    """Episodes are opened often: the import is looked up once."""
    from warpdata.episodes import opening

    return opening


def _one_of_many(address: str, episodes: Episodes) -> Exception:
    ids = episodes.ids
    some = f", such as {address}#{ids[0]}" if ids else ""
    return ValueError(f"{address} holds {len(ids)} episodes: name one of them{some}")


def open(  # noqa: A001 - the one way in
    address: str | os.PathLike[str], *, catalog: str | os.PathLike[str] | None = None
) -> Any:
    """Open whatever is there: an Episode, Episodes, a Dataset, a corpus or a vector store.

    An address is a path, a URL, or `workspace/name[@version]` of a published dataset; `#id` goes to one episode inside.
    A set of a foreign format (LeRobot, …) opens as Episodes where it lies, read-only; nothing is converted. `catalog`:
    where published datasets are looked for.
    """
    text = os.fspath(address)
    base, inside = divided_address(text)
    if inside is not None:
        return open_episode(text, catalog=catalog)
    try:
        kind = address_kind(base)
    except (BadMagicError, BlobNotFoundError):
        found = _foreign(base)
        if found is None:
            raise
        return found
    if kind == "dataset":
        return dataset(base, catalog=catalog)
    if kind in ("recordings", "shards"):
        return open_episodes(base)
    if kind == "vectors":
        return open_vectors(base)
    return open_corpus(base) if kind in ("corpus", "rows") else open_episode(base)


def address_kind(address: str | os.PathLike[str]) -> str:
    """What an address without `#` names: a dataset, a kind of folder, or a kind of file.

    `dataset`; `recordings`, `shards`, `corpus`, or one episode as a `directory`; `episode`, `chunk-list`, `shard`,
    `journal`, `vectors`, `rows`.
    """
    from warpdata.catalog.filekinds import file_kind, folder_kind

    text = os.fspath(address)
    if _is_published(text):
        return "dataset"
    place = _folder(text)
    if isinstance(place, str | os.PathLike):
        return folder_kind(os.listdir(place), text) if os.path.isdir(place) else file_kind(place)
    if _is_root(text):
        return folder_kind({name.partition("/")[0] for name in place.names()}, text)
    found = _located(text)[1]
    return "directory" if found is None else file_kind(found)


def open_episodes(
    address: str | os.PathLike[str], *, catalog: str | os.PathLike[str] | None = None
) -> Episodes:
    """The episodes of a root of recordings, a folder of shards, a published dataset or a foreign set.

    By path, URL or name; the address of one episode gives that one. `catalog`: where published datasets are looked for.
    """
    from warpdata.episodes.collection import Episodes
    from warpdata.episodes.shard_folder import ShardFolderSource

    text = os.fspath(address)
    if divided_address(text)[1] is not None:
        return Episodes.of([open_episode(text, catalog=catalog)])
    try:
        kind = address_kind(text)
    except (BadMagicError, BlobNotFoundError):
        foreign = _foreign(text)
        if foreign is None:
            raise
        return foreign
    if kind == "dataset":
        return dataset(text, catalog=catalog).episodes
    if kind == "recordings":
        return open_recordings(text)
    return (
        Episodes(ShardFolderSource(_folder(text))) if kind == "shards" else Episodes.of([open_episode(text)])
    )


def _foreign(address: str | os.PathLike[str], name: str | None = None, **options: Any) -> Episodes | None:
    """The episodes of a foreign set; of one whose format is not named, None where no format knows it."""
    from warpdata.convert.formats import check_options, format_module, format_of

    base, inside = divided_address(os.fspath(address))
    folder = _folder(base)
    if name is None and isinstance(folder, str | os.PathLike) and not os.path.exists(folder):
        return None
    place = _place(base)
    found = name or format_of(place)
    if found is None:
        return None
    module = format_module(found)
    if not hasattr(module, "read"):
        raise ValueError(f"{found} can be written, not read")
    check_options(module.read, options, f"reading {found}")
    episodes: Episodes = module.read(place, **options)
    return episodes if inside is None else episodes[[episodes.position(inside)]]


def _place(address: str | os.PathLike[str]) -> Place:
    """Where foreign data lies: on this machine, or a file or a folder of a store."""
    import urllib.parse

    from warpdata.convert.place import Place
    from warpdata.stores.folder import StoreFolder

    folder = _folder(address)
    if isinstance(folder, str | os.PathLike):
        return Place.of(folder)
    parts = urllib.parse.urlsplit(os.fspath(address))
    above, _, name = parts.path.rstrip("/").rpartition("/")
    beside = StoreFolder(urllib.parse.urlunsplit(parts._replace(path=above)), connect)
    is_file = bool(name) and not parts.path.endswith("/") and beside.exists(name)
    return Place(None, beside, urllib.parse.unquote(name)) if is_file else Place.of(folder)


def import_episodes(
    source: str | os.PathLike[str] | Episodes,
    target: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word of the command
    to: str | None = None,
    catalog: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    ray: str | bool | None = None,
    on_error: OnError = "stop",
    video: VideoOptions | None = None,
    progress: Counted | None = None,
    **options: Any,
) -> Receipt:
    """Bring a foreign set (or any episodes) into a root of recordings, a folder of shards or a published dataset.

    `to` is `root`, `shards` or `published`; without it a target ending in `.wshard` is a folder of shards, one of the
    form `workspace/name` that is no folder is published, and every other one a root. Running it again continues.
    `jobs` processes convert episodes; `ray` (True, or the address of a cluster) does it there instead. The options are
    those of `wd.convert.<format>.read`.
    """
    from warpdata.convert.formats import format_module, known_format
    from warpdata.convert.importing import import_episodes as bring
    from warpdata.episodes.collection import Episodes as Several

    if format is not None:
        format_module(format)
    runner = _runner(jobs, ray)
    kind = _target_kind(os.fspath(target), to, catalog)
    if isinstance(source, Several):
        episodes, name, where = source, format or "warpdata", source.source.name
    else:
        where = os.fspath(source)
        where = where if "://" in where or _is_published(where) else os.path.abspath(where)
        if format is None and _is_ours(where):
            episodes, name = _any_episodes(where), "warpdata"
        else:
            name = format or known_format(_place(divided_address(where)[0]))
            found = _foreign(where, name, **options)
            assert found is not None
            episodes = found
    version = _foreign_version(episodes, name)
    stated = dict(options)
    shared: dict[str, Any] = {
        "format": name, "source": where, "version": version, "supplied": stated, "runner": runner, "on_error": on_error,
        "video": video, "progress": progress,
    }  # fmt: skip
    if kind == "published" and ray:
        return _import_stored(episodes, os.fspath(target), catalog, shared)
    if kind == "published":
        return _import_published(episodes, os.fspath(target), catalog, shared)
    return bring(episodes, target, kind="shards" if kind == "shards" else "root", **shared)


def _import_published(
    episodes: Episodes, target: str, catalog: str | os.PathLike[str] | None, shared: Mapping[str, Any]
) -> Receipt:
    """Through shards in the cache folder, where a run that ended is continued, to a version of a dataset."""
    import hashlib
    import shutil
    from pathlib import Path
    from urllib.parse import unquote

    from warpdata.catalog.builder import DatasetBuilder
    from warpdata.convert.importing import import_episodes as bring
    from warpdata.settings import Settings

    identity = hashlib.sha256(f"{shared['format']}\n{shared['source']}\n{target}".encode()).hexdigest()[:24]
    staging = Path(Settings.from_env().cache_dir).expanduser() / "imports" / identity
    receipt = bring(episodes, staging, kind="shards", **shared)
    receipt.target = target
    # By id, as stored episodes are: the version is the same however it was imported.
    found = sorted(staging.glob("*.wshard"), key=lambda path: unquote(path.name.removesuffix(".wshard")))
    with DatasetBuilder(target, catalog=catalog) as builder:
        builder.add_episodes("episodes", [str(each) for each in found])
        _publish_imported(builder, episodes, receipt)
    shutil.rmtree(staging)
    return receipt


def _import_stored(
    episodes: Episodes, target: str, catalog: str | os.PathLike[str] | None, shared: Mapping[str, Any]
) -> Receipt:
    """The same from machines that share the catalog and no disk: they store blobs, and this process publishes."""
    from functools import partial

    from warpdata.catalog.builder import DatasetBuilder
    from warpdata.catalog.stored import store_episode
    from warpdata.convert.importing import StoredTarget, store_episodes

    with DatasetBuilder(target, catalog=catalog) as builder:
        place = StoredTarget(target, partial(store_episode, builder.catalog, "episodes"))
        receipt = store_episodes(episodes, place, **shared)
        builder.add_stored_episodes("episodes", place.stored)
        _publish_imported(builder, episodes, receipt)
    return receipt


def _publish_imported(builder: DatasetBuilder, episodes: Episodes, receipt: Receipt) -> None:
    kept = {key: value for key, value in receipt.to_json().items() if key != "continued"}
    builder.describe(source_metadata=dict(episodes.metadata), receipt=kept)
    builder.publish(message=f"imported from {receipt.format}")


def export_episodes(
    source: str | os.PathLike[str] | Episodes,
    target: str | os.PathLike[str],
    format: str,  # noqa: A002 - the word of the command
    *,
    source_format: str | None = None,
    jobs: int = 1,
    progress: Counted | None = None,
    **options: Any,
) -> Receipt:
    """Write episodes of any address as a foreign set; the options are those of `wd.convert.<format>.write`.

    `jobs` processes do the work where the format allows it; what is written does not depend on how many there are.
    """
    import inspect

    from warpdata.convert.formats import check_options, format_module
    from warpdata.episodes.collection import Episodes as Several

    module = format_module(format)
    if not hasattr(module, "write"):
        raise ValueError(f"{format} can be read, not written")
    check_options(module.write, options, f"writing {format}")
    if jobs != 1:
        if "jobs" not in inspect.signature(module.write).parameters:
            raise ValueError(f"{format} is written by one process: leave out jobs (--jobs)")
        options["jobs"] = jobs
    if isinstance(source, Several):
        episodes = source
    else:
        named = None if source_format is None else _foreign(source, source_format)
        episodes = _any_episodes(os.fspath(source)) if named is None else named
    receipt: Receipt = module.write(episodes, target, progress=progress, **options)
    return receipt


def _any_episodes(address: str) -> Episodes:
    """The episodes of an address, of one that is a single episode too."""
    from warpdata.episodes.collection import Episodes as Several

    found = open(address)
    if isinstance(found, Several):
        return found
    episodes = getattr(found, "episodes", None)
    if isinstance(episodes, Several):
        return episodes
    from warpdata.timeline.episode import Episode as One

    if isinstance(found, One):
        return Several.of([found])
    raise ValueError(f"{address} holds a {type(found).__name__}, no episodes")


def _is_ours(address: str) -> bool:
    """Whether an address holds episodes of our own formats."""
    try:
        return address_kind(divided_address(address)[0]) in (
            "dataset",
            "directory",
            "recordings",
            "shards",
            "episode",
            "chunk-list",
        )
    except (BadMagicError, BlobNotFoundError):
        return False


def _foreign_version(episodes: Episodes, name: str) -> str:
    about = episodes.metadata.get(name)
    info = about.get("info") if isinstance(about, dict) else None
    return str(info.get("codebase_version", "")) if isinstance(info, dict) else ""


def _target_kind(target: str, to: str | None, catalog: Any) -> str:
    from warpdata.catalog.names import is_dataset_name
    from warpdata.errors import nearest

    kinds = ("root", "shards", "published")
    if to is not None:
        if to not in kinds:
            raise ValueError(f"to is one of {', '.join(kinds)}, not {to!r}.{nearest(to, kinds)}")
        return to
    if target.rstrip("/").endswith(".wshard"):
        return "shards"
    above = os.path.dirname(os.path.abspath(target))
    is_name = is_dataset_name(target) and "@" not in target and not target.endswith("/")
    is_named = is_name and not os.path.lexists(target) and (catalog is not None or not os.path.isdir(above))
    return "published" if is_named else "root"


def embed(
    source: str | os.PathLike[str] | Dataset | Episodes,
    embedder: Embedder | str = "state",
    *,
    name: str | None = None,
    per: Per = "step",
    rate_hz: float | None = None,
    clock: str | None = None,
    max_steps: int | None = None,
    window: int = 32,
    stride: int = 16,
    signals: str | Sequence[str] | None = None,
    batch_size: int | None = None,
    revision: str | None = None,
    metric: str | None = None,
    where: str | None = None,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    catalog: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    ray: str | bool | None = None,
    message: str = "",
    tags: Sequence[str] = (),
    sign_key: str | os.PathLike[str] | None = None,
    retries: int = 20,
    progress: Counted | None = None,
) -> EmbedReport:
    """Compute vectors of moments of episodes and keep them where searches find them: beside a root, or published.

    `embedder` turns an `Observation` (of a step, the mean of a window or of a whole episode, one frame) into a vector:
    a function, a class that is made once per process, or one that needs no model: "state" (every number that is no
    picture) and "pixels" (cameras as a few grey pixels). `per` says which moments get one: the steps (at most
    `max_steps` per episode, or those of `rate_hz` or `clock`), windows of steps, frames of cameras (all, or those of
    `rate_hz`), or each episode as a whole. With `batch_size` the function gets that many moments at once, as arrays by
    channel, and gives a row for each.

    The vectors of a root or a folder of shards are `<name>.rvf` in it; those of a published dataset become the artifact
    `vectors-<name>` of a new version; `output` names another file. Episodes that have not changed keep the vectors they
    have, as long as `revision` is the same: by default a hash of the code of the function. `jobs` and `ray` say where
    it is done, as for `check_dataset`: the bytes are the same. Every vector leads back to `episode_id` and `ts_ns`.
    """
    from warpdata.catalog.dataset import Dataset as Published
    from warpdata.episodes.collection import Episodes as Several
    from warpdata.search.embedding import (
        EmbedJob,
        EmbedOptions,
        check_index_name,
        embed_into_file,
        held_file,
        name_of,
    )
    from warpdata.settings import Settings

    chosen = (signals,) if isinstance(signals, str) else None if signals is None else tuple(signals)
    options = EmbedOptions(per, rate_hz, clock, max_steps, window, stride, chosen, batch_size)
    called = name_of(embedder) if name is None else check_index_name(name)
    runner = _runner(jobs, ray)
    opened = source if isinstance(source, Published) else None
    if opened is None and not isinstance(source, Published | Several) and _is_published(os.fspath(source)):
        opened = dataset(os.fspath(source), catalog=catalog)
    episodes, label, place = _embedded_source(opened or source, called, output)
    job = EmbedJob(
        episodes if where is None else episodes.where(where), label, embedder, options, Settings.from_env().cache_dir,
        revision, metric, None if opened is None else opened.id,
    )  # fmt: skip
    try:
        given: dict[str, Any] = {"overwrite": overwrite, "runner": runner, "progress": progress}
        if place is not None:
            made = embed_into_file(job, place, held_file(place), **given)
        else:
            assert opened is not None
            notes = {"message": message, "tags": tags, "sign_key": sign_key, "retries": retries}
            made = _embed_published(job, opened, called, given, notes)
        job.finish()
        return made
    finally:
        if opened is not None and opened is not source:
            opened.close()


def _embed_published(
    job: EmbedJob, dataset: Dataset, name: str, given: Mapping[str, Any], notes: Mapping[str, Any]
) -> EmbedReport:
    """Vectors of a version as an artifact of a new one, on top of the newest; the episodes are not touched."""
    import tempfile
    from dataclasses import replace
    from pathlib import Path

    from warpdata.catalog.adding import check_free, publish_files
    from warpdata.catalog.publish import PublishOptions
    from warpdata.formats.manifest.model import VECTOR_KIND
    from warpdata.search.embedding import SUFFIX, embed_into_file, part_name

    tags, key = notes["tags"], notes["sign_key"]
    options = PublishOptions(
        message=notes["message"], tags=(tags,) if isinstance(tags, str) else tuple(tags),
        sign_key=None if key is None else Path(key), retries=notes["retries"],
    )  # fmt: skip
    part = part_name(name)
    check_free(dataset, part, VECTOR_KIND)
    held = dataset.vectors(part) if part in dataset.artifacts else None
    with tempfile.TemporaryDirectory(prefix="warpdata-") as folder:
        path = Path(folder, f"{name}{SUFFIX}")
        made = embed_into_file(job, path, held, **given)
        published = publish_files(dataset, part, VECTOR_KIND, {path.name: path}, options)
    return replace(made, path=f"{dataset.id}, artifact {part}", version=published.version)


def _embedded_source(
    source: Any, name: str, output: str | os.PathLike[str] | None
) -> tuple[Episodes, str, Path | None]:
    """The episodes, what they are called, and the file of their vectors; None where a new version gets it."""
    from pathlib import Path

    from warpdata.catalog.dataset import Dataset as Published
    from warpdata.episodes.collection import Episodes as Several
    from warpdata.episodes.local import LocalDataset as Root
    from warpdata.search.embedding import SUFFIX

    target = None if output is None else Path(os.path.abspath(output))
    if isinstance(source, Published):
        return source.episodes, source.id, target
    if isinstance(source, Several):
        place = str(source.root) if isinstance(source, Root) else None
        episodes, label = source, place or source.source.name
    else:
        label = os.fspath(source)
        label = label if "://" in label else os.path.abspath(label)
        episodes = _any_episodes(label)
        place = label if "://" not in label and os.path.isdir(label) and _holds_indexes(label) else None
    if target is None and (place is None or "://" in place):
        raise ValueError(
            f"say with output= where the vectors of {label} are to be written: a file {name}{SUFFIX}"
        )
    return episodes, label, Path(str(place), f"{name}{SUFFIX}") if target is None else target


def _holds_indexes(folder: str) -> bool:
    """Whether vector files lie beside the episodes of a folder: in ours, not in those of other formats."""
    try:
        return address_kind(folder) in ("recordings", "shards")
    except BadMagicError:
        return False


def lerobot_dataset(
    source: str | os.PathLike[str] | Episodes,
    *,
    delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    image_transforms: Any = None,
    episodes: Sequence[int] | None = None,
    tolerance_s: float = 1e-4,
) -> Any:
    """A torch dataset over any episodes with the items of a LeRobotDataset: its keys, dtypes, shapes and masks.

    `delta_timestamps` gives each key several moments, in seconds around the frame; those outside the episode repeat
    its first or last frame and are marked in `<key>_is_pad`. `meta` answers what LeRobot's policies ask.
    """
    from warpdata.convert.lerobot.dataset import LeRobotFrames
    from warpdata.episodes.collection import Episodes as Several

    found = source if isinstance(source, Several) else _any_episodes(os.fspath(source))
    chosen = found if episodes is None else found[list(episodes)]
    return LeRobotFrames(
        chosen, delta_timestamps=delta_timestamps, image_transforms=image_transforms, tolerance_s=tolerance_s
    )


def divided_address(address: str) -> tuple[str, str | None]:
    """An address and the episode it names inside, unless something has that whole name."""
    base, mark, inside = address.rpartition("#")
    if not mark or not inside or ("://" not in address and os.path.lexists(address)):
        return address, None
    return base, inside


def _is_published(address: str) -> bool:
    """Whether an address names a published dataset and nothing on this disk."""
    from warpdata.catalog.names import is_dataset_name

    return "://" not in address and not os.path.lexists(address) and is_dataset_name(address)


def _directory(folder: Any) -> Episode:
    """An episode directory as the edits of the root around it show it."""
    from warpdata.episodes.disk_episode import DiskEpisode
    from warpdata.episodes.edits import shown

    return shown(folder) if isinstance(folder, str | os.PathLike) else DiskEpisode(folder)


def open_recordings(root: str | os.PathLike[str], **options: Any) -> LocalDataset:
    """The episodes of a root of recordings, by path, or by URL of a store that can list (s3, gs, az, file).

    Options are those of `LocalDataset`.
    """
    from warpdata.episodes.local import LocalDataset

    return LocalDataset(_folder(root), **options)


def _folder(source: str | os.PathLike[str]) -> Any:
    """A folder on this machine by path or file://, a folder of a store by URL."""
    import urllib.parse

    from warpdata.stores.folder import StoreFolder

    if not isinstance(source, str) or "://" not in source:
        return source
    parts = urllib.parse.urlsplit(source)
    return urllib.parse.unquote(parts.path) if parts.scheme == "file" else StoreFolder(source, connect)


def check_dataset(
    source: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    deep: bool = False,
    mute: Collection[str] = (),
    raw: bool = False,
    catalog: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    ray: str | bool | None = None,
) -> Report:
    """Look for what is wrong with episodes, as the edits of their root show them, wherever an address finds them.

    `deep` also decodes every frame; the rules in `mute` say nothing; `raw` looks at the recordings beneath the edits.
    `jobs` processes look at episodes; `ray` (True, or the address of a cluster) does it there instead.
    """
    from warpdata.episodes.check import check_rules
    from warpdata.episodes.check_each import check_each, check_root

    check_rules(mute)
    runner = _runner(jobs, ray)
    text = os.fspath(source)
    base, inside = divided_address(text)
    if inside is None and (_is_published(base) or (_is_root(base) and address_kind(base) == "shards")):
        found = check_each(
            open_episodes(base, catalog=catalog).source, progress=progress, deep=deep, runner=runner
        )
    elif inside is None and _is_root(base):
        found = check_root(_folder(base), progress=progress, deep=deep, raw=raw, runner=runner)
    elif inside is not None and raw and address_kind(base) == "recordings":
        found = _check_one(lambda: open_recordings(base, edited=False).open(inside), inside, deep=deep)
    else:
        name = inside or os.path.basename(base.partition("?")[0].rstrip("/"))
        found = _check_one(lambda: open_episode(text, catalog=catalog), name, deep=deep)
        if inside is None and not found.is_damaged:
            found = _with_blocks(found, _located(base)[1], name)
    return found.without(mute)


def _check_one(opened: Callable[[], Episode], name: str, *, deep: bool) -> Report:
    from warpdata.episodes.check import Report, check_opened

    return Report(1, list(check_opened(opened, name, deep=deep)))


def _runner(jobs: int, ray: str | bool | None) -> Runner:
    """Where the work on many episodes is done: here, in processes, or on a cluster."""
    from warpdata.episodes.jobs import runner_of

    if ray is None or ray is False:
        return runner_of(jobs)
    if jobs != 1:
        raise ValueError("jobs are processes of this machine, ray is a cluster: choose one of them")
    from warpdata.ray.verbs import runner

    return runner(None if ray is True else ray)


def _with_blocks(report: Report, found: Any, name: str) -> Report:
    """A report that also says which blocks of a shard are damaged that are no signal."""
    from warpdata.episodes.check import Report
    from warpdata.episodes.check_shards import damaged_blocks

    return Report(report.episodes, [*report.findings, *damaged_blocks(found, name)])


def _is_root(source: str | os.PathLike[str]) -> bool:
    """Whether a path or URL names a root of recordings rather than an episode."""
    from pathlib import Path

    from warpdata.episodes.check import is_directory
    from warpdata.errors import BlobNotFoundError

    place = _folder(source)
    if isinstance(place, str | os.PathLike):
        return os.path.isdir(place) and not is_directory(Path(place))
    try:
        _located(source)
    except BlobNotFoundError as missing:
        try:
            return bool(place.names())
        except StoreError as cannot_list:
            missing.hint = f"Give the URL of one episode: {cannot_list.message}."
            raise missing from None
    return False


def located(path: str) -> Any:
    """The bytes of a file by path or URL, as something a shard can be opened from."""
    return _located(path)[1] if "://" in path else path


def _located(source: object) -> tuple[Any, Any]:
    """The folder a URL lies in and the bytes of its file; without bytes, the folder of an episode directory."""
    if (isinstance(source, str) or hasattr(source, "__fspath__")) and "://" not in (
        path := os.fspath(source)
    ):
        # The process may go elsewhere before everything is read.
        return None, path if path.startswith("/") else os.path.abspath(path)
    if not isinstance(source, str):
        return None, source
    import urllib.parse

    from warpdata.errors import BlobNotFoundError
    from warpdata.stores.folder import StoreFolder

    parts = urllib.parse.urlsplit(source)
    if parts.scheme == "file":
        return None, urllib.parse.unquote(parts.path)
    above, _, name = parts.path.rstrip("/").rpartition("/")
    folder = StoreFolder(urllib.parse.urlunsplit(parts._replace(path=above)), connect)
    try:
        return folder, folder.open(name)
    except BlobNotFoundError:
        below = folder.below(name)
        if any(below.exists(mark) for mark in ("meta.json", "static.json")):
            return below, None
        raise


def connect(address: str) -> BlobStore:
    """The store at an address as the environment says it is reached."""
    from warpdata.catalog.access import access_options
    from warpdata.settings import Settings
    from warpdata.stores.address import open_store
    from warpdata.stores.meter import Meter
    from warpdata.stores.reliable import ReliableStore

    return ReliableStore(open_store(address, access_options(Settings.from_env()).store), Meter())


def open_corpus(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **options: Any
) -> FixedOrderSource:
    """Open an activation corpus: a folder, shard files in their order, or a URL of either (s3, gs, az, http).

    Options are the fields of SourceOptions, as for `MmapShardSource.open_dir`.
    """
    from warpdata.corpora.source import MmapShardSource
    from warpdata.corpora.store_source import StoreShardSource
    from warpdata.stores.folder import StoreFolder

    places = [os.fspath(place) for place in ([source] if isinstance(source, str | os.PathLike) else source)]
    if any("://" in place for place in places):
        if len(places) == 1 and not places[0].partition("?")[0].endswith(".shard"):
            return StoreShardSource.open_folder(StoreFolder(places[0], connect), **options)
        return StoreShardSource.open([_shard_bytes(place) for place in places], **options)
    if len(places) == 1 and not os.path.isfile(places[0]):
        return MmapShardSource.open_dir(places[0], **options)
    return MmapShardSource.open(places, **options)


def _shard_bytes(place: str) -> RangeReader:
    """One shard by URL, or a local one among URLs."""
    from warpdata.bytekit.ranges import FileRangeReader

    found = _located(place)[1]
    return FileRangeReader(found) if isinstance(found, str) else found


def load_wshard(
    source: str | os.PathLike[str] | RangeReader | bytes | BinaryIO,
    channels: Collection[str] | None = None,
    *,
    verify: Verify = "block",
) -> WShardEpisode:
    """Open an episode by step; lazy, zero-copy for raw blocks on this machine.

    The source is a path, a URL, bytes, a file opened in binary mode or a RangeReader. `channels` keeps only these ids
    or block names, and rewards, flags and times. `verify`: `"block"` holds every byte against a checksum before it is
    handed out; `"window"` does not read a whole raw block to check a window for which the file has no checksum (large
    ones of other programs); False trusts the bytes of blocks.
    """
    place, found = _located(source)
    if found is None and place is not None:
        raise _directory_error(source)
    loaded: WShardEpisode = _opening().load_wshard(found, channels, verify=verify)
    return loaded


def chunk_episode(
    episode: Episode | WShardEpisode,
    folder: str | os.PathLike[str],
    steps: int,
    *,
    compression: CompressionChoice = None,
    compat: str = "default",
    progress: Callable[[int, int], None] | None = None,
) -> ChunkList:
    """Write an episode as chunks of at most `steps` steps with their chunk list, which opens as one episode.

    The chunks of a recording are packed: cameras are cut by whole groups of pictures, never encoded again.
    """
    from warpdata.formats.wshard.chunked import chunk_episode as chunk_rows
    from warpdata.formats.wshard.episode import WShardEpisode

    if isinstance(episode, WShardEpisode):
        return chunk_rows(episode, folder, steps, compression=compression, compat=compat, progress=progress)
    from warpdata.episodes.packed_chunks import write_chunks

    return write_chunks(
        episode, folder, steps=steps, compression=compression, compat=compat, progress=progress
    )


def keep_decoded(max_bytes: str | int) -> None:
    """Keep at most this much of decoded blocks in this process (192 MiB unless told; 0 for none, "2GB" for more).

    A compressed block that is one frame is decoded whole for any of its rows: kept, it is decoded once.
    """
    from warpdata.bytekit.kept import KEPT
    from warpdata.catalog.names import parse_size

    KEPT.max_bytes = parse_size(max_bytes)


def _directory_error(source: Any) -> Exception:
    from warpdata.errors import CorruptLayoutError

    return CorruptLayoutError("an episode directory, not a file", path=source, hint="Use wd.open_episode().")


def open_vectors(
    source: str | os.PathLike[str] | RangeReader, mode: str = "r", *, durable: bool = True
) -> VectorStore:
    """Open a vector store: a path, for reading also a URL or a RangeReader; `stats()` counts its requests."""
    from warpdata.search.store import VectorStore

    if mode != "r":
        return VectorStore.open(source, mode, durable=durable)
    found = _located(source)[1]
    if found is None:
        raise _directory_error(source)
    return VectorStore.open(found)


def dataset(
    name: str,
    *,
    mode: str | None = None,
    catalog: str | os.PathLike[str] | Sequence[str] | None = None,
    max_bytes: str | int | None = None,
    max_requests: int | None = None,
    listener: Listener | None = None,
    **options: Any,
) -> Dataset:
    """Open a published dataset by name: `workspace/name`, `@hash` or `@tag` if you like; reads no data."""
    from warpdata.catalog.access import access_options, catalog_tuple
    from warpdata.catalog.dataset import budget_of, open_dataset
    from warpdata.catalog.names import parse_name
    from warpdata.settings import Settings

    budget = budget_of(max_bytes, max_requests)
    access = access_options(
        Settings.from_env(), mode=mode, catalogs=catalog_tuple(catalog), budget=budget, **options
    )
    return open_dataset(parse_name(name), access, table_streams(), listener)


open_dataset = dataset
"""The same under the name of its kind: `open_episode`, `open_dataset`, `open_corpus`, …"""


def table_streams() -> Any:
    """What the packages above the catalog give to datasets."""
    from warpdata.catalog.dataset import Streams
    from warpdata.loading.shuffled import open_stream
    from warpdata.loading.stream import plan_read
    from warpdata.loading.torch import torch_dataset

    return Streams(
        batches=open_stream, torch=torch_dataset, plan=plan_read, vectors=_vectors, ray=_ray, runner=_runner
    )


def _ray(table: Table) -> Any:
    from warpdata.ray import read_table

    return read_table(table)


def _vectors(reader: RangeReader) -> Any:
    from warpdata.search.store import VectorStore

    return VectorStore.open(reader)


def loader_of_state(path: str | os.PathLike[str]) -> Loader:
    """A loader as it stood when it saved a state with `save_state`; it knows every sample, and transforms nothing."""
    from warpdata.bytekit.jsontext import parse_json_object
    from warpdata.errors import CorruptLayoutError
    from warpdata.loading.windows.loader import Loader

    with builtins.open(path, "rb") as file:
        found = parse_json_object(file.read())
    try:
        plan, state = found["plan"], found["state"]
        made = Loader(
            _windows_of_plan(plan["windows"]), plan["batch_size"], seed=plan["seed"], shuffle=plan["shuffle"],
            on_error=plan["on_error"], rank=0, world=1, threads=0,
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise CorruptLayoutError(
            f"no state that loader.save_state() wrote ({error!r})",
            path=path,
            hint="Save it with loader.save_state().",
        ) from None
    made.load_state_dict(state)
    return made


def _windows_of_plan(plan: dict[str, Any]) -> Any:
    from warpdata.loading.windows.mixture import Mixture
    from warpdata.loading.windows.windows import Windows

    if "mixture" not in plan:
        return Windows.of_plan(plan, _episodes_of_address(plan["episodes"]))
    names = [each["name"] for each in plan["mixture"]]
    sources = {each["name"]: (_windows_of_plan(each["windows"]), each["weight"]) for each in plan["mixture"]}
    schedule = {start: dict(zip(names, row, strict=True)) for start, row in plan["schedule"]}
    return Mixture(sources, length=plan["length"], schedule=schedule)


def _episodes_of_address(address: dict[str, Any] | None) -> Episodes:
    """The episodes that a saved state names."""
    import functools
    import json
    import operator

    from warpdata.catalog.dataset import reopened_episodes
    from warpdata.episodes.collection import Episodes
    from warpdata.episodes.shard_folder import ShardFolderSource
    from warpdata.errors import DatasetError

    if address is None:
        raise DatasetError(
            "the run read episodes that live in memory only",
            hint="Ask loader.why() in the program that made them.",
        )
    if address["kind"] == "joined":
        parts = [_episodes_of_address(part) for part in address["parts"]]
        whole = functools.reduce(operator.add, parts)
    elif address["kind"] == "root":
        whole = open_recordings(address["address"], edited=address["edited"])
    elif address["kind"] == "shards":
        whole = Episodes(ShardFolderSource(_folder(address["address"]), address["names"]))
    else:
        whole = Episodes(reopened_episodes(json.dumps(address["recipe"]), address["artifact"]))
    return whole if address["rows"] is None else whole[address["rows"]]


def load(name: str, table: str = "main", *, limit: int | None = None, **options: Any) -> Any:
    """A table as a pandas frame in one line; large tables are refused, stream those."""
    from warpdata.sql.frames import pandas_from

    view = dataset(name, **options).table(table)
    return view.pandas() if limit is None else pandas_from(view.head(limit))
