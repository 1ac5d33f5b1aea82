"""Several runs wait for a person in one kernel at the same time; the test acts as the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.notebook.live_kernel import LiveKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import asyncio, threading
import agentnb
from agentnb.testing import ScriptedLLM, call

@agentnb.tool(approve=True)
def write(path: str) -> str:
    return f"wrote {path}"

def asking(path):
    return agentnb.SessionLoop(ScriptedLLM([[call("write", {"path": path}, id="w")], f"done with {path}"]), [write])

def show(*paths):
    runs = [asking(path).start("go") for path in paths]
    for run in runs: run.panel()
    print(*(run.panel().model_id for run in runs))
    return runs
"""


class Page:
    """A kernel and the panels it shows."""

    def __init__(self, kernel: LiveKernel) -> None:
        self.kernel = kernel

    def show(self, *paths: str) -> list[str]:
        """Start a run for each path, in `runs`, whose write needs approval; return the ids of their panels."""
        panels = self.kernel.run(f"runs = show{(*paths,)!r}").split()
        for panel in panels:
            self.send(panel, {"type": "sync", "have": 0})
        return panels

    def start(self, code: str) -> str:
        cell = self.kernel.send(f"print('started')\n{code}")
        self.kernel.until_printed(cell, "started")
        return cell

    def send(self, panel: str, content: dict[str, Any]) -> str:
        return self.kernel.comm(panel, {"method": "custom", "content": content})

    def decide(self, panel: str, path: str, decision: str = "approve") -> str:
        """Decide about the call of a panel, once it is there; gives the id of the message."""
        self.kernel.until(lambda: bool(self._asked(panel)))
        question = self._asked(panel)[0]
        assert [value["text"] for value in question["values"]] == [path]
        shown = {name: question[name] for name in ("run", "path", "event", "id", "attempt", "digest")}
        return self.send(panel, {"type": "decision", **shown, "decision": decision, "token": decision})

    def answers(self, *tokens: str) -> dict[str, bool]:
        """Wait for the answers of the kernel to decisions; return for each whether it was applied."""

        def answered() -> dict[str, bool]:
            told = [content["data"].get("content", {}) for content in self._updates()]
            return {one["token"]: one["ok"] for one in told if one.get("type") == "decided"}

        self.kernel.until(lambda: set(answered()) >= set(tokens))
        return answered()

    def _updates(self) -> list[dict[str, Any]]:
        return [message["content"] for message in self.kernel.published if message["msg_type"] == "comm_msg"]

    def _asked(self, panel: str) -> list[dict[str, Any]]:
        """The questions that a panel has shown."""
        states = [one["data"].get("state", {}) for one in self._updates() if one["comm_id"] == panel]
        return [question for state in states for question in state.get("pending") or ()]


@pytest.fixture
def page(kernel: LiveKernel) -> Iterator[Page]:
    kernel.run(SETUP)
    kernel.published.clear()
    yield Page(kernel)
    kernel.run("for run in runs: run.cancel()")


TOGETHER = {
    "await": "print(await asyncio.gather(*runs))",
    "block on threads": """
threads = [threading.Thread(target=run.result) for run in runs[1:]]
for thread in threads: thread.start()
runs[0].result()
for thread in threads: thread.join(10)
print([run.output for run in runs])
""",
    "await and block": """
async def block(run): return run.result()
print(await asyncio.gather(*runs[:2], block(runs[2])))
""",
}


@pytest.mark.parametrize("waiting", list(TOGETHER.values()), ids=list(TOGETHER))
def test_each_of_several_waiting_runs_continues_after_its_own_click(page: Page, waiting: str) -> None:
    paths = ["a", "b", "c"]
    panels = page.show(*paths)
    cell = page.start(waiting)
    for panel, path in reversed(list(zip(panels, paths, strict=True))):
        page.decide(panel, path)
    assert page.kernel.reply(cell)["status"] == "ok"
    page.kernel.until_printed(cell, str([f"done with {path}" for path in paths]))


INSIDE = {
    "an async tool awaits": "async def delegate() -> str:\n    return await runs[0]",
    "a sync tool blocks": "def delegate() -> str:\n    return runs[0].result()",
}
OUTSIDE = {"await": "print(await outer)", "block": "print(outer.result())"}


@pytest.mark.parametrize("outside", list(OUTSIDE.values()), ids=list(OUTSIDE))
@pytest.mark.parametrize("inside", list(INSIDE.values()), ids=list(INSIDE))
def test_a_run_inside_a_tool_is_decided_while_the_cell_waits_for_the_outer_run(
    page: Page, inside: str, outside: str
) -> None:
    [panel] = page.show("a")
    page.kernel.run(f"@agentnb.tool\n{inside}")
    turns = "[call('delegate', {}, id='d')], 'the outer is done'"
    page.kernel.run(f"outer = agentnb.SessionLoop(ScriptedLLM([{turns}]), [delegate]).start('go')")
    cell = page.start(outside)
    page.decide(panel, "a")
    assert page.kernel.reply(cell)["status"] == "ok"
    page.kernel.until_printed(cell, "the outer is done")
    assert page.kernel.run("print(outer.messages[2].content)").strip() == "done with a"


@pytest.mark.parametrize("waiting", ["await runs[0]", "runs[0].result()"], ids=["awaits", "blocks"])
def test_of_two_simultaneous_decisions_the_first_counts_and_the_second_is_refused(page: Page, waiting: str) -> None:
    [panel] = page.show("a")
    cell = page.start(waiting)
    page.decide(panel, "a", "reject")
    page.decide(panel, "a", "approve")
    assert page.answers("reject", "approve") == {"reject": True, "approve": False}
    assert page.kernel.reply(cell)["status"] == "ok"
    printed = page.kernel.run("print([e.decision for e in runs[0].events if e.type == 'approval_decision'])")
    assert printed.strip() == "['reject']"


def test_a_panel_that_no_page_shows_is_closed_after_its_run_has_ended(page: Page) -> None:
    [panel] = page.show("a")
    page.kernel.run("shown = runs[0].panel()")
    for name, count in (("one", 1), ("two", 1), ("one", 0)):
        told = page.send(panel, {"type": "views", "page": name, "count": count})
    page.kernel.until(lambda: page.kernel.is_idle(told))  # a panel's messages are not in line with the cells
    assert page.kernel.run("shown.close_unseen(); print(shown.comm is not None)").strip() == "True"
    last = page.send(panel, {"type": "views", "page": "two", "count": 0})
    page.kernel.until(lambda: page.kernel.is_idle(last))
    assert page.kernel.run("print(shown.comm is not None)").strip() == "False"
