"""Chunked episodes: written, validated, opened as one, cut and joined."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.formats import episodes
from tests.sweeps import enough_examples
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    ConflictError,
    CorruptLayoutError,
    RecordingError,
    SchemaMismatchError,
)
from warpdata.formats.wshard import ShardReader, ShardWriter, chunks, layout
from warpdata.formats.wshard.chunks import file_sha256, write_chunk_list
from warpdata.formats.wshard.verify import verify_shard


def write_list(path: Path, meta: object, block: str = layout.META_CHUNK_LIST) -> Path:
    with commit_file(path) as out:
        writer = ShardWriter(out, [block], role=layout.ROLE_CHUNK_LIST)
        writer.add_bytes(block, dump_json(meta))
        writer.finish()
    return path


@settings(max_examples=enough_examples(25))
@given(episode=episodes.episodes(), steps=st.integers(1, 5))
def test_cut_and_joined_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, episode: wd.WShardEpisode, steps: int
) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    episode.id = "ep"
    episode.residuals = {}
    episode.observations = {k: v for k, v in episode.observations.items()}
    if episode.length == 0:
        return
    listed = wd.chunk_episode(episode, folder, steps)
    whole = wd.open_episode(listed).tensors
    assert whole == episode
    shutil.rmtree(folder)


def test_residuals_have_a_row_per_step_or_are_not_cut(tmp_path: Path) -> None:
    episode = wd.WShardEpisode("e", length=6)
    episode.residuals["x/error/m"] = np.zeros(5, np.float32)
    with pytest.raises(SchemaMismatchError, match="cannot be cut"):
        wd.chunk_episode(episode, tmp_path, 3)
    assert list(tmp_path.iterdir()) == []
    writer = wd.ChunkedEpisodeWriter(tmp_path, "e", 6)
    for rows in (6, 5):
        chunk = wd.WShardEpisode("e", length=6)
        chunk.residuals["x/error/m"] = np.zeros(rows, np.float32)
        writer.write_chunk(chunk)
    whole = wd.ChunkedEpisodeReader(writer.finalize_manifest()).episode()
    assert whole.residuals["x/error/m"][:6].tolist() == [0] * 6
    with pytest.raises(CorruptLayoutError, match="does not hold the rows"):
        whole.residuals["x/error/m"][6:8]


def test_bits_that_are_none_are_named(tmp_path: Path) -> None:
    episode = wd.WShardEpisode("e", length=9)
    episode.residuals["x/sign2nddiff"] = np.zeros(9, np.uint8)
    with pytest.raises(SchemaMismatchError, match=r"residual/x/sign2nddiff.*9 bytes are no residual"):
        wd.chunk_episode(episode, tmp_path, 3)


def test_residual_bits_are_cut_by_step(tmp_path: Path) -> None:
    episode = episodes.simple(21)
    whole = wd.open_episode(wd.chunk_episode(episode, tmp_path, 4)).tensors
    assert whole == episode


def test_document_example(tmp_path: Path) -> None:
    def chunk(steps: int) -> wd.WShardEpisode:
        return episodes.simple(steps)

    writer = wd.ChunkedEpisodeWriter(tmp_path / "ep_001", "ep_001", chunk_size_t=10)
    for each in [chunk(10), chunk(10), chunk(4)]:
        writer.write_chunk(each)
    manifest = writer.finalize_manifest()
    wd.validate_chunk_continuity(manifest, check_files=True, check_channels=True)
    names = sorted(path.name for path in (tmp_path / "ep_001").iterdir())
    assert names == [*(f"ep_001_chunk_{index:04d}.wshard" for index in range(3)), "ep_001_manifest.wshard"]
    last = wd.load_wshard(tmp_path / "ep_001" / "ep_001_chunk_0002.wshard")
    assert (last.chunk_index, last.total_chunks, last.timestep_range) == (2, 3, (20, 24))
    stored = ShardReader.open(tmp_path / "ep_001" / "ep_001_chunk_0002.wshard").read_json("meta/episode")
    assert stored["timestep_range"] == [20, 23]
    assert ShardReader.open(manifest).role == 4
    assert wd.open_episode(manifest).tensors.length == 24
    assert wd.open_episode(tmp_path / "ep_001" / "ep_001_manifest.wshard").tensors.length == 24


def test_what_was_read_of_a_chunk_is_let_go_with_it(tmp_path: Path) -> None:
    reader = wd.ChunkedEpisodeReader(wd.chunk_episode(episodes.simple(20), tmp_path, 5, compression="zstd"))
    for chunk in reader.iter_chunks():
        read = weakref.ref(chunk.observations["state"].data)
        assert read() is not None
        del chunk
        assert read() is None


def test_explicit_indices_in_any_order(tmp_path: Path) -> None:
    writer = wd.ChunkedEpisodeWriter(tmp_path, "e", chunk_size_t=5)
    for index in (2, 0, 1):
        chunk = replace(episodes.simple(5, seed=index), chunk_index=index)
        writer.write_chunk(chunk)
    with pytest.raises(ConflictError):
        writer.write_chunk(replace(episodes.simple(5), chunk_index=1))
    with pytest.raises(SchemaMismatchError):
        writer.write_chunk(episodes.simple(6))
    whole = wd.open_episode(writer.finalize_manifest()).tensors
    assert np.array_equal(
        whole.observations["state"][5:10], episodes.simple(5, seed=1).observations["state"].data
    )


def test_only_the_chunks_needed_are_opened(tmp_path: Path) -> None:
    listed = wd.chunk_episode(episodes.simple(20), tmp_path, 5)
    whole = wd.open_episode(listed).tensors
    for index in (1, 3):
        (tmp_path / f"ep_chunk_{index:04d}.wshard").unlink()
    assert np.array_equal(
        whole.observations["state"][10:15], episodes.simple(20).observations["state"].data[10:15]
    )
    with pytest.raises(BlobNotFoundError):
        whole.observations["state"][3:8]


GOOD = {
    "episode_id": "e", "env_id": "", "total_timesteps": 4, "total_chunks": 2,
    "chunks": [
        {"chunk_index": 0, "uri": "a.wshard", "sha256": "0" * 64, "timestep_range": [0, 1], "length_T": 2},
        {"chunk_index": 1, "uri": "b.wshard", "sha256": "0" * 64, "timestep_range": [2, 3], "length_T": 2},
    ],
}  # fmt: skip


def changed(**changes: object) -> dict[str, object]:
    meta = json.loads(json.dumps(GOOD))
    for key, value in changes.items():
        if key in meta:
            meta[key] = value
        else:
            meta["chunks"][1][key] = value
    return meta


@pytest.mark.parametrize(
    ("meta", "match"),
    [
        (changed(chunk_index=0), "indices"),
        (changed(chunk_index=5), "indices"),
        (changed(timestep_range=[3, 4]), "begins at step 3"),
        (changed(timestep_range=[1, 2]), "begins at step 1"),
        (changed(length_T=3), "its range"),
        (changed(total_timesteps=9), "announced"),
        (changed(uri="../b.wshard"), "outside"),
        (changed(uri="/etc/passwd"), "outside"),
        (changed(uri="x/../../b"), "outside"),
        (changed(uri="s3://bucket/b"), "outside"),
        (changed(uri="C:\\b"), "outside"),
        (changed(uri=""), "outside"),
        (changed(sha256="zz"), "SHA-256"),
        (changed(length_T=-1), "count"),
        (changed(length_T=True), "count"),
        (changed(uri=3), "string"),
        (changed(chunks={}), "list"),
        (changed(timestep_range="x"), "pair"),
    ],
)
def test_bad_chunk_lists_are_refused(tmp_path: Path, meta: dict[str, object], match: str) -> None:
    path = write_list(tmp_path / "m.wshard", meta)
    with pytest.raises(CorruptLayoutError, match=match):
        wd.open_episode(path)


def test_a_list_without_its_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptLayoutError, match="not a chunk list"):
        wd.open_episode(write_list(tmp_path / "m", {}, "meta/other"))


def test_a_changed_or_missing_chunk_is_found(tmp_path: Path) -> None:
    listed = wd.chunk_episode(episodes.simple(20), tmp_path, 10)
    first = tmp_path / "ep_chunk_0000.wshard"
    wd.save_wshard(replace(wd.load_wshard(first), env_id="other"), first, overwrite=True)
    with pytest.raises(ChecksumError, match="SHA-256"):
        wd.validate_chunk_continuity(listed, check_files=True)
    with pytest.raises(ChecksumError):
        list(wd.ChunkedEpisodeReader(listed).iter_chunks())
    wd.save_wshard(episodes.simple(7), first, overwrite=True)
    with pytest.raises(CorruptLayoutError, match="not chunk 0"):
        wd.open_episode(listed)
    first.unlink()
    with pytest.raises(BlobNotFoundError):
        wd.validate_chunk_continuity(listed, check_files=True)


def without_state(steps: int) -> wd.WShardEpisode:
    other = episodes.simple(steps)
    del other.observations["state"]
    other.omens, other.uncerts, other.residuals = {}, {}, {}
    return other


def without_reward(steps: int) -> wd.WShardEpisode:
    return replace(episodes.simple(steps), rewards=None)


def with_more(steps: int) -> wd.WShardEpisode:
    other = episodes.simple(steps)
    other.observations["more"] = np.zeros(steps)
    return other


def with_a_clock(steps: int) -> wd.WShardEpisode:
    other = episodes.simple(steps)
    state = other.observations["state"]
    other.observations["state"] = wd.Channel("state", state.data, timestamps_ns=np.arange(steps), unit="rad")
    return other


def at_another_rate(steps: int) -> wd.WShardEpisode:
    return replace(episodes.simple(steps), timebase={"tick_hz": 51})


def of_another_id(steps: int) -> wd.WShardEpisode:
    return replace(episodes.simple(steps), id="other")


def of_another_environment(steps: int) -> wd.WShardEpisode:
    return replace(episodes.simple(steps), env_id="Other-v0")


def with_other_metadata(steps: int) -> wd.WShardEpisode:
    return replace(episodes.simple(steps), metadata={"operator": "somebody else"})


def with_other_models(steps: int) -> wd.WShardEpisode:
    return replace(episodes.simple(steps), models=[{"id": "other"}])


def with_other_keys(steps: int) -> wd.WShardEpisode:
    return replace(episodes.simple(steps), about={"site": "elsewhere"})


OTHERS = [
    without_state,
    without_reward,
    with_more,
    with_a_clock,
    at_another_rate,
    of_another_id,
    of_another_environment,
    with_other_metadata,
    with_other_models,
    with_other_keys,
]


@pytest.mark.parametrize("other", OTHERS)
def test_chunks_must_continue_each_other(tmp_path: Path, other: Callable[[int], wd.WShardEpisode]) -> None:
    writer = wd.ChunkedEpisodeWriter(tmp_path / "refused", "e", chunk_size_t=5)
    writer.write_chunk(episodes.simple(5))
    with pytest.raises(SchemaMismatchError, match=r"chunk 1 does not continue .*: expected .*, got "):
        writer.write_chunk(other(5))
    # A list that another program made of such chunks is refused too, as soon as both are seen.
    listed = wd.chunk_episode(episodes.simple(10), tmp_path, 5)
    second = tmp_path / "ep_chunk_0001.wshard"
    chunk = replace(other(5), chunk_index=1, total_chunks=2, timestep_range=(5, 10))
    wd.save_wshard(chunk, second, overwrite=True)
    mixed = replace(listed, chunks=(listed.chunks[0], replace(listed.chunks[1], sha256=file_sha256(second))))
    with pytest.raises(
        CorruptLayoutError, match=r"chunk 1 does not continue the others: .*expected .*, got "
    ):
        wd.validate_chunk_continuity(mixed)
    with pytest.raises(CorruptLayoutError, match="does not continue the other chunks"):
        wd.open_episode(mixed).tensors.actions["ctrl"][4:6]


def timed(start: int, *, own_clock: bool) -> wd.WShardEpisode:
    """Five steps from `start` ns on, with those times for the steps or for one channel."""
    episode = wd.WShardEpisode(
        "ep", length=5, timestamps_ns=np.arange(5) * 10 + (start if not own_clock else 0)
    )
    times = np.arange(3) * 10 + start
    episode.observations["x"] = (
        wd.Channel("x", np.zeros(3), timestamps_ns=times) if own_clock else np.zeros(5)
    )
    if own_clock:
        episode.timestamps_ns = None
    return episode


@pytest.mark.parametrize("own_clock", [False, True])
@pytest.mark.parametrize("start", [-1000, 0, 20])
def test_times_go_on_from_chunk_to_chunk(tmp_path: Path, start: int, own_clock: bool) -> None:
    first, other = timed(0, own_clock=own_clock), timed(start, own_clock=own_clock)
    writer = wd.ChunkedEpisodeWriter(tmp_path / "refused", "ep", 5)
    writer.write_chunk(first)
    with pytest.raises(SchemaMismatchError, match="chunk 1 starts before chunk 0 ends"):
        writer.write_chunk(other)
    late = wd.ChunkedEpisodeWriter(tmp_path / "late", "ep", 5)
    late.write_chunk(replace(other, chunk_index=2))
    late.write_chunk(replace(first, chunk_index=0))
    good = wd.ChunkedEpisodeWriter(tmp_path / "good", "ep", 5)
    good.write_chunk(first)
    good.write_chunk(timed(1000, own_clock=own_clock))
    listed = good.finalize_manifest()
    wd.validate_chunk_continuity(listed)
    second = tmp_path / "good" / "ep_chunk_0001.wshard"
    wd.save_wshard(
        replace(other, chunk_index=1, total_chunks=2, timestep_range=(5, 10)), second, overwrite=True
    )
    entries = (listed.chunks[0], replace(listed.chunks[1], sha256=file_sha256(second)))
    mixed = write_chunk_list(replace(listed, chunks=entries), listed)
    with pytest.raises(CorruptLayoutError, match="chunk 1 starts before chunk 0 ends"):
        wd.validate_chunk_continuity(mixed)
    assert [finding.code for finding in verify_shard(mixed)] == ["corrupt_layout"]
    opened = wd.open_episode(mixed)
    with pytest.raises(CorruptLayoutError, match="chunk 1 starts before the one before it ends"):
        _ = opened["x"].timestamps if own_clock else opened.steps.times_ns


def test_an_episode_whose_times_go_back_is_cut_and_joined(tmp_path: Path) -> None:
    path = tmp_path / "foreign.wshard"
    times = np.array([0, 10, 20, 5, 15, 25], np.int64)
    wd.save_wshard(wd.WShardEpisode("ep", length=6, timestamps_ns=np.arange(6)), path)
    data = path.read_bytes().replace(np.arange(6).tobytes(), times.tobytes())
    data = data.replace(*(crc32c(each).to_bytes(4, "little") for each in (np.arange(6), times)))
    path.write_bytes(data[:48] + bytes(8) + data[56:])  # as other programs write it: without a table checksum
    foreign = wd.load_wshard(path)
    listed = wd.chunk_episode(foreign, tmp_path / "chunks", 3)
    wd.validate_chunk_continuity(listed)
    assert wd.ChunkedEpisodeReader(listed.path).episode().timestamps_ns.tolist() == times.tolist()
    wd.validate_chunk_continuity(wd.ChunkedEpisodeReader(listed.path).manifest)
    wd.validate_chunk_continuity(listed.path)
    wd.validate_chunk_continuity(str(listed.path))


@pytest.mark.parametrize(("before", "after"), [(3, 7), (7, 3), (5, 5), (4, 20)])
def test_an_episode_is_cut_anew_while_it_is_read_from_its_chunks(
    tmp_path: Path, before: int, after: int
) -> None:
    wanted = episodes.simple(20)
    old = wd.open_episode(wd.chunk_episode(wanted, tmp_path, before))
    (tmp_path / "ep_chunk_0099.wshard").write_bytes(b"unreadable: nobody knows whose it is")
    wd.save_wshard(episodes.simple(2), tmp_path / "ep_chunk_0098.wshard")  # no chunk, by its own word
    listed = wd.chunk_episode(old.tensors, tmp_path, after, overwrite=True)
    assert wd.open_episode(listed).tensors == wanted
    wd.validate_chunk_continuity(listed, check_files=True)
    kept = {"ep_chunk_0098.wshard", "ep_chunk_0099.wshard", "ep_manifest.wshard"}
    assert {path.name for path in tmp_path.iterdir()} == {entry.uri for entry in listed.chunks} | kept


def test_cutting_anew_that_fails_leaves_the_old_chunks(tmp_path: Path) -> None:
    listed = wd.chunk_episode(episodes.simple(20), tmp_path, 5)
    writer = wd.ChunkedEpisodeWriter(tmp_path, "ep", 7, overwrite=True)
    writer.write_chunk(episodes.simple(7, seed=1))
    with pytest.raises(SchemaMismatchError):
        writer.write_chunk(without_state(7))
    wd.validate_chunk_continuity(listed, check_files=True)
    assert wd.open_episode(listed).tensors == episodes.simple(20)


@pytest.mark.parametrize("is_discarded", [False, True])
@pytest.mark.parametrize("when", ["before the list", "after the list"])
def test_a_cut_anew_that_is_killed_leaves_one_whole_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, is_discarded: bool
) -> None:
    old = wd.WShardEpisode("ep", length=6, rewards=np.arange(6, dtype=np.float32))
    new = replace(old, rewards=np.arange(6, dtype=np.float32) + 1)
    wd.chunk_episode(old, tmp_path, 2)
    listed = tmp_path / "ep_manifest.wshard"
    writer = wd.ChunkedEpisodeWriter(tmp_path, "ep", 3, overwrite=True)
    writer.write_episode_chunked(new)
    write = chunks.write_chunk_list

    def killed(*args: Any, **options: Any) -> None:
        if when == "after the list":
            write(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(chunks, "write_chunk_list", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.finalize_manifest()
    monkeypatch.undo()
    if is_discarded:
        writer.discard()
    wanted = old if when == "before the list" else new
    assert wd.open_episode(listed).tensors == wanted
    wd.validate_chunk_continuity(wd.ChunkedEpisodeReader(listed).manifest, check_files=True)
    assert wd.open_episodes(tmp_path).ids == ["ep"], "what a killed cut left is no episode"
    wd.chunk_episode(new, tmp_path, 6, overwrite=True)
    assert wd.open_episode(listed).tensors == new
    assert len(list(tmp_path.iterdir())) == 2, "the next cut removes what was left"


def test_write_episode_chunked(tmp_path: Path) -> None:
    writer = wd.ChunkedEpisodeWriter(tmp_path, "ep", chunk_size_t=6)
    paths = writer.write_episode_chunked(episodes.simple(20))
    assert [wd.load_wshard(path).length for path in paths] == [6, 6, 6, 2]
    assert all(wd.load_wshard(path).is_chunked for path in paths)
    assert wd.open_episode(writer.finalize_manifest()).tensors == episodes.simple(20)
    with pytest.raises(RecordingError):
        writer.write_chunk(episodes.simple(3))


def test_a_chunk_is_cut_like_any_other_episode(tmp_path: Path) -> None:
    episode = wd.WShardEpisode("ep", length=6, rewards=np.arange(6, dtype=np.float32))
    listed = wd.chunk_episode(episode, tmp_path / "coarse", 4)
    chunk = wd.load_wshard(listed.chunk_path(listed.chunks[1]))
    fine = wd.open_episode(wd.chunk_episode(chunk, tmp_path / "fine", 1)).tensors
    assert (fine.length, fine.rewards.data.tolist()) == (2, [4, 5])


def test_an_empty_episode_keeps_what_is_known_of_it(tmp_path: Path) -> None:
    empty = wd.WShardEpisode("nothing", "Env", metadata={"task": "pick"})
    empty.observations["state"] = wd.Channel("state", np.zeros((0, 3), np.float32), unit="rad")
    empty.observations["said"] = wd.Channel.text("said", [])
    empty.add_residual("state")
    wd.save_wshard(empty, tmp_path / "a.wshard", "auto")
    assert wd.load_wshard(tmp_path / "a.wshard") == empty
    listed = wd.chunk_episode(empty, tmp_path / "chunks", 5)
    wd.validate_chunk_continuity(listed, check_files=True)
    assert wd.open_episode(listed).tensors == empty


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chunk_size_t"):
        wd.ChunkedEpisodeWriter(tmp_path, "e", chunk_size_t=0)
    with pytest.raises(ValueError, match="file name"):
        wd.ChunkedEpisodeWriter(tmp_path, "../e")
    with pytest.raises(ValueError, match="at least one"):
        wd.chunk_episode(episodes.simple(), tmp_path, 0)


def test_a_cut_that_fails_leaves_the_older_one_and_nothing_else(tmp_path: Path) -> None:
    made = wd.WShardEpisode(id="e", length=6)
    made.observations["x"] = np.arange(6)
    listed = wd.chunk_episode(made, tmp_path, 2)
    before = sorted(path.name for path in tmp_path.iterdir())

    def stop(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wd.chunk_episode(made, tmp_path, 3, progress=stop, overwrite=True)
    with pytest.raises(ValueError, match="zstd"):
        wd.chunk_episode(made, tmp_path, 3, compression="zst", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert wd.open_episode(listed).tensors == made


def test_a_path_is_chunked_like_what_lies_there(tmp_path: Path) -> None:
    made = episodes.simple(20)
    wd.save_wshard(made, tmp_path / "a.wshard")
    listed = wd.chunk_episode(tmp_path / "a.wshard", tmp_path / "chunks", 5)
    assert len(listed.chunks) == 4
    assert wd.open_episode(listed).tensors == made
