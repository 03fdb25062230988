"""warpdata: record, shard, publish, stream and search recorded experience. Names load when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from warpdata._version import __version__ as __version__

if TYPE_CHECKING:
    from warpdata._api import dataset as dataset
    from warpdata._api import keep_decoded as keep_decoded
    from warpdata._api import load as load
    from warpdata._api import open as open  # noqa: A004 - the one way in
    from warpdata._api import open_corpus as open_corpus
    from warpdata._api import open_dataset as open_dataset
    from warpdata._api import open_vectors as open_vectors
    from warpdata._api.checking import check_dataset as check_dataset
    from warpdata._api.embedding import embed as embed
    from warpdata._api.episodes import chunk_episode as chunk_episode
    from warpdata._api.episodes import load_wshard as load_wshard
    from warpdata._api.episodes import open_episode as open_episode
    from warpdata._api.episodes import open_episodes as open_episodes
    from warpdata._api.episodes import open_recordings as open_recordings
    from warpdata._api.episodes import pack_episode as pack_episode
    from warpdata._api.episodes import unpack_episode as unpack_episode
    from warpdata._api.importing import export_episodes as export_episodes
    from warpdata._api.importing import import_episodes as import_episodes
    from warpdata._api.importing import lerobot_dataset as lerobot_dataset
    from warpdata._api.recording import record as record
    from warpdata._api.similar import find_duplicates as find_duplicates
    from warpdata._api.similar import find_similar as find_similar
    from warpdata._api.similar import rank_novelty as rank_novelty
    from warpdata.catalog.build.builder import DatasetBuilder as DatasetBuilder
    from warpdata.catalog.dataset import Dataset as Dataset
    from warpdata.catalog.read.refs import AudioRef as AudioRef
    from warpdata.catalog.read.refs import EpisodeFileRef as EpisodeFileRef
    from warpdata.catalog.read.refs import FileRef as FileRef
    from warpdata.catalog.read.refs import ImageRef as ImageRef
    from warpdata.catalog.read.refs import VideoRef as VideoRef
    from warpdata.catalog.read.refs import read_refs as read_refs
    from warpdata.catalog.table import Table as Table
    from warpdata.corpora.rows import RowBatch as RowBatch
    from warpdata.corpora.shuffled import ShuffledRows as ShuffledRows
    from warpdata.corpora.side_table import SideTable as SideTable
    from warpdata.corpora.source import FractionRows as FractionRows
    from warpdata.corpora.source import MmapShardSource as MmapShardSource
    from warpdata.corpora.source import StoreShardSource as StoreShardSource
    from warpdata.corpora.warm_cache import RowWarmCache as RowWarmCache
    from warpdata.corpora.warm_cache import WarmRows as WarmRows
    from warpdata.corpora.writer import CorpusWriter as CorpusWriter
    from warpdata.episodes.collection.episodes import Episodes as Episodes
    from warpdata.episodes.collection.local import LocalDataset as LocalDataset
    from warpdata.episodes.collection.local import open_live as open_live
    from warpdata.episodes.collection.replay import replay as replay
    from warpdata.episodes.demo_robot import demo_data as demo_data
    from warpdata.episodes.demo_robot import demo_records as demo_records
    from warpdata.episodes.record.gym import RecordEpisodes as RecordEpisodes
    from warpdata.episodes.record.recorder import DiskEpisodeWriter as DiskEpisodeWriter
    from warpdata.episodes.record.recorder import LocalDatasetWriter as LocalDatasetWriter
    from warpdata.episodes.record.recorder import Recorder as Recorder
    from warpdata.episodes.record.recorder import SimpleSignalWriter as SimpleSignalWriter
    from warpdata.episodes.record.recorder import VideoSignalWriter as VideoSignalWriter
    from warpdata.episodes.record.steps import WShardStreamWriter as WShardStreamWriter
    from warpdata.episodes.salvage.receipt import LossReceipt as LossReceipt
    from warpdata.episodes.salvage.recordings import salvage as salvage
    from warpdata.episodes.sources.cameras import VideoSignal as VideoSignal
    from warpdata.episodes.sources.disk_episode import DiskEpisode as DiskEpisode
    from warpdata.episodes.sources.disk_episode import SimpleSignal as SimpleSignal
    from warpdata.errors import AuthenticationError as AuthenticationError
    from warpdata.errors import ConflictError as ConflictError
    from warpdata.errors import DatasetNotFoundError as DatasetNotFoundError
    from warpdata.errors import ManifestCorruptedError as ManifestCorruptedError
    from warpdata.errors import PermissionError_ as PermissionError  # noqa: A004, F401 - the builtin's name
    from warpdata.errors import WarpError as WarpError
    from warpdata.formats.episodedir.documents import VideoOptions as VideoOptions
    from warpdata.formats.gamsae.shard import ActivationShardWriter as ActivationShardWriter
    from warpdata.formats.gamsae.shard import encode_shard_bytes as encode_shard_bytes
    from warpdata.formats.rvf.signing import SigningKey as SigningKey
    from warpdata.formats.wshard.chunks import ChunkedEpisodeReader as ChunkedEpisodeReader
    from warpdata.formats.wshard.chunks import ChunkedEpisodeWriter as ChunkedEpisodeWriter
    from warpdata.formats.wshard.chunks import ChunkList as ChunkList
    from warpdata.formats.wshard.chunks import validate_chunk_continuity as validate_chunk_continuity
    from warpdata.formats.wshard.episode import Channel as Channel
    from warpdata.formats.wshard.episode import WShardEpisode as WShardEpisode
    from warpdata.formats.wshard.layout import compute_crc32 as compute_crc32
    from warpdata.formats.wshard.layout import name_hash as name_hash
    from warpdata.formats.wshard.residual import compute_error_residual as compute_error_residual
    from warpdata.formats.wshard.residual import dequantize_delta as dequantize_delta
    from warpdata.formats.wshard.residual import error_residual as error_residual
    from warpdata.formats.wshard.residual import pack_bool_mask as pack_bool_mask
    from warpdata.formats.wshard.residual import (
        pack_multidim_residual_bitmask as pack_multidim_residual_bitmask,
    )
    from warpdata.formats.wshard.residual import pack_residual as pack_residual
    from warpdata.formats.wshard.residual import pack_residual_bits as pack_residual_bits
    from warpdata.formats.wshard.residual import quantize_delta as quantize_delta
    from warpdata.formats.wshard.residual import (
        reconstruct_from_omen_and_delta as reconstruct_from_omen_and_delta,
    )
    from warpdata.formats.wshard.residual import sign2nddiff as sign2nddiff
    from warpdata.formats.wshard.residual import unpack_bool_mask as unpack_bool_mask
    from warpdata.formats.wshard.residual import (
        unpack_multidim_residual_bitmask as unpack_multidim_residual_bitmask,
    )
    from warpdata.formats.wshard.residual import (
        unpack_multidim_residual_bits as unpack_multidim_residual_bits,
    )
    from warpdata.formats.wshard.residual import unpack_residual as unpack_residual
    from warpdata.formats.wshard.residual import unpack_residual_bits as unpack_residual_bits
    from warpdata.formats.wshard.save import Compression as Compression
    from warpdata.formats.wshard.save import save_wshard as save_wshard
    from warpdata.formats.wshard.schema import Timebase as Timebase
    from warpdata.loading.batch import Batch as Batch
    from warpdata.loading.batch import masked_mean as masked_mean
    from warpdata.loading.field import Field as Field
    from warpdata.loading.loader import Loader as Loader
    from warpdata.loading.mixture import Mixture as Mixture
    from warpdata.loading.statistics import Normalize as Normalize
    from warpdata.loading.windows import Windows as Windows
    from warpdata.ordering.fraction import Cascade as Cascade
    from warpdata.ordering.fraction import row_in_fraction as row_in_fraction
    from warpdata.search.moments.trajectories import EpisodeRef as EpisodeRef
    from warpdata.search.moments.trajectories import TrajectoryIngestor as TrajectoryIngestor
    from warpdata.search.moments.trajectories import TrajectoryRetriever as TrajectoryRetriever
    from warpdata.search.store import VectorStore as VectorStore
    from warpdata.timeline.episode import Episode as Episode
    from warpdata.timeline.episode import EpisodeView as EpisodeView
    from warpdata.timeline.memory import ArraySignal as ArraySignal
    from warpdata.timeline.signal import Signal as Signal
    from warpdata.timeline.writing import EpisodeWriter as EpisodeWriter
    from warpdata.timeline.writing import SignalWriter as SignalWriter
    from warpdata.viewer.export import export_site as export_site
    from warpdata.viewer.server import Viewer as Viewer
    from warpdata.viewer.server import view as view


def _by_name(names_by_module: dict[str, str]) -> dict[str, str]:
    return {name: f"warpdata.{home}" for home, names in names_by_module.items() for name in names.split()}


_HOMES = _by_name(
    {
        "corpora.writer": "CorpusWriter",
        "catalog.dataset": "Dataset",
        "catalog.build.builder": "DatasetBuilder",
        "episodes.record.recorder": "DiskEpisodeWriter",
        "timeline.episode": "Episode",
        "episodes.collection.episodes": "Episodes",
        "loading.field": "Field",
        "loading.loader": "Loader",
        "episodes.collection.local": "LocalDataset open_live",
        "loading.mixture": "Mixture",
        "corpora.source": "MmapShardSource",
        "loading.statistics": "Normalize",
        "episodes.record.gym": "RecordEpisodes",
        "corpora.shuffled": "ShuffledRows",
        "timeline.signal": "Signal",
        "search.moments.trajectories": "TrajectoryIngestor TrajectoryRetriever",
        "search.store": "VectorStore",
        "formats.episodedir.documents": "VideoOptions",
        "formats.wshard.episode": "Channel WShardEpisode",
        "episodes.record.steps": "WShardStreamWriter",
        "errors": "WarpError",
        "loading.windows": "Windows",
        "_api.checking": "check_dataset",
        "_api": "dataset keep_decoded load open open_corpus open_dataset open_vectors",
        "_api.episodes": (
            "chunk_episode load_wshard open_episode open_episodes open_recordings pack_episode unpack_episode"
        ),
        "episodes.demo_robot": "demo_data demo_records",
        "_api.embedding": "embed",
        "_api.importing": "export_episodes import_episodes lerobot_dataset",
        "_api.recording": "record",
        "_api.similar": "find_duplicates find_similar rank_novelty",
        "episodes.salvage.recordings": "salvage",
        "formats.wshard.save": "save_wshard",
        "viewer.server": "view",
    }
)
"""Names for newcomers, by the module they live in; a module is imported when its name is used."""

_ELSEWHERE = _by_name(
    {
        "formats.gamsae": "ActivationShardWriter encode_shard_bytes",
        "timeline": "ArraySignal EpisodeView EpisodeWriter SignalWriter",
        "catalog": "AudioRef EpisodeFileRef FileRef ImageRef Table VideoRef read_refs",
        "errors": (
            "AuthenticationError ConflictError DatasetNotFoundError ManifestCorruptedError PermissionError"
        ),
        "loading": "Batch masked_mean",
        "ordering": "Cascade row_in_fraction",
        "formats.wshard": (
            "ChunkList ChunkedEpisodeReader ChunkedEpisodeWriter Compression Timebase compute_crc32 "
            "compute_error_residual dequantize_delta error_residual name_hash pack_bool_mask "
            "pack_multidim_residual_bitmask pack_residual pack_residual_bits quantize_delta "
            "reconstruct_from_omen_and_delta sign2nddiff unpack_bool_mask "
            "unpack_multidim_residual_bitmask unpack_multidim_residual_bits unpack_residual "
            "unpack_residual_bits validate_chunk_continuity"
        ),
        "episodes": (
            "DiskEpisode LocalDatasetWriter LossReceipt Recorder SimpleSignal SimpleSignalWriter "
            "VideoSignal VideoSignalWriter"
        ),
        "search": "EpisodeRef SigningKey",
        "corpora": "FractionRows RowBatch RowWarmCache SideTable StoreShardSource WarmRows",
        "viewer": "Viewer export_site",
        "episodes.collection.replay": "replay",
    }
)
"""Further names, by the package that lists them; here too, because documents and programs call them so."""

_PACKAGES = (
    "catalog", "convert", "corpora", "episodes", "errors", "formats", "loading", "ordering", "ray", "search",
    "stores", "timeline", "viewer",
)  # fmt: skip

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"warpdata.{name}")
    home = _HOMES.get(name) or _ELSEWHERE.get(name)
    if home is None:
        near = importlib.import_module("warpdata.errors").nearest(name, [*_HOMES, *_PACKAGES])
        raise AttributeError(f"module 'warpdata' has no attribute {name!r}.{near}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
