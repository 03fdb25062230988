"""An episode of any source as an episode directory: encoded frames as they are, numbers exactly, nothing journaled."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.commit import commit_file, commit_folder, map_os_errors, write_file
from warpdata.bytekit.dtype import dtype_of
from warpdata.bytekit.ranges import RangeReader
from warpdata.episodes.camera import VideoFile
from warpdata.episodes.disk_writer import last_documents
from warpdata.episodes.encode_cameras import RawCamera, encode_cameras
from warpdata.episodes.encoded import EncodedCamera, encoded_camera, encoded_parts
from warpdata.episodes.statistics import ClockStatistics, SharedClocks
from warpdata.episodes.tables import TableFile
from warpdata.errors import FormatError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import FileSum, plain_static, read_bytes, read_meta
from warpdata.formats.episodedir.frame_index import parse_frame_index
from warpdata.formats.episodedir.images import FrameShape, VideoOptions, suffix_for
from warpdata.formats.episodedir.names import check_name, signal_file
from warpdata.formats.episodedir.signal_file import Description
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 14
_COPY_BYTES = 1 << 20
"""Few calls, and what was read is still in the cache of the processor when it is written."""


def copy_to_directory(
    episode: Episode, directory: Path, meta: Mapping[str, Any], *, video: VideoOptions | None = None
) -> None:
    """Write an episode as a new directory, which appears whole or not at all; power may still take it.

    Frames that are not encoded become lossless video, unless `video` says how to encode them.
    """
    with map_os_errors(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
    with commit_folder(directory, durable=False) as folder:
        signals: dict[str, Any] = {}
        clocks = SharedClocks()
        raw: list[RawCamera] = []
        for number, (name, signal) in enumerate(episode.signals.items()):
            signal_file(folder, check_name(name)).parent.mkdir(parents=True, exist_ok=True)
            part = folder / f".{number}.part"
            if _is_raw_camera(signal):
                signals[name] = {}
                raw.append(_raw_camera(folder, part, name, signal, video, signals))
            else:
                signals[name] = _put(folder, part, name, signal, clocks)
        encode_cameras(raw)
        static = {check_name(name): plain_static(name, value) for name, value in episode.static.items()}
        for path, data in last_documents(folder, meta, static, signals, None).items():
            write_file(path, data, durable=False)


def is_intact(directory: Path) -> bool:
    """Whether a directory has all its files at their stated sizes: the loss of power can leave some empty."""
    try:
        meta = read_meta(directory)
        for name, about in meta["signals"].items():
            suffix = layout.SIGNAL_SUFFIX
            if about["kind"] == "image":
                video = signal_file(directory, name, suffix_for(str(about["codec"])))
                if video.stat().st_size != about["video_bytes"]:
                    return False
                suffix = layout.FRAMES_SUFFIX
            if signal_file(directory, name, suffix).stat().st_size != about["file"]["bytes"]:
                return False
        return bool((directory / layout.STATIC_FILE).stat().st_size == meta["static_file"]["bytes"])
    except (OSError, FormatError, KeyError, TypeError, AttributeError):
        return False


def _is_raw_camera(signal: Signal) -> bool:
    is_image = signal.meta.kind == "image" and len(signal) > 0
    return is_image and encoded_parts(signal) is None and holds_frames(signal)


def _put(folder: Path, part: Path, name: str, signal: Signal, clocks: SharedClocks) -> dict[str, Any]:
    """Write one signal whose frames, if it has any, are encoded; returns what meta.json says of it."""
    if signal.meta.kind == "image" and len(signal):
        camera = encoded_camera(name, signal)
        if camera is not None:
            return _copied(folder, name, camera, clocks)
    table = TableFile(part, described(signal), clock=clocks.of(signal.timestamps), recorded=False)
    for rows in _blocks(signal):
        table.write(np.array(signal._ts_in(rows)), np.array(signal._values_in(rows)))
    table.complete()
    os.replace(table.path, signal_file(folder, name))
    return table.facts()


def described(signal: Signal) -> Description:
    """The description of a signal in a parquet file; pictures that no video can hold are tensors."""
    meta = signal.meta
    kind = "tensor" if meta.kind == "image" else meta.kind
    dtype = kind if meta.is_object else dtype_of(meta.dtype).name
    return Description(
        kind, dtype, meta.shape, meta.units, meta.names, meta.role, meta.of, meta.model, meta.clock
    )


def holds_frames(signal: Signal) -> bool:
    """Whether values of this shape and type can be frames of a video."""
    meta = signal.meta
    try:
        FrameShape.of_values(meta.shape, meta.dtype)
    except ValueError:
        return False
    return True


def _blocks(signal: Signal) -> Iterator[range]:
    step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, signal.meta.row_bytes)))
    for start in range(0, len(signal), step):
        yield range(start, min(start + step, len(signal)))


def _copied(folder: Path, name: str, camera: EncodedCamera, clocks: SharedClocks) -> dict[str, Any]:
    frames = read_bytes(camera.frames, max_bytes=1 << 33)
    index = camera.index or parse_frame_index(frames, f"{name} (index)")
    _copy(camera.video, signal_file(folder, name, camera.suffix))
    with commit_file(signal_file(folder, name, layout.FRAMES_SUFFIX), durable=False) as out:
        out.write(frames)
    clock = clocks.of(index.shown_ts_ns)
    total = FileSum.of(frames)
    return {
        **index.description.to_json(), **clock.to_json(), "video_bytes": camera.video.size,
        "codec": index.stream.codec if index.stream else None,
        "file": {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"},
    }  # fmt: skip


def _copy(source: RangeReader, target: Path) -> None:
    with commit_file(target, durable=False) as out:
        for start in range(0, source.size, _COPY_BYTES):
            out.write(source.read(start, min(start + _COPY_BYTES, source.size)))
    source.close()


def _raw_camera(
    folder: Path, part: Path, name: str, signal: Signal, video: VideoOptions | None, found: dict[str, Any]
) -> RawCamera:
    """A camera whose frames are to be encoded; `found` is then told what meta.json says of it."""
    meta = signal.meta
    shape = FrameShape.of_values(meta.shape, meta.dtype)
    clock = ClockStatistics()
    clock.add(np.array(signal.timestamps))
    fps = float(clock.to_json().get("rate_hz", 30.0))
    options = replace(video or VideoOptions(codec="ffv1"), fps=min(max(fps, 0.001), 1000.0))
    about = replace(described(signal), kind="image")
    blocks = (
        (np.asarray(signal._values_in(rows)), np.asarray(signal._ts_in(rows)).tolist())
        for rows in _blocks(signal)
    )

    def finish(file: VideoFile) -> None:
        names = (signal_file(folder, name, suffix) for suffix in (file.suffix, layout.FRAMES_SUFFIX))
        found[name] = file.commit(*names)

    return RawCamera(
        partial(VideoFile, part, shape, options, description=about, durable=False), blocks, finish
    )


__all__ = ["copy_to_directory", "described", "holds_frames", "is_intact"]
