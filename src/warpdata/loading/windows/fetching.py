"""Bytes of the next batches brought here before they are worked on, where they lie elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from warpdata.bytekit.forks import tell_in_child
from warpdata.loading.windows.opened import Group, SignalReader
from warpdata.loading.windows.windows import Windows
from warpdata.stores.parallel import MAX_PARALLEL


def is_remote(windows: Windows) -> bool:
    """Whether reading waits for a network; asked of the first episode."""
    if not len(windows.episodes):
        return False
    return any(signal._is_far() for signal in windows.episodes[0].signals.values())


def is_near(windows: Windows, group: Group) -> bool:
    """Whether an episode is open and nothing of it has to be fetched."""
    opened = windows.peek(group.episode)
    return opened is not None and opened.is_near


def prefetch(windows: Windows, group: Group) -> None:
    """Open an episode and read what a batch needs of it, so that its bytes are in the cache."""
    opened = windows.opened(group.episode)
    for reader in opened.fields.values():
        if isinstance(reader, SignalReader):
            reader.bring(group.anchors)


class Fetchers:
    """Threads that fetch for all batches under way, in the order they were asked: the next batch comes first."""

    def __init__(self) -> None:
        self.in_child()
        tell_in_child(self)

    def in_child(self) -> None:
        """A forked child has none of its parent's threads."""
        self._threads = ThreadPoolExecutor(MAX_PARALLEL, "warp-bring")

    def bring(self, tasks: Sequence[tuple[Windows, Group]]) -> None:
        """Fetch what these samples need; returns when all of it is here."""
        waiting = [self._threads.submit(prefetch, *task) for task in tasks]
        for each in waiting:
            each.result()

    def close(self) -> None:
        """Begin nothing more, and wait for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
