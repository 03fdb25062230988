"""Record, open, salvage and edit episodes on this machine."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DiskEpisode": "warpdata.episodes.sources.disk_episode",
        "DiskEpisodeWriter": "warpdata.episodes.record.recorder",
        "Episodes": "warpdata.episodes.collection.episodes",
        "LiveEpisode": "warpdata.episodes.salvage.live",
        "LocalDataset": "warpdata.episodes.collection.local",
        "LocalDatasetWriter": "warpdata.episodes.record.recorder",
        "LossReceipt": "warpdata.episodes.salvage.receipt",
        "RecordEpisodes": "warpdata.episodes.record.gym",
        "Recorder": "warpdata.episodes.record.recorder",
        "RecordingStatus": "warpdata.episodes.record.status",
        "SimpleSignal": "warpdata.episodes.sources.disk_episode",
        "SimpleSignalWriter": "warpdata.episodes.record.recorder",
        "VideoOptions": "warpdata.formats.episodedir.documents",
        "VideoSignal": "warpdata.episodes.sources.cameras",
        "VideoSignalWriter": "warpdata.episodes.record.recorder",
        "WShardStreamWriter": "warpdata.episodes.record.steps",
        "open_live": "warpdata.episodes.collection.local",
        "pack_episode": "warpdata.episodes.forms.shard",
        "unpack_episode": "warpdata.episodes.forms.shard",
    },
)
