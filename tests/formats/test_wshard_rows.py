"""Row ranges read only the bytes they need, verified, whatever the storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.sweeps import enough_examples
from warpdata.bytekit.io.ranges import BytesRangeReader, Range
from warpdata.errors import BlobNotFoundError, ChecksumError, CorruptLayoutError, FormatError
from warpdata.formats.wshard import ShardReader, layout

STEPS = 500
RGB = np.random.default_rng(1).integers(0, 40, (STEPS, 64, 64, 3), np.uint8)


class CountingReader(BytesRangeReader):
    """Counts the bytes asked for, as a remote reader would be charged for them."""

    is_local = False

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[Range] = []

    def read(self, start: int, end: int) -> memoryview:
        self.reads.append((start, end))
        return super().read(start, end)

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        return [self.read(*each) for each in ranges]

    @property
    def asked_bytes(self) -> int:
        return sum(end - start for start, end in self.reads)


def big_episode() -> wd.WShardEpisode:
    episode = wd.WShardEpisode(id="big", length=STEPS)
    episode.observations["rgb"] = RGB
    episode.actions["ctrl"] = np.arange(STEPS * 7, dtype=np.float32).reshape(STEPS, 7)
    return episode


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("rows")
    choices = {
        "raw": None,
        "seekable": wd.Compression("zstd", 1, "seekable"),
        "single": wd.Compression("zstd", 1, "single"),
        "lz4": "lz4",
    }
    for name, choice in choices.items():
        wd.save_wshard(big_episode(), folder / name, choice)
    return {name: (folder / name).read_bytes() for name in choices}


@pytest.mark.parametrize("kind", ["raw", "seekable", "single", "lz4"])
def test_any_range_of_rows(files: dict[str, bytes], kind: str) -> None:
    shard = ShardReader.open(BytesRangeReader(files[kind]))
    channel = wd.load_wshard(BytesRangeReader(files[kind])).observations["rgb"]

    @settings(max_examples=enough_examples(40))
    @given(st.integers(0, STEPS), st.integers(0, STEPS), st.integers(1, 7))
    def check(a: int, b: int, step: int) -> None:
        a, b = min(a, b), max(a, b)
        assert np.array_equal(shard.read_rows("signal/rgb", a, b), RGB[a:b])
        assert np.array_equal(channel[a:b], RGB[a:b])
        assert np.array_equal(channel[a:b:step], RGB[a:b:step])
        assert np.array_equal(channel[b:a:-step], RGB[b:a:-step])

    check()


def test_indexing_like_an_array(files: dict[str, bytes]) -> None:
    def channel() -> wd.Channel:
        return wd.load_wshard(BytesRangeReader(files["raw"])).observations["rgb"]

    assert np.array_equal(channel()[3], RGB[3])
    assert np.array_equal(channel()[-1], RGB[-1])
    assert np.array_equal(channel()[np.int64(5)], RGB[5])
    assert np.array_equal(channel()[[5, 1, 1]], RGB[[5, 1, 1]])
    assert np.array_equal(channel()[2:9, 1, :, 0], RGB[2:9, 1, :, 0])
    assert np.array_equal(channel()[4, 1:3], RGB[4, 1:3])
    assert np.array_equal(channel()[...], RGB)
    assert np.array_equal(channel()[RGB[:, 0, 0, 0] > 20], RGB[RGB[:, 0, 0, 0] > 20])
    assert np.array_equal(np.asarray(channel()), RGB)
    assert len(channel()) == STEPS
    for bad in (STEPS, -STEPS - 1):
        with pytest.raises(IndexError):
            channel()[bad]


@pytest.mark.parametrize(("kind", "factor"), [("raw", 4), ("seekable", 4)])
def test_a_window_costs_its_own_bytes(files: dict[str, bytes], kind: str, factor: int) -> None:
    reader = CountingReader(files[kind])
    episode = wd.load_wshard(reader)
    opened = reader.asked_bytes
    assert opened <= 64 << 10
    episode.observations["rgb"][100:116]
    window = 16 * 64 * 64 * 3
    assert reader.asked_bytes - opened < factor * window + (16 << 10)
    if kind == "raw":
        before = reader.asked_bytes
        episode.observations["rgb"][100:116]
        assert reader.asked_bytes - before <= window, "pieces are verified once per reader"


def test_damage_in_a_window_is_found_there_and_only_there(files: dict[str, bytes]) -> None:
    for kind in ("raw", "seekable"):
        data = bytearray(files[kind])
        block = ShardReader.open(BytesRangeReader(data)).block("signal/rgb")
        data[block.data_offset + block.disk_size // 2] ^= 0x10
        shard = ShardReader.open(BytesRangeReader(data))
        assert np.array_equal(shard.read_rows("signal/rgb", 0, 16), RGB[:16])
        with pytest.raises(FormatError, match="signal/rgb"):
            shard.read_rows("signal/rgb", 0, STEPS)
        with pytest.raises(FormatError, match="signal/rgb"):
            shard.read("signal/rgb")


def test_verify_false_trusts_raw_bytes(files: dict[str, bytes]) -> None:
    data = bytearray(files["raw"])
    block = ShardReader.open(BytesRangeReader(data)).block("action/ctrl")
    data[block.data_offset] ^= 1
    with pytest.raises(ChecksumError):
        ShardReader.open(BytesRangeReader(data)).read("action/ctrl")
    assert ShardReader.open(BytesRangeReader(data), verify=False).read("action/ctrl")


def test_wrong_names_and_ranges(files: dict[str, bytes]) -> None:
    shard = ShardReader.open(BytesRangeReader(files["raw"]))
    with pytest.raises(BlobNotFoundError, match="no such block"):
        shard.read("signal/none")
    with pytest.raises(BlobNotFoundError):
        shard.read_rows("signal/none", 0, 1)
    with pytest.raises(CorruptLayoutError, match="does not describe"):
        shard.read_rows("meta/episode", 0, 1)
    for a, b in [(0, STEPS + 1), (-1, 3), (5, 4)]:
        with pytest.raises(IndexError):
            shard.read_rows("signal/rgb", a, b)


def test_read_gives_bytes_and_view_does_not_copy(files: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(files["raw"])
    with ShardReader.open(tmp_path / "a") as shard:
        assert shard.read("signal/rgb") == RGB.tobytes()
        assert isinstance(shard.read("meta/episode"), bytes)
        view = np.frombuffer(shard.view("signal/rgb"), np.uint8)
        assert not view.flags.owndata
        assert "signal/rgb" in shard
    assert view[:100].tobytes() == RGB.tobytes()[:100]


def test_auto_compresses_only_what_shrinks(tmp_path: Path) -> None:
    episode = wd.WShardEpisode(id="a", length=1000)
    episode.observations["noise"] = np.random.default_rng(0).integers(0, 256, (1000, 100), np.uint8)
    episode.observations["flat"] = np.zeros((1000, 100), np.float32)
    wd.save_wshard(episode, tmp_path / "a", "auto")
    shard = ShardReader.open(tmp_path / "a")
    assert shard.block("signal/noise").codec == "none"
    assert shard.block("signal/flat").codec == "zstd"


def test_incompressible_blocks_are_stored_raw(tmp_path: Path) -> None:
    episode = wd.WShardEpisode(id="a", length=3000)
    episode.observations["noise"] = np.random.default_rng(0).integers(0, 256, (3000, 1000), np.uint8)
    for choice in ("zstd", "lz4", wd.Compression("zstd", 1, "seekable")):
        wd.save_wshard(episode, tmp_path / "a", choice, overwrite=True)
        shard = ShardReader.open(tmp_path / "a")
        assert shard.block("signal/noise").codec == "none"
        assert layout.PIECES_PREFIX + "signal/noise" in shard
        assert wd.load_wshard(tmp_path / "a") == episode


def test_large_blocks_are_seekable_unless_strict(tmp_path: Path) -> None:
    episode = wd.WShardEpisode(id="a", length=3000)
    episode.observations["big"] = np.zeros((3000, 4000), np.uint8)
    for compat, seekable in (("default", True), ("strict", False)):
        wd.save_wshard(episode, tmp_path / "a", "auto", compat=compat, overwrite=True)
        assert ShardReader.open(tmp_path / "a").block("signal/big").is_seekable is seekable
        assert wd.load_wshard(tmp_path / "a") == episode


@pytest.mark.parametrize("compression", ["zstd-seekable", "auto"])
def test_a_window_far_away_costs_one_read_after_the_first(tmp_path: Path, compression: str) -> None:
    episode = wd.WShardEpisode(id="big", length=STEPS)
    episode.observations["rgb"] = np.repeat(RGB, 2, axis=1)
    episode.observations["noise"] = np.random.default_rng(3).integers(0, 256, (STEPS, 30), np.uint8)
    path = tmp_path / "far.wshard"
    wd.save_wshard(episode, path, compression)
    reader = CountingReader(path.read_bytes())
    shard = ShardReader(reader)
    assert shard.block("signal/rgb").is_seekable
    found = shard.read_rows("signal/rgb", 200, 216)
    assert np.array_equal(found, episode.observations["rgb"].data[200:216])
    assert [end - start for start, end in reader.reads[:1]] == [64 << 10]
    assert len(reader.reads) == 2
    # It is of no use where it does not fit, and no block of the episode.
    assert not any(name.startswith("aux/seek/") for name in wd.load_wshard(path).blocks)
    assert layout.SEEK_PREFIX + "signal/noise" not in shard
    ends = [shard.block(name).data_offset for name in shard.names]
    assert ends == sorted(ends)


class CachingReader(CountingReader):
    """Lies far, with a cache: counts how often somebody waits for what was not brought yet."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.waits = 0
        self._here: list[Range] = []

    def read(self, start: int, end: int) -> memoryview:
        if not any(low <= start and end <= high for low, high in self._here):
            self.prefetch([(start, end)])
        return super().read(start, end)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        self.waits += 1
        self._here += ranges


@pytest.mark.parametrize("choice", ["raw", "seekable", "single", "lz4"])
def test_rows_far_apart_are_fetched_at_the_same_time(files: dict[str, bytes], choice: str) -> None:
    """One wait for all of them, whatever asks: a channel, a signal, a row of steps."""
    wanted = [STEPS - 1, 3, STEPS // 2, 3, STEPS // 3]
    mask = np.isin(np.arange(STEPS), wanted)
    for ask, rows in (
        (lambda episode: episode["rgb"][wanted].values(), wanted),
        (lambda episode: episode.steps.observations["rgb"][wanted], wanted),
        (lambda episode: episode.steps.observations["rgb"][mask], mask),
    ):
        reader = CachingReader(files[choice])
        episode = wd.open_episode(reader)
        assert episode.steps.length == STEPS
        assert np.array_equal(episode["rgb"][0][0], RGB[0])
        before = reader.waits
        found = ask(episode)
        assert reader.waits - before <= 1
        assert np.array_equal(found, RGB[rows])
    reader = CachingReader(files[choice])
    channel = wd.load_wshard(reader).observations["rgb"]
    channel[0]
    before = reader.waits
    assert np.array_equal(channel[wanted], RGB[wanted])
    assert reader.waits - before <= 1
