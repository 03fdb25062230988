"""Columns that point into artifacts, and the files they point to: whatever does not fit is refused by name."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

import warpdata as wd
from tests.sweeps import enough_examples
from warpdata.catalog.read import media
from warpdata.errors import CorruptLayoutError, DatasetError, TimeRangeError, WarpError


@pytest.mark.parametrize(
    ("values", "addressing", "said"),
    [
        ([1, 2], "member", "int64, not names of members"),
        ([b"a/000.png", None], "member", "binary, not names of members"),
        (["a/000.png", None], "range", "not a struct of shard, offset and length"),
        ([{"shard": 0, "offset": 1}], "range", "not a struct of shard, offset and length"),
        ([{"shard": 7, "offset": 0, "length": 1}], "range", "points outside 'pictures'"),
        ([{"shard": 0, "offset": -1, "length": 1}], "range", "points outside 'pictures'"),
        ([{"shard": 0, "offset": None, "length": 1}], "range", "points outside 'pictures'"),
        ([{"shard": 0, "offset": 0, "length": -1}], "range", "points outside 'pictures'"),
    ],
)
def test_values_that_name_nothing(
    tmp_path: Path, picture_folder: Path, values: list[Any], addressing: str, said: str
) -> None:
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("pictures", picture_folder).add_table("main", {"image": values})
        builder.bind("main", "image", "pictures", "image", addressing=addressing)
        with pytest.raises(DatasetError, match=said):
            builder.publish()
    assert not (tmp_path / "cat").exists()


@pytest.mark.parametrize(
    ("table", "column", "artifact", "said"),
    [
        ("mian", "image", "pictures", "names no part of this version.*'main'"),
        ("main", "image", "picture", "names no part of this version.*'pictures'"),
        ("main", "imgae", "pictures", "has no column 'imgae'.*'image'"),
    ],
)
def test_names_that_are_misspelt(
    tmp_path: Path, picture_folder: Path, table: str, column: str, artifact: str, said: str
) -> None:
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("pictures", picture_folder).add_table("main", {"image": ["a/000.png"]})
        builder.bind(table, column, artifact, "image")
        with pytest.raises(DatasetError, match=said):
            builder.publish()


def test_names_of_parts(tmp_path: Path, picture_folder: Path) -> None:
    with pytest.raises(ValueError, match="not to one version of it"):
        wd.DatasetBuilder("ws/x@best", catalog=tmp_path / "cat")
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_table("main", {"x": [1]})
        for name in ("", "../x", "a b", "é"):
            with pytest.raises(ValueError, match="invalid name of a table"):
                builder.add_table(name, {"x": [1]})
        with pytest.raises(ValueError, match="there is a part called 'main' already"):
            builder.add_artifact("main", picture_folder)
        builder.publish()
        with wd.dataset("ws/x", catalog=tmp_path / "cat") as old:
            with pytest.raises(DatasetError, match="no table 'mian' to keep") as caught:
                wd.DatasetBuilder("ws/y", catalog=tmp_path / "cat").keep(old, tables=["mian"])
            assert "main" in f"{caught.value}{caught.value.hint}"


def picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 30, 3), np.uint8)).save(out, kind)
    return out.getvalue()


def video() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for grey in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), grey * 20, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return out.getvalue()


@pytest.mark.filterwarnings("ignore")  # decoders may warn of what they then refuse
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM", "mp4"])
def test_damaged_media_are_refused_as_such_or_decoded(kind: str) -> None:
    """Whatever the decoders of others raise about damaged bytes is ours."""
    rng = random.Random(kind)
    sound = video() if kind == "mp4" else picture(kind)
    decode: Callable[[bytes], object] = (
        (lambda data: media.decode_video_frame(io.BytesIO(data), rng.choice([0.0, 0.5, 100.0]), kind))
        if kind == "mp4"
        else (lambda data: media.decode_pil(data, kind))
    )
    decode(sound)
    refused = []
    for _ in range(enough_examples(60)):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(min(len(data), 300))] = rng.randrange(256)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data))]
        try:
            decode(bytes(data))
        except WarpError as error:
            refused.append(str(error))
    assert refused
    assert all(kind in each for each in refused)


def test_a_picture_that_claims_too_much_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media, "MAX_PIXELS", 700)
    with pytest.raises(CorruptLayoutError, match="30x24 pixels is refused: bomb"):
        media.decode_pil(picture("PNG"), "bomb")


def test_times_of_a_video() -> None:
    data = video()
    for time_s, grey in ((0, 0), (0.31, 60), (0.9, 180), (1e300, 180)):
        shown = media.decode_video_frame(io.BytesIO(data), time_s, "v")
        assert abs(int(shown.mean()) - grey) < 4
    for time_s in (-0.1, math.nan, math.inf, -math.inf):
        with pytest.raises(TimeRangeError, match="no frame at"):
            media.decode_video_frame(io.BytesIO(data), time_s, "v")
