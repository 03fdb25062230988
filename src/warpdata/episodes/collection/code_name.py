"""What a function is called in an identity: by its name and its code, because that is what changes what it does."""

from __future__ import annotations

import functools
import hashlib
from types import CodeType
from typing import Any


def code_name(function: Any) -> str:
    """A text that is another one when the function is; what it reads from outside itself does not count."""
    if isinstance(function, functools.partial):
        given = f"{function.args!r}{sorted(function.keywords.items())!r}"
        return f"partial({code_name(function.func)}, {_short(given)})"
    if isinstance(function, type):
        return f"{function.__module__}.{function.__qualname__}:{_short(_text_of_class(function))}"
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    if isinstance(code, CodeType):
        cells = [_cell(each) for each in getattr(inner, "__closure__", None) or ()]
        return f"{name}:{_short(_text_of(code) + repr(getattr(inner, '__defaults__', None)) + repr(cells))}"
    return f"{name}:{_short(repr(sorted(getattr(inner, '__dict__', {}).items(), key=str)))}"


def _cell(cell: Any) -> str:
    value = cell.cell_contents
    return code_name(value) if callable(value) else repr(value)


def _text_of_class(kind: type) -> str:
    """The code of its methods, and of those it has from others that are no part of Python."""
    parts = []
    for each in kind.__mro__:
        if each.__module__ != "builtins":
            for name, value in sorted(vars(each).items()):
                code = getattr(getattr(value, "__func__", value), "__code__", None)
                if isinstance(code, CodeType):
                    parts.append(f"{name}:{_text_of(code)}")
                elif isinstance(value, bool | int | float | str) and not name.startswith("__"):
                    parts.append(f"{name}={value!r}")
    return "\n".join(parts)


def _text_of(code: CodeType) -> str:
    constants = [_text_of(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return f"{code.co_code.hex()}{constants}{code.co_names}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
