"""The work folder of a single signal's recording, and the files it becomes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpdata.errors import CorruptLayoutError, JournalInUseError

_SUFFIX = ".recording"


def work_folder(path: Path) -> Path:
    """The folder of journals beside the file a writer is to make."""
    return path.with_name(f".{path.name}{_SUFFIX}")


def work_folders_in(folder: Path) -> list[Path]:
    """The unfinished recordings of single signals in a folder."""
    found = (each for each in folder.glob(f".*{_SUFFIX}") if each.is_dir() and each.name != _SUFFIX)
    return sorted(
        each for each in found if not (each / _SUFFIX).exists()
    )  # a shard with a hidden name has that


def facts_of(path: Path, frames: Path | None) -> dict[str, Any]:
    """The files to be made, as the journal states them."""
    files = {"data": path.name}
    if frames is not None:
        is_beside = os.path.abspath(frames.parent) == os.path.abspath(path.parent)
        files["frames"] = frames.name if is_beside else os.path.abspath(frames)
    return {"files": files}


def files_of(work: Path, descriptor: Mapping[str, Any]) -> tuple[Path, Path | None] | None:
    """The data file and frame index a recording is to become; None where it is one of an episode."""
    stated = descriptor.get("files")
    if stated is None:
        return None
    data = stated.get("data") if isinstance(stated, dict) else None
    if not isinstance(data, str) or work.name != f".{data}{_SUFFIX}":
        raise CorruptLayoutError("the journal names another file than its folder", path=work)
    return work.with_name(data), _frames(work, stated.get("frames"))


def files_by_name(work: Path) -> tuple[Path, Path | None]:
    """The files by the name of the work folder, where no journal states them: the index is beside the data file."""
    data = work.with_name(work.name[1 : -len(_SUFFIX)])
    return data, data.with_name(f"{data.stem}.frames.parquet")


def _frames(work: Path, stated: Any) -> Path | None:
    """A frame index beside the video has a plain name; elsewhere it is never replaced."""
    if stated is None:
        return None
    if not isinstance(stated, str) or not stated or "\0" in stated:
        raise CorruptLayoutError("the journal names no frame index", path=work)
    if os.path.basename(stated) == stated:
        return work.with_name(stated)
    if not os.path.isabs(stated):
        raise CorruptLayoutError(f"the journal names {stated!r} as its frame index", path=work)
    return Path(stated)


def check_not_unfinished(path: str) -> None:
    """Raise if a file is missing because its recording was never finished."""
    if work_folder(Path(path)).is_dir():
        raise JournalInUseError(
            "the recording is not finished", path=path,
            hint=f"Wait until its recorder is done; if it was killed, run `warp salvage {path}`.",
        )  # fmt: skip
