"""A budget is never overshot: not by answers of unknown size, not by threads that spend at the same time."""

from __future__ import annotations

import http.server
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warpdata as wd
from tests.memory_store import MemoryStore
from tests.published import publish_demo
from tests.servers import run_http, serving
from warpdata.errors import BudgetExceededError, LimitExceededError
from warpdata.stores.blobstore import Blob, Budget, Meter, ReliableStore, RetryPolicy
from warpdata.stores.http import HttpStore


def filled(budget: Budget, inner: MemoryStore | None = None) -> ReliableStore:
    inner = inner or MemoryStore()
    inner.put_if_absent("x", bytes(1000))
    return ReliableStore(inner, Meter(budget))


def test_an_answer_of_unknown_size_stays_within_the_budget() -> None:
    store = filled(Budget(max_bytes=2500))
    store.get("x", max_bytes=1 << 20)
    store.get("x", max_bytes=1 << 20)
    with pytest.raises(BudgetExceededError, match="500 bytes left of the budget of 2500"):
        store.get("x", max_bytes=1 << 20)
    assert store.meter.spent.bytes_read == 2000
    store.get_ranges("x", [(0, 500)])
    with pytest.raises(BudgetExceededError):
        store.get_ranges("x", [(0, 1)])


def test_the_limit_of_the_caller_stays_his() -> None:
    with pytest.raises(LimitExceededError):
        filled(Budget(max_bytes=5000)).get("x", max_bytes=10)


def test_news_that_nothing_changed_cost_no_bytes() -> None:
    store = filled(Budget(max_bytes=1000))
    blob = store.get("x", max_bytes=1 << 20)
    assert blob is not None
    assert store.get("x", max_bytes=1 << 20, unless_etag=blob.info.etag) is None


def test_threads_together_stay_within_it() -> None:
    under_way = threading.Barrier(2, timeout=0.2)

    class Slow(MemoryStore):
        def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
            try:
                under_way.wait()
            except threading.BrokenBarrierError:
                under_way.reset()
            return super().get(key, max_bytes=max_bytes, unless_etag=unless_etag)

    store = filled(Budget(max_bytes=3500), Slow())

    def spend(turn: int) -> bool:
        try:
            if turn % 2:
                store.get("x", max_bytes=1 << 20)
            else:
                store.get_ranges("x", [(0, 1000)])
        except BudgetExceededError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(spend, range(6)))
    assert sum(done) == 3, "all that fits is spent, and nothing more"
    assert store.meter.spent.bytes_read == 3000


def test_what_came_of_answers_that_were_cut_counts() -> None:
    """A server that cuts every answer near its end must not be paid for it again and again."""
    served: list[int] = []

    class Cut(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.append(900)
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(bytes(900))
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with serving(Cut) as server:
        web = HttpStore(server.url)
        store = ReliableStore(web, Meter(Budget(max_bytes=2500)), RetryPolicy(sleep=lambda _: None))
        with pytest.raises(BudgetExceededError, match="700 bytes left of the budget of 2500"):
            store.get("x", max_bytes=1 << 20)
        assert store.meter.spent.bytes_read == 1800
        assert len(served) == 3, "the third says how long it is, and is not listened to"
        store.close()


def test_opening_a_dataset_counts_and_stops(local_catalog: str, picture_folder: Path, tmp_path: Path) -> None:
    """Pointer and manifest are part of the budget: a server sees no more than it allows."""
    publish_demo(local_catalog, picture_folder)
    with run_http(Path(local_catalog)) as server:
        with wd.dataset("ws/demo", catalog=server.url, mode="remote") as dataset:
            cost = dataset.spent
            assert cost.requests == len(server.requests)
            assert cost.bytes_read > 0
        for limit in range(cost.requests):
            server.requests.clear()
            with pytest.raises(BudgetExceededError):
                wd.dataset("ws/demo", catalog=server.url, mode="remote", max_requests=limit)
            assert len(server.requests) <= limit
        for limit in (1, cost.bytes_read // 2, cost.bytes_read - 1):
            with pytest.raises(BudgetExceededError):
                wd.dataset("ws/demo", catalog=server.url, mode="remote", max_bytes=limit)
        with wd.dataset(
            "ws/demo",
            catalog=server.url,
            mode="remote",
            max_bytes=cost.bytes_read,
            max_requests=cost.requests,
        ) as dataset:
            assert dataset.spent == cost
