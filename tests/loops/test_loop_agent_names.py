"""The public names of LoopAgent's design: fields, their names in JSON, short forms, and methods that need services."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from agentnb.errors import InvalidArguments
from agentnb.loops.loop_agent import (
    Aclosing,
    BaseAgent,
    CallbackContext,
    Event,
    EventActions,
    InvocationContext,
    LoopAgent,
    LoopAgentState,
    ReadonlyContext,
    Session,
    ToolConfirmation,
)
from tests.loops.loop_agents import K, said_in

CALL = {"id": "c1", "name": "look_up", "args": {"functionCall": 1, "deepKey": {"mimeType": 2}}}


# -- events ----------------------------------------------------------------------------------------------------------


def test_an_event_can_be_read_with_its_json_names() -> None:
    event = Event.model_validate(
        {
            "author": "a",
            "invocationId": "i",
            "longRunningToolIds": ["c1"],
            "errorCode": "E",
            "actions": {"stateDelta": {"k": 1}, "endOfAgent": True},
            "content": {"role": "model", "parts": [{"functionCall": CALL}]},
        }
    )
    assert (event.invocation_id, event.long_running_tool_ids, event.error_code) == ("i", {"c1"}, "E")
    assert (event.actions.state_delta, event.actions.end_of_agent) == ({"k": 1}, True)
    assert [call.name for call in event.get_function_calls()] == ["look_up"]
    assert event.pauses


def test_an_event_can_be_written_with_its_json_names_without_changing_arguments() -> None:
    event = Event(
        author="a", content={"role": "model", "parts": [{"function_call": CALL}]}, long_running_tool_ids={"b"}
    )
    dumped = event.model_dump(by_alias=True, exclude_none=True)
    assert dumped["content"] == {"role": "model", "parts": [{"functionCall": CALL}]}
    assert dumped["longRunningToolIds"] == ["b"]
    assert event.model_dump()["content"] == {"role": "model", "parts": [{"function_call": CALL}]}


def test_the_ids_of_long_running_calls_are_sorted() -> None:
    event = Event(author="a", long_running_tool_ids={"c", "a", "b"})
    assert event.model_dump()["long_running_tool_ids"] == ["a", "b", "c"]


def test_a_session_can_be_restored_from_json_with_either_names() -> None:
    said = Event(author="a", content={"parts": [{"text": "x"}]}, invocation_id="i")
    session = Session(id="s", app_name="app", user_id="u", state={"k": 1}, events=[said])
    for by_alias in (True, False):
        again = Session.model_validate_json(session.model_dump_json(by_alias=by_alias))
        assert again == session
    assert {"appName", "userId", "lastUpdateTime"} <= session.model_dump(by_alias=True).keys()


def test_the_error_for_a_misspelt_json_name_suggests_the_right_one() -> None:
    with pytest.raises(ValidationError, match="invocationId"):
        Event.model_validate({"author": "a", "invocationIdd": "i"})


@pytest.mark.parametrize(
    "name",
    ["turn_complete", "finish_reason", "interrupted", "usage_metadata", "custom_metadata", "error_code", "branch"],
)
def test_an_unset_field_of_an_event_reads_as_none(name: str) -> None:
    assert getattr(Event(author="a"), name) is None


def test_an_event_with_an_empty_id_gets_a_generated_id() -> None:
    assert Event(author="a", id="").id
    assert Event.new_id() != Event.new_id()


def test_an_event_accepts_the_short_forms_of_the_design() -> None:
    event = Event(author="a", message="hi", state={"k": 1}, route="r", node_path="A@1/B@2")
    assert event.content == {"role": "user", "parts": [{"text": "hi"}]}
    assert event.message is event.content
    assert (event.actions.state_delta, event.actions.route) == ({"k": 1}, "r")
    assert (event.node_info.path, event.node_info.parent_run_id, event.node_info.run_id) == ("A@1/B@2", "1", "2")
    assert event.node_name == "B"


def test_short_forms_are_added_to_the_given_actions() -> None:
    event = Event(author="a", actions=EventActions(escalate=True, state_delta={"old": 1}), state={"new": 2})
    assert (event.actions.escalate, event.actions.state_delta) == (True, {"new": 2})


def test_an_event_with_content_and_message_is_refused() -> None:
    with pytest.raises(ValidationError, match="not both"):
        Event(author="a", message="x", content="y")


def test_assigning_message_sets_the_content() -> None:
    event = Event(author="a")
    event.message = "yes"
    assert event.content.parts[0].text == "yes"
    event.message = None
    assert event.content is None


def test_an_unset_field_of_a_part_reads_as_none() -> None:
    part = Event(author="a", content={"parts": [{"text": "x"}]}).content.parts[0]
    assert (part.inline_data, part.thought, part.executable_code, part.function_response) == (None,) * 4


@pytest.mark.parametrize(
    ("fields", "final"),
    [
        ({"content": {"parts": [{"code_execution_result": {"output": "4"}}]}}, False),
        ({"error_code": "E", "content": {"parts": [{"function_response": {"id": "c"}}]}}, True),
        ({"error_code": "E", "content": {"parts": [{"function_call": {"id": "c"}}]}}, False),
        ({"error_code": "E", "partial": True}, False),
    ],
)
def test_is_final_response_depends_on_the_fields_of_an_event(fields: dict[str, Any], final: bool) -> None:
    assert Event(author="a", **fields).is_final_response() is final


def test_a_confirmation_is_read_from_a_response_dict_or_its_text() -> None:
    assert ToolConfirmation.from_response_dict({"confirmed": True, "payload": 1}).payload == 1
    assert ToolConfirmation.from_response_dict({"response": '{"confirmed": true}'}).confirmed


# -- contexts --------------------------------------------------------------------------------------------------------


def test_copies_of_a_context_share_an_abort() -> None:
    ctx = InvocationContext()
    copied = ctx.model_copy(update={"branch": "b"})
    ctx.abort()
    assert copied.is_aborted


async def test_aborting_a_context_ends_the_stream_of_its_copy() -> None:
    ctx, codes = InvocationContext(), []
    async with Aclosing(LoopAgent("L", [K("A")]).run_async(ctx.model_copy())) as events:
        async for event in events:
            codes.append(event.error_code)
            ctx.abort()
    assert codes == [None, "INVOCATION_ABORTED"]


def test_the_error_for_a_misspelt_keyword_of_a_context_suggests_the_right_one() -> None:
    with pytest.raises(TypeError, match="agent_states= is probably meant"):
        InvocationContext(agent_stats={})  # type: ignore[call-arg]  # which is the point


SERVICES: dict[str, dict[str, Any]] = {
    "load_artifact": {"filename": "f"},
    "save_artifact": {"filename": "f", "artifact": None},
    "get_artifact_version": {"filename": "f"},
    "list_artifacts": {},
    "load_credential": {"auth_config": None},
    "save_credential": {"auth_config": None},
    "add_session_to_memory": {},
    "add_events_to_memory": {"events": []},
    "add_memory": {"memories": []},
    "search_memory": {"query": "q"},
    "delete_memory": {"memory_id": "m"},
    "run_node": {"node": None},
}


@pytest.mark.parametrize("method", SERVICES)
async def test_a_method_that_needs_a_missing_service_is_refused(method: str) -> None:
    context = CallbackContext(InvocationContext())
    with pytest.raises(InvalidArguments, match=r"service|workflows"):
        await getattr(context, method)(**SERVICES[method])


async def test_a_given_service_is_called() -> None:
    async def save_artifact(**given: Any) -> int:
        asked.append(given)
        return 3

    asked: list[dict[str, Any]] = []
    session = Session(id="s", app_name="app", user_id="u")
    ctx = InvocationContext(session=session, artifact_service=SimpleNamespace(save_artifact=save_artifact))
    context = CallbackContext(ctx)
    assert await context.save_artifact("f", "text") == 3
    assert context.actions.artifact_delta == {"f": 3}
    scope = {"app_name": "app", "user_id": "u", "session_id": "s"}
    assert asked == [{**scope, "filename": "f", "artifact": "text", "custom_metadata": None}]


def test_workflow_fields_of_a_context_have_their_default_values() -> None:
    context = CallbackContext(InvocationContext())
    assert (context.node, context.parent_ctx, context.attempt_count, context.resume_inputs) == (None, None, 1, {})
    assert (context.interrupt_ids, context.error, context.route, context.event_author) == (set(), None, None, "")


def test_the_output_of_a_context_can_be_set_only_once() -> None:
    context = CallbackContext(InvocationContext())
    context.output = 1
    with pytest.raises(ValueError, match="already"):
        context.output = 2
    assert context.output == 1


def test_a_given_credential_is_returned() -> None:
    ctx = InvocationContext(credential_by_key={"k": "v"})
    assert ReadonlyContext(ctx).get_credential("k") == "v"
    assert ReadonlyContext(ctx).get_credential("other") is None


# -- agents ----------------------------------------------------------------------------------------------------------


class ByHand(LoopAgent):
    """A LoopAgent whose loop is written by hand, as in the source of the design."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        agent_state = self._load_agent_state(ctx, LoopAgentState)
        is_resuming = agent_state is not None
        times_looped, start_index = self._get_start_state(agent_state)
        should_exit = pause = False
        while (self.max_iterations is None or times_looped < self.max_iterations) and not (should_exit or pause):
            for sub_agent in self.sub_agents[start_index:]:
                assert isinstance(sub_agent, BaseAgent)
                if ctx.is_resumable and not is_resuming:
                    state = LoopAgentState(current_sub_agent=sub_agent.name, times_looped=times_looped)
                    ctx.set_agent_state(self.name, agent_state=state)
                    yield self._create_agent_state_event(ctx)
                is_resuming = False
                async with Aclosing(sub_agent.run_async(ctx)) as events:
                    async for event in events:
                        yield event
                        should_exit = should_exit or bool(event.actions.escalate)
                        pause = pause or ctx.should_pause_invocation(event)
                if should_exit or pause:
                    break
            if not pause:
                start_index, times_looped = 0, times_looped + 1
                ctx.reset_sub_agent_states(self.name)
        if not pause and ctx.is_resumable:
            ctx.set_agent_state(self.name, end_of_agent=True)
            yield self._create_agent_state_event(ctx)


@pytest.mark.parametrize("kind", [LoopAgent, ByHand])
async def test_a_hand_written_loop_emits_the_events_of_the_loop(kind: type[LoopAgent]) -> None:
    loop = kind("L", [K("A"), K("B")], max_iterations=2)
    ctx = InvocationContext(is_resumable=True, agent_states={"L": {"current_sub_agent": "B", "times_looped": 0}})
    assert await said_in(loop, ctx) == "B#1 CK(L,A,1) A#1 CK(L,B,1) B#2 END(L)"


def test_a_state_with_a_removed_sub_agent_restarts_its_pass() -> None:
    loop = LoopAgent("L", [K("A")])
    assert loop._get_start_state(None) == (0, 0)
    assert loop._get_start_state(LoopAgentState(current_sub_agent="gone", times_looped=4)) == (4, 0)


def test_a_copy_of_an_agent_shares_its_sub_agents() -> None:
    loop = LoopAgent("L", [K("A")], max_iterations=2)
    copied = loop.model_copy(update={"name": "M"})
    assert (copied.name, copied.max_iterations, loop.name) == ("M", 2, "L")
    assert copied.sub_agents[0] is loop.sub_agents[0]


def test_model_post_init_is_called_when_an_agent_is_constructed() -> None:
    class Counts(BaseAgent):
        step: int = 1

        def model_post_init(self, context: Any, /) -> None:
            super().model_post_init(context)
            self.total = self.step + 1

    assert Counts("a", step=4).total == 5


def test_a_declared_attribute_without_a_default_is_required() -> None:
    class Writer(BaseAgent):
        style: str

    with pytest.raises(InvalidArguments, match="Writer needs style="):
        Writer("w")
    assert Writer("w", style="dry").style == "dry"


def test_an_agent_with_its_own_init_can_set_its_attributes_later() -> None:
    class Writer(BaseAgent):
        style: str

        def __init__(self) -> None:
            super().__init__("w")
            self.style = "dry"

    assert Writer().style == "dry"


@pytest.mark.parametrize("name", ["timeout", "retry_config", "input_schema", "state_schema"])
def test_an_option_of_workflows_is_refused_and_reads_as_none(name: str) -> None:
    assert getattr(BaseAgent("a"), name) is None
    with pytest.raises(InvalidArguments, match=f"{name}= is for ADK's workflows"):
        BaseAgent("a", **{name: 3})


def test_a_subclass_can_declare_an_attribute_named_like_a_workflow_option() -> None:
    class Patient(BaseAgent):
        timeout: float = 2.0

    assert Patient("a", timeout=5.0).timeout == 5.0
    assert Patient("a").timeout == 2.0
