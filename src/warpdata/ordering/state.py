"""Where an epoch stands: under 100 bytes, the same on every rank, valid for any number of ranks."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STATE_VERSION = 1
MAX_SEED = (1 << 64) - 1
MAX_EPOCH = 10**6 - 1
MAX_POSITION = 10**12 - 1
"""The most that leaves the state under 100 bytes in the JSON of any writer, spaces included."""
PLAN_CHARS = 6
"""Of a plan's fingerprint; states of earlier releases hold eight, and the first six say the same."""


@dataclass(frozen=True, slots=True)
class OrderState:
    """Seed, epoch, and how many rows of the epoch all ranks together have given."""

    seed: int
    epoch: int
    position: int
    plan: str

    def __post_init__(self) -> None:
        for name, value, most in (
            ("seed", self.seed, MAX_SEED), ("epoch", self.epoch, MAX_EPOCH),
            ("position", self.position, MAX_POSITION),
        ):  # fmt: skip
            object.__setattr__(self, name, checked_integer(name, value, most))

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON would have it."""
        return {
            "v": STATE_VERSION, "seed": self.seed, "epoch": self.epoch, "position": self.position,
            "plan": self.plan,
        }  # fmt: skip


def checked_integer(name: str, value: object, most: int, *, least: int = 0) -> int:
    """The value as a plain int, whatever kind of integer it is."""
    if hasattr(value, "__index__") and not isinstance(value, bool):
        found = operator.index(value)
        if least <= found <= most:
            return found
    raise ValueError(f"{name} is an integer from {least} to {most}, not {value!r}")


def parse_state(state: Mapping[str, Any], plan: str) -> OrderState:
    """Read a state and refuse one that belongs to another corpus or another shape of shuffle."""
    if not isinstance(state, Mapping) or state.get("v") != STATE_VERSION:
        raise ValueError(f"this is no state of a shuffled stream of version {STATE_VERSION}: {state!r}")
    missing = {"seed", "epoch", "position", "plan"} - set(state)
    if missing:
        raise ValueError(f"the state lacks {', '.join(sorted(missing))}")
    if not isinstance(state["plan"], str) or state["plan"][:PLAN_CHARS] != plan[:PLAN_CHARS]:
        raise ValueError(
            f"the state was taken with plan {state['plan']!r}, this stream has {plan!r}: another corpus, "
            "batch_size, block_rows, window_blocks or sections"
        )
    return OrderState(state["seed"], state["epoch"], state["position"], plan)
