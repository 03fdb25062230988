"""The receipt of a conversion: what became of every signal, with counts and hashes, and what the user supplied."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from warpdata._version import __version__
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.forms.content import ContentSum, sum_of
from warpdata.episodes.salvage.receipt import Receipt
from warpdata.errors import CorruptLayoutError, WarpError
from warpdata.timeline.signal import Signal

How = Literal["kept", "retyped", "resampled", "reencoded", "dropped"]
HOW: tuple[How, ...] = get_args(How)
RECEIPT_FILE = "warpdata.json"
"""In a folder that was exported: who wrote it, and the receipt."""
_WORDS = {
    "kept": "kept exactly", "retyped": "re-typed", "resampled": "resampled", "reencoded": "re-encoded",
    "dropped": "dropped",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Note:
    """What became of one signal of one episode."""

    how: How
    records: int
    bytes: int = 0
    sha256: str = ""
    """Of the values as little-endian bytes; of text, each with its length."""
    why: str = ""
    """What was changed, where something was."""
    max_age_ns: int = 0
    """Of a resampled signal: how old the oldest value was that stands for a step."""
    max_error_ns: int = 0
    """How far a record was moved in time."""
    xxh3_128: str = ""
    """Of the encoded frames of a camera in decoding order, in place of `sha256`; earlier releases wrote that one."""

    def to_json(self) -> dict[str, Any]:
        """As metadata keeps it: what is empty is left out."""
        found: dict[str, Any] = {"how": self.how, "records": self.records}
        for key in _LEFT_OUT:
            if value := getattr(self, key):
                found[key] = value
        return found

    @classmethod
    def from_json(cls, stated: Any) -> Note:
        """What `to_json` made."""
        try:
            made = cls(**stated)
        except TypeError:
            raise CorruptLayoutError("a note of an earlier conversion is damaged") from None
        if made.how not in HOW:
            raise CorruptLayoutError(f"a note of an earlier conversion says {made.how!r}")
        return made


_LEFT_OUT = tuple(each.name for each in fields(Note))[2:]
"""What a note does not say where it is empty."""


def note_of(signal: Signal, how: How = "kept", why: str = "", **more: int) -> Note:
    """A note with the count and the hash of a signal as it is before it is converted."""
    return noted(len(signal), sum_of(signal), how, why, **more)


def noted(records: int, found: ContentSum, how: How = "kept", why: str = "", **more: int) -> Note:
    """A note of a signal whose sum is known."""
    return Note(how, records, found.bytes, found.sha256, why, xxh3_128=found.xxh3_128, **more)


def called(note: Note, name: str, there: str) -> Note:
    """The note of a signal, with the name it has in the target where that is another one."""
    if name == there:
        return note
    return replace(note, why="; ".join([*([note.why] if note.why else []), f"called {there!r} there"]))


@dataclass(slots=True)
class SignalReceipt:
    """What became of one signal over all episodes."""

    counts: dict[str, int] = field(default_factory=dict)
    """In how many episodes it was kept, re-typed, …"""
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
        found: dict[str, Any] = {
            "how": self.how, "episodes": dict(self.counts), "records": self.records, "bytes": self.bytes,
            "sha256": self.digest.hexdigest(),
        }  # fmt: skip
        more = {"why": self.why, "max_age_ns": self.max_age_ns, "max_error_ns": self.max_error_ns}
        return found | {key: value for key, value in more.items() if value}


@dataclass(slots=True, repr=False)
class ConversionReceipt(Receipt):
    """What a conversion did; printed, as JSON, and kept in the metadata of the target."""

    work: str
    """`import` or `export`."""
    format: str
    source: str
    target: str
    version: str = ""
    """The version of the foreign format."""
    episodes: int = 0
    continued: int = 0
    """Episodes that an earlier run had finished."""
    skipped: list[dict[str, str]] = field(default_factory=list)
    """Source episodes that could not be read, each with its id and error."""
    supplied: dict[str, Any] = field(default_factory=dict)
    """What the user said that the source does not: fps, a mapping, …"""
    signals: dict[str, SignalReceipt] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What concerns no single signal."""
    episode_notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of an export: step times and static items of the episodes, by the id under which they are read again."""

    @classmethod
    def of_export(
        cls,
        format: str,  # noqa: A002 - the word of the commands
        episodes: Episodes,
        target: str | os.PathLike[str],
        version: str = "",
        supplied: Mapping[str, Any] | None = None,
    ) -> ConversionReceipt:
        """The receipt of an export that begins; it says where the rate of the steps is from."""
        made = cls("export", format, episodes.source.name, os.fspath(target), version)
        made.supplied = dict(supplied or {})
        made.tell_rate(episodes)
        return made

    def tell_rate(self, episodes: Episodes) -> None:
        """Say where the rate of the steps is from, unless the source states it."""
        about = _first_meta(episodes)
        if about.get("fps_from") == "user":
            self.supplied.setdefault("fps", about.get("fps"))
        if about.get("fps_from") == "assumed":
            self.notes.append(
                f"the source does not say its rate: {about.get('fps'):g} steps a second are assumed; say fps= (--fps)"
            )

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
        return self.is_complete and all(set(each.counts) == {"kept"} for each in self.signals.values())

    def to_json(self) -> dict[str, Any]:
        """The whole receipt; equal for a run that was interrupted and continued, but for `continued`."""
        return {
            "work": self.work, "format": self.format, "version": self.version, "source": self.source,
            "target": self.target, "episodes": self.episodes, "continued": self.continued,
            "exact": self.is_exact, "skipped": list(self.skipped), "supplied": dict(self.supplied),
            "notes": list(self.notes),
            # By name: an episode that an earlier run finished gives them in no other order.
            "signals": {name: each.to_json() for name, each in sorted(self.signals.items())},
        }  # fmt: skip

    def to_keep(self) -> dict[str, Any]:
        """What is kept in the target: the same bytes wherever that lies and however often a run was interrupted."""
        return {key: value for key, value in self.to_json().items() if key not in ("continued", "target")}

    def document(self) -> bytes:
        """What an exported set keeps of it."""
        found = {"writer": f"warpdata {__version__}", "receipt": self.to_keep()}
        return dump_json({**found, **({"episodes": self.episode_notes} if self.episode_notes else {})})

    def lines(self) -> Iterator[str]:
        """The receipt for a person."""
        version = f" {self.version}" if self.version else ""
        verb = "imported from" if self.work == "import" else "exported as"
        yield f"{self.episodes} episodes {verb} {self.format}{version}: {self.source} -> {self.target}"
        if self.continued:
            yield f"  {self.continued} of them were finished by an earlier run"
        for name, each in sorted(self.signals.items()):
            yield f"  {name}: {_said(each)}"
        for key, value in self.supplied.items():
            yield f"  supplied by you: {key} = {value}"
        for note in self.notes:
            yield f"  {note}"
        for left_out in self.skipped:
            yield f"  skipped {left_out['id']}: {left_out['error']}"


def _first_meta(episodes: Episodes) -> Mapping[str, Any]:
    """The metadata of the first episode that can be read."""
    for position in range(len(episodes)):
        try:
            return episodes[position].meta
        except WarpError:
            continue
    return {}


def _said(each: SignalReceipt) -> str:
    many = len(each.counts) > 1
    hows = ", ".join(_WORDS[how] + (f" in {count}" if many else "") for how, count in each.counts.items())
    text = f"{hows}, {each.records} records"
    if each.max_age_ns or each.max_error_ns:
        text += (
            f", oldest value {each.max_age_ns / 1e6:g} ms, moved by at most {each.max_error_ns / 1e6:g} ms"
        )
    return text + (f" ({'; '.join(each.why)})" if each.why else "")


def dropped(names: Iterable[str], why: str) -> dict[str, Note]:
    """Notes for signals that the target cannot hold."""
    return {name: Note("dropped", 0, why=why) for name in names}
