"""The package for nested event loops: nest-asyncio2, otherwise nest-asyncio, and neither before it is requested."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from agentnb.errors import UsageError
from agentnb.notebook import allow_nested_asyncio


def install(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Pretend that these of the two packages are installed; return the list of the packages that were applied."""
    applied: list[str] = []
    for name in ("nest_asyncio", "nest_asyncio2"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__["apply"] = lambda name=name: applied.append(name)
        monkeypatch.setitem(sys.modules, name, module if name in names else None)  # type: ignore[arg-type]
    return applied


def test_nest_asyncio2_is_preferred_to_nest_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = install(monkeypatch, "nest_asyncio", "nest_asyncio2")
    allow_nested_asyncio()
    assert applied == ["nest_asyncio2"]


@pytest.mark.parametrize("version", [(3, 11), (3, 13)])
def test_nest_asyncio_is_the_fallback(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]) -> None:
    applied = install(monkeypatch, "nest_asyncio")
    monkeypatch.setattr(sys, "version_info", version)
    allow_nested_asyncio()
    assert applied == ["nest_asyncio"]


def test_nest_asyncio_is_refused_on_python_3_14(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = install(monkeypatch, "nest_asyncio")
    monkeypatch.setattr(sys, "version_info", (3, 14))
    with pytest.raises(UsageError, match="Install nest-asyncio2"):
        allow_nested_asyncio()
    assert applied == []


def test_nest_asyncio2_is_used_on_any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = install(monkeypatch, "nest_asyncio2")
    monkeypatch.setattr(sys, "version_info", (3, 14))
    allow_nested_asyncio()
    assert applied == ["nest_asyncio2"]


def test_without_either_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(UsageError, match=r"agentnb-toolkit\[nested\]"):
        allow_nested_asyncio()


async def test_an_event_loop_that_cannot_be_patched_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "nest_asyncio2")

    def refuse() -> None:
        raise ValueError("Can't patch loop of this type")

    monkeypatch.setattr(sys.modules["nest_asyncio2"], "apply", refuse)
    with pytest.raises(UsageError, match="nest_asyncio2 cannot patch"):
        allow_nested_asyncio()
