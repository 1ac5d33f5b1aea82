from __future__ import annotations

import inspect
import json
import time

import pytest
from pydantic import ValidationError

from agentnb.core.events import ErrorInfo
from agentnb.loops.agent import AgentEvent, AgentEventType, EventCollector, ToolCall, ToolResult, TurnState

NAMED = [
    "ITERATION_START",
    "MAX_ITERATIONS_REACHED",
    "PHASE_START",
    "PHASE_END",
    "RETRIEVAL_START",
    "RETRIEVAL_PROGRESS",
    "RETRIEVAL_COMPLETE",
    "LLM_START",
    "LLM_DELTA",
    "LLM_TOOL_CALLS",
    "LLM_COMPLETE",
    "TOOL_CALLS_START",
    "TOOL_EXECUTION_START",
    "TOOL_PROGRESS",
    "TOOL_RESULT",
    "TOOL_ERROR",
    "AGENT_FINISH",
    "ERROR",
    "CONTEXT_ASSEMBLY_START",
    "CONTEXT_ASSEMBLY_COMPLETE",
    "COMPRESSION_APPLIED",
    "ITERATION_END",
    "RECOVERY_ATTEMPT",
    "RECOVERY_SUCCESS",
    "RECOVERY_FAILED",
    "TOOL_CALLS_COMPLETE",
    "RECURSION",
    "EXECUTION_CANCELLED",
    "RECURSION_TERMINATED",
    "RETRIEVAL_ERROR",
]


def test_every_event_type_of_the_design_is_present_in_lower_case() -> None:
    assert {each.name: each.value for each in AgentEventType} == {name: name.lower() for name in NAMED}
    assert AgentEventType.LLM_DELTA == "llm_delta"


def test_no_constructor_has_the_name_of_a_field() -> None:
    fields = set(AgentEvent.model_fields)
    made = {name for name, _ in inspect.getmembers(AgentEvent, inspect.ismethod)}
    assert fields & made == set()
    bare = AgentEvent(type=AgentEventType.LLM_START)
    assert {name: getattr(bare, name) for name in fields - {"type", "timestamp"}} == {
        **dict.fromkeys(fields - {"type", "timestamp", "metadata"}),
        "metadata": {},
    }


def test_events_have_a_timestamp_and_are_immutable() -> None:
    before = time.time()
    event = AgentEvent(type="llm_start")
    assert before <= event.timestamp <= time.time()
    with pytest.raises(ValidationError):
        event.content = "other"  # type: ignore[misc]


def test_each_constructor_makes_an_event_of_its_type() -> None:
    result = ToolResult(tool_call_id="c1", tool_name="t", content="R")
    made = {
        "phase_start": AgentEvent.phase_start("context_assembly", why="x"),
        "phase_end": AgentEvent.phase_end("context_assembly"),
        "llm_delta": AgentEvent.llm_delta("hel"),
        "tool_progress": AgentEvent.tool_progress("t", "half", done=1),
        "tool_result": AgentEvent.tool_result(result),
        "agent_finish": AgentEvent.agent_finish("hello", took=2),
        "error": AgentEvent.error(RuntimeError("down")),
    }
    assert {name: event.type for name, event in made.items()} == {name: AgentEventType(name) for name in made}
    assert made["phase_start"].phase == "context_assembly"
    assert made["phase_start"].metadata == {"why": "x"}
    assert made["tool_progress"].metadata == {"tool_name": "t", "status": "half", "done": 1}
    assert made["tool_result"].result == result
    assert made["error"].error == ErrorInfo(type="RuntimeError", message="down")
    for event in made.values():
        assert AgentEvent.model_validate(json.loads(event.model_dump_json())) == event


@pytest.mark.parametrize("type", list(AgentEventType))
def test_the_predicates_of_an_event_depend_on_its_type(type: AgentEventType) -> None:
    event = AgentEvent(type=type)
    terminal = {"AGENT_FINISH", "MAX_ITERATIONS_REACHED", "ERROR", "EXECUTION_CANCELLED"}
    assert event.is_terminal() == (type.name in terminal)
    assert event.is_llm_content() == (type.name in {"LLM_DELTA", "LLM_COMPLETE", "AGENT_FINISH"})
    assert event.is_tool_event() == type.name.startswith("TOOL_")


def test_a_call_without_an_id_gets_a_generated_id() -> None:
    first, second = ToolCall(id="", name="t", arguments={}), ToolCall(name="t")
    assert first.id.startswith("call_")
    assert len(first.id) == len("call_") + 8
    assert first.id != second.id
    assert ToolCall(id="c1", name="t").id == "c1"


def test_a_collector_returns_text_tool_results_and_errors() -> None:
    collector = EventCollector()
    assert collector.get_final_response() is None
    assert collector.get_llm_content() == ""
    worked = ToolResult(tool_call_id="c1", tool_name="t", content="R")
    failed = ToolResult(tool_call_id="c2", tool_name="t", content="api down", is_error=True)
    wrong = ErrorInfo(type="RuntimeError", message="down")
    for event in (
        AgentEvent.llm_delta("he"),
        AgentEvent.llm_delta("llo"),
        AgentEvent.tool_result(worked),
        AgentEvent(type="tool_error", result=failed, error=wrong),
        AgentEvent.agent_finish("first"),
        AgentEvent.agent_finish(""),
        AgentEvent.failed(wrong),
    ):
        collector.add(event)
    assert collector.get_llm_content() == "hello"
    assert collector.get_tool_results() == [worked, failed]
    assert collector.get_errors() == [wrong]
    assert collector.get_final_response() == ""
    assert collector.filter("llm_delta") == collector.filter(AgentEventType.LLM_DELTA) == collector.events[:2]


# -- turns ----------------------------------------------------------------------------------------------------------


def test_a_turn_has_the_published_default_limit_of_ten() -> None:
    state = TurnState(turn_counter=0, turn_id="abc")
    assert (state.max_iterations, state.compacted) == (10, False)


def test_the_next_turn_keeps_the_limit() -> None:
    turn = TurnState.initial(max_iterations=3, topic="nile")
    seen = [turn]
    while not turn.is_final:
        turn = turn.next_turn()
        seen.append(turn)
    assert [each.turn_counter for each in seen] == [0, 1, 2, 3]
    assert {each.max_iterations for each in seen} == {3}
    assert len({each.turn_id for each in seen}) == 4
    assert [each.parent_turn_id for each in seen] == [None, *(each.turn_id for each in seen[:-1])]
    assert seen[-1].metadata == {"topic": "nile"}


def test_next_turn_adds_its_arguments_to_the_metadata() -> None:
    turn = TurnState.initial(a=1).next_turn(compacted=True, b=2)
    assert turn.compacted
    assert turn.metadata == {"a": 1, "b": 2}


def test_the_next_turn_keeps_the_compacted_flag() -> None:
    turn = TurnState.initial().next_turn(compacted=True)
    assert turn.next_turn().compacted
    assert not turn.next_turn(compacted=False).compacted


def test_turns_of_two_runs_have_different_ids() -> None:
    assert TurnState.initial().turn_id != TurnState.initial().turn_id
    assert TurnState.initial(run_id="a").next_turn() == TurnState.initial(run_id="a").next_turn()


def test_a_turn_is_restored_from_json() -> None:
    turn = TurnState.initial(max_iterations=5, a=[1]).next_turn(compacted=True)
    assert TurnState.from_dict(json.loads(json.dumps(turn.to_dict()))) == turn
    assert TurnState.from_dict({"turn_counter": 10, "turn_id": "x"}).is_final
    assert not TurnState.initial(max_iterations=None).is_final
    assert TurnState.from_dict({"turn_counter": 4, "turn_id": "mine"}).next_turn().turn_id == "mine-5"


def test_a_turn_is_immutable() -> None:
    with pytest.raises(ValidationError):
        TurnState.initial().turn_counter = 3  # type: ignore[misc]


def test_an_event_accepts_the_published_names_of_its_fields() -> None:
    result = ToolResult("c1", "t", "down", True)
    event = AgentEvent(type=AgentEventType.TOOL_ERROR, tool_result=result, error=RuntimeError("down"))
    assert event.tool_result == event.result == result
    assert event.error == ErrorInfo(type="RuntimeError", message="down")
    assert AgentEvent(type="tool_error", result=result).tool_result == result


def test_an_unset_field_of_an_event_reads_as_none() -> None:
    event = AgentEvent(type="llm_start")
    assert event.tool_result is None
    assert event.error is None


def test_a_constructor_named_like_a_field_accepts_metadata() -> None:
    assert AgentEvent.error(ValueError("x"), recoverable=True).metadata == {"recoverable": True}
    assert AgentEvent.tool_result(ToolResult("c1", "t", "R"), took=1).metadata == {"took": 1}
