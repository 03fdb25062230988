"""What a compression by name gives: `zstd` is one frame for every program, frames to enter have a name of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import warpdata as wd
from tests.formats import episodes, plain_decoder
from warpdata.cli.main import main
from warpdata.formats.wshard import ShardReader, layout

STEPS = 40
ROWS = np.repeat(np.arange(STEPS, dtype=np.float32), 512).reshape(STEPS, 512)
CHANNEL = {"id": "big", "dtype": "f32", "shape": [512]}


@pytest.fixture(autouse=True)
def _small_blocks_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of these files would need more than 8 MiB to show a difference."""
    monkeypatch.setattr(layout, "SEEKABLE_FROM_BYTES", 1024)
    monkeypatch.setattr(layout, "FRAME_BYTES", 4096)


def episode() -> wd.WShardEpisode:
    made = wd.WShardEpisode("e", length=STEPS)
    made.observations["big"] = ROWS
    return made


def as_others_read(path: Path, block: str = "signal/big") -> bytes:
    """The first zstd frame of a block and nothing else, which is what two existing readers decode."""
    data = path.read_bytes()
    entry = next(each for each in plain_decoder.table(data)[1] if each["name"] == block)
    stored = data[entry["data_offset"] : entry["data_offset"] + entry["disk_size"]]
    assert entry["flags"] == 3
    return zstandard.ZstdDecompressor().decompress(stored, max_output_size=entry["raw_size"])


def save(path: Path, compression: str, **options: Any) -> Path:
    wd.save_wshard(episode(), path, compression, **options)
    return path


def stream(path: Path, compression: str, **options: Any) -> Path:
    with wd.WShardStreamWriter(path, "e", [{**CHANNEL, "compression": compression}], **options) as writer:
        writer.begin_episode()
        for row in ROWS:
            writer.write_timestep({"big": row})
    return path


def salvage(path: Path, compression: str, **options: Any) -> Path:
    writer = wd.WShardStreamWriter(path, "e", [{**CHANNEL, "compression": compression}], **options)
    writer.begin_episode()
    for row in ROWS:
        writer.write_timestep({"big": row})
    writer.close()
    wd.salvage(path)
    return path


def chunk(path: Path, compression: str, **options: Any) -> Path:
    wd.chunk_episode(episode(), path, STEPS, compression=compression, **options)
    return path / "e_chunk_0000.wshard"


def pack(path: Path, compression: str, **options: Any) -> Path:
    steps = {"clock": "big", "outcome": "same"}
    with wd.DiskEpisodeWriter(path.with_suffix(".dir"), meta={"steps": steps}) as recording:
        for index, row in enumerate(ROWS):
            recording.append("big", row, index * 1000)
    return wd.pack_episode(path.with_suffix(".dir"), path, compression, **options)


def command(path: Path, compression: str, **options: Any) -> Path:
    wd.save_wshard(episode(), path.with_suffix(".raw"))
    compat = [word for key, value in options.items() for word in (f"--{key}", value)]
    source, folder = str(path.with_suffix(".raw")), str(path.with_suffix(".chunks"))
    assert (
        main(["chunk", source, "--steps", "15", "--output", folder, "--compression", compression, *compat])
        == 0
    )
    listed = f"{folder}/e_manifest.wshard"
    assert main(["join", listed, "--output", str(path), "--compression", compression, *compat]) == 0
    return path


WRITERS = [save, stream, salvage, chunk, pack, command]


@pytest.mark.parametrize("write", WRITERS)
def test_zstd_is_one_frame_everywhere(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wshard", "zstd")
    assert as_others_read(path) == ROWS.tobytes()
    assert np.array_equal(wd.load_wshard(path).observations["big"].data, ROWS)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("compression", ["zstd-seekable", "auto"])
def test_frames_to_enter_have_a_name_and_strict_turns_them_off(
    write: Any, compression: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.wshard", compression)
    assert ShardReader.open(path).block("signal/big").is_seekable
    assert np.array_equal(wd.load_wshard(path).observations["big"][7:9], ROWS[7:9])
    strict = write(tmp_path / "b.wshard", compression, compat="strict")
    assert as_others_read(strict) == ROWS.tobytes()


def test_strict_stores_raw_what_one_reader_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "STRICT_MAX_COMPRESSED_BYTES", ROWS.nbytes - 1)
    path = save(tmp_path / "a.wshard", "zstd", compat="strict")
    assert ShardReader.open(path).block("signal/big").codec == "none"


@pytest.mark.parametrize(
    ("compression", "kind", "match"),
    [
        ("zsdt", ValueError, "Did you mean 'zstd'"),
        ("zstd-seekabel", ValueError, "Did you mean 'zstd-seekable'"),
        ("zstd:x", ValueError, "not a number"),
        ("zstd:99", ValueError, "from -100 to 22"),
        ("none:3", ValueError, "no levels"),
        (3, TypeError, "a name such as"),
        ({"state": 3}, TypeError, "a name such as"),
        ({"statr": "zstd"}, ValueError, "Did you mean 'state'"),
        ({"signal/statr": "zstd"}, ValueError, "Did you mean 'signal/state'"),
    ],
)
def test_wrong_names(compression: Any, kind: type[Exception], match: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=match):
        wd.save_wshard(episodes.simple(), tmp_path / "a", compression)
    with pytest.raises(kind, match=match):
        wd.chunk_episode(episodes.simple(), tmp_path / "chunks", 5, compression=compression)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("write", WRITERS[:5])
def test_wrong_compat(write: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'strict'"):
        write(tmp_path / "a.wshard", "zstd", compat="strickt")
