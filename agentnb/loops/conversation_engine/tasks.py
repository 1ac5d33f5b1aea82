"""SubTasks: the plan, read from what a decomposition returned, and put in order (SEMANTICS.md, 5. Tasks)."""

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
    """What a decomposition gave is no plan."""


class SubTask(Positional):
    """One task of a plan; a smaller `priority` runs earlier, and `dependencies` are ids of tasks that run before."""

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
        """What was planned, as plain data: without what has become of it."""
        return {name: getattr(self, name) for name in _PLAN}


def read_tasks(given: Any) -> list[SubTask]:
    """The tasks in what a decomposition gave: a list, `{"tasks": [...]}`, or either as JSON text.

    A task is a mapping, an object with such fields, or its description. Fields it does not have are the index as its
    priority, `task_INDEX` as its id, its id as its description; fields that are not a task's are passed over. Raises
    TaskError where a field is of another kind, and where ids or dependencies make no plan.
    """
    if isinstance(given, str):
        given = _json_in(given)
    if isinstance(given, Mapping) and "tasks" in given:
        given = given["tasks"]
    if not isinstance(given, Iterable) or isinstance(given, (Mapping, bytes)):
        raise TaskError(f"A goal is decomposed into a list of tasks, not into {_short(given)}.")
    tasks = [_read_task(number, item) for number, item in enumerate(given)]
    in_order(tasks)
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
        raise TaskError(f"Task {number} is {_short(item)}; a task is a mapping with id, description and priority.")
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
    """The plan in a model's answer, also where words or a fence stand around it."""
    decoder = json.JSONDecoder()
    for position, character in enumerate(text):
        if character in "[{":
            try:
                found = decoder.raw_decode(text, position)[0]
            except (ValueError, RecursionError):
                continue
            if "tasks" in found if isinstance(found, dict) else all(isinstance(item, (dict, str)) for item in found):
                return found
    raise TaskError(f"A goal is decomposed into tasks as JSON, not into {_short(text)}.")


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 100 else f"{said[:100]}..."


def in_order(tasks: Sequence[SubTask]) -> list[SubTask]:
    """The tasks by priority, those of the same priority as they came, and each after those it depends on.

    Raises TaskError where two have the same id, where one depends on a task that is not there, and where they depend on
    each other in a circle.
    """
    number = {task.id: index for index, task in enumerate(tasks)}
    if len(number) < len(tasks):
        twice = next(task.id for index, task in enumerate(tasks) if number[task.id] != index)
        raise TaskError(f"Two tasks have the id {twice!r}.")
    for task in tasks:
        for dependency in task.dependencies:
            if dependency not in number:
                raise TaskError(f"The task {task.id!r} depends on {dependency!r}, which is no task of this plan.")
    sorter = TopologicalSorter({task.id: task.dependencies for task in tasks})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = ", ".join(sorted(set(error.args[1])))
        raise TaskError(f"These tasks depend on each other in a circle: {circle}.") from None
    ordered: list[SubTask] = []
    ready: list[tuple[float, int]] = []
    while sorter.is_active():
        for id in sorter.get_ready():
            heapq.heappush(ready, (tasks[number[id]].priority, number[id]))
        ordered.append(tasks[heapq.heappop(ready)[1]])
        sorter.done(ordered[-1].id)
    return ordered
