"""Every public name and every attribute works in an interpreter that imported nothing else before."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.published import publish_demo
from tests.sweeps import SOAK

PROGRAM = r"""
import contextlib, importlib, os, pickle, sys, traceback
import warpdata as wd

for foreign in "numpy pyarrow.parquet pyarrow.dataset duckdb av obstore zstandard lz4.block ml_dtypes".split():
    with contextlib.suppress(ImportError):
        importlib.import_module(foreign)  # not ours: only to be quick

folder, every = sys.argv[1], int(sys.argv[2])
WAYS_IN = {
    "load_wshard": lambda: wd.load_wshard(f"{folder}/e.wshard"),
    "load_wshard, in time": lambda: wd.load_wshard(f"{folder}/e.wshard").in_time,
    "a channel": lambda: wd.load_wshard(f"{folder}/e.wshard").observations["state"],
    "open_episode": lambda: wd.open_episode(f"{folder}/e.wshard"),
    "open_episode of a directory": lambda: wd.open_episode(episode_folder()),
    "open_episode of a packed one": lambda: wd.open_episode(f"{folder}/packed.wshard"),
    "a signal": lambda: wd.open_episode(f"{folder}/e.wshard")["state"],
    "chunks": lambda: wd.ChunkedEpisodeReader(f"{folder}/chunks/e_manifest.wshard"),
    "chunks as one": lambda: wd.ChunkedEpisodeReader(f"{folder}/chunks/e_manifest.wshard").episode(),
    "chunks as one, in time": lambda: wd.open_episode(f"{folder}/chunks/e_manifest.wshard"),
    "made by hand": lambda: wd.WShardEpisode(id="x", length=0),
    "made by hand, in time": lambda: wd.WShardEpisode(id="x", length=0).in_time,
    "open_recordings": lambda: wd.open_recordings(f"{folder}/root"),
    "open_corpus": lambda: wd.open_corpus(f"{folder}/corpus"),
    "dataset": lambda: wd.dataset("ws/demo", catalog=f"{folder}/catalog"),
    "table": lambda: wd.dataset("ws/demo", catalog=f"{folder}/catalog").table(),
    "pickled episode": lambda: unpickled("episode"),
    "pickled episode, in time": lambda: unpickled("episode").in_time,
    "pickled view": lambda: unpickled("view"),
    "pickled signal": lambda: unpickled("signal"),
    "pickled reference": lambda: unpickled("reference"),
    "pickled reference, opened": lambda: unpickled("reference").read_bytes(),
}


def episode_folder():
    return next(top for top, _, files in os.walk(f"{folder}/root") if "meta.json" in files)


def unpickled(name):
    with open(f"{folder}/{name}.pickle", "rb") as file:
        return pickle.load(file)


def in_a_child(what, work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            print(f"--- {what}", traceback.format_exc(), flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(pid, 0)


def look(way_in, open_it):
    thing = open_it()
    assert thing is not None
    names = [n for n in dir(thing) if not n.startswith("_") and not callable(getattr(type(thing), n, None))]
    for name in names[::every]:
        in_a_child(f"{way_in}: .{name}", lambda: attribute(thing, name))
    in_a_child(f"{way_in}: repr", lambda: repr(thing))
    if not way_in.startswith("table"):
        in_a_child(f"{way_in}: pickle", lambda: pickled(thing))


def attribute(thing, name):
    try:
        getattr(thing, name)
    except wd.WarpError as error:
        # An episode without records has no start; a hint to import something is no answer.
        assert "import" not in f"{error} {error.hint}".lower(), error


def pickled(thing):
    try:
        data = pickle.dumps(thing)
    except TypeError:
        return  # holds something open
    pickle.loads(data)


for home in sorted(set({**wd._HOMES, **wd._ELSEWHERE}.values())):
    names = [name for name, where in {**wd._HOMES, **wd._ELSEWHERE}.items() if where == home]
    in_a_child(f"names of {home}", lambda: [getattr(wd, name) for name in names])
for way_in, open_it in WAYS_IN.items():
    in_a_child(way_in, lambda: look(way_in, open_it))
print("looked at", len(WAYS_IN), "ways in", flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh")
    episode = wd.WShardEpisode(id="e", length=20)
    episode.observations["state"] = np.zeros((20, 3), np.float32)
    episode.actions["ctrl"] = np.zeros((20, 2), np.float32)
    wd.save_wshard(episode, folder / "e.wshard")
    wd.chunk_episode(episode, folder / "chunks", 8)
    with wd.LocalDatasetWriter(folder / "root").new_episode() as writer:
        for i in range(5):
            writer.append("state", np.zeros(3, np.float32), i * 10)
    wd.pack_episode(Path(writer.path), folder / "packed.wshard")
    with wd.CorpusWriter(folder / "corpus", 4) as corpus:
        corpus.append(np.zeros((10, 4), np.float32))
    _publish(folder)
    loaded = wd.load_wshard(folder / "e.wshard")
    for name, thing in {"episode": loaded, "view": loaded.in_time, "signal": loaded.in_time["state"]}.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(thing))
    return folder


def _publish(folder: Path) -> None:
    from PIL import Image

    (folder / "pictures" / "a").mkdir(parents=True)
    for i in range(40):
        Image.fromarray(np.full((8, 8, 3), i * 5, np.uint8)).save(folder / "pictures" / "a" / f"{i:03d}.png")
    publish_demo(str(folder / "catalog"), folder / "pictures")
    with wd.dataset("ws/demo", catalog=folder / "catalog") as dataset:
        ref = next(dataset.table().batches(5))["image"][3]
        (folder / "reference.pickle").write_bytes(pickle.dumps(ref))


def test_every_attribute_of_everything_the_doors_give(folder: Path) -> None:
    every = 1 if SOAK else 16
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(every)], capture_output=True, text=True, check=False
    )
    assert "looked at" in done.stdout, done.stderr
    assert "---" not in done.stdout, done.stdout
    assert done.returncode == 0


def test_in_time_of_a_fresh_load(folder: Path) -> None:
    code = f"import warpdata as wd; print(len(wd.load_wshard({str(folder / 'e.wshard')!r}).in_time['state']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "20", done.stderr
