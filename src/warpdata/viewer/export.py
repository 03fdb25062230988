"""A viewer without a server: what a page would ask for, answered beforehand in files that are read by range."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from warpdata.bytekit.commit import commit_folder, map_os_errors
from warpdata.bytekit.jsontext import dump_json, parse_json
from warpdata.errors import ConflictError
from warpdata.timeline.pictures import as_pixels, is_camera, limits_of
from warpdata.viewer.answers import Answers, Question
from warpdata.viewer.framing import DTYPES, sendable
from warpdata.viewer.shown import Shown
from warpdata.viewer.tracks import Track

STATIC = Path(__file__).parent / "static"
PAGE = ("app.js", "app.css", "icon.svg")
STEP = 16
"""Blocks of a level that are one block of the level above."""
_TOP = 1024
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)

Progress = Callable[[int, int], None]


def export_site(thing: Any, folder: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """Write a site that shows these episodes from any server of files; the folder must not be there yet."""
    target = os.path.abspath(folder)
    if os.path.lexists(target):
        raise ConflictError("the folder exists already", path=target, hint="Choose another one.")
    shown = Shown(thing)
    answers = Answers(shown, limit_edits="an exported site can only be read")
    ids = shown.snapshot.ids
    with commit_folder(target) as work:
        with map_os_errors(work):
            (work / "e").mkdir()
            for position, name in enumerate(ids):
                _export_episode(answers, name, work / "e" / str(position))
                if progress is not None:
                    progress(position + 1, len(ids))
            _write_page(work)
        (work / "site.json").write_bytes(dump_json(_site(answers)))
    return Path(target)


def _site(answers: Answers) -> dict[str, Any]:
    shown = answers.shown
    rows = shown.snapshot.listed(np.arange(len(shown.snapshot.ids)))
    nothing = Question({})
    dataset = parse_json(answers.dataset(nothing).body)
    return {
        "dataset": {**dataset, "draft": None, "is_root": False}, "rows": sendable(rows),
        "statistics": parse_json(answers.statistics(nothing).body),
    }  # fmt: skip


def _write_page(work: Path) -> None:
    for name in PAGE:
        (work / name).write_bytes((STATIC / name).read_bytes())
    page = (STATIC / "index.html").read_text()
    page = page.replace('<html lang="en">', '<html lang="en" data-site="site.json">')
    meta = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}" />'
    (work / "index.html").write_text(page.replace("<head>", f"<head>\n    {meta}", 1))


class _Parts:
    """Pieces in one file, each known by where it lies; all begin at multiples of eight."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0

    def add(self, data: bytes) -> list[int]:
        """[offset, size] of a piece."""
        padding = -self._at % 8
        self._file.write(bytes(padding) + data)
        start = self._at + padding
        self._at = start + len(data)
        return [start, len(data)]

    def array(self, array: Any) -> dict[str, Any]:
        """Where an array lies, and what it is."""
        place = self.add(np.ascontiguousarray(array).tobytes())
        return {"at": place[0], "dtype": DTYPES[array.dtype.name], "shape": list(array.shape)}


def _export_episode(answers: Answers, name: str, path: Path) -> None:
    ask = Question({"episode": name})
    about = {key: parse_json(getattr(answers, key)(ask).body) for key in ("episode", "events", "errors")}
    start = int(about["episode"]["start_ns"])
    signals: dict[str, Any] = {}
    with path.with_suffix(".bin").open("wb") as file:
        parts = _Parts(file)
        about["thumbnail"] = parts.add(answers.thumbnail(ask).body)
        episode = answers.shown.open(name)
        for described in about["episode"]["signals"]:
            if not described["count"]:
                continue
            number, signal = described["number"], episode.signals[described["name"]]
            track = Track(signal)
            if described["shows"] == "camera":
                signals[number] = _export_camera(answers, parts, name, number, track, start)
            elif described["shows"] == "text":
                times = parts.array((track.times - start).astype(np.float64))
                texts = [str(value)[:2000] for value, _ in signal[:2000]]
                signals[number] = {"times": times, "texts": texts}
            else:
                signals[number] = {"levels": _export_levels(parts, track, start)}
    about["signals"] = signals
    path.with_suffix(".json").write_bytes(dump_json(about))


def _export_levels(parts: _Parts, track: Track, start: int) -> list[dict[str, Any]]:
    """The records, then the least and greatest of every sixteen of the level below, until few are left."""
    times = (track.times - start).astype(np.float64)
    values = track.values(0, len(times))
    levels = [{"times": parts.array(times), "low": parts.array(values)}]
    low = high = values
    while len(times) > _TOP:
        at = np.arange(0, len(times), STEP)
        low, high, times = np.fmin.reduceat(low, at), np.fmax.reduceat(high, at), times[at]
        levels.append({"times": parts.array(times), "low": parts.array(low), "high": parts.array(high)})
    return levels


def _export_camera(
    answers: Answers, parts: _Parts, name: str, number: int, track: Track, start: int
) -> dict[str, Any]:
    """Groups of encoded frames as the server would send them, or every frame deflated."""
    times = parts.array((track.times - start).astype(np.float64))
    groups: list[list[int]] = []
    row = 0
    while row < len(track.times):
        reply = answers.packets(Question({"episode": name, "signal": str(number), "row": str(row)})).body
        size = int.from_bytes(reply[4:8], "little")
        head = parse_json(reply[8 : 8 + size])
        if head["codec"] is None:
            return {"times": times, **_export_pixels(parts, track)}
        last = max(each for each in head["rows"] if each >= 0)
        groups.append([*parts.add(reply), row, last])
        row = last + 1
    return {"times": times, "groups": groups}


def _export_pixels(parts: _Parts, track: Track) -> dict[str, Any]:
    signal = track.signal
    assert is_camera(signal.meta)
    limits = limits_of(signal)
    frames, shape = [], [0, 0]
    for value, _ in signal:
        pixels = as_pixels(value, limits)
        shape = list(pixels.shape)
        frames.append(parts.add(zlib.compress(pixels.tobytes(), 1)))
    return {"frames": frames, "shape": shape}
