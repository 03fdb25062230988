"""The API reference is whole: every public name has an example, parameters with meanings, and errors that it raises."""

from __future__ import annotations

import builtins
import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.docs_site import API, DESCRIPTIONS, api_names, errors_of, meaning_of, parameters_of, public_names

import warpdata as wd

NAMES = public_names()


def test_every_public_name_is_on_one_page_with_an_example() -> None:
    assert sorted(api_names()) == sorted(NAMES)
    for page in API:
        for part in re.split(r"^## ", page.read_text(), flags=re.M)[1:]:
            assert "```python" in part, f"{page.name}: {part.splitlines()[0]} has no example"


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_meaning(name: str) -> None:
    for parameter in parameters_of(name):
        assert meaning_of(name, parameter), (
            f"wd.{name}: {parameter.name} has no meaning in docs_site_api.toml"
        )


def test_the_descriptions_name_what_exists() -> None:
    for name, about in DESCRIPTIONS["calls"].items():
        assert name in NAMES, f"wd.{name} is not public"
        given = {parameter.name for parameter in parameters_of(name)} | {"errors"}
        assert set(about) <= given, f"wd.{name} has no {', '.join(set(about) - given)}"
    assert set(DESCRIPTIONS["made"]) <= set(NAMES)
    used = {parameter.name for name in NAMES for parameter in parameters_of(name)}
    assert set(DESCRIPTIONS["parameters"]) <= used, set(DESCRIPTIONS["parameters"]) - used


def kind_of(error: str) -> type[Exception]:
    """The class of an error of warpdata, or of Python."""
    kind: type[Exception] = getattr(wd.errors, error, None) or getattr(builtins, error)
    return kind


def test_every_error_exists() -> None:
    for name in NAMES:
        assert all(issubclass(kind_of(error), Exception) for error, _ in errors_of(name))


NEEDS_A_FAULT = """
    AuthenticationError ChecksumError FormatError ManifestCorruptedError MissingExtraError OfflineError OutOfSpaceError
    RollbackError TooLargeError UnavailableError UntrustedError
"""
"""Errors of servers, disks, damage and missing libraries: their own tests raise them."""

CHANNELS = [{"id": "x", "dtype": "f32", "shape": [2]}]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a root, a shard, a cut shard, a corpus, a catalog and a file of no format."""
    folder = tmp_path_factory.mktemp("errors")
    wd.demo_data(folder / "root", episodes=1)
    episode = wd.WShardEpisode("e", length=3)
    episode.observations["x"] = np.zeros((3, 2), np.float32)
    wd.save_wshard(episode, folder / "whole.wshard")
    raw = (folder / "whole.wshard").read_bytes()
    (folder / "cut.wshard").write_bytes(raw[: len(raw) // 2])
    (folder / "junk").write_bytes(b"nothing" * 100)
    with wd.CorpusWriter(folder / "corpus", 4) as corpus:
        corpus.append(np.zeros((9, 4)))
    with wd.DatasetBuilder("lab/a", catalog=folder / "catalog") as builder:
        builder.add_table("main", {"x": [1]}).publish()
    return folder


def append_twice(rec: Any, *values: Any, ts_ns: int | None = None) -> None:
    with rec:
        for value in values:
            rec.append("a", value, ts_ns)


def append_after_close(rec: Any) -> None:
    append_twice(rec, 1.0)
    rec.append("a", 2.0)


def windows(folder: Path, **options: Any) -> wd.Windows:
    return wd.Windows(wd.open_episodes(folder / "root"), {"a": "joints"}, **{"anchor": "joints", **options})


def stream(path: Path, *, steps: int, width: int) -> wd.WShardStreamWriter:
    with wd.WShardStreamWriter(path, "e", CHANNELS) as writer:
        writer.begin_episode()
        for _ in range(steps):
            writer.write_timestep({"x": np.zeros(width, np.float32)})
        writer.end_episode()
    return writer


def resume_with_another_seed(make: Callable[[int], Any]) -> None:
    make(2).load_state_dict(make(1).state_dict())


def record_twice_in_one_process(root: Path) -> None:
    first, second = wd.record(root, episode="x"), wd.record(root, episode="x")
    with first, second:
        first.append("a", 1.0)
        second.append("a", 1.0)


def list_without_first_chunk(folder: Path) -> wd.ChunkList:
    chunks = wd.chunk_episode(folder / "whole.wshard", folder / "parts", steps=2)
    return dataclasses.replace(chunks, chunks=chunks.chunks[1:])


def uneven(observation: Any) -> Any:
    return np.zeros(1 + int(abs(observation["joints"][0]) * 100) % 3)


RECORDINGS: dict[str, Callable[[Path, Path], Any]] = {
    "ConflictError": lambda p, t: append_twice(wd.record(p / "whole.wshard"), 1.0),
    "SchemaMismatchError": lambda p, t: append_twice(wd.record(t / "r"), 1.0, np.zeros(3)),
    "TimestampOrderError": lambda p, t: append_twice(
        wd.record(t / "r", clock="simulated"), 1.0, 1.0, ts_ns=5
    ),
    "RecordingError": lambda p, t: record_twice_in_one_process(t / "r"),
    "WriterClosedError": lambda p, t: append_after_close(wd.record(t / "r")),
}
BYTES = {
    "unpack_bool_mask": lambda: wd.unpack_bool_mask(b"1", 90),
    "unpack_multidim_residual_bitmask": lambda: wd.unpack_multidim_residual_bitmask(b"1", 9, 9),
    "unpack_multidim_residual_bits": lambda: wd.unpack_multidim_residual_bits(b"1", 9, 9),
    "unpack_residual": lambda: wd.unpack_residual(b"1", 90),
    "unpack_residual_bits": lambda: wd.unpack_residual_bits(b"1", 90),
}
SHORT, LONG = np.zeros(3), np.zeros(4)

READERS = [
    "dreamer",
    "hdf5",
    "lerobot",
    "mcap",
    "minari",
    "npz",
    "parquet",
    "rlds",
    "rosbag2",
    "webdataset",
    "zarr",
]
WRITERS = ["dreamer", "hdf5", "lerobot", "mcap", "minari", "rlds", "wav", "webdataset", "zarr"]


def read_nothing(kind: str, folder: Path) -> None:
    getattr(wd.convert, kind).read(folder / "none")


def write_there(kind: str, place: Path, folder: Path) -> None:
    target = folder / "there"
    target.touch() if kind == "hdf5" else shutil.copytree(place / "corpus", target)
    getattr(wd.convert, kind).write(wd.open_episodes(place / "root"), target)


TRIGGERS: dict[tuple[str, str], Callable[[Path, Path], Any]] = {
    **{(f"convert.{f}.read", "BlobNotFoundError"): lambda p, t, f=f: read_nothing(f, t) for f in READERS},
    **{(f"convert.{f}.write", "ConflictError"): lambda p, t, f=f: write_there(f, p, t) for f in WRITERS},
    **{("record", error): call for error, call in RECORDINGS.items()},
    **{("Recorder", error): call for error, call in RECORDINGS.items()},
    **{(name, "CorruptLayoutError"): lambda p, t, call=call: call() for name, call in BYTES.items()},
    ("ActivationShardWriter", "SchemaMismatchError"): lambda p, t: wd.ActivationShardWriter(
        t / "s", 4
    ).append(np.zeros((2, 5))),
    ("ArraySignal", "TimestampOrderError"): lambda p, t: wd.ArraySignal([1, 1], [0, 0]),
    ("ArraySignal", "ValueError"): lambda p, t: wd.ArraySignal([1, 2], [0]),
    ("Cascade", "ValueError"): lambda p, t: wd.Cascade((0.5, 0.25)),
    ("Channel", "SchemaMismatchError"): lambda p, t: wd.Channel("x", [object()]),
    ("ChunkedEpisodeReader", "BadMagicError"): lambda p, t: wd.ChunkedEpisodeReader(p / "junk").episode(),
    ("Compression", "ValueError"): lambda p, t: wd.Compression("gzip"),
    ("CorpusWriter", "ConflictError"): lambda p, t: wd.CorpusWriter(p / "corpus", 4),
    ("CorpusWriter", "SchemaMismatchError"): lambda p, t: wd.CorpusWriter(t / "c", 4).append(
        np.zeros((2, 5))
    ),
    ("DatasetBuilder", "ValueError"): lambda p, t: wd.DatasetBuilder("noslash", catalog=t),
    ("DiskEpisodeWriter", "ConflictError"): lambda p, t: wd.DiskEpisodeWriter(p / "root"),
    ("DiskEpisodeWriter", "SchemaMismatchError"): lambda p, t: append_disk(wd.DiskEpisodeWriter(t / "d")),
    ("LocalDatasetWriter", "SchemaMismatchError"): lambda p, t: append_disk(
        wd.LocalDatasetWriter(t / "l").new_episode()
    ),
    ("Field", "ValueError"): lambda p, t: wd.Field("x", past=2, offsets=[1]),
    ("FractionRows", "ValueError"): lambda p, t: wd.FractionRows(wd.open_corpus(p / "corpus"), 2.0),
    ("row_in_fraction", "ValueError"): lambda p, t: wd.row_in_fraction([1], 2.0),
    ("Loader", "KeyError"): lambda p, t: wd.Loader(windows(p), batch_size=4, normalize={"b": "min_max"}),
    ("Loader", "ValueError"): lambda p, t: resume_with_another_seed(
        lambda seed: wd.Loader(windows(p), batch_size=4, seed=seed)
    ),
    ("LocalDataset", "BlobNotFoundError"): lambda p, t: wd.LocalDataset(t / "none"),
    ("Mixture", "ValueError"): lambda p, t: wd.Mixture({}),
    ("Normalize", "ValueError"): lambda p, t: wd.Normalize("median"),
    ("RowWarmCache", "ConflictError"): lambda p, t: [
        wd.RowWarmCache(t / "w", model="m", total_rows=3) for _ in "ab"
    ],
    ("ShuffledRows", "ValueError"): lambda p, t: resume_with_another_seed(
        lambda seed: wd.ShuffledRows(wd.open_corpus(p / "corpus"), seed=seed)
    ),
    ("SideTable", "BlobNotFoundError"): lambda p, t: wd.SideTable(p / "corpus").take([0]),
    ("SimpleSignal", "CorruptLayoutError"): lambda p, t: len(wd.SimpleSignal(p / "junk")),
    ("SimpleSignalWriter", "ConflictError"): lambda p, t: wd.SimpleSignalWriter(p / "junk"),
    ("SimpleSignalWriter", "SchemaMismatchError"): lambda p, t: append_signal(
        wd.SimpleSignalWriter(t / "f.parquet")
    ),
    ("Timebase", "ValueError"): lambda p, t: wd.Timebase("hours"),
    ("TrajectoryIngestor", "ValueError"): lambda p, t: wd.TrajectoryIngestor(
        t / "i.rvf", "state"
    ).ingest_episode(f"{p / 'root'}#0"),
    ("TrajectoryRetriever", "BlobNotFoundError"): lambda p, t: wd.TrajectoryRetriever(
        t / "n.rvf", "state"
    ).search_similar_episodes({"x": [1]}),
    ("VideoOptions", "ValueError"): lambda p, t: wd.VideoOptions(codec="gif"),
    ("VideoSignalWriter", "ConflictError"): lambda p, t: wd.VideoSignalWriter(p / "junk", t / "f.parquet"),
    ("WShardEpisode", "SchemaMismatchError"): lambda p, t: save_rows(t / "q.wshard", length=4),
    ("save_wshard", "SchemaMismatchError"): lambda p, t: save_rows(t / "q.wshard", length=4),
    ("WShardStreamWriter", "ConflictError"): lambda p, t: stream(p / "whole.wshard", steps=1, width=2),
    ("WShardStreamWriter", "SchemaMismatchError"): lambda p, t: stream(t / "a.wshard", steps=1, width=3),
    ("WShardStreamWriter", "WriterClosedError"): lambda p, t: stream(
        t / "a.wshard", steps=1, width=2
    ).write_timestep({}),
    ("Windows", "KeyError"): lambda p, t: wd.Windows(
        wd.open_episodes(p / "root"), {"a": "none"}, anchor="joints"
    ),
    ("Windows", "ValueError"): lambda p, t: len(windows(p, anchor="observation")),
    ("check_dataset", "BlobNotFoundError"): lambda p, t: wd.check_dataset(t / "none"),
    ("chunk_episode", "TruncatedError"): lambda p, t: wd.chunk_episode(p / "cut.wshard", t / "c", steps=2),
    ("chunk_episode", "ValueError"): lambda p, t: wd.chunk_episode(p / "whole.wshard", t / "c", steps=0),
    ("ChunkedEpisodeWriter", "SchemaMismatchError"): lambda p, t: write_other_chunks(t / "c"),
    ("compute_error_residual", "ValueError"): lambda p, t: wd.compute_error_residual(SHORT, LONG),
    ("dataset", "BudgetExceededError"): lambda p, t: wd.dataset(
        "lab/a", catalog=p / "catalog", max_requests=0
    ),
    ("dataset", "DatasetNotFoundError"): lambda p, t: wd.dataset("lab/none", catalog=p / "catalog"),
    ("dequantize_delta", "ValueError"): lambda p, t: wd.dequantize_delta(
        np.zeros((3, 1), np.int8), np.zeros((9, 9))
    ),
    ("embed", "ValueError"): lambda p, t: wd.embed(p / "root", uneven, name="uneven"),
    ("encode_shard_bytes", "SchemaMismatchError"): lambda p, t: wd.encode_shard_bytes(SHORT),
    ("error_residual", "ValueError"): lambda p, t: wd.error_residual(SHORT, LONG),
    ("export_episodes", "ConflictError"): lambda p, t: wd.export_episodes(
        p / "root", p / "corpus", "zarr", rate=10
    ),
    ("export_episodes", "ValueError"): lambda p, t: wd.export_episodes(p / "root", t / "x", "paper"),
    ("export_site", "ConflictError"): lambda p, t: wd.export_site(p / "root", p / "corpus"),
    ("find_duplicates", "DatasetError"): lambda p, t: wd.find_duplicates(p / "root"),
    ("find_similar", "DatasetError"): lambda p, t: wd.find_similar(p / "root", 0, 0, 10**9),
    ("rank_novelty", "DatasetError"): lambda p, t: wd.rank_novelty(p / "root"),
    ("import_episodes", "BadMagicError"): lambda p, t: wd.import_episodes(p / "junk", t / "i"),
    ("keep_decoded", "ValueError"): lambda p, t: wd.keep_decoded("much"),
    ("load", "DatasetNotFoundError"): lambda p, t: wd.load("lab/none", catalog=p / "catalog"),
    ("load_wshard", "BadMagicError"): lambda p, t: wd.load_wshard(p / "junk"),
    ("load_wshard", "BlobNotFoundError"): lambda p, t: wd.load_wshard(t / "none.wshard"),
    ("load_wshard", "TruncatedError"): lambda p, t: wd.load_wshard(p / "cut.wshard"),
    ("masked_mean", "ValueError"): lambda p, t: wd.masked_mean(np.zeros((2, 3)), np.zeros(3, bool)),
    ("open", "BadMagicError"): lambda p, t: wd.open(p / "junk"),
    ("open", "BlobNotFoundError"): lambda p, t: wd.open(t / "none"),
    ("open", "DatasetNotFoundError"): lambda p, t: wd.open("lab/none", catalog=p / "catalog"),
    ("open_corpus", "BlobNotFoundError"): lambda p, t: wd.open_corpus(t / "none"),
    ("open_dataset", "DatasetNotFoundError"): lambda p, t: wd.open_dataset("lab/none", catalog=p / "catalog"),
    ("open_episode", "BadMagicError"): lambda p, t: wd.open_episode(p / "junk"),
    ("open_episode", "BlobNotFoundError"): lambda p, t: wd.open_episode(t / "none"),
    ("open_episode", "KeyError"): lambda p, t: wd.open_episode(f"{p / 'root'}#99"),
    ("open_episode", "TruncatedError"): lambda p, t: wd.open_episode(p / "cut.wshard"),
    ("open_episodes", "BadMagicError"): lambda p, t: wd.open_episodes(p / "junk"),
    ("open_episodes", "BlobNotFoundError"): lambda p, t: wd.open_episodes(t / "none"),
    ("open_recordings", "BlobNotFoundError"): lambda p, t: wd.open_recordings(t / "none"),
    ("open_vectors", "BlobNotFoundError"): lambda p, t: wd.open_vectors(t / "none.rvf"),
    ("open_vectors", "ConflictError"): lambda p, t: [wd.open_vectors(make_vectors(t), "a") for _ in "ab"],
    ("open_vectors", "CorruptLayoutError"): lambda p, t: wd.open_vectors(p / "junk"),
    ("pack_episode", "ConflictError"): lambda p, t: wd.pack_episode(f"{p / 'root'}#0", p / "whole.wshard"),
    ("quantize_delta", "ValueError"): lambda p, t: wd.quantize_delta(SHORT, LONG),
    ("reconstruct_from_omen_and_delta", "ValueError"): lambda p, t: wd.reconstruct_from_omen_and_delta(
        np.zeros((3, 1)), np.zeros((4, 1), np.int8), np.zeros((1, 1))
    ),
    ("salvage", "BadMagicError"): lambda p, t: wd.salvage(p / "junk"),
    ("salvage", "BlobNotFoundError"): lambda p, t: wd.salvage(t / "none"),
    ("unpack_episode", "ConflictError"): lambda p, t: wd.unpack_episode(
        wd.pack_episode(f"{p / 'root'}#0", t / "p.wshard"), p / "corpus"
    ),
    ("validate_chunk_continuity", "CorruptLayoutError"): lambda p, t: wd.validate_chunk_continuity(
        list_without_first_chunk(t if (t / "whole.wshard").exists() else p)
    ),
    ("view", "BlobNotFoundError"): lambda p, t: wd.view(t / "none", open_browser=False),
}


def append_disk(writer: Any) -> None:
    with writer:
        writer.append("a", 1.0, 1)
        writer.append("a", np.zeros(3), 2)


def append_signal(writer: Any) -> None:
    with writer:
        writer.append(1.0, 1)
        writer.append("x", 2)


def make_vectors(folder: Path) -> Path:
    if not (folder / "v.rvf").exists():
        wd.VectorStore.create(folder / "v.rvf", dim=4).close()
    return folder / "v.rvf"


def save_rows(path: Path, *, length: int, name: str = "x") -> None:
    episode = wd.WShardEpisode("e", length=3)
    episode.observations[name] = np.zeros((length, 2), np.float32)
    wd.save_wshard(episode, path)


def write_other_chunks(folder: Path) -> None:
    writer = wd.ChunkedEpisodeWriter(folder, "e", chunk_size_t=2)
    for name in ("x", "y"):
        episode = wd.WShardEpisode("e", length=2)
        episode.observations[name] = np.zeros((2, 2), np.float32)
        writer.write_chunk(episode)


@pytest.mark.parametrize(("name", "error"), TRIGGERS, ids=lambda word: word)
def test_calls_raise_what_the_reference_names(place: Path, tmp_path: Path, name: str, error: str) -> None:
    assert error in dict(errors_of(name)), f"wd.{name}: {error} is not in the reference"
    with pytest.raises(kind_of(error)):
        TRIGGERS[name, error](place, tmp_path)


def test_every_error_of_the_reference_is_raised_here() -> None:
    claimed = {(name, error) for name in NAMES for error, _ in errors_of(name)}
    rest = {(name, error) for name, error in claimed - set(TRIGGERS) if error not in NEEDS_A_FAULT.split()}
    assert {name for name, _ in rest} <= {"DatasetBuilder", "ray.publish", "ray.read_episodes"}, sorted(rest)
