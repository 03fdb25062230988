"""Pickling of objects that hold files, caches or threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self


class NoPickle:
    """A writer: what it writes belongs to one process, so pickling or copying it is a TypeError."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{type(self).__name__} cannot be pickled: it writes files of this process")


class Reopens:
    """Pickles as the call that made the object, so that it is opened again where it is unpickled.

    That call is the constructor with its arguments; `reopen_by` names another one. Subclasses with `__slots__` list
    `_made_by` among them.
    """

    __slots__ = ()
    _made_by: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_made_by", (cls, args, kwargs))
        return made

    def reopen_by(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Pickle as `call(*args, **kwargs)` instead of as the constructor's call."""
        object.__setattr__(self, "_made_by", (call, args, kwargs))

    def __reduce__(self) -> tuple[Any, ...]:
        call, args, kwargs = self._made_by
        return (functools.partial(call, **kwargs) if kwargs else call, args)
