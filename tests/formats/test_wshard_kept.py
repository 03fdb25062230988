"""Rows of a block that can only be had whole cost one download and one decoding, wherever the block lies."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.memory_store import MemoryStore
from warpdata.bytekit.lazy import BLOCK_CACHE, DEFAULT_BYTES
from warpdata.formats.wshard import ShardReader, reader
from warpdata.stores.blobs import StoreFolder
from warpdata.stores.blobstore import Meter, ReliableStore

STEPS = 300
RGB = np.repeat(np.random.default_rng(1).integers(0, 40, (STEPS, 16, 4, 3), np.uint8), 4, axis=2)
ONE_FRAME = wd.Compression("zstd", 1, "single")
CHUNK_STEPS = 100

Open = Callable[[], wd.Channel]


@pytest.fixture(autouse=True)
def _default_budget() -> Iterator[None]:
    yield
    BLOCK_CACHE.max_bytes = DEFAULT_BYTES


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The blocks that were decoded since, by codec."""
    found: list[str] = []
    plain = reader.decode

    def counting(codec: str, *rest: Any) -> bytes:
        found.append(codec)
        return plain(codec, *rest)

    monkeypatch.setattr(reader, "decode", counting)
    return found


def made() -> wd.WShardEpisode:
    episode = wd.WShardEpisode(id="kept", length=STEPS)
    episode.observations["rgb"] = RGB
    return episode


def metered(path: Path) -> tuple[Any, Meter]:
    """The bytes of a file in a store that counts its requests."""
    meter, store = Meter(), MemoryStore()
    store.put_if_absent("a", path.read_bytes())
    return StoreFolder("memory://kept", lambda _: ReliableStore(store, meter)).open("a"), meter


@pytest.mark.parametrize("compression", [ONE_FRAME, "lz4"], ids=["zstd", "lz4"])
def test_rows_of_one_frame_are_decoded_once(tmp_path: Path, decoded: list[str], compression: Any) -> None:
    wd.save_wshard(made(), tmp_path / "a", compression)
    channel = wd.load_wshard(tmp_path / "a").observations["rgb"]
    for row in range(100):
        assert np.array_equal(channel[row], RGB[row])
    assert np.array_equal(channel[7:290], RGB[7:290])
    assert np.array_equal(channel.data, RGB)
    assert len(decoded) == 1


@pytest.mark.parametrize("compression", [ONE_FRAME, "lz4", None], ids=["zstd", "lz4", "raw"])
def test_rows_in_a_store_are_downloaded_once(tmp_path: Path, decoded: list[str], compression: Any) -> None:
    wd.save_wshard(made(), tmp_path / "a", compression)
    file, meter = metered(tmp_path / "a")
    channel = wd.load_wshard(file).observations["rgb"]
    opened = meter.spent
    for row in range(100):
        assert np.array_equal(channel[row], RGB[row])
    block = ShardReader.open(tmp_path / "a").block("signal/rgb")
    assert meter.spent.bytes_read - opened.bytes_read <= block.disk_size
    assert meter.spent.requests - opened.requests <= 2
    assert len(decoded) == (compression is not None)


@pytest.mark.parametrize("compression", [ONE_FRAME, "lz4", "zstd-seekable"])
def test_keys_that_need_every_row_cost_one_download(
    tmp_path: Path, decoded: list[str], compression: Any
) -> None:
    wd.save_wshard(made(), tmp_path / "a", compression)
    file, meter = metered(tmp_path / "a")
    channel = wd.load_wshard(file).observations["rgb"]
    opened = meter.spent
    keys: list[Any] = [(), ..., slice(None), None, (slice(None), 1), (..., 0), (..., 1), (..., 2)]
    for key in keys * 3:
        assert np.array_equal(channel[key], RGB[key])
    block = ShardReader.open(tmp_path / "a").block("signal/rgb")
    assert meter.spent.bytes_read - opened.bytes_read <= block.disk_size + 1000
    assert len(decoded) == (compression != "zstd-seekable")


def test_chunks_are_decoded_once_each(tmp_path: Path, decoded: list[str]) -> None:
    listed = wd.chunk_episode(made(), tmp_path / "chunks", CHUNK_STEPS, compression=ONE_FRAME)
    channel = wd.open_episode(listed).tensors.observations["rgb"]
    for row in range(0, STEPS, 3):
        assert np.array_equal(channel[row], RGB[row])
    assert np.array_equal(channel[90:210], RGB[90:210])
    assert len(decoded) == STEPS // CHUNK_STEPS


@contextmanager
def counted_dataset(folder: Path) -> Iterator[tuple[wd.Dataset, list[int]]]:
    wd.save_wshard(made(), folder / "e.wshard", ONE_FRAME)
    with wd.DatasetBuilder("t/kept", catalog=folder / "catalog") as builder:
        builder.add_artifact("episodes", folder / "e.wshard", kind="wshard_episodes")
        builder.publish(message="kept")
    asked: list[int] = []
    with wd.dataset(
        "t/kept", catalog=folder / "catalog", listener=lambda _operation, _blob, size: asked.append(size)
    ) as dataset:
        yield dataset, asked


def test_published_episodes_are_read_and_decoded_once(tmp_path: Path, decoded: list[str]) -> None:
    with counted_dataset(tmp_path) as (dataset, asked):
        episode = dataset.episodes[0]
        channel, signal = episode.tensors.observations["rgb"], episode["rgb"]
        asked.clear()
        for row in range(50):
            assert np.array_equal(channel[row], RGB[row])
            assert np.array_equal(signal[row][0], RGB[row])
        assert len(asked) <= 2
        assert len(decoded) == 1


def test_the_budget_holds(tmp_path: Path, decoded: list[str]) -> None:
    wd.save_wshard(made(), tmp_path / "a", ONE_FRAME)
    wd.keep_decoded(0)
    channel = wd.load_wshard(tmp_path / "a").observations["rgb"]
    for row in range(5):
        assert np.array_equal(channel[row], RGB[row])
    assert len(decoded) == 5
    wd.keep_decoded("1MB")
    for row in range(5):
        assert np.array_equal(channel[row], RGB[row])
    assert len(decoded) == 6
    assert BLOCK_CACHE.held_bytes == RGB.nbytes
    with pytest.raises(ValueError, match="size"):
        wd.keep_decoded("much")


def test_blocks_go_with_their_reader_and_rows_do_not_hold_them(tmp_path: Path) -> None:
    wd.save_wshard(made(), tmp_path / "a", ONE_FRAME)
    gc.collect()
    before = BLOCK_CACHE.held_bytes
    rows = [wd.load_wshard(tmp_path / "a").observations["rgb"][row] for row in range(3)]
    gc.collect()
    assert BLOCK_CACHE.held_bytes == before
    for row, each in enumerate(rows):
        assert np.array_equal(each, RGB[row])
        assert _memory_behind(each) <= 2 * each.nbytes
    with ShardReader.open(tmp_path / "a") as shard:
        shard.read_rows("signal/rgb", 0, 1)
        assert BLOCK_CACHE.held_bytes == before + RGB.nbytes
    assert BLOCK_CACHE.held_bytes == before


def test_many_threads_read_rows_of_one_block(tmp_path: Path) -> None:
    wd.save_wshard(made(), tmp_path / "a", ONE_FRAME)
    wd.keep_decoded(RGB.nbytes + 1000)
    channels = [wd.load_wshard(tmp_path / "a").observations["rgb"] for _ in range(2)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for row in draw.integers(0, STEPS, 40).tolist():
            if not np.array_equal(channels[row % 2][row], RGB[row]):
                wrong.append(row)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert BLOCK_CACHE.held_bytes <= BLOCK_CACHE.max_bytes


def _memory_behind(array: np.ndarray[Any, Any]) -> int:
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return memoryview(base).nbytes
