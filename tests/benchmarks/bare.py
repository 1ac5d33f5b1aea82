"""The bare loop: what an agent loop costs when it does nothing but be one.

Pydantic events, five to an iteration; messages are the plain dicts a model takes. A streaming model and an async tool;
what happens is appended to a list and yielded. No journal, no gate, no approvals, no cancellation: the floor that
agentnb is measured against, in the same process. Typed messages would make it half as dear again, and agentnb look so
much better; what is asked is what agentnb adds, and its typed messages are part of that.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter
from typing_extensions import TypedDict


class Event(BaseModel):
    model_config = ConfigDict(frozen=True)

    seq: int
    run_id: str
    type: str


class TurnStart(Event):
    type: Literal["turn_start"] = "turn_start"
    turn: int


class TextDelta(Event):
    type: Literal["text_delta"] = "text_delta"
    content: str


class ModelAnswered(Event):
    type: Literal["model_answered"] = "model_answered"
    content: str
    tool_calls: list[dict[str, Any]]


class CallStarted(Event):
    type: Literal["call_started"] = "call_started"
    call_id: str
    name: str
    arguments: dict[str, Any]


class CallEnded(Event):
    type: Literal["call_ended"] = "call_ended"
    call_id: str
    result: str


class TurnEnded(Event):
    type: Literal["turn_ended"] = "turn_ended"
    turn: int


class Arguments(TypedDict):
    value: int


_arguments = TypeAdapter(Arguments)


async def bare_loop(llm: Any, tools: dict[str, Any], prompt: str) -> AsyncIterator[Event]:
    """Ask, call, feed back, until the model makes no calls."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    events: list[Event] = []
    turn = 0

    def emit(event: Event) -> Event:
        events.append(event)
        return event

    while True:
        turn += 1
        yield emit(TurnStart(seq=len(events), run_id="run", turn=turn))
        text: list[str] = []
        calls: list[dict[str, Any]] = []
        async for chunk in llm.stream(messages, tools=None):
            if chunk["type"] == "text_delta":
                text.append(chunk["content"])
                yield TextDelta(seq=-1, run_id="run", content=chunk["content"])
            elif chunk["type"] == "tool_call":
                calls.append({key: chunk[key] for key in ("id", "name", "arguments")})
        answer = ModelAnswered(seq=len(events), run_id="run", content="".join(text), tool_calls=calls)
        messages.append({"role": "assistant", "content": answer.content, "tool_calls": calls})
        yield emit(answer)
        for call in calls:
            yield emit(
                CallStarted(
                    seq=len(events), run_id="run", call_id=call["id"], name=call["name"], arguments=call["arguments"]
                )
            )
            result = await tools[call["name"]](**_arguments.validate_python(call["arguments"]))
            text_result = result if isinstance(result, str) else json.dumps(result)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text_result})
            yield emit(CallEnded(seq=len(events), run_id="run", call_id=call["id"], result=text_result))
        yield emit(TurnEnded(seq=len(events), run_id="run", turn=turn))
        if not calls:
            return
