"""Record, open, salvage and edit episodes on this machine."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DiskEpisode": "warpdata.episodes.disk_episode",
        "DiskEpisodeWriter": "warpdata.episodes.disk_writer",
        "Episodes": "warpdata.episodes.collection",
        "LocalDataset": "warpdata.episodes.local",
        "LocalDatasetWriter": "warpdata.episodes.local",
        "LossReceipt": "warpdata.episodes.receipt",
        "RecordEpisodes": "warpdata.episodes.gym",
        "Recorder": "warpdata.episodes.record",
        "SimpleSignal": "warpdata.episodes.signals",
        "SimpleSignalWriter": "warpdata.episodes.signal_writers",
        "VideoOptions": "warpdata.formats.episodedir.images",
        "VideoSignal": "warpdata.episodes.signals",
        "VideoSignalWriter": "warpdata.episodes.signal_writers",
        "WShardStreamWriter": "warpdata.episodes.stream_writer",
        "pack_episode": "warpdata.episodes.packed",
        "unpack_episode": "warpdata.episodes.packed",
    },
)
