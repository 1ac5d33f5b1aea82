"""Changes that hooks and callbacks make to their arguments affect no other code, or are recorded as events."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentnb import ConversationEngine, ExecutionLoop, Loop, SessionLoop, Snapshot, Store, replay, restore, tool
from agentnb.core.evolve import fold
from agentnb.loops.want import ask
from agentnb.testing import ScriptedLLM, call

GIVEN = [{"role": "user", "content": [{"type": "text", "text": "my address"}]}]
TURNS = [[call("look", {"where": {"path": "home"}}, id="c1")], "ok"]


@tool
async def look(where: dict[str, Any]) -> dict[str, Any]:
    return {"seen": [where["path"]]}


def mask(messages: Any) -> None:
    """Change everything in messages that can be changed."""
    for message in messages:
        if isinstance(message["content"], list):
            for block in message["content"]:
                block["text"] = "[masked]"
        for made in message.get("tool_calls") or ():
            made["arguments"]["where"] = {"path": "[masked]"}
    messages.clear()


def mask_context(context: Any) -> None:
    mask(context.messages)


def mask_and_send(messages: Any) -> Any:
    sent = [dict(message.plain) for message in messages]
    mask(messages)
    return sent


def mask_result(context: Any) -> None:
    context.result["seen"].append("[masked]")
    context.args["where"]["path"] = "[masked]"


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("before_tool_call", mask_context),
        ("after_tool_call", mask_context),
        ("after_tool_call", mask_result),
        ("should_stop_after_turn", mask_context),
        ("transform_context", mask_and_send),
        ("convert_to_llm", mask_and_send),
    ],
)
async def test_changes_of_a_hook_to_the_history_affect_only_its_copy(name: str, hook: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    plain = SessionLoop(ScriptedLLM(TURNS), [look])
    expected = plain.start(GIVEN)
    await expected
    loop = SessionLoop(ScriptedLLM(TURNS), [look], **{name: hook})
    run = loop.start(GIVEN, store=store, name="x")
    await run
    assert [message.plain for message in run.messages] == [message.plain for message in expected.messages]
    assert store.load("x").state.messages == run.messages
    assert fold(run.events).dump() == run.state.dump()
    if name not in ("transform_context", "convert_to_llm"):
        assert loop.llm.requests[-1].messages == plain.llm.requests[-1].messages
    store.close()


async def test_a_hook_does_not_see_the_changes_of_another_hook() -> None:
    seen: list[Any] = []
    loop = SessionLoop(
        ScriptedLLM(TURNS),
        [look],
        before_tool_call=lambda context: mask(context.messages),
        after_tool_call=lambda context: seen.append(context.messages[0].content[0]["text"]),
    )
    await loop.start(GIVEN)
    assert seen == ["my address"]


async def test_each_message_is_copied_once_for_a_hook() -> None:
    seen: list[Any] = []
    turns = [[call("look", {"where": {"path": str(n)}})] for n in range(3)]
    loop = SessionLoop(ScriptedLLM([*turns, "ok"]), [look], before_tool_call=lambda c: seen.append(c.messages))
    await loop.start("go")
    first, _, last = seen
    assert all(one is other for one, other in zip(first, last, strict=False))


async def test_changes_of_a_watcher_to_call_start_do_not_change_what_runs() -> None:
    ran: list[Any] = []

    @tool
    async def go(where: dict[str, Any]) -> str:
        ran.append(where)
        return "gone"

    def change(event: Any) -> None:
        if event.type == "call_start":
            event.arguments["where"]["path"] = "[changed]"

    run = SessionLoop(ScriptedLLM([[call("go", {"where": {"path": "home"}})], "ok"]), [go]).start("go")
    run.watch(change)
    await run
    assert ran == [{"path": "home"}]


async def test_changes_of_a_policy_to_its_context_affect_only_its_copy() -> None:
    def policy(proposed: Any, context: Any) -> bool:
        for message in context.messages:
            if isinstance(message["content"], list):
                message["content"][0]["text"] = "[masked]"
        proposed.arguments["where"]["path"] = "[masked]"
        return True

    loop = SessionLoop(ScriptedLLM(TURNS), [look])
    run = loop.start(GIVEN, approve=policy)
    await run
    assert "masked" not in str([message.plain for message in run.messages])
    assert "masked" not in str(loop.llm.requests[-1].messages)


async def test_changes_of_a_generator_to_an_answer_do_not_change_the_history() -> None:
    def steps(_: Any) -> Any:
        reply = yield ask("go")
        reply.tool_calls[0].arguments["where"]["path"] = "[changed]"
        yield ask()
        return "done"

    run = Loop.from_generator(steps, llm=ScriptedLLM(TURNS), tools=[look]).start(None)
    await run
    assert run.messages[1].tool_calls[0].arguments == {"where": {"path": "home"}}
    assert (
        restore(run.snapshot(), Loop.from_generator(steps, llm=ScriptedLLM([]), tools=[look])).messages == run.messages
    )


async def test_the_parts_of_an_engine_get_copies() -> None:
    def context(user_input: Any) -> Any:
        user_input["goal"].append("[changed]")
        return {"knowledge": ["known"]}

    def plan(user_input: Any, context: Any) -> Any:
        context["knowledge"].append("[changed]")
        user_input["goal"].append("[changed]")
        return [{"id": "a", "description": "A"}]

    def execute(task: Any, context: Any) -> Any:
        context["knowledge"].append("[changed]")
        task.dependencies.append("[changed]")
        return "done"

    run = ConversationEngine(context, plan, execute).start({"goal": ["g"]})
    await run
    assert "[changed]" not in str(run.state.dump())
    assert fold(run.events).dump() == run.state.dump()


async def test_confirm_gets_a_copy_of_the_call() -> None:
    def confirm(made: Any) -> bool:
        made["where"]["path"] = "[changed]"
        return True

    llm = ScriptedLLM([[call("look", {"where": {"path": "home"}})], "ok"])
    run = ExecutionLoop(llm, [look], native=True, confirm=confirm).start("go")
    await run
    assert [end.result for end in run.events if end.type == "call_end"] == [{"seen": ["home"]}]


# -- a hook that changes the arguments -----------------------------------------------------------------------------


class Echo:
    """A tool in the form of the design, with a schema of its arguments."""

    name = "echo"
    description = "Echo."
    parameters: ClassVar = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}

    def __init__(self, *, approve: bool = False) -> None:
        self.approve = approve
        self.ran: list[Any] = []

    async def execute(self, id: str, args: dict[str, Any], signal: Any = None, on_update: Any = None) -> str:
        self.ran.append(args)
        return "echoed"


def change(context: Any) -> None:
    context.args["value"] = 123


async def change_later(context: Any) -> None:
    context.args["value"] = 123


def edits(run: Any) -> list[tuple[Any, ...]]:
    return [(e.decision, e.by, e.arguments) for e in run.events if e.type == "approval_decision"]


@pytest.mark.parametrize("hook", [change, change_later])
async def test_a_hook_that_changes_the_arguments_is_recorded_as_an_edit(hook: Any) -> None:
    echo = Echo()
    loop = SessionLoop(
        ScriptedLLM([[call("echo", {"value": "hello"}, id="c1")], "done"]), [echo], before_tool_call=hook
    )
    run = loop.start("go")
    assert await run == "done"
    assert echo.ran == [{"value": 123}]
    assert edits(run) == [("edit", hook.__name__, {"value": 123})]
    assert fold(run.events).dump() == run.state.dump()
    assert run.messages[1].tool_calls[0].arguments == {"value": "hello"}


async def test_a_hook_that_changes_nothing_is_not_recorded_as_an_edit() -> None:
    echo = Echo()
    llm = ScriptedLLM([[call("echo", {"value": "hello"})], "done"])
    run = SessionLoop(llm, [echo], before_tool_call=lambda context: None).start("go")
    await run
    assert edits(run) == []


async def test_a_function_gets_the_arguments_of_a_hook_without_a_check() -> None:
    ran: list[Any] = []

    @tool
    def double(x: int) -> str:
        ran.append(x)
        return "ok"

    def change(context: Any) -> None:
        context.args["x"] = "two"

    llm = ScriptedLLM([[call("double", {"x": 1})], "done"])
    await SessionLoop(llm, [double], before_tool_call=change).start("go")
    assert ran == ["two"]


async def test_a_hook_that_removes_a_required_argument_makes_the_call_fail() -> None:
    @tool
    def double(x: int) -> int:
        return 2 * x

    llm = ScriptedLLM([[call("double", {"x": 1})], "done"])
    run = SessionLoop(llm, [double], before_tool_call=lambda context: context.args.clear()).start("go")
    assert await run == "done"
    assert run.messages[2].is_error


async def test_a_person_is_asked_about_the_arguments_that_the_hook_set() -> None:
    echo = Echo(approve=True)
    llm = ScriptedLLM([[call("echo", {"value": "hello"})], "done"])
    run = SessionLoop(llm, [echo], before_tool_call=change).start("go")
    while not run.pending:
        await run.step()
    assert run.pending[0].arguments == {"value": 123}
    assert echo.ran == []
    run.approve(run.pending[0])
    await run
    assert echo.ran == [{"value": 123}]


async def test_a_policy_gets_the_arguments_that_the_hook_set() -> None:
    seen: list[Any] = []

    def policy(proposed: Any) -> bool:
        seen.append(proposed.arguments)
        return False

    echo = Echo()
    llm = ScriptedLLM([[call("echo", {"value": "hello"})], "done"])
    await SessionLoop(llm, [echo], before_tool_call=change).start("go", approve=policy)
    assert seen == [{"value": 123}]
    assert echo.ran == []


async def test_a_call_approved_by_its_arguments_needs_approval_if_a_hook_changes_them() -> None:
    echo = Echo(approve=True)
    changing = []

    def hook(context: Any) -> None:
        if changing:
            context.args["value"] = "other"

    same = call("echo", {"value": "hello"})
    run = SessionLoop(ScriptedLLM([[same], [same], "done"]), [echo], before_tool_call=hook).start("go")
    while not run.pending:
        await run.step()
    run.approve(run.pending[0], remember="arguments")
    changing.append(True)
    while not run.pending:
        await run.step()
    assert run.pending[0].arguments == {"value": "other"}
    assert echo.ran == [{"value": "hello"}]


async def test_a_hook_that_changes_the_arguments_each_time_is_called_once() -> None:
    echo = Echo()
    asked: list[Any] = []

    def hook(context: Any) -> None:
        asked.append(dict(context.args))
        context.args["value"] += "!"

    llm = ScriptedLLM([[call("echo", {"value": "hello"})], "done"])
    await SessionLoop(llm, [echo], before_tool_call=hook).start("go")
    assert asked == [{"value": "hello"}]
    assert echo.ran == [{"value": "hello!"}]


async def test_a_restored_run_keeps_the_edit_of_a_hook_and_does_not_call_it_again() -> None:
    def made(echo: Echo) -> SessionLoop:
        turns = [[call("echo", {"value": "hello"}, id="c1")], "done"]
        return SessionLoop(ScriptedLLM(turns), [echo], before_tool_call=change)

    whole = made(Echo()).start("go")
    await whole
    edit = next(event.seq for event in whole.events if event.type == "approval_decision")
    echo = Echo()
    llm = ScriptedLLM(["done"])
    asked: list[Any] = []
    loop = SessionLoop(llm, [echo], before_tool_call=asked.append)
    again = restore(Snapshot.of(whole.events[: edit + 1]), loop)
    assert await again == "done"
    assert echo.ran == [{"value": 123}]
    assert asked == []
    assert replay(whole, made(Echo())).to(len(whole.events) - 1).output == "done"


async def test_a_hook_that_changes_the_arguments_and_blocks_the_call_blocks_it() -> None:
    echo = Echo()

    def hook(context: Any) -> Any:
        context.args["value"] = 123
        return {"block": True, "reason": "no"}

    run = SessionLoop(ScriptedLLM([[call("echo", {"value": "hello"})], "done"]), [echo], before_tool_call=hook).start(
        "go"
    )
    await run
    assert edits(run) == []
    assert run.messages[2].content == "no"


# -- a hook that ends the loop -------------------------------------------------------------------------------------


async def test_a_hook_that_blocks_and_terminates_ends_the_loop_after_the_batch() -> None:
    echo = Echo()
    llm = ScriptedLLM([["so far", call("echo", {"value": "a"}, id="c1"), call("echo", {"value": "b"}, id="c2")]])
    stop = {"block": True, "reason": "no more", "terminate": True}
    run = SessionLoop(llm, [echo], before_tool_call=lambda context: stop).start("go")
    assert await run == "so far"
    assert run.stop_reason == "completed"
    assert [message.content for message in run.messages[2:]] == ["no more", "no more"]
    assert [(end.outcome, end.terminate) for end in run.events if end.type == "call_end"] == [("blocked", True)] * 2


async def test_a_result_without_terminate_is_answered_by_the_model() -> None:
    echo = Echo()
    llm = ScriptedLLM([[call("echo", {"value": "a"}), call("echo", {"value": "b"})], "done"])

    def hook(context: Any) -> Any:
        return {"block": True, "terminate": True} if context.args["value"] == "a" else None

    assert await SessionLoop(llm, [echo], before_tool_call=hook).start("go") == "done"
    assert echo.ran == [{"value": "b"}]
