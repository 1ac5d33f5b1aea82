from __future__ import annotations

import asyncio
import enum
import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel, BeforeValidator, Field

from agentnb import SessionLoop, UsageError, tool
from agentnb.core.errors import InvalidArguments
from agentnb.core.tools import Tool, specification
from agentnb.testing import ScriptedLLM, call
from agentnb.tools import FunctionTool, as_tools


class Colour(enum.Enum):
    RED = "red"


class Place(BaseModel):
    city: str
    zip: int | None = None


def describe(city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> str:
    """Tell the weather.

    Looks it up in the almanac.

    Args:
        city: Where.
        days: How far ahead.
    """
    return f"{city} {days} {unit}"


async def run(made: FunctionTool, **arguments: Any) -> Any:
    return await made.bind(arguments)(lambda data: None)


def test_the_schema_comes_from_the_signature_and_the_description_from_the_docstring() -> None:
    made = tool(describe)
    assert made.name == "describe"
    assert made.description == "Tell the weather.\n\nLooks it up in the almanac."
    assert made.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How far ahead.", "default": 3},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert specification(made) == {
        "name": "describe",
        "description": made.description,
        "parameters": made.parameters,
    }


@pytest.mark.parametrize(
    "docstring",
    [
        "Do.\n\nArgs:\n    value: The value.\n",
        "Do.\n\nParameters\n----------\nvalue : str\n    The value.\n",
        "Do.\n\n:param value: The value.\n",
    ],
    ids=["google", "numpy", "rest"],
)
def test_docstrings_of_three_styles_are_parsed(docstring: str) -> None:
    def do(value: str) -> None: ...

    do.__doc__ = docstring
    made = tool(do)
    assert made.description == "Do."
    assert made.parameters["properties"]["value"]["description"] == "The value."


def test_a_tool_can_be_called_like_its_function() -> None:
    made = tool(describe)
    assert made("Rome", unit="F") == "Rome 3 F"
    assert made.__name__ == "describe"
    assert isinstance(made, Tool)
    assert "describe" in repr(made)


def test_the_options_of_tool_are_stored() -> None:
    made = tool(approve=True, idempotent=True, timeout=2.5, needs=["network", "write"], sequential=True)(describe)
    assert (made.approve, made.idempotent, made.timeout, made.needs, made.sequential) == (
        True,
        True,
        2.5,
        ("network", "write"),
        True,
    )
    plain = tool(describe)
    assert (plain.approve, plain.idempotent, plain.timeout, plain.needs, plain.sequential) == (
        False,
        False,
        None,
        (),
        False,
    )
    named = tool(name="weather", description="Other words.", needs="network")(describe)
    assert (named.name, named.description, named.needs) == ("weather", "Other words.", ("network",))


@pytest.mark.parametrize(
    ("arguments", "at_fault"),
    [
        ({}, "city"),
        ({"city": 7}, "city"),
        ({"city": "Rome", "days": "many"}, "days"),
        ({"city": "Rome", "unit": "K"}, "unit"),
        ({"city": "Rome", "town": "x"}, "town"),
    ],
)
def test_an_invalid_argument_is_named(arguments: dict[str, Any], at_fault: str) -> None:
    with pytest.raises(InvalidArguments, match=f"Invalid arguments for describe: {at_fault}"):
        tool(describe).bind(arguments)


def test_every_invalid_argument_is_named_and_long_values_are_cut() -> None:
    with pytest.raises(InvalidArguments) as error:
        tool(describe).bind({"days": "x" * 5000})
    assert "city" in str(error.value)
    assert "days" in str(error.value)
    assert len(str(error.value)) < 500


async def test_arguments_are_converted_to_the_types_of_the_signature() -> None:
    @tool
    async def take(place: Place, colour: Colour, many: list[int], at: Annotated[float, Field(gt=0)] = 1.0) -> Any:
        return place, colour, many, at

    got = await run(take, place={"city": "Rome"}, colour="red", many=["1", 2])
    assert got == (Place(city="Rome"), Colour.RED, [1, 2], 1.0)
    jsonschema_rs.meta.validate(take.parameters)
    with pytest.raises(InvalidArguments, match="at"):
        take.bind({"place": {"city": "R"}, "colour": "red", "many": [], "at": -1})
    with pytest.raises(InvalidArguments, match=r"place\.city"):
        take.bind({"place": {}, "colour": "red", "many": []})


async def test_a_default_value_is_the_same_object() -> None:
    marker = object()

    @tool
    async def take(value: Any = marker) -> Any:
        return value is marker

    assert await run(take) is True


async def test_a_parameter_may_have_any_name() -> None:
    @tool
    async def take(model_config: str, schema: int, copy: bool, _private: str = "p") -> Any:
        return model_config, schema, copy, _private

    assert await run(take, model_config="a", schema=1, copy=True, _private="b") == ("a", 1, True, "b")


async def test_a_progress_callback_is_not_in_the_schema() -> None:
    @tool
    async def work(value: str, progress: Any) -> str:
        progress(value)
        return value

    said: list[Any] = []
    assert "progress" not in work.parameters["properties"]
    assert await work.bind({"value": "v"})(said.append) == "v"
    assert said == ["v"]
    with pytest.raises(InvalidArguments, match="progress"):
        work.bind({"value": "v", "progress": 1})


async def test_awaiting_a_progress_report_lets_other_tasks_run() -> None:
    order: list[str] = []

    @tool
    async def work(progress: Any) -> str:
        await progress("half")
        order.append("worked on")
        return "done"

    asyncio.get_running_loop().call_soon(order.append, "somebody else")
    assert await work.bind({})(order.append) == "done"
    assert order == ["half", "somebody else", "worked on"]


@pytest.mark.parametrize(
    ("say", "said"),
    [
        (lambda progress: progress({"done": 1}), {"done": 1}),
        (lambda progress: progress(3, 8), {"done": 3, "total": 8}),
        (lambda progress: progress(3, 8, "a.txt"), {"done": 3, "total": 8, "message": "a.txt"}),
        (lambda progress: progress(0.5, "reading"), {"done": 0.5, "message": "reading"}),
        (lambda progress: progress("reading", total=8), {"message": "reading", "total": 8}),
    ],
)
async def test_progress_in_any_form_is_reported_as_one_value(say: Callable[..., Any], said: Any) -> None:
    @tool
    async def work(progress: Any) -> str:
        say(progress)
        await say(progress)
        return "done"

    heard: list[Any] = []
    assert await work.bind({})(heard.append) == "done"
    assert heard == [said, said]


SHORT = Annotated[str, Field(max_length=9)]


@pytest.mark.parametrize(("type_", "given"), [(float, 0.5), (int | None, 1), (SHORT, "half"), (Literal["all"], "all")])
async def test_a_progress_parameter_of_another_type_is_in_the_schema(type_: Any, given: Any) -> None:
    def report(progress: Any) -> Any:
        return progress

    report.__annotations__["progress"] = type_
    assert await run(tool(report), progress=given) == given


async def test_keyword_arguments_accept_any_name() -> None:
    @tool
    async def take(**values: Any) -> Any:
        return values

    assert await run(take, a=1, b=[2]) == {"a": 1, "b": [2]}


def test_parameters_without_a_name_for_the_model_are_refused() -> None:
    def positional(value: int, /) -> None: ...

    def starred(*values: int) -> None: ...

    for function in (positional, starred):
        with pytest.raises(UsageError, match="by name"):
            tool(function)


def test_an_annotation_without_a_schema_is_rejected() -> None:
    class Odd:
        pass

    def take(value: Any) -> None: ...

    take.__annotations__["value"] = Odd
    with pytest.raises(UsageError, match="JSON schema"):
        tool(take)
    take.__annotations__["value"] = Callable[[int], int]
    with pytest.raises(UsageError, match="JSON schema"):
        tool(take)
    take.__annotations__["value"] = "NoSuchType"
    with pytest.raises(UsageError, match="cannot be resolved"):
        tool(take)


async def test_a_sync_function_runs_in_a_thread_and_sees_the_context() -> None:
    import contextvars
    import threading

    variable = contextvars.ContextVar("variable", default="unset")

    @tool
    def look() -> Any:
        return variable.get(), threading.current_thread() is threading.main_thread()

    variable.set("set")
    assert await run(look) == ("set", False)


async def test_an_awaitable_returned_by_a_sync_function_is_awaited() -> None:
    async def later() -> str:
        await asyncio.sleep(0)
        return "later"

    @tool
    def start() -> Any:
        return later()

    assert await run(start) == "later"


class Desk:
    def __init__(self) -> None:
        self.notes: list[str] = []

    async def note(self, words: str) -> str:
        """Write it down."""
        self.notes.append(words)
        return words


async def test_the_result_of_a_generator_function_is_the_list_of_its_values() -> None:
    @tool
    def count(to: int) -> Any:
        yield from range(to)

    @tool
    async def count_slowly(to: int) -> Any:
        for number in range(to):
            await asyncio.sleep(0)
            yield number

    assert await run(count, to=3) == await run(count_slowly, to=3) == [0, 1, 2]


def joined(function: Any) -> Any:
    @functools.wraps(function)
    def join() -> str:
        return "".join(function())

    return join


def run_to_the_end(function: Any) -> Any:
    @functools.wraps(function)
    def run_it() -> Any:
        return asyncio.run(function())

    return run_it


async def test_a_decorator_decides_the_result_of_a_generator_or_coroutine() -> None:
    @tool
    @joined
    def letters() -> Any:
        yield from "abc"

    @tool
    @run_to_the_end
    async def waits() -> str:
        await asyncio.sleep(0)
        return "waited"

    assert (await run(letters), await run(waits)) == ("abc", "waited")


def words_of(given: Any) -> Any:
    return given.split()  # a list has none


async def test_a_failing_validator_is_reported_as_invalid_arguments() -> None:
    @tool
    def search(terms: Annotated[list[str], BeforeValidator(words_of)]) -> str:
        return "found"

    run = SessionLoop(ScriptedLLM([[call("search", {"terms": ["nile"]})], "done"]), [search]).start("go")
    assert await run == "done"
    assert "Invalid arguments for search: they cannot be checked (AttributeError" in run.messages[2].content


async def test_an_exception_in_a_generator_function_is_raised() -> None:
    @tool
    def count(to: int) -> Any:
        yield 1 / to

    with pytest.raises(ZeroDivisionError):
        await run(count, to=0)


async def test_methods_and_partials_can_be_tools() -> None:
    desk = Desk()
    tools = as_tools([desk.note, functools.partial(describe, unit="F")])
    assert list(tools) == ["note", "describe"]
    assert list(tools["note"].parameters["properties"]) == ["words"]
    assert await tools["note"].bind({"words": "w"})(lambda data: None) == "w"
    assert desk.notes == ["w"]
    assert await tools["describe"].bind({"city": "Rome"})(lambda data: None) == "Rome 3 F"


class Weather:
    """A tool of another design: it has a name, and is called."""

    name = "weather"
    description = "Say how warm it is."

    async def __call__(self, city: str) -> str:
        return f"warm in {city}"


async def test_a_callable_object_with_a_name_is_a_tool() -> None:
    weather = as_tools([Weather()])["weather"]
    assert (weather.description, list(weather.parameters["properties"])) == ("Say how warm it is.", ["city"])
    assert await weather.bind({"city": "Aswan"})(print) == "warm in Aswan"


def test_the_keys_of_a_mapping_are_the_names_of_its_tools() -> None:
    tools = as_tools({"weather": describe})
    assert list(tools) == ["weather"]


@pytest.mark.parametrize("wrong", [7, "describe", {"a": 1}])
def test_a_value_that_cannot_be_a_tool_is_rejected(wrong: Any) -> None:
    with pytest.raises(UsageError, match="not a tool"):
        as_tools([wrong])


def test_a_function_without_a_name_needs_one() -> None:
    with pytest.raises(UsageError, match="name"):
        as_tools([lambda value: value])
    assert list(as_tools({"identity": lambda value: value})) == ["identity"]


def test_a_tool_in_a_mapping_has_the_name_of_its_key() -> None:
    once = tool(approve=True)(describe)
    tools = as_tools({"weather": once, "forecast": once})
    assert [(name, made.name, made.approve) for name, made in tools.items()] == [
        ("weather", "weather", True),
        ("forecast", "forecast", True),
    ]
    assert once.name == "describe"
    with pytest.raises(UsageError, match="name"):
        as_tools({5: describe})  # type: ignore[dict-item]


class Laboratory:
    def __init__(self, unit: str) -> None:
        self.unit = unit

    @tool(needs="bench")
    def measure(self, samples: int) -> str:
        """Measure."""
        return f"{samples} {self.unit}"

    weather = tool(describe)


async def test_a_method_is_a_tool_of_its_object() -> None:
    laboratory = Laboratory("m")
    assert list(laboratory.measure.parameters["properties"]) == ["samples"]
    assert laboratory.measure.needs == ("bench",)
    assert laboratory.measure(3) == "3 m"
    run = SessionLoop(ScriptedLLM([[call("measure", {"samples": 2})], "done"]), [laboratory.measure]).start("go")
    await run
    assert [message.content for message in run.messages if message.role == "tool"] == ["2 m"]


def test_a_tool_of_a_class_without_a_self_parameter_is_not_bound() -> None:
    assert Laboratory("m").weather is Laboratory.weather


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "5"},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": True},
        {"approve": "always"},
        {"idempotent": "no"},
        {"needs": None},
        {"needs": ["network", 5]},
        {"name": 5},
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_when_the_tool_is_defined(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        tool(**options)(describe)


def test_a_field_is_refused_as_a_default_and_accepted_in_the_type() -> None:
    def search(limit: int = Field(3, ge=1)) -> int:
        return limit

    def looks(limit: Annotated[int, Field(ge=1)] = 3) -> int:
        return limit

    with pytest.raises(UsageError, match=r"limit: Annotated\[int, Field"):
        tool(search)
    assert tool(looks).parameters["properties"]["limit"]["minimum"] == 1
    with pytest.raises(InvalidArguments, match="limit"):
        tool(looks).bind({"limit": 0})


def test_a_parameter_without_a_docstring_has_the_description_of_its_field() -> None:
    def work(
        days: Annotated[int, Field(ge=1, description="How many.")],
        city: Annotated[str, Field(description="A city.")] = "Cairo",
    ) -> None:
        """Work.

        Args:
            city: Where.
        """

    described = tool(work).parameters["properties"]
    assert (described["days"]["description"], described["city"]["description"]) == ("How many.", "Where.")


class Search:
    """Searches an index."""

    async def __call__(self, query: str, limit: int = 3) -> str:
        return f"{limit} of {query}"


async def test_a_callable_object_with_a_given_name_is_a_tool() -> None:
    search = tool(name="search")(Search())
    assert search.description == "Searches an index."
    assert search.parameters["properties"]["limit"] == {"type": "integer", "default": 3}
    assert await run(search, query="nile") == "3 of nile"


def test_two_tools_of_the_same_name_are_refused_and_both_are_named() -> None:
    first, second = tool(describe), tool(name="describe")(Desk().note)
    with pytest.raises(UsageError, match=r"'describe': tests\.tools\.test_tool\.describe and .*Desk\.note"):
        as_tools([first, second])


@pytest.mark.parametrize("word", ["progress", "approve", "idempotent", "timeout", "needs", "sequential", "detached"])
def test_the_help_of_tool_describes_every_option(word: str) -> None:
    assert re.search(rf"\b{word}\b", str(tool.__doc__))


async def test_the_schema_of_a_tool_object_is_sent() -> None:
    class Lookup:
        name, description = "lookup", "Look it up."
        parameters: ClassVar = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}

        async def run(self, **arguments: Any) -> str:
            return f"about {arguments['q']}"

    loop = SessionLoop(ScriptedLLM([[call("lookup", {"q": "nile"})], "Seen."]), [Lookup()])
    run = loop.start("go")
    await run
    assert loop.llm.requests[0].tools[0]["parameters"] == Lookup.parameters
    assert run.messages[2].content == "about nile"


class Browser:
    """A tool of somebody's own, which keeps the event loop its connection lives in."""

    name, description, parameters = "browse", "Open a page.", {"type": "object", "properties": {}}
    approve = idempotent = sequential = False
    timeout = None
    needs = ()

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def bind(self, arguments: dict[str, Any]) -> Any:
        async def browse(progress: object) -> str:
            return "a page"

        return browse


async def test_any_object_with_the_attributes_of_a_tool_can_be_a_tool() -> None:
    browsing = SessionLoop(ScriptedLLM([[call("browse", {}, id="b")], "Seen."]), [Browser()]).start("go")
    assert await browsing == "Seen."
    assert [event.result for event in browsing.events if event.type == "call_end"] == ["a page"]


class Placed:
    """A tool as the session's design has them: called by place, with what its schema says in one argument."""

    name, label, description = "double", "Double", "Double a number."
    parameters: ClassVar = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def __init__(self, **said: Any) -> None:
        self.called: list[Any] = []
        self.__dict__.update(said)

    async def execute(self, tool_call_id: str, params: Any, signal: Any = None, on_update: Any = None) -> Any:
        self.called.append((tool_call_id, params, signal.aborted))
        on_update({"content": "half"})
        return {"content": [{"type": "text", "text": str(params["n"] * 2)}], "details": {"n": params["n"]}}


async def test_a_tool_of_the_session_loop_design_gets_positional_arguments() -> None:
    double = Placed()
    loop = SessionLoop(ScriptedLLM([[call("double", {"n": "21"}, id="c1")], "Seen."]), [double])
    events = [event async for event in loop.run("go")]
    assert double.called == [("c1", {"n": 21}, False)]
    assert loop.messages[2].content == [{"type": "text", "text": "42"}]
    assert loop.messages[2].details == {"n": 21}
    assert [event.partial_result for event in events if event.type == "tool_execution_update"] == [{"content": "half"}]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [({}, "'n' is a required property"), ({"n": "many"}, "n: 'many' is not of type 'integer'")],
)
async def test_arguments_are_checked_by_the_schema_of_an_object(arguments: Any, fault: str) -> None:
    double = Placed()
    loop = SessionLoop(ScriptedLLM([[call("double", arguments)], "Seen."]), [double])
    run = loop.start("go")
    await run
    assert run.messages[2].content == f"Invalid arguments for double: {fault}."
    assert double.called == []


async def test_arguments_are_checked_before_a_method_that_accepts_any_name() -> None:
    class Lookup:
        name, parameters = "lookup", Placed.parameters

        def run(self, **arguments: Any) -> str:
            raise AssertionError("it is not called")

    with pytest.raises(InvalidArguments, match="'n' is a required property"):
        as_tools([Lookup()])["lookup"].bind({})


async def test_a_method_with_one_parameter_that_is_not_in_the_schema_gets_all_arguments() -> None:
    class Total:
        name, parameters = "total", Placed.parameters

        def execute(self, arguments: dict[str, Any]) -> Any:
            """Add up."""
            return sum(arguments.values())

    total = as_tools([Total()])["total"]
    assert total.description == "Add up."
    assert await total.bind({"n": 3})(lambda data: None) == 3


async def test_a_method_without_required_parameters_gets_keyword_arguments() -> None:
    class Double:
        name, parameters = "double", Placed.parameters

        def run(self, n: int = 1) -> int:
            return 2 * n

    assert await as_tools([Double()])["double"].bind({"n": 3})(lambda data: None) == 6


@pytest.mark.parametrize("parameters", [{"type": "object", "properties": {}}, {"type": "object"}, {"n": "A number."}])
async def test_a_method_gets_keyword_arguments_if_its_schema_has_no_properties(parameters: Any) -> None:
    class Total:
        name = "total"

        def run(self, n: int, m: int) -> int:
            return n + m

    total = Total()
    total.parameters = parameters  # type: ignore[attr-defined]
    assert await as_tools([total])["total"].bind({"n": 3, "m": 4})(lambda data: None) == 7


async def test_a_tool_of_the_session_loop_design_may_have_no_arguments() -> None:
    class Now(Placed):
        parameters: ClassVar = {"type": "object", "properties": {}}

        async def execute(self, tool_call_id: str, params: Any, signal: Any = None, on_update: Any = None) -> Any:
            return params

    assert await as_tools([Now()])["double"].bind({})(lambda data: None) == {}


async def test_a_tool_with_a_signal_sees_that_its_call_was_cancelled() -> None:
    started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    class Waits(Placed):
        async def execute(self, tool_call_id: str, params: Any, signal: Any = None, on_update: Any = None) -> Any:
            started.set_result(signal)
            await asyncio.Event().wait()

    loop = SessionLoop(ScriptedLLM([[call("double", {"n": 1})]]), [Waits()])
    async with asyncio.timeout(60):
        async for event in loop.run("go"):
            if event.type == "tool_execution_start":
                assert not (await started).aborted
                loop.abort()
    assert started.result().aborted


@pytest.mark.parametrize(
    ("said", "option", "value"),
    [
        ({"approve": True}, "approve", True),
        ({"idempotent": True}, "idempotent", True),
        ({"timeout": 3}, "timeout", 3),
        ({"needs": ["network"]}, "needs", ("network",)),
        ({"execution_mode": "sequential"}, "sequential", True),
        ({"executionMode": "sequential"}, "sequential", True),
        ({"execution_mode": "parallel"}, "sequential", False),
        ({"approve": lambda: True}, "approve", False),
    ],
)
@pytest.mark.parametrize("by_place", [True, False])
def test_the_options_of_a_tool_object_are_used(said: dict[str, Any], option: str, value: Any, by_place: bool) -> None:
    class Named(Placed):
        def run(self, n: int) -> int:
            return n

    made = as_tools({"it": (Placed if by_place else Named)(**said)})["it"]
    assert getattr(made, option) == value
    assert made.named("other").name == "other"
    assert getattr(made.named("other"), option) == value


@pytest.mark.parametrize("by_place", [True, False])
def test_a_renamed_tool_object_keeps_its_schema(by_place: bool) -> None:
    class Named(Placed):
        def run(self, n: int) -> int:
            return n

    made = as_tools([Placed() if by_place else Named()])["double"]
    assert as_tools({"twice": made})["twice"].parameters == Placed.parameters
