"""The shape of a shuffle: everything its order depends on besides seed and epoch."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_BLOCK_BYTES = 1 << 20
DEFAULT_WINDOW_BLOCKS = 64
ORDER_VERSION = 1
MAX_COUNT = (1 << 63) - 1
MAX_SECTIONS = 32
"""More sections cost time in every batch; ranks beyond this number share sections."""


@dataclass(frozen=True, slots=True)
class ShuffleShape:
    """Rows per shard, cut into blocks, dealt to sections, mixed in windows of whole blocks."""

    shard_rows: tuple[int, ...]
    block_rows: int
    sections: int
    section_blocks: int

    def __post_init__(self) -> None:
        if min(self.block_rows, self.sections, self.section_blocks) < 1:
            raise ValueError(
                "a shuffle needs at least one row per block, one section and one block per window"
            )
        if max(self.block_rows, self.sections, self.section_blocks) > MAX_COUNT:
            raise ValueError(f"a shuffle counts rows, sections and blocks up to {MAX_COUNT}")

    @property
    def total_rows(self) -> int:
        """Rows of one epoch."""
        return sum(self.shard_rows)

    @property
    def window_rows(self) -> int:
        """The most rows one section mixes at a time."""
        return self.block_rows * self.section_blocks

    @property
    def most_window_rows(self) -> int:
        """The most rows a window of this corpus really has: a section may be shorter than a window."""
        return min(self.window_rows, -(-self.total_rows // self.sections))

    @property
    def pool_rows(self) -> int:
        """The most rows in play at a time over all sections."""
        return self.window_rows * self.sections

    def fingerprint(self) -> str:
        """Eight characters that differ for shapes whose orders differ."""
        text = f"{ORDER_VERSION}|{self.block_rows}|{self.sections}|{self.section_blocks}|{self.shard_rows}"
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:6]).decode()


def choose_sections(batch_size: int, window_blocks: int) -> int:
    """The largest divisor of the global batch, up to MAX_SECTIONS, that leaves every section a block."""
    most = min(batch_size, window_blocks, MAX_SECTIONS)
    return max(sections for sections in range(1, most + 1) if batch_size % sections == 0)


def default_block_rows(row_bytes: int) -> int:
    """Rows of a block of about 1 MiB: reading such blocks in any order runs at sequential speed."""
    return max(1, DEFAULT_BLOCK_BYTES // max(1, row_bytes))


def shuffle_shape(
    shard_rows: Sequence[int], *, batch_size: int, block_rows: int, window_blocks: int, sections: int | None
) -> ShuffleShape:
    """The shape for a global batch: `window_blocks` blocks in play, spread over the sections."""
    if batch_size < 1 or window_blocks < 1:
        raise ValueError("batch_size and window_blocks are at least 1")
    chosen = choose_sections(batch_size, window_blocks) if sections is None else sections
    return ShuffleShape(tuple(shard_rows), block_rows, chosen, max(1, window_blocks // max(1, chosen)))
