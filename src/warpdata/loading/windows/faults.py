"""Checks of whole episodes before a batch is cut, so that every rank leaves out the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.errors import DatasetError, WarpError
from warpdata.loading.windows.mixture import Chosen, Mixture
from warpdata.loading.windows.open_episode import DAMAGE, OpenEpisode, SignalReader
from warpdata.loading.windows.windows import Windows
from warpdata.ordering.epochs import LeftOut
from warpdata.timeline.memory import JoinedSignal
from warpdata.timeline.signal import Signal, SignalView

_STEP_BYTES = 16 << 20


class Verdicts:
    """Of each episode that was looked at, whether every byte the fields may need can be read and is as written."""

    def __init__(self, sources: Sequence[Windows]) -> None:
        self._sources = sources
        self._known: list[dict[int, str | None]] = [{} for _ in sources]

    def readable(self, chosen: Chosen) -> NDArray[np.bool_]:
        """Which samples are of episodes without damage."""
        good = np.ones(len(chosen), np.bool_)
        for number, episode, here in self._by_episode(chosen):
            if self._damage(number, episode) is not None:
                good[here] = False
        return good

    def left_out(self, chosen: Chosen) -> LeftOut:
        """The damaged episodes that samples are of."""
        found = {}
        for number, episode, _ in self._by_episode(chosen):
            why = self._damage(number, episode)
            if why is not None:
                found[self._sources[number].ids[episode]] = why
        return tuple(sorted(found.items()))

    def _by_episode(self, chosen: Chosen) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Source, episode, and which of the samples are of it."""
        for number, source in enumerate(self._sources):
            here = np.flatnonzero(chosen.source == number)
            if len(here):
                episodes = source.table.locate(chosen.sample[here])[0]
                for episode in np.unique(episodes).tolist():
                    yield number, episode, here[episodes == episode]

    def _damage(self, number: int, episode: int) -> str | None:
        known = self._known[number]
        if episode not in known:
            try:
                check_episode(self._sources[number].open_at(episode))
                known[episode] = None
            except DAMAGE as error:
                known[episode] = str(error)
        return known[episode]

    def uncounted(self) -> dict[str, str]:
        """Episodes of which not even the samples are known, each with the reason."""
        return {name: why for source in self._sources for name, why in source.unreadable.items()}

    def good_only(self, windows: Windows | Mixture) -> Windows | Mixture:
        """The same without the episodes that are damaged; each of them is looked at."""
        good = [
            source.over([e for e in range(len(source.episodes)) if self._damage(number, e) is None])
            for number, source in enumerate(self._sources)
        ]
        return windows.of_sources(good) if isinstance(windows, Mixture) else good[0]

    def raise_uncounted(self) -> None:
        """Raise if an episode could not even be counted."""
        for source in self._sources:
            _ = source.table
        for name, why in self.uncounted().items():
            raise DatasetError(
                f"episode {name!r} cannot be read: {why}",
                hint='Leave it out with where(), or pass on_error="skip" to count and report it.',
            )


def check_episode(opened: OpenEpisode) -> None:
    """Read all that the fields may need of an episode and hold it against its checksums; raises what is wrong."""
    for name, reader in opened.fields.items():
        if isinstance(reader, SignalReader):
            try:
                _check_signal(reader.signal)
            except WarpError as error:
                error.message = f"field {name!r}: {error.message}"
                raise


def _check_signal(signal: Signal) -> None:
    if isinstance(signal, SignalView):
        _check_signal(signal.base)
    elif isinstance(signal, JoinedSignal):
        for part in signal.parts:
            _check_signal(part)
    elif isinstance(signal, VideoSignal):
        signal.check()
    else:
        step = max(1, _STEP_BYTES // max(1, signal.meta.row_bytes))
        for start in range(0, len(signal), step):
            signal.rows(start, start + step)
