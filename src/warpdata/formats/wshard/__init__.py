"""Episode shards: the SHRD container, its blocks, and what the blocks of an episode mean."""

from warpdata.bytekit.lazy import lazy_names
from warpdata.formats.wshard.reader import ShardReader as ShardReader

_HOMES = {
    "episode": "Channel WShardEpisode",
    "chunks": "ChunkList ChunkedEpisodeReader ChunkedEpisodeWriter validate_chunk_continuity",
    "layout": "compute_crc32 name_hash",
    "residual": (
        "compute_error_residual dequantize_delta error_residual pack_bool_mask pack_multidim_residual_bitmask "
        "pack_residual pack_residual_bits quantize_delta reconstruct_from_omen_and_delta sign2nddiff "
        "unpack_bool_mask unpack_multidim_residual_bitmask unpack_multidim_residual_bits unpack_residual "
        "unpack_residual_bits"
    ),
    "save": "Compression ShardWriter save_wshard",
    "schema": "Timebase",
}

__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names.split()}
)
