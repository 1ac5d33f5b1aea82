"""The plan: reading tasks from the result of a decomposition, and ordering them (SEMANTICS.md, 5. Tasks)."""

from __future__ import annotations

import dataclasses
import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentnb.loops.positional import Positional

_PLAN = ("id", "description", "priority", "type", "dependencies")


class TaskError(ValueError):
    """The result of a decomposition is not a valid plan."""


class SubTask(Positional):
    """One task of a plan. A smaller `priority` runs earlier; `dependencies` are ids of tasks that run before it."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True, defer_build=True)

    id: Annotated[str, Field(min_length=1)]
    description: str = ""
    status: Literal["pending", "running", "completed", "failed"] = "pending"
    priority: int | Annotated[float, Field(allow_inf_nan=False)] = 0
    type: str = "generic"
    result: Any = None
    dependencies: list[str] = Field(default_factory=list)
    error: str | None = None

    def plan(self) -> dict[str, Any]:
        """Return the planned fields as plain data, without status, result and error."""
        return {name: getattr(self, name) for name in _PLAN}


def read_tasks(given: Any) -> list[SubTask]:
    """Read the tasks from the result of a decomposition.

    given: a list of tasks, `{"tasks": [...]}`, or either as JSON text. A task is a mapping, an object with the fields,
    or its description. Missing fields have defaults: the index as priority, `task_INDEX` as id, the id as description.
    Unknown fields are ignored.

    Raises TaskError if a field has the wrong type, an id occurs twice, or the dependencies cannot be satisfied.
    """
    if isinstance(given, str):
        given = _json_in(given)
    if isinstance(given, Mapping) and "tasks" in given:
        given = given["tasks"]
    if not isinstance(given, Iterable) or isinstance(given, (Mapping, bytes)):
        raise TaskError(f"A decomposition must return a list of tasks, not {_short(given)}.")
    tasks = [_read_task(number, item) for number, item in enumerate(given)]
    tasks_in_order(tasks)
    return tasks


def _read_task(number: int, item: Any) -> SubTask:
    if isinstance(item, str):
        item = {"description": item}
    elif isinstance(item, BaseModel):
        item = item.model_dump()
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        item = dataclasses.asdict(item)
    elif not isinstance(item, Mapping) and (hasattr(item, "id") or hasattr(item, "description")):
        item = {name: getattr(item, name, None) for name in _PLAN}
    if not isinstance(item, Mapping):
        raise TaskError(f"Task {number} is {_short(item)}. A task must be a mapping with id, description and priority.")
    fields = {name: item[name] for name in _PLAN if item.get(name) is not None}
    fields.setdefault("id", f"task_{number}")
    fields = {"priority": number, "description": str(fields["id"]), **fields}
    try:
        return SubTask(**fields)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise TaskError(f"Task {number}: {where}: {fault['msg']} (got {_short(fault['input'])}).") from error


def _json_in(text: str) -> Any:
    """Parse the first plan in a text, which may have other text around it. Raises TaskError if it has no plan."""
    decoder = json.JSONDecoder()
    for position, character in enumerate(text):
        if character in "[{":
            try:
                found = decoder.raw_decode(text, position)[0]
            except (ValueError, RecursionError):
                continue
            if "tasks" in found if isinstance(found, dict) else all(isinstance(item, (dict, str)) for item in found):
                return found
    raise TaskError(f"A decomposition must return tasks as JSON, not {_short(text)}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def tasks_in_order(tasks: Sequence[SubTask]) -> list[SubTask]:
    """Return the tasks by priority, equal priorities in their given order, each after the tasks it depends on.

    Raises TaskError if an id occurs twice, a dependency is unknown, or dependencies form a cycle.
    """
    index_of = {task.id: index for index, task in enumerate(tasks)}
    if len(index_of) < len(tasks):
        twice = next(task.id for index, task in enumerate(tasks) if index_of[task.id] != index)
        raise TaskError(f"Two tasks have the id {twice!r}.")
    for task in tasks:
        for dependency in task.dependencies:
            if dependency not in index_of:
                raise TaskError(f"The task {task.id!r} depends on {dependency!r}, which is not a task of the plan.")
    # Of the tasks whose dependencies have run, take the one with the smallest priority, then the smallest index.
    sorter = TopologicalSorter({task.id: task.dependencies for task in tasks})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = ", ".join(sorted(set(error.args[1])))
        raise TaskError(f"The dependencies of these tasks form a cycle: {cycle}.") from None
    ordered: list[SubTask] = []
    ready: list[tuple[float, int]] = []
    while sorter.is_active():
        for id in sorter.get_ready():
            heapq.heappush(ready, (tasks[index_of[id]].priority, index_of[id]))
        ordered.append(tasks[heapq.heappop(ready)[1]])
        sorter.done(ordered[-1].id)
    return ordered
