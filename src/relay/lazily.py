"""Packages whose names are imported when they are first used.

Python takes the lock of a module that is imported by its name before that of the package it is in. A package whose body imports its
own modules takes them the other way round, so two threads that begin with the two wait for each other, and Python hands one of them
what is half there. The packages here therefore import nothing: what a package gives to others is said in its module ``exports``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable


def module_in(package: str, name: str) -> object:
    """The module of this name in a package. Raises AttributeError when there is none."""
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.{name}":
            raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None


def exported(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package: for its modules, and for the names of its module ``exports``."""
    missing: set[str] = set()

    def find(name: str) -> object:
        if name.startswith("__") or name in missing:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            # First: `from package import module` asks here, and wants nothing else imported.
            found = module_in(package, name)
        except AttributeError:
            exports = importlib.import_module(f"{package}.exports")
            if name not in exports.__all__:
                missing.add(name)
                raise
            found = getattr(exports, name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *importlib.import_module(f"{package}.exports").__all__})

    return find, names
