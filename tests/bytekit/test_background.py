"""Work in the background: order, errors, closing, forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.waiting import LIMIT_S
from warpdata.bytekit.process.threads import (
    ReadAhead,
    ThreadPool,
    call_with_timeout,
    map_in_threads,
)


def squares(tasks: list[int], **options: int) -> ReadAhead[int, int, int]:
    return ReadAhead(
        lambda task: partial(pow, task, 2),
        lambda task, fetched: fetched // (task - 3),
        tasks,
        **{"workers": 4, "max_cost": 1 << 20, **options},
        cost=lambda _: 1,
    )


@pytest.mark.parametrize("workers", [0, 1, 9])
def test_results_come_in_order_and_errors_in_their_turn(workers: int) -> None:
    ahead = squares([4, 5, 3, 6], workers=workers)
    assert [next(ahead), next(ahead)] == [16, 12]
    with pytest.raises(ZeroDivisionError):
        next(ahead)
    assert list(ahead) == [12]
    ahead.close()


def test_a_forked_child_does_again_what_was_not_taken() -> None:
    ahead = squares([4, 5, 6, 7, 8])
    assert next(ahead) == 16
    assert in_child(lambda: list(ahead) == [12, 12, 12, 12])
    assert list(ahead) == [12, 12, 12, 12]


def test_read_ahead_is_bounded_and_stops_when_it_is_closed() -> None:
    started: list[int] = []

    def ask(task: int) -> Callable[[], None]:
        started.append(task)
        return lambda: None

    ahead = ReadAhead(ask, lambda task, _: task, range(100), workers=3, cost=lambda _: 1, max_cost=1 << 20)
    assert [next(ahead) for _ in range(4)] == [0, 1, 2, 3]
    assert len(started) <= 8
    ahead.close()
    assert list(ahead) == []


def test_a_call_that_cannot_be_interrupted_times_out() -> None:
    assert call_with_timeout(lambda: 3, LIMIT_S, "answer") == 3
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(lambda: 1 // 0, LIMIT_S, "divide")
    release = threading.Event()
    with pytest.raises(TimeoutError, match="sleep timed out"):
        call_with_timeout(lambda: release.wait(LIMIT_S), 0.01, "sleep")
    release.set()


def test_map_in_threads_keeps_the_order() -> None:
    assert map_in_threads(lambda x: x * x, list(range(50)), 4) == [x * x for x in range(50)]
    assert map_in_threads(str, [], 4) == []
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda x: 1 // x, [1, 0], 4)


def in_child(check: Callable[[], bool]) -> bool:
    """What a forked child finds."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_pool_works_in_a_child_and_after_it_was_closed() -> None:
    pool = ThreadPool(2, "test")
    assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
    assert in_child(lambda: pool.submit(pow, 3, 2).result(LIMIT_S) == 9)
    pool.close(wait=True)
    assert pool.submit(pow, 2, 3).result(LIMIT_S) == 8
    with pytest.raises(ZeroDivisionError):
        pool.map(lambda x: 1 // x, [1, 0])
    pool.close(wait=True)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_threads_of_a_pool_share_work_without_waiting_for_a_free_one(workers: int) -> None:
    """All threads of the pool wait for tasks that only they could begin: each does its own."""
    pool, done = ThreadPool(workers, "test"), list[int]()
    together = threading.Barrier(workers)

    def ask(number: int) -> None:
        together.wait(LIMIT_S)
        pool.share(done.append, [10 * number + part for part in range(3)])

    pool.map(ask, list(range(workers)))
    assert sorted(done) == [10 * number + part for number in range(workers) for part in range(3)]

    def fail(part: int) -> None:
        if part:
            raise ValueError(part)

    with pytest.raises(ValueError, match=r"[12]"):
        pool.share(fail, [0, 1, 2])
    pool.close(wait=True)
