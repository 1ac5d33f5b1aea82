"""Common parts of many tests: a notation for event streams, the providers' rules, and a check of running tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from agentnb.core.events import CallEnd, CallStart, Delta, Event
from agentnb.core.evolve import fold
from agentnb.testing import call, text

PROVIDER_ROLES = ("system", "user", "assistant", "tool")


def says(words: str, *calls: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a scripted turn: text, then calls."""
    return [*text(words), *calls]


def asks(*ids: str, tool: str = "echo") -> list[Mapping[str, Any]]:
    """Return a scripted turn that calls `tool` once for each id, with the id as its argument."""
    return [call(tool, {"value": id}, id=id) for id in ids]


def types(events: Iterable[Any]) -> list[str]:
    """Return the types of the events, without deltas."""
    return [event.type for event in events if not isinstance(event, Delta)]


def facts(events: Iterable[Event | Delta]) -> list[Event]:
    """Return the events, without deltas."""
    return [event for event in events if isinstance(event, Event)]


def payload(event: Event) -> dict[str, Any]:
    """Return an event without what differs between runs: its time, its run, and the text of tracebacks."""
    dumped = event.model_dump(mode="json", exclude={"time", "run_id", "deadline"})
    if isinstance(dumped.get("error"), dict):
        dumped["error"].pop("traceback", None)
    if dumped.get("timing"):
        dumped["timing"] = "..."
    return dumped


OF_A_CALL = frozenset({"call_proposed", "approval_request", "approval_decision", "call_start", "call_end"})


def by_loop(events: Iterable[Event]) -> dict[str, list[dict[str, Any]]]:
    """Return the events of each loop, in order.

    The events of concurrent loops interleave in any order, and so do those of concurrent calls: the calls are sorted by
    their ids, and the events of each call keep their order.
    """
    happened: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        said = payload(event)
        del said["seq"]
        for made in ("id", "timestamp"):  # of an opaque agent's own event
            said.get("message", {}).get("event", {}).pop(made, None)
        if event.type in OF_A_CALL:
            del said["phase"]  # which of the concurrent calls opens it depends on timing
        happened.setdefault(event.path, []).append(said)
    return {path: _in_order(said) for path, said in happened.items()}


def _in_order(happened: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ordered: list[dict[str, Any]] = []
    for of_calls, group in groupby(happened, key=lambda one: one["type"] in OF_A_CALL):
        said = list(group)
        if of_calls:
            said.sort(key=lambda one: str(one.get("call_id") or one["call"]["id"]))
        ordered += said
    return ordered


def finished_calls(events: Iterable[Event]) -> list[str]:
    """Return the ids of the calls that have a result, one entry for each result."""
    return [event.call_id for event in events if isinstance(event, CallEnd)]


def started_calls(events: Iterable[Event]) -> list[str]:
    """Return the ids of the calls that were started, one entry for each start."""
    return [event.call_id for event in events if isinstance(event, CallStart)]


def running_tasks() -> set[asyncio.Task[Any]]:
    """Return the tasks of the event loop, without the current one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def assert_folds(run: Any) -> None:
    """Assert that the state of a run is the fold of its events."""
    assert fold(run.events) == run.state


def assert_one_terminal_event_last(events: Sequence[Event | Delta]) -> None:
    """Assert that exactly one event ends the run, and that it is the last."""
    assert [event.terminal for event in events].count(True) == 1
    assert events[-1].terminal


def provider_faults(messages: Sequence[Mapping[str, Any]], *, unfinished: bool = False) -> list[str]:
    """Return what OpenAI or Anthropic would refuse in a history; `unfinished`: the last calls may still be open.

    OpenAI (chat completions): "An assistant message with 'tool_calls' must be followed by tool messages responding to
    each 'tool_call_id'"; "messages with role 'tool' must be a response to a preceding message with 'tool_calls'".
    Anthropic (messages): "Each `tool_use` block must have a corresponding `tool_result` block in the next message";
    "Each `tool_result` block must have a corresponding `tool_use` block in the previous message". The order
    of the results, that of the calls, is a rule of agentnb (ARCHITECTURE.md, 4. Promises).
    """
    faults = []
    waiting: list[str] = []
    for position, message in enumerate(messages):
        said = []
        if message["role"] == "tool":
            said = _faults_of_a_result(message, waiting)
        elif waiting:
            said, waiting = [f"no results for {waiting}"], []
        if message["role"] == "assistant":
            waiting = [made["id"] for made in message.get("tool_calls", ())]
        faults += [f"messages[{position}]: {fault}" for fault in [*said, *_faults_of_a_message(message)]]
    return [*faults, f"no results for {waiting}"] if waiting and not unfinished else faults


def _faults_of_a_result(message: Mapping[str, Any], waiting: list[str]) -> list[str]:
    if not waiting:
        return ["a tool message must be a response to a preceding tool call"]
    expected = waiting.pop(0)
    return [] if message.get("tool_call_id") == expected else [f"the result of {expected!r} is not here"]


def _faults_of_a_message(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls", ())
    rules = {
        f"unknown role {message['role']!r}": message["role"] in PROVIDER_ROLES,
        "content is text or blocks": isinstance(message.get("content"), (str, list)),
        "tool call ids must be unique": len({made["id"] for made in calls}) == len(calls),
        "the input of a tool call is an object": all(isinstance(made["arguments"], Mapping) for made in calls),
    }
    return [fault for fault, holds in rules.items() if not holds]


def notation(events: Sequence[Any]) -> list[str]:
    """Return the stream of a session in the notation of session_loop/SEMANTICS.md, 9. Notation."""
    said: list[str] = []
    open_message: str | None = None
    for event in events:
        if event.type == "message_start":
            assert open_message is None, "a message begins inside another"
            open_message = event.message.role
        elif event.type == "message_update":
            assert open_message == "assistant", "an update outside a message"
        elif event.type == "message_end":
            assert open_message == event.message.role, "a message ends that has not begun"
            open_message = None
            said.append(f"M({_message(event.message)})")
        else:
            assert open_message is None or event.type.startswith("tool_execution"), f"{event.type} inside a message"
            said.append(_event(event))
    assert open_message is None, "a message that has begun never ends"
    return said


def _message(message: Any) -> str:
    if message.role == "user":
        return f"user:{message.content}"
    if message.role == "tool":
        return f"result:{message.tool_call_id}{'!' if message.is_error else ''}"
    return f"A:{message.stop_reason}" if message.stop_reason in ("error", "aborted") else "A"


def _event(event: Any) -> str:
    error = "!" if event.is_error else ""
    return {
        "agent_start": lambda: "AS",
        "agent_end": lambda: f"AE({len(event.messages)})",
        "turn_start": lambda: "TS",
        "turn_end": lambda: f"TE[{','.join(m.tool_call_id for m in event.tool_results)}]",
        "tool_execution_start": lambda: f"XS({event.tool_call_id})",
        "tool_execution_update": lambda: f"XU({event.tool_call_id})",
        "tool_execution_end": lambda: f"XE({event.tool_call_id}{error})",
    }[event.type]()


async def until(holds: Callable[[], bool]) -> None:
    """Let other tasks run until the condition is true. The timeout of the test ends an endless wait."""
    while not holds():  # noqa: ASYNC110 - there is no event for every condition
        await asyncio.sleep(0)


async def collect(stream: Any) -> list[Any]:
    """Return all items of a stream."""
    return [event async for event in stream]


async def output_of(run: Any) -> Any:
    """Await a run and return its output; a coroutine."""
    return await run
