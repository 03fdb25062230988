"""warpdata: record, shard, publish, stream and search recorded experience. Names load when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from warpdata._version import __version__ as __version__

if TYPE_CHECKING:
    from warpdata._api import dataset as dataset
    from warpdata._api import load as load
    from warpdata._api import open_episode as open_episode
    from warpdata.catalog.builder import DatasetBuilder as DatasetBuilder
    from warpdata.catalog.dataset import Dataset as Dataset
    from warpdata.catalog.refs import AudioRef as AudioRef
    from warpdata.catalog.refs import EpisodeRef as EpisodeRef
    from warpdata.catalog.refs import FileRef as FileRef
    from warpdata.catalog.refs import ImageRef as ImageRef
    from warpdata.catalog.refs import VideoRef as VideoRef
    from warpdata.catalog.refs import read_refs as read_refs
    from warpdata.catalog.table import Table as Table
    from warpdata.corpora.batch import RowBatch as RowBatch
    from warpdata.corpora.shuffled import ShuffledRows as ShuffledRows
    from warpdata.corpora.side_table import SideTable as SideTable
    from warpdata.corpora.source import MmapShardSource as MmapShardSource
    from warpdata.corpora.store_source import StoreShardSource as StoreShardSource
    from warpdata.corpora.subsample import FractionRows as FractionRows
    from warpdata.corpora.warm_cache import RowWarmCache as RowWarmCache
    from warpdata.corpora.warm_cache import WarmRows as WarmRows
    from warpdata.corpora.writer import CorpusWriter as CorpusWriter
    from warpdata.episodes.receipt import LossReceipt as LossReceipt
    from warpdata.episodes.salvage import salvage as salvage
    from warpdata.episodes.stream_writer import WShardStreamWriter as WShardStreamWriter
    from warpdata.errors import WarpError as WarpError
    from warpdata.formats.gamsae.writer import ShardWriter as ShardWriter
    from warpdata.formats.gamsae.writer import encode_shard_bytes as encode_shard_bytes
    from warpdata.formats.wshard.channel import Channel as Channel
    from warpdata.formats.wshard.chunked import ChunkedEpisodeReader as ChunkedEpisodeReader
    from warpdata.formats.wshard.chunked import ChunkedEpisodeWriter as ChunkedEpisodeWriter
    from warpdata.formats.wshard.chunked import chunk_episode as chunk_episode
    from warpdata.formats.wshard.chunks import ChunkList as ChunkList
    from warpdata.formats.wshard.chunks import validate_chunk_continuity as validate_chunk_continuity
    from warpdata.formats.wshard.episode import WShardEpisode as WShardEpisode
    from warpdata.formats.wshard.hashes import compute_crc32 as compute_crc32
    from warpdata.formats.wshard.hashes import name_hash as name_hash
    from warpdata.formats.wshard.load import load_wshard as load_wshard
    from warpdata.formats.wshard.residual import error_residual as error_residual
    from warpdata.formats.wshard.residual import pack_residual as pack_residual
    from warpdata.formats.wshard.residual import sign2nddiff as sign2nddiff
    from warpdata.formats.wshard.residual import unpack_residual as unpack_residual
    from warpdata.formats.wshard.save import save_wshard as save_wshard
    from warpdata.formats.wshard.schema import Timebase as Timebase
    from warpdata.formats.wshard.writer import Compression as Compression
    from warpdata.ordering.fraction import Cascade as Cascade
    from warpdata.ordering.fraction import row_in_fraction as row_in_fraction

_HOMES: dict[str, str] = {
    "CorpusWriter": "warpdata.corpora.writer",
    "MmapShardSource": "warpdata.corpora.source",
    "StoreShardSource": "warpdata.corpora.store_source",
    "ShuffledRows": "warpdata.corpora.shuffled",
    "RowBatch": "warpdata.corpora.batch",
    "RowWarmCache": "warpdata.corpora.warm_cache",
    "WarmRows": "warpdata.corpora.warm_cache",
    "FractionRows": "warpdata.corpora.subsample",
    "SideTable": "warpdata.corpora.side_table",
    "Cascade": "warpdata.ordering.fraction",
    "row_in_fraction": "warpdata.ordering.fraction",
    "ShardWriter": "warpdata.formats.gamsae.writer",
    "encode_shard_bytes": "warpdata.formats.gamsae.writer",
    "Channel": "warpdata.formats.wshard.channel",
    "ChunkList": "warpdata.formats.wshard.chunks",
    "ChunkedEpisodeReader": "warpdata.formats.wshard.chunked",
    "ChunkedEpisodeWriter": "warpdata.formats.wshard.chunked",
    "Compression": "warpdata.formats.wshard.writer",
    "LossReceipt": "warpdata.episodes.receipt",
    "Timebase": "warpdata.formats.wshard.schema",
    "WShardEpisode": "warpdata.formats.wshard.episode",
    "WShardStreamWriter": "warpdata.episodes.stream_writer",
    "AudioRef": "warpdata.catalog.refs",
    "Dataset": "warpdata.catalog.dataset",
    "DatasetBuilder": "warpdata.catalog.builder",
    "EpisodeRef": "warpdata.catalog.refs",
    "FileRef": "warpdata.catalog.refs",
    "ImageRef": "warpdata.catalog.refs",
    "Table": "warpdata.catalog.table",
    "VideoRef": "warpdata.catalog.refs",
    "dataset": "warpdata._api",
    "load": "warpdata._api",
    "read_refs": "warpdata.catalog.refs",
    "WarpError": "warpdata.errors",
    "chunk_episode": "warpdata.formats.wshard.chunked",
    "compute_crc32": "warpdata.formats.wshard.hashes",
    "error_residual": "warpdata.formats.wshard.residual",
    "load_wshard": "warpdata.formats.wshard.load",
    "name_hash": "warpdata.formats.wshard.hashes",
    "open_episode": "warpdata._api",
    "pack_residual": "warpdata.formats.wshard.residual",
    "salvage": "warpdata.episodes.salvage",
    "save_wshard": "warpdata.formats.wshard.save",
    "sign2nddiff": "warpdata.formats.wshard.residual",
    "unpack_residual": "warpdata.formats.wshard.residual",
    "validate_chunk_continuity": "warpdata.formats.wshard.chunks",
}
"""Public name -> the module it lives in; nothing is imported until the name is asked for."""

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'warpdata' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
