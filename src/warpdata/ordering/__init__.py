"""Pure order: which row comes when, as a function of (seed, epoch, shape); epochs and their torch datasets over it."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Cascade": "warpdata.ordering.fraction",
        "row_in_fraction": "warpdata.ordering.fraction",
    },
)
