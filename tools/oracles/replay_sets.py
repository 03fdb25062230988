"""Do the original libraries accept what is exported as robomimic HDF5, Minari, a replay buffer and RLDS?

    python tools/oracles/replay_sets.py ORACLE [--venv FOLDER] [--golden FOLDER]

Exports the golden sets, then reads them with the original library in a venv of its own (made and filled when it is not
there) and compares every value with the source. The result is written beside this file, in `results/`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

PACKAGES = {
    "robomimic": ["torch==2.13.0", "robomimic==0.3.0", "h5py"],
    "minari": ["minari[hdf5,arrow]==0.5.4", "pillow"],
    "diffusion-policy": ["zarr==2.18.7", "numcodecs==0.15.1"],
    "tensorflow-datasets": [
        "tensorflow-datasets==4.9.9",
        "tensorflow-cpu==2.19.1",
        "tensorflow-metadata<1.18",
    ],
}


def _export_rlds(golden: Path, folder: Path) -> list[str]:
    """The set of TFDS straight and through a root of ours, and sets of other origin."""
    from warpdata import open_episodes
    from warpdata.convert import hdf5, minari, rlds
    from warpdata.convert.importing import import_episodes

    made: list[str] = []
    source = golden / "rlds" / "tfrecord" / "synth_arm" / "1.0.0"
    rlds.write(rlds.read(source), folder / "rlds")
    import_episodes(rlds.read(source), folder / "root", format="rlds", source=str(source))
    rlds.write(open_episodes(folder / "root"), folder / "rlds_through_a_root")
    made += [f"rlds={source}", f"rlds_through_a_root={source}"]
    others = {
        "from_robomimic": hdf5.read(golden / "robomimic" / "gen_lift_image.hdf5"),
        "from_minari": minari.read(golden / "minari" / "synth" / "dict-hdf5-v0"),
    }
    for name, episodes in others.items():
        rlds.write(episodes, folder / name)
        _keep_values(episodes, folder / f"{name}.npz")
        made.append(f"{name}={folder / name}.npz")
    return made


def export(oracle: str, golden: Path, folder: Path) -> list[str]:
    """Write the golden sets again with warpdata, each beside a copy of what they must equal."""
    if oracle == "tensorflow-datasets":
        return _export_rlds(golden, folder)
    from warpdata.convert import hdf5, minari, zarr

    made: list[str] = []
    if oracle == "robomimic":
        for name in ("gen_lift_image", "gen_libero_style_demo", "tfds_dummy/robomimic_ph__lift_low_dim"):
            source = golden / "robomimic" / f"{name}.hdf5"
            hdf5.write(hdf5.read(source), folder / f"{source.stem}.hdf5")
            made.append(f"{source.stem}.hdf5={source}")
        source = golden / "minari" / "synth" / "dict-hdf5-v0"
        hdf5.write(minari.read(source), folder / "from_minari.hdf5")
        made.append("from_minari.hdf5=")
    if oracle == "minari":
        for source in sorted((golden / "minari" / "synth").iterdir()):
            if source.is_dir():
                (folder / "synth").mkdir(exist_ok=True)
                minari.write(minari.read(source), folder / "synth" / source.name)
                made.append(f"synth/{source.name}={source}")
        (folder / "lift").mkdir()
        lift = hdf5.read(golden / "robomimic" / "gen_lift_image.hdf5")
        for kind in ("hdf5", "arrow", "parquet"):
            minari.write(lift, folder / f"lift/{kind}-v0", data_format=kind, dataset_id=f"lift/{kind}-v0")  # type: ignore[arg-type]
            made.append(f"lift/{kind}-v0=")
    if oracle == "diffusion-policy":
        for name in ("lowdim.zarr", "pusht_like.zarr"):
            source = golden / "zarr_replay_buffer" / name
            zarr.write(zarr.read(source), folder / name)
            zarr.write(zarr.read(source), folder / f"{name}.zip")
            made += [f"{name}={source}", f"{name}.zip={source}"]
        zarr.write(hdf5.read(golden / "robomimic" / "gen_lift_image.hdf5"), folder / "from_robomimic.zarr")
        made.append("from_robomimic.zarr=")
    return made


def _keep_values(episodes: Any, path: Path) -> None:
    """What an export of episodes must say, as plain arrays: `episode/signal`; JPEG pictures begin with `~`."""
    import numpy as np

    from warpdata.episodes.sources.encoded import encoded_run

    found = {}
    for number, episode in enumerate(episodes):
        for name, signal in episode.signals.items():
            if not signal.meta.is_object and signal.meta.role in ("observation", "action"):
                run = encoded_run(signal)
                mark = "~" if run is not None and run.stream.codec == "mjpeg" else ""
                found[f"{mark}{number}/{name}"] = signal.values()
    np.savez(path, **found)


# What follows runs in the venv of the original library: it imports nothing of warpdata.


def check_robomimic(path: Path, source: str) -> dict[str, Any]:
    """Every item of a SequenceDataset over ours equals the one over the source."""
    import h5py
    import numpy as np
    import robomimic
    import robomimic.utils.obs_utils as obs_utils
    from robomimic.utils.dataset import SequenceDataset

    with h5py.File(path) as file:
        keys: list[str] = []
        file["data/" + sorted(file["data"])[0] + "/obs"].visititems(
            lambda name, item: keys.append(name) if isinstance(item, h5py.Dataset) else None
        )
    images = [key for key in keys if key.endswith(("image", "rgb"))]
    low = [key for key in keys if key not in images]
    obs_utils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": low, "rgb": images}})

    def opened(place: Any) -> Any:
        with h5py.File(place) as file:
            has_next = "next_obs" in file["data/" + sorted(file["data"])[0]]
        return SequenceDataset(
            hdf5_path=str(place),
            obs_keys=keys,
            dataset_keys=("actions", "rewards", "dones"),
            seq_length=4,
            load_next_obs=has_next,
            hdf5_cache_mode=None,
            hdf5_use_swmr=False,
        )

    ours = opened(path)
    compared = 0
    if source:
        theirs = opened(source)
        assert len(ours) == len(theirs)
        for at in range(0, len(ours), 7):
            _same(ours[at], theirs[at], np)
            compared += 1
    else:
        for at in range(0, len(ours), 7):
            _ = ours[at]
    return {
        "library": f"robomimic {robomimic.__version__}",
        "sequences": len(ours),
        "items compared": compared,
    }


def _same(ours: Any, theirs: Any, np: Any) -> None:
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), set(ours) ^ set(theirs)
        for key in theirs:
            _same(ours[key], theirs[key], np)
    elif isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            _same(a, b, np)
    else:
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def check_minari(path: Path, source: str) -> dict[str, Any]:
    """Every episode that Minari reads from ours equals the one it reads from the source."""
    import minari
    import numpy as np

    ours = minari.MinariDataset(path / "data")
    compared = 0
    theirs = minari.MinariDataset(Path(source) / "data") if source else None
    for number, episode in enumerate(ours.iterate_episodes()):
        assert len(episode.rewards) + 1 == len(_leaf(episode.observations))
        if theirs is not None:
            other = theirs[number]
            for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
                _same(getattr(episode, name), getattr(other, name), np)
            compared += 1
    return {
        "library": f"minari {minari.__version__}",
        "episodes": int(ours.total_episodes),
        "steps": int(ours.total_steps),
        "episodes compared": compared,
    }


def _leaf(tree: Any) -> Any:
    while isinstance(tree, dict | tuple):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def check_diffusion_policy(path: Path, source: str) -> dict[str, Any]:
    """The rules that its ReplayBuffer asserts when it opens a buffer, with the library it opens them with."""
    import numpy as np
    import zarr

    def opened(place: Any) -> Any:
        store = (
            zarr.ZipStore(str(place), mode="r")
            if str(place).endswith(".zip")
            else zarr.DirectoryStore(str(place))
        )
        return zarr.group(store)

    root = opened(path)
    assert "data" in root
    assert "meta" in root
    ends = root["meta"]["episode_ends"]
    assert ends.ndim == 1
    assert (np.diff(ends[:]) >= 0).all()
    for key, value in root["data"].items():
        assert value.shape[0] == ends[-1], key
    compared = 0
    if source:
        other = opened(source)
        np.testing.assert_array_equal(ends[:], other["meta"]["episode_ends"][:])
        assert set(root["data"]) == set(other["data"])
        for key, value in other["data"].items():
            assert value.dtype == root["data"][key].dtype
            np.testing.assert_array_equal(root["data"][key][:], value[:])
            compared += 1
    return {"library": f"zarr {zarr.__version__}", "steps": int(ends[-1]), "arrays compared": compared}


def check_tensorflow_datasets(path: Path, source: str) -> dict[str, Any]:
    """Every step that TFDS reads from ours equals the one it reads from the source, or the values that went in."""
    import numpy as np
    import tensorflow_datasets as tfds

    def read(place: str) -> list[dict[str, Any]]:
        builder = tfds.builder_from_directory(place)
        found = []
        for split in sorted(builder.info.splits):
            for episode in builder.as_dataset(split=split):
                steps = [tfds.as_numpy(step) for step in episode.pop("steps")]
                found.append({**tfds.as_numpy(episode), "steps": steps})
        return found

    ours, arrays, levels = read(str(path)), 0, 0
    if source.endswith(".npz"):
        with np.load(source) as known:
            for key in known.files:
                number, _, name = key.removeprefix("~").partition("/")
                rows = [_named(step, name) for step in ours[int(number)]["steps"]]
                # What was seen after the last action has a step of its own, whose action is no part of the source.
                values = np.stack(rows).reshape(-1, *known[key].shape[1:])[: len(known[key])]
                if key.startswith("~"):  # the same bytes, which TensorFlow decodes with a coarser transform
                    levels = max(levels, int(np.abs(values.astype(int) - known[key]).max()))
                    assert levels <= 8, key
                else:
                    np.testing.assert_array_equal(values, known[key], err_msg=key)
                assert values.dtype == known[key].dtype, key
                arrays += 1
    else:
        theirs = read(source)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            _same(a, b, np)
            arrays += len(_leaves(b["steps"][0]))
    steps = sum(len(episode["steps"]) for episode in ours)
    against = "the values that went in" if source.endswith(".npz") else "the source, read by it"
    return {
        "library": f"tensorflow-datasets {tfds.__version__}",
        "episodes": len(ours),
        "steps": steps,
        "arrays compared": arrays,
        "against": against,
        "levels between two decoders of JPEG": levels,
    }


def _leaves(tree: Any) -> list[Any]:
    return [leaf for each in tree.values() for leaf in _leaves(each)] if isinstance(tree, dict) else [tree]


def _named(step: dict[str, Any], name: str) -> Any:
    """A signal in a step of RLDS: below the word of its role, or the only action."""
    for path in (name.split("/"), ["observation", *name.split("/")], ["action"]):
        found: Any = step
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        if found is not None and not isinstance(found, dict):
            return found
    raise AssertionError(f"{name} is not there")


CHECKS = {
    "robomimic": check_robomimic,
    "minari": check_minari,
    "diffusion-policy": check_diffusion_policy,
    "tensorflow-datasets": check_tensorflow_datasets,
}


def main() -> int:
    """Export, check in the venv, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("oracle", choices=list(CHECKS))
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--golden", type=Path, default=ROOT.parent / "shared" / "golden" / "foreign")
    parser.add_argument("--check", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--made", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.check is not None:
        found = {}
        for each in json.loads(args.made):
            name, _, source = each.partition("=")
            found[name] = CHECKS[args.oracle](args.check / name, source)
        print(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        venv = args.venv or Path(scratch) / "venv"
        if not venv.exists():
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            subprocess.run([str(venv / "bin" / "pip"), "install", "-q", *PACKAGES[args.oracle]], check=True)
        folder = Path(scratch) / "sets"
        folder.mkdir()
        made = export(args.oracle, args.golden, folder)
        command = [
            str(venv / "bin" / "python"),
            __file__,
            args.oracle,
            "--check",
            str(folder),
            "--made",
            json.dumps(made),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        return 1
    result = json.loads(done.stdout.splitlines()[-1])
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"{args.oracle}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
