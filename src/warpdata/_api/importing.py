"""Foreign sets into ours, and ours into foreign ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from warpdata._api import (
    address_kind,
    address_text,
    divided_address,
    foreign_episodes,
    is_published,
    place_at,
    runner_for,
)
from warpdata._api import open as open_address
from warpdata.errors import BadMagicError, BlobNotFoundError, nearest, require_word, suggests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warpdata.catalog.build.builder import DatasetBuilder
    from warpdata.convert.exporting import OnError
    from warpdata.convert.exporting import Progress as Counted
    from warpdata.convert.receipt import ConversionReceipt
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.formats.episodedir.documents import VideoOptions


@suggests
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
) -> ConversionReceipt:
    """Bring a foreign set (or any episodes) into a root of recordings, a folder of shards or a published dataset.

    `to` is `root`, `shards` or `published`; without it a target ending in `.wshard` is a folder of shards, one of the
    form `workspace/name` is published where a catalog is given or no folder is meant, and every other one is a root.
    Running it again continues.
    `jobs` processes convert episodes; `ray` (True, or the address of a cluster) does it there instead. The options are
    those of `wd.convert.<format>.read`.
    """
    from warpdata.convert.formats import format_module
    from warpdata.convert.importing import import_episodes as bring
    from warpdata.episodes.collection.episodes import Episodes as Several

    if format is not None:
        format_module(format)
    runner = runner_for(jobs, ray)
    kind = _target_kind(address_text(target), to, catalog)
    if isinstance(source, Several):
        episodes, name, where = source, format or "warpdata", source.source.name
        _refuse_options(where, options)
    else:
        where = address_text(source)
        where = where if "://" in where or is_published(where) else os.path.abspath(where)
        episodes, name = _open_source(where, format, options, is_ours=format is None and _is_ours(where))
    about = episodes.metadata.get(name)
    info = about.get("info") if isinstance(about, dict) else None
    version = str(info.get("codebase_version", "")) if isinstance(info, dict) else ""
    shared: dict[str, Any] = {
        "format": name,
        "source": where,
        "version": version,
        "supplied": dict(options),
        "runner": runner,
        "on_error": on_error,
        "video": video,
        "progress": progress,
    }
    if kind == "published" and ray:
        return _import_stored(episodes, address_text(target), catalog, shared)
    if kind == "published":
        return _import_published(episodes, address_text(target), catalog, shared)
    return bring(episodes, target, kind="shards" if kind == "shards" else "root", **shared)


def _import_published(
    episodes: Episodes, target: str, catalog: str | os.PathLike[str] | None, shared: Mapping[str, Any]
) -> ConversionReceipt:
    """Through shards in the cache folder, where a run that ended is continued, to a version of a dataset."""
    import hashlib
    import shutil
    from pathlib import Path
    from urllib.parse import unquote

    from warpdata.catalog.build.builder import DatasetBuilder
    from warpdata.convert.importing import import_episodes as bring
    from warpdata.settings import Settings

    identity = hashlib.sha256(f"{shared['format']}\n{shared['source']}\n{target}".encode()).hexdigest()[:24]
    staging = Path(Settings.from_env().cache_dir).expanduser() / "imports" / identity
    receipt = bring(episodes, staging, kind="shards", **shared)
    receipt.target = target
    # By id, as stored episodes are: the version is the same however it was imported.
    files = sorted(staging.glob("*.wshard"), key=lambda path: unquote(path.name.removesuffix(".wshard")))
    with DatasetBuilder(target, catalog=catalog) as builder:
        builder.add_episodes("episodes", [str(file) for file in files])
        _publish_imported(builder, episodes, receipt)
    shutil.rmtree(staging)
    return receipt


def _import_stored(
    episodes: Episodes, target: str, catalog: str | os.PathLike[str] | None, shared: Mapping[str, Any]
) -> ConversionReceipt:
    """The same from machines that share the catalog and no disk: they store blobs, and this process publishes."""
    from functools import partial

    from warpdata.catalog.build.builder import DatasetBuilder
    from warpdata.catalog.build.episodes import store_episode
    from warpdata.convert.importing import StoredTarget
    from warpdata.convert.importing import import_episodes as bring

    with DatasetBuilder(target, catalog=catalog) as builder:
        place = StoredTarget(target, partial(store_episode, builder.catalog, "episodes"))
        receipt = bring(episodes, place, **shared)
        builder.add_stored_episodes("episodes", place.stored)
        _publish_imported(builder, episodes, receipt)
    return receipt


def _publish_imported(builder: DatasetBuilder, episodes: Episodes, receipt: ConversionReceipt) -> None:
    builder.describe(source_metadata=dict(episodes.metadata), receipt=receipt.to_keep())
    builder.publish(message=f"imported from {receipt.format}")


@suggests
def export_episodes(
    source: str | os.PathLike[str] | Episodes,
    target: str | os.PathLike[str],
    format: str,  # noqa: A002 - the word of the command
    *,
    source_format: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    jobs: int = 1,
    progress: Counted | None = None,
    **options: Any,
) -> ConversionReceipt:
    """Write episodes of any address as a foreign set; the options are those of `wd.convert.<format>.write`.

    A source that is foreign too is opened with `source_options`, which are those of `wd.convert.<source_format>.read`.
    `jobs` processes do the work where the format allows it; what is written does not depend on how many there are.
    """
    from warpdata.convert.formats import check_options, format_module, option_names
    from warpdata.episodes.collection.episodes import Episodes as Several

    module = format_module(format)
    if not hasattr(module, "write"):
        raise ValueError(f"{format} can be read, not written")
    check_options(module.write, options, f"writing {format}")
    if jobs != 1:
        if "jobs" not in option_names(module.write):
            raise ValueError(f"{format} is written by one process: leave out jobs (--jobs)")
        options["jobs"] = jobs
    if isinstance(source, Several):
        episodes = source
    else:
        where, given = address_text(source), source_options or {}
        episodes, _ = _open_source(where, source_format, given, is_ours=not given or _is_ours(where))
    receipt: ConversionReceipt = module.write(episodes, target, progress=progress, **options)
    return receipt


def _open_source(
    address: str, name: str | None, options: Mapping[str, Any], *, is_ours: bool
) -> tuple[Episodes, str]:
    """The episodes of an address and their format; options are for those of a foreign one."""
    from warpdata.convert.formats import known_format

    if name is None and is_ours:
        _refuse_options(address, options)
        return any_episodes(address), "warpdata"
    name = name or known_format(place_at(divided_address(address)[0]))
    episodes = foreign_episodes(address, name, **options)
    assert episodes is not None
    return episodes, name


_OURS = ("dataset", "directory", "recordings", "shards", "episode", "chunk-list")
_KEYWORDS = ("format", "to", "catalog", "jobs", "ray", "on_error", "video", "progress")


def _refuse_options(address: str, options: Mapping[str, Any]) -> None:
    for name in options:
        fact = f"{address} is opened without {name!r}: only sets of a foreign format have options"
        raise ValueError(f"{fact}.{nearest(name, _KEYWORDS)}")


def any_episodes(address: str) -> Episodes:
    """The episodes of an address, of one that is a single episode too."""
    from warpdata.episodes.collection.episodes import Episodes as Several
    from warpdata.timeline.episode import Episode

    thing = open_address(address)
    episodes = Several.of([thing]) if isinstance(thing, Episode) else getattr(thing, "episodes", thing)
    if not isinstance(episodes, Several):
        raise ValueError(f"{address} holds a {type(thing).__name__}, no episodes")
    return episodes


def _is_ours(address: str) -> bool:
    """Whether an address holds episodes of our own formats."""
    try:
        return address_kind(divided_address(address)[0]) in _OURS
    except (BadMagicError, BlobNotFoundError):
        return False


def _target_kind(target: str, to: str | None, catalog: Any) -> str:
    from warpdata.catalog.access import is_dataset_name

    if to is not None:
        kind = require_word("to", to, ("root", "shards", "published"))
    elif target.rstrip("/").endswith(".wshard"):
        kind = "shards"
    else:
        above = os.path.dirname(os.path.abspath(target))
        is_name = is_dataset_name(target) and "@" not in target and not target.endswith("/")
        is_free = not os.path.lexists(target) and not os.path.isdir(above)
        kind = "published" if is_name and (catalog is not None or is_free) else "root"
    if catalog is not None and kind != "published":
        raise ValueError(
            f"a catalog is for a target that is published, workspace/name; {target!r} is to be a folder"
        )
    return kind


@suggests
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
    from warpdata.episodes.collection.episodes import Episodes as Several

    every = source if isinstance(source, Several) else any_episodes(address_text(source))
    chosen = every if episodes is None else every[list(episodes)]
    return LeRobotFrames(
        chosen, delta_timestamps=delta_timestamps, image_transforms=image_transforms, tolerance_s=tolerance_s
    )
