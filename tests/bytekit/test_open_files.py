"""However many files are in use, few are open: what is read, by however many threads, is always the right file."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.contracts.range_reader import RangeReaderContract
from warpdata.bytekit.io import files as files_module
from warpdata.bytekit.io.files import LocalRangeReader, OpenFiles
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process import system
from warpdata.errors import BlobChangedError, BlobNotFoundError, StoreError, TruncatedError

MOST = 4


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "OPEN_FILES", OpenFiles(MOST, low=0))


def open_below(folder: Path) -> int:
    """How many descriptors of this process are files in a folder."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not list the descriptors of a process")
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith(f"{folder}/") for link in links)


def files(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{number:04d}.bin" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(number.to_bytes(4, "little") * 50_000)
    return paths


class TestOneThatIsClosedAndOpened(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        (folder / "x.bin").write_bytes(data)
        reader = LocalRangeReader(folder / "x.bin")
        self.others = [LocalRangeReader(path) for path in files(folder, MOST)]
        assert reader._shared is None
        return reader


def test_few_descriptors_for_many_files_and_none_for_mappings(tmp_path: Path) -> None:
    readers = [LocalRangeReader(path) for path in files(tmp_path, 40)]
    views = [reader.read(0, 100_000) for reader in readers]
    for number, reader in enumerate(readers):
        assert bytes(reader.read(8, 12)) == bytes(views[number][8:12]) == number.to_bytes(4, "little")
    assert open_below(tmp_path) <= MOST
    for reader in readers:
        reader.close()
    assert open_below(tmp_path) == 0
    assert [bytes(view[:4]) for view in views] == [n.to_bytes(4, "little") for n in range(40)]


def test_threads_that_open_close_and_read_at_once(tmp_path: Path) -> None:
    paths = files(tmp_path, 12)
    shared = [LocalRangeReader(path) for path in paths]
    wrong: list[object] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(400):
                number = chance.randrange(len(paths))
                reader = shared[number] if chance.random() < 0.7 else LocalRangeReader(paths[number])
                start = 4 * chance.randrange(40_000)
                found = bytearray(4)
                if chance.random() < 0.5:
                    found[:] = reader.read(start, start + 4)
                else:
                    reader.read_into(start, memoryview(found))
                if int.from_bytes(found, "little") != number:
                    wrong.append((number, bytes(found)))
                if reader is not shared[number] and chance.random() < 0.5:
                    reader.close()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for reader in shared:
        reader.close()
    assert open_below(tmp_path) == 0


def test_a_thread_that_reads_keeps_its_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = files(tmp_path, 2 * MOST)
    reader = LocalRangeReader(paths[1])
    real = system.read_into

    def slow(fd: int, out: memoryview, offset: int) -> int:
        monkeypatch.setattr(system, "read_into", real)
        others = [LocalRangeReader(path) for path in paths]
        assert reader._shared is None
        os.fstat(fd)  # still open for the thread that reads
        assert len(others) > MOST
        return real(fd, out, offset)

    monkeypatch.setattr(system, "read_into", slow)
    assert bytes(reader.read(0, 4)) == (1).to_bytes(4, "little")
    assert bytes(reader.read(4, 8)) == (1).to_bytes(4, "little")
    reader.close()
    assert open_below(tmp_path) == 0


@pytest.mark.parametrize("change", ["replaced", "removed", "shorter"])
def test_a_file_that_is_another_one_by_now_is_not_read(tmp_path: Path, change: str) -> None:
    first, *others = files(tmp_path, MOST + 1)
    reader = LocalRangeReader(first)
    held = [LocalRangeReader(path) for path in others]
    assert reader._shared is None
    if change == "replaced":
        (tmp_path / "new").write_bytes(first.read_bytes())
        os.replace(tmp_path / "new", first)
    elif change == "removed":
        first.unlink()
    else:
        os.truncate(first, 10)
    with pytest.raises((BlobChangedError, BlobNotFoundError)):
        reader.read(0, 4)
    assert len(held) == MOST


def test_a_new_name_or_mode_is_no_other_file(tmp_path: Path) -> None:
    first, *others = files(tmp_path, MOST + 1)
    reader = LocalRangeReader(first)
    held = [LocalRangeReader(path) for path in others]
    os.link(first, tmp_path / "second name")
    first.chmod(0o400)
    assert bytes(reader.read(0, 4)) == bytes(4)
    assert len(held) == MOST


def test_what_is_closed_and_what_was_cut_say_so(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 1)
    reader = LocalRangeReader(path)
    os.truncate(path, 100)
    with pytest.raises(TruncatedError, match="expected 200000 bytes, got 100"):
        reader.view(0, 200_000)
    reader.close()
    with pytest.raises(StoreError, match="closed"):
        reader.read(0, 4)


def test_episodes_in_many_shards_and_chunks(tmp_path: Path) -> None:
    """Held all at once, with arrays that are views of their files."""
    for number in range(20):
        made = wd.WShardEpisode(id=f"e{number}", length=60)
        made.observations["x"] = np.full((60, 500), number, np.float64)
        made.observations["small"] = np.full(60, number, np.float32)
        (
            wd.save_wshard(made, tmp_path / f"e{number}.wshard")
            if number % 2
            else wd.chunk_episode(made, tmp_path, 20)
        )
    held = list(wd.open(tmp_path))
    assert len(held) == 20
    arrays = [(episode.id, episode["x"].values(), episode["small"].values()) for episode in held]
    for name, large, small in arrays:
        assert (large == int(name[1:])).all()
        assert (small == int(name[1:])).all()
    assert open_below(tmp_path) <= MOST


def test_a_file_with_a_low_number_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "OPEN_FILES", OpenFiles(MOST, low=10_000))
    readers = [LocalRangeReader(path) for path in files(tmp_path, 3 * MOST)]
    assert open_below(tmp_path) == 3 * MOST
    assert [bytes(reader.read(0, 4))[0] for reader in readers] == list(range(3 * MOST))
    for reader in readers:
        reader.close()
        with pytest.raises(StoreError, match="closed"):
            reader.read(0, 4)
    assert open_below(tmp_path) == 0
