"""Raw frames of several cameras as video: each camera by a thread of its own, as many at once as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.system import usable_cores
from warpdata.episodes.record.camera import VideoFile
from warpdata.episodes.record.threads import JobQueue, Workers

_BLOCKS_AHEAD = 3
"""Blocks of one camera that may wait for its encoder."""

Block = tuple[NDArray[Any], Sequence[int]]
"""Frames, and the time of each."""


@dataclass(frozen=True, slots=True)
class RawCamera:
    """A camera to be encoded."""

    open: Callable[[], VideoFile]
    """Opens its encoder, when its turn has come."""
    blocks: Iterator[Block]
    """Read by the caller's thread, a block of each camera in turn."""
    finish: Callable[[VideoFile], None]
    """Is given the file when all frames are in it."""


def encode_cameras(cameras: Sequence[RawCamera]) -> None:
    """Encode all frames of all cameras; where one fails, what is open is let go of and the reason is raised."""
    together = usable_cores()  # an encoder takes as much memory as many frames
    for first in range(0, len(cameras), together):
        _encode_together(cameras[first : first + together])


def _encode_together(cameras: Sequence[RawCamera]) -> None:
    workers = Workers("warp-encoder", len(cameras))
    files: list[VideoFile] = []
    queues: list[JobQueue] = []
    try:
        for camera in cameras:
            files.append(camera.open())
            queues.append(workers.queue(_BLOCKS_AHEAD))
            workers.start()
        waiting = list(zip(cameras, files, queues, strict=True))
        while waiting:
            waiting = [each for each in waiting if _hand_over(*each)]
        for queue in queues:
            queue.finish()
        for camera, file in zip(cameras, files, strict=True):
            camera.finish(file)
    except BaseException:
        for queue in queues:
            queue.cancel()
        for file in files:
            file.close()
        raise
    finally:
        workers.close()


def _hand_over(camera: RawCamera, file: VideoFile, queue: JobQueue) -> bool:
    """Give the next block to the encoder; where there is none it is drained, at the same time as the others."""
    block = next(camera.blocks, None)
    queue.submit(file.drain if block is None else partial(_encode, file, *block))
    return block is not None


def _encode(file: VideoFile, frames: NDArray[Any], times: Sequence[int]) -> None:
    for frame, ts_ns in zip(frames, times, strict=True):
        file.encode(np.ascontiguousarray(frame), ts_ns)
