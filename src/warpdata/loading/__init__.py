"""From published tables and episodes to training steps: batches, order, ranks and states."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Batch": "warpdata.loading.windows.batch",
        "Field": "warpdata.loading.windows.field",
        "Loader": "warpdata.loading.windows.loader",
        "Mixture": "warpdata.loading.windows.mixture",
        "Normalization": "warpdata.loading.windows.statistics",
        "Windows": "warpdata.loading.windows.windows",
        "masked_mean": "warpdata.loading.windows.batch",
    },
)
