"""Open, pack, unpack and chunk the episode at an address."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO

from warpdata._api import (
    address_kind,
    address_text,
    dataset,
    divided_address,
    folder_at,
    is_published,
    is_root,
    kind_or_foreign,
    locate,
    locate_file,
)
from warpdata.episodes.sources.shard_episode import chunks_source, episode_of_shard
from warpdata.errors import StoreError, suggests
from warpdata.formats.wshard import chunks
from warpdata.formats.wshard.chunks import ChunkList
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.episode import load_wshard as load
from warpdata.formats.wshard.reader import ShardReader, Verify
from warpdata.timeline.episode import Episode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from warpdata.bytekit.io.ranges import RangeReader
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.episodes.collection.local import LocalDataset
    from warpdata.formats.wshard.save import CompressionChoice


@suggests
def open_episode(
    source: str | os.PathLike[str] | RangeReader | bytes | BinaryIO | ChunkList,
    *,
    catalog: str | os.PathLike[str] | None = None,
    edited: bool = True,
) -> Episode:
    """Open an episode: a directory, a shard or a chunk list, by path or URL; reads lazily.

    `#id` goes inside a root, a folder of shards or a published dataset: `robot_data#3`, `lab/reacher@v1#3`. A shard
    may also be bytes, a file opened in binary mode or a RangeReader. `catalog` is where datasets are looked up.
    `edited=False` opens a recording without the edits of its root.
    """
    if isinstance(source, ChunkList):
        return Episode(chunks_source(source))
    if isinstance(source, str):
        source, inside = divided_address(source)
        if inside is not None:
            return open_episodes(source, catalog=catalog, edited=edited).open(inside)
        if is_published(source):
            raise _one_of_many(source, open_episodes(source, catalog=catalog))
    folder, file = locate(source)
    if file is None and folder is not None:
        return _open_directory(folder, edited=edited)
    try:
        return episode_of_shard(ShardReader.open(file), folder)
    except StoreError:
        if not isinstance(file, str) or not os.path.isdir(file):
            raise
    if is_root(file) and address_kind(file) in ("recordings", "shards"):
        several = open_episodes(file)
        if len(several):
            raise _one_of_many(file, several)
    return _open_directory(file, edited=edited)


def _one_of_many(address: str, episodes: Episodes) -> Exception:
    some = f", such as {address}#{episodes.ids[0]}" if len(episodes) else ""
    return ValueError(f"{address} holds {len(episodes)} episodes: name one of them{some}")


@suggests
def open_episodes(
    address: str | os.PathLike[str], *, catalog: str | os.PathLike[str] | None = None, edited: bool = True
) -> Episodes:
    """Open the episodes of a root of recordings, a folder of shards, a published dataset or a foreign set.

    By path, URL or name; the address of one episode gives that one. `catalog` is where published datasets are looked
    up. `edited=False` shows recordings without the edits of their root.
    """
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.episodes.collection.local import ShardFolderSource

    text = address_text(address)
    if divided_address(text)[1] is not None:
        return Episodes.of([open_episode(text, catalog=catalog, edited=edited)])
    kind, foreign = kind_or_foreign(text)
    if foreign is not None:
        return foreign
    if kind == "dataset":
        return dataset(text, catalog=catalog).episodes
    if kind == "recordings":
        return open_recordings(text, edited=edited)
    if kind == "shards":
        return Episodes(ShardFolderSource(folder_at(text)))
    return Episodes.of([open_episode(text, edited=edited)])


def _open_directory(folder: Any, *, edited: bool) -> Episode:
    """Open an episode directory, with the edits of its root if `edited`."""
    from warpdata.episodes.collection.edits import with_edits
    from warpdata.episodes.sources.disk_episode import DiskEpisode

    return with_edits(folder) if edited and isinstance(folder, str | os.PathLike) else DiskEpisode(folder)


@suggests
def open_recordings(
    root: str | os.PathLike[str], *, edited: bool = True, cache_bytes: int = 256 << 20
) -> LocalDataset:
    """The episodes of a root of recordings, by path, or by URL of a store that can list (s3, gs, az, file).

    `edited`: as the edit log shows them; `cache_bytes`: how much of what was read is kept.
    """
    from warpdata.episodes.collection.local import LocalDataset

    return LocalDataset(folder_at(root), edited=edited, cache_bytes=cache_bytes)


@suggests
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
    return load(locate_file(source), channels, verify=verify)


@suggests
def pack_episode(
    episode: Episode | str | os.PathLike[str],
    output: str | os.PathLike[str],
    compression: CompressionChoice = None,
    *,
    compat: str = "default",
    raw: bool = False,
    reencode: bool = False,
    episode_id: str | None = None,
    overwrite: bool = False,
    catalog: str | os.PathLike[str] | None = None,
) -> Path:
    """Write an episode, or the one at an address, as one `.wshard`; cameras keep their encoded bytes.

    `raw` packs the recording without the edits of its root. Cameras of different encoders that were joined become one
    video only with `reencode`, which changes pixels.
    """
    from warpdata.episodes.forms import shard as packed

    if isinstance(episode, str | os.PathLike):
        episode = open_episode(address_text(episode), catalog=catalog, edited=not raw)
    return packed.pack_episode(
        episode,
        output,
        compression,
        compat=compat,
        raw=raw,
        reencode=reencode,
        episode_id=episode_id,
        overwrite=overwrite,
    )


@suggests
def unpack_episode(
    episode: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    catalog: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the packed recording at an address as a directory again: values, times, metadata and video.

    `overwrite` replaces an episode directory, and nothing else.
    """
    from warpdata.episodes.forms.shard import unpack_episode as unpack
    from warpdata.episodes.sources.packed import PackedSource
    from warpdata.timeline.source import innermost

    source = innermost(open_episode(address_text(episode), catalog=catalog).source)
    if not isinstance(source, PackedSource):
        raise ValueError(
            f"not a packed recording: {episode}; use `warp chunk` to cut shards by step, `warp join` to join chunks"
        )
    return unpack(source.shard, directory, overwrite=overwrite)


@suggests
def chunk_episode(
    episode: Episode | WShardEpisode | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    steps: int,
    *,
    compression: CompressionChoice = None,
    compat: str = "default",
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ChunkList:
    """Write an episode as chunks of at most `steps` steps with their chunk list, which opens as one episode.

    Chunks that are there are replaced only with `overwrite`. Those of a recording are packed: cameras are cut by
    whole groups of pictures, never encoded again.
    """
    options: dict[str, Any] = {"compression": compression, "compat": compat}
    options |= {"overwrite": overwrite, "progress": progress}
    if isinstance(episode, str | os.PathLike):
        episode = open_episode(episode)
    if isinstance(episode, WShardEpisode):
        return chunks.chunk_episode(episode, folder, steps, **options)
    from warpdata.episodes.forms.shard import write_chunks

    return write_chunks(episode, folder, steps=steps, **options)
