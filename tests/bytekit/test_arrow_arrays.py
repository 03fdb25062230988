"""Numbers, truths and text between numpy and Arrow, against pyarrow's own ways."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from warpdata.bytekit.arrow_arrays import text_to_arrow, to_arrow, to_numpy

DTYPES = st.sampled_from(
    ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?", ">i4", "<M8[ns]"]
)


@given(st.data(), st.integers(0, 40), st.integers(1, 3), st.integers(0, 20))
def test_numbers_go_there_and_back(data: Any, count: int, stride: int, cut: int) -> None:
    dtype = np.dtype(data.draw(DTYPES))
    values = data.draw(npst.arrays(dtype, count))[::stride]
    if dtype.isnative:
        assert to_arrow(values).type == pa.array(values).type
        to_arrow(values).validate(full=True)
        found = to_numpy(to_arrow(values).slice(cut))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, values[cut:])


@given(st.lists(st.none() | st.integers(-5, 5)), st.integers(0, 5))
def test_missing_numbers_are_what_pyarrow_makes_of_them(items: list[int | None], cut: int) -> None:
    array = pa.array(items, pa.int32()).slice(cut)
    np.testing.assert_array_equal(to_numpy(array), array.to_numpy(zero_copy_only=False))


@given(st.lists(st.text()), st.lists(st.binary()))
def test_text_and_bytes(texts: list[str], blobs: list[bytes]) -> None:
    for items, kind in ((texts, pa.string()), (blobs, pa.binary())):
        made = text_to_arrow(items, kind)
        made.validate(full=True)
        assert made.to_pylist() == items


def test_what_is_read_cannot_be_written() -> None:
    assert not to_numpy(to_arrow(np.arange(3))).flags.writeable


def test_recording_and_reading_load_no_pandas(tmp_path: Any) -> None:
    script = f"""
import sys
import numpy as np
import warpdata as wd
with wd.record({str(tmp_path / "root")!r}) as rec:
    for k in range(5):
        rec.append("joints", np.full(7, k, np.float32), k + 1)
        rec.append("text", "word", k + 1)
        rec.append("camera", np.zeros((16, 16, 3), np.uint8), k + 1)
episode = wd.open_episode({str(tmp_path / "root")!r} + "#0")
assert float(episode["joints"][3][0][0]) == 3 and episode["camera"][2][0].shape == (16, 16, 3)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
