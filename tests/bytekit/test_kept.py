"""Kept blocks: within their budget, gone with their reader, safe in threads, forks and finalisers."""

from __future__ import annotations

import gc
import os
import random
import threading

import pytest

from tests.waiting import LIMIT_S
from warpdata.bytekit.lazy import BLOCK_CACHE, BlockCache


def block(size: int, fill: int = 0) -> memoryview:
    return memoryview(bytes([fill]) * size)


def test_the_least_recently_used_go_first() -> None:
    kept = BlockCache(100)
    for name in "abc":
        kept.put(1, name, block(30))
    assert kept.get(1, "a") is not None
    kept.put(1, "d", block(30))
    assert [kept.get(1, name) is not None for name in "abcd"] == [True, False, True, True]
    kept.put(1, "too large", block(101))
    assert kept.get(1, "too large") is None
    assert kept.held_bytes == 90
    kept.max_bytes = 40
    assert kept.held_bytes == 30
    kept.max_bytes = 0
    assert kept.held_bytes == 0
    with pytest.raises(ValueError, match="budget"):
        kept.max_bytes = -1


def test_blocks_belong_to_their_reader() -> None:
    kept = BlockCache(100)
    kept.put(1, "a", block(10, 1))
    kept.put(2, "a", block(10, 2))
    assert bytes(kept.get(1, "a") or b"") == bytes([1]) * 10
    kept.forget(1)
    kept.forget(77)
    assert kept.get(1, "a") is None
    assert kept.held_bytes == 10


def test_a_finaliser_may_forget_in_the_middle_of_anything() -> None:
    kept = BlockCache(100)
    kept.put(1, "a", block(10))
    with kept._lock:  # as if the collector ran inside `put`
        kept.forget(1)
    assert kept.held_bytes == 0


def test_threads() -> None:
    kept = BlockCache(1000)

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(2000):
            owner, size = draw.randrange(8), draw.randrange(1, 200)
            found = kept.get(owner, str(size))
            assert found is None or len(found) == size
            kept.put(owner, str(size), block(size))
            if draw.random() < 0.05:
                kept.forget(owner)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept.held_bytes <= 1000
    assert kept.held_bytes == sum(len(each) for each in kept._blocks.values())


def test_a_forked_child_starts_with_nothing_and_a_free_lock() -> None:
    owner = BLOCK_CACHE.new_owner()
    BLOCK_CACHE.put(owner, "a", block(10))
    with BLOCK_CACHE._lock:
        pid = os.fork()
        if pid == 0:
            gc.disable()
            is_free = BLOCK_CACHE._lock.acquire(timeout=LIMIT_S)
            os._exit(0 if is_free and not BLOCK_CACHE._blocks else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert BLOCK_CACHE.get(owner, "a") is not None
    BLOCK_CACHE.forget(owner)
