"""Ask lerobot itself about what we export: `python tools/oracles/lerobot.py OUR_PYTHON [VERSION]`.

Makes a virtualenv of its own below a temporary folder, installs lerobot there (gigabytes), exports each golden set with
warpdata, opens the result with LeRobotDataset, and compares it item by item with the original set opened the same way
and with `wd.lerobot_dataset`. Prints what was compared as JSON; exits with 1 where something differs.
No run of it is committed: `results/lerobot.json` has what was compared by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = (
    Path(os.environ.get("WARPDATA_SHARED_GOLDEN", ROOT.parent / "shared" / "golden")) / "foreign" / "lerobot"
)
SETS = ("v21_video_av1", "v30_044_image", "v30_044_video_av1", "v30_061_video_av1", "v30_061_video_h264")
DELTAS = {"action": [-0.05, 0.0, 0.05], "observation.images.front": [-0.05, 0.0]}

# lerobot 0.4.4 wants the video reader that newer torchvision releases no longer have, and a torchvision that was not
# built for the torch beside it cannot be imported before its operators are declared.
SHIM = """
import torch
for name in ("nms", "qnms"):
    try:
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:
        pass
import av, torchvision
class VideoReader:
    def __init__(self, path, stream="video"):
        self.container = av.open(path)
        self.stream = self.container.streams.video[0]
    def seek(self, seconds, keyframes_only=False):
        self.container.seek(int(seconds / self.stream.time_base), stream=self.stream, backward=True)
        return self
    def __iter__(self):
        for frame in self.container.decode(self.stream):
            pixels = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
            yield {"data": pixels, "pts": float(frame.pts * self.stream.time_base)}
if not hasattr(torchvision.io, "VideoReader"):
    torchvision.io.VideoReader = VideoReader
if not hasattr(torchvision, "set_video_backend"):
    torchvision.set_video_backend = lambda name: None
"""

ASKED = (
    SHIM
    + """
import json, sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
folder, deltas, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
ds = LeRobotDataset("oracle/set", root=folder, delta_timestamps=deltas or None, video_backend="pyav")
items = [{k: v for k, v in ds[i].items()} for i in range(len(ds))]
torch.save({"items": items, "fps": ds.meta.fps, "length": len(ds)}, out)
"""
)

OURS = """
import json, sys
import torch, warpdata as wd
folder, deltas, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
ds = wd.lerobot_dataset(folder, delta_timestamps=deltas)
torch.save({"items": [ds[i] for i in range(len(ds))], "fps": ds.meta.fps, "length": len(ds)}, out)
"""

COMPARED = """
import json, sys
import torch
first, second = (torch.load(each, weights_only=False) for each in sys.argv[1:3])
tolerance = float(sys.argv[3])
wrong, keys = [], set()
if first["length"] != second["length"] or first["fps"] != second["fps"]:
    wrong.append("length or fps")
for number, (a, b) in enumerate(zip(first["items"], second["items"])):
    if set(a) != set(b):
        wrong.append(f"item {number}: keys {sorted(set(a) ^ set(b))}")
    for key in set(a) & set(b):
        keys.add(key)
        x, y = a[key], b[key]
        if not isinstance(x, torch.Tensor):
            same = x == y
        else:
            same = x.dtype == y.dtype and x.shape == y.shape
            same = same and (torch.equal(x, y) or (x.is_floating_point() and (x - y).abs().max().item() <= tolerance))
        if not same:
            wrong.append(f"item {number}: {key}")
print(json.dumps({"items": first["length"], "keys": sorted(keys), "wrong": wrong[:20]}))
"""


def main() -> int:
    """Run everything and print what was compared."""
    ours = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    version = sys.argv[2] if len(sys.argv) > 2 else "0.4.4"
    with tempfile.TemporaryDirectory(prefix="oracle-lerobot-") as temp:
        work = Path(temp)
        theirs = _virtualenv(work / "venv", version)
        found = [_one(name, deltas, work, ours, theirs) for name in SETS for deltas in ({}, DELTAS)]
    print(json.dumps({"lerobot": version, "compared": found}, indent=1))
    return int(any(each["wrong"] for case in found for each in case.values() if isinstance(each, dict)))


def _virtualenv(folder: Path, version: str) -> str:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    # The CPU build first: else gigabytes of CUDA come along.
    subprocess.run([python, "-m", "pip", "install", "-q", "torch", "torchvision", "--index-url",
                    "https://download.pytorch.org/whl/cpu"], check=False)  # fmt: skip
    subprocess.run([python, "-m", "pip", "install", "-q", f"lerobot=={version}"], check=True)
    return python


def _one(name: str, deltas: dict[str, list[float]], work: Path, ours: str, theirs: str) -> dict[str, object]:
    tag = f"{name}-{'windows' if deltas else 'alone'}"
    exported = work / f"{tag}-exported"
    subprocess.run(
        [ours, "-m", "warpdata", "export", "lerobot", str(GOLDEN / name), str(exported)], check=True
    )
    original = GOLDEN / name if name.startswith("v30") else exported
    text = json.dumps(deltas)
    paths = {key: work / f"{tag}-{key}.pt" for key in ("original", "exported", "ours")}
    subprocess.run([theirs, "-c", ASKED, str(original), text, str(paths["original"])], check=True)
    subprocess.run([theirs, "-c", ASKED, str(exported), text, str(paths["exported"])], check=True)
    subprocess.run([ours, "-c", OURS, str(GOLDEN / name), text, str(paths["ours"])], check=True)
    return {
        "set": tag,
        "export read by lerobot against the original read by lerobot": _compared(
            theirs, paths, "exported", 0.0
        ),
        "wd.lerobot_dataset against lerobot": _compared(theirs, paths, "ours", 0.01),
    }


def _compared(python: str, paths: dict[str, Path], other: str, tolerance: float) -> object:
    command = [python, "-c", COMPARED, str(paths["original"]), str(paths[other]), str(tolerance)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    raise SystemExit(main())
