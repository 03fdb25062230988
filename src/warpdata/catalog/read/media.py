"""Decode pictures, sound and video from bytes. The adapter of Pillow, soundfile and PyAV."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError, MissingExtraError, TimeRangeError
from warpdata.formats.episodedir.video import open_container, settle_colours

MAX_PIXELS = 1 << 28
"""A picture that claims more is refused before it is decoded."""

MAX_SAMPLES = 1 << 32
"""Sound that claims more, of all channels together, is refused before memory is taken for it."""


def decode_pil(data: bytes, name: str) -> Any:
    """A decoded Pillow image."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtraError.for_extra("Pillow", "image") from None
    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > MAX_PIXELS:
            raise CorruptLayoutError(
                f"a picture of {image.width}x{image.height} pixels is refused", path=name
            )
        image.load()
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise CorruptLayoutError(f"not a readable picture ({error})", path=name) from None
    return image


def decode_audio(data: bytes, name: str) -> tuple[NDArray[np.float32], int]:
    """Samples as float32, (frames,) or (frames, channels), and the sample rate."""
    try:
        import soundfile
    except ImportError:
        raise MissingExtraError.for_extra("soundfile", "audio") from None
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            if sound.frames * sound.channels > MAX_SAMPLES:
                fact = f"sound of {sound.frames} samples of {sound.channels} channels is refused"
                raise CorruptLayoutError(fact, path=name)
            # In one go: in pieces, MP3 would start each of them again and give other samples.
            return sound.read(dtype="float32"), int(sound.samplerate)
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        why = getattr(error, "error_string", error)  # the whole text has the address of an object
        raise CorruptLayoutError(f"not readable sound ({why})", path=name) from None


def decode_video_frame(file: io.BufferedIOBase, time_s: float, name: str) -> NDArray[np.uint8]:
    """The frame shown at `time_s` as (height, width, 3) RGB."""
    try:
        import av
    except ImportError:
        raise MissingExtraError.for_extra("PyAV", "video") from None
    shown = None
    try:
        with open_container(file, name) as container:
            if not container.streams.video:
                raise CorruptLayoutError("the file has no video stream", path=name)
            if not 0 <= time_s < math.inf:
                raise TimeRangeError(f"no frame at {time_s} s", path=name)
            stream = container.streams.video[0]
            base = float(stream.time_base)
            container.seek(int(min(time_s / base, 1 << 62)), stream=stream, backward=True)
            for frame in container.decode(stream):
                is_later = frame.pts is not None and frame.pts * base > time_s + base / 2
                shown = frame if shown is None or not is_later else shown
                if is_later:
                    break
            if shown is None:
                raise TimeRangeError(f"no frame at {time_s} s", path=name)
            settle_colours(shown)
            pixels: NDArray[np.uint8] = shown.to_ndarray(format="rgb24")
            return pixels
    except av.FFmpegError as error:
        raise CorruptLayoutError(f"not a readable video ({error})", path=name) from None


def video_codecs() -> list[str]:
    """The common video codecs that can be decoded here."""
    try:
        import av
    except ImportError:
        return []
    return [name for name in ("h264", "hevc", "av1", "vp9", "mjpeg", "ffv1") if name in av.codecs_available]
