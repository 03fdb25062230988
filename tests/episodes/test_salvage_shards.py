"""Damaged and cut shards: the blocks that hold come back, the original is kept, the receipt names the rest."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.told import changed_at, places_of
from tests.formats.test_wshard_repair import finished_file, stream_data
from tests.sweeps import thinned
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.cli.main import main
from warpdata.episodes.salvage.receipt import LossReceipt
from warpdata.errors import BlobNotFoundError, ChecksumError, CorruptLayoutError, FormatError, WarpError
from warpdata.formats.journal.reader import JournalReader
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.chunks import ChunkedEpisodeReader
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.verify import verify_shard

STEPS = 60


def made() -> wd.WShardEpisode:
    rng = np.random.default_rng(1)
    episode = wd.WShardEpisode("e", "E", STEPS)
    episode.observations["a"] = wd.Channel("a", rng.normal(size=(STEPS, 3)))
    episode.observations["b"] = wd.Channel(
        "b", rng.normal(size=(90, 2)).astype("f4"), timestamps_ns=np.arange(90) * 7
    )
    episode.observations["text"] = wd.Channel("text", np.zeros((STEPS, 400), np.uint8))
    episode.observations["said"] = [f"word {step}" for step in range(STEPS)]
    episode.actions["u"] = rng.normal(size=STEPS).astype("f4")
    episode.omens["a/m"] = rng.normal(size=(STEPS, 3)).astype("f4")
    episode.rewards = wd.Channel("reward", rng.normal(size=STEPS))
    episode.terminations = wd.Channel("done", np.arange(STEPS) == STEPS - 1)
    episode.blocks["aux/mine"] = b"some bytes"
    episode.timebase = wd.Timebase("timestamps_ns")
    episode.timestamps_ns = np.arange(STEPS) * 11
    return episode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shard") / "e.wshard"
    wd.save_wshard(made(), path, compression={"text": "zstd"})
    return path


def contents(path: Path) -> dict[str, bytes]:
    """Every array of a shard by block name, and what is no tensor."""
    episode = wd.load_wshard(path)
    found = {name: repr(channel.data.tolist()).encode() for name, channel in episode.lanes()}
    for name, channel in (("reward", episode.rewards), ("done", episode.terminations)):
        if channel is not None:
            found[name] = channel.data.tobytes()
    others = {name: bytes(data) for name, data in episode.blocks.items()}
    return found | {name: data for name, data in others.items() if not name.startswith("aux/orphan/")}


def test_a_whole_shard_is_left_alone(whole: Path) -> None:
    before = whole.read_bytes()
    receipt = wd.salvage(whole)
    assert receipt.is_complete
    assert receipt.output is None
    assert whole.read_bytes() == before
    assert main(["salvage", str(whole)]) == 0


def test_a_flipped_byte_costs_its_block_and_nothing_else(whole: Path, tmp_path: Path) -> None:
    expected = contents(whole)
    shard = ShardReader.open(whole)
    partners = {"signal/b": "time/signal/b/timestamps_ns", "signal/said": "aux/ends/signal/said"}
    for name in shard.names:
        block = shard.block(name)
        if not block.disk_size:
            continue
        path = tmp_path / "e.wshard"
        shutil.copyfile(whole, path)
        data = bytearray(path.read_bytes())
        data[block.data_offset + block.disk_size // 2] ^= 4
        path.write_bytes(data)
        if name in ("meta/episode", "meta/channels"):
            with pytest.raises(CorruptLayoutError, match="contents of the blocks are unknown"):
                wd.salvage(path)
            assert path.read_bytes() == data
            continue
        receipt = wd.salvage(path)
        assert not receipt.is_complete
        assert name in {each["block"] for each in receipt.damage}
        assert receipt.kept_aside is not None
        assert Path(receipt.kept_aside).read_bytes() == data
        lost = {name, *(channel for channel, partner in partners.items() if partner == name)}
        lost |= {"omen/a/m"} if name == "meta/wshard" else set()  # it alone says what lanes hold
        found = contents(path)
        assert set(found) >= set(expected) - lost - {"reward"}, name
        assert all(found[each] == expected[each] for each in set(found) & set(expected) - {"reward"}), name
        assert wd.load_wshard(path).length == STEPS
        if name == "time/signal/b/timestamps_ns":
            kept = bytes(wd.load_wshard(path).blocks["aux/orphan/signal/b"])
            assert kept == made().observations["b"].data.tobytes()
        assert wd.salvage(path).is_complete
        for each in tmp_path.iterdir():
            each.unlink()


def test_a_cut_shard_gives_back_the_blocks_before_the_cut(whole: Path, tmp_path: Path) -> None:
    expected, size = contents(whole), whole.stat().st_size
    shard = ShardReader.open(whole)
    ends = {name: shard.block(name).data_offset + shard.block(name).disk_size for name in shard.names}
    first = max(ends[name] for name in ("meta/wshard", "meta/episode", "meta/channels"))
    kept_sizes = set()
    for cut in [*range(first, size, max(1, (size - first) // 25)), size - 1]:
        path = tmp_path / "e.wshard"
        shutil.copyfile(whole, path)
        os.truncate(path, cut)
        receipt = wd.salvage(path)
        assert all(repr(each["block"]) in each["why"] for each in receipt.damage), "each is named"
        assert receipt.damage
        found = contents(path)
        here = {name for name, end in ends.items() if end <= cut}
        want = {name for name in expected if name in here} - {"reward"}
        if "time/signal/b/timestamps_ns" not in here:
            want -= {"signal/b"}
        if "aux/ends/signal/said" not in here:
            want -= {"signal/said"}
        assert want <= set(found), cut
        assert all(found[each] == expected[each] for each in want)
        kept_sizes.add(len(found))
        for each in tmp_path.iterdir():
            each.unlink()
    assert len(kept_sizes) > 3


@pytest.mark.parametrize("cut", [0, 3, 63, 64, 200])
def test_a_shard_cut_in_its_table_is_an_error_and_stays(whole: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "e.wshard"
    path.write_bytes(whole.read_bytes()[:cut])
    with pytest.raises(FormatError):
        wd.salvage(path)
    assert path.stat().st_size == cut
    assert [each.name for each in tmp_path.iterdir()] == ["e.wshard"]


def test_damage_in_the_table_costs_what_it_hits(whole: Path, tmp_path: Path) -> None:
    expected = contents(whole)
    end = ShardReader.open(whole).table.header.data_section_offset
    rng = np.random.default_rng(0)
    for at in rng.integers(64, end, 40).tolist():
        path = tmp_path / "e.wshard"
        data = bytearray(whole.read_bytes())
        data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            receipt = wd.salvage(path)
        except FormatError:
            assert path.read_bytes() == data
            continue
        found = contents(path)
        assert set(found) == set(expected) or not receipt.is_complete
        assert receipt.kept_aside is not None
        shared = set(found) & set(expected) - {"reward", "done"}
        assert all(found[each] == expected[each] for each in shared)
        for each in tmp_path.iterdir():
            each.unlink()


def test_times_are_told_to_be_lost_wherever_they_were(whole: Path, tmp_path: Path) -> None:
    """In their block, in their entry of the table, in their name."""
    data, shard, path = whole.read_bytes(), ShardReader.open(whole), tmp_path / "e.wshard"
    entry = layout.TABLE_OFFSET + shard.names.index(layout.TIMESTAMPS_NS) * layout.ENTRY_BYTES
    name = data.index(layout.TIMESTAMPS_NS.encode())
    for at in (shard.block(layout.TIMESTAMPS_NS).data_offset, entry + 12, name):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert "times of the steps are lost" in wd.salvage(path, overwrite=True).why


def test_the_original_goes_only_when_asked(whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1
    for arguments, left in (([], ["e.wshard", "e.wshard.bak"]), (["--overwrite"], ["e.wshard"])):
        (tmp_path / "e.wshard").write_bytes(data)
        assert main(["salvage", str(tmp_path / "e.wshard"), *arguments]) == 3
        assert sorted(each.name for each in tmp_path.iterdir()) == left
        for each in tmp_path.iterdir():
            each.unlink()
    (tmp_path / "e.wshard").write_bytes(data)
    (tmp_path / "other.wshard").write_bytes(b"mine")
    assert main(["salvage", str(tmp_path / "e.wshard"), "--output", str(tmp_path / "other.wshard")]) == 1
    assert (tmp_path / "other.wshard").read_bytes() == b"mine"
    assert main(["salvage", str(tmp_path / "e.wshard"), "--output", str(tmp_path / "new.wshard")]) == 3
    assert (tmp_path / "e.wshard").read_bytes() == data


def test_behind_a_link_the_original_is_kept_too(whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1
    (tmp_path / "data").mkdir()
    target, link = tmp_path / "data" / "target", tmp_path / "e.wshard"
    target.write_bytes(data)
    link.symlink_to("data/target")
    receipt = wd.salvage(link)
    assert link.is_symlink()
    assert not any(each.is_damage for each in verify_shard(target))
    assert Path(str(receipt.kept_aside)).read_bytes() == data


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chunked")
    wd.chunk_episode(made(), folder, 30)
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def chunk_list_damages(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(file, what it holds instead): a list cut or changed at every byte, and chunks that do not belong to it."""
    name = "e_manifest.wshard"
    data = (folder / name).read_bytes()
    places = thinned(range(len(data)), 25)
    yield from ((name, data[:at]) for at in [0, *places])
    yield from ((name, data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]) for at in places)
    yield from ((name, each) for each in (data + data, data + b"more"))
    chunk = (folder / "e_chunk_0001.wshard").read_bytes()
    others = (chunk[:-1], chunk + chunk, b"", (folder / "e_chunk_0000.wshard").read_bytes())
    yield from (("e_chunk_0001.wshard", each) for each in others)
    yield from (
        ("e_chunk_0001.wshard", chunk[:at] + b"#" + chunk[at + 1 :]) for at in (9, 70, len(chunk) // 2)
    )


def test_a_list_that_does_not_hold_is_made_again_from_its_chunks(chunked: Path, tmp_path: Path) -> None:
    """Or refused with every file as it was; what it replaces is kept, and a second salvage changes nothing."""
    expected = ChunkedEpisodeReader(chunked / "e_manifest.wshard").episode()
    seen = set()
    for number, (name, damaged) in enumerate(chunk_list_damages(chunked)):
        folder = tmp_path / str(number)
        shutil.copytree(chunked, folder)
        (folder / name).write_bytes(damaged)
        before, target = files_in(folder), folder / "e_manifest.wshard"
        try:
            receipt = wd.salvage(target)
        except FormatError:
            assert files_in(folder) == before
            seen.add("refused")
            continue
        assert ChunkedEpisodeReader(target).episode() == expected
        assert receipt.steps_kept == STEPS
        after = files_in(folder)
        seen.add(receipt.why)
        if receipt.kept_aside is None:
            assert after == before
        else:
            assert after.pop(Path(receipt.kept_aside).name) == before[target.name]
            assert {**after, target.name: before[target.name]} == before
            assert receipt.is_complete == (name == target.name)
        again = files_in(folder)
        assert wd.salvage(target).why == "the list and its chunks are whole: nothing to salvage"
        assert files_in(folder) == again
        shutil.rmtree(folder)
    assert seen == {"refused", f"the list was rewritten from its {-(-STEPS // 30)} chunks"}


def test_a_list_is_made_only_of_all_its_chunks(chunked: Path, tmp_path: Path) -> None:
    for number, name in enumerate(["e_chunk_0000.wshard", "e_chunk_0001.wshard"]):
        folder = tmp_path / str(number)
        shutil.copytree(chunked, folder)
        (folder / name).unlink()
        with pytest.raises(BlobNotFoundError, match=name):
            wd.salvage(folder / "e_manifest.wshard")
        (folder / "e_manifest.wshard").write_bytes(b"")
        before = files_in(folder)
        with pytest.raises(CorruptLayoutError, match="not all those of one episode"):
            wd.salvage(folder / "e_manifest.wshard")
        assert files_in(folder) == before
    with pytest.raises(FormatError):  # no chunk, no list: a shard without a byte
        (tmp_path / "f_manifest.wshard").write_bytes(b"")
        wd.salvage(tmp_path / "f_manifest.wshard")


def test_an_interleaved_stream_keeps_a_backup_and_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "py.wshard"
    data = bytearray(finished_file(stream_data(1000), 64))
    path.write_bytes(data)
    assert wd.salvage(path).is_complete
    assert (tmp_path / "py.wshard.bak").read_bytes() == data
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError):
        wd.salvage(path)
    assert path.read_bytes() == data


def test_a_packed_recording_loses_only_the_signal_that_is_hit(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(20):
            writer.append("x", float(i), i)
            writer.append("action/u", float(i), i)
            writer.append("say", f"{i}", i)
            writer.append("cam", np.full((16, 16, 3), i, np.uint8), i)
    shard = wd.pack_episode(tmp_path / "ep", tmp_path / "e.wshard")
    for block, lost in (("video/cam.mp4", "cam"), ("aux/frames/cam", "cam"), ("aux/table/say", "say"),
                        ("signal/x", "x"), ("action/u", "action/u")):  # fmt: skip
        path = tmp_path / "damaged.wshard"
        shutil.copyfile(shard, path)
        damage_block(path, block)
        assert not wd.salvage(path, overwrite=True).is_complete
        episode = wd.open_episode(path)
        assert set(episode.signals) == {"x", "action/u", "say", "cam"} - {lost}
        for name, signal in episode.signals.items():
            assert len(signal.values()) == 20, name


@pytest.mark.parametrize(
    ("block", "lost"),
    [("time/timestamps_ns", {"x", "u", "reward"}), ("aux/reward", {"reward"}), ("aux/clock/own", {"own"})],
)  # fmt: skip
def test_what_a_packed_recording_shares_takes_what_needs_it_and_nothing_else(
    tmp_path: Path, block: str, lost: set[str]
) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as recorder:
        for i in range(20):
            recorder.step({"x": float(i)}, {"u": float(i)}, reward=0.1 * i, ts_ns=10 * i)
            recorder.append("own", float(i), 10 * i + 3)
    folder = tmp_path / "root" / "000000000000" / "000000000000"
    shard = wd.pack_episode(wd.open_episode(folder), tmp_path / "e.wshard")
    damage_block(shard, block)
    assert not wd.salvage(shard).is_complete
    episode = wd.open_episode(shard)
    assert set(episode.signals) == {"x", "u", "reward", "own"} - lost
    assert {name: signal.timestamps[1] for name, signal in episode.signals.items()} == {
        name: 13 if name == "own" else 10 for name in episode.signals
    }
    assert all(len(signal.values()) == 20 for signal in episode.signals.values())
    wd.unpack_episode(shard, tmp_path / "again")
    assert wd.load_wshard(shard).observations["x"].data.tolist() == list(range(20))  # by step at least


@pytest.mark.parametrize(
    "block", ["signal/b", "time/signal/b/timestamps_ns", "signal/a", "reward", "omen/a/m"]
)
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_what_a_lost_block_leaves_alone_is_saved_however_it_was_stored(
    tmp_path: Path, block: str, compression: str
) -> None:
    path = tmp_path / "e.wshard"
    wd.save_wshard(made(), path, compression=compression)
    before = contents(path)
    damage_block(path, block)
    assert not wd.salvage(path).is_complete
    kept = contents(path)
    assert {name: kept[name] for name in kept if name in before} == {
        n: before[n] for n in before if n in kept
    }
    assert len(kept) >= len(before) - 2


def damage_block(path: Path, block: str) -> None:
    place = ShardReader.open(path).block(block)
    data = bytearray(path.read_bytes())
    data[place.data_offset + place.disk_size // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_journal_is_kept_and_a_cut_one_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.wshard"
    channels = [{"id": "x", "dtype": "f8", "shape": [4]}]
    for how in ("flip", "cut"):
        writer = wd.WShardStreamWriter(path, "a", [{**each, "dtype": "f64"} for each in channels])
        writer.begin_episode()
        for i in range(30):
            writer.write_timestep({"x": np.full(4, float(i))})
        writer.close()
        partial = Path(f"{path}.partial")
        data = bytearray(partial.read_bytes())
        if how == "flip":
            data[6000] ^= 1
        else:
            data = data[: -32 - writer._record.size]  # exactly behind a record: no record is torn
        partial.write_bytes(data)
        receipt = wd.salvage(path)
        assert not receipt.is_complete
        assert receipt.steps_kept == 29
        assert receipt.kept_aside == f"{partial}-damaged"
        assert Path(f"{partial}-damaged").read_bytes() == data
        for each in tmp_path.iterdir():
            each.unlink()


def journal_damages(data: bytes) -> Iterator[bytes]:
    """A journal cut, changed, emptied, repeated, or with anything behind it."""
    used = len(data.rstrip(b"\0"))
    places = [*thinned(range(4096), 20), *thinned(range(4096, used), 30)]
    dice = random.Random(7)
    yield from (data[:at] for at in places)
    yield from (data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in places)
    yield from (data + data, data[:used] + data, data + b"more", data[:used] + dice.randbytes(500))
    for _ in thinned(range(80), 15):
        low, high = sorted(dice.sample(range(4000, used), 2))
        yield from (
            data[:low] + between + data[high:] for between in (b"", bytes(high - low), data[low:high] * 2)
        )


@pytest.mark.parametrize("timebase", ["ticks", "timestamps_ns"])
def test_what_is_kept_of_a_stream_was_recorded_and_what_is_lost_is_told(
    tmp_path: Path, timebase: str
) -> None:
    """Steps come back with all their values in every lane, in order; a second time nothing changes."""
    joint = np.random.default_rng(3).normal(size=(7, 2)).astype("f4")
    signs = np.sign(joint).astype("i1")
    channels: list[dict[str, Any]] = [
        {"id": "joint", "dtype": "f32", "shape": [2]},
        {"id": "said", "dtype": "text", "max_bytes": 9},
        {"id": "dream", "lane": "omen", "of": "joint", "model": "m", "dtype": "f16", "shape": [2]},
        {"id": "std", "lane": "uncert", "of": "joint", "model": "m", "type": "std", "dtype": "u16"},
        {
            "id": "curve",
            "lane": "residual",
            "of": "joint",
            "type": "sign2nddiff",
            "dtype": "i8",
            "shape": [2],
        },
    ]
    writer = wd.WShardStreamWriter(tmp_path / "e", "e", channels, timebase=timebase, durability="none")
    writer.begin_episode()
    for step, row in enumerate(joint):
        values = {
            "joint": row,
            "said": f"{step}",
            "dream": row.astype("f2"),
            "std": step,
            "curve": signs[step],
        }
        writer.write_timestep(values, reward=step, timestamp_ns=step * 40_000_000)
    writer.close()
    data = (tmp_path / "e.partial").read_bytes()
    for number, damaged in enumerate(journal_damages(data)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "e.partial").write_bytes(damaged)
        try:
            receipt = wd.salvage(folder / "e")
        except FormatError:
            receipt = LossReceipt(source="", episode_id="", why="refused")
        if receipt.output is None:
            assert files_in(folder) == {"e.partial": damaged}
            continue
        episode = wd.load_wshard(folder / "e")
        steps = [int(each) for each in episode.observations["said"].data]
        assert steps == sorted(set(steps))
        assert receipt.steps_kept == len(steps)
        assert episode.observations["joint"].data.tobytes() == joint[steps].tobytes()
        assert episode.omens["joint/m"].data.tobytes() == joint[steps].astype("f2").tobytes()
        assert episode.uncerts["joint/m/std"].data.tolist() == steps
        assert episode.residuals["joint/sign2nddiff"].data.tobytes() == wd.pack_residual(signs[steps])
        if steps:
            assert episode.rewards is not None
            assert episode.rewards.data.tolist() == steps
            assert episode.times_ns().tolist() == [step * 40_000_000 for step in steps]
        assert len(steps) == len(joint) or not receipt.is_complete, number
        if not receipt.is_complete:
            assert Path(str(receipt.kept_aside)).read_bytes() == damaged
        before = files_in(folder)
        assert wd.salvage(folder / "e").is_complete
        assert files_in(folder) == before
        shutil.rmtree(folder)


def test_the_time_of_a_receipt_is_from_the_first_record_kept_to_the_last(tmp_path: Path) -> None:
    writer = wd.DiskEpisodeWriter(tmp_path / "ep")
    for step in range(10):
        writer.append("early", step, step * 1_000_000_000)
        writer.append("late", step, (20 + step) * 1_000_000_000)
    writer._leave()
    receipt = wd.salvage(tmp_path / "ep")
    episode = wd.open_episode(tmp_path / "ep")
    assert receipt.time_kept_s == episode.duration_s == 29
    assert (receipt.steps_kept, receipt.channels) == (20, {"early": 10, "late": 10})


def test_whatever_a_journal_says_of_its_steps_is_refused_or_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = [
        {"id": "a", "dtype": "f32", "shape": [2]},
        {"id": "t", "dtype": "text"},
        {"id": "b", "dtype": "u8", "lane": "action", "compression": "zstd"},
    ]
    path = tmp_path / "j.wshard"
    writer = wd.WShardStreamWriter(path, "j", channels)
    writer.begin_episode()
    for _ in range(3):
        writer.write_timestep({"a": [1, 2], "t": "hi", "b": 3}, reward=1.0, done=False)
    journal = (tmp_path / "j.wshard.partial").read_bytes()
    described = JournalReader.open(BytesRangeReader(journal)).descriptor
    odd = [None, -1, 2**70, "x", [], {}, 1.5, [["x"]], "flag", "f32", [2**40, 2**40], 0, KeyError]
    partial = tmp_path / "k.wshard.partial"
    real, refused = JournalReader.open.__func__, 0
    for place, value in thinned(itertools.product(list(places_of(described)), odd), 80):
        changed = changed_at(described, place, value)

        def opened(cls: Any, source: Any, changed: Any = changed) -> Any:
            found = real(cls, source)
            found.descriptor = changed
            return found

        monkeypatch.setattr(JournalReader, "open", classmethod(opened))
        partial.write_bytes(journal)
        try:
            wd.salvage(partial, overwrite=True)
        except WarpError:
            refused += 1
            assert partial.exists(), "what could not be read is kept"
    assert refused > 10
    monkeypatch.undo()
    writer.end_episode()
