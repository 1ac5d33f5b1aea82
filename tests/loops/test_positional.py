"""The dataclasses of the published designs accept positional values."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb.loops.agent import AgentEvent, AgentEventType, ToolCall, ToolResult, TurnState
from agentnb.loops.conversation_engine import SubTask
from agentnb.loops.loop_agent import LoopAgentState

MADE: list[tuple[type[Any], list[Any], dict[str, Any]]] = [
    (SubTask, ["a", "Look"], {"id": "a", "description": "Look"}),
    (TurnState, [2, "run-2"], {"turn_counter": 2, "turn_id": "run-2"}),
    (ToolCall, ["c1", "look", {"at": "x"}], {"id": "c1", "name": "look", "arguments": {"at": "x"}}),
    (ToolResult, ["c1", "look", "seen"], {"tool_call_id": "c1", "tool_name": "look", "content": "seen"}),
    (AgentEvent, [AgentEventType.LLM_DELTA, 1.5], {"type": AgentEventType.LLM_DELTA, "timestamp": 1.5}),
    (LoopAgentState, ["b", 1], {"current_sub_agent": "b", "times_looped": 1}),
]
kinds = pytest.mark.parametrize(("kind", "values", "fields"), MADE, ids=[kind.__name__ for kind, *_ in MADE])


@kinds
def test_positional_values_are_assigned_in_the_order_of_the_fields(
    kind: type[Any], values: list[Any], fields: dict[str, Any]
) -> None:
    assert kind(*values) == kind(**fields)


@kinds
def test_too_many_positional_values_are_refused(kind: type[Any], values: list[Any], fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__} takes {len(kind.model_fields)} values at most"):
        kind(*[None] * len(kind.model_fields), "more")
