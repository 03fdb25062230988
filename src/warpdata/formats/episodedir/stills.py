"""Single encoded pictures, JPEG or PNG: many of one kind decoded at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.picture_decoder import PictureDecoder
from warpdata.formats.episodedir.picture_head import MAX_PIXELS, Still, check_same, is_still, still_of

__all__ = ["MAX_PIXELS", "Still", "check_same", "decode_stills", "is_still", "still_of"]


def decode_stills(
    pictures: list[bytes], still: Still, path: str, numbers: Sequence[int]
) -> NDArray[np.generic]:
    """Pictures of one kind as one batch; one that is of another kind, or damaged, is named by its number."""
    out = np.empty((len(pictures), *still.shape.shape), still.shape.dtype)
    decoder = PictureDecoder(still.codec, still.shape)
    for number, data, pixels in zip(numbers, pictures, out, strict=True):
        try:
            if not decoder.quickly(data, pixels):
                check_same(data, still, f"{path} (picture {number})")
                decoder.pixels(data, pixels)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(error.message, path=f"{path} (picture {number})") from None
    return out
