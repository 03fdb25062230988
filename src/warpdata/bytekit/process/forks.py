"""Objects in other processes: forked children and pickles. The one place that registers fork hooks.

Readers work in a child: what they cannot share (threads, locks, connections, decoders) is a `PerProcess` value, made
again there. Writers refuse in a child (`OwnProcess`): their file stays with the process that opened it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from typing import Self


T = TypeVar("T")

_generation = 0
_forking = threading.RLock()
_PAUSE_S, _PAUSES = 0.001, 2_000


class PerProcess(Generic[T]):
    """A value that every process makes for itself on first use: call it to get the value.

    The factory may run in two threads at once; all of them get the same result.
    """

    __slots__ = ("_factory", "_values")

    def __init__(self, factory: Callable[[], T]) -> None:
        self._factory = factory
        self._values: dict[int, T] = {}

    def __call__(self) -> T:
        try:
            return self._values[_generation]
        except KeyError:
            for older in list(self._values):  # at once: another thread may be adding its own
                if older == _generation:
                    continue
                self._values.pop(older, None)
            return self._values.setdefault(_generation, self._factory())

    def reset(self) -> T | None:
        """Drop the value, so that the next call makes another; returns it if this process has made one."""
        return self._values.pop(_generation, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return (PerProcess, (self._factory,))


class ThreadLock:
    """A lock between the threads of a process; free in a forked child, whichever thread held it in the parent."""

    def __init__(self) -> None:
        self._lock = PerProcess(threading.Lock)

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock; without waiting False where a thread holds it."""
        return self._lock().acquire(wait)

    def release(self) -> None:
        """Free the lock."""
        self._lock().release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class cached_property(functools.cached_property[T]):  # noqa: N801 - named like what it stands for
    """`functools.cached_property` without the lock that it has in Python 3.11.

    One lock is all instances' there, and held while a value is made: a child that was forked meanwhile waits for ever.
    Threads may make the value at the same time; all of them get the first one.
    """

    if not TYPE_CHECKING:  # its types are those of what it stands for

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            kept = instance.__dict__
            try:
                return kept[self.attrname]
            except KeyError:
                return kept.setdefault(self.attrname, self.func(instance))


class OwnProcess:
    """True in the process that made it, false in its forked children."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made = _generation

    def __bool__(self) -> bool:
        return self._made == _generation

    def __reduce__(self) -> tuple[Any, ...]:
        return (OwnProcess, ())


_hooks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""The name of the method that runs in forked children, by the object it belongs to."""


def run_in_child(method: Callable[[], None]) -> None:
    """Call a bound method, one per object, in every child forked from now on, as long as its object lives.

    For descriptors that a child must close at once, such as those of locked files. The method must not wait for a lock:
    the thread that holds it does not exist in the child.
    """
    _hooks[method.__self__] = method.__name__  # type: ignore[attr-defined]


@contextlib.contextmanager
def block_forks() -> Iterator[None]:
    """Keep other threads from forking, so that a file is opened and registered as one step."""
    with _forking:
        yield


def generation() -> int:
    """The number of forks between the first process and this one."""
    return _generation


def process_id() -> int:
    """The id of this process, for use in files; to distinguish processes use `generation`."""
    return os.getpid()


def _before_fork() -> None:
    """Wait until no other thread is importing: a child would inherit the import lock without its holder.

    The importing thread may itself wait for the forking one, so the wait is limited.
    """
    for _ in range(_PAUSES):
        _forking.acquire()
        # Python has no public call for the threads that are in the middle of an import.
        references = list(getattr(importlib._bootstrap, "_module_locks", {}).values())
        if not {getattr(lock(), "owner", None) for lock in references} - {None, threading.get_ident()}:
            return
        _forking.release()
        time.sleep(_PAUSE_S)
    _forking.acquire()


def _after_fork_in_child() -> None:
    global _generation
    _forking.release()
    _generation += 1
    for holder, name in list(_hooks.items()):
        with contextlib.suppress(Exception):  # the other hooks must run all the same
            getattr(holder, name)()


os.register_at_fork(
    before=_before_fork, after_in_parent=_forking.release, after_in_child=_after_fork_in_child
)


class NoPickle:
    """A writer: what it writes belongs to one process, so pickling or copying it is a TypeError."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{type(self).__name__} cannot be pickled: it writes files of this process")


_set_attribute = object.__setattr__  # also of frozen classes


class Reopens:
    """Pickles as the call that made the object, so that it is opened again where it is unpickled.

    That call is the constructor with its arguments; `reopen_by` names another one. Subclasses with `__slots__` list
    `_made_by` among them.
    """

    __slots__ = ()
    _made_by: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = object.__new__(cls)
        _set_attribute(made, "_made_by", (cls, args, kwargs))
        return made

    def reopen_by(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Pickle as `call(*args, **kwargs)` instead of as the constructor's call."""
        _set_attribute(self, "_made_by", (call, args, kwargs))

    def __reduce__(self) -> tuple[Any, ...]:
        call, args, kwargs = self._made_by
        return (functools.partial(call, **kwargs) if kwargs else call, args)
