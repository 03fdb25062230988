"""Signals by name, opened on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from warpdata.bytekit.lazy import cached_property
from warpdata.timeline.signal import Signal


class LazySignals(Mapping[str, Signal]):
    """Signals opened on first use. Opening one twice in two threads is harmless: one result is kept."""

    def __init__(self, names: Callable[[], Iterable[str]], open_signal: Callable[[str], Signal]) -> None:
        """`names` is called once, when the names are needed; `open_signal` once per signal, with its name."""
        self._read_names, self._open_signal = names, open_signal
        self.opened: dict[str, Signal] = {}
        """The signals that were opened so far."""

    @cached_property
    def _names(self) -> dict[str, None]:
        return dict.fromkeys(self._read_names())

    def __getitem__(self, name: str) -> Signal:
        signal = self.opened.get(name)
        if signal is None:
            if name not in self._names:
                raise KeyError(name)
            signal = self.opened.setdefault(name, self._open_signal(name))
        return signal

    def __contains__(self, name: object) -> bool:
        return name in self.opened or name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses to change, and so do the mappings inside it; JSON, pickle and `==` work as ever.

    Names are text, as they come back from where they are stored.
    """

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__({str(key): _frozen(value) for key, value in items.items()})

    @classmethod
    def owning(cls, items: dict[str, Any]) -> ReadOnlyDict:
        """One of items that no other object holds and that are immutable."""
        made = cls.__new__(cls)
        dict.update(made, items)
        return made

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this is read-only; copy it with dict() to change it")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReadOnlyDict, (dict(self),))


PLAIN_TYPES = frozenset({int, float, str, bool, type(None)})
"""Values that cannot change, of which lists of metadata are full."""


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return list(value) if PLAIN_TYPES.issuperset(map(type, value)) else [_frozen(each) for each in value]
    if type(value) is ReadOnlyDict:
        return value
    if isinstance(value, dict) or (type(value) not in PLAIN_TYPES and isinstance(value, Mapping)):
        return ReadOnlyDict(value)
    return value
