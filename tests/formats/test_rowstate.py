"""Row state: round trip, SPEC and layout, every bit flip and truncation, golden bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import OWN_GOLDEN, ROOT
from tests.formats.spec_tables import assert_spec_matches
from tests.sweeps import enough_examples, thinned
from warpdata.corpora.warm_cache import RowWarmCache, WarmRows
from warpdata.errors import FormatError
from warpdata.formats.rowstate import layout

SPEC = ROOT / "src/warpdata/formats/rowstate/SPEC.md"
GOLDEN = OWN_GOLDEN / "rowstate"
COMPAT = ROOT / "tests/compat/rowstate/0.1"
TOTAL = 40

ROWS = st.lists(
    st.tuples(
        st.integers(0, TOTAL - 1), st.lists(st.floats(allow_nan=False), max_size=4),
        st.lists(st.integers(0, 2**32 - 1), max_size=4), st.integers(0, 2**32 - 1),
    ),
    max_size=8,
)  # fmt: skip


def warm(rows: list[tuple[int, list[float], list[int], int]]) -> WarmRows:
    ids, latents, active, iterations = zip(*rows, strict=True) if rows else ((), (), (), ())
    return WarmRows.from_rows(np.array(ids, np.int64), latents, active, np.array(iterations, np.uint32))


def everything(cache: RowWarmCache) -> dict[int, tuple[list[float], list[int], int]]:
    found = cache.get(np.arange(cache.total_rows))
    assert found.found is not None
    return {
        row: (found.latents_of(row).tolist(), found.active_of(row).tolist(), int(found.iterations[row]))
        for row in np.flatnonzero(found.found).tolist()
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=enough_examples(60))
@given(batches=st.lists(ROWS, max_size=5))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple]]) -> None:
    folder = tmp_path_factory.mktemp("w")
    wanted: dict[int, tuple] = {}
    with RowWarmCache(folder, model="m", total_rows=TOTAL) as cache:
        for rows in batches:
            cache.put(warm(rows))
            wanted.update({row: (latents, active, n) for row, latents, active, n in rows})
            assert everything(cache) == wanted
        assert len(cache) == len(wanted)
    with RowWarmCache(folder, model="m", total_rows=TOTAL) as cache:
        assert everything(cache) == wanted


def test_spec_and_layout_agree() -> None:
    assert_spec_matches(SPEC, "Log header", layout.LogHeader, layout.LOG_HEADER)
    assert_spec_matches(SPEC, "Frame header", layout.FrameHeader, layout.FRAME_HEADER)
    assert_spec_matches(SPEC, "Checkpoint header", layout.CheckpointHeader, layout.CHECKPOINT_HEADER)


def golden_cache(source: Path, folder: Path) -> RowWarmCache:
    shutil.copytree(source, folder)
    return RowWarmCache(folder, model="golden", total_rows=TOTAL)


@pytest.mark.parametrize("source", [GOLDEN, COMPAT], ids=["golden", "compat-0.1"])
def test_golden_files(source: Path, tmp_path: Path) -> None:
    wanted = json.loads((source / "expected.json").read_text())
    found = everything(golden_cache(source, tmp_path / "c"))
    assert {str(row): list(state) for row, state in found.items()} == wanted


def test_the_tool_makes_the_golden_files(tmp_path: Path) -> None:
    from tools.make_golden_rowstate import make

    make(tmp_path)
    for path in sorted(each for each in GOLDEN.rglob("*") if each.is_file()):
        assert (tmp_path / path.relative_to(GOLDEN)).read_bytes() == path.read_bytes()


def test_every_flip_and_truncation_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    wanted = everything(golden_cache(GOLDEN, folder))
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix != ".json"):
        good = path.read_bytes()
        damages = [good[:size] for size in range(len(good))]
        for bit in range(len(good) * 8):
            damages.append(good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :])
        for damaged in thinned(damages, 300):
            path.write_bytes(damaged)
            try:
                cache = RowWarmCache(folder, model="golden", total_rows=TOTAL)
            except FormatError:
                continue
            try:
                assert everything(cache) == wanted
            except FormatError:
                pass
            finally:
                cache.close()
        path.write_bytes(good)
