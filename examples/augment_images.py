"""Augment images as whole batches on the device: crop, jitter colours, normalise.

    python examples/augment_images.py [FOLDER]

The loader decodes and scales on the CPU and gives uint8. One copy from pinned memory brings a batch to the device.
The random numbers belong to the place in the epoch: a resumed run sees the same crops.
Needs torch and the extra `video`; runs on the CPU where there is no GPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import warpdata as wd

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOADED, TRAINED = (80, 104), (72, 96)
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def to_device(batch: Any) -> Any:
    """One copy per tensor that does not wait: the loader pins tensors where there is a GPU."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if DEVICE.type == "cuda" and not value.is_pinned():  # tensors of DataLoader workers
            value = value.pin_memory()
        return value.to(DEVICE, non_blocking=True)

    return batch.map(move)


def random_crop(images: torch.Tensor, size: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """A window of its own for every image [n, height, width, 3]."""
    count, height, width, _ = images.shape
    tops = torch.randint(0, height - size[0] + 1, (count, 1, 1), generator=generator).to(images.device)
    lefts = torch.randint(0, width - size[1] + 1, (count, 1, 1), generator=generator).to(images.device)
    rows = tops + torch.arange(size[0], device=images.device).view(1, -1, 1)
    columns = lefts + torch.arange(size[1], device=images.device).view(1, 1, -1)
    return images[torch.arange(count, device=images.device).view(-1, 1, 1), rows, columns]


def color_jitter(images: torch.Tensor, strength: float, generator: torch.Generator) -> torch.Tensor:
    """Brightness, contrast and saturation, each by a factor of its own for every image; values in 0..1."""
    factors = 1 + strength * (2 * torch.rand((3, len(images), 1, 1, 1), generator=generator) - 1)
    brightness, contrast, saturation = factors.to(images.device)
    images = images * brightness
    images = torch.lerp(images.mean((1, 2, 3), keepdim=True), images, contrast)
    gray = (images * images.new_tensor([0.299, 0.587, 0.114])).sum(-1, keepdim=True)
    return torch.lerp(gray, images, saturation).clamp(0, 1)


def augment(batch: Any, rng: np.random.Generator) -> Any:
    """`batch_transform` of the loader: move, crop, jitter, normalise, channels first."""
    batch = to_device(batch)
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
    images = random_crop(batch["image"], TRAINED, generator).float() / 255
    images = color_jitter(images, 0.3, generator)
    images = (images - MEAN.to(DEVICE)) / STD.to(DEVICE)
    batch["image"] = images.permute(0, 3, 1, 2).contiguous()
    return batch


def loader_of(root: Path) -> Any:
    """Tensors of a batch: a scaled camera frame, the state, and sixteen actions."""
    windows = wd.Windows(
        wd.open(root),
        {
            "image": wd.Field("camera/front", size=LOADED),
            "state": wd.Field("joints"),
            "action": wd.Field("action/joint_target", horizon=16),
        },
        anchor="action/joint_target",
    )
    return wd.Loader(windows, 32, seed=7, normalize="auto", batch_transform=augment).to_torch().loader()


def main(folder: Path) -> None:
    """Go through one epoch; then stop after three batches and continue in a new loader."""
    wd.demo_data(folder / "robot", episodes=2)
    whole = [batch["image"].cpu() for batch in loader_of(folder / "robot")]
    assert whole[0].shape[1:] == (3, *TRAINED)
    first = loader_of(folder / "robot")
    batches = iter(first)
    begun = [next(batches)["image"].cpu() for _ in range(3)]
    resumed = loader_of(folder / "robot")
    resumed.load_state_dict(first.state_dict())
    again = begun + [batch["image"].cpu() for batch in resumed]
    assert len(again) == len(whole)
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True)), "the augmentation differs"
    print(f"{len(whole)} batches of {tuple(whole[0].shape)} on {DEVICE.type}: the same images after a resume")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
