"""Definitions of message types for bags that do not carry them: the adapter of rosbags' type stores."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _store() -> Any | None:
    try:
        from rosbags.typesys import Stores, get_typestore
    except ImportError:
        return None
    return get_typestore(Stores.LATEST)


@cache
def known_definition(name: str) -> str | None:
    """The text of a type that ROS ships, with everything it is made of; None where it is not known."""
    store = _store()
    if store is None:
        return None
    from rosbags.typesys import TypesysError

    try:
        text: str = store.generate_msgdef(name, ros_version=2)[0]
    except TypesysError:
        return None
    return text
