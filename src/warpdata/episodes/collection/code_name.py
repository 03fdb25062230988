"""Identity of a user's function: its name and a hash of its code, with the helpers and values that the code reads."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_INSTALLED = ("site-packages", "dist-packages")


def code_name(function: Any) -> str:
    """A text that changes when the function, a helper it calls or a global it reads changes.

    Code of installed libraries counts by name. State that Python cannot show, such as the weights of a model, does not
    count: such functions need a revision from their caller.
    """
    return _Identity().name_of(function)


class _Identity:
    """One walk over the code that a function reaches; each piece is visited once."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def name_of(self, function: Any) -> str:
        """Name and hash of a callable."""
        if isinstance(function, functools.partial):
            given = [self.text_of(each) for each in (function.args, function.keywords)]
            return f"partial({self.name_of(function.func)}, {_short(''.join(given))})"
        inner = getattr(function, "__func__", function)
        kind = inner if isinstance(inner, type | FunctionType) else type(inner)
        name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', kind.__qualname__)}"
        if id(inner) in self._seen:
            return f"{name}#{self._seen[id(inner)]}"
        self._seen[id(inner)] = len(self._seen)
        if _is_library(kind.__module__) and isinstance(inner, type | FunctionType):
            return name
        if isinstance(inner, type):
            return f"{name}:{_short(self._class(inner))}"
        if isinstance(inner, FunctionType):
            return f"{name}:{_short(self._function(inner))}"
        state = sorted(getattr(inner, "__dict__", {}).items())
        code = "" if _is_library(kind.__module__) else self._class(type(inner))
        return f"{name}:{_short(code + self.text_of(state))}"

    def text_of(self, value: Any) -> str:
        """A text for a value that code reads: its content where that is plain data, else its type."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            data = repr(array.tolist()) if array.dtype.hasobject else array.tobytes().hex()
            return f"{array.dtype}{array.shape}{_short(data)}"
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, Mapping):
            return str([(self.text_of(key), self.text_of(each)) for key, each in value.items()])
        if isinstance(value, list | tuple):
            return str([self.text_of(each) for each in value])
        if isinstance(value, set | frozenset):
            return str(sorted(self.text_of(each) for each in value))
        if callable(value):
            return self.name_of(value)
        return f"{type(value).__module__}.{type(value).__qualname__}"

    def _function(self, function: FunctionType) -> str:
        cells = [self.text_of(each.cell_contents) for each in function.__closure__ or ()]
        values = [self.text_of(function.__defaults__), self.text_of(function.__kwdefaults__), *cells]
        read = [f"{name}={self.text_of(value)}" for name, value in _globals_of(function)]
        return _code_text(function.__code__) + "".join([*values, *read])

    def _class(self, kind: type) -> str:
        """Methods and plain attributes of a class and of its bases outside of Python and of libraries."""
        parts = []
        for base in kind.__mro__:
            if _is_library(base.__module__):
                continue
            for name, value in sorted(vars(base).items()):
                inner = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(inner, FunctionType):
                    parts.append(f"{name}:{self._function(inner)}")
                elif isinstance(value, _PLAIN) and not name.startswith("__"):
                    parts.append(f"{name}={value!r}")
        return "\n".join(parts)


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Globals that the code names, and what it names in modules of the user."""
    names = sorted(_names_in(function.__code__))
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType) and not _is_library(value.__name__):
            yield from ((f"{name}.{each}", vars(value)[each]) for each in names if each in vars(value))


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _is_library(module: str) -> bool:
    """Whether a module is part of Python or installed, so that its name stands for its code."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return top == "warpdata" or any(folder in path for folder in _INSTALLED)


def _code_text(code: CodeType) -> str:
    constants = [
        _code_text(each)
        if isinstance(each, CodeType)
        else repr(sorted(map(repr, each)))
        if isinstance(each, frozenset)
        else repr(each)
        for each in code.co_consts
    ]
    return f"{code.co_code.hex()}{constants}{code.co_names}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
