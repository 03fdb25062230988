"""Ask lerobot itself about what we export: `python -m tools.oracles.lerobot OUR_PYTHON [VERSION] [THEIR_PYTHON]`.

Makes a virtualenv of its own below a temporary folder and installs lerobot there (gigabytes), unless a Python that has
it is given. Exports each golden set with warpdata, reads the result with LeRobotDataset, and compares it item by item
with the original set read the same way; of v2.1, which lerobot no longer reads, with what `wd.lerobot_dataset` gives.
Compares `wd.lerobot_dataset` over the original sets with LeRobotDataset too, and how long both take. Writes what was
compared into `results/lerobot.json` and exits with 1 where something differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.interpreters import interpreter

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = (
    Path(os.environ.get("WARPDATA_SHARED_GOLDEN", ROOT.parent / "shared" / "golden")) / "foreign" / "lerobot"
)
RESULTS = Path(__file__).resolve().parent / "results" / "lerobot.json"
LEVELS = 4
"""By so many of 255 levels frames of two releases of FFmpeg may differ: they round differently on the way to RGB."""
SETS = ("v21_video_av1", "v30_044_image", "v30_044_video_av1", "v30_061_video_av1", "v30_061_video_h264")
DELTAS = {"action": [-0.05, 0.0, 0.05], "observation.images.front": [-0.05, 0.0]}

# lerobot 0.4.4 wants the video reader that newer torchvision releases no longer have, and a torchvision that was not
# built for the torch beside it cannot be imported before its operators are declared.
SHIM = """
import torch
try:
    import torchvision
except RuntimeError:
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys = __import__("sys")
    for name in [each for each in sys.modules if each.startswith("torchvision")]:
        del sys.modules[name]
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

_TIMED = """
import json, random, sys, time
work = json.loads(sys.argv[1])
def timed(ds):
    order = list(range(len(ds)))
    random.Random(0).shuffle(order)
    best = 1e9
    for _ in range(2):
        start = time.process_time()
        for i in order:
            ds[i]
        best = min(best, time.process_time() - start)
    return len(ds) / best
def answer(name, folder, deltas, out, ds):
    items = [dict(ds[i]) for i in range(len(ds))]
    torch.save({"items": items, "fps": ds.meta.fps, "length": len(ds)}, out)
    return name, timed(ds)
"""

ASKED = (
    SHIM
    + _TIMED
    + """
from importlib.metadata import version
from lerobot.datasets.lerobot_dataset import LeRobotDataset
torch.set_num_threads(1)
rates = dict(
    answer(name, folder, deltas, out, LeRobotDataset(
        "oracle/set", root=folder, delta_timestamps=deltas or None, video_backend="pyav"))
    for name, folder, deltas, out in work
)
print(json.dumps({"rates": rates, "torch": torch.__version__, "lerobot": version("lerobot")}))
"""
)

OURS = (
    _TIMED
    + """
import torch, warpdata as wd
torch.set_num_threads(1)
rates = dict(
    answer(name, folder, deltas, out, wd.lerobot_dataset(folder, delta_timestamps=deltas))
    for name, folder, deltas, out in work
)
wd.keep_decoded(0)
decoded = {
    name: timed(wd.lerobot_dataset(folder, delta_timestamps=deltas)) for name, folder, deltas, _ in work
}
print(json.dumps({"rates": rates, "decoded": decoded}))
"""
)

COMPARED = """
import json, sys
import torch
torch.set_num_threads(1)
found = []
for first, second in json.loads(sys.argv[1]):
    a, b = (torch.load(each, weights_only=False) for each in (first, second))
    wrong, keys, levels = [], set(), 0.0
    if a["length"] != b["length"] or a["fps"] != b["fps"]:
        wrong.append("length or fps")
    for number, (x, y) in enumerate(zip(a["items"], b["items"])):
        if set(x) != set(y):
            wrong.append(f"item {number}: keys {sorted(set(x) ^ set(y))}")
        for key in set(x) & set(y):
            keys.add(key)
            one, other = x[key], y[key]
            if not isinstance(one, torch.Tensor):
                same = one == other
            else:
                same = one.dtype == other.dtype and one.shape == other.shape
                if same and not torch.equal(one, other):
                    away = (one - other).abs().max().item() * 255 if "images" in key else 1e9
                    levels, same = max(levels, away), away <= float(sys.argv[2]) + 1e-3
            if not same:
                wrong.append(f"item {number}: {key}")
    found.append({"items": a["length"], "keys": len(keys), "levels": round(levels, 2), "wrong": wrong[:20]})
print(json.dumps(found))
"""


def main() -> int:
    """Run everything, and write down what was compared."""
    ours = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    version = sys.argv[2] if len(sys.argv) > 2 else "0.6.1"
    with tempfile.TemporaryDirectory(prefix="oracle-lerobot-") as temp:
        work = Path(temp)
        theirs = sys.argv[3] if len(sys.argv) > 3 else _virtualenv(work / "venv", version)
        for name in SETS:
            command = [ours, "-m", "warpdata", "export", "lerobot", str(GOLDEN / name), str(work / name)]
            subprocess.run(command, check=True, capture_output=True)
        cases = [(name, deltas) for name in SETS for deltas in ({}, DELTAS)]
        tags = [f"{name}, {'windows' if deltas else 'single steps'}" for name, deltas in cases]
        paths = {
            kind: [str(work / f"{kind}-{n}.pt") for n in range(len(cases))]
            for kind in ("source", "export", "ours")
        }
        exported = [
            [tags[n], str(work / name), deltas, paths["export"][n]] for n, (name, deltas) in enumerate(cases)
        ]
        sources = [
            [tags[n], str(GOLDEN / name), deltas, paths["source"][n]]
            for n, (name, deltas) in enumerate(cases)
        ]
        readable = [each for each in sources if "v30" in each[0]]
        read = [[each[0], each[1], each[2], path] for each, path in zip(sources, paths["ours"], strict=True)]
        said = _asked([theirs, "-c", ASKED, json.dumps(exported)])
        original = _asked([theirs, "-c", ASKED, json.dumps(readable)])
        mine = _asked([ours, "-c", OURS, json.dumps(read)])
        pairs = [
            [paths["source" if "v30" in tag else "ours"][n], paths["export"][n]] for n, tag in enumerate(tags)
        ] + [[paths["source"][n], paths["ours"][n]] for n, tag in enumerate(tags) if "v30" in tag]
        compared = _asked([theirs, "-c", COMPARED, json.dumps(pairs), str(LEVELS)])
    names = [f"export of {tag}" for tag in tags] + [
        f"wd.lerobot_dataset over {tag}" for tag in tags if "v30" in tag
    ]
    library = f"lerobot {said['lerobot']}"
    found = {}
    for name, about in zip(names, compared, strict=True):
        tag = name.partition("export of ")[2] or name.partition("over ")[2]
        against = "the source, read by it" if "v30" in name else "the source, read by wd.lerobot_dataset"
        found[f"{name} ({said['lerobot']})"] = {
            "library": library,
            "items compared": about["items"],
            "keys": about["keys"],
            "against": against if name.startswith("export") else "the source, read by lerobot",
            "largest difference of a frame, in levels of 255": about["levels"],
            **(
                {}
                if name.startswith("export")
                else {
                    "speed in items per CPU second, against lerobot's": round(
                        mine["rates"][tag] / original["rates"][tag], 1
                    ),
                    "the same with every frame decoded anew": round(
                        mine["decoded"][tag] / original["rates"][tag], 1
                    ),
                }
            ),
            **({"wrong": about["wrong"]} if about["wrong"] else {}),
        }
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept = {key: value for key, value in kept.items() if value["library"] != library}
    RESULTS.write_text(json.dumps({**kept, **found}, indent=2) + "\n")
    print(json.dumps(found, indent=1))
    return int(any(each["wrong"] for each in compared))


def _asked(command: list[str]) -> Any:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def _virtualenv(folder: Path, version: str) -> str:
    base = interpreter("3.12") if version >= "0.5" else None
    subprocess.run([base or sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    extra = "[dataset]" if version >= "0.5" else ""
    for each in ("torch==2.11.0", f"lerobot{extra}=={version}"):  # a torch that lerobot does not replace
        subprocess.run([python, "-m", "pip", "install", "-q", each], check=True)
    return python


if __name__ == "__main__":
    raise SystemExit(main())
