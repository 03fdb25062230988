"""Where a loader stands: about 100 bytes of JSON, the same on every rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warpdata.bytekit.io.ranges import FileRangeReader
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.ordering.state import MAX_POSITION, MAX_SEED, checked_integer

STATE_VERSION = 1
MAX_EPOCH = 10**9
NAME_CHARS, DATA_CHARS = 16, 6
_PARTS = ("seed", "epoch", "position", "windows", "order")


@dataclass(frozen=True, slots=True)
class LoaderState:
    """Seed, epoch, how many samples of the epoch all ranks together are past, and of which samples in which order."""

    seed: int
    epoch: int
    position: int
    windows: str
    """`names_of`: which data, and which samples of them."""
    order: str
    skipped: int = 0
    skip: str = ""
    samples: int | None = None
    """With windows that grow: how many samples there were when the epoch began."""

    def __post_init__(self) -> None:
        for name, most in (
            ("seed", MAX_SEED), ("epoch", MAX_EPOCH), ("position", MAX_POSITION), ("skipped", MAX_POSITION),
            ("samples", MAX_POSITION),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None or name != "samples":
                object.__setattr__(self, name, checked_integer(name, value, most))

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON has it."""
        found: dict[str, Any] = {
            "v": STATE_VERSION, "seed": self.seed, "epoch": self.epoch, "position": self.position,
            "windows": self.windows, "order": self.order,
        }  # fmt: skip
        if self.skipped:
            found |= {"skipped": self.skipped, "skip": self.skip}
        if self.samples is not None:
            found["samples"] = self.samples
        return found


def names_of(data_id: str, windows_id: str) -> str:
    """What a state calls its samples: the beginning of what the episodes hold, then of the windows over them.

    Of windows that grow the first is not known ahead, and only the second is there.
    """
    data = data_id[:DATA_CHARS]
    return data + windows_id[: NAME_CHARS - len(data)]


def parse_state(state: Any) -> LoaderState:
    """Read a state, or ValueError; what it is compared with is the loader's business."""
    if not isinstance(state, Mapping):
        raise ValueError(f"this is no state of a loader, but a {type(state).__name__}")
    if state.get("v") != STATE_VERSION or "windows" not in state:
        raise ValueError(f"this is no state of a loader of version {STATE_VERSION}: {dict(state)!r:.200}")
    missing = [name for name in _PARTS if name not in state]
    if missing:
        raise ValueError(f"the state lacks {', '.join(missing)}")
    for name in ("windows", "order"):
        if not isinstance(state[name], str):
            raise ValueError(f"{name} of a state is text, not {state[name]!r}")
    windows = state["windows"]
    if "data" in state:  # earlier releases had both apart
        windows = names_of(str(state["data"]), windows)
    return LoaderState(
        state["seed"], state["epoch"], state["position"], windows, state["order"],
        state.get("skipped", 0), str(state.get("skip", "")), state.get("samples"),
    )  # fmt: skip


def saved_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save_state` wrote to a file."""
    with FileRangeReader(path) as reader:
        try:
            return parse_json_object(reader.read(0, reader.size))
        except FormatError as error:
            hint = "Save it with loader.save_state()."
            raise CorruptLayoutError(f"no saved state: {error.message}", path=path, hint=hint) from None
