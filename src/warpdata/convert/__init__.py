"""Foreign formats in and out: one module per format; `formats` knows their names, `importing` brings any of them in.

`warpdata.convert.lerobot`, `.rlds`, `.hdf5`, … load when first asked for.
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
}
"""The name of every foreign format of episodes -> its module. `formats.py` says what a module offers."""


def __getattr__(name: str) -> Any:
    if name not in FORMATS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{nearest(name, FORMATS)}")
    return importlib.import_module(FORMATS[name])
