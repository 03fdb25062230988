"""The only reader of the environment: every variable warpdata looks at is a field here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says, read once and passed down as arguments."""

    debug: bool = False
    """`WARP_DEBUG`: show tracebacks of errors in the command line."""
    color: bool = True
    """Off when `NO_COLOR` is set to anything."""
    progress: bool = True
    """Off when `WARP_NO_PROGRESS` is set: no progress bar even on a terminal."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `env`, by default the process's environment."""
        source = os.environ if env is None else env
        return cls(
            debug=_is_true(source, "WARP_DEBUG"),
            color=not source.get("NO_COLOR"),
            progress=not _is_true(source, "WARP_NO_PROGRESS"),
        )


def _is_true(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() in _TRUE
