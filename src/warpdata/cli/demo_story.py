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

_KILLED = """
import sys
from warpdata.cli.demo_story import record_episode
record_episode(sys.argv[1], 99, kill_after=400)
"""


def run_story(folder: Path, console: Console) -> None:
    """Run all steps; everything stays in the folder."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    root, catalog = folder / "recordings", folder / "catalog"
    where = ("--catalog", catalog)

    def show_title(text: str) -> None:
        console.print(f"\n── {text}", {f"── {text}": "bold"})

    def run_warp(*words: str | Path, allowed: Sequence[int] = (0,)) -> None:
        argv = [str(word) for word in words]
        line = f"$ warp {shlex.join(argv)}"
        console.print(line, {line: "cyan"})
        console.out.flush()
        if (code := warp_main(argv)) not in allowed:
            raise RuntimeError(f"`warp {shlex.join(argv)}` ended with {code}")

    show_title(
        f"Record {EPISODES} episodes of two arms: joints 100 Hz, force 200 Hz, two cameras 25 Hz, events"
    )
    for seed in range(EPISODES):
        record_episode(root, seed)
    if importlib.util.find_spec("av") is None:
        console.print(f"(no cameras: {install_command('video')})")
    show_title("A recorder is killed with SIGKILL in the middle of an episode; salvage finishes what it left")
    done = subprocess.run([sys.executable, "-c", _KILLED, str(root)], check=False)
    console.print(f"recorder ended with signal {-done.returncode}")
    run_warp("salvage", root, allowed=(0, 3))
    show_title("Check what was recorded")
    run_warp("check", root, allowed=(0, 3))

    show_title(
        "Publish version 1; leave the broken episode out, trim another, publish version 2; what changed?"
    )
    run_warp("publish", NAME, root, "--tag", "v1", "--message", "as recorded", *where)
    run_warp("edits", "drop", root, str(EPISODES))
    run_warp("edits", "trim", root, "0", "--start", "0.2s")
    run_warp("publish", NAME, root, "--tag", "v2", "--message", "without the crash", *where)
    run_warp("diff", f"{NAME}@v1", "@v2", *where)

    show_title(f"Train on shuffled windows; stop after {STOPPED_AT} steps, go on with two ranks")
    model, losses = train_interrupted(catalog, folder / "state.json", console)

    show_title(
        "Predictions as a lane: beside the recorded joints, in a new version, no episode written again"
    )
    with dataset(NAME, catalog=catalog) as ds:
        made = ds.add_lane(
            "demo-model", model.predict, of="joints", revision="step-60", message="predictions"
        )
    console.print(f"{made}: {made.computed} episodes computed")
    run_warp("lanes", "list", NAME, "--worst", "2", *where)

    show_title("Moments like the one it predicts worst")
    search_worst(catalog, folder / "moments.rvf", console)

    show_title("Where everything is, and what to try next")
    for what, place in (
        ("recordings, with their edits", root),
        ("published versions", catalog),
        ("state of the training run", folder / "state.json"),
        ("moments", folder / "moments.rvf"),
    ):
        console.print(f"  {what:30} {place}")
    for words in (
        ("show", root, "0"),
        ("list", NAME, *where),
        ("versions", "list", NAME, *where),
        ("why", folder / "state.json", "0"),
    ):
        console.print(f"  try: warp {shlex.join(map(str, words))}")
    console.print(f'  in Python: wd.open("{NAME}", catalog="{catalog}").episodes[0]')
    seconds = time.monotonic() - began
    console.print(f"\nThe demo ran to its end in {seconds:.0f} s: loss {losses[0]:.3f} -> {losses[-1]:.3f}.")


def record_episode(root: str | os.PathLike[str], seed: int, kill_after: int | None = None) -> None:
    """Record an episode of the simulated robot; after `kill_after` records the process is killed."""
    has_video = importlib.util.find_spec("av") is not None
    with record(root, static=demo_static(seed), clock="simulated") as rec:
        for number, (ts_ns, name, value) in enumerate(demo_records(seed)):
            if has_video or not name.startswith("camera"):
                rec.append(name, value, ts_ns)
            if number == kill_after:
                signal.raise_signal(signal.SIGKILL)
        rec.mark(success=is_successful(seed))


def train_interrupted(catalog: Path, state_file: Path, console: Console) -> tuple[Model, list[float]]:
    """Train twice, whole and with an interruption: every loss is the same."""
    with dataset(NAME, catalog=catalog) as ds:
        fields = {
            "joints": Field("joints", offsets_s=[-0.05, 0.0]),
            "target": Field("action/joint_target"),
            "later": Field("joints", at_s=AHEAD_S),
        }
        windows = Windows(ds.episodes.where("success"), fields, rate_hz=50, edges="skip")
        console.print(f"{windows!r}: {len(windows)} samples, id {windows.short_id}")
        whole = train(Model(), [Loader(windows, BATCH, seed=7, tail="drop", progress=True)], STEPS)
        model, alone = Model(), Loader(windows, BATCH, seed=7, tail="drop")
        losses = train(model, [alone], STOPPED_AT)
        state = alone.state_dict()
        console.print(f"stopped; the state is {len(str(state))} bytes: {state}")
        ranks = [Loader(windows, BATCH, seed=7, tail="drop", rank=r, world=2) for r in range(2)]
        for loader in ranks:
            loader.load_state_dict(state)
        losses += train(model, ranks, STEPS - STOPPED_AT)
        origin = alone.why(0, epoch=0)[0]
        alone.save_state(state_file)
    if losses != whole:
        raise RuntimeError("the interrupted run is not the uninterrupted one")
    console.print("\n".join(curve(losses, mark=STOPPED_AT)))
    console.print(
        "interrupted and resumed on two ranks: every loss is that of the uninterrupted run, bit for bit"
    )
    where = f"episode {origin.episode_id} at {origin.ts_ns} ns, blob {str(origin.blob)[:12]}"
    console.print(f"sample 0 of step 0 was {where}")
    return model, losses


class Model:
    """A linear model that predicts the joints from their present and past values and the target."""

    def __init__(self) -> None:
        self.weights, self.speed = np.zeros((2, 19, 6), np.float32)

    def forward(self, joints: NDArray[Any], target: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs, and the predicted joints: the present ones plus a change; joints are [rows, 2, 6]."""
        past = (joints * _SCALE).reshape(len(joints), 12)
        inputs = np.c_[past, target * _SCALE, np.ones(len(joints))].astype(np.float32)
        return inputs, joints[:, 1] * _SCALE + inputs @ self.weights

    def step(self, joints: NDArray[Any], target: NDArray[Any], later: NDArray[Any]) -> float:
        """Make one step of gradient descent; returns the loss before it."""
        inputs, predicted = self.forward(joints, target)
        errors = predicted - later * _SCALE
        self.speed = 0.9 * self.speed - 0.02 / len(errors) * (inputs.T @ errors)
        self.weights = self.weights + self.speed
        return float(np.mean(errors**2))

    def predict(self, episode: Episode) -> NDArray[np.float32]:
        """The joints predicted `AHEAD_S` before every record; NaN where no input existed."""
        times = episode["joints"].timestamps - round(AHEAD_S * 1e9)
        now = episode.sample(times, ["joints", "action/joint_target"])
        before = episode.sample(times - 50_000_000, ["joints"])
        joints = np.stack([before["joints"], now["joints"]], axis=1)
        predicted = self.forward(joints, now["action/joint_target"])[1] / _SCALE
        predicted[~(before.mask["joints"] & now.mask["action/joint_target"])] = np.nan
        return predicted.astype(np.float32)


def train(model: Model, ranks: Sequence[Loader], steps: int) -> list[float]:
    """Train on the global batches of these ranks; returns the loss of every step."""
    losses: list[float] = []
    while True:
        for parts in zip(*ranks, strict=True):
            batch = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}
            losses.append(model.step(batch["joints"], batch["target"], batch["later"]))
            if len(losses) == steps:
                return losses


def search_worst(catalog: Path, file: Path, console: Console) -> None:
    """Find moments of other episodes like the one that the lane predicts worst."""
    with dataset(NAME, catalog=catalog) as ds:
        worst = ds.compare_lane("demo-model", worst=1).signals[0].worst[0]
        vectors, places = [], []
        for episode in ds.episodes:
            joints = episode["joints"]
            vectors.append(joints.values()[::10] * _SCALE)
            places += [(episode.id, int(ts_ns)) for ts_ns in joints.timestamps[::10]]
        value, ts_ns = ds.episodes[worst.episode_id]["joints"].time[worst.ts_ns]
    with VectorStore.create(file, dim=6, metric="l2") as store:
        store.add(np.concatenate(vectors))
        ids, distances = store.search(value * _SCALE, k=len(places))
    console.print(f"nearest to {NAME}#{worst.episode_id} at {ts_ns / 1e9:.3f} s in other episodes:")
    nearest: dict[str, str] = {worst.episode_id: ""}
    for number, distance in zip(ids, distances, strict=True):
        name, at = places[int(number)]
        nearest.setdefault(name, f"  {NAME}#{name} at {at / 1e9:.3f} s  (distance {float(distance):.4f})")
    console.print("\n".join(list(nearest.values())[1:4]))


def curve(losses: Sequence[float], height: int = 8, mark: int | None = None) -> list[str]:
    """A loss curve as text, on a logarithmic scale; `mark` is the step of the interruption."""
    values = np.log10(np.maximum(np.asarray(losses, np.float64), 1e-12))
    low, high = float(values.min()), float(values.max())
    level = np.round((values - low) / ((high - low) or 1.0) * (height - 1)).astype(int)
    lines = []
    for row in range(height - 1, -1, -1):
        dots = "".join("●" if at == row else "┊" if step == mark else " " for step, at in enumerate(level))
        lines.append(f"{10 ** (low + (high - low) * row / (height - 1)):8.4f} ┤{dots}".rstrip())
    return [*lines, f"{'':8} └{'─' * len(losses)} step {len(losses)}"]
