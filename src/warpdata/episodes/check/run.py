"""Check the episodes of a source, each by itself and all beside each other, wherever the work is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from warpdata.episodes.check.compare import EpisodeSet, SetMember
from warpdata.episodes.check.report import INFO, Finding, Report
from warpdata.episodes.check.rules import check_opened
from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.episodes.collection.jobs import Here, Runner
from warpdata.episodes.collection.local import LocalDataset, ShardFolderSource
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.packed import VIDEO_PREFIX, PackedSource, is_packed
from warpdata.errors import (
    AuthenticationError,
    FileFinding,
    FormatError,
    StoreError,
    UnavailableError,
    WarpError,
)
from warpdata.formats.episodedir.documents import Folder
from warpdata.formats.wshard.layout import ROLE_EPISODE
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.verify import verify_shard

Progress = Callable[[int, int], None]

_USUAL, _USUAL_SHARE = 3, 0.3
"""What this number of episodes, and this share of a set, have in common is usual: one line for the set."""
_STILL_FACTOR = 1.5
_PER_SET = ("gap", "jitter", "frozen-camera", "repeated-frames", "constant-channel", "no-actions", "nan")


@dataclass(frozen=True)
class CheckTask:
    """Checks the episode at a position; it travels to other processes."""

    source: EpisodesSource
    ids: Sequence[str]
    names: Sequence[str]
    deep: bool

    def __call__(self, position: int) -> tuple[list[Finding], SetMember | None]:
        """The findings of the episode, and what is remembered of it to compare it with the others."""
        name, members = self.names[position], list[SetMember]()
        # A root that is recorded into may have been listed again with more episodes.
        ids = self.source.ids
        is_there = position < len(ids) and ids[position] == self.ids[position]
        place = position if is_there else list(ids).index(self.ids[position])
        opened = partial(self.source.open, place)
        try:
            findings = list(check_opened(opened, name, deep=self.deep, beside=members.append))
        except (AuthenticationError, UnavailableError):
            raise  # nothing is wrong with the episode
        except StoreError as error:  # one that cannot be opened does not keep the others from being checked
            return [Finding.of("damaged-file", name, None, str(error), code=error.code)], None
        if isinstance(self.source, ShardFolderSource) and not Report(1, findings).is_damaged:
            findings += damaged_blocks(self.source.bytes_of(position), name)
        return findings, members[0] if members else None


def check_each(
    source: EpisodesSource,
    *,
    deep: bool = False,
    runner: Runner | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check every episode of a source; the report does not depend on where it is done."""
    ids = list(source.ids)
    names = list(source.names) if isinstance(source, ShardFolderSource) else ids
    task = CheckTask(source, ids, names, deep)
    checked: list[tuple[list[Finding], SetMember | None]] = [([], None)] * len(ids)
    for done, (position, result) in enumerate((runner or Here()).run(task, range(len(ids))), start=1):
        checked[position] = result
        if progress is not None:
            progress(done, len(ids))
    beside = EpisodeSet()
    for _, member in checked:
        if member is not None:
            beside.add(member)
    findings = without_usual((finding for one, _ in checked for finding in one), beside, len(ids))
    return Report(len(ids), [*findings, *beside.findings()])


def without_usual(findings: Iterable[Finding], beside: EpisodeSet, episodes: int) -> list[Finding]:
    """Findings of single episodes that are odd in their set; what is usual there is one line for the set.

    Channels that never change in several episodes, though they can, are no findings.
    """
    usual = beside.usual_constants()
    odd: dict[tuple[str, str | None], list[Finding]] = {}
    for finding in findings:
        if finding.rule == "frozen-camera":  # a view that rests a little longer than usual is no finding
            is_usual = finding.details["frames"] <= _STILL_FACTOR * beside.usual_still(str(finding.signal))
        else:
            channels = finding.details.get("channels", ())
            places = [(finding.episode, finding.signal, channel) for channel in channels]
            is_usual = finding.rule == "constant-channel" and usual.issuperset(places)
        if not is_usual:
            odd.setdefault((finding.rule, finding.signal), []).append(finding)
    kept: list[Finding] = []
    for (rule, signal), alike in odd.items():
        names = list(dict.fromkeys(finding.episode for finding in alike))
        if rule not in _PER_SET or len(names) < max(_USUAL, _USUAL_SHARE * episodes):
            kept += alike
            continue
        text = f"in {len(names)} of {episodes} episodes, such as {names[0]}: {alike[0].message}"
        kept.append(Finding(rule, INFO, "", signal, text, {"episodes": names}))
        if rule == "constant-channel":
            kept += _rarely_constant(alike, len(names))
    return kept


def _rarely_constant(alike: list[Finding], count: int) -> list[Finding]:
    """Constant channels of single episodes, out of findings about channels that are constant in most."""
    often: dict[int, int] = {}
    for finding in alike:
        for channel in finding.details["channels"]:
            often[channel] = often.get(channel, 0) + 1
    rare = {channel for channel, times in often.items() if times < _USUAL and times < count}
    findings = []
    for finding in alike:
        channels = [channel for channel in finding.details["channels"] if channel in rare]
        if channels:
            which = ", ".join(map(str, channels[:8]))
            text = f"channel {which} is constant"
            place = finding.rule, finding.episode, finding.signal
            findings.append(Finding.of(*place, text, channels=channels))
    return findings


def check_root(
    folder: str | os.PathLike[str] | Folder,
    *,
    progress: Progress | None = None,
    deep: bool = False,
    raw: bool = False,
    runner: Runner | None = None,
) -> Report:
    """Check every episode of a root as the edits show it; `raw`, or edits that cannot be read: as it was recorded."""
    try:
        dataset, findings = LocalDataset(folder, edited=not raw), []
    except FormatError as error:
        dataset, findings = LocalDataset(folder, edited=False), [Finding.of("edits", "", None, str(error))]
    report = check_each(dataset.source, deep=deep, runner=runner, progress=progress)
    text = "run `warp salvage`, or wait for its recorder"
    unfinished = [
        Finding.of("unfinished", os.path.basename(str(recording.path)), None, text)
        for recording in dataset.unfinished
    ]
    return Report(report.episodes, [*findings, *report.findings, *unfinished])


def unplayable_cameras(path: str | os.PathLike[str], *, full: bool) -> list[FileFinding]:
    """What keeps the cameras of a packed recording from being played; `full` decodes every frame."""
    shard = ShardReader.open(path)
    findings = []
    for name, signal in PackedSource(shard).signals.items() if is_packed(shard) else ():
        if isinstance(signal, VideoSignal) and len(signal):
            try:
                signal.check()
                for _ in signal if full else signal[:1]:
                    pass
            except WarpError as error:
                place = f"{VIDEO_PREFIX}{name}"
                findings.append(FileFinding("unplayable_camera", str(error), place, error.hint))
    return findings


def damaged_blocks(file: Any, name: str) -> list[Finding]:
    """Damaged blocks of a shard, also those that are no signal; empty for anything else."""
    if file is None or (isinstance(file, str | os.PathLike) and os.path.isdir(file)):
        return []
    if ShardReader.open(file).role != ROLE_EPISODE:
        return []
    return [
        Finding.of("damaged-file", name, None, damage.message, block=damage.part, code=damage.code)
        for damage in verify_shard(file)
        if damage.is_damage
    ]
