"""The verb `wd.record`: a recorder, with the name of a shared episode from the environment."""

from __future__ import annotations

import os
from typing import Unpack

from warpdata.episodes.record.recorder import Recorder, RecorderKeywords
from warpdata.settings import Settings


def record(target: str | os.PathLike[str], **options: Unpack[RecorderKeywords]) -> Recorder:
    """Record one episode: `with wd.record(target) as rec`. See `Recorder` for the options.

    Where `episode` is not given, the environment variable WARP_EPISODE names an episode to share with other processes.
    """
    if options.get("episode") is None:
        options["episode"] = Settings.from_env().episode
    return Recorder(target, **options)
