"""Single encoded pictures, JPEG or PNG: many of one kind decoded at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.images import FrameShape
from warpdata.formats.episodedir.picture_decoder import PictureDecoder
from warpdata.formats.episodedir.picture_head import MAX_PIXELS, Still, check_same, is_still, still_of

__all__ = ["MAX_PIXELS", "Still", "check_same", "decode_stills", "is_still", "still_of"]

_KINDS = 16
_IDLE: dict[tuple[str, FrameShape], list[PictureDecoder]] = {}
"""Decoders by the kind of their pictures: one that is made anew takes a third of the time of a small picture."""


def decode_stills(
    pictures: list[bytes], still: Still, path: str, numbers: Sequence[int]
) -> NDArray[np.generic]:
    """Pictures of one kind as one batch; one that is of another kind, or damaged, is named by its number."""
    out = np.empty((len(pictures), *still.shape.shape), still.shape.dtype)
    kind = still.codec, still.shape
    idle = _IDLE.setdefault(kind, [])
    try:
        decoder = idle.pop()
    except IndexError:  # none yet, or others are using them
        decoder = PictureDecoder(*kind)
    for number, data, pixels in zip(numbers, pictures, out, strict=True):
        try:
            if not decoder.quickly(data, pixels):
                check_same(data, still, f"{path} (picture {number})")
                decoder.pixels(data, pixels)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(error.message, path=f"{path} (picture {number})") from None
    idle.append(decoder)
    if len(_IDLE) > _KINDS:
        _IDLE.clear()
    return out
