"""A tool can show its arguments as text to the person who decides: `@tool(view=...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentnb import Run, SessionLoop, tool
from agentnb.core.events import ApprovalDecision
from agentnb.testing import ScriptedLLM, call
from agentnb.widgets import static_html


def asked(view: Callable[[dict[str, Any]], Any] | None) -> Run:
    @tool(approve=True, view=view)
    def add(x: int, y: int) -> str:
        return str(x + y)

    run = SessionLoop(ScriptedLLM([[call("add", {"x": 41, "y": 17}, id="c1")], "ok"]), [add]).start("go")
    run.submit_step("turn").result(10)
    return run


def in_words(arguments: dict[str, Any]) -> str:
    return f"the sum of {arguments['x']} and {arguments['y']}"


def test_the_question_has_the_text_and_the_arguments() -> None:
    (question,) = asked(in_words).pending
    assert question.view == "the sum of 41 and 17"
    assert question.arguments == {"x": 41, "y": 17}


def test_a_page_shows_the_text_and_the_arguments() -> None:
    page = static_html(asked(in_words))
    assert "the sum of 41 and 17" in page
    assert '"x": 41' in page


def test_a_failing_view_is_reported_and_approval_is_requested() -> None:
    run = asked(lambda arguments: arguments["z"])
    assert run.pending[0].view == "The view of add failed: KeyError: 'z'"


def test_a_view_cannot_change_the_arguments() -> None:
    run = asked(lambda arguments: arguments.update(x=0) or "changed")
    assert run.pending[0].arguments == {"x": 41, "y": 17}
    run.approve("c1")
    run.result(10)
    assert run.messages[2].content == "58"


def test_a_long_view_is_cut_with_a_note() -> None:
    assert asked(lambda arguments: "a" * 10_000).pending[0].view.endswith("a… (10,000 characters in all)")


@pytest.mark.parametrize("view", [in_words, None])
def test_the_digest_of_what_was_shown_includes_the_view(view: Callable[[dict[str, Any]], str] | None) -> None:
    run, other = asked(view), asked(lambda arguments: "something else")
    for one in (run, other):
        one.approve("c1")
        one.result(10)
    shown = [next(e.shown for e in one.events if isinstance(e, ApprovalDecision)) for one in (run, other)]
    assert shown[0] != shown[1]
