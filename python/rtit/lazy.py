"""Packages whose names are loaded on use: starting a recording must not load the trace unit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of `package`, which gets a `__dir__` that lists all names: `homes` is its
    modules, each with the names that it defines, separated by blanks.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{module}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    vars(sys.modules[package])["__dir__"] = listed
    return load
