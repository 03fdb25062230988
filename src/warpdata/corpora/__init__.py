"""Activation corpora: harvest rows, read them in a fixed order, shuffle them in a reproducible one."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Cascade": "warpdata.ordering.fraction",
        "CorpusWriter": "warpdata.corpora.writer",
        "FractionRows": "warpdata.corpora.source",
        "MmapShardSource": "warpdata.corpora.source",
        "RowBatch": "warpdata.corpora.rows",
        "RowWarmCache": "warpdata.corpora.warm_cache",
        "ShuffledRows": "warpdata.corpora.shuffled",
        "SideTable": "warpdata.corpora.side_table",
        "StoreShardSource": "warpdata.corpora.source",
        "WarmRows": "warpdata.corpora.warm_cache",
        "encode_shard_bytes": "warpdata.formats.gamsae.shard",
        "row_in_fraction": "warpdata.ordering.fraction",
    },
)
