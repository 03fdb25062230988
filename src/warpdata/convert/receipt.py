"""Receipts of conversions, and the notes that an exported set keeps about its episodes.

A receipt lists what became of every signal, with counts and hashes. An export writes it into the set
(`warpdata.json`), together with the step times and static items that the layout has no place for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from warpdata._version import __version__
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.convert.aligning import EXACT_NS, Times, grid_times, measured_rate, stated_rate
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.forms.content import ContentSum, sum_of
from warpdata.episodes.salvage.receipt import Receipt
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError, WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

How = Literal["kept", "retyped", "resampled", "reencoded", "cut", "dropped"]
HOW: tuple[How, ...] = get_args(How)
RECEIPT_FILE = "warpdata.json"
"""File of an exported folder with the receipt and the notes of its episodes."""
MAX_DOCUMENT_BYTES = 1 << 30
_ARRAY, _BYTES, _FLOAT, _STRINGS = "__array__", "__bytes__", "__float__", "__strings__"
MAX_VALUE_BYTES = 16 << 20
"""A larger item of metadata is refused: it would be copied with every episode."""
_WORDS = {
    "kept": "kept exactly",
    "retyped": "re-typed",
    "resampled": "resampled",
    "reencoded": "re-encoded",
    "cut": "kept except at the end",
    "dropped": "dropped",
}


@dataclass(frozen=True, slots=True)
class Note:
    """What became of one signal of one episode."""

    how: How
    records: int
    bytes: int = 0
    sha256: str = ""
    """Of the values as little-endian bytes; of text, each with its length."""
    why: str = ""
    """The change, if there was one."""
    max_age_ns: int = 0
    """Of a resampled signal: age of the oldest value at its step."""
    max_error_ns: int = 0
    """Farthest distance that a record was moved in time."""
    xxh3_128: str = ""
    """Of the encoded frames of a camera in decoding order, in place of `sha256`."""

    def to_json(self) -> dict[str, Any]:
        """The note as metadata keeps it, without empty fields."""
        optional = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        stated = {name: value for name, value in optional.items() if value}
        return {"how": self.how, "records": self.records, **stated}

    @classmethod
    def from_json(cls, stated: Any) -> Note:
        """The note that `to_json` gave."""
        try:
            note = cls(**stated)
        except TypeError:
            raise CorruptLayoutError("a note of an earlier conversion is damaged") from None
        if note.how not in HOW:
            raise CorruptLayoutError(f"unknown word in a note of an earlier conversion: {note.how!r}")
        return note


def note_of(
    signal: Signal, how: How = "kept", why: str = "", *, known: ContentSum | None = None, **more: int
) -> Note:
    """A note with the count and the hash of a signal before its conversion; `known` is that hash, if available."""
    total = known or sum_of(signal)
    return Note(how, len(signal), total.bytes, total.sha256, why, xxh3_128=total.xxh3_128, **more)


def metadata_of(meta: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Metadata that a format keeps under its name; empty if there are none."""
    kept = meta.get(key)
    return kept if isinstance(kept, Mapping) else {}


def rename(note: Note, name: str, there: str) -> Note:
    """The note of a signal that has another name in the target."""
    if name == there:
        return note
    return replace(note, why="; ".join([*([note.why] if note.why else []), f"called {there!r} there"]))


@dataclass(slots=True)
class SignalReceipt:
    """What became of one signal over all episodes."""

    counts: dict[str, int] = field(default_factory=dict)
    """Number of episodes in which it was kept, re-typed, …"""
    records: int = 0
    bytes: int = 0
    why: list[str] = field(default_factory=list)
    max_age_ns: int = 0
    max_error_ns: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, note: Note) -> None:
        """Count one more episode."""
        self.counts[note.how] = self.counts.get(note.how, 0) + 1
        self.records += note.records
        self.bytes += note.bytes
        self.max_age_ns = max(self.max_age_ns, note.max_age_ns)
        self.max_error_ns = max(self.max_error_ns, note.max_error_ns)
        if note.why and note.why not in self.why:
            self.why.append(note.why)
        self.digest.update((note.sha256 or note.xxh3_128).encode())

    @property
    def how(self) -> str:
        """The strongest change in any episode."""
        return max(self.counts, key=lambda how: HOW.index(how) if how in HOW else 0)

    def to_json(self) -> dict[str, Any]:
        """As receipts keep it; the hash is over the hashes of the episodes in order."""
        required = {"how": self.how, "episodes": dict(self.counts), "records": self.records}
        optional = {"why": self.why, "max_age_ns": self.max_age_ns, "max_error_ns": self.max_error_ns}
        stated = {key: value for key, value in optional.items() if value}
        return {**required, "bytes": self.bytes, "sha256": self.digest.hexdigest(), **stated}

    def __str__(self) -> str:
        is_mixed = len(self.counts) > 1
        hows = (_WORDS[how] + (f" in {count}" if is_mixed else "") for how, count in self.counts.items())
        text = f"{', '.join(hows)}, {self.records} records"
        if self.max_age_ns or self.max_error_ns:
            age, error = self.max_age_ns / 1e6, self.max_error_ns / 1e6
            text += f", oldest value {age:g} ms, moved by at most {error:g} ms"
        return text + (f" ({'; '.join(self.why)})" if self.why else "")


@dataclass(slots=True, repr=False)
class ConversionReceipt(Receipt):
    """What a conversion did; printed, as JSON, and kept in the metadata of the target."""

    work: str
    """`import` or `export`."""
    format: str
    source: str
    target: str
    version: str = ""
    """Version of the foreign format."""
    episodes: int = 0
    continued: int = 0
    """Episodes that an earlier run finished."""
    skipped: list[dict[str, str]] = field(default_factory=list)
    """Source episodes that could not be read, each with its id and error."""
    supplied: dict[str, Any] = field(default_factory=dict)
    """Facts from the user that the source does not state: fps, a mapping, …"""
    signals: dict[str, SignalReceipt] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Remarks that concern no single signal."""
    episode_notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of an export: `EpisodeNotes` by the id under which an episode is read again."""

    @classmethod
    def of_export(
        cls,
        format: str,  # noqa: A002 - the word of the commands
        episodes: Episodes,
        target: str | os.PathLike[str],
        version: str = "",
        supplied: Mapping[str, Any] | None = None,
    ) -> ConversionReceipt:
        """The receipt of an export that begins, with the origin of its rate."""
        receipt = cls("export", format, episodes.source.name, os.fspath(target), version)
        receipt.supplied = dict(supplied or {})
        receipt.add_rate(episodes)
        return receipt

    def add_rate(self, episodes: Episodes) -> None:
        """Note a rate that the user gave or that was assumed, from the first readable episode."""
        for position in range(len(episodes)):
            try:
                meta = episodes[position].meta
            except WarpError:
                continue
            if meta.get("fps_from") == "user":
                self.supplied.setdefault("fps", meta.get("fps"))
            if meta.get("fps_from") == "assumed":
                rate = f"{meta.get('fps'):g} steps a second are assumed"
                self.notes.append(
                    f"the source does not state its rate: {rate}; give fps= (--rate of an import, else --read fps=)"
                )
            return

    def add(self, notes: Mapping[str, Note]) -> None:
        """Count one more episode, in the order of the source."""
        self.episodes += 1
        for name, note in notes.items():
            self.signals.setdefault(name, SignalReceipt()).add(note)

    def skip(self, episode_id: str, error: BaseException) -> None:
        """Note an episode that could not be read."""
        self.skipped.append({"id": episode_id, "error": str(error)})

    @property
    def is_complete(self) -> bool:
        """Whether every episode could be read."""
        return not self.skipped

    @property
    def is_exact(self) -> bool:
        """Whether every signal of every episode was kept exactly."""
        return self.is_complete and all(set(signal.counts) == {"kept"} for signal in self.signals.values())

    def to_json(self) -> dict[str, Any]:
        """The whole receipt; equal for an interrupted and continued run, except for `continued`."""
        plain = ("work", "format", "version", "source", "target", "episodes", "continued")
        return {
            **{key: getattr(self, key) for key in plain},
            "exact": self.is_exact,
            "skipped": list(self.skipped),
            "supplied": dict(self.supplied),
            "notes": list(self.notes),
            "signals": {name: signal.to_json() for name, signal in sorted(self.signals.items())},
        }

    def to_keep(self) -> dict[str, Any]:
        """The part that the target keeps: the same for every target path and number of interruptions."""
        return {key: value for key, value in self.to_json().items() if key not in ("continued", "target")}

    def document(self) -> bytes:
        """The document of an exported set."""
        document = {"writer": f"warpdata {__version__}", "receipt": self.to_keep()}
        return dump_json({**document, **({"episodes": self.episode_notes} if self.episode_notes else {})})

    def lines(self) -> Iterator[str]:
        """The receipt for a person."""
        version = f" {self.version}" if self.version else ""
        verb = "imported from" if self.work == "import" else "exported as"
        yield f"{self.episodes} episodes {verb} {self.format}{version}: {self.source} -> {self.target}"
        if self.continued:
            yield f"  {self.continued} of them were finished by an earlier run"
        yield from (f"  {name}: {signal}" for name, signal in sorted(self.signals.items()))
        yield from (f"  supplied by you: {key} = {value}" for key, value in self.supplied.items())
        yield from (f"  {note}" for note in self.notes)
        yield from (f"  skipped {entry['id']}: {entry['error']}" for entry in self.skipped)


@dataclass(frozen=True, slots=True)
class EpisodeNotes:
    """Step times and static items of one exported episode, as the document of its set keeps them.

    A note is used only for an episode with the same number of steps: a set that was changed since is read without it.
    """

    steps: int
    """Rows of the episode in the set."""
    fps: float | None = None
    start_ns: int = 0
    times: Times | None = None
    """Time of every step and of the observation after the last one, where they are not evenly spaced."""
    static: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    """Id of the episode before the export."""
    is_assumed: bool = False
    """Whether the source did not state the rate."""

    @classmethod
    def of(cls, episode: Episode, steps: int, times: Times, *, is_assumed: bool = False) -> EpisodeNotes:
        """Notes of an episode with `steps` rows in the set; `is_assumed` marks a rate the source did not state."""
        static = pack(dict(episode.static))
        if not len(times):
            return cls(steps, static=static)
        stated, start = stated_rate(episode.meta.get("fps")), int(times[0])
        for fps in (stated, measured_rate(times)):
            if fps is None:
                continue
            if int(np.abs(times - grid_times(len(times), fps, start)).max()) <= EXACT_NS:
                return cls(steps, fps, start, static=static, is_assumed=is_assumed)
        if len(times) == 1:
            return cls(steps, stated, start, static=static)
        return cls(steps, measured_rate(times), start, times, static)

    def to_json(self) -> dict[str, Any]:
        """The note as JSON, without empty fields; the id is added by the export."""
        optional = {
            "fps": self.fps,
            "assumed": self.is_assumed,
            "start_ns": self.start_ns,
            "times_ns": None if self.times is None else pack(self.times),
            "static": dict(self.static),
        }
        return {"steps": self.steps, **{key: value for key, value in optional.items() if value}}

    @classmethod
    def from_json(cls, stated: Any) -> EpisodeNotes | None:
        """The note that `to_json` gave; None of anything else."""
        if not isinstance(stated, Mapping) or not isinstance(stated.get("steps"), int):
            return None
        steps, static, start = stated["steps"], stated.get("static", {}), stated.get("start_ns", 0)
        if not isinstance(static, Mapping) or not isinstance(start, int) or isinstance(start, bool):
            return None
        try:
            times, static = unpack(stated.get("times_ns")), unpack(static)
        except WarpError:
            return None
        if times is not None:
            is_array = isinstance(times, np.ndarray) and times.ndim == 1 and times.dtype == np.int64
            if not is_array or abs(len(times) - steps) > 1 or not (np.diff(times) > 0).all():
                return None
        name, is_assumed = str(stated.get("id") or ""), stated.get("assumed") is True
        return cls(steps, stated_rate(stated.get("fps")), start, times, static, name, is_assumed)


def parse_notes(document: bytes | None) -> dict[str, EpisodeNotes]:
    """The notes of all episodes by id; empty if the document is missing, damaged or of another program."""
    if document is None:
        return {}
    try:
        stated = parse_json_object(document, max_bytes=MAX_DOCUMENT_BYTES).get("episodes")
    except FormatError:
        return {}
    entries = stated.items() if isinstance(stated, Mapping) else ()
    notes = {name: EpisodeNotes.from_json(entry) for name, entry in entries}
    return {name: note for name, note in notes.items() if note is not None}


def pack(value: Any) -> Any:
    """A value as JSON holds it: arrays keep dtype and shape, bytes stay bytes, invalid UTF-8 becomes `\\xff`."""
    if isinstance(value, list | tuple):  # mostly numbers, thousands of them in some sets
        types = set(map(type, value))
        is_plain = types <= {int, bool} or (types == {float} and all(map(math.isfinite, value)))
        return list(value) if is_plain else [pack(item) for item in value]
    if value is None or type(value) in (bool, int):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _packed_array(np.asarray(value))
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): pack(item) for key, item in value.items()}
    raise TypeError(f"unsupported type of metadata: {type(value).__name__}")


def _packed_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.nbytes > MAX_VALUE_BYTES:
        raise LimitExceededError(f"an item of metadata of {array.nbytes} bytes")
    if array.dtype.kind in "OU":
        texts = [
            item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else pack(str(item))
            for item in array.ravel()
        ]
        return {_STRINGS: texts, "shape": list(array.shape)}
    if array.dtype.kind not in "biufcS":
        raise TypeError(f"unsupported type of metadata: an array of {array.dtype}")
    raw = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {_ARRAY: raw, "dtype": array.dtype.str, "shape": list(array.shape)}


def unpack(value: Any) -> Any:
    """The value that `pack` was given; CorruptLayoutError if the JSON is damaged."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    try:
        if _ARRAY in value:
            array = np.frombuffer(base64.b64decode(value[_ARRAY]), np.dtype(value["dtype"]))
            array = array.reshape(value["shape"])
            return array if value["shape"] else array[()]
        if _STRINGS in value:
            texts = np.empty(len(value[_STRINGS]), object)
            texts[:] = value[_STRINGS]
            return texts.reshape(value["shape"])
        if _BYTES in value:
            return base64.b64decode(value[_BYTES])
        if _FLOAT in value:
            return float(value[_FLOAT])
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise CorruptLayoutError(f"damaged item of kept metadata ({error})") from None
    return {key: unpack(item) for key, item in value.items()}
