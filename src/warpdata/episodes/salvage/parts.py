"""Episodes that several processes recorded: their parts, finished where a process died, joined into one episode."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from warpdata.bytekit.io.commit import commit_together, fsync_folder, map_os_errors, write_file
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.episodes.forms.directory import write_directory
from warpdata.episodes.record.recording import last_documents, remove_folder, remove_leftovers
from warpdata.episodes.salvage.finish import DAMAGED, finish_recording, free_name
from warpdata.episodes.salvage.receipt import LossReceipt
from warpdata.episodes.salvage.unfinished import PARTS_FOLDER, SHARED_FILE
from warpdata.episodes.sources.disk_episode import DiskEpisode
from warpdata.errors import OutOfSpaceError, PermissionError_, WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import read_bytes, read_meta, read_static, signal_file, suffix_for
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import JoinedSignal

_JOINED = "joined"
_MAX_BYTES = 1 << 24


def finish_work(work: Path) -> LossReceipt:
    """Finish the recording in this folder, of one process or of several, for a caller that holds its lock."""
    return join_parts(work) if (work / SHARED_FILE).exists() else finish_recording(work)


def join_parts(work: Path) -> LossReceipt:
    """Make one episode of all parts; those of processes that died are salvaged first.

    It may be interrupted at any moment and run again: a file that was moved is not moved twice, and meta.json of the
    episode is written last.
    """
    folder = work.parent
    joined = _Joined(folder, dict(parse_json_object(read_bytes(work / SHARED_FILE, max_bytes=_MAX_BYTES))))
    for part in sorted((work / PARTS_FOLDER).iterdir()):
        inner = part / layout.RECORDING_FOLDER
        remove_leftovers(inner)
        if inner.is_dir():
            finish_recording(inner)
        if (part / layout.META_FILE).exists():
            joined.add(part)
    joined.add_signals()
    commit_together([(temp, target) for temp, target in joined.files if temp.exists()], folder)
    receipt = joined.receipt()
    for path, data in joined.documents(receipt).items():
        write_file(path, data)
    remove_folder(work)
    return receipt


class _Joined:
    """The entries of an episode, collected from its parts."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.meta = meta
        self.files: list[tuple[Path, Path]] = []
        self.signals: dict[str, Any] = {}
        self.static: dict[str, tuple[int, Any]] = {}
        self.processes: list[dict[str, Any]] = []
        self.receipts: list[LossReceipt] = []
        self._parts: list[tuple[Path, dict[str, Any]]] = []

    def add(self, part: Path) -> None:
        """Take over the static items and the receipt of a part; `add_signals` takes the signals of all."""
        meta = read_meta(part)
        marked_ns, signals = meta.get("marked_ns", {}), meta.get("signals", {})
        self._parts.append((part, signals))
        static: Mapping[str, Any] = {}
        with contextlib.suppress(WarpError):
            static = read_static(part)
        for name, value in static.items():
            at_ns = int(marked_ns.get(name, 0))
            if at_ns >= self.static.get(name, (0, None))[0]:
                self.static[name] = (at_ns, value)
        process = {**meta.get("process", {}), "clock": meta.get("clock"), "signals": list(signals)}
        for key in ("interrupted", "salvaged"):
            if key in meta:
                process[key] = meta[key]
        self.processes.append(process)
        for key in ("steps", "clock"):
            if key in meta:
                self.meta.setdefault(key, meta[key])
        self._take_receipt(part, meta, process)

    def add_signals(self) -> None:
        """Take over all signals; one that a restarted process continued is joined, or gets a number if it cannot be."""
        by_name: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
        for part, signals in self._parts:
            for name, about in signals.items():
                by_name.setdefault(name, []).append((part, about))
        for name, several in by_name.items():
            if len(several) == 1 or not self._join(name, several):
                for part, about in several:
                    self._take(name, self._free_name(name), part, about)
        self.static = {name: item for name, item in self.static.items() if name not in self.signals}

    def _take(self, own_name: str, name: str, part: Path, about: dict[str, Any]) -> None:
        suffixes = [layout.SIGNAL_SUFFIX]
        if about.get("kind") == "image":
            suffixes = [about.get(layout.SUFFIX_KEY) or suffix_for(str(about["codec"])), layout.FRAMES_SUFFIX]
        files = [(signal_file(part, own_name, end), signal_file(self.folder, name, end)) for end in suffixes]
        self.files += files
        self.signals[name] = about

    def _join(self, name: str, several: list[tuple[Path, dict[str, Any]]]) -> bool:
        """Make one signal of the records of several processes; False if they do not follow one another."""
        several = sorted(several, key=lambda item: int(item[1].get("first_ts_ns", 0)))
        joined = self.folder / layout.RECORDING_FOLDER / _JOINED / str(len(self.signals))
        try:
            signal = JoinedSignal([DiskEpisode(part).signals[name] for part, _ in several])
            shutil.rmtree(joined, ignore_errors=True)
            write_directory(Episode.of({name: signal}), joined)
        except (OutOfSpaceError, PermissionError_):
            raise
        except WarpError:
            return False
        about = dict(read_meta(joined)["signals"][name])
        for key in ("dropped_frames", "duplicate_frames", "blocked_ns"):
            if any(key in item for _, item in several):
                about[key] = sum(item.get(key, 0) for _, item in several)
        if drops := [span for _, item in several for span in item.get("drops", ())]:
            about["drops"] = drops
        self._take(name, name, joined, about)
        return True

    def _free_name(self, name: str) -> str:
        """The name of a signal in the episode, with a number if another one has it."""
        free, number = name, 1
        while free in self.signals:
            number += 1
            free = f"{name}-{number}"
        return free

    def _take_receipt(self, part: Path, meta: dict[str, Any], process: dict[str, Any]) -> None:
        stated = meta.get("salvaged")
        receipt = LossReceipt.from_json(stated) if isinstance(stated, dict) else None
        if receipt is None:
            why = "closed" if "interrupted" not in meta else str(meta["interrupted"])
            receipt = LossReceipt.of_records(str(part), None, part.name, meta.get("signals", {}), why)
        else:
            why = "ended without closing" + ("" if receipt.is_complete else f"; {receipt.why}")
            receipt = replace(receipt, why=why)
        name = f"process {process.get('pid', '?')} on {process.get('host', '?')}"
        for unread in sorted(part.glob(f"{layout.RECORDING_FOLDER}{DAMAGED}*")):
            aside = free_name(self.folder / layout.RECORDING_FOLDER, DAMAGED)
            with map_os_errors(aside):
                os.rename(unread, aside)
                fsync_folder(self.folder)
            receipt = replace(receipt, kept_aside=str(aside))
        self.receipts.append(replace(receipt, process=name, source=str(self.folder), output=str(self.folder)))

    def receipt(self) -> LossReceipt:
        """The receipt of the episode, with that of each process."""
        died = [each for each in self.processes if "salvaged" in each]
        why = f"{len(died)} of {len(self.processes)} processes ended without closing" if died else "closed"
        damage = [item for each in self.receipts for item in each.damage]
        return LossReceipt.of_records(
            str(self.folder), str(self.folder), self.folder.name, self.signals, why,
            steps_lost=sum(each.steps_lost for each in self.receipts),
            rows_dropped=sum(each.rows_dropped for each in self.receipts),
            bytes_dropped=sum(each.bytes_dropped for each in self.receipts),
            damage=damage, processes=self.receipts,
        )  # fmt: skip

    def documents(self, receipt: LossReceipt) -> dict[Path, bytes]:
        """static.json and meta.json of the episode."""
        reasons = [
            f"{each.process}: {process['interrupted']}"
            for each, process in zip(self.receipts, self.processes, strict=True)
            if "interrupted" in process
        ]
        more: dict[str, Any] = {"processes": self.processes}
        if any("salvaged" in process for process in self.processes):
            more["salvaged"] = receipt.to_json()
        static = {name: value for name, (_, value) in self.static.items()}
        reason = "; ".join(reasons) or None
        return last_documents(self.folder, self.meta, static, self.signals, reason, **more)
