"""Modules that are imported on first use: of packages that no program uses as a whole, and of optional libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from agentnb.core.errors import UsageError


def lazy_exports(
    package: str, exports: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package (PEP 562).

    exports: the names that the package exports, by the module that defines them. No module may have the same name as
    one of its exports: once imported, the module would replace the export.
    """
    modules = {name: f"{package}.{module}" for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names


def optional_module(name: str, need: str, extra: str) -> Any:
    """Return a module of a library that an extra of agentnb installs.

    need: what needs the library, for the error ("Frames need pandas"). Raises UsageError if it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"{need}: pip install 'agentnb-toolkit[{extra}]'.") from None
