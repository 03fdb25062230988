"""A function that a command is given: `module:name`, found here or among what is installed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any


def function_of(address: str) -> Callable[..., Any]:
    """A function by `module:name`; modules of the current folder are found too."""
    from warpdata.errors import nearest

    module_name, colon, name = address.partition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"{address!r} is not MODULE:FUNCTION, such as my_model:predict")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ValueError(f"there is no module {module_name!r} here or among what is installed") from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module_name} has no {name!r}.{nearest(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{address} is a {type(found).__name__}, no function")
    return found  # type: ignore[no-any-return]
