"""Work on many episodes, one position after the other: here, or in processes of this machine.

A runner takes a task and positions and yields results as they come in, in any order. The task goes to other
processes by pickle and is unpacked once in each. A cluster is one more runner (`warpdata.ray`), of the same tasks.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.reduction import ForkingPickler
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np

from warpdata.bytekit.arrays import as_array
from warpdata.bytekit.process.forks import Reopens
from warpdata.bytekit.process.threads import start_thread
from warpdata.errors import DatasetError, WarpError

R = TypeVar("R")

_AHEAD = 2
"""Positions per process that are handed out before their turn."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MODE = "training"
"""The attribute of a torch module that does not change what it is."""
_INSTALLED = ("site-packages", "dist-packages")


class Runner(Protocol):
    """Where tasks run."""

    def run(self, task: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
        """The result of the task for each position, as it comes in; its errors are raised."""


class Called(Reopens):
    """A function of the caller; a class is made once in each process, which is how models stay loaded."""

    def __init__(self, given: Callable[..., Any]) -> None:
        self.given = given
        self._made: Callable[..., Any] | None = None

    @property
    def made(self) -> Callable[..., Any]:
        """The function, or the one instance of the class."""
        if self._made is None:
            self._made = self.given() if isinstance(self.given, type) else self.given
        return self._made

    def __call__(self, *arguments: Any) -> Any:
        """The result of the function."""
        return self.made(*arguments)

    def on_episode(self, episode: Any, *arguments: Any) -> Any:
        """The result for an episode; an error becomes one line that names the episode and the place."""
        try:
            return self(episode, *arguments)
        except WarpError:
            raise
        except (Exception, SystemExit) as error:  # a worker that exits would be started again for ever
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            fact = f"function failed for episode {episode.id!r}: {type(error).__name__}: {error} ({place})"
            raise DatasetError(fact, hint="Run the function on this episode alone to see where.") from error


class Here:
    """One after the other in this process."""

    def run(self, task: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
        """The result of the task for each position, in order."""
        for position in positions:
            yield position, task(position)


class Processes:
    """In several processes of this machine, which open the source again by its address."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, task: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
        """The result of the task for each position, as it comes in; few are handed out ahead."""
        if len(positions) < 2:
            yield from Here().run(task, positions)
            return
        try:  # before processes are started
            ForkingPickler.dumps(task)
        except Exception as error:  # noqa: BLE001 - any error of pickling
            fact = f"the task cannot be sent to other processes ({error})"
            raise ValueError(f"{fact}: use a function or class of a module, or one process") from None
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(
            min(self._jobs, len(positions)), mp_context=context, initializer=_start_worker, initargs=(task,)
        )
        try:
            rest = iter(positions)
            running: dict[Any, int] = {}
            while True:
                for position in rest:
                    running[pool.submit(_run_task, position)] = position
                    if len(running) >= _AHEAD * self._jobs:
                        break
                if not running:
                    return
                done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool:
            hint = "Perhaps memory ran out: try fewer jobs. Running it again is harmless."
            raise WarpError("a process that did part of the work was killed", hint=hint) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def runner_of(jobs: int) -> Runner:
    """The runner with this number of processes; one is this process."""
    if jobs < 1:
        raise ValueError(f"jobs is at least 1, not {jobs}")
    return Here() if jobs == 1 else Processes(jobs)


def in_order(runner: Runner, task: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
    """The result of the task for each position, in the order of the positions; early results wait for their turn."""
    early: dict[int, R] = {}
    rest = iter(positions)
    wanted = next(rest, None)
    for position, result in runner.run(task, positions):
        early[position] = result
        while wanted is not None and wanted in early:
            yield wanted, early.pop(wanted)
            wanted = next(rest, None)


_TASK: list[Callable[[int], Any]] = []


def _start_worker(task: Callable[[int], Any]) -> None:
    """Keep the task in a worker process; the worker ends at once when its parent is gone, however it ended."""
    _TASK[:] = [task]
    parent = multiprocessing.parent_process()
    if parent is not None:
        start_thread(_end_with, "warp-parent", parent)


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)  # half-done work has no name yet, and no process waits for it


def _run_task(position: int) -> Any:
    return _TASK[0](position)


def code_name(function: Any) -> str:
    """A text that changes when the function, a helper it calls or a global it reads changes.

    Code of installed libraries counts by name, objects and tensors (the weights of a model) by their content. State
    that Python cannot show does not count: such functions need a revision from their caller.
    """
    return _Identity().name_of(function)


class _Identity:
    """One walk over the code that a function reaches; each piece is visited once."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def name_of(self, function: Any) -> str:
        """Name and hash of a callable."""
        if isinstance(function, functools.partial):
            given = self.text_of(function.args) + self.text_of(function.keywords)
            return f"partial({self.name_of(function.func)}, {_short(given)})"
        inner = getattr(function, "__func__", function)
        kind = inner if isinstance(inner, type | FunctionType) else type(inner)
        name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', kind.__qualname__)}"
        if id(inner) in self._seen:
            return f"{name}#{self._seen[id(inner)]}"
        self._seen[id(inner)] = len(self._seen)
        is_library = _is_library(kind.__module__)
        if is_library and kind is inner:
            return name
        if isinstance(inner, FunctionType):
            return f"{name}:{_short(self._function(inner))}"
        code = "" if is_library or isinstance(kind, FunctionType) else self._class(kind)
        held = {} if kind is inner else getattr(inner, "__dict__", {})
        state = self.text_of(sorted((key, value) for key, value in held.items() if key != _MODE))
        return f"{name}:{_short(code + (state if held else ''))}"

    def text_of(self, value: Any) -> str:
        """A text for a value that code reads: its content where that is plain data, else its type."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            data = repr(array.tolist()) if array.dtype.hasobject else array.tobytes().hex()
            return f"{array.dtype}{array.shape}{_short(data)}"
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, Mapping):
            return str([(self.text_of(key), self.text_of(item)) for key, item in value.items()])
        if isinstance(value, list | tuple):
            return str([self.text_of(item) for item in value])
        if isinstance(value, set | frozenset):
            return str(sorted(self.text_of(item) for item in value))
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            return self.text_of(as_array(value))
        if callable(value) or not _is_library(type(value).__module__):
            return self.name_of(value)
        return f"{type(value).__module__}.{type(value).__qualname__}"

    def _function(self, function: FunctionType) -> str:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        values = [self.text_of(value) for value in (function.__defaults__, function.__kwdefaults__, *cells)]
        names = sorted(_names_in(function.__code__))
        for name in names:  # globals that the code names, and names of the user's modules
            if name in function.__globals__:
                value = function.__globals__[name]
                values.append(f"{name}={self.text_of(value)}")
                if isinstance(value, ModuleType) and not _is_library(value.__name__):
                    inside = {key: vars(value)[key] for key in names if key in vars(value)}
                    values += [f"{name}.{key}={self.text_of(item)}" for key, item in inside.items()]
        return _code_text(function.__code__) + "".join(values)

    def _class(self, kind: type) -> str:
        """Methods and plain attributes of a class and of its bases outside of Python and of libraries."""
        parts = []
        for base in kind.__mro__:
            for name, value in sorted(vars(base).items() if not _is_library(base.__module__) else ()):
                inner = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(inner, FunctionType):
                    parts.append(f"{name}:{self._function(inner)}")
                elif isinstance(value, _PLAIN) and not name.startswith("__"):
                    parts.append(f"{name}={value!r}")
        return "\n".join(parts)


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _is_library(module: str) -> bool:
    """Whether a module is part of Python or installed, so that its name stands for its code."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return top == "warpdata" or any(folder in path for folder in _INSTALLED)


def _code_text(code: CodeType) -> str:
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_code_text(constant))
        else:  # the order of sets differs between processes
            constants.append(
                repr(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)
            )
    return f"{code.co_code.hex()}{constants}{code.co_names}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
