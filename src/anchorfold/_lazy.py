"""Packages whose names are imported on first use: a command does not load libraries that it does not need."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

IMPORT = re.compile(r"^from \.([\w.]*) import (\w+) as \2$", re.MULTILINE)


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, from the imports in its stub `__init__.pyi`.

    Type checkers read the same stub, so every public name is listed once. Its lines have the form
    `from .module import Name as Name`, or `from . import module as module`.

    Args:
        package: `__name__` of the package.
        file: `__file__` of the package.
    """
    stub = Path(file).with_suffix(".pyi").read_text("utf-8")
    modules = {name: module for module, name in IMPORT.findall(stub)}

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules[name]
        value = getattr(import_module(f"{package}.{module}"), name) if module else import_module(f"{package}.{name}")
        setattr(sys.modules[package], name, value)  # next time without this function
        return value

    names = sorted(modules)
    return get_attribute, lambda: names, names
