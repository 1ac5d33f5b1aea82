"""Tab completion offers the attributes of objects, through IPython and jedi."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from IPython.core.completer import IPCompleter, provisionalcompleter

import agentnb
from agentnb import SessionLoop, tool
from agentnb.testing import ScriptedLLM


@tool
def look() -> str:
    """Look."""
    return "seen"


LOOP = SessionLoop(ScriptedLLM([]), [look])
RUN = LOOP.start("go")
THINGS = {"loop": LOOP, "look": look, "replay": agentnb.replay(RUN), "run": RUN, "snapshot": RUN.snapshot()}


def offered(line: str, names: dict[str, Any]) -> set[str]:
    completer = IPCompleter(namespace=names, use_jedi=True)
    with provisionalcompleter():
        return {completion.text for completion in completer.completions(line, len(line))}


@pytest.mark.parametrize("name", THINGS)
def test_tab_after_a_variable_offers_all_public_attributes(name: str) -> None:
    public = {attribute for attribute in dir(THINGS[name]) if not attribute.startswith("_")}
    assert public - offered(f"{name}.", {name: THINGS[name]}) == set()


FRESH = """
import agentnb
assert agentnb.testing.ScriptedLLM and agentnb.analysis.diff and agentnb.store.salvage
for name in dir(agentnb):
    getattr(agentnb, name)
print(*dir(agentnb))
"""


def test_tab_after_agentnb_offers_its_public_names_only() -> None:
    """`agentnb.testing.Recorded(run)`, with no more imported than agentnb."""
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    offered = {name for name in done.stdout.split() if not name.startswith("__")}
    assert {"Agent", "analysis", "llms", "runs", "testing"} < offered
    assert not offered & {"Any", "TYPE_CHECKING", "import_module", "use_driver"}
