"""Replay buffers: read as zarr reads them, written again as they were."""

from __future__ import annotations

import bz2
import json
import lzma
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr as library

from tests.convert.foreign import expected, imported, same_channel, sample
from warpdata.bytekit.codec import encode
from warpdata.convert import zarr
from warpdata.convert.place import Place
from warpdata.convert.tables import npz
from warpdata.errors import (
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    MissingExtraError,
    SchemaMismatchError,
)

SETS = ["lowdim.zarr", "pusht_like.zarr", "umi_like_jxl.zarr.zip"]
PICTURES = ("umi_like_jxl.zarr.zip", "img")


def check_values(path: Path, name: str) -> None:
    episodes = zarr.read(path)
    told = expected("zarr_replay_buffer", f"{name}.expected.json")["episodes"]
    assert [len(episode.steps) for episode in episodes] == [each["length"] for each in told]
    for episode, each in zip(episodes, told, strict=True):
        for channel, about in each["channels"].items():
            if (name, channel) != PICTURES:
                assert same_channel(episode[channel].values(), about), channel


@pytest.mark.parametrize("name", SETS)
def test_buffers_are_read_as_diffusion_policy_reads_them(name: str) -> None:
    assert zarr.matches(Place.of(sample("zarr_replay_buffer", name)))
    check_values(sample("zarr_replay_buffer", name), name)


def test_jpeg_xl_frames_need_imagecodecs_and_are_near_the_original() -> None:
    episode = zarr.read(sample("zarr_replay_buffer", "umi_like_jxl.zarr.zip"))[0]
    assert episode["img"].meta.kind == "image"
    try:
        import imagecodecs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="imagecodecs"):
            episode["img"].rows(0, 1)
        return
    told = expected("zarr_replay_buffer", "umi_like_jxl.zarr.zip.expected.json")["episodes"][0]
    assert same_channel(episode["img"].values(), told["channels"]["img"])


@pytest.mark.parametrize("kind", ["straight", "root", "shards"])
@pytest.mark.parametrize("target", ["out.zarr", "out.zarr.zip"])
def test_a_buffer_comes_out_as_it_went_in(kind: str, target: str, tmp_path: Path) -> None:
    source = sample("zarr_replay_buffer", "lowdim.zarr")
    episodes = zarr.read(source)
    if kind != "straight":
        episodes = imported(episodes, tmp_path / "ours", kind, "zarr")
    assert zarr.write(episodes, tmp_path / target).is_exact
    check_values(tmp_path / target, "lowdim.zarr")


def test_whole_numbers_in_float_images_stay_floats(tmp_path: Path) -> None:
    episodes = zarr.read(sample("zarr_replay_buffer", "pusht_like.zarr"))[:1]
    assert zarr.write(episodes, tmp_path / "out.zarr").is_exact
    again = zarr.read(tmp_path / "out.zarr")[0]["img"]
    assert again.meta.dtype == np.float32
    np.testing.assert_array_equal(again.values(), episodes[0]["img"].values())


def test_the_library_itself_opens_what_is_written(tmp_path: Path) -> None:
    episodes = zarr.read(sample("zarr_replay_buffer", "lowdim.zarr"))
    for compressor in ("zstd", "zlib", "blosc", "none"):
        zarr.write(episodes, tmp_path / compressor, compressor=compressor)  # type: ignore[arg-type]
        group = library.open_group(str(tmp_path / compressor), mode="r", zarr_format=2)
        ends = group["meta/episode_ends"][:]
        assert ends.dtype == np.int64
        for key in group["data"].array_keys():
            assert group[f"data/{key}"].shape[0] == ends[-1]
        whole = np.concatenate([episode["action"].values() for episode in episodes])
        np.testing.assert_array_equal(group["data/action"][:], whole)


def test_tasks_and_names_of_other_sets_come_back(tmp_path: Path) -> None:
    from warpdata.convert import hdf5

    episodes = hdf5.read(sample("robomimic", "gen_libero_style_demo.hdf5"))
    receipt = zarr.write(episodes, tmp_path / "out.zarr")
    assert receipt.is_exact
    again = zarr.read(tmp_path / "out.zarr")
    assert again.ids == episodes.ids
    assert dict(again[1].static) == dict(episodes[1].static)
    assert again[0].meta["fps"] == 20.0
    with_more = hdf5.read(sample("robomimic", "gen_lift_image.hdf5"))
    receipt = zarr.write(with_more, tmp_path / "more.zarr")
    groups = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob(".zgroup")}
    assert groups >= {"more.zarr", "more.zarr/data", "more.zarr/meta"}
    assert not any(name.startswith("more.zarr/data/") for name in groups), (
        "diffusion policy wants arrays only"
    )
    assert (
        zarr.read(tmp_path / "more.zarr")[0]["obs/object"].meta.shape == with_more[0]["obs/object"].meta.shape
    )
    assert receipt.signals["obs/object"].how == "cut"
    assert "after the last step" in receipt.signals["obs/object"].why[0]


def test_times_come_from_the_buffer_where_they_grow(tmp_path: Path) -> None:
    source = sample("zarr_replay_buffer", "lowdim.zarr")
    episode = zarr.read(source)[1]
    stamps = episode["timestamp"].values()
    assert episode["action"].timestamps.tolist() == np.rint(stamps * 1e9).astype(np.int64).tolist()
    assert zarr.read(source, times=None, fps=50)[1]["action"].timestamps[:2].tolist() == [0, 20_000_000]


def array(folder: Path, path: str, values: Any, about: dict[str, Any], data: bytes | None) -> None:
    (folder / path).mkdir(parents=True, exist_ok=True)
    base = {
        "zarr_format": 2, "shape": list(values.shape), "chunks": list(values.shape), "dtype": values.dtype.str,
        "compressor": None, "fill_value": 0, "order": "C", "filters": None,
    }  # fmt: skip
    (folder / path / ".zarray").write_text(json.dumps({**base, **about}))
    if data is not None:
        (folder / path / ".".join(["0"] * values.ndim)).write_bytes(data)


def buffer(folder: Path, about: dict[str, Any], data: bytes | None, rows: int = 4) -> Path:
    values = np.arange(rows * 3, dtype="<f4").reshape(rows, 3)
    ends = np.array([rows], "<i8")
    array(folder, "meta/episode_ends", ends, {}, ends.tobytes())
    array(folder, "data/action", values, about, data)
    return folder


VALUES = np.arange(12, dtype="<f4").reshape(4, 3)


FORMS: dict[str, tuple[dict[str, Any], bytes | None]] = {
    "plain": ({}, VALUES.tobytes()),
    "columns first": ({"order": "F"}, VALUES.tobytes("F")),
    "big-endian": ({"dtype": ">f4"}, VALUES.astype(">f4").tobytes()),
    "zlib": ({"compressor": {"id": "zlib", "level": 1}}, zlib.compress(VALUES.tobytes())),
    "gzip": ({"compressor": {"id": "gzip", "level": 1}}, zlib.compress(VALUES.tobytes(), wbits=31)),
    "bz2": ({"compressor": {"id": "bz2"}}, bz2.compress(VALUES.tobytes())),
    "lzma": ({"compressor": {"id": "lzma"}}, lzma.compress(VALUES.tobytes())),
    "lz4": ({"compressor": {"id": "lz4"}}, b"\x30\0\0\0" + encode("lz4", VALUES.tobytes())),
    "zstd": ({"compressor": {"id": "zstd", "level": 3}}, encode("zstd", VALUES.tobytes())),
}


@pytest.mark.parametrize(("about", "data"), FORMS.values(), ids=FORMS)
def test_forms_of_chunks(about: dict[str, Any], data: bytes, tmp_path: Path) -> None:
    episodes = zarr.read(buffer(tmp_path / "in", about, data))
    assert episodes[0]["action"].meta.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(episodes[0]["action"].values(), VALUES)
    assert zarr.write(episodes, tmp_path / "out").is_exact
    np.testing.assert_array_equal(zarr.read(tmp_path / "out")[0]["action"].values(), VALUES)


def test_a_chunk_that_is_not_there_is_the_fill_value(tmp_path: Path) -> None:
    assert (zarr.read(buffer(tmp_path, {"fill_value": 2.5}, None))[0]["action"].values() == 2.5).all()


@pytest.mark.parametrize("shards", [None, (8, 3)])
def test_trees_of_version_3_are_read(shards: tuple[int, int] | None, tmp_path: Path) -> None:
    root = library.open_group(tmp_path / "new.zarr", mode="w", zarr_format=3, attributes={"robot": "arm"})
    values = np.arange(30, dtype=np.float32).reshape(10, 3)
    rows = root.create_array("data/action", shape=(10, 3), chunks=(4, 3), shards=shards, dtype="float32")
    rows[:] = values
    root.create_array("meta/episode_ends", data=np.array([4, 10]))
    assert zarr.matches(Place.of(tmp_path / "new.zarr"))
    episodes = zarr.read(tmp_path / "new.zarr")
    assert [episode["action"].values().tolist() for episode in episodes] == [
        values[:4].tolist(),
        values[4:].tolist(),
    ]
    assert episodes.metadata["zarr"]["attributes"] == {"": {"robot": "arm"}}
    chunk = next(path for path in (tmp_path / "new.zarr/data/action/c").rglob("*") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-3])
    with pytest.raises(CorruptLayoutError, match="data/action"):
        _ = [episode["action"].values() for episode in zarr.read(tmp_path / "new.zarr")]


BLOSC_BOMB = bytes([2, 1, 1, 4]) + (1 << 31).to_bytes(4, "little") + bytes(4) + (16).to_bytes(4, "little")
BLOSC_DAMAGED = bytes([2, 1, 1, 4]) + b"\x30\0\0\0\x30\0\0\0\x20\0\0\0" + b"\xff" * 16
WRONG: dict[str, tuple[dict[str, Any], bytes | None]] = {
    "cut": ({}, VALUES.tobytes()[:-1]),
    "too long": ({}, bytes(1 << 17)),
    "zlib bomb": ({"compressor": {"id": "zlib"}}, zlib.compress(bytes(1 << 22))),
    "bz2 bomb": ({"compressor": {"id": "bz2"}}, bz2.compress(bytes(1 << 24))),
    "lzma short": ({"compressor": {"id": "lzma"}}, lzma.compress(bytes(47))),
    "blosc bomb": ({"compressor": {"id": "blosc"}}, BLOSC_BOMB),
    "blosc damaged": ({"compressor": {"id": "blosc"}}, BLOSC_DAMAGED),
    "blosc short": ({"compressor": {"id": "blosc"}}, b"short"),
    **{f"{name} junk": ({"compressor": {"id": name}}, b"junk") for name in ("zstd", "bz2", "lzma", "zlib")},
    "lz4 short": ({"compressor": {"id": "lz4"}}, b"abc"),
    "lz4 of nothing": ({"compressor": {"id": "lz4"}}, bytes(9)),
    "lz4 junk": ({"compressor": {"id": "lz4"}}, b"\x30\0\0\0junk"),
    "unknown compressor": ({"compressor": {"id": "mystery"}}, b"x"),
    "compressor of text": ({"compressor": "zlib"}, b""),
    "huge chunks": ({"chunks": [1 << 20, 1 << 20]}, b""),
    "no chunks": ({"chunks": [0, 3]}, b""),
    "fewer axes": ({"shape": [4]}, b""),
    "more rows": ({"shape": [5, 3]}, b""),
    "negative side": ({"shape": [4, -3]}, b""),
    "objects": ({"dtype": "|O"}, b""),
    "number as type": ({"dtype": 7}, b""),
    "unknown type": ({"dtype": "no type"}, b""),
    "unknown filter": ({"filters": [{"id": "delta"}]}, b""),
    "another version": ({"zarr_format": 3}, b""),
    "unknown order": ({"order": "A"}, b""),
    "unknown separator": ({"dimension_separator": "-"}, b""),
    "text as fill value": ({"fill_value": "nonsense"}, b""),
    "list as fill value": ({"fill_value": [1, 2]}, None),
}


@pytest.mark.parametrize(("about", "data"), WRONG.values(), ids=WRONG)
def test_wrong_arrays_are_named(about: dict[str, Any], data: bytes | None, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="action") as caught:
        zarr.read(buffer(tmp_path, about, data))[0]["action"].values()
    assert str(tmp_path) in str(caught.value)


def test_an_archive_that_lies_of_its_sizes_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zarr.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(sample("zarr_replay_buffer", "lowdim.zarr").rglob("*")):
            name = path.relative_to(sample("zarr_replay_buffer", "lowdim.zarr")).as_posix()
            if path.is_file():
                archive.writestr(name, bytes(64 << 20) if name == "data/action/0.0" else path.read_bytes())
    episode = zarr.read(tmp_path / "bomb.zarr.zip")[0]
    assert len(episode["state"].values()) == 40
    with pytest.raises(LimitExceededError, match=r"data/action/0\.0"):
        episode["action"].values()


def test_buffers_pickle_by_address() -> None:
    episodes = zarr.read(sample("zarr_replay_buffer", "umi_like_jxl.zarr.zip"))
    again = pickle.loads(pickle.dumps(episodes))
    np.testing.assert_array_equal(again[2]["state"].values(), episodes[2]["state"].values())


def zipped(folder: Path, method: int = zipfile.ZIP_STORED) -> Path:
    target = folder.with_suffix(".zarr.zip")
    with zipfile.ZipFile(target, "w", method) as archive:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            archive.write(path, path.relative_to(folder).as_posix())
    return target


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_damaged_members_of_archives_are_told(method: int, tmp_path: Path) -> None:
    path = zipped(buffer(tmp_path / "a", {}, VALUES.tobytes()), method)
    np.testing.assert_array_equal(zarr.read(path)[0]["action"].values(), VALUES)
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("data/action/0.0")
    data = bytearray(path.read_bytes())
    start = entry.header_offset + 30 + len(entry.filename)
    for at in range(start + 9 * (method == zipfile.ZIP_LZMA), start + entry.compress_size):
        data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptLayoutError, match=r"'data/action/0\.0' is damaged"):
        zarr.read(path)[0]["action"].values()


def test_archives_that_are_cut_or_locked_are_told(tmp_path: Path) -> None:
    path = zipped(buffer(tmp_path / "a", {}, VALUES.tobytes()))
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert not zarr.matches(Place.of(path))
    with pytest.raises(CorruptLayoutError, match="not a readable zip archive"):
        zarr.read(path)
    at = whole.index(b"PK\x01\x02") + 8
    path.write_bytes(whole[:at] + bytes([whole[at] | 1]) + whole[at + 1 :])
    with pytest.raises(LimitExceededError, match="claims"):
        zarr.read(path)


@pytest.mark.parametrize(
    ("names", "second", "words"),
    [
        (
            ("x", "x"),
            np.zeros((4, 3)),
            r"'x' of episode 'b': expected float64\[\] as in the first episode, got float64\[3\]",
        ),
        (
            ("x", "x"),
            np.zeros(4, np.float32),
            r"'x' of episode 'b': expected float64\[\] as in the first episode, got float32\[\]",
        ),
        (("x", "y"), np.zeros(4), "signal 'x' of episode 'b': expected float64.*got no such signal"),
        (("x", "x"), np.full(4, "a"), "signal 'x' of episode 'b': expected float64.*got no such signal"),
    ],
    ids=range(4),
)
def test_what_the_next_episode_has_otherwise_is_told(
    names: tuple[str, str], second: Any, words: str, tmp_path: Path
) -> None:
    for file, name, values in zip("ab", names, (np.zeros(4), second), strict=True):
        np.savez(tmp_path / f"{file}.npz", **{name: values}, action=np.zeros((4, 1)))
    with pytest.raises(SchemaMismatchError, match=words):
        zarr.write(npz.read(tmp_path), tmp_path / "out")
    with pytest.raises(ValueError, match="compressor is one of zstd, none, zlib, blosc, not 'snappy'"):
        zarr.write(npz.read(tmp_path), tmp_path / "out", compressor="snappy")  # type: ignore[arg-type]
