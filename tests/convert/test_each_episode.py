"""Episodes that take their steps together: what comes of each is what comes of it alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.convert.each_episode import SteppedTask
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.forms.directory_copy import Steps
from warpdata.errors import CorruptLayoutError, OutOfSpaceError
from warpdata.timeline.episode import Episode

MOST = 8


@dataclass(frozen=True)
class Plan:
    """What the work on one episode is like."""

    is_small: bool
    steps: int
    fails_at: int | None
    error: type[BaseException] = CorruptLayoutError


plans = st.lists(
    st.builds(
        Plan,
        st.booleans() | st.just(True),
        st.integers(1, 4),
        st.none() | st.integers(0, 4),
        st.sampled_from([CorruptLayoutError, ValueError]),
    ),
    max_size=30,
)


@dataclass
class Worked:
    """Work after such plans, and what it saw."""

    plans: list[Plan]
    under_way: set[int] = field(default_factory=set)
    undone: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    def __call__(self, position: int, episode: Episode) -> Steps[str]:
        plan = self.plans[position]
        self.under_way.add(position)
        assert len(self.under_way) <= MOST
        try:
            for step in range(plan.steps):
                if not plan.is_small and step:  # the first step only says so
                    assert self.under_way == {position}
                if step == plan.fails_at:
                    raise plan.error(f"{position} failed")
                yield plan.is_small
        except BaseException:
            self.undone.append(position)
            raise
        finally:
            self.under_way.remove(position)
        self.finished.append(position)
        return f"{position} {episode.id}"


def task_of(chosen: list[Plan]) -> tuple[SteppedTask, Worked]:
    episodes = Episodes.of([Episode.of({}, id=f"e{number}") for number in range(len(chosen))])
    worked = Worked(chosen)
    return SteppedTask(episodes, worked), worked


def told(results: Iterator[tuple[int, Any]]) -> list[tuple[int, str, str, Any]]:
    return [(position, type(error).__name__, str(error), found) for position, (error, found) in results]


@given(plans)
def test_in_step_each_comes_to_what_it_comes_to_alone(chosen: list[Plan]) -> None:
    task, worked = task_of(chosen)
    together = told(task.in_step(range(len(chosen)), stops=False))
    assert together == told((position, task(position)) for position in range(len(chosen)))
    assert not worked.under_way


@given(plans)
def test_what_is_under_way_behind_the_first_failure_is_undone(chosen: list[Plan]) -> None:
    task, worked = task_of(chosen)
    together: list[tuple[int, Any]] = []
    for position, done in task.in_step(range(len(chosen)), stops=True):
        together.append((position, done))
        if done[0] is not None:
            break
    finished = list(worked.finished)
    failed = [
        number
        for number, plan in enumerate(chosen)
        if plan.fails_at is not None and plan.fails_at < plan.steps
    ]
    stop = failed[0] + 1 if failed else len(chosen)
    assert told(iter(together)) == told((position, task(position)) for position in range(stop))
    for position in finished:  # one behind it may have had fewer steps to take
        assert position < stop or chosen[position].steps < (chosen[failed[0]].fails_at or 0)
    assert not worked.under_way


@pytest.mark.parametrize("error", [OutOfSpaceError, KeyboardInterrupt])
def test_what_ends_the_run_undoes_all_that_is_under_way(error: type[BaseException]) -> None:
    chosen = [Plan(True, 4, None)] * 11 + [Plan(True, 4, 2, error)] + [Plan(True, 4, None)] * 9
    task, worked = task_of(chosen)
    finished = []
    with pytest.raises(error):
        for position, _ in task.in_step(range(len(chosen)), stops=True):
            finished.append(position)
    assert finished == list(range(MOST))
    assert not worked.under_way
    assert sorted(worked.undone) == list(range(MOST, 2 * MOST))


def test_who_wants_no_more_leaves_nothing_under_way() -> None:
    task, worked = task_of([Plan(True, 3, None)] * 20)
    results = task.in_step(range(20), stops=True)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert not worked.under_way
