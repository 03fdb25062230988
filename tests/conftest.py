"""What every test shares: golden files of other programs, hypothesis profiles, servers, an environment of its own."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.servers import BUCKET, S3Server, run_s3, unique
from tests.sweeps import is_thinned

# A run started in the background ignores Ctrl-C, and so would every recorder that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent

SHARED_GOLDEN = Path(os.environ.get("WARPDATA_SHARED_GOLDEN", ROOT.parent / "shared" / "golden"))
"""Files written by other people's programs; they are not part of this repository."""

OWN_GOLDEN = Path(__file__).parent / "golden"
"""Files made by tools/make_golden.py and committed."""

# Twenty examples a time; `make soak` looks at two thousand, or at ten times as many as a property says are enough.
settings.register_profile(
    "default", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("default"), max_examples=2000)
# What lands is judged by the same examples each time; everybody else's runs go on looking for new ones.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What an ordinary run does a part of, `make soak` does whole, without anybody remembering to say so."""
    for item in items:
        if isinstance(item, pytest.Function) and is_thinned(item.path):
            item.add_marker("soak")


def pytest_collection_finish() -> None:
    """What collecting made stays until the end: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end of the process all of it is garbage."""
    gc.unfreeze()


def shared_golden(*parts: str) -> Path:
    """A path below the shared golden files; the test skips where they are absent."""
    path = SHARED_GOLDEN.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"golden files of other programs are not here: {path}")
    return path


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with run_s3() as server:
        yield server


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WARP_CATALOG", "WARP_MODE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def s3_catalog(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty catalog on the real S3 server."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{unique('cat')}"


@pytest.fixture
def local_catalog(tmp_path: Path) -> str:
    return str(tmp_path / "catalog")


@pytest.fixture
def picture_folder(tmp_path: Path) -> Path:
    from PIL import Image

    folder = tmp_path / "pictures"
    (folder / "a").mkdir(parents=True)
    for i in range(40):
        Image.fromarray(np.full((8, 8, 3), i * 5, np.uint8)).save(folder / "a" / f"{i:03d}.png")
    return folder
