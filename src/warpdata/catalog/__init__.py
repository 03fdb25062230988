"""Published datasets: build, publish, resolve, read. A name is enough to use one, from anywhere."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AudioRef": "warpdata.catalog.read.refs",
        "Dataset": "warpdata.catalog.dataset",
        "DatasetBuilder": "warpdata.catalog.build.builder",
        "EpisodeFileRef": "warpdata.catalog.read.refs",
        "FileRef": "warpdata.catalog.read.refs",
        "ImageRef": "warpdata.catalog.read.refs",
        "Table": "warpdata.catalog.table",
        "VideoRef": "warpdata.catalog.read.refs",
        "read_refs": "warpdata.catalog.read.refs",
    },
)
