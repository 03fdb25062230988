"""The verb `wd.record`: a recorder, with the name of a shared episode from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from warpdata.catalog.access import parse_size
from warpdata.episodes.record.recorder import Recorder
from warpdata.episodes.record.status import OnSlow
from warpdata.episodes.record.values import Clock
from warpdata.errors import suggests
from warpdata.formats.episodedir.documents import VideoOptions
from warpdata.formats.wshard.save import CompressionChoice
from warpdata.settings import Settings
from warpdata.timeline.source import Outcome


@suggests
def record(
    target: str | os.PathLike[str],
    *,
    static: Mapping[str, Any] | None = None,
    clock: Clock = "monotonic",
    step_clock: str | None = None,
    outcome: Outcome = "same",
    video: VideoOptions | None = None,
    durability: str = "100ms",
    compression: CompressionChoice = None,
    compat: str = "default",
    overwrite: bool = False,
    episode: str | None = None,
    min_free: str | int = 0,
    slow_ms: float = 100.0,
    on_slow: OnSlow | None = None,
) -> Recorder:
    """Record one episode: `with wd.record(target) as rec`. See `Recorder` for the options.

    Where `episode` is not given, the environment variable WARP_EPISODE names an episode to share with other processes.
    `min_free` may be a text such as "5GB".
    """
    return Recorder(
        target,
        static=static,
        clock=clock,
        step_clock=step_clock,
        outcome=outcome,
        video=video,
        durability=durability,
        compression=compression,
        compat=compat,
        overwrite=overwrite,
        episode=Settings.from_env().episode if episode is None else episode,
        min_free=parse_size(min_free) if min_free else 0,
        slow_ms=slow_ms,
        on_slow=on_slow,
    )
