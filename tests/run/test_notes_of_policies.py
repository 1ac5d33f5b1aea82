"""A policy's note is for the record; the agent is told only the reason."""

import json
from contextlib import suppress

import pytest

from agentnb import LimitReached, RunFailed, SessionLoop, restore, tool
from agentnb.analysis import decisions
from agentnb.testing import ScriptedLLM, call
from tests import designs

NOTE = "0.93 from suspicion"


@tool
def delete(what: str) -> str:
    return "gone"


def loop():
    return SessionLoop(ScriptedLLM([[call("delete", {"what": "all"}, id="c")], "end"]), [delete])


@pytest.mark.parametrize("said", [{"note": NOTE}, {"note": NOTE, "reason": ""}])
async def test_an_agent_whose_call_is_rejected_with_a_note_reads_that_it_was_not_approved(said):
    run = loop().start("go", approve=lambda proposed: {"decision": "reject", **said})
    await run
    assert [message.content for message in run.messages if message.role == "tool"] == ["Not approved."]
    assert NOTE not in str(run.messages)


@pytest.mark.parametrize("decision", ["approve", "reject", "terminate"])
async def test_the_note_is_in_the_table_of_decisions(decision):
    run = loop().start("go", approve={"tool": "*", "decision": decision, "note": NOTE})
    try:
        await run
    except Exception:
        assert decision == "terminate"
    assert list(decisions(run)["note"]) == [NOTE]


async def test_a_restored_run_does_not_tell_the_note():
    run = loop().start("go", approve={"decision": "reject", "note": NOTE})
    async for event in run:
        if event.type == "approval_decision":
            break
    again = restore(run.snapshot(), loop())
    await again
    assert NOTE not in str(again.messages)


async def test_the_note_of_a_question_is_in_the_row_of_its_decision():
    run = loop().start("go", approve={"decision": "ask", "note": NOTE})
    async for _ in run:
        if run.pending:
            run.reject(run.pending[0])
    assert list(decisions(run)["note"]) == [NOTE]
    assert NOTE not in str(run.messages)


@pytest.mark.parametrize(
    "design",  # ConversationEngine and LoopAgent ask no model themselves: the loops inside them do
    [
        *(designs.session, designs.agent, designs.execution, designs.native_execution),
        *(designs.engine_of_loops, designs.loop_of_loops, designs.session_of_agents),
    ],
)
async def test_no_model_of_any_design_or_nested_loop_reads_the_note_also_after_a_restart(design, monkeypatch):
    sent = []
    monkeypatch.setattr(designs, "provider_faults", lambda messages: sent.append(json.dumps(messages)) or [])
    options = {"approve": {"tool": "*", "decision": "reject", "note": NOTE}, "limits": {"turns": 4}}
    run = design().start("go", **options)
    with suppress(RunFailed, LimitReached):
        async for event in run:
            if event.type == "approval_decision":
                break
    with suppress(RunFailed, LimitReached):
        await restore(run.snapshot(), design(), **options)
    assert NOTE in set(decisions(run)["note"])
    assert sent
    assert NOTE not in "".join(sent)
