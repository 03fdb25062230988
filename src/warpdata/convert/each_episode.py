"""Work on every episode, in this process or in others; the error of one episode is a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from warpdata.convert.receipt import ConversionReceipt
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import in_order, runner_of
from warpdata.errors import FormatError, WarpError, require_word
from warpdata.timeline.episode import Episode

Progress = Callable[[int, int], None]
OnError = Literal["stop", "skip"]
Work = Callable[[int, Episode], Any]
"""Work on the episode at a position; it must pickle."""


@dataclass(frozen=True)
class EpisodeTask:
    """Work for the episode at a position; it travels to other processes."""

    episodes: Episodes
    work: Work

    def __call__(self, position: int) -> tuple[WarpError | None, Any]:
        """The error of this episode, or the result; errors of the machine are raised."""
        try:
            return None, self.work(position, self.episodes[position])
        except WarpError as error:
            if error.code in ("out_of_space", "permission"):
                raise
            return error, None
        except (ValueError, TypeError) as error:  # a name or a value that episodes cannot have
            return FormatError(str(error), hint="Rename it, or leave it out with a mapping."), None


def export_each(
    episodes: Episodes,
    work: Work,
    *,
    jobs: int,
    on_error: OnError,
    receipt: ConversionReceipt,
    progress: Progress | None,
) -> Iterator[tuple[int, Any]]:
    """Positions and results in order; the error of an episode is raised, or entered into the receipt."""
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


def check_on_error(on_error: str) -> None:
    """Raise ValueError unless the word is known."""
    require_word("on_error", on_error, ("stop", "skip"))
