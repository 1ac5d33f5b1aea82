"""The parameters of a function: their schema for the model, and the values that the function gets."""

from __future__ import annotations

import asyncio
import collections.abc
import json
import math
import sqlite3
import threading
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import Doc

from agentnb import ExecutionLoop, LoopAgent, SessionLoop, tool
from agentnb.errors import InvalidArguments, UsageError
from agentnb.loops.loop_agent import InvocationContext
from agentnb.testing import Recorded, ScriptedLLM, call
from agentnb.tools import FunctionTool, as_tools


async def called(made: Any, arguments: dict[str, Any]) -> Any:
    """Return the result of a call with these arguments. Raises InvalidArguments if they are refused."""
    (made,) = as_tools([made]).values()
    return await made.bind(arguments)(lambda data: None)


def properties(made: Any) -> dict[str, Any]:
    (made,) = as_tools([made]).values()
    return dict(made.parameters["properties"])


def mean(x: Iterable[float]) -> float:
    return sum(x) / len(x) + 0 * sum(x)  # type: ignore[arg-type]  # read twice


def mean_of_all(x: typing.Iterable[float] | None = None) -> float:
    return mean(x or [0])


def mean_of_each(x: dict[str, collections.abc.Iterable[float]]) -> float:
    return mean([mean(each) for each in x.values()])


@pytest.mark.parametrize(("function", "x"), [(mean, [1, 2, 3]), (mean_of_all, [1, 2, 3]), (mean_of_each, {"a": [2]})])
async def test_an_iterable_parameter_gets_a_list(function: Any, x: Any) -> None:
    assert await called(function, {"x": x}) == 2


@pytest.mark.parametrize("type_", [collections.abc.Collection[int], typing.Collection[int], collections.abc.Container])
async def test_a_collection_parameter_gets_a_list(type_: Any) -> None:
    def shown(x):  # type: ignore[no-untyped-def]
        return [len(x), *x]

    shown.__annotations__["x"] = type_
    assert await called(shown, {"x": [5, 6]}) == [2, 5, 6]


async def test_an_iterator_yields_the_items_of_a_list() -> None:
    def first(x: collections.abc.Iterator[int]) -> int:
        return next(x)

    assert await called(first, {"x": [5, 6]}) == 5


async def test_an_invalid_item_of_an_iterable_is_refused() -> None:
    with pytest.raises(InvalidArguments, match=r"x\.1"):
        await called(mean, {"x": [1, "b"]})


MISSING = object()


def none(x: int = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
    return x


def word(x: int = "auto") -> Any:  # type: ignore[assignment]
    return x


def literal(x: Literal["a", "b"] = "c") -> Any:  # type: ignore[assignment]
    return x


def bounded(x: Annotated[int, Field(gt=0)] = 0) -> Any:
    return x


def empty(x: list[int] = ()) -> Any:  # type: ignore[assignment]
    return x


@pytest.mark.parametrize(
    ("function", "default"), [(none, None), (word, "auto"), (literal, "c"), (bounded, 0), (empty, ())]
)
async def test_a_declared_default_is_valid(function: Any, default: Any) -> None:
    said = [] if default == () else default
    assert await called(function, {"x": said}) == (said if default == () else default)
    assert await called(function, {}) == default
    assert properties(function)["x"]["default"] == said


@pytest.mark.parametrize(("function", "wrong"), [(none, "five"), (word, None), (literal, "d"), (bounded, -1)])
async def test_a_value_that_is_not_of_the_type_and_not_the_default_is_refused(function: Any, wrong: Any) -> None:
    with pytest.raises(InvalidArguments, match="x: "):
        await called(function, {"x": wrong})


def in_words(city: Annotated[str, "the city"], days: Annotated[int, Doc("how far ahead")] = 3) -> str:
    """Tell the weather."""
    return city


def in_both(city: Annotated[str, "a place"]) -> str:
    """Tell the weather.

    Args:
        city: the city
    """
    return city


def in_numpys_style(x: float, y: float, unit: str = "m") -> float:
    """Measure a distance.

    Parameters
    ----------
    x, y : float
        the place
    unit : str, optional
        the unit
    """
    return x


def test_a_text_in_a_type_describes_the_parameter() -> None:
    described = properties(in_words)
    assert (described["city"]["description"], described["days"]["description"]) == ("the city", "how far ahead")


def test_the_description_in_the_docstring_takes_precedence() -> None:
    assert properties(in_both)["city"]["description"] == "the city"


def test_a_numpy_style_docstring_describes_several_parameters_in_one_entry() -> None:
    described = properties(in_numpys_style)
    assert [described[name]["description"] for name in ("x", "y", "unit")] == ["the place", "the place", "the unit"]


class Counter:
    count = 5

    @classmethod
    @tool
    def outside(cls, x: int) -> int:
        """Add."""
        return cls.count + x

    @tool
    @classmethod
    def inside(cls, x: int) -> int:
        """Add."""
        return cls.count + x

    @staticmethod
    @tool
    def static(x: int) -> int:
        """Add."""
        return 5 + x


class Ten(Counter):
    count = 10


@pytest.mark.parametrize("name", ["outside", "inside", "static"])
@pytest.mark.parametrize("of", [Counter, Counter()])
async def test_a_class_method_has_all_parameters_except_the_class(name: str, of: Any) -> None:
    assert list(properties(getattr(of, name))) == ["x"]
    assert await called(getattr(of, name), {"x": 1}) == 6


async def test_a_class_method_of_a_subclass_gets_the_subclass() -> None:
    assert await called(Ten.outside, {"x": 1}) == await called(Ten.inside, {"x": 1}) == 11


class Place(typing.TypedDict, total=False):
    city: typing.Required[str]
    zip: int


class Trip(typing.TypedDict):
    stops: list[Place]


def plan(trip: Trip, way_back: Place | None = None) -> Any:
    return [stop["city"] for stop in trip["stops"]]


async def test_a_typed_dict_of_typing_is_a_parameter() -> None:
    assert await called(plan, {"trip": {"stops": [{"city": "Bern", "zip": 3000}, {"city": "Ulm"}]}}) == ["Bern", "Ulm"]
    with pytest.raises(InvalidArguments, match=r"trip\.stops\.0\.city: Field required"):
        await called(plan, {"trip": {"stops": [{"zip": 3000}]}})


def rows(table: list[list[int]], options: dict[str, Any] | None = None, place: Place | None = None) -> Any:
    return [table, options, place]


async def test_a_list_or_an_object_in_a_json_string_is_parsed() -> None:
    said = {"table": "[[1, 2], [3]]", "options": '{"header": true}', "place": '{"city": "Bern"}'}
    assert await called(rows, said) == [[[1, 2], [3]], {"header": True}, {"city": "Bern"}]


async def test_a_json_string_for_a_string_parameter_is_not_parsed() -> None:
    assert await called(tool(name="echo")(lambda x: x), {"x": "[1]"}) == "[1]"


async def test_a_string_in_place_of_a_list_is_reported_as_a_string() -> None:
    with pytest.raises(InvalidArguments, match=r"table: .*got 'one'"):
        await called(rows, {"table": "one"})


async def test_tool_context_is_passed_in_and_is_not_in_the_schema() -> None:
    def look(x: int, tool_context) -> list[Any]:  # type: ignore[no-untyped-def]
        return [x, tool_context.function_call_id]

    assert list(properties(look)) == ["x"]
    run = SessionLoop(ScriptedLLM([[call("look", {"x": 1}, id="c1")], "end"]), [look]).start("go")
    await run
    assert run.messages[2].content == '[1,"c1"]'


async def test_a_tool_context_of_another_type_is_a_parameter_for_the_model() -> None:
    def look(tool_context: str) -> str:
        return tool_context

    assert await called(look, {"tool_context": "given"}) == "given"


@pytest.mark.parametrize("is_async", [False, True])
async def test_your_own_tool_can_escalate_out_of_a_loop_agent(is_async: bool) -> None:
    def done(tool_context: Any) -> dict[str, str]:
        """Call this when it is good."""
        tool_context.actions.escalate = True
        return {"said": "good"}

    async def done_later(tool_context: Any) -> dict[str, str]:
        """Call this when it is good."""
        return done(tool_context)

    made = tool(name="done")(done_later if is_async else done)
    critic = SessionLoop(ScriptedLLM([[call("done")], "on"], repeat=True), [made], name="critic")
    run = LoopAgent("L", [critic], 3).start(None)
    await run
    assert run.stop_reason == "escalated"
    assert [event.result for event in run.events if event.type == "call_end" and event.name == "done"] == [
        {"said": "good"}
    ]


async def test_a_tool_shares_the_state_of_the_session() -> None:
    def count(tool_context: Any) -> int:
        tool_context.state["count"] = tool_context.state.get("count", 0) + 1
        return int(tool_context.state["count"])

    critic = SessionLoop(ScriptedLLM([[call("count")], "on"], repeat=True), [count], name="critic")
    context = InvocationContext(user_content="go")
    _ = [event async for event in LoopAgent("L", [critic], 2).run_async(context)]
    assert context.session.state["count"] == 2


async def test_a_tool_can_skip_the_summary_of_its_result() -> None:
    """As ADK's exit_loop sets it, in addition to the escalation."""

    def done(tool_context: Any) -> str:
        tool_context.actions.skip_summarization = True
        return "good"

    llm = ScriptedLLM([[call("done")], "on"])
    await SessionLoop(llm, [done]).start("go")
    assert len(llm.requests) == 1


async def test_a_recorded_tool_escalates_out_of_a_loop_agent() -> None:
    def done(tool_context: Any) -> str:
        tool_context.actions.escalate = True
        return "good"

    llm = ScriptedLLM([[call("done")], "on"], repeat=True)
    run = LoopAgent("L", [SessionLoop(llm, [done], name="critic")], 3).start(None)
    await run
    recorded = Recorded(run)
    again = LoopAgent("L", [SessionLoop(recorded, recorded.tools, name="critic")], 3).start(None)
    await again
    assert again.stop_reason == run.stop_reason == "escalated"


async def test_a_tool_that_does_not_escalate_does_not_end_the_loop_agent() -> None:
    critic = SessionLoop(ScriptedLLM([[call("look")], "on"], repeat=True), [tool(name="look")(lambda tool_context: 1)])
    context = InvocationContext(user_content="go")
    events = [event async for event in LoopAgent("L", [critic], 2).run_async(context)]
    assert len([event for event in events if event.get_function_calls()]) == 2


class Args(BaseModel):
    query: str
    most: int = Field(default=5, gt=0)


class Search:
    """A tool as in LangChain and Loom: a pydantic model describes its arguments."""

    name = "search"
    description = "Search."
    args_schema = Args

    async def run(self, **arguments: Any) -> Any:
        return arguments


async def test_a_model_of_the_arguments_is_the_schema() -> None:
    assert properties(Search())["query"] == {"title": "Query", "type": "string"}
    assert await called(Search(), {"query": "x", "most": "3"}) == {"query": "x", "most": 3}
    assert await called(Search(), {"query": "x"}) == {"query": "x", "most": 5}


@pytest.mark.parametrize(("arguments", "fault"), [({}, "query: Field required"), ({"query": "x", "most": 0}, "most: ")])
async def test_arguments_are_checked_by_their_model(arguments: Any, fault: str) -> None:
    with pytest.raises(InvalidArguments, match=f"Invalid arguments for search: {fault}"):
        await called(Search(), arguments)


async def test_a_schema_is_accepted_in_place_of_a_model() -> None:
    class Told(Search):
        args_schema: ClassVar[Any] = {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        }

    assert await called(Told(), {"query": "x"}) == {"query": "x"}
    with pytest.raises(InvalidArguments, match="'query' is a required property"):
        await called(Told(), {})


class Definition:
    """A tool whose method takes all the arguments in one piece, without a schema."""

    name = "read"
    description = "Read."

    def __init__(self, execute: Callable[[Any], Any]) -> None:
        self.execute = execute


def annotated(arguments: dict[str, Any]) -> Any:
    return arguments


async def annotated_input(input: dict[str, Any]) -> Any:
    return input


@pytest.mark.parametrize("execute", [lambda args: args, lambda params: params, annotated, annotated_input])
async def test_a_method_with_one_parameter_for_all_arguments_gets_them(execute: Any) -> None:
    assert await called(Definition(execute), {"path": "x", "lines": 3}) == {"path": "x", "lines": 3}


@pytest.mark.parametrize("execute", [lambda path: path, lambda input: input])
async def test_a_method_with_one_parameter_gets_its_argument(execute: Any) -> None:
    (name,) = properties(Definition(execute))
    assert await called(Definition(execute), {name: "x"}) == "x"


def test_a_parameter_named_args_is_one_argument() -> None:
    assert list(properties(tool(annotated))) == ["arguments"]


async def test_a_tool_with_its_own_thread_is_always_called_in_that_thread() -> None:
    threads = []

    @tool(thread="own")
    def where() -> bool:
        threads.append(threading.current_thread())
        return True

    for _ in range(3):
        llm = ScriptedLLM([[call("where", id=id) for id in "abc"], "end"])
        await SessionLoop(llm, [where]).start("go")
    assert len(threads) == 9
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()


async def test_the_methods_of_one_object_share_one_thread() -> None:
    class Database:
        connection: Any = None

        @tool(thread="own")
        def open(self) -> None:
            self.connection = sqlite3.connect(":memory:")

        @tool(thread="own")
        def ask(self) -> Any:
            yield from self.connection.execute("select 5").fetchone()

    database = Database()
    await called(database.open, {})
    assert await called(database.ask, {}) == [5]


async def test_an_exception_in_a_separate_thread_is_the_error_of_the_call() -> None:
    @tool(thread="own")
    def fail() -> None:
        raise ValueError("no such row")

    with pytest.raises(ValueError, match="no such row"):
        await called(fail, {})
    with pytest.raises(ValueError, match="no such row"):
        await called(fail, {})


def test_an_unknown_value_of_thread_is_refused() -> None:
    with pytest.raises(UsageError, match="thread"):
        tool(thread="mine")(mean)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="thread"):
        tool(thread="own")(later)


def asked(made: Any, arguments: dict[str, Any]) -> list[str]:
    """Return the reasons for which a call with these arguments needs approval."""
    run = SessionLoop(ScriptedLLM([[call("write", arguments, id="c")], "end"]), [made]).start("go")
    reasons: list[str] = []

    async def drive() -> None:
        async for event in run:
            if event.type == "approval_request":
                reasons.append(event.reason)
                run.approve("c")

    asyncio.run(drive())
    return reasons


def writes(approve: Any) -> FunctionTool:
    @tool(approve=approve, needs="disk")
    def write(path: str) -> str:
        return "ok"

    return write


async def later(call: Any) -> bool:
    return in_etc(call)


def in_etc(call: Any) -> bool:
    return bool(call.arguments["path"].startswith("/etc"))


@pytest.mark.parametrize("approve", [in_etc, later])
def test_the_approve_function_of_a_tool_decides_which_calls_need_approval(approve: Any) -> None:
    assert asked(writes(approve), {"path": "/etc/x"}) == [
        "write asks before a call with these arguments. It needs disk."
    ]
    assert asked(writes(approve), {"path": "/tmp/x"}) == []


@pytest.mark.parametrize(
    ("approve", "why"),
    [
        (lambda call: call.arguments["no"], "The approve= of write failed: KeyError: 'no'"),
        (lambda call: None, "The approve= of write returned None, and not True or False."),
        (lambda call: "no", "The approve= of write returned 'no', and not True or False."),
    ],
)
def test_a_failing_approve_function_requests_approval(approve: Any, why: str) -> None:
    assert asked(writes(approve), {"path": "/tmp/x"}) == [why]


def test_a_schema_tool_of_an_execution_loop_decides_which_calls_need_approval() -> None:
    schema = {"_tool": "write", "properties": {"path": {"type": "string"}}, "approve": in_etc}
    turns = [{"calls": [{"_tool": "write", "path": path} for path in ("/tmp/x", "/etc/x")]}, {"output": 1}]
    llm = ScriptedLLM([json.dumps(turn) for turn in turns])
    run = ExecutionLoop(llm, [schema], activities={"write": lambda *_: "ok"}).start(None)
    paths: list[str] = []

    async def drive() -> None:
        async for event in run:
            if event.type == "approval_request":
                paths.append(event.arguments["path"])
                run.approve(run.pending[0])

    asyncio.run(drive())
    assert paths == ["/etc/x"]


async def test_a_policy_overrides_the_approve_option_of_a_tool() -> None:
    run = SessionLoop(ScriptedLLM([[call("write", {"path": "/etc/x"})], "end"]), [writes(in_etc)])
    assert await run.start("go", approve=True) == "end"


def test_a_tool_may_have_a_view_of_its_arguments() -> None:
    made = tool(approve=True, view=lambda arguments: f"to {arguments['x']}")(mean)
    assert made.view is not None
    assert made.view({"x": [1]}) == "to [1]"
    with pytest.raises(UsageError, match="view"):
        tool(view="x")(mean)  # type: ignore[call-overload]


def inner(name: str = "respond", words: str = "hola") -> SessionLoop:
    return SessionLoop(ScriptedLLM([words], repeat=True), name=name)


async def test_a_loop_as_a_tool_can_need_approval() -> None:
    llm = ScriptedLLM([[call("respond", {"input": "hi"}, id="c1")], "end"])
    run = SessionLoop(llm, [tool(approve=True)(inner())]).start("go")
    asked = []
    async for event in run:
        if event.type == "approval_request":
            asked.append(event.name)
            run.approve("c1")
    assert asked == ["respond"]
    assert run.messages[2].content == "hola"


async def test_the_arguments_of_a_loop_as_a_tool_decide_whether_approval_is_needed() -> None:
    llm = ScriptedLLM([[call("respond", {"input": "hi"}), call("respond", {"input": "delete it"}, id="c2")], "end"])
    made = tool(approve=lambda call: "delete" in call.arguments["input"])(inner())
    run = SessionLoop(llm, [made]).start("go")
    asked = []
    async for event in run:
        if event.type == "approval_request":
            asked.append(event.call_id)
            run.reject("c2", "no")
    assert asked == ["c2"]


def test_a_loop_as_a_tool_has_the_given_name_and_description() -> None:
    (made,) = as_tools([tool(name="spanish", description="Speak.", needs="llm")(inner())]).values()
    assert (made.name, made.description, made.needs) == ("spanish", "Speak.", ("llm",))


def test_an_unsupported_option_for_a_loop_as_a_tool_is_refused() -> None:
    with pytest.raises(UsageError, match="no option 'thread'"):
        tool(thread="own")(inner())


@pytest.mark.parametrize(
    ("name", "legal"), [("research helper", "research_helper"), ("a.b/c", "a_b_c"), ("é" * 80, "_" * 64)]
)
async def test_a_loop_as_a_tool_has_a_name_that_every_provider_accepts(name: str, legal: str) -> None:
    llm = ScriptedLLM([[call(legal, {"input": "hi"})], "end"])
    run = SessionLoop(llm, [inner(name)]).start("go")
    assert await run == "end"
    assert llm.requests[0].tools[0]["name"] == legal
    assert run.messages[2].content == "hola"


async def test_a_call_of_a_loop_by_its_original_name_is_accepted() -> None:
    """Recordings of older versions contain that name."""
    llm = ScriptedLLM([[call("research helper", {"input": "hi"})], "end"])
    run = SessionLoop(llm, [inner("research helper")]).start("go")
    assert await run == "end"
    assert run.messages[2].content == "hola"


def test_the_same_tool_may_be_given_twice() -> None:
    assert list(as_tools([mean, mean])) == ["mean"]
    SessionLoop(ScriptedLLM([]), [mean, mean])


@pytest.mark.parametrize(
    "tools",
    [
        [tool(name="look")(mean), tool(name="look")(none)],
        [mean, tool(name="mean")(none)],
        [Search(), Search()],
        [inner("look"), tool(name="look")(none)],
        [inner("a b"), inner("a_b")],
    ],
)
def test_a_loop_refuses_two_tools_of_the_same_name(tools: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"Two tools have the name '(look|mean|search|a_b)': .* and "):
        SessionLoop(ScriptedLLM([]), tools)


async def test_nan_is_accepted_as_a_number() -> None:
    assert math.isnan(await called(tool(name="f")(lambda x: x), {"x": math.nan}))


def str_lower(name: str) -> str:
    return name.lower()


class Folder:
    @tool
    def path_of(this, name: str) -> str:
        return f"{type(this).__name__}/{name}"

    @tool
    @staticmethod
    def upper(name: str) -> str:
        return name.upper()


class Home(Folder):
    lower = tool(str_lower)


async def test_the_first_parameter_of_a_method_may_have_any_name() -> None:
    assert list(Home().path_of.parameters["properties"]) == ["name"]
    assert await called(Home().path_of, {"name": "a"}) == "Home/a"


async def test_a_function_that_is_no_method_keeps_its_first_parameter() -> None:
    assert await called(Home().upper, {"name": "a"}) == "A"
    assert list(Home().lower.parameters["properties"]) == ["name"]
