"""An MCP server in a real kernel: opened in one cell, used in another, closed in a third."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.notebook.live_kernel import LiveKernel

COMMAND = [sys.executable, str(Path(__file__).parents[1] / "tools" / "mcp_server.py")]

pytestmark = pytest.mark.kernel


def test_a_server_is_opened_used_and_closed_in_different_cells(kernel: LiveKernel) -> None:
    kernel.run(f"from agentnb.tools.mcp import connect; server = connect({COMMAND!r})")
    kernel.run("from agentnb import SessionLoop; from agentnb.testing import ScriptedLLM, call")
    kernel.run("llm = ScriptedLLM([[call('add', {'a': 2, 'b': 3})], 'done'])")
    kernel.run("run = SessionLoop(llm, server.tools).start('go', approve=True); await run")
    assert "5" in kernel.run("print(run.messages[-2].content)")
    kernel.run("server.close()")
    assert "closed" in kernel.run(
        "run = SessionLoop(ScriptedLLM(llm.turns), server.tools).start('go', approve=True);"
        "await run; print(run.messages[-2].content)"
    )


def test_the_error_for_a_command_that_is_not_a_server_has_no_library_frames(kernel: LiveKernel) -> None:
    kernel.run("from agentnb.tools.mcp import connect")
    _, said = kernel.fails(f"connect([{sys.executable!r}, '-c', 'pass'])")
    assert "There is no MCP server at" in said
    assert "site-packages" not in said
