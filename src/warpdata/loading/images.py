"""Images of fields: views of the frames of any signal, and ranges of their numbers."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.sources.cameras import ImageRequest, StillsSignal, VideoSignal, empty_images
from warpdata.formats.episodedir.video import scale_image
from warpdata.timeline.memory import JoinedSignal
from warpdata.timeline.signal import Signal, SignalView

IMAGE_SCALES = ("0..1", "-1..1", "imagenet")
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)


def is_encoded(signal: Signal) -> bool:
    """Whether the frames of a signal have to be decoded."""
    if isinstance(signal, SignalView):
        return is_encoded(signal.base)
    if isinstance(signal, JoinedSignal):
        return is_encoded(signal.parts[0])
    return isinstance(signal, VideoSignal | StillsSignal)


def read_images(
    signal: Signal, requests: Sequence[ImageRequest], timings: MutableMapping[str, float]
) -> None:
    """Write images of records of a signal; frames are cropped and scaled where they are decoded, each decoded once."""
    if isinstance(signal, VideoSignal | StillsSignal):
        signal.read_images(requests, timings)
    elif isinstance(signal, SignalView):
        moved = [request._replace(records=signal._base_rows(request.records)) for request in requests]
        read_images(signal.base, moved, timings)
    elif isinstance(signal, JoinedSignal):
        _read_joined(signal, requests, timings)
    else:
        for request in requests:
            began = perf_counter()
            frames = signal._values_kept(request.records)
            timings["decode"] += perf_counter() - began
            began = perf_counter()
            assert isinstance(request.out, np.ndarray)
            if request.view is None:
                request.out[...] = frames
            else:
                for frame, image in zip(frames, request.out, strict=True):
                    scale_image(frame, request.view, image)
            timings["scale"] += perf_counter() - began


def _read_joined(
    signal: JoinedSignal, requests: Sequence[ImageRequest], timings: MutableMapping[str, float]
) -> None:
    for part, first in zip(signal.parts, signal._starts.tolist(), strict=False):
        inside = [(request.records >= first) & (request.records < first + len(part)) for request in requests]
        own = []
        for request, here in zip(requests, inside, strict=True):
            records = request.records[here] - first
            images: Any = [None] * len(records)
            if not isinstance(request.out, list):
                images = empty_images(signal.meta, records, request.view)
            planes = None if request.planes is None else request.planes[here]
            own.append(ImageRequest(records, request.view, images, planes))
        if any(len(request.records) for request in own):
            read_images(part, own, timings)
            for request, here, each in zip(requests, inside, own, strict=True):
                for place, image in zip(np.flatnonzero(here).tolist(), each.out, strict=True):
                    request.out[place] = image


def scale_values(images: NDArray[Any], scale: str) -> NDArray[np.float32]:
    """Values of 8-bit images with channels last as floats in a range, or normalised as ImageNet."""
    values: NDArray[np.float32] = images.astype(np.float32) / np.float32(255)
    if scale == "-1..1":
        return np.asarray(values * 2 - 1, np.float32)
    if scale == "imagenet":
        return np.asarray((values - _MEAN[: values.shape[-1]]) / _STD[: values.shape[-1]], np.float32)
    return values
