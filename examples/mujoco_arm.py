"""Record a simulated arm with two cameras in MuJoCo: physics at 500 Hz, joints at 100 Hz, cameras at 25 Hz.

    python examples/mujoco_arm.py [FOLDER]

Each sensor keeps its own rate. The training windows at the end take the newest camera frame at the time of each
action. Needs `mujoco`, the extra `video`, and a way to render without a screen (`MUJOCO_GL=egl` or `osmesa`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")
import mujoco
import numpy as np

import warpdata as wd

ARM = """
<mujoco>
  <option timestep="0.002"/>
  <worldbody>
    <light pos="0 0 2"/>
    <geom type="plane" size="1 1 .1" rgba=".8 .8 .8 1"/>
    <camera name="front" pos="0 -1.4 .8" xyaxes="1 0 0 0 .5 1"/>
    <camera name="top" pos="0 0 1.8"/>
    <body pos="0 0 .1">
      <joint name="shoulder" axis="0 0 1" damping=".2"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" rgba=".2 .4 .8 1"/>
      <body pos=".3 0 0">
        <joint name="elbow" axis="0 0 1" damping=".2"/>
        <geom type="capsule" fromto="0 0 0 .25 0 0" size=".025" rgba=".8 .4 .2 1"/>
        <site name="tip" pos=".25 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="shoulder" kp="20"/>
    <position joint="elbow" kp="20"/>
  </actuator>
</mujoco>
"""
SECONDS = 1.0


def record(root: Path, seed: int) -> None:
    """One reach to a random pose."""
    model = mujoco.MjModel.from_xml_string(ARM)
    data = mujoco.MjData(model)
    goal = np.random.default_rng(seed).uniform(-1.2, 1.2, 2)
    with (
        mujoco.Renderer(model, 96, 128) as renderer,
        wd.record(root, static={"task": "reach", "seed": seed}, clock="simulated") as rec,
    ):
        for tick in range(int(SECONDS / model.opt.timestep)):
            ts_ns = round(tick * model.opt.timestep * 1e9)
            if tick % 5 == 0:
                data.ctrl[:] = goal * min(1.0, data.time / 0.4)
                rec.append("joints", data.qpos.astype(np.float32), ts_ns)
                rec.append("action/target", data.ctrl.astype(np.float32), ts_ns)
                rec.append("tip", data.site("tip").xpos.astype(np.float32), ts_ns)
            if tick % 20 == 0:
                for camera in ("front", "top"):
                    renderer.update_scene(data, camera)
                    rec.append(f"camera/{camera}", renderer.render(), ts_ns)
            mujoco.mj_step(model, data)
        rec.mark(success=bool(np.abs(data.qpos - goal).max() < 0.1))


def main(folder: Path) -> None:
    """Record two reaches, then read them as training windows."""
    for seed in range(2):
        record(folder / "arm", seed)
    episodes = wd.open(folder / "arm")
    print({name: len(rows) for name, rows in episodes[0].signals.items()})
    windows = wd.Windows(
        episodes,
        {"image": "camera/top", "joints": "joints", "action": wd.Field("action/target", horizon=10)},
        anchor="action/target",
    )
    batch = next(iter(wd.Loader(windows, batch_size=16, seed=1)))
    assert batch["image"].shape == (16, 96, 128, 3)
    assert batch["action"].shape == (16, 10, 2)
    print(f"{len(windows)} windows, successes: {[episode['success'] for episode in episodes]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
