"""Signals by name, opened on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from warpdata.bytekit.lazy import cached_property
from warpdata.timeline.signal import Signal


class LazySignals(Mapping[str, Signal]):
    """Signals opened on first use. Opening one twice in two threads is harmless: one result is kept."""

    def __init__(self, names: Callable[[], Iterable[str]], open_signal: Callable[[str], Signal]) -> None:
        """`names` is called once, when the names are needed; `open_signal` once per signal, with its name."""
        self._read_names, self._open_signal = names, open_signal
        self._signals: dict[str, Signal] = {}

    @cached_property
    def _names(self) -> dict[str, None]:
        return dict.fromkeys(self._read_names())

    def __getitem__(self, name: str) -> Signal:
        signal = self._signals.get(name)
        if signal is None:
            if name not in self._names:
                raise KeyError(name)
            signal = self._signals.setdefault(name, self._open_signal(name))
        return signal

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
