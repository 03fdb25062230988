"""Moments that a person calls similar: windows by their motion, re-ranked, merged, and never the query itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.behaviours import agreement, record_behaviours

import warpdata as wd
from warpdata.errors import DatasetError
from warpdata.search.moments.embedders import Scale, WindowEmbedder, resample, window_spans
from warpdata.search.moments.similar import warped_distance

STEP_NS = 20_000_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("behaviours") / "root"
    names = record_behaviours(folder, 72, counts=50_000)
    return folder, names


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))


def embed(root: Path, output: Path, embedder: Any = "motion", **options: Any) -> Any:
    given: dict[str, Any] = {"per": "window", "window_s": 2.0, "output": output, **options}
    return wd.embed(root, embedder, **given)


def test_neighbours_show_the_same_behaviour(root: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, names = root
    made = embed(folder, tmp_path / "motion.rvf")
    assert made.vectors == 72
    with wd.open_vectors(made.path) as store:
        assert agreement(store, names) >= 0.95
        assert set(Scale.parse(store.notes["scale"]).numbers) == {"encoder", "joints"}
    embed(folder, tmp_path / "state.rvf", "state")
    with wd.open_vectors(tmp_path / "state.rvf") as store:
        assert agreement(store, names) < 0.9, "means alone do not separate them"


def test_find_similar(root: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, names = root
    made = embed(folder, tmp_path / "w.rvf", window_s=1.0, stride_s=0.25)
    episode = next(iter(names))
    hits = wd.find_similar(folder, episode, 200_000_000, 1_200_000_000, k=4, index=made.path)
    assert len(hits) == 4
    assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
    assert sum(names[hit.episode_id] == names[episode] for hit in hits) >= 3
    for hit in hits:
        assert hit.t1_ns - hit.t0_ns == 1_000_000_000
        assert hit.episode_id != episode or hit.t0_ns >= 1_200_000_000 or hit.t1_ns <= 200_000_000
    spans = [(hit.episode_id, hit.t0_ns) for hit in hits]
    assert len(set(spans)) == 4
    assert wd.find_similar(folder, 0, 200_000_000, 1_200_000_000, k=4, index=made.path) == hits
    with pytest.raises(ValueError, match="no steps between"):
        wd.find_similar(folder, episode, 10**12, 2 * 10**12, index=made.path)
    with pytest.raises(ValueError, match="t0_ns before t1_ns"):
        wd.find_similar(folder, episode, 5, 5, index=made.path)
    with pytest.raises(ValueError, match="embedder mismatch: the index was made by motion"):
        wd.find_similar(folder, episode, 0, 10**9, index=made.path, embedder="state")


def test_an_index_of_an_own_function(root: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, names = root

    def ends(window: Any) -> Any:
        assert window["joints"].ndim == 2
        return np.append(window["joints"][0], window["joints"][-1])

    made = embed(folder, tmp_path / "f.rvf", ends, signals=["joints"])
    assert (made.vectors, made.dim) == (72, 14)
    episode = next(iter(names))
    assert wd.find_similar(folder, episode, 0, 2 * 10**9, index=made.path, embedder=ends)
    with pytest.raises(ValueError, match="give embedder= the same function"):
        wd.find_similar(folder, episode, 0, 2 * 10**9, index=made.path)
    with pytest.raises(ValueError, match="embedder mismatch"):
        wd.find_similar(folder, episode, 0, 2 * 10**9, index=made.path, embedder=lambda w: w)
    many = embed(folder, tmp_path / "b.rvf", lambda b: b["joints"][:, [0, -1]].reshape(len(b["joints"]), -1),
                 signals=["joints"], batch_size=8)  # fmt: off
    with wd.open_vectors(many.path) as batch, wd.open_vectors(made.path) as single:
        np.testing.assert_array_equal(batch.get(batch.ids), single.get(single.ids))


def both_ends(batch: Any) -> Any:
    return batch["joints"][:, [0, -1]].reshape(len(batch["joints"]), -1)


def test_how_a_function_was_called_is_how_it_is_asked(
    root: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, names = root
    episode, moment = next(iter(names)), (0, 2 * 10**9)
    made = embed(folder, tmp_path / "b.rvf", both_ends, batch_size=8, revision="v7")
    found = wd.find_similar(
        folder, episode, *moment, index=made.path, embedder=both_ends, revision="v7", batch_size=8
    )
    assert len(found) == 5
    with pytest.raises(ValueError, match="embedder mismatch: the index was made by v7"):
        wd.find_similar(folder, episode, *moment, index=made.path, embedder=both_ends, batch_size=8)
    with pytest.raises(ValueError, match="give batch_size="):
        wd.find_similar(folder, episode, *moment, index=made.path, embedder=both_ends, revision="v7")

    def other_channel(window: Any) -> Any:
        return np.resize(window["encoder"], 14)

    with pytest.raises(ValueError, match="channel mismatch: expected joints, got encoder"):
        wd.find_similar(folder, episode, *moment, index=made.path, embedder=other_channel, revision="v7")


def test_numbers_in_another_unit_are_refused(root: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    made = embed(root[0], tmp_path / "motion.rvf")
    other = tmp_path / "other"
    with wd.record(other, clock="simulated") as recorder:
        for step in range(100):
            values = {"joints": np.full(7, 57_000 + step, np.float32), "encoder": np.zeros(1, np.float32)}
            recorder.step(values, {"command": np.zeros(7, np.float32)}, ts_ns=step * STEP_NS)
    with pytest.raises(ValueError, match="scale mismatch: channel 'joints'"):
        wd.find_similar(other, 0, 0, 10**9, index=made.path)


def test_modules_of_torch_and_signals_made_before(root: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = root[0]

    class Middle(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(7, 4)
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, windows: Any) -> Any:
            assert windows.ndim == 3
            return self.dropout(self.last(windows.mean(1)))

    module = Middle()
    made = embed(folder, tmp_path / "t.rvf", module, signals=["joints"])
    assert (made.vectors, made.dim, module.training) == (72, 4, True)
    found = wd.find_similar(folder, 0, 0, 2 * 10**9, index=made.path, embedder=module.eval())
    assert len(found) == 5
    with pytest.raises(ValueError, match="embedder mismatch"):  # other weights
        wd.find_similar(folder, 0, 0, 2 * 10**9, index=made.path, embedder=Middle())
    step = torch.nn.Linear(7, 3)
    wd.embed(folder, step, signals="joints", max_steps=2, output=tmp_path / "s.rvf")
    plain = wd.embed(
        folder, "state", signals="joints", metric="cosine", max_steps=2, output=tmp_path / "p.rvf"
    )
    with wd.open_vectors(tmp_path / "s.rvf") as store, wd.open_vectors(plain.path) as raw:
        with torch.no_grad():
            expected = step(torch.from_numpy(raw.get(raw.ids))).numpy()
        np.testing.assert_allclose(store.get(store.ids), expected, atol=1e-5)
        assert (raw.metric, raw.dim) == ("cosine", 7)


def test_nothing_new_costs_nothing_and_the_scale_stays(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    record_behaviours(folder, 4)
    made = wd.embed(folder, "motion", per="window", window_s=1.0)
    before = Path(made.path).stat()
    again = wd.embed(folder, "motion", per="window", window_s=1.0)
    after = Path(made.path).stat()
    assert (again.computed, again.reused, again.vectors) == (0, 4, made.vectors)
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    with wd.open_vectors(made.path) as store:
        scale, vectors = store.notes["scale"], store.get(store.ids)
    record_behaviours(folder, 1, seed=9, counts=1000)
    grown = wd.embed(folder, "motion", per="window", window_s=1.0)
    assert (grown.computed, grown.reused) == (1, 4)
    with wd.open_vectors(made.path) as store:
        assert store.notes["scale"] == scale
        np.testing.assert_array_equal(store.get(store.ids[: len(vectors)]), vectors)


def test_duplicates_and_novelty(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    record_behaviours(folder, 8, seed=1)
    record_behaviours(folder, 1, seed=1)  # the first one again
    ids = wd.open(folder).ids
    with wd.record(folder, clock="simulated") as recorder:
        for step in range(100):
            still = {"joints": np.zeros(7, np.float32), "encoder": np.zeros(1, np.float32)}
            recorder.step(still, {"command": np.zeros(7, np.float32)}, ts_ns=step * STEP_NS)
    wd.embed(folder, "motion", per="window", window_s=1.0)
    pairs = wd.find_duplicates(folder)
    assert [(a, b) for a, b, _ in pairs] == [(ids[0], ids[8])]
    scores = dict(wd.rank_novelty(folder))
    assert scores[ids[0]] == pytest.approx(0, abs=1e-6)
    assert set(list(scores)[-2:]) == {ids[0], ids[8]}


def test_pictures_and_motion_with_weights(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    for number in range(4):
        with wd.record(folder, clock="simulated") as recorder:
            for step in range(10):
                picture = np.zeros((24, 32, 3), np.uint8)
                picture[:, : 16 * (number % 2) + 8, number // 2] = 200
                recorder.step({"arm": np.float32([step, number])}, {"u": 0.0}, ts_ns=step * STEP_NS)
                recorder.append("camera", picture, step * STEP_NS)
    joined = wd.embed(
        folder, {"motion": 1.0, "image": 0.5}, per="window", window_s=0.2, output=tmp_path / "j.rvf"
    )
    images = wd.embed(folder, "image", per="window", window_s=0.2, output=tmp_path / "i.rvf")
    assert joined.dim > images.dim
    ids = wd.open(folder).ids
    with wd.open_vectors(images.path) as store:
        assert store.notes["embedder"] == "image"
        assert store.search(store.get([0])[0], 2)[0].tolist()[0] == 0
    with wd.open_vectors(joined.path) as store:
        assert store.notes["embedder"] == "0.5*image+motion"
    assert wd.find_similar(folder, ids[0], 0, 200_000_000, k=1, index=joined.path)[0].episode_id in ids[1:]


def test_options_of_windows(root: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, _ = root
    for options, words in (
        ({"per": "step", "window_s": 1.0}, "needs per='window'"),
        ({"window_s": 0.0}, "above 0"),
        ({"window_s": None, "stride_s": 1.0}, "needs window_s"),
        ({"embedder": "motoin"}, "Did you mean 'motion'"),
        ({"embedder": {"motion": -1}}, "weight of 'motion'"),
        ({"window_s": None}, "one of windows"),
    ):
        given: dict[str, Any] = {"embedder": "motion", **options}
        with pytest.raises(ValueError, match=words):
            embed(folder, tmp_path / "x.rvf", **given)
    with pytest.raises(DatasetError, match="no index of windows"):
        wd.find_similar(folder, 0, 0, 10**9)
    wd.embed(folder, "state", signals="joints", output=tmp_path / "s.rvf", max_steps=2)
    with pytest.raises(DatasetError, match="is no index of windows"):
        wd.find_similar(folder, 0, 0, 10**9, index=tmp_path / "s.rvf")


def test_the_parts() -> None:
    times = np.arange(10) * STEP_NS
    assert window_spans(times, 0.08, 0.06) == [(0, 4), (3, 7), (6, 10)]
    assert window_spans(times, 9.0, 1.0) == [(0, 10)]
    line = np.linspace(0, 1, 7, dtype=np.float32)[None, :, None]
    np.testing.assert_allclose(resample(line, 4)[0, :, 0], np.linspace(0, 1, 4), atol=1e-6)
    assert resample(line[:, :1], 3).shape == (1, 3, 1)
    wave = np.sin(np.linspace(0, 6, 32))[:, None].astype(np.float32)
    late = np.sin(np.linspace(-0.5, 5.5, 32))[:, None].astype(np.float32)
    assert warped_distance(wave, late) < 0.3 * float(np.square(wave - late).mean())
    scale = Scale({"a": (np.zeros(2, np.float32), np.ones(2, np.float32))})
    assert Scale.parse(scale.to_text()).to_text() == scale.to_text()
    with pytest.raises(ValueError, match="missing channel 'a'"):
        WindowEmbedder.named("motion").__class__((("motion", 1.0),), scale)({"b": np.zeros((1, 3, 2))})
