"""How blocks are stored: the names callers use for it, and which block of an episode gets what."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from warpdata.errors import nearest
from warpdata.formats.wshard import layout

COMPRESSIONS = ("none", "zstd", "zstd-seekable", "lz4", "auto")
COMPATS = ("default", "strict")
_LEVELS = {"zstd": (-100, 22), "lz4": (0, 16)}


@dataclass(frozen=True, slots=True)
class Compression:
    """How to store one block: codec, level, and whether its frames can be entered by row.

    `"zstd"` is one frame, which every program reads; frames to enter are chosen by name or by `"auto"`.
    """

    codec: str = "none"
    level: int | None = None
    frames: str = "auto"

    def __post_init__(self) -> None:
        if self.codec not in ("none", "zstd", "lz4", "auto"):
            raise _unknown(self.codec)
        if self.frames not in ("auto", "seekable", "single"):
            raise ValueError(
                f"frames is auto, seekable or single, not {self.frames!r}."
                + nearest(str(self.frames), ("auto", "seekable", "single"))
            )
        if self.level is not None:
            self._check_level(self.level)

    def _check_level(self, level: int) -> None:
        if isinstance(level, bool) or not isinstance(level, int):
            raise TypeError(f"a compression level is a whole number, not {type(level).__name__}")
        if self.codec not in _LEVELS:
            raise ValueError(f"{self.codec!r} has no levels")
        low, high = _LEVELS[self.codec]
        if not low <= level <= high:
            raise ValueError(f"levels of {self.codec} go from {low} to {high}, not to {level}")

    @classmethod
    def parse(cls, text: str | Compression | None) -> Compression:
        """From a name, with a level behind a colon if wanted: `"zstd"`, `"zstd:19"`, `"zstd-seekable"`, `"auto"` …"""
        if text is None or isinstance(text, Compression):
            return text or cls()
        if not isinstance(text, str):
            raise TypeError(f"compression is a name such as 'zstd' or 'zstd:19', not {text!r}")
        name, colon, level = text.partition(":")
        if name not in COMPRESSIONS:
            raise _unknown(name)
        if colon and not level.removeprefix("-").isdecimal():
            raise ValueError(f"the level in {text!r} is not a number")
        frames = "seekable" if name == "zstd-seekable" else "auto"
        return cls(name.removesuffix("-seekable"), int(level) if level else None, frames)


def _unknown(name: object) -> ValueError:
    return ValueError(
        f"compression is {', '.join(COMPRESSIONS[:-1])} or {COMPRESSIONS[-1]}, not {name!r}."
        + nearest(str(name), COMPRESSIONS)
    )


CompressionChoice = str | Compression | Mapping[str, str | Compression] | None


def check_choice(choice: CompressionChoice) -> None:
    """Raise ValueError or TypeError unless this says how to store blocks, whichever there will be."""
    for each in choice.values() if isinstance(choice, Mapping) else (choice,):
        Compression.parse(each)


def check_compat(compat: str) -> str:
    """The word itself if it says what other programs must be able to read, or ValueError."""
    if compat not in COMPATS:
        raise ValueError(f"compat is 'default' or 'strict', not {compat!r}." + nearest(str(compat), COMPATS))
    return compat


class Chooser:
    """Which compression each block gets: one for all, or by channel id or block name."""

    def __init__(self, choice: CompressionChoice, blocks: Collection[str], *, strict: bool) -> None:
        self._strict = strict
        many = choice if isinstance(choice, Mapping) else {}
        self._by_name = {name: Compression.parse(each) for name, each in many.items()}
        self._default = Compression.parse(None if isinstance(choice, Mapping) else choice)
        known = {*blocks, *(block.partition("/")[2] for block in blocks)}
        for name in self._by_name:
            if name not in known:
                raise ValueError(
                    f"compression names no channel of this episode: {name!r}.{nearest(str(name), known)}"
                )

    @property
    def is_raw(self) -> bool:
        """Whether every block is stored as it is, so that the size of the file is known."""
        return self._default.codec == "none" and not self._by_name

    def __call__(self, block: str, raw_size: int) -> Compression:
        found = self._by_name.get(block) or self._by_name.get(block.partition("/")[2]) or self._default
        if not self._strict:
            return found
        # One existing reader refuses compressed blocks above this, raw ones it takes at any size.
        if raw_size > layout.STRICT_MAX_COMPRESSED_BYTES:
            return Compression()
        return Compression(found.codec, found.level, "single")
