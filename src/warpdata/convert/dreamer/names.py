"""Names of DreamerV3's files: `<time>-<uuid>-<successor>-<length>.npz`; of older ones, an episode each."""

from __future__ import annotations

import re
from dataclasses import dataclass

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
NOBODY = "0" * 22
_CHUNK = re.compile(r"(\d{8}T\d{6}F\d{6})-([0-9a-zA-Z]{22})-([0-9a-zA-Z]{22})-(\d{1,9})\.npz")
_EPISODE = re.compile(r"(\d{8}T\d{6})-([0-9a-zA-Z]+)-(\d{1,9})(?:-[01])?\.npz")


@dataclass(frozen=True, slots=True)
class ChunkName:
    """A chunk of a stream: when it was begun, who it is, who comes next, how many rows it has."""

    time: str
    uuid: str
    successor: str
    length: int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.time}-{self.uuid}-{self.successor}-{self.length}.npz"


def chunk_name(file: str) -> ChunkName | None:
    """What the name of a file says, if it is that of a chunk."""
    found = _CHUNK.fullmatch(file)
    return None if found is None else ChunkName(found[1], found[2], found[3], int(found[4]))


def episode_name(file: str) -> ChunkName | None:
    """The same of a file that holds one episode, as older programs wrote them."""
    found = _EPISODE.fullmatch(file)
    return None if found is None else ChunkName(found[1], found[2], NOBODY, int(found[3]))


def uuid_text(raw: bytes) -> str:
    """Sixteen bytes as file names have them."""
    number, out = int.from_bytes(raw, "big"), ""
    for _ in range(22):
        number, digit = divmod(number, 62)
        out = ALPHABET[digit] + out
    return out


def uuid_bytes(text: str) -> bytes:
    """The sixteen bytes behind a name."""
    number = 0
    for letter in text:
        number = number * 62 + ALPHABET.index(letter)
    return number.to_bytes(17, "big")[1:]
