"""Sound as WAV files. Out only: a folder per episode, a file per sound signal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn, Unpack

from warpdata.bytekit.io.commit import put_file
from warpdata.convert.exporting import FileOptions, write_episode_files
from warpdata.convert.receipt import ConversionReceipt, Note, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import UnsupportedDtypeError
from warpdata.timeline.episode import Episode
from warpdata.timeline.ragged import join_sound


def read(source: Any) -> NoReturn:
    """Raise: an episode needs times."""
    fact = f"WAV files are not read as episodes: {source}"
    hint = "Record them: rec.declare(name, kind='sound', rate_hz=…), rec.append(name, samples, ts_ns)."
    raise UnsupportedDtypeError(fact, hint=hint)


def write(
    episodes: Episodes, target: str | os.PathLike[str], **options: Unpack[FileOptions]
) -> ConversionReceipt:
    """Write the sound of every episode below a new folder: `<episode>/<signal>.wav`, all samples as they were recorded.

    Pauses of the recording are filled with silence, so that times in the file are times since its first sample.
    """
    return write_episode_files("wav", episodes, target, _write_folder, is_folder=True, **options)


def _write_folder(episode: Episode, folder: Path, _receipt: ConversionReceipt | None) -> dict[str, Note]:
    notes = {}
    folder.mkdir()
    for name, signal in episode.signals.items():
        if signal.meta.kind != "sound":
            notes[name] = note_of(signal, "dropped", "a WAV file holds sound")
            continue
        sound, path = join_sound(signal), folder / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        put_file(path, sound.wav())
        why = "every sample is kept, at an even rate"
        if sound.silent:
            why += f"; {sound.silent} samples of silence in pauses"
        if sound.rate_hz != round(sound.rate_hz):
            why += f"; the rate {sound.rate_hz:g} is rounded"
        notes[name] = note_of(signal, "resampled", why)
    return notes
