"""What an engine is given, as the activities its run calls: where the context comes from, who decomposes, who executes.

Each may be sync or async; a sync one runs in a worker thread, so that it holds up nobody. `decompose_goal` and
`execute` get the context as a second argument where they name one `context` or cannot do without one. Each may
be a loop, which the driver runs inside the engine: the coordinator's and the planner's output is given to the activity
that comes after it, which reads it as it reads a function's result.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from agentnb.core.calls import render
from agentnb.core.errors import UsageError
from agentnb.core.messages import input_messages, text_of, to_plain
from agentnb.core.state import CallState, State
from agentnb.loops import functions
from agentnb.loops.base import Loop
from agentnb.loops.conversation_engine.states import COORDINATOR, DECOMPOSE, GET_CONTEXT, PLANNER
from agentnb.loops.conversation_engine.tasks import SubTask, TaskError, read_tasks

Activity = Callable[[dict[str, Any], State], Any]

_PARTS = ("rules", "tools", "knowledge")

INSTRUCTIONS = """\
Decompose the user's goal into the tasks that lead to it. Answer with JSON and nothing else:
{"tasks": [{"id": "...", "description": "...", "priority": 0, "dependencies": []}]}
A task with a smaller priority runs earlier. dependencies are the ids of tasks that must be done before it."""

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "tasks": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "description": {"type": "string"},
                    "priority": {"type": "integer"},
                    "dependencies": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["id", "description", "priority", "dependencies"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["tasks"],
    "additionalProperties": False,
}
"""What a model's decomposition looks like: closed, so that a provider enforces it."""


class EngineContext(dict[str, Any]):
    """What a run knows before it decomposes: `rules`, `tools`, `knowledge`, read as keys or as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The context has no {name!r}; it has {', '.join(self)}.") from None


def context_of(state: State) -> EngineContext:
    """The context of a run, for whoever is called with it."""
    return EngineContext(to_plain(state.values.get("context", {})))  # a copy: the record is not theirs to change


# -- the activities --------------------------------------------------------------------------------------------------


def get_context(coordinator: Any) -> Activity:
    """Ask the coordinator, or read what it came to where it is a loop; without one the context is empty."""
    ask = None if isinstance(coordinator, Loop) else getattr(coordinator, "get_context_async", coordinator)
    if ask is not None and not callable(ask):
        raise UsageError(
            f"A coordinator has get_context_async(user_input), is a callable or a loop, not {coordinator!r};"
            " a model is llm=."
        )

    async def activity(arguments: dict[str, Any], state: State) -> dict[str, Any]:
        return _read_context(await _ask(ask, to_plain(state.input)) if ask is not None else arguments.get("given"))

    return activity


def is_model(llm: Any) -> bool:
    """Whether the goal is decomposed by a request to `llm`. Raises UsageError where nothing can decompose it so."""
    return llm is not None and not isinstance(llm, Loop) and _decomposer_of(llm) is None


def _decomposer_of(llm: Any) -> Callable[..., Any] | None:
    """What decomposes where `llm` is no model: its `decompose_goal`, or itself."""
    if llm is None or isinstance(llm, Loop):
        return None
    decompose: Callable[..., Any] | None = getattr(llm, "decompose_goal", None)
    if callable(decompose):
        return decompose
    if any(callable(getattr(llm, name, None)) for name in ("stream", "generate_with_tools", "complete")):
        return None
    if not callable(llm):
        raise UsageError(
            f"{type(llm).__name__} can decompose no goal: it has no decompose_goal, and is neither a model nor a loop."
        )
    ask: Callable[..., Any] = llm
    return ask


def decompose_goal(llm: Any, max_tasks: int | None) -> Activity:
    """Make the plan: as `llm` says, a function, a model or a loop; without one it is one task, the whole goal."""
    decompose = _decomposer_of(llm)

    async def activity(arguments: dict[str, Any], state: State) -> dict[str, Any]:
        if decompose is not None:
            given = await _ask(decompose, to_plain(state.input), context=context_of(state))
        elif isinstance(llm, Loop):
            given = arguments["given"]
        elif llm is not None:
            given = text_of(state.reply.message.content) if state.reply is not None else ""
        else:
            given = [{"id": "task_default", "description": goal_of(state)}]
        try:
            tasks = read_tasks(given)
        except TaskError as error:
            if state.reply is not None and (why := state.reply.cut_off) is not None:
                raise TaskError(f"The model's plan was cut off ({why}): {error}") from error
            raise
        kept, dropped = tasks[:max_tasks], tasks[len(tasks) if max_tasks is None else max_tasks :]
        gone = {task.id for task in dropped}
        if orphan := next((task for task in kept if not gone.isdisjoint(task.dependencies)), None):
            raise TaskError(f"The task {orphan.id!r} depends on one that max_tasks={max_tasks} leaves out.")
        return {"tasks": [task.plan() for task in kept], "dropped": [task.id for task in dropped]}

    return activity


def execute_task(execute: Any) -> Activity:
    """Do a task: with a callable, or by taking its description for its result (a loop is run by the driver)."""
    if execute is not None and not callable(execute) and not isinstance(execute, Loop):
        raise UsageError(f"execute= takes a callable of the task or a loop, not {execute!r}.")

    async def activity(arguments: dict[str, Any], state: State) -> Any:
        task = SubTask(**to_plain(arguments), status="running")
        if execute is None:
            return task.description
        return await _ask(execute, task, context=context_of(state))

    return activity


def input_for(loop: Any, call: CallState, state: State) -> Any:
    """What a loop is given: the goal, or a task and what those it depends on came to. All but a coordinator get what is
    known, too.

    A planner that asks a model of its own is told what a plan looks like, as a model would be.
    """
    if call.name == COORDINATOR:
        return state.input
    if call.name == PLANNER:
        goal = goal_with_context(state)
        return f"{INSTRUCTIONS}\n\nThe goal: {goal}" if loop.llm is not None else goal
    description = _with_context(call.arguments["description"], state)
    given = call.arguments.get("given", {})
    most = state.max_result_chars
    said = [description, *(f"[{name}] came to: {text_of(render(result, most))}" for name, result in given.items())]
    if given and (heard := loop.hears_as(said)) is not None:
        return list(heard)
    return "\n".join(said)


def read_given(call: CallState, result: Any) -> Any:
    """What somebody gives as the result of one of the engine's own calls. Raises UsageError where it is no plan."""
    if call.name == GET_CONTEXT:
        return _read_context(result)
    if call.name != DECOMPOSE:
        return result
    try:
        return {"dropped": [], "tasks": [task.plan() for task in read_tasks(result)]}
    except TaskError as error:
        raise UsageError(str(error)) from error


# -- calling ---------------------------------------------------------------------------------------------------------


async def _ask(function: Callable[..., Any], argument: Any, *, context: EngineContext | None = None) -> Any:
    arguments: list[Any] = [argument]
    options: dict[str, Any] = {}
    if context is not None and (way := _way_to_pass_context(function)) is not None:
        if way == "second":
            arguments.append(context)
        else:
            options[way] = context
    return await functions.call(function, *arguments, **options)


def _way_to_pass_context(function: Callable[..., Any]) -> str | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have none to look at
        return None
    if any(p.name == "context" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters[1:]):
        return "context"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return "second" if len(positional) > 1 and positional[1].default is inspect.Parameter.empty else None


def _read_context(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        given = _context_in(given)
    if given is None:
        read: dict[str, Any] = {}
    elif isinstance(given, Mapping):
        read = dict(given)
    elif isinstance(given, BaseModel):
        read = given.model_dump()
    elif dataclasses.is_dataclass(given) and not isinstance(given, type):
        read = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    else:
        read = {name: getattr(given, name, None) for name in _PARTS}
    return {**read, **{name: read[name] if read.get(name) is not None else [] for name in _PARTS}}


def _context_in(text: str) -> dict[str, Any]:
    """What a coordinator says in words: its rules, tools and knowledge where they are JSON, or else what it knows."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if isinstance(read, dict) and not read.keys().isdisjoint(_PARTS):
        return read
    return {"knowledge": [text]} if text.strip() else {}


def goal_of(state: State) -> str:
    """The goal as text."""
    return "\n".join(text_of(message.content) for message in input_messages(state.input))


def goal_with_context(state: State) -> str:
    """What a model is asked: the goal, and what is known where anything is."""
    return _with_context(goal_of(state), state)


def _with_context(words: str, state: State) -> str:
    known = {name: value for name, value in context_of(state).items() if value}
    return f"{words}\n\nWhat is known:\n{json.dumps(known, ensure_ascii=False)}" if known else words
