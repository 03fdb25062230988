"""What every test shares: where the golden files of other programs are, and hypothesis profiles."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A run started in the background ignores Ctrl-C, and so would every recorder that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent

SHARED_GOLDEN = Path(os.environ.get("WARPDATA_SHARED_GOLDEN", ROOT.parent / "shared" / "golden"))
"""Files written by other people's programs; they are not part of this repository."""

OWN_GOLDEN = Path(__file__).parent / "golden"
"""Files made by tools/make_golden.py and committed."""

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", settings.get_profile("default"), max_examples=2000)
# What lands is judged by the same examples each time; everybody else's runs go on looking for new ones.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


def shared_golden(*parts: str) -> Path:
    """A path below the shared golden files; the test skips where they are absent."""
    path = SHARED_GOLDEN.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"golden files of other programs are not here: {path}")
    return path
