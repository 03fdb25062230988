"""Write episodes as Rerun recordings (`.rrd`) for its viewer. The adapter of rerun-sdk."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_file
from warpdata.convert.exporting import Progress, source_id, write_episode_files
from warpdata.convert.receipt import ConversionReceipt, Note, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import FormatError, MissingExtraError
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import RowType
from warpdata.timeline.signal import Signal

TIMELINE = "time"
_MEDIA_TYPES = {"mjpeg": "image/jpeg", "png": "image/png"}
_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 1 << 15


def read(source: Any) -> Episodes:
    """Not supported: the format changes with every release of the SDK."""
    raise FormatError(
        f"Rerun recordings cannot be read: {source}", hint="Export it with rerun-sdk, as MCAP or Parquet."
    )


def write(
    episodes: Episodes, target: str | os.PathLike[str], *, progress: Progress | None = None
) -> ConversionReceipt:
    """Write every episode as an `.rrd` file below a new folder, or as the one file that `target` names.

    Signals are entities under their names on the timeline `time`. Numbers are scalars (`float64`), JPEG and PNG
    pictures are copied, other cameras are raw images, text is a log. Of values of varying length those with rows of
    three numbers or more are points, others tensors; sound is a curve of its samples. Bytes are dropped.
    """
    version = str(_load_rerun().__version__)
    return write_episode_files("rrd", episodes, target, _write_file, version=version, progress=progress)


def _load_rerun() -> Any:
    try:
        import rerun
    except ImportError:
        raise MissingExtraError.for_extra("rerun-sdk", "rerun") from None
    return rerun


def _write_file(episode: Episode, path: Path, receipt: ConversionReceipt | None) -> dict[str, Note]:
    rerun = _load_rerun()
    with (
        commit_file(path, replace=False, durable=receipt is not None) as out,
        tempfile.TemporaryDirectory(dir=path.parent, prefix=".tmp-") as folder,
    ):
        recording = rerun.RecordingStream("warpdata", recording_id=source_id(episode))
        recording.save(f"{folder}/recording.rrd")
        static = json.dumps(dict(episode.static), default=str)
        recording.log("static", rerun.TextDocument(static, media_type="application/json"), static=True)
        notes = {name: _send_signal(rerun, recording, name, one) for name, one in episode.signals.items()}
        if receipt is not None:
            receipt.add(notes)
            document = rerun.TextDocument(receipt.document().decode(), media_type="application/json")
            recording.log("receipt", document, static=True)
        recording.flush()
        recording.disconnect()
        with open(f"{folder}/recording.rrd", "rb") as file:
            shutil.copyfileobj(file, out, _BLOCK_BYTES)
    return notes


def _send_signal(rerun: Any, recording: Any, name: str, signal: Signal) -> Note:
    meta = signal.meta
    if meta.kind == "bytes" or not len(signal):
        return note_of(signal, "dropped", "a recording of Rerun has no place for it")
    if meta.rows is not None:
        send = _send_sound if meta.kind == "sound" else _send_ragged
        return send(rerun, recording, name, signal, meta.rows)
    if meta.kind == "image":
        return _send_camera(rerun, recording, name, signal)
    for times, values in _blocks(signal):
        if meta.kind == "text":
            columns = rerun.TextLog.columns(text=list(values))
        else:
            flat = np.asarray(values).astype(np.float64).reshape(len(values), -1)
            columns = rerun.Scalars.columns(scalars=flat.reshape(-1)).partition([flat.shape[1]] * len(flat))
        index = rerun.TimeColumn(TIMELINE, timestamp=times.astype("datetime64[ns]"))
        recording.send_columns(name, indexes=[index], columns=columns)
    is_same = meta.kind == "text" or (meta.dtype == np.float64 and len(meta.shape) < 2)
    if meta.names is not None and meta.kind != "text":
        recording.log(name, rerun.SeriesLines(names=list(meta.names)), static=True)
    return note_of(signal) if is_same else note_of(signal, "retyped", "flat list of float64 scalars")


def _send_ragged(rerun: Any, recording: Any, name: str, signal: Signal, kind: RowType) -> Note:
    """A point cloud, where the first three numbers of a row are its place; other values as tensors."""
    is_cloud = len(kind.shape) == 1 and kind.shape[0] >= 3
    for value, ts_ns in signal:
        recording.set_time(TIMELINE, timestamp=np.datetime64(ts_ns, "ns"))
        is_empty = not len(value)  # a tensor without numbers cannot be logged
        shown = rerun.Points3D(value[:, :3].astype(np.float32)) if is_cloud else rerun.Tensor(value)
        recording.log(name, rerun.Clear(recursive=False) if is_empty and not is_cloud else shown)
    if not is_cloud or kind == RowType(np.dtype(np.float32), (3,)):
        return note_of(signal)
    return note_of(signal, "retyped", "points of three float32, without further columns")


def _send_sound(rerun: Any, recording: Any, name: str, signal: Signal, kind: RowType) -> Note:
    """Every sample as a scalar at its own time, with one curve for each channel."""
    step_ns = 1e9 / float(signal.meta.rate_hz or 1)
    for value, ts_ns in signal:
        times = ts_ns + np.rint(np.arange(len(value)) * step_ns).astype(np.int64)
        flat = value.astype(np.float64).reshape(len(value), -1)
        columns = rerun.Scalars.columns(scalars=flat.reshape(-1)).partition([flat.shape[1]] * len(flat))
        index = rerun.TimeColumn(TIMELINE, timestamp=times.astype("datetime64[ns]"))
        recording.send_columns(name, indexes=[index], columns=columns)
    return note_of(signal, "retyped", f"float64 scalars of {kind.dtype}, each at its own time")


def _send_camera(rerun: Any, recording: Any, name: str, signal: Signal) -> Note:
    run = encoded_run(signal)
    if run is not None and run.stream.codec in _MEDIA_TYPES and bool(run.shown.all()):
        pictures: list[bytes] = []
        size = 0
        for count, data in enumerate(run.packets(), 1):
            pictures.append(data)
            size += len(data)
            if size >= _BLOCK_BYTES or count == len(run):
                times = run.ts_ns[count - len(pictures) : count].astype("datetime64[ns]")
                media_types = [_MEDIA_TYPES[run.stream.codec]] * len(pictures)
                columns = rerun.EncodedImage.columns(blob=pictures, media_type=media_types)
                index = rerun.TimeColumn(TIMELINE, timestamp=times)
                recording.send_columns(name, indexes=[index], columns=columns)
                pictures, size = [], 0
        return note_of(signal)
    is_depth = signal.meta.dtype == np.uint16 and len(signal.meta.shape) == 2
    archetype = rerun.DepthImage if is_depth else rerun.Image
    for times, frames in _blocks(signal):
        for ts_ns, frame in zip(times.tolist(), frames, strict=True):
            recording.set_time(TIMELINE, timestamp=np.datetime64(ts_ns, "ns"))
            recording.log(name, archetype(frame))
    if run is None or run.stream.codec == "ffv1":
        return note_of(signal)
    return note_of(signal, "reencoded", f"decoded from {run.stream.codec} to pixels")


def _blocks(signal: Signal) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    for rows in signal.runs(_BLOCK_BYTES, _BLOCK_ROWS):
        yield np.asarray(signal._ts_in(rows)), signal.rows(rows.start, rows.stop)
