"""Which samples there are: runs of anchors, episode after episode; memory grows with the runs, not the samples."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpdata.bytekit.io.commit import write_file
from warpdata.errors import WarpError
from warpdata.loading.windows.aligning import Int64s


@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """Sample number -> episode and anchor. A run is consecutive anchors of one episode."""

    episode: Int64s
    first_anchor: Int64s
    starts: Int64s
    """The number of the first sample of each run, and of all samples."""

    @classmethod
    def of_counts(cls, counts: Sequence[int]) -> SampleTable:
        """Every anchor of every episode."""
        sizes = np.array(counts, np.int64)
        used = np.flatnonzero(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[used])]).astype(np.int64)
        return cls(used.astype(np.int64), np.zeros(len(used), np.int64), starts)

    @classmethod
    def of_kept(cls, kept: Sequence[Int64s]) -> SampleTable:
        """The anchors of each episode that are samples, in order."""
        episodes, firsts, sizes = [], [], []
        for number, anchors in enumerate(kept):
            if not len(anchors):
                continue
            cuts = np.concatenate([[0], np.flatnonzero(np.diff(anchors) != 1) + 1, [len(anchors)]])
            firsts.append(anchors[cuts[:-1]])
            sizes.append(np.diff(cuts))
            episodes.append(np.full(len(cuts) - 1, number))
        if not episodes:
            return cls.of_counts([])
        starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
        return cls(np.concatenate(episodes).astype(np.int64), np.concatenate(firsts).astype(np.int64), starts)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def locate(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """The episode and the anchor of each sample."""
        run = self.starts.searchsorted(samples, "right") - 1
        return self.episode[run], self.first_anchor[run] + samples - self.starts[run]

    def place_of(self, sample: int) -> tuple[int, int]:
        """The episode and the anchor of one sample."""
        run = int(self.starts.searchsorted(sample, "right")) - 1
        return self.episode.item(run), self.first_anchor.item(run) + sample - self.starts.item(run)

    def number_of(self, episode: int, anchor: int) -> int:
        """The number of the sample at an anchor; -1 where there is none."""
        for run in np.flatnonzero(self.episode == episode).tolist():
            inside = anchor - int(self.first_anchor[run])
            if 0 <= inside < int(self.starts[run + 1] - self.starts[run]):
                return int(self.starts[run]) + inside
        return -1

    def counts(self, episodes: int) -> Int64s:
        """How many samples each episode has."""
        out = np.zeros(episodes, np.int64)
        np.add.at(out, self.episode, np.diff(self.starts))
        return out

    def runs_before(self, samples: int) -> list[tuple[int, int, int]]:
        """(episode, first anchor, count) of the first samples, however often they were extended."""
        runs: list[tuple[int, int, int]] = []
        for run in range(len(self.episode)):
            count = min(int(self.starts[run + 1]), samples) - int(self.starts[run])
            if count <= 0:
                break
            episode, first = int(self.episode[run]), int(self.first_anchor[run])
            if runs and runs[-1][0] == episode and runs[-1][1] + runs[-1][2] == first:
                runs[-1] = (episode, runs[-1][1], runs[-1][2] + count)
            else:
                runs.append((episode, first, count))
        return runs

    def extended(self, more: SampleTable, first_episode: int) -> SampleTable:
        """These samples, and after them those of further episodes."""
        return SampleTable(
            np.concatenate([self.episode, more.episode + first_episode]),
            np.concatenate([self.first_anchor, more.first_anchor]),
            np.concatenate([self.starts, more.starts[1:] + self.starts[-1]]),
        )


def kept_table(folder: str, name: str) -> SampleTable | None:
    """A table that was counted before; None where it is not there or cannot be trusted."""
    try:
        with np.load(io.BytesIO(_path(folder, name).read_bytes()), allow_pickle=False) as found:
            table = SampleTable(found["episode"], found["first_anchor"], found["starts"])
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        return None
    sizes = np.diff(table.starts)
    good = len(table.starts) == len(table.episode) + 1 == len(table.first_anchor) + 1
    return table if good and table.starts[0] == 0 and (sizes > 0).all() else None


def keep_table(folder: str, name: str, table: SampleTable) -> None:
    """Keep a table for next time; where the cache cannot be written it is counted again then."""
    sink = io.BytesIO()
    np.savez_compressed(sink, episode=table.episode, first_anchor=table.first_anchor, starts=table.starts)
    try:
        path = _path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, sink.getvalue(), durable=False)
    except (OSError, WarpError):
        return


def _path(folder: str, name: str) -> Path:
    return Path(os.path.expanduser(folder)) / "windows" / f"{name}.samples.npz"
