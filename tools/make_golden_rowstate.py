"""Make the golden files of row state: `python tools/make_golden_rowstate.py [folder]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from warpdata.corpora.warm_cache import RowWarmCache, WarmRows

HERE = Path(__file__).resolve().parent.parent


def make(folder: Path) -> None:
    """Two batches, one row written twice, one checkpoint."""
    with RowWarmCache(folder, model="golden", total_rows=40) as cache:
        cache.put(WarmRows.from_rows([3, 7, 39], [[0.5, -1.25], [], [2.0]], [[1, 9], [4], []], [5, 0, 2]))
        cache.put(WarmRows.from_rows([7], [[8.0, 0.125, -3.0]], [[2, 6, 7]], [11]))
        found = cache.get(np.arange(40))
    expected = {
        int(row): [found.latents_of(row).tolist(), found.active_of(row).tolist(), int(found.iterations[row])]
        for row in (3, 7, 39)
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "tests" / "golden" / "rowstate")
