"""Where an epoch stands: under 100 bytes, the same on every rank, valid for any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STATE_VERSION = 1
MAX_SEED = (1 << 64) - 1
MAX_EPOCH = (1 << 32) - 1
MAX_POSITION = 10**15 - 1


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
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise ValueError(f"{name} is an integer from 0 to {most}, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON would have it."""
        return {
            "v": STATE_VERSION, "seed": self.seed, "epoch": self.epoch, "position": self.position,
            "plan": self.plan,
        }  # fmt: skip


def parse_state(state: Mapping[str, Any], plan: str) -> OrderState:
    """Read a state and refuse one that belongs to another corpus or another shape of shuffle."""
    if not isinstance(state, Mapping) or state.get("v") != STATE_VERSION:
        raise ValueError(f"this is no state of a shuffled stream of version {STATE_VERSION}: {state!r}")
    missing = {"seed", "epoch", "position", "plan"} - set(state)
    if missing:
        raise ValueError(f"the state lacks {', '.join(sorted(missing))}")
    if state["plan"] != plan:
        raise ValueError(
            f"the state was taken with plan {state['plan']!r}, this stream has {plan!r}: another corpus, "
            "batch_size, block_rows, window_blocks or lanes"
        )
    return OrderState(state["seed"], state["epoch"], state["position"], plan)
