"""Pictures, sparklines and durations as text for a terminal.

Pictures use the protocols of kitty, iTerm and sixel, and blocks of two pixels everywhere else.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import encode_png

Pixels = NDArray[np.uint8]

_KITTY_PIECE = 4096
_LEVELS = 6
"""Steps per colour of the sixel palette."""


def picture_lines(pixels: Pixels, protocol: str, columns: int) -> str:
    """A picture for a terminal, at most this many columns wide."""
    if protocol not in ("kitty", "iterm"):
        return (_sixel if protocol == "sixel" else _blocks)(pixels, columns)
    data = base64.b64encode(encode_png(pixels)).decode()
    if protocol == "iterm":
        return f"\x1b]1337;File=inline=1;width={columns};preserveAspectRatio=1:{data}\a\n"
    pieces = [data[at : at + _KITTY_PIECE] for at in range(0, len(data), _KITTY_PIECE)]
    out = ""
    for number, piece in enumerate(pieces):
        keys = f"a=T,f=100,c={columns}," if number == 0 else ""
        out += f"\x1b_G{keys}m={int(number < len(pieces) - 1)};{piece}\x1b\\"
    return out + "\n"


def _sixel(pixels: Pixels, columns: int) -> str:
    """Six rows of pixels at a time, each colour of a palette in a pass of its own."""
    colour = _resize(pixels, columns * 8)
    steps = (colour.astype(np.int64) * (_LEVELS - 1) + 127) // 255
    index = (steps[:, :, 0] * _LEVELS + steps[:, :, 1]) * _LEVELS + steps[:, :, 2]
    out = [f'\x1bPq"1;1;{index.shape[1]};{index.shape[0]}']
    for number in np.unique(index).tolist():
        red, green, blue = (number // _LEVELS**2, number // _LEVELS % _LEVELS, number % _LEVELS)
        out.append(
            f"#{number};2;" + ";".join(str(level * 100 // (_LEVELS - 1)) for level in (red, green, blue))
        )
    for top in range(0, len(index), 6):
        band = index[top : top + 6]
        weights = 1 << np.arange(len(band))
        passes = []
        for number in np.unique(band).tolist():
            bits = ((band == number) * weights[:, None]).sum(axis=0)
            runs = [(chr(63 + bit), len(list(run))) for bit, run in itertools.groupby(bits.tolist())]
            signs = [f"!{count}{sign}" if count > 3 else sign * count for sign, count in runs]
            passes.append(f"#{number}" + "".join(signs))
        out.append("$".join(passes) + "-")
    return "".join(out) + "\x1b\\\n"


def _blocks(pixels: Pixels, columns: int) -> str:
    """Half blocks: the upper pixel is the foreground colour, the lower one the background."""
    colour = _resize(pixels, columns)
    if len(colour) % 2:
        colour = np.concatenate([colour, colour[-1:]])
    lines = []
    for upper, lower in zip(colour[::2].tolist(), colour[1::2].tolist(), strict=True):
        cells = [
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(upper, lower, strict=True)
        ]
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines) + "\n"


def _resize(pixels: Pixels, width: int) -> Pixels:
    """Pixels in colour, picked for this width; the height follows."""
    pixels = pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)
    width = min(width, pixels.shape[1])
    height = max(1, round(pixels.shape[0] * width / pixels.shape[1]))
    rows = (np.arange(height) * pixels.shape[0]) // height
    picked: Pixels = pixels[rows][:, (np.arange(width) * pixels.shape[1]) // width]
    return picked


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Numbers as at most `width` bars; a value that is not finite is a gap."""
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    picked = [values[int(i * step)] for i in range(min(width, len(values)))]
    finite = [value for value in picked if math.isfinite(value)]
    if not finite:
        return "·" * len(picked)
    low, span = min(finite), max(finite) - min(finite)
    bars = [
        "·" if not math.isfinite(value) else _BARS[int((value - low) / span * 7.999)] if span else _BARS[0]
        for value in picked
    ]
    return "".join(bars)


def human_time(duration_ns: int | None) -> str:
    """A duration in a readable unit."""
    if duration_ns is None:
        return "-"
    seconds = duration_ns / 1e9
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
