"""What the viewer answers: a question by name in, bytes out. No HTTP, no path from a client, every size bounded."""

from __future__ import annotations

import base64
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from warpdata.bytekit.io.ranges import BytesRangeReader, RangeReader
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.episodes.sources.encoded import PictureGroup, encoded_camera, picture_group
from warpdata.errors import WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import ABOUT_OTHERS
from warpdata.timeline.pictures import Limits, as_pixels, is_camera, limits_of, shrink_pixels
from warpdata.timeline.ragged import join_sound
from warpdata.timeline.signal import Signal
from warpdata.viewer.framing import pack_arrays, sendable, web_codec
from warpdata.viewer.health import UNASKED_EPISODES, Health
from warpdata.viewer.moments import MOST
from warpdata.viewer.shown import Shown, make_edit
from warpdata.viewer.tracks import (
    MOST_SAMPLED,
    Track,
    distribution,
    plotted_signal,
    sample_records,
    selection_statistics,
)

MAX_ROWS = 500
MAX_WIDTH = 8192
MAX_FRAMES = 4 << 20
MAX_EVENTS = 2000
MAX_TEXT = 2000
MAX_WHERE = 4000
THUMBNAIL_SIDE = 96
MAX_MOMENTS = MOST
MANY_BYTES = 4 << 20
"""Encoded frames that are sent at once, roughly."""
_KEPT_TRACK_BYTES = 512 << 20
_KEPT_EPISODES = 8
_KEPT_THUMBNAILS = 4000
_WORST = 8
_GROWING_S = 0.4
"""How long what was read of a recording under way is shown before it is read again."""
_JSON = "application/json"
_ARRAYS = "application/octet-stream"
_INT64 = 1 << 63

T = TypeVar("T")
Json = dict[str, Any]
"""Values of an answer, as they are before `answer` makes bytes of them."""


class BadViewRequest(ValueError):
    """A question without sense: the page shows why."""


@dataclass(frozen=True, slots=True)
class ViewResponse:
    """The body of an answer and what it is."""

    body: bytes
    content_type: str = _JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """The named values of a request, each read with its limits."""

    values: Mapping[str, str]

    def text(self, name: str, default: str | None = None, *, most: int = MAX_TEXT) -> str:
        """A text, or BadViewRequest where it is missing or too long."""
        value = self.values.get(name, default)
        if value is None:
            raise BadViewRequest(f"{name} is missing")
        if len(value) > most:
            raise BadViewRequest(f"{name} is longer than {most} characters")
        return value

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number between two others."""
        text = self.text(name, None if default is None else str(default), most=24)
        try:
            value = int(text)
        except ValueError:
            raise BadViewRequest(f"{name} is a whole number, not {text!r}") from None
        if not low <= value <= high:
            raise BadViewRequest(f"{name} out of range: expected {low} to {high}, got {value}")
        return value


class _Kept:
    """A cache of values that are made once, also with concurrent requests; the oldest are dropped first."""

    def __init__(self, most: int, size_of: Callable[[Any], int] = lambda _: 1) -> None:
        self._most = most
        self._size_of = size_of
        self._lock = ThreadLock()
        self._values: OrderedDict[Any, Future[Any]] = OrderedDict()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        with self._lock:
            is_new = key not in self._values
            value: Future[T] = self._values.setdefault(key, Future())
            self._values.move_to_end(key)
        if is_new:
            try:
                value.set_result(make())
            except BaseException as error:
                with self._lock:
                    self._values.pop(key, None)
                value.set_exception(error)
                raise
            with self._lock:
                sizes = {k: self._size_of(v.result()) for k, v in self._values.items() if v.done()}
                while len(sizes) > 1 and sum(sizes.values()) > self._most:
                    oldest = next(iter(sizes))
                    del self._values[oldest], sizes[oldest]
        return value.result()

    def forget(self) -> None:
        with self._lock:
            self._values.clear()


class Answers:
    """Every question a page can ask, over one thing that is shown."""

    def __init__(self, shown: Shown, *, limit_edits: str | None = None) -> None:
        self.shown = shown
        self.health = Health()
        self.health.is_wanted = shown.is_here and len(shown.snapshot.ids) <= UNASKED_EPISODES
        self._refusal = limit_edits
        self._episodes = _Kept(_KEPT_EPISODES)
        self._tracks = _Kept(_KEPT_TRACK_BYTES, lambda track: track.kept_bytes)
        self._limits = _Kept(1024)
        self._sounds = _Kept(_KEPT_TRACK_BYTES, len)
        self._thumbnails = _Kept(_KEPT_THUMBNAILS)
        self._growing: tuple[str, float, Episode] | None = None
        self.is_listed = False
        """Whether a page has shown rows of the list."""

    def answer(self, name: str, ask: Any) -> ViewResponse:
        """The answer of one of the methods below as bytes."""
        value = getattr(self, name)(ask)
        return value if isinstance(value, ViewResponse) else ViewResponse(dump_json(sendable(value)))

    # What is here.

    def dataset(self, _: ViewRequest) -> Json:
        """What the page is about."""
        shown = self.shown
        snapshot = shown.snapshot
        columns = [] if not snapshot.has_facts else snapshot.facts().schema
        refusal = self._refusal or shown.refusal
        return {
            "name": shown.name,
            "episodes": len(snapshot.ids),
            "generation": snapshot.generation,
            "selected": shown.selected,
            "refusal": refusal,
            "columns": [{"name": column.name, "type": str(column.type)} for column in columns],
            "has_facts": snapshot.has_facts,
            "draft": None if shown.draft_folder is None else str(shown.draft_folder),
            "is_root": shown.root is not None,
            "is_here": shown.is_here,
            "has_moments": shown.has_moments,
        }

    def episodes(self, ask: ViewRequest) -> Json:
        """Rows of the list."""
        snapshot = self.shown.snapshot
        rows = self._rows(ask)
        start = ask.number("start", 0, 1 << 31, 0)
        part = rows[start : start + ask.number("count", 1, MAX_ROWS, 100)]
        listed = snapshot.list_rows(part)
        worst = self.health.summary(0)["worst"]
        for row in listed:
            findings = self.health.flags(self.shown.snapshot, row["id"])
            row["flags"] = None if findings is None else sorted({finding["rule"] for finding in findings})
            row["worst"] = worst.get(row["id"])
        live = (
            [{"id": name, "live": True} for name in snapshot.unfinished]
            if not ask.values.get("where")
            else []
        )
        self.is_listed = True
        return {
            "generation": snapshot.generation,
            "total": len(rows),
            "start": start,
            "rows": listed,
            "live": live,
        }

    def _rows(self, ask: ViewRequest) -> Any:
        where, sort = ask.text("where", "", most=MAX_WHERE), ask.text("sort", "", most=200)
        return self.shown.snapshot.choose(where, sort, descending=ask.text("order", "up") == "down")

    def statistics(self, ask: ViewRequest) -> Json:
        """Histograms and outliers of the selection."""
        snapshot = self.shown.snapshot
        rows = self._rows(ask).tolist()
        return selection_statistics(snapshot.facts(), rows, snapshot.ids)

    def distribution(self, ask: ViewRequest) -> Json:
        """Distribution of the values of a signal in the selection, from a sample of records and episodes."""
        snapshot, name = self.shown.snapshot, ask.text("signal")
        samples, unreadable = [], 0
        rows = self._rows(ask)
        sample = np.linspace(0, len(rows) - 1, min(len(rows), MOST_SAMPLED)).astype(np.int64)
        for position in rows[sample].tolist():
            try:
                signal = snapshot.episodes[position].signals.get(name)
                if signal is None or not len(signal):
                    continue
                plotted = plotted_signal(signal)
                if not plotted.meta.is_object and not is_camera(plotted.meta):
                    samples.append(sample_records(plotted))
            except WarpError:
                unreadable += 1
        return {**distribution(samples), "unreadable": unreadable}

    def checks(self, _: ViewRequest) -> Json:
        """How far the check is, what it found, and which episodes are far from the others."""
        snapshot = self.shown.snapshot
        return {**self.health.summary(len(snapshot.ids)), "far": snapshot.outliers()}

    def thumbnail(self, ask: ViewRequest) -> ViewResponse:
        """A small picture of an episode: of its first camera the frame in the middle, or the one at a time."""
        name, at = ask.text("episode"), ask.text("at", "", most=24)
        when = ask.number("at", -_INT64, _INT64 - 1) if at else None
        key = (name, when, self.shown.snapshot.generation)
        return self._thumbnails.get(key, lambda: self._thumbnail(name, when))

    def _thumbnail(self, name: str, when: int | None) -> ViewResponse:
        episode = self._episode(name)
        for position, signal in _readable(episode):
            if is_camera(signal.meta) and len(signal):
                row = len(signal) // 2 if when is None else max(0, self._track(name, position).row_at(when))
                limits = self._limits_of(name, position, signal)
                pixels = shrink_pixels(as_pixels(signal[row][0], limits), THUMBNAIL_SIDE)
                return ViewResponse(pack_arrays({}, {"pixels": pixels}), _ARRAYS)
        return ViewResponse(pack_arrays({}, {}), _ARRAYS)

    # One episode.

    def episode(self, ask: ViewRequest) -> Json:
        """The signals, static items and findings of an episode."""
        name = ask.text("episode")
        episode = self._episode(name)
        signals, problems = [], []
        for number, signal_name in enumerate(episode.signals):
            try:
                signal = episode.signals[signal_name]
                has_residual = _truth_of(episode.signals, signal) is not None
                signals.append({**_described(number, signal_name, signal), "has_residual": has_residual})
            except WarpError as error:
                problems.append({"signal": signal_name, "message": str(error), "hint": error.hint})
        filled = [signal for signal in signals if signal["count"]]
        start = min((int(signal["first_ns"]) for signal in filled), default=0)
        stop = max((int(signal["last_ns"]) for signal in filled), default=0)
        hidden = {"signals", "static_file", *ABOUT_OTHERS}
        steps = None
        with contextlib.suppress(WarpError):
            steps = {"clock": episode.steps.clock, "count": episode.steps.length}
        return {
            "id": name,
            "start_ns": str(start),
            "stop_ns": str(stop),
            "signals": signals,
            "problems": problems,
            "static": dict(episode.static),
            "meta": {key: value for key, value in episode.meta.items() if key not in hidden},
            "steps": steps,
            "findings": self.health.flags(self.shown.snapshot, name),
            "is_unfinished": name in self.shown.snapshot.unfinished,
        }

    def events(self, ask: ViewRequest) -> Json:
        """Texts with their times, and the gaps of every signal."""
        name = ask.text("episode")
        texts: list[dict[str, Any]] = []
        gaps: list[dict[str, Any]] = []
        episode = self._episode(name)
        for number, signal in _readable(episode):
            if not len(signal):
                continue
            with contextlib.suppress(WarpError):  # damaged: shown where its content would be
                if signal.meta.kind == "text":
                    texts += [
                        {"signal": number, "at_ns": str(ts), "text": str(value)[:MAX_TEXT]}
                        for value, ts in _happened(signal)
                    ]
                elif not signal.meta.is_object or signal.meta.rows is not None:
                    pauses = self._track(name, number).gaps()
                    gaps += [{"signal": number, "from_ns": str(a), "to_ns": str(b)} for a, b in pauses]
                    gaps += [
                        {"signal": number, "from_ns": str(a), "to_ns": str(b), "dropped": count}
                        for a, b, count in _drops(episode, number)
                    ]
        texts.sort(key=lambda each: int(each["at_ns"]))
        return {"events": texts, "gaps": gaps}

    def points(self, ask: ViewRequest) -> ViewResponse:
        """What is to be drawn of a signal: at most two points per pixel, exact records where they fit.

        With `residual=1` of a prediction: how far it is from what came.
        """
        name, number = ask.text("episode"), ask.number("signal", 0, 1 << 20)
        wants_residual = ask.number("residual", 0, 1, 0)
        track = self.residual(name, number) if wants_residual else self._track(name, number)
        if track is None:
            raise BadViewRequest(f"signal {number} is no prediction of another")
        base = ask.number("base", -_INT64, _INT64 - 1, 0)
        start, stop = (ask.number(key, -_INT64, _INT64 - 1) for key in ("from", "to"))
        plotted = track.window(start, stop, ask.number("width", 1, MAX_WIDTH))
        times = (plotted.times - base).astype(np.float64)
        return ViewResponse(
            pack_arrays({"exact": plotted.is_exact}, {"times": times, "values": plotted.values}), _ARRAYS
        )

    def at(self, ask: ViewRequest) -> Json:
        """The record of every signal that holds at a time, with its age."""
        name, ts_ns = ask.text("episode"), ask.number("at", -_INT64, _INT64 - 1)
        values = []
        for number, signal in _readable(self._episode(name)):
            if not len(signal):
                continue
            with contextlib.suppress(WarpError):  # damaged: its plot shows the error
                values.append({"signal": number, **_held(self._track(name, number), ts_ns)})
                if (residual := self.residual(name, number)) is not None:
                    values.append({"signal": number, "is_residual": True, **_held(residual, ts_ns)})
        return {"at_ns": str(ts_ns), "values": values}

    def times(self, ask: ViewRequest) -> ViewResponse:
        """The times of all frames of a camera."""
        track = self._track(ask.text("episode"), ask.number("signal", 0, 1 << 20))
        base = ask.number("base", -_INT64, _INT64 - 1, 0)
        if len(track.times) > MAX_FRAMES:
            raise BadViewRequest(
                f"{len(track.times)} frames, at most {MAX_FRAMES} are shown at once; open a window"
            )
        return ViewResponse(pack_arrays({}, {"times": (track.times - base).astype(np.float64)}), _ARRAYS)

    def frame(self, ask: ViewRequest) -> ViewResponse:
        """One frame of a camera as pixels."""
        name, number = ask.text("episode"), ask.number("signal", 0, 1 << 20)
        signal = self._camera(name, number)
        row = ask.number("row", 0, len(signal) - 1)
        limits = self._limits_of(name, number, signal)
        value, ts_ns = signal[row]
        pixels = as_pixels(value, limits)
        head = {"row": row, "ts_ns": str(ts_ns), "limits": limits}
        return ViewResponse(pack_arrays(head, {"pixels": pixels}), _ARRAYS)

    def packets(self, ask: ViewRequest) -> ViewResponse:
        """The encoded frames around one of a camera, for the decoder of the browser; nothing where it has none.

        With `needed=1` only those that decoding this one takes, with `many=1` also those of the groups that follow.
        """
        name, number = ask.text("episode"), ask.number("signal", 0, 1 << 20)
        signal = self._camera(name, number)
        row = ask.number("row", 0, len(signal) - 1)
        group = picture_group(signal, row, only_needed=bool(ask.number("needed", 0, 1, 0)))
        codec = None if group is None else web_codec(group.stream)
        if group is None or codec is None:
            return ViewResponse(pack_arrays({"codec": None}, {}), _ARRAYS)
        groups = [group]
        if ask.number("many", 0, 1, 0):
            groups += _groups_after(signal, group)
        packets = [packet for part in groups for packet in part.packets]
        head = {
            "codec": codec.name,
            "description": base64.b64encode(codec.description).decode(),
            "coded": [group.stream.coded_width, group.stream.coded_height],
            "rows": [row for part in groups for row in part.rows],
            "sizes": [len(packet) for packet in packets],
            "starts": np.cumsum([0, *(len(part.rows) for part in groups[:-1])]).tolist(),
        }
        return ViewResponse(pack_arrays(head, {"data": np.frombuffer(b"".join(packets), np.uint8)}), _ARRAYS)

    def video(self, ask: ViewRequest) -> tuple[RangeReader, str, str]:
        """The video of a camera, or sound, as a file: its bytes, type, and a name for it."""
        name, number = ask.text("episode"), ask.number("signal", 0, 1 << 20)
        signal = self._signal(name, number)
        called = list(self._episode(name).signals)[number]
        if signal.meta.kind == "sound":
            file = f"{name}-{called}".replace("/", "-") + ".wav"
            return BytesRangeReader(self.sound(name, number), file), "audio/wav", file
        signal = self._camera(name, number)
        camera = encoded_camera(called, signal)
        if camera is None:
            raise BadViewRequest(f"{called} is not stored as a video")
        kind = "video/x-matroska" if camera.suffix == ".mkv" else "video/mp4"
        return camera.video, kind, f"{name}-{called}".replace("/", "-") + camera.suffix

    def sound(self, name: str, number: int) -> bytes:
        """A sound signal as a WAV file."""
        key = (name, number, self.shown.snapshot.generation, len(self._signal(name, number)))
        return self._sounds.get(key, lambda: join_sound(self._signal(name, number)).wav())

    def errors(self, ask: ViewRequest) -> Json:
        """Where predictions are farthest from what came: times and distances, the worst first."""
        name = ask.text("episode")
        worst: list[dict[str, Any]] = []
        for number, _ in _readable(self._episode(name)):
            with contextlib.suppress(WarpError):  # damaged: its plot shows the error
                if (residual := self.residual(name, number)) is not None:
                    values = residual.values(0, len(residual.times))
                    distance = np.nan_to_num(np.sqrt((values**2).sum(axis=1)))
                    worst += [
                        {
                            "signal": number,
                            "at_ns": str(int(residual.times[at])),
                            "error": float(distance[at]),
                        }
                        for at in np.argsort(-distance, kind="stable")[:_WORST].tolist()
                    ]
        worst.sort(key=lambda each: -each["error"])
        return {"errors": worst[:_WORST]}

    def moments(self, ask: ViewRequest) -> Json:
        """Moments like one of an episode, the nearest first, where a vector index of the episodes is here."""
        name, ts_ns = ask.text("episode"), ask.number("at", -_INT64, _INT64 - 1)
        most = ask.number("most", 1, MAX_MOMENTS, MAX_MOMENTS)
        index = self.shown.moments()
        ids = set(self.shown.snapshot.ids)
        moments = index.like(
            self._episode(name), ts_ns, lambda each: self._episode(each) if each in ids else None, most=most
        )
        listed = [
            {
                "episode": moment.episode,
                "at_ns": str(moment.at_ns),
                "score": moment.score,
                "since_start_ns": moment.at_ns - self._episode(moment.episode).first_ts_ns,
            }
            for moment in moments
        ]
        return {"index": index.name, "measure": index.measure, "moments": listed}

    def history(self, _: ViewRequest) -> Json:
        """The edit log, newest first, and which edits are undone."""
        if self.shown.refusal is not None and self.shown.root is None:
            return {"edits": [], "dropped": [], "can_undo": False}
        log = self.shown.edits.log
        undone = {edit["undoes"] for edit in log if edit["op"] == "undo"}
        rows = [{**edit, "is_undone": edit["seq"] in undone} for edit in log[-200:]]
        return {
            "edits": rows[::-1],
            "dropped": self.shown.edits.dropped,
            "can_undo": any(edit["op"] != "undo" and edit["seq"] not in undone for edit in log),
        }

    # What changes something.

    def edit(self, ask: Mapping[str, Any]) -> Json:
        """Make an edit; the list and the episodes follow at once."""
        refusal = self._refusal or self.shown.refusal
        if refusal is not None:
            raise PermissionError(refusal)
        if str(ask.get("episode", "")) in self.shown.snapshot.unfinished:
            raise PermissionError("the recording goes on: edit it when it is finished")
        try:
            effect = make_edit(self.shown.edits, str(ask.get("op")), ask)
        except KeyError as error:
            raise BadViewRequest(f"{error.args[0]}") from None
        self.shown.show_changes()
        for kept in (self._episodes, self._tracks, self._limits, self._sounds):
            kept.forget()
        return {**effect.to_json(), "generation": self.shown.snapshot.generation}

    def check(self, _: Mapping[str, Any]) -> Json:
        """Begin to check all episodes."""
        self.health.is_wanted = True
        return self.checks(ViewRequest({}))

    def _episode(self, name: str) -> Episode:
        snapshot = self.shown.snapshot
        if name in snapshot.unfinished:  # it grows: what was read a moment ago is read again
            now = time.monotonic()
            if self._growing is None or self._growing[0] != name or now - self._growing[1] > _GROWING_S:
                self._growing = (name, now, snapshot.open(name))
            return self._growing[2]
        return self._episodes.get((name, snapshot.generation), lambda: snapshot.open(name))

    def _signal(self, name: str, number: int) -> Signal:
        signals = self._episode(name).signals
        names = list(signals)
        if number >= len(names):
            raise BadViewRequest(f"the episode has {len(names)} signals, no number {number}")
        return signals[names[number]]

    def _camera(self, name: str, number: int) -> Signal:
        signal = self._signal(name, number)
        if not is_camera(signal.meta) or not len(signal):
            raise BadViewRequest(f"signal {number} is no camera with frames")
        return signal

    def _track(self, name: str, number: int) -> Track:
        snapshot = self.shown.snapshot
        if name in snapshot.unfinished:
            return Track(self._signal(name, number))
        key = (name, number, snapshot.generation)
        return self._tracks.get(key, lambda: Track(self._signal(name, number)))

    def residual(self, name: str, number: int) -> Track | None:
        """How far a prediction is from what came; None for every other signal."""
        snapshot, signal = self.shown.snapshot, self._signal(name, number)
        truth = _truth_of(self._episode(name).signals, signal)
        if truth is None:
            return None

        def made() -> Track:
            guess, came = self._track(name, number), self._track(name, truth)
            rows = np.searchsorted(came.times, guess.times, side="right") - 1
            known = np.flatnonzero(rows >= 0)
            guessed = guess.values(0, len(guess.times))[known].astype(np.float64)
            return Track(
                ArraySignal(guess.times[known], guessed - came.values(0, len(came.times))[rows[known]])
            )

        if name in snapshot.unfinished:
            return made()
        return self._tracks.get((name, number, snapshot.generation, "residual"), made)

    def _limits_of(self, name: str, number: int, signal: Signal) -> Limits | None:
        key = (name, number, self.shown.snapshot.generation)
        return self._limits.get(key, lambda: limits_of(signal))


def _described(number: int, name: str, signal: Signal) -> dict[str, Any]:
    meta, count = signal.meta, len(signal)
    is_text = meta.is_object and meta.rows is None
    shows = "text" if is_text else "camera" if is_camera(meta) else "plot"
    described: dict[str, Any] = {
        "number": number,
        "name": name,
        "shows": shows,
        "kind": meta.kind,
        "dtype": str(meta.dtype if meta.rows is None else meta.rows.dtype),
        "shape": list(meta.shape),
        "role": meta.role,
        "of": meta.of,
        "model": meta.model,
        "units": meta.units,
        "names": meta.names if meta.rows is None else ["loudness" if meta.kind == "sound" else "rows"],
        "clock": meta.clock,
        "count": count,
    }
    if count:
        first, last = signal.first_ts_ns, signal.last_ts_ns
        rate = (count - 1) * 1e9 / (last - first) if last > first else None
        described |= {"first_ns": str(first), "last_ns": str(last), "rate_hz": rate}
    return described


def _groups_after(signal: Signal, group: PictureGroup) -> Iterator[PictureGroup]:
    """The groups behind one, as long as they are encoded alike and not too many bytes."""
    stream, size, row = group.stream, 0, max(group.rows) + 1
    while row < len(signal) and size < MANY_BYTES:
        following = picture_group(signal, row)
        if following is None or following.stream != stream:
            return
        yield following
        size += sum(map(len, following.packets))
        row = max(following.rows) + 1


def _happened(signal: Signal) -> Iterator[tuple[Any, int]]:
    """Texts of a signal with their times; one repeated at every step counts when it is new."""
    before: Any = None
    for value, ts in signal[:MAX_EVENTS]:
        if signal.meta.role == "event" or value != before:
            yield value, ts
        before = value


def _readable(episode: Episode) -> Iterator[tuple[int, Signal]]:
    """The signals by number, without those that are damaged: what `episode` answers names them."""
    for number, name in enumerate(episode.signals):
        try:
            signal = episode.signals[name]
        except WarpError:
            continue
        yield number, signal


def _drops(episode: Episode, number: int) -> list[tuple[int, int, int]]:
    """Where the recorder dropped frames of a camera: first time, last time, count; none where they are not readable."""
    try:
        spans = episode.meta["signals"][list(episode.signals)[number]]["drops"]
        return [(int(first), int(last), int(count)) for first, last, count in spans]
    except (KeyError, TypeError, ValueError):
        return []


def _truth_of(signals: Mapping[str, Signal], prediction: Signal) -> int | None:
    """The number of the signal that a prediction is of, where the two can be compared."""
    about = prediction.meta
    if about.role != "prediction" or about.of is None or about.is_object or is_camera(about):
        return None
    if about.of not in signals:
        return None
    try:
        truth = signals[about.of]
    except WarpError:  # damaged: reported by the signal
        return None
    is_alike = truth.meta.shape == about.shape and not truth.meta.is_object
    is_small = max(len(truth), len(prediction)) <= MAX_FRAMES
    return list(signals).index(about.of) if is_alike and is_small and len(truth) and len(prediction) else None


def _held(track: Track, ts_ns: int) -> dict[str, Any]:
    """The record that holds at a time, with its age."""
    signal, row = track.signal, track.row_at(ts_ns)
    if row < 0:
        return {"row": row}
    record: dict[str, Any] = {"row": row, "age_ns": ts_ns - int(track.times[row])}
    if signal.meta.is_object:
        record["text"] = str(signal[row][0])[:MAX_TEXT]
    elif not is_camera(signal.meta):
        record["values"] = track.values(row, row + 1)[0].tolist()
    return record
