from __future__ import annotations

import re

from agentnb.widgets.bundle import MODULES, PAGE, module, style_sheet


def test_every_module_of_the_page_is_included() -> None:
    assert {path.stem for path in PAGE.glob("*.js")} == {*MODULES, "file"}


def test_each_module_follows_the_modules_that_it_imports() -> None:
    for number, name in enumerate(MODULES):
        needed = re.findall(r'from "\./([a-z]+)\.js"', (PAGE / f"{name}.js").read_text())
        assert set(needed) <= set(MODULES[:number]), name


def test_the_joined_module_imports_nothing_and_exports_the_widget() -> None:
    source = module()
    assert not re.search(r"^import\b|\bimport\(", source, re.MULTILINE)
    assert re.findall(r"^export .*", source, re.MULTILINE) == ["export default {"]


def test_no_name_is_declared_twice() -> None:
    names = re.findall(r"^(?:const|let|class|function) (\w+)", module(), re.MULTILINE)
    assert sorted(names) == sorted(set(names))


def test_markup_is_never_parsed_and_nothing_is_fetched() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", module())
    assert not re.search(
        r"https?://(?!www\.w3\.org/2000/svg)|\bfetch\(|XMLHttpRequest|url\(|@import", module() + style_sheet()
    )
