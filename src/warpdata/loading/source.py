"""Sources of a loader: numbered samples, read in any order; windows are one, rows of a corpus another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from warpdata.bytekit.process.forks import cached_property
from warpdata.bytekit.process.threads import ThreadPool
from warpdata.errors import WarpError
from warpdata.loading.alignment import Int64s
from warpdata.loading.batch import Batch
from warpdata.loading.episode_reader import Timings
from warpdata.loading.field import Field, FieldSchema
from warpdata.ordering.blocks import BlockShape, check_shuffle, stream_key

Threads = tuple[ThreadPool, int] | None
"""A pool and how many of its threads may read one batch."""

BLOCK_BYTES = 1 << 20
FEWEST, MOST, IN_PLAY = 16, 256, 256
"""Samples of a block: enough to read a stretch at once, few enough to mix well. And blocks in play."""
IMAGES_BYTES = 152 << 20
"""Images of the blocks in play: they should fit the cache of decoded frames."""
IMAGE_BLOCKS, FEWEST_IMAGES, MOST_IMAGES = 40, 8, 48
FEWEST_IN_PLAY, MOST_IN_PLAY, FEWEST_OF_SOURCE = 16, 128, 2
"""Of images: about how many blocks, how many samples in each, and bounds of the blocks in play."""


def sample_rng(seed: int, epoch: int, sample_id: int, source: int = 0) -> np.random.Generator:
    """A generator that depends on seed, epoch and sample alone (and the source, in a mixture)."""
    parts = (seed, epoch, source) if source else (seed, epoch)
    key = np.array([stream_key(*parts), sample_id], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


class Delivered(NamedTuple):
    """A field after its transform: element type, shape in one sample, and whether the first axis is rows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    has_axis: bool
    is_image: bool
    is_text: bool
    is_chw: bool = False
    is_ragged: bool = False

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.shape[1:] if self.has_axis else self.shape


class RowSource(ABC):
    """Numbered samples: their schema and identity, and how to read some of them as a batch."""

    edges: str = "pad"
    follow: bool = False

    @property
    @abstractmethod
    def id(self) -> str:
        """The hash of everything the samples depend on."""

    @property
    @abstractmethod
    def data_id(self) -> str:
        """The hash of the stored data alone, without options."""

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, FieldSchema]:
        """Element type and shape of every field."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def read(self, samples: Int64s, timings: Timings, threads: Threads = None, block_rows: int = 1) -> Batch:
        """Samples as one batch, in the order given; those of a block of `block_rows` are wanted soon as well."""

    @abstractmethod
    def plan(self) -> dict[str, Any]:
        """A description as JSON from which the source can be opened again."""

    @abstractmethod
    def origins(self, samples: Int64s) -> list[dict[str, Any]]:
        """Where each sample comes from: dataset, version, episode, time and blob."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The field of every name."""
        return {name: schema.field for name, schema in self.schema.items()}

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return sum(schema.sample_bytes for schema in self.schema.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of every field."""
        return sum(schema.row_bytes for schema in self.schema.values())

    @property
    def more_rows(self) -> int:
        """Images that a block needs beyond one for each of its samples: those before the first or after the last."""
        return max((schema.rows for schema in self.schema.values() if schema.is_image), default=1) - 1

    def block_shape(self, total: int, shuffle: Any, share: float = 1.0) -> BlockShape:
        """The blocks of a shuffle: a function of the fields alone, never of where the bytes are stored.

        Of images as many blocks are in play as the cache of decoded frames holds; the sources of a mixture have their
        shares of it.
        """
        check_shuffle(shuffle)
        if shuffle is False or shuffle == "full":
            return BlockShape(total, 0 if shuffle is False else 1, 1)
        row_bytes = max(1, self.row_bytes)
        if not any(schema.is_image for schema in self.schema.values()):
            return BlockShape(total, max(FEWEST, min(MOST, BLOCK_BYTES // row_bytes)), IN_PLAY)
        samples = IMAGES_BYTES // row_bytes
        rows = max(FEWEST_IMAGES, min(MOST_IMAGES, samples // IMAGE_BLOCKS))
        in_play = max(FEWEST_IN_PLAY, min(MOST_IN_PLAY, samples // (rows + self.more_rows)))
        return BlockShape(total, rows, max(FEWEST_OF_SOURCE, round(in_play * share)))

    def transform(self, batch: Batch, epochs: Int64s, seed: int, number: int = 0) -> bool:
        """Apply the transforms of the fields to a batch that was read; returns whether there were any."""
        names = [name for name, option in self.fields.items() if option.transform is not None]
        for name in names if batch.size else ():
            change = self.fields[name].transform
            assert change is not None
            numbers = zip(batch[name], epochs.tolist(), batch.sample_id.tolist(), strict=True)
            rows = [np.asarray(change(v, sample_rng(seed, e, sample, number))) for v, e, sample in numbers]
            batch[name] = np.stack(rows)
        return bool(names)

    @cached_property
    def delivered(self) -> dict[str, Delivered]:
        """Type and shape of every field after its transform, found by transforming the first sample."""
        delivered = {}
        for name, known in self.schema.items():
            kind = (known.is_image, known.is_text, known.field.layout == "chw", known.is_ragged)
            delivered[name] = Delivered(known.dtype, known.sample_shape, known.has_axis, *kind)
        changed = [name for name, option in self.fields.items() if option.transform is not None]
        if changed and len(self):
            try:
                batch = self.read(np.zeros(1, np.int64), defaultdict(float))
            except WarpError:  # the loader reports or skips it
                return delivered
            self.transform(batch, np.zeros(1, np.int64), 0)
            for name in changed:
                before, values = delivered[name], batch[name][0]
                is_same_kind = values.ndim == len(before.shape)
                delivered[name] = before._replace(
                    dtype=batch[name].dtype,
                    shape=values.shape,
                    has_axis=before.has_axis and values.ndim > 0,
                    is_image=before.is_image and is_same_kind,
                    is_ragged=before.is_ragged and is_same_kind,
                )
        return delivered

    def is_remote(self) -> bool:
        """Whether reading waits for a network."""
        return False

    def prefetch(self, samples: Int64s, threads: ThreadPool, block_rows: int = 1) -> None:  # noqa: B027
        """Bring the bytes of samples into the cache."""

    def damage(self, samples: Int64s) -> dict[int, tuple[str, str]]:  # noqa: ARG002
        """Samples (by their place in the list) of damaged episodes, with the episode and the reason."""
        return {}

    def only(self, names: Sequence[str]) -> RowSource:  # noqa: ARG002
        """The same samples with some of the fields."""
        return self

    def without_damage(self) -> RowSource:
        """The same samples without those of damaged episodes."""
        return self

    def labels(self, item: str) -> list[Any]:
        """The value of a static item of each episode."""
        raise KeyError(f"{type(self).__name__} has no static item {item!r}")

    def part_of(self, label: Any, item: str) -> RowSource:  # noqa: ARG002
        """The samples of the episodes with a value of a static item."""
        raise KeyError(f"{type(self).__name__} has no static item {item!r}")

    @property
    def unreadable(self) -> dict[str, str]:
        """Parts that have no samples because they cannot be read, with the reason."""
        return {}
