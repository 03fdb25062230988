"""Edits of a dataset as a log: recordings never change, every edit can be undone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.sources.disk_episode import DirectorySource
from warpdata.errors import (
    ConflictError,
    CorruptLayoutError,
    RecordingError,
    StoreError,
    TimeRangeError,
)
from warpdata.formats.episodedir.documents import (
    Folder,
    append_edit,
    check_name,
    episode_path,
    plain_static,
    read_log,
    restored_static,
)
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import JoinedSignal
from warpdata.timeline.signal import Signal, SignalView, window
from warpdata.timeline.source import EpisodeSource, LazySignals
from warpdata.timeline.times import as_int

_FILE_KEYS = ("signals", "static_file")
"""Metadata about the files of a recording, which an edited episode does not have."""


@dataclass(frozen=True, slots=True)
class RecordingPart:
    """Some of a recording: a window of time, maybe moved."""

    number: int
    start_ns: int | None = None
    end_ns: int | None = None
    shift_ns: int = 0
    static: Mapping[str, Any] | None = None
    """Static items that were edited before it was joined to others: they stand before those of the later parts."""

    @property
    def is_whole(self) -> bool:
        """Whether this is all of a recording, as it was made."""
        return self.start_ns is None and self.end_ns is None and not self.shift_ns and not self.static

    def cut(self, start_ns: int | None, end_ns: int | None) -> RecordingPart:
        """The part inside a window of shown time."""
        starts = [self.start_ns, None if start_ns is None else start_ns - self.shift_ns]
        ends = [self.end_ns, None if end_ns is None else end_ns - self.shift_ns]
        start = max((bound for bound in starts if bound is not None), default=None)
        return replace(
            self, start_ns=start, end_ns=min((bound for bound in ends if bound is not None), default=None)
        )


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """One episode of a dataset as readers see it."""

    id: str
    parts: tuple[RecordingPart, ...]
    static: Mapping[str, Any] = field(default_factory=dict)
    is_dropped: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether this is a recording as it was made."""
        return len(self.parts) == 1 and not self.static and not self.is_dropped and self.parts[0].is_whole

    def cut(self, start_ns: int | None, end_ns: int | None) -> tuple[RecordingPart, ...]:
        """The parts inside a window of shown time."""
        if start_ns is not None and end_ns is not None and start_ns >= end_ns:
            raise ValueError(f"the end {end_ns} is not after the start {start_ns}")
        return tuple(part.cut(start_ns, end_ns) for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """The entry for a program."""
        parts = []
        for part in self.parts:
            window = {"start_ns": part.start_ns, "end_ns": part.end_ns, "shift_ns": part.shift_ns}
            static = {"static": dict(part.static)} if part.static else {}
            parts.append({"episode": f"{part.number:012d}", **window, **static})
        return {"id": self.id, "parts": parts, "static": dict(self.static), "dropped": self.is_dropped}


@dataclass(frozen=True, slots=True)
class Effect:
    """What an edit changes: the entries before and after, and its number in the log (None in a dry run)."""

    before: list[EpisodeEntry]
    after: list[EpisodeEntry]
    seq: int | None

    def to_json(self) -> dict[str, Any]:
        """The effect for a program."""
        before, after = ([entry.to_json() for entry in entries] for entries in (self.before, self.after))
        return {"seq": self.seq, "before": before, "after": after}


class Edits:
    """The edit log of a dataset root: read it, apply it, add to it, undo."""

    def __init__(self, root: Folder) -> None:
        self.root = root
        self.log, self.is_foreign = read_log(root)

    @staticmethod
    def plain(numbers: Sequence[int]) -> list[EpisodeEntry]:
        """The recordings as they were made."""
        return [EpisodeEntry(f"{number:012d}", (RecordingPart(number),)) for number in numbers]

    def apply(self, numbers: Sequence[int]) -> Sequence[EpisodeEntry]:
        """The episodes readers see."""
        return [entry for entry in self._fold(self.log, numbers) if not entry.is_dropped]

    @property
    def dropped(self) -> list[str]:
        """The episodes that are hidden: `undrop` shows them again."""
        return [entry.id for entry in self._fold(self.log, self._mentioned({})) if entry.is_dropped]

    def showing(self, number: int) -> list[EpisodeEntry]:
        """The episodes that readers see of this recording."""
        numbers = self._numbers_in({"episode": f"{number:012d}"})
        return [entry for entry in self.apply(numbers) if any(part.number == number for part in entry.parts)]

    # One method per operation.

    def drop(self, episode_id: str | int, *, dry_run: bool = False) -> Effect:
        """Hide an episode."""
        return self._add({"op": "drop", "episode": self._log_name(episode_id)}, dry_run=dry_run)

    def undrop(self, episode_id: str | int, *, dry_run: bool = False) -> Effect:
        """Show a dropped episode again."""
        return self._add({"op": "undrop", "episode": self._log_name(episode_id)}, dry_run=dry_run)

    def set_static(self, episode_id: str | int, name: str, value: Any, *, dry_run: bool = False) -> Effect:
        """Give a static item another value for readers."""
        plain = plain_static(check_name(name), value)
        edit = {"op": "set_static", "episode": self._log_name(episode_id), "name": name, "value": plain}
        return self._add(edit, dry_run=dry_run)

    def trim(
        self, episode_id: str | int, start_ns: int | None, end_ns: int | None, *, dry_run: bool = False
    ) -> Effect:
        """Show only the records with start <= ts < end."""
        start, end = (None if bound is None else as_int(bound, "a time") for bound in (start_ns, end_ns))
        edit = {"op": "trim", "episode": self._log_name(episode_id), "start_ns": start, "end_ns": end}
        return self._add(edit, dry_run=dry_run)

    def split(self, episode_id: str | int, at_ns: int, *, dry_run: bool = False) -> Effect:
        """Show one episode as two: before `at_ns`, and from it on."""
        edit = {"op": "split", "episode": self._log_name(episode_id), "at_ns": as_int(at_ns, "a time")}
        return self._add(edit, dry_run=dry_run)

    def concat(
        self, episode_ids: Sequence[str | int], *, gap_ns: int | None = None, dry_run: bool = False
    ) -> Effect:
        """Show several episodes as one; with `gap_ns` later ones are moved to follow the one before."""
        names = [self._log_name(episode_id) for episode_id in episode_ids]
        edit: dict[str, Any] = {"op": "concat", "episodes": names}
        if gap_ns is not None:
            edit["shifts_ns"] = self._shifts(names, as_int(gap_ns, "a gap"))
        return self._add(edit, dry_run=dry_run)

    def undo(self, seq: int | None = None, *, dry_run: bool = False) -> Effect:
        """Take back an edit, by default the last one that still holds."""
        undone = {edit["undoes"] for edit in self.log if edit["op"] == "undo"}
        active = [e["seq"] for e in self.log if e["op"] != "undo" and e["seq"] not in undone]
        wanted = (active[-1] if active else None) if seq is None else seq
        if wanted not in active:
            raise ValueError("there is no edit to undo" if seq is None else f"no edit {seq} to undo")
        return self._add({"op": "undo", "undoes": wanted}, dry_run=dry_run)

    def redo(self, *, dry_run: bool = False) -> Effect:
        """Make the edit again that was taken back last, unless another one was made since."""
        taken_back: list[Mapping[str, Any]] = []
        for edit in self.log:
            if edit["op"] == "undo":
                taken_back.append(self.log[edit["undoes"] - 1])
            else:
                taken_back = taken_back[:-1] if "redoes" in edit else []
        if not taken_back:
            raise ValueError("there is no edit to make again")
        again = {key: value for key, value in taken_back[-1].items() if key not in ("seq", "ts_ns")}
        return self._add({**again, "redoes": taken_back[-1]["seq"]}, dry_run=dry_run)

    # Adding.

    def _log_name(self, episode_id: str | int) -> str:
        """The name of an episode in the log."""
        if isinstance(episode_id, int) and not isinstance(episode_id, bool):
            return f"{episode_id:012d}"
        if isinstance(episode_id, str) and episode_id:
            return episode_id.zfill(12) if episode_id.isdigit() else episode_id
        raise TypeError(f"an episode id is a number or a string, not {episode_id!r}")

    def _add(self, edit: dict[str, Any], *, dry_run: bool) -> Effect:
        if self.is_foreign:
            raise CorruptLayoutError("edits.jsonl belongs to another program", path=str(self.root))
        while True:
            try:
                return self._try_to_add(edit, dry_run=dry_run)
            except ConflictError:  # another process was quicker: look again at what there is now
                continue

    def _try_to_add(self, edit: dict[str, Any], *, dry_run: bool) -> Effect:
        self.log, _ = read_log(self.root)
        numbers = self._numbers_in(edit)
        before = self._fold(self.log, numbers)
        full = {"seq": len(self.log) + 1, "ts_ns": time.time_ns(), **edit}
        after = self._fold([*self.log, full], numbers)
        for entry in after:
            if entry not in before:
                self._check(entry, before, edit)
        if not dry_run:
            append_edit(self._here, full)
            self.log.append(full)
        removed = [entry for entry in before if entry not in after]
        added = [entry for entry in after if entry not in before]
        return Effect(removed, added, None if dry_run else full["seq"])

    def _check(self, entry: EpisodeEntry, before: list[EpisodeEntry], edit: Mapping[str, Any]) -> None:
        """Raise unless a changed episode can be shown: its parts join, a cut keeps a record, names are unique."""
        if len(entry.parts) == 1 and edit["op"] not in ("trim", "split", "set_static", "concat"):
            return  # a damaged recording can still be dropped
        episode = self._open(entry)
        if len(entry.parts) > 1:
            for name in episode.signals:
                _ = episode[name]
        if edit["op"] in ("trim", "split") and not any(map(len, episode.signals.values())):
            whole = self._open(next(entry for entry in before if entry.id == edit["episode"]))
            filled = [signal for signal in whole.signals.values() if len(signal)]
            first_ns = min((signal.first_ts_ns for signal in filled), default=None)
            last_ns = max((signal.last_ts_ns for signal in filled), default=None)
            raise TimeRangeError(
                f"{edit['op']} leaves no record in episode {entry.id!r}: its times are {first_ns} to {last_ns}",
                path=str(self.root),
            )
        if edit["op"] in ("set_static", "concat"):
            both = sorted(set(episode.static) & set(episode.signals))
            if both:
                raise RecordingError(f"{both[0]!r} is a signal of episode {entry.id!r}", path=str(self.root))

    def _numbers_in(self, edit: dict[str, Any]) -> list[int]:
        """The recordings that this edit and the log mention; they must exist."""
        numbers = self._mentioned(edit)
        for number in numbers:
            if not episode_path(self._here, number).is_dir():
                raise KeyError(f"no episode {number:012d} in {self.root}")
        return numbers

    def _mentioned(self, edit: dict[str, Any]) -> list[int]:
        names = [
            name for e in (*self.log, edit) for name in (e.get("episode"), *e.get("episodes", ())) if name
        ]
        return sorted({int(part.split("-")[0]) for name in names for part in name.split("+")})

    def _shifts(self, names: list[str], gap_ns: int) -> list[int]:
        entries = {e.id: e for e in self._fold(read_log(self.root)[0], self._numbers_in({"episodes": names}))}
        shifts, end = [0], self._open(entries[names[0]]).last_ts_ns
        for name in names[1:]:
            episode = self._open(entries[name])
            if not any(map(len, episode.signals.values())):
                raise ValueError(f"episode {name!r} has no records to move")
            shifts.append(end + gap_ns - episode.first_ts_ns)
            end = episode.last_ts_ns + shifts[-1]
        return shifts

    def _open(self, entry: EpisodeEntry) -> Episode:
        parts = [DirectorySource(episode_path(self._here, part.number)) for part in entry.parts]
        return Episode(EditedSource(entry, parts))

    @property
    def _here(self) -> Path:
        """The root on this machine: the only place where edits can be added."""
        if isinstance(self.root, Path):
            return self.root
        hint = "Edit a copy of the root on a local disk."
        raise StoreError("a root in a store is read only", path=self.root.name, hint=hint)

    def _fold(self, log: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> list[EpisodeEntry]:
        """Apply every edit that was not undone, in order."""
        undone = {edit.get("undoes") for edit in log if edit.get("op") == "undo"}
        entries = {entry.id: entry for entry in self.plain(numbers)}
        for edit in log:
            if edit.get("op") == "undo" or edit["seq"] in undone:
                continue
            change = _CHANGES.get(str(edit.get("op")))
            if change is None:
                raise CorruptLayoutError(f"edit {edit['seq']} is a {edit.get('op')!r}", path=str(self.root))
            names = edit["episodes"] if "episodes" in edit else [edit["episode"]]
            missing = [name for name in names if name not in entries]
            if missing:
                raise KeyError(
                    f"edit {edit.get('seq')} ({edit.get('op')}) needs episode {missing[0]!r}, which is not there"
                )
            changed = change([entries[name] for name in names], edit)
            replaced: dict[str, EpisodeEntry] = {}
            for name, entry in entries.items():
                if name == names[0]:
                    replaced |= {entry.id: entry for entry in changed}
                elif name not in names:
                    replaced[name] = entry
            entries = replaced
        return list(entries.values())


def _split(entries: list[EpisodeEntry], edit: Mapping[str, Any]) -> list[EpisodeEntry]:
    entry = entries[0]
    halves = ((1, None, edit["at_ns"]), (2, edit["at_ns"], None))
    return [
        replace(entry, id=f"{entry.id}-{half}", parts=entry.cut(start, end)) for half, start, end in halves
    ]


def _concat(entries: list[EpisodeEntry], edit: Mapping[str, Any]) -> list[EpisodeEntry]:
    names = edit["episodes"]
    if len(set(names)) != len(names) or len(names) < 2:
        raise ValueError("concat takes two or more different episodes")
    shifts = edit.get("shifts_ns") or [0] * len(names)
    parts = tuple(
        replace(part, shift_ns=part.shift_ns + shift, static={**(part.static or {}), **entry.static})
        for entry, shift in zip(entries, shifts, strict=True)
        for part in entry.parts
    )
    return [EpisodeEntry("+".join(names), parts)]


Change = Callable[[list[EpisodeEntry], Mapping[str, Any]], list[EpisodeEntry]]

_CHANGES: dict[str, Change] = {
    "drop": lambda entries, _: [replace(entries[0], is_dropped=True)],
    "undrop": lambda entries, _: [replace(entries[0], is_dropped=False)],
    "set_static": lambda entries, edit: [
        replace(entries[0], static={**entries[0].static, edit["name"]: edit["value"]})
    ],
    "trim": lambda entries, edit: [
        replace(entries[0], parts=entries[0].cut(edit["start_ns"], edit["end_ns"]))
    ],
    "split": _split,
    "concat": _concat,
}
"""Operation -> what becomes of the entries that it names."""


class EditedSource(EpisodeSource):
    """An episode as the edits show it: the signals of all recordings cut, moved and joined; these are untouched."""

    def __init__(self, entry: EpisodeEntry, parts: Sequence[EpisodeSource]) -> None:
        self.entry, self._parts = entry, list(parts)
        signals = LazySignals(lambda: (name for part in parts for name in part.signals), self._open_signal)
        super().__init__(entry.id, signals, self._read_static, self._read_meta, place=parts[0].place)

    def _open_signal(self, name: str) -> Signal:
        signals: list[Signal] = []
        for source, part in zip(self._parts, self.entry.parts, strict=True):
            if name in source.signals:
                cut = window(source.signals[name], slice(part.start_ns, part.end_ns))
                signals.append(SignalView(cut, range(len(cut)), shift_ns=part.shift_ns))
        return signals[0] if len(signals) == 1 else JoinedSignal(signals)

    def _read_static(self) -> dict[str, Any]:
        """Static items of the parts, the first one's before the others', then the edited values."""
        items: dict[str, Any] = {}
        for source, part in zip(reversed(self._parts), reversed(self.entry.parts), strict=True):
            items |= {**source.static, **restored_static(dict(part.static or {}))}
        return {**items, **restored_static(dict(self.entry.static))}

    def _read_meta(self) -> dict[str, Any]:
        """The metadata of the first recording, and what was edited; without its file entries."""
        kept = dict(self._parts[0].meta)
        if not self.is_whole:  # other records than the files have
            kept = {key: value for key, value in kept.items() if key not in _FILE_KEYS}
        uids = [str(part.meta.get("uid") or part.id) for part in self._parts]
        origin = {"recordings": uids, "edited": self.entry.to_json()}
        # The identity follows from the recordings and the edits: the same ones give the same episode.
        return {**kept, **origin, "uid": sha256_hex(dump_json(origin))[:32]}

    @property
    def address(self) -> str | None:
        """The root around the recordings, and the id in it."""
        root = None if self.place is None else os.path.dirname(os.path.dirname(self.place))
        return None if root is None else f"{root}#{self.id}"

    @property
    def is_whole(self) -> bool:
        """Whether every record of one recording is shown as it is, so that only static items may differ."""
        return len(self.entry.parts) == 1 and self.entry.parts[0].is_whole

    @property
    def recording(self) -> EpisodeSource:
        """The recording behind it as it was made; an error for several joined ones."""
        if len(self._parts) > 1:
            raise ValueError(f"episode {self.id!r} is made of {len(self._parts)} recordings")
        return self._parts[0]

    def stored_bytes(self) -> int:
        """What the recordings behind it take."""
        return sum(part.stored_bytes() for part in self._parts)

    def loaded_bytes(self) -> int:
        """How many bytes of signals are in memory."""
        return sum(part.loaded_bytes() for part in self._parts)


def with_edits(episode: str | os.PathLike[str] | Episode) -> Episode:
    """An episode directory as the edits of the dataset around it show it; one of no dataset as it is."""
    if isinstance(episode, Episode):
        return episode
    plain = Episode(DirectorySource(episode))
    folder = Path(os.path.abspath(episode))
    root = folder.parent.parent
    if not folder.name.isdigit() or folder != episode_path(root, int(folder.name)):
        return plain
    edits = Edits(root)
    entries = edits.showing(int(folder.name)) if edits.log else []
    if not edits.log or entries == Edits.plain([int(folder.name)]):
        return plain
    if len(entries) != 1 or len(entries[0].parts) != 1:
        seen = ", ".join(repr(entry.id) for entry in entries) or "nothing: it is dropped"
        raise ConflictError(
            f"the edits show this recording as {seen}",
            path=folder,
            hint=f"Open one of those, such as {root}#{entries[0].id if entries else 'ID'}; wd.DiskEpisode and "
            "`--raw` give the recording as it was made.",
        )
    return Episode(EditedSource(entries[0], [plain.source]))
