"""Sound as WAV files. Out only: a folder per episode, a file per sound signal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

from warpdata.bytekit.io.commit import commit_folder, put_file
from warpdata.convert.exporting import OnError, Progress, check_on_error, export_each, source_id
from warpdata.convert.plain_names import with_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import ConflictError, UnsupportedDtypeError
from warpdata.timeline.episode import Episode
from warpdata.timeline.ragged import join_sound


def read(source: Any) -> NoReturn:
    """Raise: an episode needs times."""
    fact = f"WAV files are not read as episodes: {source}"
    hint = "Record them: rec.declare(name, kind='sound', rate_hz=…), rec.append(name, samples, ts_ns)."
    raise UnsupportedDtypeError(fact, hint=hint)


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write the sound of every episode below a new folder: `<episode>/<signal>.wav`, all samples as they were recorded.

    Pauses of the recording are filled with silence, so that times in the file are times since its first sample.
    """
    check_on_error(on_error)
    receipt = ConversionReceipt.of_export("wav", episodes, target)
    with commit_folder(target) as folder:
        results = export_each(
            episodes, _WriteEpisode(folder), jobs=jobs, on_error=on_error, receipt=receipt, progress=progress
        )
        for _, notes in results:
            receipt.add(notes)
        (folder / RECEIPT_FILE).write_bytes(receipt.document())
    return receipt


class _WriteEpisode:
    """Writes the sound of one episode; travels to other processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, position: int, episode: Episode) -> dict[str, Note]:
        folder = self._folder / (source_id(episode).replace("/", "_").lstrip(".") or str(position))
        notes = {}
        for name, signal in with_own_names(episode).signals.items():
            if signal.meta.kind != "sound":
                notes[name] = note_of(signal, "dropped", "a WAV file holds sound")
                continue
            sound = join_sound(signal)
            path = folder / f"{name}.wav"
            if path.exists():
                raise ConflictError("two episodes have this name", path=path)
            path.parent.mkdir(parents=True, exist_ok=True)
            put_file(path, sound.wav())
            why = "every sample is kept, at an even rate"
            if sound.silent:
                why += f"; {sound.silent} samples of silence in pauses"
            if sound.rate_hz != round(sound.rate_hz):
                why += f"; the rate {sound.rate_hz:g} is rounded"
            notes[name] = note_of(signal, "resampled", why)
        return notes
