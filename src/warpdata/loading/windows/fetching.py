"""Bytes of the next batches brought here before they are worked on, where they lie elsewhere."""

from __future__ import annotations

from warpdata.loading.windows.open_episode import SampleGroup, SignalReader
from warpdata.loading.windows.windows import Windows


def is_remote(windows: Windows) -> bool:
    """Whether reading waits for a network; asked of the first episode."""
    if not len(windows.episodes):
        return False
    return any(signal._is_far() for signal in windows.episodes[0].signals.values())


def is_near(windows: Windows, group: SampleGroup) -> bool:
    """Whether an episode is open and nothing of it has to be fetched."""
    opened = windows.peek(group.episode)
    return opened is not None and opened.is_near


def prefetch(windows: Windows, group: SampleGroup) -> None:
    """Open an episode and read what a batch needs of it, so that its bytes are in the cache."""
    opened = windows.open_at(group.episode)
    for reader in opened.fields.values():
        if isinstance(reader, SignalReader):
            reader.bring(group.anchors)
