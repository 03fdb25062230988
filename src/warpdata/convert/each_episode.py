"""One piece of work for every episode, here or in other processes: what is wrong with one is told, not raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import in_order, runner_of
from warpdata.episodes.forms.directory_copy import Steps
from warpdata.errors import FormatError, WarpError, nearest
from warpdata.timeline.episode import Episode

if TYPE_CHECKING:
    from warpdata.convert.receipt import ConversionReceipt

Progress = Callable[[int, int], None]
OnError = Literal["stop", "skip"]

Done = tuple[WarpError | None, Any]
"""What is wrong with an episode, or what came of it."""
Work = Callable[[int, Episode], Any]
"""What is done with the episode at a position; a function of a module or an object, so that it travels."""


@dataclass(frozen=True)
class EpisodeTask:
    """Does the work for the episode at a position; it travels to other processes."""

    episodes: Episodes
    work: Work

    def __call__(self, position: int) -> Done:
        """What came of the episode; what is wrong with the machine rather than with it is raised."""
        try:
            return None, self.work(position, self.episodes[position])
        except _OF_AN_EPISODE as error:
            return _told(error), None


_OF_AN_EPISODE = (WarpError, ValueError, TypeError)


def _told(error: Exception) -> WarpError:
    """What is wrong with an episode; what is wrong with the machine is raised."""
    if not isinstance(error, WarpError):  # a name or a value that episodes cannot have
        return FormatError(str(error), hint="Rename it, or leave it out with a mapping.")
    if error.code in ("out_of_space", "permission"):
        raise error
    return error


_TOGETHER = 8
"""Episodes that go in step: enough that each step is seldom the first of its kind."""


@dataclass(frozen=True)
class SteppedTask:
    """Does work that goes in steps for the episode at a position; it travels to other processes."""

    episodes: Episodes
    work: Callable[[int, Episode], Steps[Any]]

    def __call__(self, position: int) -> Done:
        """What came of one episode."""
        return next(done for _, done in self.in_step([position], stops=True))

    def in_step(self, positions: Iterable[int], *, stops: bool) -> Iterator[tuple[int, Done]]:
        """What came of each, in order; where the first failure `stops` the work, what is under way behind it is undone.

        Small ones that follow each other take every step together: between two different steps most of what the next
        one needs has left the cache of the processor.
        """
        group: list[_UnderWay] = []
        try:
            for position in positions:
                each = _UnderWay(position, self)
                group.append(each)
                if not each.is_small or len(group) == _TOGETHER or (stops and each.has_failed):
                    yield from _finished(group, stops=stops)
            yield from _finished(group, stops=stops)
        finally:
            for each in group:
                each.close()


def _finished(group: list[_UnderWay], *, stops: bool) -> Iterator[tuple[int, Done]]:
    """What came of a group, of which only the last may not be small: that one comes after the others."""
    alone = [each for each in group if not each.is_small]
    for some in ([each for each in group if each.is_small], alone):
        while some := [each for each in some if each.done is None]:
            for each in some:
                if each.done is None:
                    each.step()
                if stops and each.has_failed:
                    _drop(group, group.index(each) + 1)
    while group:
        first = group.pop(0)
        assert first.done is not None
        yield first.position, first.done


def _drop(group: list[_UnderWay], first: int) -> None:
    for each in group[first:]:
        each.close()
    del group[first:]


class _UnderWay:
    """Work on one episode that has begun."""

    def __init__(self, position: int, task: SteppedTask) -> None:
        self.position = position
        self.is_small = True
        self.done: Done | None = None
        """What came of it, in the end."""
        self._steps = self._begun(task)
        self.step()

    def _begun(self, task: SteppedTask) -> Steps[Any]:
        return (yield from task.work(self.position, task.episodes[self.position]))

    def step(self) -> None:
        """Go on until the next step."""
        try:
            self.is_small = next(self._steps)
        except StopIteration as end:
            self.done = None, end.value
        except _OF_AN_EPISODE as error:
            self.done = _told(error), None

    @property
    def has_failed(self) -> bool:
        """Whether something is wrong with the episode."""
        return self.done is not None and self.done[0] is not None

    def close(self) -> None:
        """Undo it unless it is finished."""
        self._steps.close()
        self.done = None, None


def exported(
    episodes: Episodes,
    work: Work,
    *,
    jobs: int,
    on_error: OnError,
    receipt: ConversionReceipt,
    progress: Progress | None,
) -> Iterator[tuple[int, Any]]:
    """Each position with what the work gave for it, in order, whoever did it; what fails is raised, or skipped."""
    check_on_error(on_error)
    results = in_order(runner_of(jobs), EpisodeTask(episodes, work), range(len(episodes)))
    for done, (position, (error, result)) in enumerate(results, 1):
        if error is None:
            yield position, result
        elif on_error == "stop":
            raise error
        else:
            receipt.skip(episodes.ids[position], error)
        if progress is not None:
            progress(done, len(episodes))


def in_episode(error: WarpError, episode_id: str) -> WarpError:
    """The same error, saying in which episode."""
    made = type(error)(f"episode {episode_id}: {error.message}", hint=error.hint)
    made.path = error.path
    return made


def check_on_error(on_error: str) -> None:
    """Raise unless it is a word we know."""
    if on_error not in ("stop", "skip"):
        raise ValueError(
            f"on_error is 'stop' or 'skip', not {on_error!r}.{nearest(on_error, ('stop', 'skip'))}"
        )
