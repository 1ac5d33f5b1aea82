"""The names of `agentnb.analysis` can be imported in any order."""

from __future__ import annotations

import pkgutil

import agentnb.analysis


def test_no_module_has_the_name_of_a_function() -> None:
    modules = {module.name for module in pkgutil.iter_modules(agentnb.analysis.__path__)}
    assert modules.isdisjoint(agentnb.analysis.__all__)  # Python puts a module that is imported in that place


def test_all_names_can_be_imported_with_a_star() -> None:
    names: dict[str, object] = {}
    exec("from agentnb.analysis import *", names)
    assert {name for name in agentnb.analysis.__all__ if callable(names[name])} == {*agentnb.analysis.__all__} - {
        "COLUMNS"
    }
