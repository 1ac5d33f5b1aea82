"""Numbers and texts of numpy, of an HTML parser or of an enum enter a run as those of Python, at every entry."""

import enum
import itertools

import numpy as np
import pytest

from agentnb import Agent, LoopAgent, SessionLoop, Store, tool
from agentnb.core.json import is_json
from agentnb.testing import ScriptedLLM, call


class Node(str):
    """A text as an HTML parser returns it."""


class Color(str, enum.Enum):  # noqa: UP042 - the older form is another type
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Metres(float):
    pass


VALUES = [
    (np.float64(1.5), 1.5),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.str_("Elbe"), "Elbe"),
    (Node("Größe"), "Größe"),
    (Color.RED, "red"),
    (Level.HIGH, 3),
    (Metres(2.0), 2.0),
]
values = pytest.mark.parametrize(("value", "plain"), VALUES, ids=lambda value: type(value).__name__)
TEXT = Node("said")


@tool
def give(value: object = None) -> object:
    return value


@tool(approve=True)
def ask(value: object = None) -> object:
    return value


class Client:
    """A model's client of the user, which streams values of other libraries."""

    def __init__(self, value):
        called = {"type": "tool_call", "id": Node("c1"), "name": Node("give"), "arguments": {"value": value}}
        usage = {"type": "usage", "input_tokens": np.int64(3), "output_tokens": np.float64(4)}
        self.answers = [[called, usage, {"type": "stop", "reason": Node("tool_calls")}], [TEXT]]

    async def stream(self, messages, tools=None):
        for chunk in self.answers.pop(0):
            yield chunk


def scripted(*arguments):
    return ScriptedLLM([*(call("give", {"value": value}) for value in arguments), "done"])


def edited(value):
    return lambda proposed: {"arguments": {"value": value}, "reason": TEXT}


ENTRIES = {
    "input": lambda value: SessionLoop(scripted()).start({"x": value}),
    "message": lambda value: SessionLoop(scripted()).start([{"role": "user", "content": TEXT, "x": value}]),
    "data": lambda value: SessionLoop(scripted()).start("q", data={TEXT: value}),
    "names": lambda value: SessionLoop(scripted(), name=TEXT).start("q", name=TEXT, tags=[TEXT]),
    "options": lambda value: SessionLoop(scripted()).start("q", options={"seed": value}),
    "arguments": lambda value: SessionLoop(scripted(value), [give]).start("q"),
    "model": lambda value: SessionLoop(Client(value), [give]).start("q"),
    "policy": lambda value: SessionLoop(scripted(0), [give]).start("q", approve=edited(value)),
    "Agent": lambda value: Agent(scripted(value), [give]).start({"x": value}),
    "LoopAgent": lambda value: LoopAgent(
        name="L", max_iterations=1, sub_agents=[SessionLoop(scripted(value), [give], name="A")]
    ).start({"x": value}),
}


@values
@pytest.mark.parametrize("entry", ENTRIES)
async def test_a_run_records_values_of_libraries_as_plain_json(entry, value, plain):
    run = ENTRIES[entry](value)
    await run
    assert all(is_json(event.to_dict()) for event in run.events)


@values
async def test_a_tool_may_return_a_value_of_a_library_in_a_run_with_a_store(value, plain, tmp_path):
    @tool
    def read() -> object:
        return value

    run = SessionLoop(ScriptedLLM([call("read", {}), "done"]), [read]).start("q", store=Store(tmp_path / "runs.db"))
    await run
    result = next(event.result for event in run.events if event.type == "call_end")
    assert (type(result), result) == (type(plain), plain)


@pytest.mark.parametrize("method", ["edit", "replace", "answer", "reject"])
@values
async def test_a_person_may_decide_with_a_value_of_a_library(method, value, plain):
    arguments = {
        "edit": ({"value": value},),
        "replace": (Node("give"), {"value": value}),
        "answer": (value,),
        "reject": (TEXT,),
    }
    llm = ScriptedLLM([call("ask", {}), "done"])
    run = SessionLoop(llm, [ask, give]).start("q")
    async for event in run:
        if event.type == "approval_request":
            getattr(run, method)(run.pending[0], *arguments[method], reviewer=TEXT)
    assert all(is_json(event.to_dict()) for event in run.events)


@values
async def test_a_message_that_follows_may_have_values_of_a_library(value, plain):
    run = SessionLoop(ScriptedLLM(["one", "two"])).start("q")
    run.follow_up({"role": "user", "content": TEXT, "x": value})
    await run
    assert all(is_json(event.to_dict()) for event in run.events)


@values
async def test_a_hook_may_change_a_result_to_a_value_of_a_library(value, plain):
    loop = SessionLoop(scripted(1), [give], after_tool_call=lambda context: {"content": value})
    run = loop.start("q")
    await run
    assert all(is_json(event.to_dict()) for event in run.events)


def test_the_values_of_the_tests_are_not_plain():
    pairs = itertools.chain.from_iterable(VALUES)
    assert [is_json(value) for value in pairs] == [False, True] * len(VALUES)
