"""Foreign sets in a store: read by ranges, without a file on this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.convert.foreign import sample
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.convert import dreamer, hdf5, minari, webdataset, zarr
from warpdata.errors import BlobNotFoundError


class Elsewhere:
    """A folder that gives its files by range only."""

    def __init__(self, folder: Path) -> None:
        self.name = f"memory://{folder.name}"
        self._folder = folder

    def open(self, name: str) -> RangeReader:
        if not (self._folder / name).is_file():
            raise BlobNotFoundError("nothing is there", path=name)
        return FileRangeReader(self._folder / name)

    def exists(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def names(self) -> list[str]:
        return [
            path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file()
        ]


@pytest.mark.parametrize(
    ("module", "parts", "signal"),
    [
        (hdf5, ("d4rl",), "observations"),
        (zarr, ("zarr_replay_buffer", "lowdim.zarr"), "state"),
        (minari, ("minari", "synth", "dict-hdf5-v0"), "observations/state"),
        (minari, ("minari", "synth", "box-arrow-v0"), "observations"),
        (dreamer, ("dreamerv3", "replay"), "vector"),
        (webdataset, ("webdataset", "gen"), "action"),
    ],
)
def test_a_set_in_a_store_is_the_set_on_the_disk(module: object, parts: tuple[str, ...], signal: str) -> None:
    here = module.read(sample(*parts))  # type: ignore[attr-defined]
    there = module.read(Elsewhere(sample(*parts)))  # type: ignore[attr-defined]
    assert list(there.ids) == list(here.ids)
    np.testing.assert_array_equal(there[1][signal].values(), here[1][signal].values())
