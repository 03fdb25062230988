"""A viewer without a server: what a page would ask for, answered beforehand in files that are read by range."""

from __future__ import annotations

import base64
import html
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import check_free, commit_folder, map_os_errors
from warpdata.bytekit.jsontext import dump_json, parse_json
from warpdata.catalog.dataset import Dataset
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.packed import ShardFolder
from warpdata.episodes.sources.shard_episode import BlockSignal
from warpdata.formats.episodedir.frame_index import plan_of
from warpdata.formats.manifest.model import blob_key
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import BlockRows
from warpdata.stores.address import split_address
from warpdata.timeline.pictures import as_pixels, is_camera, limits_of
from warpdata.timeline.signal import Signal
from warpdata.viewer.answers import MAX_EVENTS, MAX_TEXT, Answers, ViewRequest
from warpdata.viewer.framing import DTYPES, sendable, web_codec
from warpdata.viewer.shown import Shown
from warpdata.viewer.tracks import Track

STATIC = Path(__file__).parent / "static"
PAGE = ("app.js", "app.css", "icon.svg")
STEP = 16
"""Blocks of a level that are one block of the level above."""
_TOP = 1024
_MOST_DISTRIBUTIONS = 64
_NO_SERVER = {"is_root": False, "is_here": False, "has_moments": False}
_SCALARS = ("string", "bool", "int64", "double")
"""Columns that a site filters and sorts by."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)

Progress = Callable[[int, int], None]


def export_site(
    thing: Any,
    folder: str | os.PathLike[str],
    *,
    data_url: str | None = None,
    copy: bool | None = None,
    catalog: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a site that shows these episodes from any server of files; the folder must not be there yet.

    Of a published dataset the site reads the published blobs themselves, by range, where a browser can reach them:
    `data_url` is where (default: beside the site for a folder, by HTTPS for a bucket). `copy=True` puts copies of all
    that is shown into the site instead; what is not published is always copied.
    """
    target = os.path.abspath(folder)
    check_free(target)
    if copy and data_url is not None:
        raise ValueError("a site reads its data from data_url, or holds a copy of it: not both")
    shown = Shown(thing, catalog=catalog)
    shown.snapshot.facts()
    answers = Answers(shown, limit_edits="an exported site can only be read")
    base = None if copy else _data_url(shown, target, data_url, must=copy is False)
    ids = shown.snapshot.ids
    if answers.health.is_wanted:  # as a viewer of the same set would, so that the site shows the same flags
        while answers.health.step(shown.snapshot):
            pass
    plotted: dict[str, None] = {}
    with map_os_errors(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
    with commit_folder(target) as work:
        with map_os_errors(work):
            (work / "e").mkdir()
            for position, name in enumerate(ids):
                exported = _Exported(answers, name, work / "e" / str(position), Blobs() if base else None)
                plotted |= dict.fromkeys(exported.write())
                if progress is not None:
                    progress(position + 1, len(ids))
            _write_page(work, base)
        (work / "site.json").write_bytes(dump_json({**_site(answers, list(plotted)), "data": base}))
    return Path(target)


def _data_url(shown: Shown, target: str, given: str | None, *, must: bool) -> str | None:
    """Address of the published blobs for a browser; None for unpublished data."""
    dataset = shown.published
    if dataset is None:
        if given is not None or must:
            raise ValueError(
                "only a published dataset has blobs that a site can read; publish it, or let it be copied"
            )
        return None
    if given is not None:
        return given.rstrip("/") + "/"
    address = data_address(dataset, target)
    if address is None and must:
        raise ValueError(f"data_url is missing: the address where browsers find {dataset.catalog.address}")
    return address


def _site(answers: Answers, plotted: Sequence[str]) -> dict[str, Any]:
    """Facts about all episodes: rows to filter and sort by, distributions, findings."""
    dataset = sendable(answers.dataset(ViewRequest({})))
    columns = [column for column in dataset["columns"] if column["type"] in _SCALARS]
    names = [*(column["name"] for column in columns), "problems"]
    rows = answers.shown.snapshot.facts().select(names).to_pylist()
    checks = sendable(answers.checks(ViewRequest({})))
    for row in rows:
        row["worst"] = checks["worst"].get(row["id"])
    spread = {
        name: sendable(answers.distribution(ViewRequest({"signal": name})))
        for name in plotted[:_MOST_DISTRIBUTIONS]
    }
    return {
        "dataset": {**dataset, "columns": columns, "draft": None, **_NO_SERVER},
        "rows": sendable(rows),
        "distributions": spread,
        "checks": {**checks, "wanted": True},
    }


def _write_page(work: Path, base: str | None) -> None:
    for name in PAGE:
        (work / name).write_bytes((STATIC / name).read_bytes())
    page = (STATIC / "index.html").read_text()
    page = page.replace('<html lang="en">', '<html lang="en" data-site="site.json">')
    parts = urlsplit(base or "")
    origin = f" {parts.scheme}://{parts.netloc}" if parts.netloc else ""
    policy = html.escape(_POLICY.replace("connect-src 'self'", f"connect-src 'self'{origin}"))
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    (work / "index.html").write_text(page.replace("<head>", f"<head>\n    {meta}", 1))


class _Parts:
    """Pieces in one file, each with its offset, a multiple of eight."""

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
        """Offset, dtype and shape of an array."""
        place = self.add(np.ascontiguousarray(array).tobytes())
        return {"at": place[0], "dtype": DTYPES[array.dtype.name], "shape": list(array.shape)}


class _Exported:
    """One episode of a site: its description in one file, pieces that are read by range in another."""

    def __init__(self, answers: Answers, name: str, path: Path, blobs: Blobs | None) -> None:
        self._answers = answers
        self._name = name
        self._path = path
        self._blobs = blobs
        self._start = 0

    def write(self) -> list[str]:
        """Both files; the names of the signals that are plotted."""
        ask = ViewRequest({"episode": self._name})
        about = {key: sendable(getattr(self._answers, key)(ask)) for key in ("episode", "events", "errors")}
        self._start = int(about["episode"]["start_ns"])
        signals: dict[str, Any] = {}
        with self._path.with_suffix(".bin").open("wb") as file:
            parts = _Parts(file)
            about["thumbnail"] = parts.add(self._answers.thumbnail(ask).body)
            episode = self._answers.shown.open(self._name)
            for described in about["episode"]["signals"]:
                if described["count"]:
                    signal = episode.signals[described["name"]]
                    signals[described["number"]] = self._signal(parts, described, signal)
                if (residual := self._answers.residual(self._name, described["number"])) is not None:
                    signals[f"{described['number']} residual"] = {"levels": self._levels(parts, residual)}
        about |= {"signals": signals, "blobs": [] if self._blobs is None else self._blobs.keys}
        self._path.with_suffix(".json").write_bytes(dump_json(about))
        return [signal["name"] for signal in about["episode"]["signals"] if signal["shows"] == "plot"]

    def _signal(self, parts: _Parts, described: Any, signal: Signal) -> dict[str, Any]:
        track = Track(signal)
        if described["shows"] == "camera":
            times = self._times(parts, track)
            return {
                "times": times,
                **(self._placed(parts, signal) or self._camera(parts, described["number"], track)),
            }
        if described["shows"] == "text":
            texts = [str(value)[:MAX_TEXT] for value, _ in signal[:MAX_EVENTS]]
            return {"times": self._times(parts, track), "texts": texts}
        if signal.meta.kind == "sound":
            wav = self._answers.sound(self._name, described["number"])
            self._path.with_name(f"{self._path.name}-{described['number']}.wav").write_bytes(wav)
        return {"levels": self._levels(parts, track)}

    def _times(self, parts: _Parts, track: Track) -> dict[str, Any]:
        return parts.array((track.times - self._start).astype(np.float64))

    def _levels(self, parts: _Parts, track: Track) -> list[dict[str, Any]]:
        """The records, then the least and greatest of every sixteen of the level below, until few are left."""
        times = (track.times - self._start).astype(np.float64)
        values = track.values(0, len(times))
        rows = self._blobs.rows(track.signal) if self._blobs is not None and track.is_all else None
        when = self._blobs.times(track.signal) if self._blobs is not None else None
        levels = [{"times": when or parts.array(times), "low": rows or parts.array(values)}]
        low = high = values
        while len(times) > _TOP:
            at = np.arange(0, len(times), STEP)
            low, high, times = np.fmin.reduceat(low, at), np.fmax.reduceat(high, at), times[at]
            levels.append({"times": parts.array(times), "low": parts.array(low), "high": parts.array(high)})
        return levels

    def _placed(self, parts: _Parts, signal: Signal) -> dict[str, Any] | None:
        """Offsets of the frames of a camera in its blob."""
        if self._blobs is None:
            return None
        video = self._blobs.video(signal)
        if video is not None:
            return {"video": {**video[0], "packets": parts.array(video[1])}}
        rows = self._blobs.rows(signal)
        return None if rows is None else {"rows": rows, "limits": limits_of(signal)}

    def _camera(self, parts: _Parts, number: int, track: Track) -> dict[str, Any]:
        """Groups of encoded frames as the server would send them, or every frame deflated."""
        groups: list[list[int]] = []
        row = 0
        while row < len(track.times):
            ask = ViewRequest({"episode": self._name, "signal": str(number), "row": str(row)})
            reply = self._answers.packets(ask).body
            size = int.from_bytes(reply[4:8], "little")
            head = parse_json(reply[8 : 8 + size])
            if head["codec"] is None:
                return _pixels(parts, track)
            last = max(number for number in head["rows"] if number >= 0)
            groups.append([*parts.add(reply), row, last])
            row = last + 1
        return {"groups": groups}


def _pixels(parts: _Parts, track: Track) -> dict[str, Any]:
    signal = track.signal
    assert is_camera(signal.meta)
    limits = limits_of(signal)
    frames, shape = [], [0, 0]
    for value, _ in signal:
        pixels = as_pixels(value, limits)
        shape = list(pixels.shape)
        frames.append(parts.add(zlib.compress(pixels.tobytes(), 1)))
    return {"frames": frames, "shape": shape}


AWS_DOMAIN = "amazonaws.com"
DEFAULT_REGION = "us-east-1"


class Blobs:
    """The blobs that one episode of a site refers to."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def rows(self, signal: Signal) -> dict[str, Any] | None:
        """The blocks whose rows are the records of a signal; None where they are no rows of a blob."""
        parts = signal.parts if isinstance(signal, BlockSignal) else ()
        blocks = [part for part in parts if isinstance(part, BlockRows)]
        if not blocks or len(blocks) != len(parts) or signal.meta.is_object:
            return None
        return self._place(blocks, [len(signal), *signal.meta.shape])

    def times(self, signal: Signal) -> dict[str, Any] | None:
        """The block of the times of a signal."""
        part = signal.times_rows if isinstance(signal, BlockSignal) else None
        place = None if part is None else self._place([part], [len(signal)])
        return None if place is None else {**place, "is_time": True}

    def _place(self, parts: list[BlockRows], shape: list[int]) -> dict[str, Any] | None:
        numbers = {self._number(part.shard) for part in parts}
        if len(numbers) != 1 or None in numbers:
            return None
        listed = [[part.block, part.length] for part in parts]
        return {"blob": numbers.pop(), "parts": listed, "dtype": parts[0].spec.dtype.name, "shape": shape}

    def video(self, signal: Signal) -> tuple[dict[str, Any], NDArray[np.float64]] | None:
        """The block of a video with how it is decoded, and its packets; None where no browser could read or decode it.

        Of each packet: offset, size, checksum, the record it shows, and the packet that its decoding begins at.
        """
        if not isinstance(signal, VideoSignal) or not isinstance(signal.folder, ShardFolder):
            return None
        index, number = signal.frame_index(), self._number(signal.folder.shard)
        codec = None if index.stream is None else web_codec(index.stream)
        if number is None or codec is None or index.stream is None or index.offset is None:
            return None
        plan = plan_of(index)
        if plan.crc32c is None:
            return None
        record = np.full(len(plan), -1, np.int64)
        record[signal.frame_numbers(np.arange(len(signal)))] = np.arange(len(signal))
        columns: list[NDArray[Any]] = [
            plan.offset,
            plan.size,
            plan.crc32c,
            record[plan.frame],
            plan.start[plan.frame],
        ]
        about = {
            "blob": number,
            "block": signal.path,
            "codec": codec.name,
            "description": base64.b64encode(codec.description).decode(),
            "coded": [index.stream.coded_width, index.stream.coded_height],
        }
        return about, np.stack(columns, axis=1).astype(np.float64)

    def _number(self, shard: ShardReader) -> int | None:
        """Number of the blob of a shard; None outside of the blob area of its catalog."""
        address = getattr(shard.range_reader, "address", None)
        key = getattr(address, "key", None)
        if address is None or key != blob_key(address.sha256):
            return None
        if key not in self.keys:
            self.keys.append(key)
        return self.keys.index(key)


def data_address(dataset: Dataset, site: str) -> str | None:
    """Where a browser finds the blobs of a dataset: relative to the site in a folder, else by HTTP; None: nowhere."""
    address = dataset.catalog.address.rstrip("/")
    scheme, has_scheme, rest = address.partition("://")
    if not has_scheme or scheme == "file":
        folder = os.path.abspath(rest if has_scheme else address)
        return quote(os.path.relpath(folder, site)) + "/"
    if scheme in ("http", "https"):
        return address + "/"
    bucket, _, prefix = rest.partition("/")
    prefix = quote(f"{prefix}/") if prefix else ""
    if scheme == "gs":
        return f"https://storage.googleapis.com/{bucket}/{prefix}"
    if scheme != "s3":
        return None
    options, query = dataset.access.options.store, dict(parse_qsl(split_address(dataset.catalog.given).query))
    if endpoint := query.get("endpoint", options.s3_endpoint):
        return f"{endpoint.rstrip('/')}/{bucket}/{prefix}"
    region = query.get("region", options.s3_region) or DEFAULT_REGION
    return f"https://{bucket}.s3.{region}.{AWS_DOMAIN}/{prefix}"
