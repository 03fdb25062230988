"""Moments like a given one, near-duplicate episodes and novelty: calls over the index of a source."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from warpdata._api import address_text, is_published, open_vectors
from warpdata._api import dataset as open_published
from warpdata._api.importing import any_episodes
from warpdata.errors import DatasetError, suggests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warpdata.catalog.dataset import Dataset
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.search.moments.similar import MomentIndex, SimilarMoment


@suggests
def find_similar(
    source: str | os.PathLike[str] | Dataset | Episodes,
    episode_id: str | int,
    t0_ns: int,
    t1_ns: int,
    k: int = 5,
    *,
    index: str | os.PathLike[str] | None = None,
    embedder: Any = None,
    revision: str | None = None,
    batch_size: int | None = None,
    catalog: str | os.PathLike[str] | None = None,
) -> list[SimilarMoment]:
    """The k moments most like [t0_ns, t1_ns) of an episode, from the index of windows of its source.

    `wd.embed(source, "motion", per="window", window_s=1.0)` makes such an index; `index` names one of several, or a
    file. Hits are not of the given moment, do not overlap, and are ordered by dynamic time warping of their numbers.
    An index of a function of yours needs it as `embedder`, with the `revision` and the `batch_size`
    it was embedded with, if any.
    """
    with _open_index(source, index, catalog, embedder, revision, batch_size) as (moments, episodes):
        name = episodes.ids[episode_id] if isinstance(episode_id, int) else episode_id
        return moments.find(name, int(t0_ns), int(t1_ns), k)


@suggests
def find_duplicates(
    source: str | os.PathLike[str] | Dataset | Episodes,
    *,
    index: str | os.PathLike[str] | None = None,
    catalog: str | os.PathLike[str] | None = None,
) -> list[tuple[str, str, float]]:
    """Pairs of episodes of which most windows are copies: both ids and the share of copied windows."""
    with _open_index(source, index, catalog) as (moments, _):
        return moments.duplicates()


@suggests
def rank_novelty(
    source: str | os.PathLike[str] | Dataset | Episodes,
    *,
    index: str | os.PathLike[str] | None = None,
    catalog: str | os.PathLike[str] | None = None,
) -> list[tuple[str, float]]:
    """Episodes by how unlike everything else they are, the most unusual first."""
    with _open_index(source, index, catalog) as (moments, _):
        return moments.novelty()


@contextlib.contextmanager
def _open_index(source: Any, index: Any, catalog: Any, *made: Any) -> Iterator[tuple[MomentIndex, Episodes]]:
    from pathlib import Path

    from warpdata.catalog.dataset import Dataset as Published
    from warpdata.episodes.collection.episodes import Episodes as Several
    from warpdata.episodes.collection.local import LocalDataset as Root
    from warpdata.formats.manifest.model import VECTOR_KIND
    from warpdata.search.moments.similar import MomentIndex

    with contextlib.ExitStack() as stack:
        if not isinstance(source, Published | Several) and is_published(address_text(source)):
            source = stack.enter_context(open_published(address_text(source), catalog=catalog))
        if isinstance(source, Published):
            episodes, parts = source.episodes, source.manifest.artifacts
            names = [name for name, part in parts.items() if part.kind == VECTOR_KIND]
            wanted = [name for name in names if index is None or name in (str(index), f"vectors-{index}")]
            openers: list[Callable[[], Any]] = [partial(source.vectors, name) for name in wanted]
        else:
            episodes = source if isinstance(source, Several) else any_episodes(address_text(source))
            place = source.root if isinstance(source, Root) else source
            paths = [] if isinstance(place, Several) else sorted(Path(address_text(place)).glob("*.rvf"))
            if index is not None:
                inside = [path for path in paths if path.stem == str(index)]
                paths = inside or [Path(index)]
            openers = [partial(open_vectors, path) for path in paths]
        for open_store in openers:
            store = stack.enter_context(open_store())
            if "end_ns" in store.fields or len(openers) == 1:
                yield MomentIndex(store, episodes, *made), episodes
                return
        raise DatasetError(
            "no index of windows for these episodes",
            hint="Make one: wd.embed(source, 'motion', per='window', window_s=1.0), or name it with index=.",
        )
