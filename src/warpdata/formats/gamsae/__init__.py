"""GAMSAE01: one shard of fixed-width activation rows. SPEC.md is the specification."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ActivationShardWriter": "warpdata.formats.gamsae.shard",
        "encode_shard_bytes": "warpdata.formats.gamsae.shard",
    },
)
