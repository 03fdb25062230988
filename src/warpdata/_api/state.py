"""Rebuilds a loader from a saved state."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from warpdata._api import folder_at, open_recordings

if TYPE_CHECKING:
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.loading.loader import Loader


def loader_of_state(path: str | os.PathLike[str]) -> Loader:
    """The loader that saved a state with `save_state`, without its transforms; it can name every sample."""
    from warpdata.errors import CorruptLayoutError
    from warpdata.loading.loader import Loader, read_saved_state

    saved = read_saved_state(path)
    try:
        plan, state = saved["plan"], saved["state"]
        made = Loader(
            _windows_of_plan(plan["windows"]),
            plan["batch_size"],
            seed=plan["seed"],
            shuffle=plan["shuffle"],
            on_error=plan["on_error"],
            tail=plan.get("tail", "short"),
            rank=0,
            world=1,
            threads=0,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptLayoutError(
            f"no state that loader.save_state() wrote ({error!r})",
            path=path,
            hint="Save it with loader.save_state().",
        ) from None
    made.load_state_dict(state)
    return made


def _windows_of_plan(plan: dict[str, Any]) -> Any:
    from warpdata.loading.mixture import Mixture
    from warpdata.loading.windows import Windows

    if "corpus" in plan:
        from warpdata._api import open_corpus

        return open_corpus(plan["corpus"])
    if "mixture" not in plan:
        return Windows.of_plan(plan, _episodes_of_address(plan["episodes"]))
    names = [source["name"] for source in plan["mixture"]]
    sources = {
        source["name"]: (_windows_of_plan(source["windows"]), source["weight"]) for source in plan["mixture"]
    }
    schedule = {start: dict(zip(names, row, strict=True)) for start, row in plan["schedule"]}
    return Mixture(sources, length=plan["length"], schedule=schedule)


def _episodes_of_address(address: dict[str, Any] | None) -> Episodes:
    """The episodes of a saved state."""
    import json
    import operator

    from warpdata.catalog.dataset import reopen_dataset
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.episodes.collection.local import ShardFolderSource
    from warpdata.errors import DatasetError

    if address is None:
        raise DatasetError(
            "the run read episodes that live in memory only",
            hint="Call loader.why() in the program that made them.",
        )
    if address["kind"] == "joined":
        parts = [_episodes_of_address(part) for part in address["parts"]]
        whole = functools.reduce(operator.add, parts)
    elif address["kind"] == "root":
        whole = open_recordings(address["address"], edited=address["edited"])
    elif address["kind"] == "shards":
        whole = Episodes(ShardFolderSource(folder_at(address["address"]), address["names"]))
    else:
        whole = Episodes(reopen_dataset(json.dumps(address["recipe"])).episodes_source(address["artifact"]))
    return whole if address["rows"] is None else whole[address["rows"]]
