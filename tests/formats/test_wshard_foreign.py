"""Files written by the existing Go, Python and TypeScript programs."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

import warpdata as wd
from tests.conftest import shared_golden
from warpdata.bytekit.arrays import DTYPE_NAMES, dtype_named
from warpdata.formats.wshard import ShardReader

FIXTURES = [
    "simple_episode",
    "dtype_zoo",
    "per_block_compressed",
    "omen_uncert",
    "multimodal",
    "latent_action",
]
FOREIGN = [
    "chunks/gc_chunk_0000", "chunks/gc_chunk_0001", "chunks/gc_chunk_0002", "chunks/gc_manifest", "go_comp1",
    "go_none", "py_lz4", "py_none", "py_zstd", "ts_none", "ts_zstd",
]  # fmt: skip


def fixture(name: str) -> wd.WShardEpisode:
    return wd.load_wshard(shared_golden("wshard", f"{name}.wshard"))


@pytest.mark.parametrize("name", FOREIGN)
def test_every_block_has_its_sha256(name: str) -> None:
    expected = json.loads(shared_golden("wshard", "foreign", "expected.json").read_text())[f"{name}.wshard"]
    shard = ShardReader.open(shared_golden("wshard", "foreign", f"{name}.wshard"))
    found = {block: hashlib.sha256(shard.read(block)).hexdigest() for block in shard.names}
    assert found == {block: each["sha256"] for block, each in expected["blocks"].items()}
    assert shard.role == expected["role"]
    for block, each in expected["blocks"].items():
        if "json" in each:
            assert shard.read_json(block) == each["json"]


@pytest.mark.parametrize("name", [f"foreign/{each}" for each in FOREIGN if "manifest" not in each] + FIXTURES)
def test_every_channel_opens_and_survives_a_save(name: str, tmp_path) -> None:
    episode = fixture(name)
    assert episode.length > 0
    assert list(episode.lanes())
    for _, channel in episode.lanes():
        assert channel.data.nbytes
    wd.save_wshard(episode, tmp_path / "again.wshard")
    assert wd.load_wshard(tmp_path / "again.wshard") == episode


def test_reference_hashes() -> None:
    hashes = json.loads(shared_golden("wshard", "golden_hashes.json").read_text())
    assert wd.compute_crc32(b"hello") == int(hashes["crc32c_hello"], 16)
    assert wd.name_hash("signal/obs") == int(hashes["xxhash64_signal_obs"], 16)
    assert wd.name_hash("meta/manifest") == int(hashes["xxhash64_meta_manifest"], 16)
    assert {name: dtype_named(name).itemsize for name in DTYPE_NAMES} == hashes["dtype_sizes"]


def test_golden_simple_episode_loads() -> None:
    ep = fixture("simple_episode")
    assert ep.id == "golden_simple"
    assert ep.env_id == "TestEnv-v1"
    assert ep.length == 10
    assert ep.timebase.tick_hz == 30
    assert ep.observations["state"].data.shape == (10, 4)
    assert ep.actions["ctrl"].data.shape == (10, 2)
    np.testing.assert_allclose(ep.observations["state"].data[0], [0, 1, 2, 3])
    assert ep.terminations is not None
    assert ep.terminations.data.tolist() == [0] * 9 + [1]


def test_dtype_zoo() -> None:
    ep = fixture("dtype_zoo").observations
    assert ep["f32_ch"].data.ravel().tolist() == [1, 2, 3, 4]
    assert ep["f64_ch"].data.ravel().tolist() == [10, 20, 30, 40]
    assert ep["i32_ch"].data.ravel().tolist() == [-1, 0, 1, 2147483647]
    assert ep["u8_ch"].data.ravel().tolist() == [0, 127, 255, 42]
    assert ep["bf16_ch"].data.astype(np.float32).ravel().tolist() == [1, 2, 3, 4]
    assert ep["bf16_ch"].dtype == "bf16"


def test_compressed_blocks() -> None:
    ep = fixture("per_block_compressed")
    assert (ep.observations["obs"].data == 1.25).all()
    assert ep.observations["obs"].data.shape == (100, 8)
    assert ep.rewards is not None
    assert (ep.rewards.data == 1.0).all()


def test_lanes() -> None:
    ep = fixture("omen_uncert")
    expected = (np.arange(30, dtype=np.float32) * np.float32(0.1) + np.float32(0.01)).reshape(10, 3)
    np.testing.assert_allclose(ep.omens["joint_pos"]["dreamer"].data, expected, rtol=1e-6)
    assert ep.uncerts["joint_pos"]["dreamer"]["variance"].data.shape == (10, 3)
    packed = bytes(ep.residuals["joint_pos/sign2nddiff"].data)
    assert packed == b"\x90\x00"
    signal = ep.observations["joint_pos"].data
    assert wd.pack_residual(wd.sign2nddiff(signal[:, 0])) == packed


def test_modalities_and_latents() -> None:
    ep = fixture("multimodal")
    assert ep.observations["obs/rgb"].data.shape == (5, 8, 8, 3)
    assert set(ep.modality_groups()["obs"]) == {"rgb", "depth", "proprioception"}
    latent = fixture("latent_action")
    assert latent.latent_action("genie3").data.shape == (8, 16)
    assert latent.latent_codebook("genie3").data.tolist() == list(range(8))


def test_rates_come_back_exactly() -> None:
    for name in ("py_none", "go_none", "ts_none"):
        assert fixture(f"foreign/{name}").timebase.tick_hz == 30.0


def test_typescript_actions_get_their_shape_back() -> None:
    actions = fixture("foreign/ts_none").actions["ctrl"].data
    assert actions.shape[0] == 100
    assert actions.ndim == 2


def test_chunks_of_the_go_program_open_as_one() -> None:
    path = shared_golden("wshard", "foreign", "chunks", "gc_manifest.wshard")
    reader = wd.ChunkedEpisodeReader(path)
    wd.validate_chunk_continuity(reader.manifest, check_files=True, check_channels=True)
    episode = wd.open_episode(path).tensors
    assert episode.length == 100
    whole = np.concatenate([chunk.observations["state"].data for chunk in reader.iter_chunks()])
    assert np.array_equal(episode.observations["state"].data, whole)
    assert np.array_equal(episode.observations["state"][35:85], whole[35:85])
