"""What is decoded or fetched for one window serves the windows that overlap it, and stays right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit import codec
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.lazy import DEFAULT_BYTES
from warpdata.bytekit.process.threads import ReadAhead
from warpdata.episodes.forms.content import stated_content
from warpdata.episodes.sources.cameras import stretch_starts
from warpdata.episodes.sources.shard_episode import BlockSignal
from warpdata.errors import FormatError
from warpdata.formats.wshard.reader import ShardReader

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
    starts = stretch_starts(episode["cam"].frame_index(), size * size * 3)
    assert starts[0] == 0
    assert starts[-1] == 50
    assert (np.diff(starts) > 0).all()


@pytest.mark.parametrize("threads", [0, 2])
def test_no_group_of_pictures_is_decoded_twice_for_scaled_frames(
    tmp_path: Path, monkeypatch, threads
) -> None:
    video = wd.VideoOptions(gop_size=8)
    with wd.LocalDatasetWriter(tmp_path / "root", video=video).new_episode() as writer:
        for i in range(60):
            frame = np.add.outer(np.arange(120), np.arange(160))[..., None] + np.array([0, 5 * i, 9])
            writer.append("cam", (frame % 256).astype(np.uint8), i * 50_000_000)
    episode = wd.open_recordings(tmp_path / "root")[0]
    field = wd.Field("cam", past=3, size=(30, 40), layout="chw")
    windows = wd.Windows([episode], {"image": field}, anchor="cam")
    plain = wd.ArraySignal(episode["cam"].timestamps, episode["cam"].values())
    wanted = wd.Windows([wd.Episode.of({"cam": plain}, id="x")], {"image": field}, anchor="cam")
    decoded: list[int] = []
    signal = type(episode["cam"])
    original = signal._values_at
    monkeypatch.setattr(
        signal, "_values_at", lambda self, rows: decoded.extend(rows.tolist()) or original(self, rows)
    )
    for batch in wd.Loader(windows, 16, seed=1, threads=threads):
        expected = wanted.batch(batch.sample_id)
        assert np.array_equal(batch["image"], expected["image"])
        assert np.array_equal(batch.mask["image"], expected.mask["image"])
    assert sorted(decoded) == list(range(60)), "every frame once, in groups"


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
