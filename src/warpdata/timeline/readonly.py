"""Dictionaries that are handed out and must not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


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
