"""Values of one process, hooks in forked children, and objects that pickle as the call that made them."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable

from warpdata.bytekit.process.forks import OwnProcess, PerProcess, Reopens, run_in_child


def in_child(check: Callable[[], bool]) -> bool:
    """Whether `check` is true in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_every_process_makes_its_own_value() -> None:
    lock = PerProcess(threading.Lock)
    lock().acquire()
    assert lock().locked()
    assert in_child(lambda: not lock().locked())
    assert in_child(lambda: in_child(lambda: not lock().locked()))
    assert lock.reset() is not None
    assert not lock().locked()


def test_threads_share_the_value_of_their_process() -> None:
    barrier = threading.Barrier(4)
    values: list[object] = []

    def make() -> object:
        barrier.wait()
        return object()

    value = PerProcess(make)
    threads = [threading.Thread(target=lambda: values.append(value())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(values) == 4
    assert len(set(values)) == 1


class Holder:
    def __init__(self) -> None:
        self.is_open = True
        self.own = OwnProcess()
        run_in_child(self.close)

    def close(self) -> None:
        self.is_open = False


def test_hooks_run_in_children_only() -> None:
    holder = Holder()
    assert in_child(lambda: not holder.is_open and not holder.own)
    assert holder.is_open
    assert holder.own


class Reader(Reopens):
    def __init__(self, path: str, *, pages: int = 1) -> None:
        self.path, self.pages, self.lock = path, pages, threading.Lock()


class SlottedReader(Reopens):
    __slots__ = ("_made_by", "lock", "path")

    def __init__(self, path: str) -> None:
        self.path, self.lock = path, threading.Lock()


def open_reader(path: str) -> Reader:
    reader = Reader(path, pages=7)
    reader.reopen_by(open_reader, path)
    return reader


def test_what_reopens_pickles_as_the_call_that_made_it() -> None:
    reader = pickle.loads(pickle.dumps(Reader("a", pages=3)))
    assert (reader.path, reader.pages) == ("a", 3)
    assert pickle.loads(pickle.dumps(SlottedReader("b"))).path == "b"
    assert pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(open_reader("c"))))).pages == 7
    assert copy.copy(reader).lock is not reader.lock
