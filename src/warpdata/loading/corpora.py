"""Rows of an activation corpus as a source of a loader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.forks import PerProcess, ThreadLock
from warpdata.corpora.rows import decode_rows, raw_dtype
from warpdata.corpora.shuffled import RowBlocks, default_block_rows
from warpdata.corpora.source import FixedOrderSource
from warpdata.loading.alignment import Int64s
from warpdata.loading.batch import Batch
from warpdata.loading.episode_reader import Timings
from warpdata.loading.field import Field, FieldSchema
from warpdata.loading.source import RowSource, Threads
from warpdata.ordering.blocks import BlockShape


class CorpusSource(RowSource):
    """Rows of an activation corpus: one field, `rows`; `sample_id` is the row id."""

    _KEPT_BLOCKS = 160

    def __init__(self, corpus: FixedOrderSource) -> None:
        self.corpus = corpus
        width, dtype = corpus.width, corpus.dtype
        self._schema = {"rows": FieldSchema("rows", Field("rows"), False, dtype, (width,), is_text=False)}
        self._blocks = PerProcess(lambda: (ThreadLock(), RowBlocks(corpus, default_block_rows(corpus))))

    @property
    def schema(self) -> Mapping[str, FieldSchema]:
        """The field `rows`."""
        return self._schema

    @property
    def data_id(self) -> str:
        """The hash of the checksums of corpus.json, or else of the names and sizes of the shards."""
        shards, record = self.corpus.shards, self.corpus.shards.record
        facts: list[Any] = [shards.width, shards.dtype.name]
        if record is not None:
            facts += [shard.sha256 for shard in record.shards]
        else:
            facts += [[os.path.basename(info.name), info.n_rows, info.file_bytes] for info in shards.shards]
        return sha256_hex(dump_json(facts))[:32]

    @property
    def id(self) -> str:
        """The hash of the data and the element type of the rows."""
        return sha256_hex(dump_json([self.data_id, self.corpus.dtype.name]))[:32]

    def __len__(self) -> int:
        return self.corpus.total_rows

    def block_shape(self, total: int, shuffle: Any, share: float = 1.0) -> BlockShape:
        """Blocks of checksummed runs, as ShuffledRows has them."""
        shape = super().block_shape(total, shuffle, share)
        return shape if shape.block_rows < 2 else BlockShape(total, default_block_rows(self.corpus), 64)

    def read(
        self,
        samples: Int64s,
        timings: Timings,  # noqa: ARG002
        threads: Threads = None,  # noqa: ARG002
        block_rows: int = 1,  # noqa: ARG002
    ) -> Batch:
        """Rows by id; the blocks used last stay in memory."""
        corpus, (lock, blocks) = self.corpus, self._blocks()
        order = np.argsort(samples, kind="stable")
        raw = np.empty((len(samples), corpus.width), raw_dtype(corpus.shards.dtype))
        with lock:
            blocks.read(samples[order], raw)
            while len(blocks.held) > self._KEPT_BLOCKS:
                blocks.release(next(iter(blocks.held)))
        rows = np.empty(raw.shape, corpus.dtype)
        decoded = np.empty_like(rows)
        decode_rows(raw, decoded, corpus.shards.dtype)
        rows[order] = decoded
        zeros = np.zeros(len(samples), np.int64)
        return Batch({"rows": rows}, {"rows": zeros == 0}, {"rows": zeros}, samples, zeros.copy(), zeros - 1)

    def plan(self) -> dict[str, Any]:
        """The folder of the corpus."""
        return {"id": self.id, "corpus": self.corpus.shards.folder}

    def origins(self, samples: Int64s) -> list[dict[str, Any]]:
        """The shard of each row."""
        shards = self.corpus.shards
        numbers = shards.first_rows().searchsorted(samples, "right") - 1
        return [
            {
                "dataset": shards.folder or os.path.dirname(shards.shards[number].name),
                "version": None,
                "episode_id": os.path.basename(shards.shards[number].name),
                "ts_ns": 0,
                "blob": None,
                "content": self.data_id,
            }
            for number in numbers.tolist()
        ]
