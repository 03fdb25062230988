"""Without torch the error says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.contracts.row_source import write_shards
from warpdata.corpora.source import MmapShardSource
from warpdata.errors import MissingExtraError
from warpdata.ordering.torch import as_iterable_dataset


def test_missing_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    as_iterable_dataset.cache_clear()
    with (
        MmapShardSource.open(write_shards(tmp_path, [3])) as source,
        pytest.raises(MissingExtraError, match="torch is not installed") as caught,
    ):
        source.to_torch(batch_size=2)
    assert "warpdata[torch]" in caught.value.hint
