"""Published datasets: build, publish, resolve, read. A name is enough to use one, from anywhere."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AudioRef": "warpdata.catalog.refs",
        "Dataset": "warpdata.catalog.dataset",
        "DatasetBuilder": "warpdata.catalog.builder",
        "EpisodeFileRef": "warpdata.catalog.refs",
        "FileRef": "warpdata.catalog.refs",
        "ImageRef": "warpdata.catalog.refs",
        "Table": "warpdata.catalog.table",
        "VideoRef": "warpdata.catalog.refs",
        "read_refs": "warpdata.catalog.refs",
    },
)
