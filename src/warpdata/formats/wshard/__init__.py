"""Episode shards: the SHRD container, its blocks, and what the blocks of an episode mean."""

from warpdata.bytekit.lazy import lazy_names
from warpdata.formats.wshard.reader import ShardReader as ShardReader
from warpdata.formats.wshard.writer import ShardWriter as ShardWriter

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Channel": "warpdata.formats.wshard.channel",
        "ChunkList": "warpdata.formats.wshard.chunks",
        "ChunkedEpisodeReader": "warpdata.formats.wshard.chunks",
        "ChunkedEpisodeWriter": "warpdata.formats.wshard.chunks",
        "Compression": "warpdata.formats.wshard.writer",
        "Timebase": "warpdata.formats.wshard.schema",
        "WShardEpisode": "warpdata.formats.wshard.episode",
        "compute_crc32": "warpdata.formats.wshard.layout",
        "compute_error_residual": "warpdata.formats.wshard.residual",
        "dequantize_delta": "warpdata.formats.wshard.residual",
        "error_residual": "warpdata.formats.wshard.residual",
        "name_hash": "warpdata.formats.wshard.layout",
        "pack_bool_mask": "warpdata.formats.wshard.residual",
        "pack_multidim_residual_bitmask": "warpdata.formats.wshard.residual",
        "pack_residual": "warpdata.formats.wshard.residual",
        "pack_residual_bits": "warpdata.formats.wshard.residual",
        "quantize_delta": "warpdata.formats.wshard.residual",
        "reconstruct_from_omen_and_delta": "warpdata.formats.wshard.residual",
        "save_wshard": "warpdata.formats.wshard.save",
        "sign2nddiff": "warpdata.formats.wshard.residual",
        "unpack_bool_mask": "warpdata.formats.wshard.residual",
        "unpack_multidim_residual_bitmask": "warpdata.formats.wshard.residual",
        "unpack_multidim_residual_bits": "warpdata.formats.wshard.residual",
        "unpack_residual": "warpdata.formats.wshard.residual",
        "unpack_residual_bits": "warpdata.formats.wshard.residual",
        "validate_chunk_continuity": "warpdata.formats.wshard.chunks",
    },
)
