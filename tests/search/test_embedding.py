"""Vectors over many episodes: every one leads back to its moment, and the bytes are the same however it was done."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.sweeps import SOAK
from warpdata.errors import ConflictError, DatasetError
from warpdata.search.file.rewrite import write_vectors
from warpdata.search.moments import embedding
from warpdata.search.moments.behaviour import Observation
from warpdata.search.moments.embedders import BUILT_IN
from warpdata.search.store import VectorStore

STEP_NS = 20_000_000


def record(root: Path, count: int = 3, *, length: int = 20, camera: bool = False) -> Path:
    for number in range(count):
        rng = np.random.default_rng(number)
        with wd.record(root, static={"task": "reach"}, clock="simulated") as rec:
            for k in range(length + number):
                state = rng.normal(size=3).astype(np.float32)
                rec.step(
                    {"joints": state, "a": np.float32([number])},
                    {"torque": state},
                    reward=1.0,
                    ts_ns=k * STEP_NS,
                )
                if camera and k % 4 == 0:
                    picture = np.full((24, 32, 3), 10 * k, np.uint8)
                    rec.append("camera", picture, k * STEP_NS + 7)
    return root


def embed_joints(observation: Any) -> np.ndarray:
    return np.append(observation["joints"], 1.0)


def many_joints(channels: dict[str, np.ndarray]) -> np.ndarray:
    joints = channels["joints"]
    return np.concatenate([joints, np.ones((len(joints), 1), np.float32)], 1)


class Model:
    """Made once in each process."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def __call__(self, observation: Any) -> np.ndarray:
        return np.append(observation["joints"], float(type(self).made))


def rows_of(path: str | Path) -> tuple[np.ndarray, list[dict[str, Any]], dict[str, Any]]:
    with VectorStore.open(path) as store:
        return store.get(store.ids), store.metadata(store.ids), store.notes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_vector_leads_back_to_its_moment(tmp_path: Path, cache: Path) -> None:
    root = record(tmp_path / "root")
    made = wd.embed(root, embed_joints, name="joints", max_steps=0)
    assert (made.vectors, made.dim, made.computed, made.without) == (63, 4, 3, {})
    assert made.path == str(root / "joints.rvf")
    vectors, rows, notes = rows_of(made.path)
    episodes = wd.open(root)
    for vector, row in zip(vectors, rows, strict=True):
        episode = episodes[row["episode_id"]]
        value, ts_ns = episode["joints"].time[row["ts_ns"]]
        assert (ts_ns, row["step"] * STEP_NS) == (row["ts_ns"], row["ts_ns"])
        np.testing.assert_array_equal(vector, np.append(value, np.float32(1)))
        assert row["length"] == episode.steps.length
        assert row["content"] == episodes.contents[episodes.ids.index(row["episode_id"])]
        assert wd.open_episode(row["file_path"]).id == row["episode_id"]
    assert len({row["key"] for row in rows}) == 63
    assert notes["per"] == "step"
    assert not list(cache.rglob("*.rvf")), "nothing waits any more"
    with wd.TrajectoryRetriever(made.path, embedder=embed_joints) as retriever:
        wanted = episodes[1]["joints"].values()[7]
        best = retriever.search_similar_episodes({"joints": wanted}, top_k=1)[0]
    assert (best.episode_id, best.step, best.ts_ns) == (episodes.ids[1], 7, 7 * STEP_NS)


def test_steps_are_those_a_rate_or_a_clock_or_a_number_chooses(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 1, camera=True)
    episode = wd.open(root)[0]

    def times(**options: Any) -> list[int]:
        made = wd.embed(root, "state", output=tmp_path / "x.rvf", overwrite=True, signals="joints", **options)
        return [row["ts_ns"] for row in rows_of(made.path)[1]]

    assert times() == episode.steps.times_ns.tolist()
    assert times(max_steps=3) == episode.steps.times_ns[[0, 9, 19]].tolist()
    assert times(rate_hz=10) == episode.steps_at(rate_hz=10).times_ns.tolist()
    assert times(clock="camera") == episode["camera"].timestamps.tolist()
    assert times(per="episode") == [0]
    assert times(per="window", window=8, stride=6) == [0, 6 * STEP_NS, 12 * STEP_NS]


def test_a_window_is_what_an_ingestor_adds(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 2)
    made = wd.embed(root, embed_joints, per="window", window=8, stride=6, output=tmp_path / "a.rvf")
    with wd.TrajectoryIngestor(tmp_path / "b.rvf", embedder=embed_joints) as ingestor:
        for each in wd.open(root):
            ingestor.ingest_timesteps(each, window_size=8, stride=6)
    mine, theirs = rows_of(made.path), rows_of(tmp_path / "b.rvf")
    np.testing.assert_array_equal(mine[0], theirs[0])
    assert [{k: v for k, v in row.items() if k != "content"} for row in mine[1]] == theirs[1]


@pytest.mark.parametrize("per", ["step", "episode"])
def test_steps_and_episodes_are_what_an_ingestor_adds(tmp_path: Path, per: Any) -> None:
    root = record(tmp_path / "root", 2)
    made = wd.embed(root, embed_joints, per=per, max_steps=5, output=tmp_path / "a.rvf")
    with wd.TrajectoryIngestor(tmp_path / "b.rvf", embedder=embed_joints) as ingestor:
        ingestor.ingest_episodes(wd.open(root), max_steps=1 if per == "episode" else 5)
    mine, theirs = rows_of(made.path), rows_of(tmp_path / "b.rvf")
    np.testing.assert_array_equal(mine[0], theirs[0])
    assert [{k: v for k, v in row.items() if k != "content"} for row in mine[1]] == theirs[1]


def test_frames_of_every_camera(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 2, camera=True)
    made = wd.embed(root, "image", per="frame")
    vectors, rows, _ = rows_of(made.path)
    episode = wd.open(root)[1]
    mine = [(v, r) for v, r in zip(vectors, rows, strict=True) if r["episode_id"] == episode.id]
    assert [row["ts_ns"] for _, row in mine] == episode["camera"].timestamps.tolist()
    assert {(row["camera"], row["frame"]) for _, row in mine} == {("camera", k) for k in range(len(mine))}
    one = BUILT_IN["image"](Observation({"camera": episode["camera"][3][0]}))
    np.testing.assert_allclose(mine[3][0], one, rtol=1e-5, atol=1e-4)
    assert one[:48].mean() == pytest.approx(episode["camera"][3][0].mean() / 255, rel=0.05)
    with wd.TrajectoryRetriever(made.path, embedder="image") as retriever:
        best = retriever.search_similar_episodes({"camera": np.full((24, 32, 3), 42, np.uint8)}, top_k=1)[0]
    assert best.metadata["frame"] == 1, "grey pictures differ by their light"
    fewer = wd.embed(root, "image", per="frame", rate_hz=5, output=tmp_path / "x.rvf")
    assert fewer.vectors < made.vectors


def test_frames_of_several_cameras_are_vectors_of_one_index(tmp_path: Path) -> None:
    """Each is made of its own camera: a query names any of them, and no other."""
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for k in range(6):
            rec.append("left", np.full((24, 32, 3), 10 * k, np.uint8), k * STEP_NS)
            rec.append("right", np.full((24, 32, 3), 200 - k, np.uint8), k * STEP_NS + 3)
    made = wd.embed(tmp_path / "root", "image", per="frame")
    assert wd.embed(tmp_path / "root", "image", per="frame").reused == 1
    with wd.TrajectoryRetriever(made.path, embedder="image") as retriever:
        for name, light in (("left", 31), ("right", 198)):
            picture = np.full((24, 32, 3), light, np.uint8)
            best = retriever.search_similar_episodes({name: picture}, top_k=1)[0]
            assert (best.metadata["camera"], best.metadata["frame"]) == (name, 3 if name == "left" else 2)
        with pytest.raises(ValueError, match="unknown channel 'top'"):
            retriever.search_similar_episodes({"top": picture})
    assert wd.embed(tmp_path / "root", mean_colour, per="frame", batch_size=4, revision="1").vectors == 12


def mean_colour(channels: Any) -> np.ndarray:
    return np.concatenate([each.mean(axis=(1, 2)) for each in channels.values()], axis=1)


def test_small_pictures_depth_and_channels_first() -> None:
    rng = np.random.default_rng(0)
    image = BUILT_IN["image"].many
    picture = rng.integers(0, 255, (2, 40, 50, 3)).astype(np.uint8)
    np.testing.assert_allclose(
        image({"c": picture}), image({"c": np.moveaxis(picture, 3, 1)}), rtol=1e-4, atol=1e-3
    )
    blocks = rng.normal(size=(1, 16, 16)).astype(np.float32)
    large = blocks.repeat(3, axis=1).repeat(2, axis=2)
    layouts = [image({"c": pictures})[:, :16] for pictures in (large, blocks)]
    np.testing.assert_allclose(*layouts, rtol=1e-4, atol=1e-5)
    assert image({"c": rng.normal(size=(1, 9, 12))}).shape == (1, 16 + 8 * 16)


def test_functions_of_batches_and_classes(tmp_path: Path) -> None:
    root = record(tmp_path / "root")
    one = wd.embed(root, embed_joints, revision="r", output=tmp_path / "a.rvf", max_steps=0)
    many = wd.embed(root, many_joints, revision="r", output=tmp_path / "b.rvf", max_steps=0, batch_size=7)
    assert Path(one.path).read_bytes() == Path(many.path).read_bytes()
    Model.made = 0
    made = wd.embed(root, Model, output=tmp_path / "c.rvf")
    assert Model.made == 1
    assert set(rows_of(made.path)[0][:, -1].tolist()) == {1.0}


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 4)
    sums = set()
    for jobs in (1, 2, 4) if SOAK else (1, 3):
        made = wd.embed(root, embed_joints, output=tmp_path / f"{jobs}.rvf", jobs=jobs)
        assert made.computed == 4
        sums.add(hashlib.sha256(Path(made.path).read_bytes()).hexdigest())
    assert len(sums) == 1
    with pytest.raises(ValueError, match="other processes"):
        wd.embed(root, lambda observation: observation["joints"], output=tmp_path / "x.rvf", jobs=2)


def test_a_stopped_run_goes_on(tmp_path: Path, cache: Path) -> None:
    root = record(tmp_path / "root")
    calls = []

    def fails_late(observation: Any) -> np.ndarray:
        calls.append(1)
        if len(calls) > 45:
            raise RuntimeError("out of memory")
        return embed_joints(observation)

    with pytest.raises(RuntimeError):
        wd.embed(root, fails_late, revision="r", name="joints", max_steps=0)
    assert not (root / "joints.rvf").exists()
    kept = sorted(cache.rglob("*.rvf"))
    assert len(kept) == 2
    damaged = bytearray(kept[0].read_bytes())
    damaged[300] ^= 1  # one of the vectors
    kept[0].write_bytes(damaged)
    made = wd.embed(root, embed_joints, revision="r", name="joints", max_steps=0)
    assert (made.computed, made.resumed) == (2, 1)
    whole = wd.embed(root, embed_joints, revision="r", output=tmp_path / "x.rvf", max_steps=0)
    assert whole.computed == 3
    assert Path(made.path).read_bytes() == Path(whole.path).read_bytes()


def test_only_what_changed_is_embedded_again(tmp_path: Path) -> None:
    """Vectors of a changed episode replace its earlier ones in the file; nothing else is written again."""
    root = record(tmp_path / "root", length=400)
    path = Path(wd.embed(root, embed_joints, revision="r", name="joints", max_steps=0).path)
    before = path.read_bytes()
    record(root, 1)
    edited = wd.open_recordings(root)
    edited.edits.trim(edited.ids[1], 0, 5 * STEP_NS)
    made = wd.embed(root, embed_joints, revision="r", name="joints", max_steps=0)
    assert (made.computed, made.reused) == (2, 2)
    assert path.read_bytes().startswith(before), "rows of other episodes stay where they are"
    assert path.stat().st_size < 1.5 * len(before)
    fresh = wd.embed(root, embed_joints, revision="r", output=tmp_path / "x.rvf", max_steps=0)
    tables = []
    for each in (path, Path(fresh.path)):
        vectors, rows, notes = rows_of(each)
        keys = [row["key"] for row in rows]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        tables.append((vectors[order].tolist(), [rows[at] for at in order], notes))
    assert tables[0] == tables[1]
    again = wd.embed(root, embed_joints, revision="r", name="joints", max_steps=0)
    assert (again.computed, again.reused, again.vectors) == (0, 4, made.vectors)
    other = wd.embed(root, embed_joints, revision="s", name="joints", overwrite=True)
    assert other.computed == 4


def test_other_vectors_are_not_replaced_unasked(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 1)
    wd.embed(root, "state")
    before = (root / "state.rvf").read_bytes()
    with pytest.raises(ConflictError, match="other vectors"):
        wd.embed(root, "state", max_steps=3)
    assert (root / "state.rvf").read_bytes() == before
    assert wd.embed(root, "state", max_steps=3, overwrite=True).vectors == 3


def test_what_cannot_be_embedded_is_told(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 2)
    with wd.record(root) as rec:  # in time only: no steps
        rec.append("lidar", np.zeros(4), 0)
        rec.append("joints", np.zeros(3), 5)
    made = wd.embed(root, "state", signals="joints")
    assert list(made.without) == [wd.open(root).ids[2]]
    assert "rate" in made.without[wd.open(root).ids[2]]
    with pytest.raises(DatasetError, match="no camera"):
        wd.embed(root, "image", per="frame")
    with pytest.raises(KeyError, match="Did you mean 'joints'"):
        wd.embed(root, "state", name="x", signals="joint")
    with pytest.raises(ValueError, match="Did you mean 'state'"):
        wd.embed(root, "stat")
    with pytest.raises(ValueError, match="Did you mean 'window'"):
        wd.embed(root, "state", per="windows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        wd.embed(root, lambda _: [np.nan], output=tmp_path / "x.rvf")
    with pytest.raises(ValueError, match="name a file with output="):
        wd.embed(wd.open(root)[:1], "state")
    grows = iter(range(1, 10_000))
    with pytest.raises(ValueError, match="vectors of"):
        wd.embed(root, lambda _: np.zeros(next(grows)), output=tmp_path / "x.rvf")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate_hz": 5, "clock": "joints"}, "either clock= or rate_hz="),
        ({"per": "frame", "clock": "joints"}, "times of their camera"),
        ({"max_steps": -1}, "max_steps is at least 1"),
        ({"per": "window", "window": 0}, "at least 1, not 0"),
        ({"per": "window", "stride": -2}, "at least 1, not 32, -2"),
        ({"batch_size": 0}, "batch_size is at least 1"),
        ({"rate_hz": 0}, "rate_hz"),
        ({"rate_hz": float("nan")}, "rate_hz"),
        ({"index": "hsnw"}, "Did you mean 'hnsw'"),
        ({"name": "a/b"}, "not a name for an index"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    root = record(tmp_path / "root", 1)
    with pytest.raises(ValueError, match=said):
        wd.embed(root, "state", **options)
    assert not list(root.rglob("*.rvf"))


def test_an_embedder_of_batches_gives_a_row_for_each(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 1)
    for given in (np.zeros((1, 3)), np.zeros(4), np.zeros((4, 0)), np.full((4, 2), np.inf)):
        with pytest.raises(ValueError, match="give a row of finite numbers for each"):
            wd.embed(root, lambda _, given=given: given, batch_size=4, output=tmp_path / "x.rvf")
    assert not (tmp_path / "x.rvf").exists()


def test_episodes_with_other_signals_are_told(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 1)
    with wd.record(root) as rec:
        rec.step({"joints": np.zeros(5, np.float32)}, {"torque": np.zeros(1)}, ts_ns=0)
    with pytest.raises(DatasetError, match=r"embedded from a, joints, .* from joints") as error:
        wd.embed(root, "state")
    assert "signals=" in str(error.value.hint)


def moments_of(store: VectorStore) -> dict[tuple[Any, Any], list[float]]:
    """The vector of each episode and step."""
    rows = store.metadata(store.ids, ["episode_id", "step"])
    named = zip(rows, store.get(store.ids).tolist(), strict=True)
    return {(row["episode_id"], row["step"]): vector for row, vector in named}


def test_published_vectors_are_a_part_of_a_new_version(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        builder.add_episodes("demos", record(tmp_path / "root"))
        first = builder.publish()
    made = wd.embed("lab/arm", embed_joints, name="joints", catalog=catalog, message="vectors")
    assert made.version != first.version
    with wd.dataset("lab/arm", catalog=catalog) as after:
        assert after.version == made.version
        assert after.artifact("vectors-joints").kind == "vector_index"
        held = after.artifact("vectors-joints").shard_reader(0)
        published = bytes(held.read(0, held.size))
        with after.vectors("vectors-joints") as store:
            row = store.metadata(store.search(store.get([30])[0], k=1)[0])[0]
        assert row["step"] == int(np.round(row["ts_ns"] / STEP_NS))
        assert row["file_path"] == f"lab/arm#{row['episode_id']}"
        assert after.episodes[row["episode_id"]].id == row["episode_id"]
    again = wd.embed("lab/arm", embed_joints, name="joints", catalog=catalog)
    assert (again.version, again.computed, again.reused) == (made.version, 0, 3)
    record(tmp_path / "root", 1)
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        builder.extend().add_episodes("demos", tmp_path / "root")
        builder.publish()
    grown = wd.embed("lab/arm", embed_joints, name="joints", catalog=catalog)
    assert (grown.computed, grown.reused) == (1, 3)
    aside = wd.embed("lab/arm", embed_joints, catalog=catalog, output=tmp_path / "x.rvf")
    with wd.dataset("lab/arm", catalog=catalog) as now, wd.open_vectors(aside.path) as fresh:
        reader = now.artifact("vectors-joints").shard_reader(0)
        assert bytes(reader.read(0, len(published))) == published, "the new episode is behind the others"
        with now.vectors("vectors-joints") as store:
            assert not store.verify()
            assert moments_of(store) == moments_of(fresh)
    with pytest.raises(ConflictError, match="other vectors"):
        wd.embed("lab/arm", "state", name="joints", catalog=catalog)


def test_a_file_of_vectors_is_the_same_every_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(100, 5)).astype(np.float32)
    rows = [{"n": n, "t": str(n)} for n in range(100)]
    for name, cuts in (("a", [100]), ("b", [100])):
        write_vectors(
            tmp_path / name, [(vectors[: cuts[0]], rows[: cuts[0]])], metric="l2", notes={"who": "me"}
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with VectorStore.open(tmp_path / "a", mode="a") as store:
        assert store.notes == {"who": "me"}
        assert not store.verify()
        assert store.search(vectors[40], k=1)[0].tolist() == [40]
        assert store.add(vectors[:1], metadata=[{"n": 100}]).tolist() == [100]
        store.compact()
        assert store.notes == {"who": "me"}
        assert len(store) == 101
    with pytest.raises(ConflictError):
        write_vectors(tmp_path / "a", [(vectors, rows)])
    with pytest.raises(ValueError, match="no vectors"):
        write_vectors(tmp_path / "c", [])
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_many_vectors_get_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """The same bytes every time, the same vectors as without it, and searches use it."""
    root = record(tmp_path / "root", 6, length=200)
    plain = wd.embed(root, embed_joints, output=tmp_path / "plain.rvf", index="none", max_steps=0)
    assert (plain.index, plain.vectors >= 1200) == (None, True)
    auto = wd.embed(root, embed_joints, output=tmp_path / "auto.rvf", max_steps=0)
    assert auto.index is None, "too few"
    monkeypatch.setattr("warpdata.search.file.content.WORTH_INDEXING", 1000)
    choice = "auto" if kind == "hnsw" else kind
    made = [
        wd.embed(root, embed_joints, output=tmp_path / f"{jobs}.rvf", index=choice, max_steps=0, jobs=jobs)
        for jobs in (1, 2)
    ]
    assert [each.index for each in made] == [kind, kind]
    assert f"({kind})" in str(made[0])
    assert (tmp_path / "1.rvf").read_bytes() == (tmp_path / "2.rvf").read_bytes()
    with VectorStore.open(tmp_path / "1.rvf") as indexed, VectorStore.open(tmp_path / "plain.rvf") as store:
        assert (indexed.stats()["index"], store.stats()["index"]) == (kind, None)
        assert indexed.verify() == []
        assert indexed.notes == store.notes
        assert np.array_equal(indexed.get(store.ids), store.get(store.ids))
        assert indexed.metadata(store.ids) == store.metadata(store.ids)
        some = store.get(store.ids[::100])
        assert (indexed.search(some, k=1)[0] == store.search(some, k=1, exact=True)[0]).all()
    again = wd.embed(root, embed_joints, output=tmp_path / "1.rvf", index=choice, max_steps=0)
    assert again.reused == 6
    assert (tmp_path / "1.rvf").read_bytes() == (tmp_path / "2.rvf").read_bytes()


def test_without_the_library_there_is_no_index_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = record(tmp_path / "root")
    monkeypatch.setattr("warpdata.search.file.content.WORTH_INDEXING", 1)
    with monkeypatch.context() as patch:
        patch.setattr(embedding, "available_bytes", lambda: 1000)
        assert wd.embed(root, embed_joints, name="large").index is None, "it would not fit into memory"
    monkeypatch.setattr(embedding, "has_faiss", lambda: False)
    assert wd.embed(root, embed_joints).index is None
    with pytest.raises(ValueError, match="hnsw"):
        wd.embed(root, embed_joints, index="hnws")  # type: ignore[arg-type]


def test_much_metadata_lies_in_several_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpdata.search.file.metadata.SEGMENT_ROWS", 7)
    monkeypatch.setattr(embedding, "_WRITTEN_BYTES", 1)
    root = record(tmp_path / "root")
    made = wd.embed(root, "state")
    for rewrite in (False, True):
        if rewrite:
            with VectorStore.open(made.path, mode="a") as store:
                store.compact()
        vectors, rows, notes = rows_of(made.path)
        assert len(vectors) == len(rows) == 63
        assert all(row["content"] for row in rows)
        assert notes["embedder"] == "state"
        with VectorStore.open(made.path) as store:
            count = len([each for each in store.segments() if each["type"].lower() == "meta"])
            assert count == (9 if rewrite else 3)
