"""One lock for all who write: it holds against deletion and replacement, and waits a bounded time."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import LIMIT_S
from warpdata.bytekit.process import locks, system
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.bytekit.process.locks import FileLock, is_locked
from warpdata.catalog.access import Staging, sweep
from warpdata.errors import ConflictError, JournalInUseError, NoLocksError, UnavailableError
from warpdata.formats.episodedir import documents
from warpdata.stores import local
from warpdata.stores.local import LocalStore


def taken(path: Path, **how: Any) -> FileLock:
    lock = FileLock.take(path, **how)
    assert lock is not None
    return lock


class TestFileLock:
    def test_one_holds_it(self, tmp_path: Path) -> None:
        first = taken(tmp_path / "lock")
        assert FileLock.take(tmp_path / "lock") is None
        assert FileLock.take(tmp_path / "lock", timeout_s=0.02) is None
        assert locks.is_locked(tmp_path / "lock")
        first.release()
        first.release()
        assert not locks.is_locked(tmp_path / "lock")
        with taken(tmp_path / "lock", removes=True):
            pass
        assert not (tmp_path / "lock").exists()

    @pytest.mark.parametrize("removes", [True, False])
    def test_never_two_at_a_time_though_the_file_comes_and_goes(self, tmp_path: Path, removes: bool) -> None:
        inside, most, failures = [], [0], []

        def work() -> None:
            try:
                for _ in range(150):
                    with taken(tmp_path / "lock", timeout_s=60, removes=removes):
                        inside.append(1)
                        most[0] = max(most[0], len(inside))
                        inside.pop()
            except BaseException as error:  # noqa: BLE001 - seen by the test
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert (failures, most) == ([], [1])

    def test_a_file_that_lost_its_name_meanwhile_is_not_the_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "lock"
        lock_open_file = locks.lock_open_file
        replaced: list[int] = []

        def slow(fd: int, name: str, **how: float) -> bool:
            if (
                not replaced
            ):  # between opening and locking, somebody releases and somebody else takes the name
                os.unlink(path)
                path.touch()
                replaced.append(os.stat(path).st_ino)
            return lock_open_file(fd, name, **how)

        monkeypatch.setattr(locks, "lock_open_file", slow)
        assert os.fstat(taken(path).fd).st_ino == replaced[0]

    def test_a_lock_that_changes_hands_for_ever_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(locks, "_has_name", lambda *_: False)
        monkeypatch.setattr(locks, "_MAX_TURNS", 5)
        with pytest.raises(UnavailableError, match="changing hands"):
            FileLock.take(tmp_path / "lock")

    def test_a_child_has_no_copy(self, tmp_path: Path) -> None:
        lock = taken(tmp_path / "lock", removes=True)
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                lock.release()
                os.write(told, b"x")
                signal.pause()
            finally:
                os._exit(1)
        os.read(ready, 1)
        assert (tmp_path / "lock").exists(), "the child's release does nothing"
        os.close(lock.fd)  # the parent dies; the child lives on
        lock.fd = -1
        taken(tmp_path / "lock").release()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def test_a_child_forked_while_a_thread_opens_the_file_has_no_copy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened, open_file = threading.Event(), os.open

        def slow_open(*args: Any, **options: Any) -> int:
            fd = open_file(*args, **options)
            opened.set()
            time.sleep(0.1)  # the fork falls here, unless it waits
            return fd

        monkeypatch.setattr(os, "open", slow_open)
        found: list[FileLock] = []
        thread = threading.Thread(target=lambda: found.append(taken(tmp_path / "lock")))
        thread.start()
        opened.wait(LIMIT_S)
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(told, b"x")
            signal.pause()
        os.read(ready, 1)
        try:
            thread.join(LIMIT_S)
            found[0].release()
            assert not is_locked(tmp_path / "lock")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_a_folder_that_is_not_there_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(wd.errors.StoreError, match="does not exist"):
            FileLock.take(tmp_path / "no" / "lock")


def test_a_thread_lock_is_free_in_a_child() -> None:
    lock = ThreadLock()
    with lock:
        child = os.fork()
        if child == 0:
            with lock:
                os._exit(0)  # or it hangs here, and the test with it
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class User(NamedTuple):
    """Somebody who keeps a lock for as long as it writes: how it begins, lets go, refuses, and where the lock is."""

    begin: Callable[[Path], Any]
    let_go: Callable[[Any], None]
    refusal: type[Exception]
    lock: str


def harvest(folder: Path) -> wd.CorpusWriter:
    if (folder / "corpus" / "corpus.json").exists():
        return wd.CorpusWriter.reopen(folder / "corpus")
    return wd.CorpusWriter(folder / "corpus", 4)


def vectors(folder: Path) -> wd.VectorStore:
    if (folder / "v.rvf").exists():
        return wd.VectorStore.open(folder / "v.rvf", mode="a")
    return wd.VectorStore.create(folder / "v.rvf", dim=4)


USERS = {
    "corpus": User(harvest, lambda w: w.abandon(), JournalInUseError, "corpus/.harvest.lock"),
    "vectors": User(vectors, lambda s: s.close(), ConflictError, "v.rvf.lock"),
}


@pytest.fixture(params=sorted(USERS))
def user(request: pytest.FixtureRequest) -> User:
    return USERS[request.param]


class TestWhoeverWrites:
    def test_a_second_one_is_refused(self, user: User, tmp_path: Path) -> None:
        first = user.begin(tmp_path)
        with pytest.raises(user.refusal):
            user.begin(tmp_path)
        user.let_go(first)
        assert not (tmp_path / user.lock).exists()
        user.let_go(user.begin(tmp_path))

    def test_closing_does_not_delete_the_lock_of_another(self, user: User, tmp_path: Path) -> None:
        """Somebody deleted the lock of the first by hand, and a second took its place."""
        first = user.begin(tmp_path)
        assert (tmp_path / user.lock).exists()
        os.unlink(tmp_path / user.lock)
        second = user.begin(tmp_path)
        user.let_go(first)
        with pytest.raises(user.refusal):
            user.begin(tmp_path)
        user.let_go(second)
        user.let_go(user.begin(tmp_path))


def test_a_journal_that_is_only_looked_at_can_be_made(tmp_path: Path) -> None:
    """Whoever asks whether it is being recorded holds the lock for a moment."""
    writer = wd.WShardStreamWriter(tmp_path / "a.wshard", "a", [{"id": "x", "dtype": "f32", "shape": [1]}])
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            try:
                locks.is_locked(writer.partial_path)
            except FileNotFoundError:
                continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        writer.begin_episode()
    finally:
        stop.set()
        thread.join()
    assert locks.is_locked(writer.partial_path)
    writer.write_timestep({"x": np.zeros(1, "f4")}, reward=0.0, done=True)
    writer.end_episode()


def test_a_stopped_neighbour_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / ".locks").mkdir()
    for module in (local, documents):
        monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.05)
    with (
        taken(tmp_path / ".locks" / "pointers"),
        pytest.raises(UnavailableError, match="timed out waiting for the lock") as caught,
    ):
        store.compare_and_swap("p", b"1", None)
    assert "stopped process" in caught.value.hint
    store.compare_and_swap("p", b"1", None)
    with (
        taken(tmp_path / "edits.jsonl"),
        pytest.raises(UnavailableError, match="timed out waiting for the lock"),
    ):
        documents.append_edit(tmp_path, {"seq": 1})
    documents.append_edit(tmp_path, {"seq": 1})


def test_staging_folders_of_the_living_are_left(tmp_path: Path) -> None:
    mine = Staging(tmp_path)
    assert sweep(tmp_path) == 0
    child = os.fork()
    if child == 0:
        try:
            mine.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert mine.path.exists(), "a child does not remove what is its parent's"
    mine.close()
    assert not mine.path.exists()


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP])
def _no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file system without locks, as some network disks are."""

    def refuse(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        patched.setattr(system, "set_range_lock", refuse)
        yield


WRITING: dict[str, Callable[[Path], object]] = {
    "corpus": harvest,
    "vectors": vectors,
    "stream": lambda folder: wd.WShardStreamWriter(
        folder / "a.wshard", "a", [{"id": "x", "dtype": "f32", "shape": [1]}]
    ).begin_episode(),
    "episode": lambda folder: wd.DiskEpisodeWriter(folder / "episode"),
    "pointer": lambda folder: LocalStore(folder).compare_and_swap("p", b"1", None),
    "edit": lambda folder: documents.append_edit(folder, {"seq": 1}),
}


@pytest.mark.usefixtures("_no_locks")
class TestWithoutLocks:
    @pytest.mark.parametrize("what", sorted(WRITING))
    def test_writing_is_refused_with_what_to_do(self, what: str, tmp_path: Path) -> None:
        with pytest.raises(NoLocksError, match="no locks") as caught:
            WRITING[what](tmp_path)
        assert "disk of this machine" in caught.value.hint
        assert not (tmp_path / "a.wshard.partial").exists()

    def test_caches_and_readers_go_on(self, tmp_path: Path) -> None:
        from tests.stores.test_cache import DATA, opened

        reader, _, _ = opened(tmp_path)
        assert bytes(reader.read(5, 200_000)) == DATA[5:200_000]
        assert reader.has([(5, 200_000)]), "kept, as if alone"
        (tmp_path / "x").touch()
        assert locks.is_locked(tmp_path / "x") is False
