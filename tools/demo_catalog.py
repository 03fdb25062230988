"""The published side of the demo: a table and frames become a dataset that is queried, streamed, compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import warpdata as wd


def main(folder: Path | str) -> None:
    """Publish what was recorded (or a small stand-in) to a catalog in `folder` and use it."""
    folder = Path(folder)
    catalog = folder / "catalog"
    episodes = sorted(folder.rglob("*.wshard"))
    table, frames = _recorded(folder, episodes)
    print(f"catalog: publish {len(table['step'])} rows and {len(list(frames.iterdir()))} frames")
    first = _publish(catalog, table, frames, episodes, "first episodes")
    longer = {name: values + values[:5] for name, values in table.items()}
    second = _publish(catalog, longer, frames, episodes, "five rows more")
    with wd.dataset("demo/episodes", catalog=catalog) as ds:
        parts = ", ".join(ds.tables + ds.artifacts)
        print(f"  resolved {ds.id}@{ds.version[:12]}: {ds.table().row_count} rows; {parts}")
        best = ds.sql(
            "select episode, count(*) as steps, round(sum(reward), 3) as total "
            "from main group by episode order by total desc limit 3"
        )
        for row in best.arrow().to_pylist():
            print(f"  SQL: {row}")
        shapes = [batch["frame"][0].as_numpy().shape for batch in ds.table().batches(16)]
        print(f"  streamed {len(shapes)} batches, first frame {shapes[0]}")
    _warp("diff", f"demo/episodes@{first[:12]}", f"@{second[:12]}", "--catalog", str(catalog))


def _recorded(folder: Path, episodes: list[Path]) -> tuple[dict[str, list], Path]:
    """Rows of the recorded episodes, and one frame for each row as a picture."""
    from PIL import Image

    frames = folder / "catalog-frames"
    frames.mkdir(parents=True, exist_ok=True)
    table: dict[str, list] = {"episode": [], "step": [], "reward": [], "frame": []}
    for name, rewards, pictures in _sequences(episodes):
        for step, reward in enumerate(rewards):
            file = f"{name}-{step:04d}.png"
            Image.fromarray(pictures(step)).save(frames / file)
            for column, value in zip(table, (name, step, float(reward), file), strict=True):
                table[column].append(value)
    return table, frames


def _sequences(episodes: list[Path]):
    """Rewards and pictures of up to three episodes; drawn ones where an episode recorded none."""
    found = []
    for path in episodes[:3]:
        steps = wd.open_episode(path).steps
        count = min(steps.length, 20)
        rewards = np.zeros(count) if steps.rewards is None else steps.rewards[:count]
        images = [s.data for s in steps.observations.values() if len(s.shape) == 4 and s.dtype == np.uint8]
        found.append((path.stem, rewards, _picker(images)))
    return found or [("drawn", np.linspace(0, 1, 20), _picker([]))]


def _picker(images: list):
    if images:
        return lambda step: images[0][step]
    return lambda step: np.full((32, 32, 3), step * 10 % 256, np.uint8)


def _publish(catalog: Path, table: dict[str, list], frames: Path, episodes: list[Path], message: str) -> str:
    with wd.DatasetBuilder("demo/episodes", catalog=catalog) as builder:
        builder.add_table("main", table).add_artifact("frames", frames).bind(
            "main", "frame", "frames", "image"
        )
        if episodes:
            builder.add_artifact("episodes", episodes, kind="wshard_episodes")
        return builder.publish(message=message).version


def _warp(*arguments: str) -> None:
    print(f"  $ warp {' '.join(arguments)}")
    done = subprocess.run(
        [sys.executable, "-m", "warpdata", *arguments], capture_output=True, text=True, check=True
    )
    print("    " + done.stdout.rstrip().replace("\n", "\n    "))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
