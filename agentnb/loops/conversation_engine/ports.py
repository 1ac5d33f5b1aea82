"""The ports of an engine, coordinator, planner and executor, as activities of its run.

A port may be sync or async; a sync one runs in a worker thread, so that it does not block the event loop. The planner
and the executor get the context as a second argument if they have a parameter `context` or require a second argument. A
port may be a loop, which runs nested in the engine's run: the output of a coordinator or planner is passed to the
activity that follows, which reads it like the result of a function.
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
from agentnb.core.json import to_plain
from agentnb.core.messages import input_messages, text_of
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
"""The schema of a model's plan. It allows no other properties, so that a provider enforces it."""


class EngineContext(dict[str, Any]):
    """The context of a run: `rules`, `tools`, `knowledge` and others, as keys or as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The context has no {name!r}. It has: {', '.join(self)}.") from None


def engine_context(state: State) -> EngineContext:
    """Return a copy of the context of a run, which a port may change."""
    return EngineContext(to_plain(state.values.get("context", {})))


# -- the activities --------------------------------------------------------------------------------------------------


def get_context(coordinator: Any) -> Activity:
    """Return the activity that gets the context. Without a coordinator it is empty.

    If the coordinator is a loop, the activity reads its output. Raises UsageError for a coordinator of another kind.
    """
    ask = None if isinstance(coordinator, Loop) else getattr(coordinator, "get_context_async", coordinator)
    if ask is not None and not callable(ask):
        raise UsageError(
            f"coordinator must have get_context_async(user_input), be a callable or a loop, not {coordinator!r}."
            " Pass a model as llm=."
        )

    async def activity(arguments: dict[str, Any], state: State) -> dict[str, Any]:
        return _read_context(await _call(ask, to_plain(state.input)) if ask is not None else arguments.get("given"))

    return activity


def is_model(llm: Any) -> bool:
    """Return True if the goal is decomposed by a request to the model `llm`.

    Raises UsageError if `llm` is not a planner of any kind.
    """
    return llm is not None and not isinstance(llm, Loop) and _decomposer_of(llm) is None


def _decomposer_of(llm: Any) -> Callable[..., Any] | None:
    """Return the function that decomposes, or None if `llm` is a model, a loop or None. Raises UsageError."""
    if llm is None or isinstance(llm, Loop):
        return None
    decompose: Callable[..., Any] | None = getattr(llm, "decompose_goal", None)
    if callable(decompose):
        return decompose
    if any(callable(getattr(llm, name, None)) for name in ("stream", "generate_with_tools", "complete")):
        return None
    if not callable(llm):
        raise UsageError(
            f"llm cannot be a {type(llm).__name__}. It must have decompose_goal(user_input), or be a callable, a model"
            " or a loop."
        )
    function: Callable[..., Any] = llm
    return function


def decompose_goal(llm: Any, max_tasks: int | None) -> Activity:
    """Return the activity that makes the plan: by a function, from the reply of a model, or from the output of a loop.

    Without `llm`, the goal is the only task. max_tasks: tasks beyond it are dropped.
    """
    decompose = _decomposer_of(llm)

    async def activity(arguments: dict[str, Any], state: State) -> dict[str, Any]:
        if decompose is not None:
            given = await _call(decompose, to_plain(state.input), context=engine_context(state))
        elif isinstance(llm, Loop):
            given = arguments["given"]
        elif llm is not None:
            given = text_of(state.reply.message.content) if state.reply is not None else ""
        else:
            given = [{"id": "task_default", "description": goal_of(state)}]
        try:
            tasks = read_tasks(given)
        except TaskError as error:
            if state.reply is not None and (reason := state.reply.cut_off) is not None:
                raise TaskError(f"The model's plan was cut off ({reason}): {error}") from error
            raise
        # Drop the tasks beyond the limit, unless a remaining one depends on them.
        kept, dropped = tasks[:max_tasks], tasks[len(tasks) if max_tasks is None else max_tasks :]
        dropped_ids = {task.id for task in dropped}
        if orphan := next((task for task in kept if not dropped_ids.isdisjoint(task.dependencies)), None):
            raise TaskError(f"The task {orphan.id!r} depends on a task that max_tasks={max_tasks} leaves out.")
        return {"tasks": [task.plan() for task in kept], "dropped": [task.id for task in dropped]}

    return activity


def execute_task(execute: Any) -> Activity:
    """Return the activity that performs a task by a callable. Without one, the result of a task is its description.

    Raises UsageError if `execute` is not a callable or a loop. (A loop performs the call itself.)
    """
    if execute is not None and not callable(execute) and not isinstance(execute, Loop):
        raise UsageError(f"execute must be a loop, or a callable that takes the task, not {execute!r}.")

    async def activity(arguments: dict[str, Any], state: State) -> Any:
        task = SubTask(**to_plain(arguments), status="running")
        if execute is None:
            return task.description
        return await _call(execute, task, context=engine_context(state))

    return activity


def input_of_nested_loop(loop: Any, call: CallState, state: State) -> Any:
    """Return the input of a loop that performs a call of the engine.

    A coordinator gets the goal. A planner gets the goal and the context; if it has a model, also the format of a plan.
    An executor gets the task, the context, and the results of the tasks it depends on.
    """
    if call.name == COORDINATOR:
        return state.input
    if call.name == PLANNER:
        goal = goal_with_context(state)
        return f"{INSTRUCTIONS}\n\nThe goal: {goal}" if loop.llm is not None else goal
    description = _with_context(call.arguments["description"], state)
    given = call.arguments.get("given", {})
    most = state.max_result_chars
    texts = [description, *(f"[{name}] came to: {text_of(render(result, most))}" for name, result in given.items())]
    if given and (messages := loop.messages_from(texts)) is not None:
        return list(messages)
    return "\n".join(texts)


def read_given(call: CallState, result: Any) -> Any:
    """Return a user-supplied result of one of the engine's own calls in the form that the call itself returns.

    Raises UsageError if the result of a decomposition is not a plan.
    """
    if call.name == GET_CONTEXT:
        return _read_context(result)
    if call.name != DECOMPOSE:
        return result
    try:
        return {"dropped": [], "tasks": [task.plan() for task in read_tasks(result)]}
    except TaskError as error:
        raise UsageError(str(error)) from error


# -- calling ---------------------------------------------------------------------------------------------------------


async def _call(function: Callable[..., Any], argument: Any, *, context: EngineContext | None = None) -> Any:
    arguments: list[Any] = [argument]
    options: dict[str, Any] = {}
    if context is not None and (way := _context_parameter(function)) is not None:
        if way == "second":
            arguments.append(context)
        else:
            options[way] = context
    return await functions.call(function, *arguments, **options)


def _context_parameter(function: Callable[..., Any]) -> str | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
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
    """Read the text of a coordinator: JSON with rules, tools or knowledge; any other text is knowledge."""
    try:
        read = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        read = None
    if isinstance(read, dict) and not read.keys().isdisjoint(_PARTS):
        return read
    return {"knowledge": [text]} if text.strip() else {}


def goal_of(state: State) -> str:
    """Return the goal as text."""
    return "\n".join(text_of(message.content) for message in input_messages(state.input))


def goal_with_context(state: State) -> str:
    """Return the request to a model: the goal, and the context unless it is empty."""
    return _with_context(goal_of(state), state)


def _with_context(text: str, state: State) -> str:
    known = {name: value for name, value in engine_context(state).items() if value}
    return f"{text}\n\nWhat is known:\n{json.dumps(known, ensure_ascii=False)}" if known else text
