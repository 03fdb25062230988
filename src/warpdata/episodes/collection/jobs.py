"""Work on many episodes, one position after the other: here, or in processes of this machine.

A runner takes a task and positions and yields results as they come in, in any order. The task goes to other
processes by pickle and is unpacked once in each. A cluster is one more runner (`warpdata.ray`), of the same tasks.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, TypeVar

from warpdata.bytekit.process.threads import start_thread
from warpdata.errors import DatasetError, WarpError

R = TypeVar("R")

_AHEAD = 2
"""Positions per process that are handed out before their turn."""


class Runner(Protocol):
    """Where tasks run."""

    def run(self, task: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
        """What the task gives for each position, as it comes in; what it raises is raised."""


class Called:
    """A function of the caller; a class is made once in each process, which is how models stay loaded."""

    def __init__(self, given: Callable[..., Any]) -> None:
        self.given = given
        self._made: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives."""
        if self._made is None:
            self._made = self.given() if isinstance(self.given, type) else self.given
        return self._made(*arguments)

    def on_episode(self, episode: Any, *arguments: Any) -> Any:
        """What the function gives for an episode; its error becomes one line that names the episode and the place."""
        try:
            return self(episode, *arguments)
        except WarpError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            fact = (
                f"the function failed for episode {episode.id!r}: {type(error).__name__}: {error} ({place})"
            )
            raise DatasetError(fact, hint="Run the function on this episode alone to see where.") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return (Called, (self.given,))


class Here:
    """One after the other in this process."""

    def run(self, task: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
        """What the task gives for each position, in order."""
        for position in positions:
            yield position, task(position)


class Processes:
    """In so many processes of this machine, which open the source again by its address."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, task: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
        """What the task gives for each position, as it comes in; few are handed out ahead."""
        if len(positions) < 2:
            yield from Here().run(task, positions)
            return
        _check_travels(task)
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(
            min(self._jobs, len(positions)), mp_context=context, initializer=_remember, initargs=(task,)
        )
        try:
            rest = iter(positions)
            running: dict[Any, int] = {}
            while True:
                for position in rest:
                    running[pool.submit(_remembered, position)] = position
                    if len(running) >= _AHEAD * self._jobs:
                        break
                if not running:
                    return
                done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                for each in done:
                    yield running.pop(each), each.result()
        except BrokenProcessPool:
            hint = "Perhaps memory ran out: try fewer jobs. Running it again is harmless."
            raise WarpError("a process that did part of the work was killed", hint=hint) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def runner_of(jobs: int) -> Runner:
    """The runner with so many processes; one is this one."""
    if jobs < 1:
        raise ValueError(f"jobs is at least 1, not {jobs}")
    return Here() if jobs == 1 else Processes(jobs)


def in_order(runner: Runner, task: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
    """What the task gives for each position, in the order of the positions; what is done early waits for its turn."""
    early: dict[int, R] = {}
    rest = iter(positions)
    wanted = next(rest, None)
    for position, result in runner.run(task, positions):
        early[position] = result
        while wanted is not None and wanted in early:
            yield wanted, early.pop(wanted)
            wanted = next(rest, None)


def _check_travels(task: Callable[[int], Any]) -> None:
    """A function that other processes cannot import is found out before they are started."""
    try:
        ForkingPickler.dumps(task)
    except Exception as error:  # noqa: BLE001 - any error of pickling
        fact = f"what is computed cannot be sent to other processes ({error})"
        raise ValueError(f"{fact}: use a function or class of a module, or one process") from None


_TASK: list[Callable[[int], Any]] = []


def _remember(task: Callable[[int], Any]) -> None:
    _end_with_parent()
    _TASK[:] = [task]


def _remembered(position: int) -> Any:
    return _TASK[0](position)


def _end_with_parent() -> None:
    """In a process that does part of another's work: end at once when that one is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        start_thread(_end_behind, "warp-parent", parent)


def _end_behind(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)  # what is half done has no name yet, and no process waits for it
