"""Views of images: every kind of frame is cropped and scaled as the slow arithmetic says, within rounding."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.episodes.sources.cameras import ImageRequest, empty_images
from warpdata.formats.episodedir.documents import FrameShape
from warpdata.formats.episodedir.pictures import PictureDecoder
from warpdata.formats.episodedir.scaling import scale_array, view_image
from warpdata.formats.episodedir.video import scale_image


def frame_of(height: int, width: int, channels: int = 3) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 100 * np.sin((x + 9 * c) / 11) * np.cos((y - 5 * c) / 13) for c in range(channels)]
    return np.stack(planes, -1).astype(np.uint8)


VIEWS = {
    "stretch": (None, (48, 64), "stretch"),
    "pad": (None, (60, 40), "pad"),
    "cover": (None, (40, 30), "crop"),
    "even crop": ((2, 4, 60, 80), (30, 40), "stretch"),
    "odd crop": ((3, 5, 61, 77), (30, 40), "stretch"),
    "only a crop": ((31, 33), None, "stretch"),
    "larger": (None, (200, 260), "stretch"),
}


def expected(frame: np.ndarray, view: Any) -> np.ndarray:
    out = np.empty((view.height, view.width, *frame.shape[2:]), frame.dtype)
    scale_array(frame, view, out)
    return out


def scaled(signal: wd.VideoSignal, records: np.ndarray, view: Any, timings: dict[str, float]) -> np.ndarray:
    out = empty_images(signal.meta, records, view)
    signal.read_images([ImageRequest(records, view, out)], timings)
    return out


def assert_near(image: np.ndarray, frame: np.ndarray, view: Any, *, mean: float) -> None:
    wanted = expected(frame, view)
    difference = np.abs(image.astype(int) - wanted.astype(int))
    assert image.shape == wanted.shape
    assert difference.mean() <= mean, difference.mean()
    bars = np.ones(image.shape[:2], bool)
    bars[view.target.slices] = False
    assert not image[bars].any()


@pytest.mark.parametrize("case", VIEWS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_arrays_are_scaled_within_rounding(case: str, channels: int) -> None:
    frame = frame_of(97, 131, channels)
    view = view_image(97, 131, *VIEWS[case])
    out = np.empty((view.height, view.width, channels), np.uint8)
    scale_image(frame, view, out)
    assert_near(out, frame, view, mean=1.0)
    if channels == 1:  # also without an axis of channels
        plane = np.empty(out.shape[:2], np.uint8)
        scale_image(frame[..., 0], view, plane)
        assert np.array_equal(plane, out[..., 0])


@pytest.mark.parametrize("case", VIEWS)
@pytest.mark.parametrize("size", [(96, 128), (97, 131)])
@pytest.mark.parametrize("options", [{"gop_size": 4}, {"codec": "ffv1"}], ids=["h264", "ffv1"])
def test_videos_are_scaled_where_they_are_decoded(tmp_path: Path, case: str, size: Any, options: Any) -> None:
    with wd.LocalDatasetWriter(tmp_path, video=wd.VideoOptions(**options)).new_episode() as writer:
        for step in range(6):
            writer.append("cam", np.roll(frame_of(*size), step, 1), step * 10)
    signal = wd.open_recordings(tmp_path)[0]["cam"]
    view, timings = view_image(*size, *VIEWS[case]), {"decode": 0.0, "scale": 0.0}
    records = np.array([0, 3, 5])
    images = scaled(signal, records, view, timings)
    for record, image in zip(records.tolist(), images, strict=True):
        # Chroma of half the resolution is scaled as it is stored, the reference scales it after it was doubled.
        assert_near(
            image, signal.rows(record, record + 1)[0], view, mean=2.5 if "gop_size" in options else 1.0
        )
    assert timings["decode"] > 0
    assert timings["scale"] > 0


@pytest.mark.parametrize("case", VIEWS)
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_pictures_are_scaled_where_they_are_decoded(case: str, kind: str) -> None:
    from PIL import Image

    frame = frame_of(192, 256)
    sink = io.BytesIO()
    Image.fromarray(frame).save(sink, kind, **({"quality": 95} if kind == "JPEG" else {}))
    codec = {"PNG": "png", "JPEG": "mjpeg"}[kind]
    decoder = PictureDecoder(codec, FrameShape(192, 256, 3, "uint8"))
    view = view_image(192, 256, *VIEWS[case])
    out = np.empty((view.height, view.width, 3), np.uint8)
    decoder.pixels(sink.getvalue(), out, view)
    assert_near(out, frame, view, mean=1.0 if kind == "PNG" else 3.0)


def test_depth_is_scaled_exactly_as_numbers(tmp_path: Path) -> None:
    depth = (np.add.outer(np.arange(40), np.arange(60)) * 600).astype(np.uint16)
    with wd.LocalDatasetWriter(tmp_path).new_episode() as writer:
        writer.append("depth", depth, 0)
    signal = wd.open_recordings(tmp_path)[0]["depth"]
    view = view_image(40, 60, None, (20, 30), "stretch")
    image = scaled(signal, np.array([0]), view, {"decode": 0.0, "scale": 0.0})[0]
    assert np.array_equal(image, expected(depth, view))


@pytest.mark.parametrize("crop", [(0, 0, 98, 10), (90, 0, 8, 10), (98, 20), (20, 132)])
def test_a_crop_that_does_not_fit_is_refused(crop: Any) -> None:
    with pytest.raises(ValueError, match="does not fit images of 97 x 131"):
        view_image(97, 131, crop, None, "stretch")
