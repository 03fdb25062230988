"""Check the episodes of a source, each by itself and all beside each other, wherever the work is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from warpdata.episodes.check.beside import SetMember
from warpdata.episodes.check.rules import (
    Finding,
    Progress,
    Report,
    check_opened,
    damaged_block,
    found,
    new_set,
    set_findings,
    without_usual,
)
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

Checked = tuple[list[Finding], SetMember | None]
"""What was found in an episode, and what is remembered of it to compare it with the others."""


@dataclass(frozen=True)
class CheckTask:
    """Checks the episode at a position; it travels to other processes."""

    source: EpisodesSource
    ids: Sequence[str]
    names: Sequence[str]
    deep: bool

    def __call__(self, position: int) -> Checked:
        """Everything wrong with it."""
        name, members = self.names[position], list[SetMember]()
        opened = partial(self.source.open, self._place(position))
        try:
            findings = list(check_opened(opened, name, deep=self.deep, beside=members.append))
        except (AuthenticationError, UnavailableError):
            raise  # nothing is wrong with the episode
        except StoreError as error:  # one that cannot be opened does not keep the others from being checked
            return [found("damaged-file", name, None, str(error), code=error.code)], None
        if isinstance(self.source, ShardFolderSource) and not Report(1, findings).is_damaged:
            findings += damaged_blocks(self.source.bytes_of(position), name)
        return findings, members[0] if members else None

    def _place(self, position: int) -> int:
        """Where the episode is by now: a root that is recorded into may have been listed again with more of them."""
        ids = self.source.ids
        is_there = position < len(ids) and ids[position] == self.ids[position]
        return position if is_there else list(ids).index(self.ids[position])


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
    checked: list[Checked] = [([], None)] * len(ids)
    for done, (position, result) in enumerate((runner or Here()).run(task, range(len(ids))), start=1):
        checked[position] = result
        if progress is not None:
            progress(done, len(ids))
    beside = new_set()
    for _, member in checked:
        if member is not None:
            beside.add(member)
    findings = without_usual((each for one, _ in checked for each in one), beside, len(ids))
    return Report(len(ids), [*findings, *set_findings(beside)])


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
        dataset, findings = LocalDataset(folder, edited=False), [found("edits", "", None, str(error))]
    report = check_each(dataset.source, deep=deep, runner=runner, progress=progress)
    unfinished = [
        found(
            "unfinished",
            os.path.basename(str(each.path)),
            None,
            "run `warp salvage`, or wait for its recorder",
        )
        for each in dataset.unfinished
    ]
    return Report(report.episodes, [*findings, *report.findings, *unfinished])


def unplayable_cameras(path: str | os.PathLike[str], *, full: bool) -> list[FileFinding]:
    """What keeps the cameras of a packed recording from being played; `full` decodes every frame."""
    shard = ShardReader.open(path)
    if not is_packed(shard):
        return []
    found = []
    for name, signal in PackedSource(shard).signals.items():
        if isinstance(signal, VideoSignal) and len(signal):
            try:
                signal.check()
                for _ in signal if full else signal[:1]:
                    pass
            except WarpError as error:
                found.append(
                    FileFinding("unplayable_camera", str(error), f"{VIDEO_PREFIX}{name}", error.hint)
                )
    return found


def damaged_blocks(found: Any, name: str) -> list[Finding]:
    """What is wrong with the blocks of a shard, those too that are no signal; nothing of anything else."""
    if found is None or (isinstance(found, str | os.PathLike) and os.path.isdir(found)):
        return []
    if ShardReader.open(found).role != ROLE_EPISODE:
        return []
    return [damaged_block(name, each) for each in verify_shard(found) if each.is_damage]
