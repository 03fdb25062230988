"""Draw the pictures of the documentation again: `python -m tools.docs_site_pictures`.

It needs chromium and viewer-ui/node_modules. Every picture is of the simulated robot of `wd.demo_data`: the viewer in
light and dark, and the plots of the tutorial.
"""

from __future__ import annotations

import io
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import warpdata as wd

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images"
WIDE = {"width": 1440, "height": 900}
FAILED = "000000000003"
"""The episode in which the robot drops the cube."""

TAKE = """
import { launch, settled } from "./tests/browser.mjs";
const browser = await launch();
for (const { url, scheme, at_ns, keys, path } of JSON.parse(process.argv[1])) {
  const page = await browser.newPage({ viewport: SIZE, colorScheme: scheme, deviceScaleFactor: 1.25 });
  await page.goto(url);
  await page.waitForSelector("[data-testid=plot] .chart[data-points]");
  if (at_ns) await page.evaluate((ns) => (window.warpdata.time_ns = ns), at_ns);
  // All episodes are checked and compared with each other.
  await page.waitForFunction(() => document.body.textContent.includes("dead-channel"), null, { timeout: 90_000 });
  for (const key of keys) { await page.keyboard.press(key); await page.waitForTimeout(1500); }
  await settled(page);
  await page.waitForTimeout(500);
  await page.screenshot({ path });
  await page.close();
}
await browser.close();
"""


def take_viewer(root: Path, folder: Path) -> None:
    """Take the viewer in light and dark, and with the moments that are like one."""
    wd.embed(root, "motion", per="window", window_s=1.0, stride_s=0.25, signals=["joints"])
    with wd.Viewer(f"{root}#{FAILED}") as viewer:
        shots = [
            {"scheme": "light", "keys": [], "path": "viewer-light.png"},
            {"scheme": "dark", "keys": [], "path": "viewer-dark.png"},
            {"scheme": "light", "keys": ["m"], "path": "viewer-similar.png"},
        ]
        at_ns = str(wd.open_recordings(root)[FAILED].first_ts_ns + 1_720_000_000)  # the cube falls
        told = [
            shot | {"url": viewer.url, "at_ns": at_ns, "path": str(folder / str(shot["path"]))}
            for shot in shots
        ]
        script = TAKE.replace("SIZE", json.dumps(WIDE))
        subprocess.run(
            ["node", "--input-type=module", "-e", script, json.dumps(told)],
            cwd=ROOT / "viewer-ui",
            check=True,
            timeout=300,
        )


def save_figure(figure: Any, path: Path) -> None:
    data = io.BytesIO()
    figure.savefig(data, dpi=110, bbox_inches="tight")
    plt.close(figure)
    path.write_bytes(data.getvalue())


def draw_plots(root: Path, folder: Path) -> None:
    """Draw an episode, what a policy sees, and how its loss falls."""
    episodes = wd.open_recordings(root)
    save_figure(episodes[0].plot(["joints", "action/joint_target", "force"]), folder / "episode.png")
    windows = wd.Windows(
        episodes.where("success"),
        {
            "state": wd.Field("joints", past=2),
            "image": wd.Field("camera/front"),
            "action": wd.Field("action/joint_target", horizon=8),
        },
        anchor="action/joint_target",
    )
    loader = wd.Loader(windows, batch_size=64, seed=7, normalize="auto")
    weights, losses = np.zeros((12, 48), np.float32), []
    for batch in loader:
        states, actions = batch["state"].reshape(-1, 12), batch["action"].reshape(-1, 48)
        errors = states @ weights - actions
        weights -= 0.02 * states.T @ errors / len(states)
        losses.append(float(np.mean(errors**2)))
    figure, axes = plt.subplots(1, 6, figsize=(11, 1.6))
    for axis, image in zip(axes, batch["image"], strict=False):
        axis.imshow(image)
        axis.axis("off")
    save_figure(figure, folder / "batch.png")
    figure, axis = plt.subplots(figsize=(7, 2.6))
    axis.plot(losses)
    axis.set(xlabel="step", ylabel="loss of the policy")
    axis.set_ylim(bottom=0)
    save_figure(figure, folder / "loss.png")


def shrink(path: Path) -> None:
    """Store a picture with a palette: a page loads faster, and the repository stays small."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as temp:
        root = Path(temp) / "robot_data"
        wd.demo_data(root, episodes=8)
        draw_plots(root, PICTURES)
        take_viewer(root, PICTURES)
    for path in sorted(PICTURES.glob("*.png")):
        shrink(path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
