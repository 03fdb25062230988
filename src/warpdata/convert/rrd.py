"""Write episodes as Rerun recordings (`.rrd`), to be looked at in its viewer. The adapter of rerun-sdk."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_folder, writable_path
from warpdata.convert.exporting import source_id
from warpdata.convert.importing import Progress
from warpdata.convert.place import Place
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.errors import ConflictError, FormatError, MissingExtraError
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

TIMELINE = "time"
_MEDIA = {"mjpeg": "image/jpeg", "png": "image/png"}
_BLOCK_BYTES = 8 << 20
_APPLICATION = "warpdata"


def matches(_: Place) -> bool:
    """Recordings of Rerun are written, not read: its viewer and its SDK read them."""
    return False


def read(source: Any) -> Episodes:
    """Not possible: the format changes with every release of its SDK."""
    raise FormatError(
        f"{source} would have to be read by Rerun", hint="Export it with rerun-sdk, as MCAP or Parquet."
    )


def write(
    episodes: Episodes, target: str | os.PathLike[str], *, progress: Progress | None = None
) -> ConversionReceipt:
    """Write every episode as an `.rrd` file below a new folder, or as the one file that `target` names.

    Signals are entities under their names on the timeline `time`. Numbers are scalars (`float64`), JPEG and PNG
    pictures are copied, other cameras are raw images, text is a log. Bytes have no place.
    """
    rerun = _rerun()
    episodes = under_own_names(episodes)
    receipt = ConversionReceipt.of_export("rrd", episodes, target, str(rerun.__version__))
    if os.fspath(target).endswith(".rrd"):
        if len(episodes) != 1:
            raise ValueError(f"{target} is one file, and there are {len(episodes)} episodes: name a folder")
        path = Path(target)
        if path.exists():
            raise ConflictError("the file exists already", path=path)
        with commit_folder(path.with_name(f".{path.name}.folder"), durable=False) as folder:
            _write_file(rerun, episodes[0], folder / path.name, receipt, is_alone=True)
            os.rename(folder / path.name, writable_path(path))
        path.with_name(f".{path.name}.folder").rmdir()
        return receipt
    with commit_folder(target) as folder:
        for done, episode in enumerate(episodes):
            name = re.sub(r"[^A-Za-z0-9_.=+@-]", "_", source_id(episode)).lstrip(".") or "episode"
            path = folder / f"{name}.rrd"
            if path.exists():
                path = folder / f"{name}_{done}.rrd"
            _write_file(rerun, episode, path, receipt)
            if progress is not None:
                progress(done + 1, len(episodes))
        (folder / RECEIPT_FILE).write_bytes(receipt.document())
    return receipt


def _rerun() -> Any:
    try:
        import rerun
    except ImportError:
        raise MissingExtraError.for_extra("rerun-sdk", "rerun") from None
    return rerun


def _write_file(
    rerun: Any, episode: Episode, path: Path, receipt: ConversionReceipt, *, is_alone: bool = False
) -> None:
    """One episode as a file; one that is all of the target keeps the receipt too."""
    recording = rerun.RecordingStream(_APPLICATION, recording_id=source_id(episode))
    recording.save(str(path))
    notes = {}
    static = json.dumps(dict(episode.static), default=str)
    recording.log("static", rerun.TextDocument(static, media_type="application/json"), static=True)
    for name, signal in episode.signals.items():
        notes[name] = _send(rerun, recording, name, signal)
    receipt.add(notes)
    if is_alone:
        told = rerun.TextDocument(receipt.document().decode(), media_type="application/json")
        recording.log("receipt", told, static=True)
    recording.flush()
    recording.disconnect()


def _send(rerun: Any, recording: Any, name: str, signal: Signal) -> Note:
    meta = signal.meta
    if meta.kind == "bytes" or not len(signal):
        return note_of(signal, "dropped", "a recording of Rerun has no place for it")
    if meta.kind == "image":
        return _send_camera(rerun, recording, name, signal)
    for times, values in _blocks(signal):
        index = rerun.TimeColumn(TIMELINE, timestamp=times.astype("datetime64[ns]"))
        if meta.kind == "text":
            columns = rerun.TextLog.columns(text=list(values))
        else:
            flat = np.asarray(values).astype(np.float64).reshape(len(values), -1)
            columns = rerun.Scalars.columns(scalars=flat.reshape(-1)).partition([flat.shape[1]] * len(flat))
        recording.send_columns(name, indexes=[index], columns=columns)
    is_same = meta.kind == "text" or (meta.dtype == np.float64 and len(meta.shape) < 2)
    if meta.names is not None and meta.kind != "text":
        recording.log(name, rerun.SeriesLines(names=list(meta.names)), static=True)
    return note_of(signal) if is_same else note_of(signal, "retyped", "float64 scalars, one behind the other")


def _send_camera(rerun: Any, recording: Any, name: str, signal: Signal) -> Note:
    run = encoded_run(signal)
    if run is not None and run.stream.codec in _MEDIA and bool(run.shown.all()):
        for times, pictures in _pictures(run):
            index = rerun.TimeColumn(TIMELINE, timestamp=times.astype("datetime64[ns]"))
            media = [_MEDIA[run.stream.codec]] * len(pictures)
            recording.send_columns(
                name, indexes=[index], columns=rerun.EncodedImage.columns(blob=pictures, media_type=media)
            )
        return note_of(signal)
    is_depth = signal.meta.dtype == np.uint16
    for times, frames in _blocks(signal):
        for ts_ns, frame in zip(times.tolist(), frames, strict=True):
            recording.set_time(TIMELINE, timestamp=np.datetime64(ts_ns, "ns"))
            recording.log(name, rerun.DepthImage(frame) if is_depth else rerun.Image(frame))
    if run is None or run.stream.codec == "ffv1":
        return note_of(signal)
    return note_of(signal, "reencoded", f"decoded from {run.stream.codec} to pixels")


def _pictures(run: EncodedRun) -> Iterator[tuple[NDArray[np.int64], list[bytes]]]:
    held: list[bytes] = []
    size = start = 0
    for number, data in enumerate(run.packets(), 1):
        held.append(data)
        size += len(data)
        if size >= _BLOCK_BYTES or number == len(run):
            yield run.ts_ns[start:number], held
            held, size, start = [], 0, number


def _blocks(signal: Signal) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    step = max(1, min(1 << 15, _BLOCK_BYTES // max(1, signal.meta.row_bytes)))
    for start in range(0, len(signal), step):
        rows = range(start, min(start + step, len(signal)))
        yield np.asarray(signal._ts_in(rows)), signal.rows(rows.start, rows.stop)
