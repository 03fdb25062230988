"""The steps of `warp demo`; where a command of `warp` exists, it is run and shown."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata._api import dataset
from warpdata._api.recording import record
from warpdata.catalog.dataset import Dataset
from warpdata.cli.console import Console
from warpdata.cli.main import main as warp_main
from warpdata.episodes.demo_robot import demo_records, demo_static, is_successful
from warpdata.errors import install_command
from warpdata.loading.field import Field
from warpdata.loading.loader import Loader
from warpdata.loading.windows import Windows
from warpdata.search.store import VectorStore
from warpdata.timeline.episode import Episode

NAME = "demo/handover"
EPISODES = 6
BATCH, STEPS, STOPPED_AT = 32, 60, 23
AHEAD_S = 0.1
_SCALE = np.array([1.0, 1.0, 10.0, 1.0, 1.0, 10.0], np.float32)
"""Scales angles in rad and gripper openings in metres to about one."""

_DOOMED = """
import sys
from warpdata.cli.demo_story import robot_episode
robot_episode(sys.argv[1], 99, kill_after=400)
"""


def run_story(folder: Path, console: Console) -> None:
    """Run all steps; everything stays in the folder."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    story = _Story(folder, console)
    story.record_and_crash()
    story.publish_twice()
    model, losses = story.train()
    story.predict(model)
    story.search()
    story.end(losses, time.monotonic() - began)


def robot_episode(root: str | os.PathLike[str], seed: int, kill_after: int | None = None) -> None:
    """Record an episode of the simulated robot; after `kill_after` records the process is killed."""
    has_video = importlib.util.find_spec("av") is not None
    with record(root, static=demo_static(seed), clock="simulated") as rec:
        for number, (ts_ns, name, value) in enumerate(demo_records(seed)):
            if has_video or not name.startswith("camera"):
                rec.append(name, value, ts_ns)
            if number == kill_after:
                signal.raise_signal(signal.SIGKILL)
        rec.mark(success=is_successful(seed))


class _Story:
    """Folder and output that the steps share."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder, self.console = folder, console
        self.root, self.catalog = folder / "recordings", folder / "catalog"

    @property
    def where(self) -> tuple[str, Path]:
        """Options that name the catalog."""
        return "--catalog", self.catalog

    def title(self, text: str) -> None:
        self.console.print()
        self.console.print(f"── {text}", {f"── {text}": "bold"})

    def warp(self, *words: str | Path, allowed: Sequence[int] = (0,)) -> None:
        """Run and show a command."""
        argv = [str(word) for word in words]
        command = f"$ warp {shlex.join(argv)}"
        self.console.print(command, {command: "cyan"})
        self.console.out.flush()
        code = warp_main(argv)
        if code not in allowed:
            raise RuntimeError(f"`warp {shlex.join(argv)}` ended with {code}")

    def record_and_crash(self) -> None:
        self.title(
            f"Record {EPISODES} episodes of two arms: joints 100 Hz, force 200 Hz, two cameras 25 Hz, events"
        )
        for seed in range(EPISODES):
            robot_episode(self.root, seed)
        if importlib.util.find_spec("av") is None:
            self.console.print(f"(no cameras: {install_command('video')})")
        self.title(
            "A recorder is killed with SIGKILL in the middle of an episode; salvage finishes what it left"
        )
        done = subprocess.run([sys.executable, "-c", _DOOMED, str(self.root)], check=False)
        self.console.print(f"recorder ended with signal {-done.returncode}")
        self.warp("salvage", self.root, allowed=(0, 3))
        self.title("Check what was recorded")
        self.warp("check", self.root, allowed=(0, 3))

    def publish_twice(self) -> None:
        self.title(
            "Publish version 1; leave the broken episode out, trim another, publish version 2; what changed?"
        )
        self.warp("publish", NAME, self.root, "--tag", "v1", "--message", "as recorded", *self.where)
        self.warp("edit", self.root, "drop", str(EPISODES))
        self.warp("edit", self.root, "trim", "0", "--start", "0.2s")
        self.warp("publish", NAME, self.root, "--tag", "v2", "--message", "without the crash", *self.where)
        self.warp("diff", f"{NAME}@v1", "@v2", *self.where)

    def train(self) -> tuple[Model, list[float]]:
        self.title(f"Train on shuffled windows; stop after {STOPPED_AT} steps, go on with two ranks")
        with dataset(NAME, catalog=self.catalog) as ds:
            windows = windows_of(ds)
            self.console.print(f"{windows!r}: {len(windows)} samples, id {windows.short_id}")
            whole = train(Model(), [Loader(windows, BATCH, seed=7, tail="drop", progress=True)], STEPS)
            model = Model()
            alone = Loader(windows, BATCH, seed=7, tail="drop")
            losses = train(model, [alone], STOPPED_AT)
            state = alone.state_dict()
            self.console.print(f"stopped; the state is {len(str(state))} bytes: {state}")
            ranks = [Loader(windows, BATCH, seed=7, tail="drop", rank=r, world=2) for r in range(2)]
            for loader in ranks:
                loader.load_state_dict(state)
            losses += train(model, ranks, STEPS - STOPPED_AT)
            origin = alone.why(0, epoch=0)[0]
            alone.save_state(self.folder / "state.json")
        if losses != whole:
            raise RuntimeError("the interrupted run is not the uninterrupted one")
        for line in curve(losses, mark=STOPPED_AT):
            self.console.print(line)
        self.console.print(
            "interrupted and resumed on two ranks: every loss is that of the uninterrupted run, bit for bit"
        )
        self.console.print(
            f"sample 0 of step 0 was episode {origin.episode_id} at {origin.ts_ns} ns, blob {str(origin.blob)[:12]}"
        )
        return model, losses

    def predict(self, model: Model) -> None:
        self.title(
            "Predictions as a lane: beside the recorded joints, in a new version, no episode written again"
        )
        with dataset(NAME, catalog=self.catalog) as ds:
            made = ds.add_lane(
                "demo-model", model.predict, of="joints", revision="step-60", message="predictions"
            )
        self.console.print(f"{made}: {made.computed} episodes computed")
        self.warp("lanes", "list", NAME, "--worst", "2", *self.where)

    def search(self) -> None:
        self.title("Moments like the one it predicts worst")
        with dataset(NAME, catalog=self.catalog) as ds:
            worst = ds.compare_lane("demo-model", worst=1).signals[0].worst[0]
            vectors, places = [], []
            for episode in ds.episodes:
                joints = episode["joints"]
                vectors.append(joints.values()[::10] * _SCALE)
                places += [(episode.id, int(ts_ns)) for ts_ns in joints.timestamps[::10]]
            value, ts_ns = ds.episodes[worst.episode_id]["joints"].time[worst.ts_ns]
        with VectorStore.create(self.folder / "moments.rvf", dim=6, metric="l2") as store:
            store.add(np.concatenate(vectors))
            ids, distances = store.search(value * _SCALE, k=len(places))
        self.console.print(f"nearest to {NAME}#{worst.episode_id} at {ts_ns / 1e9:.3f} s in other episodes:")
        nearest: dict[str, str] = {worst.episode_id: ""}
        for number, distance in zip(ids, distances, strict=True):
            name, at = places[int(number)]
            nearest.setdefault(name, f"  {NAME}#{name} at {at / 1e9:.3f} s  (distance {float(distance):.4f})")
        for line in list(nearest.values())[1:4]:
            self.console.print(line)

    def end(self, losses: Sequence[float], seconds: float) -> None:
        self.title("Where everything is, and what to try next")
        for what, where in (
            ("recordings, with their edits", self.root),
            ("published versions", self.catalog),
            ("state of the training run", self.folder / "state.json"),
            ("moments", self.folder / "moments.rvf"),
        ):
            self.console.print(f"  {what:30} {where}")
        for words in (
            ("show", self.root, "0"),
            ("episodes", NAME, *self.where),
            ("versions", "list", NAME, *self.where),
            ("lanes", "list", NAME, *self.where),
            ("why", self.folder / "state.json", "0"),
        ):
            self.console.print(f"  try: warp {shlex.join(map(str, words))}")
        self.console.print(f'  in Python: wd.open("{NAME}", catalog="{self.catalog}").episodes[0]')
        self.console.print(
            f"\nThe demo ran to its end in {seconds:.0f} s: loss {losses[0]:.3f} -> {losses[-1]:.3f}."
        )


def windows_of(ds: Dataset) -> Windows:
    """Joints now and before, the target of the controller, and the joints a little later."""
    fields = {
        "joints": Field("joints", offsets_s=[-0.05, 0.0]),
        "target": Field("action/joint_target"),
        "later": Field("joints", at_s=AHEAD_S),
    }
    return Windows(ds.episodes.where("success"), fields, rate_hz=50, edges="skip")


class Model:
    """A small network that predicts the joints from their present values and the target."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        shapes = [(18, 32), (32,), (32, 6), (6,)]
        self.weights = [rng.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]
        self.speed = [np.zeros_like(weight) for weight in self.weights]

    @staticmethod
    def inputs(joints: NDArray[Any], target: NDArray[Any]) -> NDArray[np.float32]:
        """[..., 2, 6] joints and [..., 6] targets as rows of 18."""
        return np.concatenate([(joints * _SCALE).reshape(len(joints), 12), target * _SCALE], axis=1).astype(
            np.float32
        )

    def forward(self, inputs: NDArray[np.float32], now: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The hidden layer and the predicted joints: the present ones plus a change."""
        hidden = np.tanh(inputs @ self.weights[0] + self.weights[1])
        return hidden, now * _SCALE + hidden @ self.weights[2] + self.weights[3]

    def step(self, joints: NDArray[Any], target: NDArray[Any], later: NDArray[Any]) -> float:
        """Make one step of gradient descent; returns the loss before it."""
        inputs = self.inputs(joints, target)
        hidden, predicted = self.forward(inputs, joints[:, 1])
        errors = predicted - later * _SCALE
        back = errors @ self.weights[2].T * (1 - hidden**2)
        gradients = [inputs.T @ back, back.sum(0), hidden.T @ errors, errors.sum(0)]
        for weight, speed, gradient in zip(self.weights, self.speed, gradients, strict=True):
            speed *= 0.9
            speed -= 0.02 / len(errors) * gradient
            weight += speed
        return float(np.mean(errors**2))

    def predict(self, episode: Episode) -> NDArray[np.float32]:
        """The joints predicted `AHEAD_S` before every record; NaN where no input existed."""
        times = episode["joints"].timestamps - round(AHEAD_S * 1e9)
        now = episode.sample(times, ["joints", "action/joint_target"])
        before = episode.sample(times - 50_000_000, ["joints"])
        joints = np.stack([before["joints"], now["joints"]], axis=1)
        predicted = self.forward(self.inputs(joints, now["action/joint_target"]), joints[:, 1])[1] / _SCALE
        predicted[~(before.mask["joints"] & now.mask["action/joint_target"])] = np.nan
        return predicted.astype(np.float32)


def train(model: Model, ranks: Sequence[Loader], steps: int) -> list[float]:
    """Train on the global batches of these ranks; returns the loss of every step."""
    losses: list[float] = []
    while True:
        for parts in zip(*ranks, strict=True):
            batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            losses.append(model.step(batch["joints"], batch["target"], batch["later"]))
            if len(losses) == steps:
                return losses


def curve(losses: Sequence[float], height: int = 8, mark: int | None = None) -> list[str]:
    """A loss curve as text, on a logarithmic scale; `mark` is the step of the interruption."""
    values = np.log10(np.maximum(np.asarray(losses, np.float64), 1e-12))
    low, high = float(values.min()), float(values.max())
    level = np.round((values - low) / ((high - low) or 1.0) * (height - 1)).astype(int)
    lines = []
    for row in range(height - 1, -1, -1):
        dots = "".join(
            "●" if level[step] == row else "┊" if step == mark else " " for step in range(len(losses))
        )
        lines.append(f"{10 ** (low + (high - low) * row / (height - 1)):8.4f} ┤{dots}".rstrip())
    return [*lines, f"{'':8} └{'─' * len(losses)} step {len(losses)}"]
