"""The next request of a run: what its model will be sent, computed without asking the model.

A loop is a pure decision, so its next events can be made on a copy of the state, up to the request.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from agentnb.core.errors import UsageError, printable
from agentnb.core.events import ModelStart, RunEnd, RunResumed
from agentnb.core.evolve import evolve
from agentnb.core.loop import Design
from agentnb.core.messages import text_of
from agentnb.core.state import State
from agentnb.run.checkpoints import copied_state
from agentnb.run.model_requests import PlainHistory
from agentnb.run.past.recorded_loop import frames_at

MOST = 1000
"""The number of events that a loop may decide on before a request."""
_SHOWN = 100


@dataclass(frozen=True)
class NextRequest:
    """The next request of a loop. `print(request)` shows it in short.

    messages: what the model will be sent, the system prompt first. tools: their specifications. options: those of the
    run, and those that the loop sets for the request. model: the name of the model, if it has one. path: of the loop.
    waits_for: the calls whose results come first, each by the name of its tool; the request will have these results,
    too.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    model: str = ""
    path: str = ""
    waits_for: Sequence[str] = ()

    def __str__(self) -> str:
        names = ", ".join(str(tool.get("name")) for tool in self.tools) or "none"
        waits = f"; first the results of {', '.join(self.waits_for)}" if self.waits_for else ""
        lines = [f"{len(self.messages)} messages to {self.model or 'the model'}; tools: {names}{waits}"]
        for message in self.messages:
            calls = ", ".join(f"{call['name']}({call['arguments']})" for call in message.get("tool_calls") or ())
            text = " ".join(f"{text_of(message.get('content') or '')} {calls}".split())
            lines.append(f"  {message.get('role')}: {text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'}")
        return printable("\n".join(lines), but="\n")


def next_request(loop: Design, state: State, path: str | None = None) -> NextRequest:
    """Return the next request of a loop of the run.

    loop: the outermost loop. state: of the run; it is not changed. path: of the loop that asks; None for the innermost
    that is running.

    Raises UsageError if the run has ended or will end without a request, or if no loop is running at the path.
    """
    if state.over:
        raise UsageError(f"The run has ended ({state.stop_reason}), so no request follows. fork() continues it.")
    root = copied_state(state)
    if root.failure is not None:  # the failed request is repeated
        evolve(root, RunResumed())
    frames = frames_at(loop, root)
    frame = frames[-1] if path is None else next((one for one in frames if one.path == path), None)
    if frame is None:
        raise UsageError(f"No loop is running at {path!r}. There are: {', '.join(repr(one.path) for one in frames)}.")
    design, state = frame.design, frame.state
    waits_for: list[str] = []
    options: Mapping[str, Any] = {}

    # Let the loop decide up to its request, unless calls have to end first.
    for _ in range(MOST):
        if state.model == "asked":
            break
        if waits_for := [call.name for call in state.open.values() if not call.detached]:
            break
        event = design.advance(state)
        if event is None:
            waits_for = [call.name for call in state.open.values()]
            break
        if isinstance(event, RunEnd):
            advice = " It has no message yet: run.steer(text) adds one." if event.reason == "empty" else ""
            raise UsageError(f"The loop ends now ({event.reason}), so no request follows.{advice}")
        if isinstance(event, ModelStart):
            options = event.set_by_loop
        evolve(state, replace(event, path="", phase=frame.opens(event)), nested=True)

    # Make the messages as the run does.
    requests = frame.requests
    history = PlainHistory(requests.system_prompt)
    if requests.prepare is not None:
        messages = history.prepared(_finished(requests.prepare(history.shown(state.messages))))
    elif (own := requests.messages(state)) is not None:
        messages = [*history.prefix, *own]
    else:
        messages = history.of(state.messages, requests.replacements(state))
    every = requests.options()
    tools = every.get("tools", ())
    others = {name: value for name, value in every.items() if name != "tools"}
    model = str(getattr(design.llm, "model", None) or "")
    return NextRequest(messages, tools, {**root.model_options, **others, **options}, model, frame.path, waits_for)


def _finished(value: Any) -> Any:
    """Return the result of a hook. An async hook is run as far as it does not wait. Raises UsageError if it waits."""
    if not inspect.isawaitable(value):
        return value
    awaiting = value.__await__()
    try:
        next(awaiting)
    except StopIteration as done:
        return done.value
    close = getattr(awaiting, "close", None)
    if close is not None:
        close()
    raise UsageError("The loop's hook that makes the messages waits for something, so the next request is not known.")
