"""The verb `wd.record`: a recorder, with the name of a shared episode from the environment."""

from __future__ import annotations

import os
from typing import Unpack

from warpdata.catalog.names import parse_size
from warpdata.episodes.record.recorder import Recorder, RecorderKeywords
from warpdata.settings import Settings


def record(
    target: str | os.PathLike[str], *, min_free: str | int = 0, **options: Unpack[RecorderKeywords]
) -> Recorder:
    """Record one episode: `with wd.record(target) as rec`. See `Recorder` for the options.

    Where `episode` is not given, the environment variable WARP_EPISODE names an episode to share with other processes.
    `min_free` may be a text such as "5GB".
    """
    if options.get("episode") is None:
        options["episode"] = Settings.from_env().episode
    return Recorder(target, min_free=parse_size(min_free) if min_free else 0, **options)
