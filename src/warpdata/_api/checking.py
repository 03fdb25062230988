"""`wd.check_dataset`: problems of the episodes at an address."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from warpdata._api import (
    address_kind,
    address_text,
    divided_address,
    folder_at,
    foreign_episodes,
    is_published,
    is_root,
    locate,
    open_episode,
    open_episodes,
    runner_for,
)
from warpdata.errors import BadMagicError, BlobNotFoundError, suggests

if TYPE_CHECKING:
    from collections.abc import Collection

    from warpdata.episodes.check.report import Report
    from warpdata.episodes.check.run import Progress
    from warpdata.episodes.collection.episodes import Episodes


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
    text = address_text(source)
    base, inside = divided_address(text)
    foreign = None if is_published(base) else _foreign_set(text)
    if foreign is not None and inside is None:
        report = check_each(foreign.source, progress=progress, deep=deep, runner=runner)
    elif foreign is not None and inside is not None:
        report = Report(1, list(check_opened(lambda: foreign[0], inside, deep=deep)))
    elif inside is None and (is_published(base) or (is_root(base) and address_kind(base) == "shards")):
        report = check_each(
            open_episodes(base, catalog=catalog).source, progress=progress, deep=deep, runner=runner
        )
    elif inside is None and is_root(base):
        report = check_root(folder_at(base), progress=progress, deep=deep, raw=raw, runner=runner)
    else:
        name = inside or os.path.basename(base.partition("?")[0].rstrip("/"))
        opened = partial(open_episode, text, catalog=catalog, edited=not raw)
        report = Report(1, list(check_opened(opened, name, deep=deep)))
        if inside is None and not report.is_damaged:
            # Blocks of a shard that belong to no signal.
            report = Report(1, [*report.findings, *damaged_blocks(locate(base)[1], name)])
    return report.without(mute)


def _foreign_set(address: str) -> Episodes | None:
    """Episodes of a foreign format at an address; None for our own formats, also if damaged."""
    base = divided_address(address)[0]
    try:
        kind = address_kind(base)
    except (BadMagicError, BlobNotFoundError) as error:
        episodes = foreign_episodes(address)
        if episodes is None and isinstance(error, BadMagicError) and ".wshard" not in base:
            raise
        return episodes
    if kind in ("corpus", "rows", "vectors"):
        raise ValueError(
            f"no episodes at this address: expected recordings, got {kind}: {base}; use `warp verify`"
        )
    return None
