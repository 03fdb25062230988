"""Foreign formats in and out: the registry is `formats`, the import engine `importing`.

`warpdata.convert.lerobot`, `.rlds`, `.hdf5`, … are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from warpdata.errors import nearest

FORMATS = {
    "lerobot": "warpdata.convert.lerobot",
    "rlds": "warpdata.convert.rlds",
    "hdf5": "warpdata.convert.hdf5",
    "mcap": "warpdata.convert.mcap",
    "rosbag2": "warpdata.convert.rosbag2",
    "zarr": "warpdata.convert.zarr",
    "minari": "warpdata.convert.minari",
    "dreamer": "warpdata.convert.dreamer",
    "webdataset": "warpdata.convert.webdataset",
    "npz": "warpdata.convert.tables.npz",
    "parquet": "warpdata.convert.tables.parquet",
    "rrd": "warpdata.convert.rrd",
    "wav": "warpdata.convert.wav",
}
"""Foreign formats of episodes by name, and their modules; `formats.py` describes what a module offers."""


def __getattr__(name: str) -> Any:
    if name not in FORMATS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{nearest(name, FORMATS)}")
    return importlib.import_module(FORMATS[name])
