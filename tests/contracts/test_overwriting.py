"""Whatever writes a file or a folder leaves one that is there alone, unless it is asked to replace it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.cli.main import main
from warpdata.convert.tables.corpora import corpus_to_npy, corpus_to_safetensors, npy_to_corpus
from warpdata.episodes.forms.shard import join_chunks, write_chunks
from warpdata.formats.rvf.signing import save_public

STEPS = 6
CHANNELS = [{"id": "state", "dtype": "f32", "shape": [2]}]
EXPORTS = {
    **dict.fromkeys(("lerobot", "rlds", "minari", "dreamer", "webdataset", "mcap", "wav"), "set"),
    "hdf5": "a.hdf5",
    "zarr": "a.zarr",
}


def shard(number: int = 0) -> wd.WShardEpisode:
    made = wd.WShardEpisode("ep", length=STEPS, timebase=wd.Timebase("ticks", 10.0))
    made.observations["state"] = wd.Channel("state", np.full((STEPS, 2), number, np.float32))
    made.actions["ctrl"] = wd.Channel("ctrl", np.full((STEPS, 1), number, np.float32))
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of each source."""
    monkeypatch.chdir(tmp_path)
    wd.save_wshard(shard(), "ep.wshard", durable=False)
    with wd.record("root", clock="simulated") as rec:
        for step in range(STEPS):
            rec.step(
                {"state": np.arange(2.0) + step},
                np.ones(2),
                reward=0.0,
                terminated=step == 5,
                ts_ns=step * 10**8,
            )
    wd.pack_episode("root#0", "packed.wshard")
    wd.chunk_episode(shard(), "chunks", 3)
    np.save("rows.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    npy_to_corpus("rows.npy", "corpus")
    with wd.VectorStore.create("vectors.rvf", dim=2) as store:
        store.add(np.eye(2), [1, 2])
    new_key().save("key.json")
    (tmp_path / "out").mkdir()
    return tmp_path


def cut_episode() -> wd.Episode:
    return wd.open_episode("chunks/ep_manifest.wshard")


def new_key() -> wd.search.SigningKey:
    return wd.search.SigningKey.generate("ed25519")


def stream(target: str, **options: Any) -> None:
    with wd.WShardStreamWriter(target, "ep", CHANNELS, **options) as writer:
        writer.begin_episode()
        writer.write_timestep({"state": np.zeros(2, np.float32)})
        writer.end_episode()


def activations(target: str, **options: Any) -> None:
    with wd.ActivationShardWriter(target, 2, **options) as writer:
        writer.append(np.zeros((1, 2), np.float32))


def chunked(folder: str, **options: Any) -> None:
    writer = wd.ChunkedEpisodeWriter(folder, "ep", STEPS, **options)
    writer.write_chunk(shard())
    writer.finalize_manifest()


def corpus(folder: str, **options: Any) -> None:
    with wd.CorpusWriter(folder, 2, **options) as writer:
        writer.append(np.zeros((1, 2), np.float32))


def recorded(target: str, **options: Any) -> None:
    with wd.record(target, **options) as rec:
        rec.append("state", 1.0, 1)


def one_directory(target: str, **options: Any) -> None:
    with wd.DiskEpisodeWriter(target, **options) as writer:
        writer.append("state", 1.0, 1)


def one_signal(target: str, **options: Any) -> None:
    with wd.episodes.SimpleSignalWriter(target, **options) as writer:
        writer.append(1.0, 1)


REPLACING: dict[str, tuple[str, Callable[..., Any]]] = {
    "save_wshard": ("out/a.wshard", lambda target, **o: wd.save_wshard(shard(1), target, **o)),
    "pack_episode": ("out/a.wshard", lambda target, **o: wd.pack_episode("root#0", target, **o)),
    "unpack_episode": ("out/a", lambda target, **o: wd.unpack_episode("packed.wshard", target, **o)),
    "chunk_episode": ("out/a", lambda target, **o: wd.chunk_episode(shard(1), target, 2, **o)),
    "chunk_episode, recorded": ("out/a", lambda target, **o: wd.chunk_episode("root#0", target, 2, **o)),
    "ChunkedEpisodeWriter": ("out/a", chunked),
    "write_chunks": ("out/a", lambda target, **o: write_chunks(wd.open_episode("root#0"), target, count=2, **o)),
    "join_chunks": ("out/a", lambda target, **o: join_chunks(cut_episode(), target, **o)),
    "WShardStreamWriter": ("out/a.wshard", stream),
    "record, one file": ("out/a.wshard", recorded),
    "SimpleSignalWriter": ("out/a.parquet", one_signal),
    "ActivationShardWriter": ("out/a.shard", activations),
    "corpus_to_npy": ("out/a.npy", lambda target, **o: corpus_to_npy("corpus", target, **o)),
    "corpus_to_safetensors": ("out/a.safetensors", lambda target, **o: corpus_to_safetensors("corpus", target, **o)),
    "VectorStore.create": ("out/a.rvf", lambda target, **o: wd.VectorStore.create(target, dim=3, **o).close()),
    "VectorStore.export": ("out/a.rvf", lambda target, **o: wd.open_vectors("vectors.rvf").export(target, **o)),
}  # fmt: skip
"""Name -> target and call; `overwrite=True` replaces what is there."""


def exported(name: str, target: str) -> None:
    options = {} if name in ("mcap", "wav") else {"rate": 10.0}
    wd.export_episodes("root", target, name, **options)


KEEPING: dict[str, tuple[str, Callable[..., Any]]] = {
    "DiskEpisodeWriter": ("out/a", one_directory),
    "CorpusWriter": ("out/a", corpus),
    "npy_to_corpus": ("out/a", lambda target: npy_to_corpus("rows.npy", target)),
    "SigningKey.save": ("out/key.json", lambda target: new_key().save(target)),
    "save_public": ("out/key.json", lambda target: save_public(new_key().public, target)),
    "export_site": ("out/site", lambda target: wd.viewer.export_site("root", target)),
    **{
        f"export {name}": (f"out/{target}", partial(exported, name))
        for name, target in EXPORTS.items()
    },
}  # fmt: skip
"""Name -> target and call that never replaces."""


def contents(target: Path) -> dict[str, str]:
    files = [target] if target.is_file() else sorted(each for each in target.rglob("*") if each.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


COMMANDS: dict[str, tuple[str, list[str]]] = {
    "pack": ("out/a.wshard", ["pack", "root#0", "-o", "out/a.wshard"]),
    "unpack": ("out/a", ["unpack", "packed.wshard", "-o", "out/a"]),
    "chunk": ("out/a", ["chunk", "ep.wshard", "--steps", "2", "-o", "out/a"]),
    "join": ("out/a.wshard", ["join", "chunks/ep_manifest.wshard", "-o", "out/a.wshard"]),
    "corpus convert": ("out/a.npy", ["corpus", "convert", "corpus", "out/a.npy"]),
    "corpus convert, safetensors": (
        "out/a.safetensors",
        ["corpus", "convert", "corpus", "out/a.safetensors"],
    ),
    "corpus sample": ("out/a.npy", ["corpus", "sample", "corpus", "-o", "out/a.npy"]),
    "vectors create": ("out/a.rvf", ["vectors", "create", "out/a.rvf", "--dim", "2"]),
    "vectors export": ("out/a.rvf", ["vectors", "export", "vectors.rvf", "out/a.rvf"]),
    "vectors export, table": ("out/a.csv", ["vectors", "export", "vectors.rvf", "out/a.csv"]),
    "init": ("out/load.py", ["init", "lab/set", "-o", "out/load.py", "--catalog", "catalog"]),
}


def check_kept(target: Path, write: Callable[[], object]) -> None:
    """The second write raises ConflictError, and nothing of the first changes."""
    write()
    before = contents(target)
    assert before
    with pytest.raises(wd.errors.ConflictError) as caught:
        write()
    assert str(target.name) in str(caught.value)
    assert contents(target) == before
    assert [each.name for each in target.parent.iterdir() if ".tmp-" in each.name] == []


@pytest.mark.parametrize("name", REPLACING)
def test_a_target_is_replaced_only_when_asked(here: Path, name: str) -> None:
    target, write = REPLACING[name]
    check_kept(here / target, lambda: write(target))
    write(target, overwrite=True)


@pytest.mark.parametrize("name", KEEPING)
def test_a_target_is_never_replaced(here: Path, name: str) -> None:
    target, write = KEEPING[name]
    check_kept(here / target, lambda: write(target))


@pytest.mark.parametrize("name", REPLACING)
def test_any_file_in_the_place_of_the_target_is_kept(here: Path, name: str) -> None:
    target, write = REPLACING[name]
    (here / target).write_text("mine")
    with pytest.raises(wd.WarpError):
        write(target)
    assert (here / target).read_text() == "mine"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_replaces_only_with_overwrite(
    here: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, words = COMMANDS[name]
    if name == "init":
        with wd.DatasetBuilder("lab/set", catalog="catalog") as builder:
            builder.add_table("main", {"a": [1, 2]})
            builder.publish()
    assert main(words) == 0
    before = contents(here / target)
    capsys.readouterr()
    assert main(words) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert contents(here / target) == before
    assert main([*words, "--overwrite"]) == 0
