"""One episode on its way into a LeRobot set: all that can be said of it before its place in the set is known.

Whatever is slow is done here, so that it can be done in another process: encoding, hashing, looking at frames.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.aligning import AlignedEpisode, AlignOptions, aligned, is_run
from warpdata.convert.kept_values import packed
from warpdata.convert.lerobot.documents import DEFAULTS, restored_numbers
from warpdata.convert.lerobot.features import Feature, Features, camera_codec, video_info
from warpdata.convert.lerobot.reading import FORMAT, TASK
from warpdata.convert.lerobot.statistics import QUANTILES, FrameCounts, of_rows
from warpdata.convert.receipt import Note
from warpdata.convert.set_notes import EpisodeNotes
from warpdata.episodes.forms.content import RowsSum
from warpdata.episodes.forms.directory import RawCamera, encode_cameras
from warpdata.episodes.record.camera import VideoFile
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.errors import SchemaMismatchError
from warpdata.formats.episodedir.images import STILL_CODECS, FrameShape, VideoOptions
from warpdata.formats.episodedir.video import encode_png
from warpdata.timeline.episode import Episode
from warpdata.timeline.steps import StepSignal

_BLOCK_BYTES = 8 << 20
_OWN_STATIC = ("fps", "episode_index", "robot_type", TASK)
"""Static items that LeRobot has a place for."""


class Packets:
    """Encoded frames in decoding order, to be taken once; to another process they travel as a file."""

    def __init__(self, packets: Iterator[bytes], path: Path) -> None:
        self._packets, self._path = packets, path

    def __iter__(self) -> Iterator[bytes]:
        return self._packets

    def __reduce__(self) -> tuple[Any, ...]:
        sizes: list[int] = []
        with open(self._path, "xb") as out:
            for data in self._packets:
                sizes.append(len(data))
                out.write(data)
        return (_from_file, (self._path, sizes))


def _from_file(path: Path, sizes: list[int]) -> Packets:
    return Packets(then_removed(_read(path, sizes), path), path)


def _read(path: Path, sizes: list[int]) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for size in sizes:
            yield _exactly(file, size)


def _exactly(file: BinaryIO, size: int) -> bytes:
    found = file.read(size)
    if len(found) != size:
        raise SchemaMismatchError("a file of this export was changed while it was made")
    return found


@dataclass(slots=True)
class Frames:
    """The encoded frames of a camera of one episode."""

    entry: bytes
    packets: Packets
    keyframe: list[bool]
    shows: list[int]
    bytes: int
    """How much they are, or would be were every frame of the source taken."""
    lead: int
    """Frames before the first one shown."""
    note: Note
    info: dict[str, Any]


@dataclass(slots=True)
class Prepared:
    """An episode as the set takes it."""

    id: str
    length: int
    fps: float
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Of features of numbers and text."""
    pictures: dict[str, tuple[list[bytes], str]] = field(default_factory=dict)
    """Of image features: the pictures, and what their names end in."""
    frames: dict[str, Frames] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    """Of features that are not counted anew."""
    counts: dict[str, FrameCounts] = field(default_factory=dict)
    """Of cameras that were looked at."""
    known: dict[str, Any] = field(default_factory=dict)
    """The statistics that the source states."""
    texts: list[str] = field(default_factory=list)
    """The task of every row; nothing where nobody says one."""
    tasks: list[str] = field(default_factory=list)
    """Its tasks as the source lists them."""
    number: int | None = None
    """`episode_index` and the first `index` of the source, where it has them."""
    first: int | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """What the source said of it that we know nothing of."""
    own: dict[str, Any] = field(default_factory=dict)
    """Start and static items, which LeRobot has no place for."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """What is known of the set before its episodes are read; it travels to other processes."""

    features: Features
    alignment: AlignOptions
    fps: float | None
    is_v3: bool
    codec: VideoOptions
    scratch: Path
    no_task: str | None
    sampled: int
    """How many frames of each camera of an episode are looked at for the statistics."""

    def __call__(self, position: int, episode: Episode) -> Prepared:
        """The episode at a position; everything that can be wrong with it is met here."""
        return _Preparing(self, position, episode).made()


class _Preparing:
    def __init__(self, plan: Preparing, position: int, episode: Episode) -> None:
        self._plan, self._episode = plan, episode
        self._check_alike(episode)
        self._rows = aligned(episode, plan.alignment, plan.fps)
        if not len(self._rows):
            raise SchemaMismatchError(f"episode {episode.id} has no steps")
        self._base = f"{position:09d}"
        self._made = Prepared(episode.id, len(self._rows), self._rows.fps)

    def made(self) -> Prepared:
        """All of it."""
        raw: list[RawCamera] = []
        for number, each in enumerate(self._plan.features.found):
            self._feature(each, f"{self._base}-{number}", raw)
        encode_cameras(raw)
        self._note()
        self._tell()
        self._stats()
        return self._made

    def _feature(self, each: Feature, base: str, raw: list[RawCamera]) -> None:
        made, rows = self._made, self._rows
        on_steps = rows.steps[each.signal]
        if each.storing == "video":
            copied = self._copied(each, rows, on_steps, base)
            if copied is None:
                raw.append(self._raw_camera(each, rows, on_steps, base))
            else:
                made.frames[each.name] = copied
        elif each.storing == "image":
            made.pictures[each.name], made.notes[each.signal] = self._pictures(each, rows, on_steps)
        else:
            made.values[each.name] = np.asarray(on_steps.data)
            made.notes[each.signal] = rows.note(
                each.signal, how="retyped" if each.why else None, why=each.why
            )

    def _note(self) -> None:
        """What became of every signal, in the order of the features."""
        made, features = self._made, self._plan.features
        taken = {
            each.signal: made.frames[each.name].note for each in features.found if each.name in made.frames
        }
        every = {**made.notes, **taken}
        made.notes = {each.signal: every[each.signal] for each in features.found}
        for name, why in features.dropped.items():
            if name in self._episode.signals:
                made.notes[name] = Note("dropped", len(self._episode.signals[name]), why=why)

    def _tell(self) -> None:
        """Tasks, numbers, and what else the source said."""
        made, episode = self._made, self._episode
        static = {name: value for name, value in episode.static.items() if name not in _OWN_STATIC}
        made.own = EpisodeNotes(
            made.length, start_ns=int(self._rows.steps.times_ns[0]), static=packed(static)
        ).to_json()
        said = episode.static.get(TASK, self._plan.no_task)
        if TASK in episode.signals:
            made.texts = [str(each) for each in self._rows.steps[TASK].data.tolist()]
        elif said is not None:
            made.texts = [str(said)] * made.length
        about = episode.meta.get(FORMAT)
        row = about.get("episode") if isinstance(about, Mapping) else None
        stated = row.get("tasks") if isinstance(row, Mapping) else None
        made.tasks = [str(each) for each in stated] if isinstance(stated, list) else []
        made.more = _more(row) if isinstance(row, Mapping) else {}
        was = episode.signals.get("index")
        if was is not None:
            made.first = int(was[0][0]) if len(was) == made.length else -1
            made.number = episode.static.get("episode_index")

    def _check_alike(self, episode: Episode) -> None:
        for each in self._plan.features.found:
            signal = episode.signals.get(each.signal)
            if signal is None:
                raise SchemaMismatchError(
                    f"episode {episode.id} has no {each.signal!r}, which the first one has"
                )
            is_same = signal.meta.shape == each.shape or each.storing in ("text", "json")
            if not is_same or (
                each.storing == "numbers" and signal.meta.dtype != each.dtype and not each.why
            ):
                raise SchemaMismatchError(
                    f"{each.signal!r} is {signal.meta.dtype}{list(signal.meta.shape)} in episode {episode.id}, "
                    f"{each.dtype}{list(each.shape)} in the first one"
                )

    def _copied(self, each: Feature, rows: AlignedEpisode, on_steps: StepSignal, base: str) -> Frames | None:
        """The encoded frames of a camera as they are; None where they must be encoded anew."""
        signal = on_steps.signal
        codec = camera_codec(signal)
        if codec in STILL_CODECS:
            return self._muxed(each, rows, on_steps, base)
        run: EncodedRun | None = None
        if codec is not None and is_run(on_steps):
            run = encoded_run(signal[: len(rows)])
        if run is not None and (self._plan.is_v3 or bool(run.shown[0])):
            lead = int(np.flatnonzero(run.shown)[0])
            info = video_info(run.stream, run.shape.height, run.shape.width, rows.fps)
            note = rows.note(each.signal)
            keys, shows = run.keyframe.tolist(), run.shows.tolist()
            return Frames(
                run.entry, self._packets(run.packets(), base), keys, shows, note.bytes, lead, note, info
            )
        return None

    def _muxed(self, each: Feature, rows: AlignedEpisode, on_steps: StepSignal, base: str) -> Frames:
        """Pictures encoded one by one: copied, in whatever order the rows need them."""
        run = encoded_run(on_steps.signal)
        assert run is not None
        positions = np.maximum(on_steps.positions, 0)
        packets = self._packets(_chosen(run, positions), base)
        count = len(positions)
        info = video_info(run.stream, run.shape.height, run.shape.width, rows.fps)
        note = rows.note(each.signal)
        return Frames(run.entry, packets, [True] * count, list(range(count)), note.bytes, 0, note, info)

    def _packets(self, packets: Iterator[bytes], base: str) -> Packets:
        return Packets(packets, self._plan.scratch / f"{base}.packets")

    def _raw_camera(self, each: Feature, rows: AlignedEpisode, on_steps: StepSignal, base: str) -> RawCamera:
        """A camera whose frames are to be encoded; they are found among the others when they are."""
        height, width = on_steps.row_shape[:2]
        codec = camera_codec(on_steps.signal)
        options = replace(self._plan.codec, fps=float(rows.fps))
        place = self._plan.scratch / base
        step = max(1, _BLOCK_BYTES // max(1, on_steps.meta.row_bytes))
        signal = on_steps.signal
        is_whole = is_run(on_steps) and len(signal) == len(on_steps) and encoded_run(signal) is None
        running = RowsSum() if is_whole else None

        def blocks() -> Iterator[tuple[NDArray[Any], range]]:
            for start in range(0, len(on_steps), step):
                stop = min(start + step, len(on_steps))
                frames = np.asarray(on_steps.rows(start, stop))
                if running is not None:  # while the encoders are busy
                    running.add(frames)
                yield frames, range(start, stop)

        def finish(file: VideoFile) -> None:
            video, index = Path(f"{place}.done{file.suffix}"), Path(f"{place}.done.frames.parquet")
            file.commit(video, index)
            run = encoded_run(VideoSignal(video, index, name=each.name))
            assert run is not None
            size = video.stat().st_size
            was = "raw frames" if codec is None else f"{codec} frames that no longer follow each other"
            why = f"{was} encoded as {options.codec or 'h264'}"
            found = None if running is None else running.result()
            note = rows.note(each.signal, how="reencoded", why=why, found=found)
            info = video_info(run.stream, height, width, rows.fps)
            packets = self._packets(then_removed(run.packets(), video, index), base)
            keys, shows = run.keyframe.tolist(), run.shows.tolist()
            self._made.frames[each.name] = Frames(run.entry, packets, keys, shows, size, 0, note, info)

        shape = FrameShape(height, width, 3, "uint8")
        return RawCamera(partial(VideoFile, place, shape, options, durable=False), blocks(), finish)

    def _pictures(
        self, each: Feature, rows: AlignedEpisode, on_steps: StepSignal
    ) -> tuple[tuple[list[bytes], str], Note]:
        """An image feature: JPEG and PNG as they are, anything else as PNG."""
        count = len(rows)
        codec = camera_codec(on_steps.signal)
        if codec in STILL_CODECS:
            run = encoded_run(on_steps.signal)
            assert run is not None
            data = list(_chosen(run, np.maximum(on_steps.positions, 0)))
            note, suffix = rows.note(each.signal), "png" if codec == "png" else "jpg"
        else:
            data = [
                encode_png(np.ascontiguousarray(frame))
                for at in range(count)
                for frame in on_steps.rows(at, at + 1)
            ]
            why = "" if codec is None else f"{codec} frames, decoded"
            note, suffix = rows.note(each.signal, how="reencoded", why=f"{why or 'raw frames'} as PNG"), "png"
        return (data, suffix), note

    def _stats(self) -> None:
        """What the source says where nothing was changed, else computed; numbers that are counted anew come later."""
        made, episode = self._made, self._episode
        about = episode.meta.get(FORMAT)
        stated_of = restored_numbers(about.get("stats", {})) if isinstance(about, Mapping) else {}
        made.known = {name: each for name, each in stated_of.items() if isinstance(each, Mapping)}
        for name, feature in self._plan.features.to_json().items():
            if name in DEFAULTS:
                continue
            column, stated = made.values.get(name), made.known.get(name)
            is_camera = feature["dtype"] in ("image", "video")
            if stated is not None and is_true(name, stated, column, made.length, is_v3=self._plan.is_v3):
                made.stats[name] = dict(stated)
            elif column is not None and column.dtype != object:
                made.stats[name] = of_rows(column, quantiles=self._plan.is_v3)
            elif is_camera:
                made.counts[name] = self._frame_counts(name)
                made.stats[name] = made.counts[name].found(quantiles=self._plan.is_v3)

    def _frame_counts(self, name: str) -> FrameCounts:
        """Of a few frames of an episode, evenly spaced."""
        each = next(each for each in self._plan.features.found if each.name == name)
        on_steps = self._rows.steps[each.signal]
        wanted = max(1, min(self._plan.sampled, len(self._rows)))
        at = np.unique(np.linspace(0, len(self._rows) - 1, wanted).astype(np.int64))
        counts = [FrameCounts.of(on_steps.rows(k, k + 1)) for k in at.tolist()]
        return reduce(operator.add, counts)


def is_true(
    name: str, stated: Mapping[str, Any], column: NDArray[Any] | None, count: int, *, is_v3: bool
) -> bool:
    """Whether statistics of the source are those of these rows, and say all that this version wants."""
    if column is None:
        return True
    is_same = bool(stated.get("count") == [count])
    if is_same and name in ("index", "episode_index"):
        lowest = np.asarray(stated.get("min"), np.float64).reshape(-1)
        is_same = float(lowest[0]) == float(column.min())
    return is_same and (not is_v3 or set(QUANTILES) <= set(stated))


_PLACES = ("videos/", "data/", "meta/", "stats/")
_COUNTED = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index")


def _more(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the source said of an episode, but for what is said anew."""
    plain = restored_numbers(row)
    return {key: value for key, value in plain.items() if key not in _COUNTED and not key.startswith(_PLACES)}


def then_removed(packets: Iterator[bytes], *paths: Path) -> Iterator[bytes]:
    """Packets of files that nobody needs afterwards."""
    yield from packets
    for path in paths:
        path.unlink()


def _chosen(run: EncodedRun, positions: NDArray[np.int64]) -> Iterator[bytes]:
    """Pictures by number, read once where the numbers do not fall; none but the last one is held."""
    packets, at, data = run.packets(), -1, b""
    for position in positions.tolist():
        if position < at:
            packets, at = run.packets(), -1
        while at < position:
            data, at = next(packets), at + 1
        yield data
