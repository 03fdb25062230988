"""Search: vectors by similarity, in one file beside the data."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "EpisodeRef": "warpdata.search.moments.trajectories",
        "SigningKey": "warpdata.formats.rvf.signing",
        "TrajectoryIngestor": "warpdata.search.moments.trajectories",
        "TrajectoryRetriever": "warpdata.search.moments.trajectories",
        "VectorStore": "warpdata.search.store",
    },
)
