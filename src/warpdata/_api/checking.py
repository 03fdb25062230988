"""`wd.check_dataset`: problems of the episodes at an address."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from warpdata._api import address_text, divided_address, folder_at, kind_or_foreign, locate, runner_for
from warpdata._api.episodes import open_episode, open_episodes
from warpdata.errors import BadMagicError, suggests

if TYPE_CHECKING:
    from collections.abc import Collection

    from warpdata.episodes.check.report import Report
    from warpdata.episodes.check.run import Progress


@suggests
def check_dataset(
    source: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    deep: bool = False,
    mute: Collection[str] = (),
    raw: bool = False,
    catalog: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    ray: str | bool | None = None,
) -> Report:
    """Check the episodes at an address, with the edits of their root.

    `deep` also decodes every frame; the rules in `mute` are ignored; `raw` checks recordings without their edits.
    `jobs` is the number of processes; `ray` (True, or the address of a cluster) runs the checks there instead.
    """
    from warpdata.episodes.check.report import Report, check_rules
    from warpdata.episodes.check.rules import check_opened
    from warpdata.episodes.check.run import check_each, check_root, damaged_blocks

    mute = (mute,) if isinstance(mute, str) else mute
    check_rules(mute)
    runner = runner_for(jobs, ray)
    base, inside = divided_address(address_text(source))
    try:
        kind, foreign = kind_or_foreign(base)
    except BadMagicError:
        if ".wshard" not in base:
            raise
        kind, foreign = "episode", None  # one of ours, and damaged
    if kind in ("corpus", "rows", "vectors"):
        raise ValueError(
            f"no episodes at this address: expected recordings, got {kind}: {base}; use `warp verify`"
        )
    if inside is None and kind in ("foreign", "dataset", "shards"):
        episodes = foreign or open_episodes(base, catalog=catalog)
        report = check_each(episodes.source, progress=progress, deep=deep, runner=runner)
    elif inside is None and kind == "recordings":
        report = check_root(folder_at(base), progress=progress, deep=deep, raw=raw, runner=runner)
    else:
        name = inside or os.path.basename(base.partition("?")[0].rstrip("/"))
        address = base if inside is None else f"{base}#{inside}"
        opened = partial(open_episode, address, catalog=catalog, edited=not raw)
        if foreign is not None and inside is not None:
            opened = partial(foreign.open, inside)
        report = Report(1, list(check_opened(opened, name, deep=deep)))
        if inside is None and not report.is_damaged:
            # Blocks of a shard that belong to no signal.
            report = Report(1, [*report.findings, *damaged_blocks(locate(base)[1], name)])
    return report.without(mute)
