"""The meaning of time, pure: signals as step functions of integer nanoseconds, episodes, views, sampling."""

from warpdata.bytekit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ArraySignal": "warpdata.timeline.memory",
        "Episode": "warpdata.timeline.episode",
        "EpisodeView": "warpdata.timeline.episode",
        "EpisodeWriter": "warpdata.timeline.writing",
        "Signal": "warpdata.timeline.signal",
        "SignalWriter": "warpdata.timeline.writing",
    },
)
