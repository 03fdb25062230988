"""From published tables, episodes and corpora to training steps: batches, order, ranks and states."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CorpusSource": "warpdata.loading.corpora",
        "Batch": "warpdata.loading.batch",
        "Field": "warpdata.loading.field",
        "Loader": "warpdata.loading.loader",
        "Mixture": "warpdata.loading.mixture",
        "Normalization": "warpdata.loading.statistics",
        "Normalize": "warpdata.loading.statistics",
        "Windows": "warpdata.loading.windows",
        "masked_mean": "warpdata.loading.batch",
    },
)
