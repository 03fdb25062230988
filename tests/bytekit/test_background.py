"""Work in the background: order, errors, closing, forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.waiting import LIMIT_S
from warpdata.bytekit.process.threads import (
    OrderedQueue,
    QueueThread,
    ThreadPool,
    call_with_timeout,
    map_in_threads,
    read_ahead,
)


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_errors_in_their_turn(threads: int) -> None:
    worker: OrderedQueue[tuple[int, int]] = OrderedQueue("test", threads)
    for value in range(5):
        worker.submit(partial(divmod, 10, value))
    with pytest.raises(ZeroDivisionError):
        worker.take()
    assert [worker.take() for _ in range(4)] == [(10, 0), (5, 0), (3, 1), (2, 2)]
    with pytest.raises(RuntimeError, match="no job is queued"):
        worker.take()
    worker.close()
    worker.close()
    assert not worker.is_alive


def test_an_ordered_queue_does_several_jobs_at_a_time() -> None:
    workers: OrderedQueue[int] = OrderedQueue("test", 2)
    both = threading.Barrier(2, timeout=LIMIT_S)
    for _ in range(2):
        workers.submit(both.wait)
    assert sorted([workers.take(), workers.take()]) == [0, 1]
    workers.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_forked_child_does_again_what_was_not_taken(threads: int) -> None:
    worker: OrderedQueue[int] = OrderedQueue("test", threads)
    for value in range(1, 4):
        worker.submit(partial(pow, value, 2))
    assert worker.take() == 1
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            worker.submit(partial(pow, 10, 2))
            code = 0 if [worker.take() for _ in range(3)] == [4, 9, 100] and worker.is_alive else 2
            worker.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [worker.take(), worker.take()] == [4, 9]
    worker.close()


def test_read_ahead_is_bounded_ordered_and_stops_with_its_consumer() -> None:
    started: list[int] = []

    def square(value: int) -> int:
        started.append(value)
        return value * value

    results = read_ahead(square, range(100), depth=3)
    assert [next(results) for _ in range(4)] == [0, 1, 4, 9]
    assert len(started) <= 7
    results.close()  # type: ignore[attr-defined]
    assert list(read_ahead(square, [5, 6], depth=10, threads=2)) == [25, 36]
    with pytest.raises(ZeroDivisionError):
        list(read_ahead(lambda x: 1 // x, [1, 0, 2], depth=1))


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


def test_a_queue_is_served_in_order_and_knows_when_it_is_gone() -> None:
    seen: list[object] = []
    thread: QueueThread[object] = QueueThread(seen.append, "test")
    for item in (1, None, "x"):
        thread.put(item)
    assert in_child(lambda: not thread.is_alive)
    thread.close()
    thread.close()
    assert seen == [1, None, "x"]
    assert not thread.is_alive
