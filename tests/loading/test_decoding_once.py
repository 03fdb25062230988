"""What is decoded or fetched for one window serves the windows that overlap it, and stays right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit import codec
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.lazy import BLOCK_CACHE, DEFAULT_BYTES
from warpdata.bytekit.memory import RecycledArrays
from warpdata.bytekit.process.threads import ReadAhead
from warpdata.episodes.forms.content import stated_content
from warpdata.episodes.sources.shard_episode import BlockSignal
from warpdata.errors import FormatError
from warpdata.formats.episodedir.video import VideoDecoder
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.memory import JoinedSignal

STEPS = 90


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    made = wd.WShardEpisode(id="x", length=STEPS)
    made.observations["rgb"] = np.repeat(rng.integers(0, 255, (STEPS, 60, 8, 3), np.uint8), 16, axis=2)
    made.actions["ctrl"] = rng.normal(size=(STEPS, 3)).astype(np.float32)
    wd.save_wshard(made, tmp_path / "x.wshard", "zstd-seekable", durable=False)
    return tmp_path / "x.wshard"


def windows_of(path: Path) -> wd.Windows:
    fields = {"image": wd.Field("rgb", horizon=7), "action": wd.Field("ctrl", horizon=3)}
    return wd.Windows([wd.open_episode(path)], fields, anchor="ctrl")


def test_a_compressed_frame_is_decoded_once_for_all_windows(shard: Path, monkeypatch) -> None:
    decoded: list[tuple[int, int]] = []
    original = codec.SeekTable.decode_frames

    def counted(self, first, last, data):
        decoded.extend((id(self), number) for number in range(first, last))
        return original(self, first, last, data)

    monkeypatch.setattr(codec.SeekTable, "decode_frames", counted)
    windows, rng = windows_of(shard), np.random.default_rng(0)
    for _ in range(6):
        windows.batch(rng.integers(0, STEPS, 8))
    assert decoded
    assert len(decoded) == len(set(decoded))


@pytest.mark.parametrize("budget", [0, 100_000, 1 << 30])
def test_values_are_the_same_whatever_may_be_kept(shard: Path, budget: int) -> None:
    wd.keep_decoded(budget)
    try:
        values = ShardReader.open(shard).read_rows("signal/rgb", 0, STEPS)
        windows, rng = windows_of(shard), np.random.default_rng(1)
        for _ in range(4):
            samples = rng.integers(0, STEPS, 16)
            rows = np.minimum(samples[:, None] + np.arange(7), STEPS - 1)
            batch = windows.batch(samples)
            assert np.array_equal(batch["image"], values[rows])
            assert np.array_equal(batch.mask["image"], samples[:, None] + np.arange(7) < STEPS)
    finally:
        wd.keep_decoded(DEFAULT_BYTES)


def test_a_damaged_frame_is_an_error_that_names_the_field(shard: Path) -> None:
    block = ShardReader.open(shard).block("signal/rgb")
    data = bytearray(shard.read_bytes())
    data[block.data_offset + block.disk_size // 2] ^= 0x55
    shard.write_bytes(data)
    with pytest.raises(FormatError, match="field 'image'"):
        windows_of(shard).batch(np.arange(STEPS))


@pytest.mark.parametrize("size", [16, 400])
def test_windows_of_a_camera_are_its_frames(tmp_path: Path, size: int) -> None:
    with wd.LocalDatasetWriter(tmp_path / "root").new_episode() as writer:
        for i in range(50):
            writer.append("cam", np.full((size, size, 3), i * 4, np.uint8), i * 50_000_000)
    episode = wd.open_recordings(tmp_path / "root")[0]
    frames = episode["cam"].rows(0, 50)
    for field, offsets in (
        (wd.Field("cam", past=5), range(-4, 1)),
        (wd.Field("cam", offsets_s=[-0.3, 0.0]), (-6, 0)),
    ):
        windows = wd.Windows([episode], {"image": field}, anchor="cam")
        samples = np.random.default_rng(2).integers(0, 50, 12)
        rows = np.maximum(samples[:, None] + np.array(offsets), 0)
        assert np.array_equal(windows.batch(samples)["image"], frames[rows])


def film(steps: int, height: int = 120, width: int = 160) -> np.ndarray:
    """Smooth frames that all differ: a wave that moves over a ramp of colours."""
    y, x = np.mgrid[0:height, 0:width]
    ramp = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (height + width)], -1)
    waves = [40 * np.sin((x + 4 * step) / 15)[..., None] for step in range(steps)]
    return np.clip(np.array([ramp * 0.7 + 40 + wave for wave in waves]), 0, 255).astype(np.uint8)


def recorded(root: Path, frames: np.ndarray, first: int = 0, **options: Any) -> wd.Episode:
    with wd.LocalDatasetWriter(root, video=wd.VideoOptions(**options)).new_episode() as writer:
        for i, frame in enumerate(frames, first):
            writer.append("cam", frame, i * 50_000_000)
    return wd.open_recordings(root)[0]


@pytest.fixture
def fed(monkeypatch) -> list[tuple[int, int]]:
    """The frame of every packet that goes to a decoder."""
    packets: list[tuple[int, int]] = []
    original = VideoDecoder.feed
    monkeypatch.setattr(
        VideoDecoder,
        "feed",
        lambda self, number, packet: packets.append((id(self), number)) or original(self, number, packet),
    )
    return packets


@pytest.mark.parametrize("gop_size", [2, 10, 250])
def test_no_group_of_pictures_is_decoded_twice_in_a_batch(tmp_path: Path, fed, gop_size: int) -> None:
    episode = recorded(tmp_path / "root", film(60), gop_size=gop_size)
    fields = {  # history, another size, a part, and the whole frames: all of one camera
        "past": wd.Field("cam", past=3, size=(30, 40)),
        "wide": wd.Field("cam", size=(24, 24), resize="pad"),
        "part": wd.Field("cam", crop=(60, 60)),
        "whole": "cam",
    }
    windows = wd.Windows([episode], fields, anchor="cam")
    windows.batch([59, 3, 4, 31, 30, 5, 58])
    assert len(fed) == len(set(fed))


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_frames_are_the_same_on_any_number_of_threads(tmp_path: Path, threads: int, shuffle) -> None:
    episode = recorded(tmp_path / "root", film(60), gop_size=8)
    field = wd.Field("cam", past=3, size=(30, 40), layout="chw")
    windows = wd.Windows([episode], {"image": field, "whole": "cam"}, anchor="cam")
    alone = wd.Windows([episode], {"image": field, "whole": "cam"}, anchor="cam")
    for batch in wd.Loader(windows, 16, seed=1, threads=threads, shuffle=shuffle):
        expected = alone.batch(batch.sample_id)
        for name in ("image", "whole"):
            assert np.array_equal(batch[name], expected[name])
            assert np.array_equal(batch.mask[name], expected.mask[name])


def test_a_shuffled_epoch_decodes_every_block_once(tmp_path: Path, fed) -> None:
    episode = recorded(tmp_path / "root", film(200, 24, 32), gop_size=10)
    windows = wd.Windows([episode], {"image": wd.Field("cam", size=(12, 16))}, anchor="cam")
    loader = wd.Loader(windows, 16, seed=1, threads=2)
    assert sum(batch.size for batch in loader) == 200
    blocks = -(-200 // loader._order.block_rows(0))
    assert len(fed) <= 200 + 10 * blocks, (
        "frames before a block, back to its keyframe, are decoded again at most"
    )


def test_a_camera_in_parts_delivers_the_frames_of_each(tmp_path: Path) -> None:
    frames = film(50)
    parts = [recorded(tmp_path / str(at), frames[at : at + 25], at)["cam"] for at in (0, 25)]
    episode = wd.Episode.of({"cam": JoinedSignal(parts)}, id="joined")
    expected = np.concatenate([part.rows(0, 25) for part in parts])
    windows = wd.Windows([episode], {"whole": "cam", "small": wd.Field("cam", size=(30, 40))}, anchor="cam")
    for batch in wd.Loader(windows, 10, seed=1):
        assert np.array_equal(batch["whole"], expected[batch.sample_id])


def test_blocks_that_were_read_make_room_for_the_next(tmp_path: Path, fed, monkeypatch) -> None:
    episode = recorded(tmp_path / "root", film(384, 24, 32), gop_size=8)
    image_bytes = 12 * 16 * 3
    monkeypatch.setattr("warpdata.loading.source.IMAGES_BYTES", 128 * image_bytes)  # 16 blocks of 8 in play
    windows = wd.Windows([episode], {"image": wd.Field("cam", size=(12, 16))}, anchor="cam")
    loader = wd.Loader(windows, 32, seed=1, threads=0)
    assert loader._order.block_rows(0) == 8
    wd.keep_decoded(128 * image_bytes * 5 // 4)
    before = BLOCK_CACHE.held_bytes
    try:
        for _ in range(2):
            assert sum(batch.size for batch in loader) == 384
    finally:
        wd.keep_decoded(DEFAULT_BYTES)
    assert len(fed) == 2 * 384, "every block is decoded once in an epoch"
    assert BLOCK_CACHE.held_bytes <= before, "a block goes after its last sample"


def test_recycled_memory_is_not_seen_by_what_was_kept() -> None:
    arrays, kept = RecycledArrays(), []
    for number in range(12):
        array = arrays.empty((2 + number % 3, 1 << 20), np.dtype(np.uint8))
        array[:] = number
        kept.append(array[1, :5])  # a view keeps the memory
        del array
    assert [row.tolist() for row in kept] == [[number] * 5 for number in range(12)]
    addresses = {row.ctypes.data for row in kept[3:]}
    assert len(addresses) == 9
    del kept[3:]
    again = arrays.empty((2, 1 << 20), np.dtype(np.uint8))
    again[:] = 99
    assert [int(row[0]) for row in kept] == [0, 1, 2]
    assert again.ctypes.data + (1 << 20) in addresses, "memory that nothing refers to is used again"


def test_packed_rows_state_the_checksum_of_their_values(tmp_path: Path, monkeypatch) -> None:
    with wd.LocalDatasetWriter(tmp_path / "root").new_episode() as writer:
        for i in range(40):
            writer.append("a", np.arange(3, dtype=np.float32) + i, i * 10)
    episode = wd.open_episode(
        wd.pack_episode(wd.open_recordings(tmp_path / "root")[0], tmp_path / "e.wshard")
    )
    signal = episode["a"]
    assert isinstance(signal, BlockSignal)
    assert signal.checksum() == crc32c(np.ascontiguousarray(signal.rows(0, 40)).tobytes())
    monkeypatch.setattr(BlockSignal, "_read", lambda *_: pytest.fail("values were read"))
    assert stated_content(episode) is not None


def test_few_tasks_are_begun_before_the_first_result_and_more_after_it() -> None:
    begun: list[int] = []

    def ask(task: int) -> Callable[[], int]:
        begun.append(task)
        return lambda: task

    ahead = ReadAhead(
        ask, lambda task, _: task, range(40), workers=12, cost=lambda _: 1, max_cost=1000, first=1
    )
    assert len(ahead._jobs) == 1
    assert next(ahead) == 0
    assert len(ahead._jobs) == 2
    assert [*ahead] == list(range(1, 40))
    assert begun == list(range(40))
    ahead.close()
