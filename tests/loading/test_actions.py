"""Relative actions, differences and poses against formulas written out; images as floats; transforms of batches."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.sweeps import enough_examples

MS = 1_000_000
POSES = {"quaternion": 4, "quaternion_xyzw": 4, "axis_angle": 3, "euler": 3, "6d": 6}


def rotation_about(axis: int, angle: float) -> np.ndarray:
    out = np.eye(3)
    i, j = [(1, 2), (2, 0), (0, 1)][axis]
    out[i, i] = out[j, j] = np.cos(angle)
    out[i, j], out[j, i] = -np.sin(angle), np.sin(angle)
    return out


def as_matrix(values: np.ndarray, pose: str) -> np.ndarray:
    """One rotation by formulas of their own: Hamilton products of basis vectors, the exponential series."""
    if pose == "euler":
        return rotation_about(2, values[2]) @ rotation_about(1, values[1]) @ rotation_about(0, values[0])
    if pose == "axis_angle":
        skew = np.cross(np.eye(3), values)
        out, term = np.eye(3), np.eye(3)
        for n in range(1, 60):
            term = term @ skew / n
            out = out + term
        return out
    if pose == "6d":
        return np.stack([values[:3], values[3:], np.cross(values[:3], values[3:])], axis=1)
    w, v = (values[0], values[1:]) if pose == "quaternion" else (values[3], values[:3])
    columns = []
    for basis in np.eye(3):
        turned = w * basis + np.cross(v, basis)
        columns.append(np.dot(v, basis) * v + w * turned + np.cross(v, turned))
    return np.stack(columns, axis=1)


def from_matrix(matrix: np.ndarray, pose: str, rng) -> np.ndarray:
    if pose == "6d":
        return np.concatenate([matrix[:, 0], matrix[:, 1]])
    angle = np.arccos(np.clip((np.trace(matrix) - 1) / 2, -1, 1))
    axis = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]])
    axis = axis / np.linalg.norm(axis)
    if pose == "axis_angle":
        return axis * angle
    if pose == "euler":
        return np.array(
            [
                np.arctan2(matrix[2, 1], matrix[2, 2]),
                np.arcsin(-matrix[2, 0]),
                np.arctan2(matrix[1, 0], matrix[0, 0]),
            ]
        )
    quaternion = np.concatenate([[np.cos(angle / 2)], np.sin(angle / 2) * axis])
    quaternion *= rng.choice([-1, 1])  # both signs are the same rotation
    return quaternion if pose == "quaternion" else quaternion[[1, 2, 3, 0]]


def random_rotation(rng) -> np.ndarray:
    axis = rng.normal(size=3)
    return as_matrix(axis / np.linalg.norm(axis) * rng.uniform(0.05, 2.9), "axis_angle")


def pose_windows(pose: str, seed: int, **options) -> tuple[wd.Windows, list, list]:
    """Windows over a tool pose with a gripper; the action is another pose. Also positions and matrices."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list] = {"action": [], "state": []}
    truth: dict[str, list] = {"action": [], "state": []}
    for _ in range(12):
        for name in rows:
            position, matrix, grip = rng.normal(size=3), random_rotation(rng), rng.uniform()
            rows[name].append(np.concatenate([position, from_matrix(matrix, pose, rng), [grip]]))
            truth[name].append((position, matrix, grip))
    times = np.arange(12) * 50 * MS
    signals = {name: wd.ArraySignal(times, np.array(values)) for name, values in rows.items()}
    fields = {"action": wd.Field("action", horizon=4, pose=pose, except_dims=[3 + POSES[pose]], **options)}
    windows = wd.Windows(wd.Episode.of(signals, id="p"), fields, anchor="action", edges="skip")
    return windows, truth["action"], truth["state"]


@settings(max_examples=enough_examples(20), deadline=None)
@given(
    pose=st.sampled_from(sorted(POSES)),
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["relative", "delta"]),
)
def test_relative_poses_are_products(pose, seed, kind) -> None:
    options = {"relative_to": "state"} if kind == "relative" else {"delta": True}
    windows, actions, states = pose_windows(pose, seed, **options)
    width = POSES[pose]
    loader = wd.Loader(windows, 4, shuffle=False, normalize={"action": "q01_q99"})
    kept = wd.loading.Normalization.from_json(json.loads(json.dumps(loader.normalization.to_json())))
    raw = windows.batch(np.arange(len(windows)))
    first = 0 if kind == "relative" else 1
    for number in range(len(windows)):
        anchor = number + first
        for row in range(4):
            position, matrix, grip = actions[anchor + row]
            base = states[anchor] if kind == "relative" else actions[anchor + row - 1]
            value = raw["action"][number, row]
            np.testing.assert_allclose(value[:3], base[1].T @ (position - base[0]), atol=1e-6)
            turned = as_matrix(value[3 : 3 + width], pose)
            np.testing.assert_allclose(turned, base[1].T @ matrix, atol=1e-6)
            assert value[-1] == pytest.approx(grip)
    batch = next(iter(loader))
    episode = windows.episodes[0]
    for number in range(batch.size):
        anchor = int(batch.sample_id[number]) + first
        reference = episode["state" if kind == "relative" else "action"].values()[anchor - first]
        absolute = kept.undo("action", batch["action"][number].astype(np.float64), reference=reference)
        for row in range(4):
            position, matrix, grip = actions[anchor + row]
            np.testing.assert_allclose(absolute[row, :3], position, atol=1e-5)
            np.testing.assert_allclose(as_matrix(absolute[row, 3 : 3 + width], pose), matrix, atol=1e-5)
            assert absolute[row, -1] == pytest.approx(grip, abs=1e-5)


def arm(count: int = 10, **signals) -> wd.Episode:
    rng = np.random.default_rng(0)
    made = {
        "action": wd.ArraySignal(np.arange(count) * 50 * MS, rng.normal(size=(count, 3)).astype("f4")),
        "state": wd.ArraySignal(np.arange(count) * 50 * MS + 5, rng.normal(size=(count, 3)).astype("f4")),
    }
    return wd.Episode.of({**made, **signals}, id="arm")


def test_an_anchor_before_the_reference_is_masked() -> None:
    field = wd.Field("action", horizon=2, relative_to="state")
    batch = wd.Windows(arm(), {"x": field}, anchor="action").batch(np.arange(10))
    assert batch.mask["x"][0].tolist() == [False, False], "the state begins 5 ns later"
    assert batch.mask["x"][1].tolist() == [True, True]
    skipped = wd.Windows(arm(), {"x": field}, anchor="action", edges="skip")
    assert len(skipped) == 8
    lacking = wd.Episode.of({"action": arm()["action"]}, id="no state")
    both = wd.Windows([arm(), lacking], {"x": field}, anchor="action").batch(np.arange(20))
    assert not both.mask["x"][10:].any()


def test_differences_need_the_row_before() -> None:
    values = np.arange(10, dtype=np.float32)[:, None] ** 2
    episode = wd.Episode.of({"a": wd.ArraySignal(np.arange(10) * 100 * MS, values)}, id="e")
    for field in (wd.Field("a", past=3, delta=True), wd.Field("a", past_s=0.2, rate_hz=10, delta=True)):
        sample = wd.Windows(episode, {"x": field}, anchor="a")[5]
        assert sample["x"][:, 0].tolist() == [5.0, 7.0, 9.0]
        start = wd.Windows(episode, {"x": field}, anchor="a")[2]
        assert start.mask["x"].tolist() == [False, True, True]
    loader = wd.Loader(wd.Windows(episode, {"x": wd.Field("a", horizon=4, delta=True)}, anchor="a"), 4)
    back = loader.denormalize("x", np.array([[3.0], [5.0], [7.0]]), reference=np.array([1.0]))
    assert back[:, 0].tolist() == [4.0, 9.0, 16.0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: wd.Field("a", horizon=2, delta=True, relative_to="b"), "without relative_to"),
        (lambda: wd.Field("a", offsets_s=[0.0, 0.1, 0.5], delta=True), "evenly spaced"),
        (lambda: wd.Field("a", pose="6d"), "go with relative_to"),
        (lambda: wd.Field("a", relative_to="b", pose="quaternoin"), "Did you mean 'quaternion'"),
        (lambda: wd.Field("a", scale="0-1"), "scale"),
        (
            lambda: wd.Windows(arm(), {"x": wd.Field("action", relative_to="stat")}, anchor="action"),
            "'state'",
        ),
        (
            lambda: wd.Windows(
                arm(), {"x": wd.Field("action", relative_to="state", pose="6d")}, anchor="action"
            ),
            "has 3 numbers, its options need 9",
        ),
        (lambda: wd.Windows(arm(), {"x": wd.Field("action", layout="chw")}, anchor="action"), "for images"),
        (lambda: wd.Windows(arm(), {"x": wd.Field("action", scale="0..1")}, anchor="action"), "of uint8"),
        (lambda: wd.Normalize("mean-std"), "mean_std"),
        (lambda: wd.Normalize("min_max", except_dims=[-1]), "counts dimensions from 0"),
    ],
)
def test_representations_that_cannot_be_had(make, words) -> None:
    with pytest.raises((ValueError, KeyError), match=words):
        make()


def test_statistics_are_of_relative_values_and_constants_stay_finite() -> None:
    state = wd.ArraySignal(np.arange(30) * 50 * MS, np.repeat([[100.0, -5.0]], 30, 0))
    action = wd.ArraySignal(
        np.arange(30) * 50 * MS, np.stack([100.0 + np.sin(np.arange(30)), np.full(30, -5.0)], 1)
    )
    windows = wd.Windows(
        wd.Episode.of({"s": state, "a": action}, id="e"),
        {"a": wd.Field("a", horizon=3, relative_to="s")},
        anchor="a",
    )
    loader = wd.Loader(windows, 30, normalize="auto")
    assert np.abs(loader.statistics["a"].mean).max() < 1
    batch = next(iter(loader))
    assert np.isfinite(batch["a"]).all()
    assert not batch["a"][..., 1].any()


def camera(count: int = 6) -> wd.Episode:
    images = np.random.default_rng(0).integers(0, 256, (count, 20, 24, 3), np.uint8)
    return wd.Episode.of({"cam": wd.ArraySignal(np.arange(count) * 10, images)}, id="c")


@pytest.mark.parametrize("layout", ["hwc", "chw"])
@pytest.mark.parametrize("scale", [None, "0..1", "-1..1", "imagenet"])
def test_images_as_floats(layout, scale) -> None:
    episode = camera()
    plain = episode["cam"].values().astype(np.float64)
    windows = wd.Windows(episode, {"x": wd.Field("cam", past=2, layout=layout, scale=scale)}, anchor="cam")
    batch = windows.batch([3])["x"]
    wanted = plain[[2, 3]]
    if scale is not None:
        wanted = wanted / 255
        if scale == "-1..1":
            wanted = wanted * 2 - 1
        elif scale == "imagenet":
            wanted = (wanted - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    if layout == "chw":
        wanted = np.transpose(wanted, (0, 3, 1, 2))
    assert batch.dtype == (np.uint8 if scale is None else np.float32)
    np.testing.assert_allclose(batch[0], wanted, atol=1e-6)
    loader = wd.Loader(windows, 6, normalize={"x": "mean_std"}, shuffle=False)
    axes = (0, 1, 3, 4) if layout == "chw" else (0, 1, 2, 3)
    found = next(iter(loader))["x"]
    mask = np.ones(found.shape, bool)
    mask[0, 0] = False  # before the first record
    np.testing.assert_allclose(found.mean(axes, where=mask), 0, atol=1e-4)


@pytest.mark.parametrize("resize", ["stretch", "pad", "crop"])
@pytest.mark.parametrize("size", [(10, 10), (10, 30), (40, 24)])
def test_resizing_keeps_the_whole_pads_or_covers(resize, size) -> None:
    image = np.full((1, 20, 24, 3), 200, np.uint8)
    episode = wd.Episode.of({"cam": wd.ArraySignal([0], image)}, id="c")
    field = wd.Field("cam", size=size, resize=resize)
    found = wd.Windows(episode, {"x": field}, anchor="cam")[0]["x"]
    assert found.shape == (*size, 3)
    if resize != "pad":
        assert (found == 200).all()
        return
    share = max(20 / size[0], 24 / size[1])
    height, width = round(20 / share), round(24 / share)
    assert int((found == 200).all(-1).sum()) == height * width
    assert int((found == 0).all(-1).sum()) == size[0] * size[1] - height * width


def jitter(batch, rng):
    batch["x"] = batch["x"] + rng.normal(size=batch["x"].shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["numpy", "torch", "workers"])
def test_a_transform_of_batches_is_the_same_after_a_resume(kind) -> None:
    if kind != "numpy":
        pytest.importorskip("torch")
    windows = wd.Windows(arm(40), {"x": wd.Field("action", horizon=2)}, anchor="action")

    def change(batch, rng):
        if isinstance(batch["x"], np.ndarray):
            return jitter(batch, rng)
        batch["x"] = batch["x"] + batch["x"].new_tensor(rng.normal(size=tuple(batch["x"].shape)))
        return batch

    def make(rank: int = 0, world: int = 1):
        loader = wd.Loader(windows, 8, seed=3, batch_transform=change, rank=rank, world=world)
        return (
            loader if kind == "numpy" else loader.to_torch().loader(num_workers=2 if kind == "workers" else 0)
        )

    whole = [np.asarray(batch["x"]) for batch in make()]
    assert not np.array_equal(whole[0], whole[1])
    first, second = make(), make()
    for _ in itertools.islice(first, 2):
        state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)
    for found, expected in zip(second, whole[2:], strict=True):
        np.testing.assert_allclose(np.asarray(found["x"]), expected, rtol=1e-6)
    plain = next(iter(wd.Loader(windows, 8, seed=3)))
    assert not np.array_equal(np.asarray(next(iter(make()))["x"]), plain["x"])


def test_a_report_names_the_shares_of_work() -> None:
    fields = {"image": wd.Field("cam", size=(7, 9)), "plain": "cam"}
    loader = wd.Loader(wd.Windows(camera(40), fields, anchor="cam"), 8, normalize={"plain": "mean_std"})
    for _ in loader:
        pass
    report = loader.report()
    assert report.samples == 40
    assert min(report.decode_s, report.scale_s, report.copy_s, report.transform_s) > 0
    shares = report.shares()
    assert set(shares) == {"decode", "scale", "copy", "transform", "wait"}
    assert 0 <= shares.pop("wait") <= 1
    assert sum(shares.values()) == pytest.approx(1.0)
