"""What tests of foreign formats share: the samples, episodes through a root or shards and out again, files compared."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import warpdata as wd
from tests.conftest import SHARED_GOLDEN, shared_golden
from warpdata.convert.importing import import_episodes
from warpdata.episodes.collection.episodes import Episodes


def sample(*parts: str) -> Path:
    """A sample written by the original program; the test skips where the samples are absent."""
    return shared_golden("foreign", *parts)


def expected(*parts: str) -> Any:
    """What the original library read from a sample."""
    return json.loads(sample(*parts).read_text())


def listed_samples(*parts: str) -> list[Any]:
    """What the list of some samples says of each of them, for a parameter of tests, which skip where it is absent."""
    *folder, name, key = parts
    path = SHARED_GOLDEN.joinpath("foreign", *folder, name)
    if not path.exists():
        reason = f"golden files of other programs are not here: {path}"
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=reason))]
    return list(json.loads(path.read_text())[key])


def copied(source: Path, folder: Path) -> Path:
    """A copy of a sample that may be changed."""
    target = folder / source.name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    return target


def sha256(values: Any) -> str:
    """Of the little-endian bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def same_channel(values: Any, about: Any) -> bool:
    """Whether an array is what the original library read."""
    is_typed = str(values.dtype) == about["dtype"] and list(values.shape) == about["shape"]
    return is_typed and sha256(values) == about["sha256"]


def imported(episodes: Episodes, folder: Path, kind: str, name: str = "x") -> Episodes:
    """Episodes brought into a root or a folder of shards, every signal kept exactly, opened again."""
    receipt = import_episodes(episodes, folder, format=name, source=episodes.source.name, kind=kind)  # type: ignore[arg-type]
    assert receipt.is_exact, str(receipt)
    found: Episodes = wd.open(folder)
    return found


def hdf5_content(path: Path) -> dict[str, Any]:
    """All groups, arrays and attributes of an HDF5 file with their types; the receipt of an export left out."""
    found: dict[str, Any] = {}

    def add(name: str, item: Any) -> None:
        for key, value in item.attrs.items():
            array = np.asarray(value)
            found[f"{name}@{key}"] = ("text" if array.dtype.kind in "OU" else array.dtype.str, array.tolist())
        if isinstance(item, h5py.Dataset):
            values = item[()]
            is_object = item.dtype == object
            content = [bytes(each) for each in values] if is_object else np.asarray(values).tobytes()
            found[name] = (item.dtype.str, item.shape, content)
        else:
            found[name] = None

    with h5py.File(path) as file:
        add("/", file)
        file.visititems(add)
    found.pop("warpdata", None)
    return found
