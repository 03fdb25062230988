"""Search: vectors by similarity, in one file beside the data."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "EpisodeRef": "warpdata.search.trajectories",
        "SigningKey": "warpdata.formats.rvf.signing",
        "TrajectoryIngestor": "warpdata.search.trajectories",
        "TrajectoryRetriever": "warpdata.search.trajectories",
        "VectorStore": "warpdata.search.store",
    },
)
