"""Stub agents and their notation (loop_agent/SEMANTICS.md, 8. Notation): `K#n`, `CK(L,K,n)`, `END(L)`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from agentnb.core.events import MessageAdded
from agentnb.loops.loop_agent import BaseAgent, Event, EventActions, InvocationContext


def pausing(author: str, said: str, *, id: str = "lr") -> Event:
    """An event whose call is answered later."""
    parts = [{"text": said}, {"function_call": {"id": id, "name": "ask", "args": {}}}]
    return Event(author=author, content={"role": "model", "parts": parts}, long_running_tool_ids={id})


class K(BaseAgent):
    """Says `K#n` on its n-th run; what else it does on which run is told by keywords, `"all"` for each.

    says: how many further events (`K#n+1`, `K#n+2`) follow. log: where it writes down what its code has done.
    """

    escalate: Any = None
    pause: Any = None
    boom: Any = None
    scope: str | None = None
    says = 0
    partial = False
    error: Exception = RuntimeError("boom")
    log: list[str] | None = None

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        self.runs = getattr(self, "runs", 0) + 1
        said = f"{self.name}#{self.runs}"
        self._note(f"{said} begins")
        try:
            if self.boom in (self.runs, "all"):
                raise self.error
            if self.pause in (self.runs, "all"):
                yield pausing(self.name, said)
            else:
                escalates = self.escalate in (self.runs, "all")
                actions = EventActions(escalate=True, scope=self.scope) if escalates else EventActions()
                yield Event(author=self.name, content=said, actions=actions, partial=self.partial or None)
            self._note(f"{said} goes on")
            for further in range(1, self.says + 1):
                await asyncio.sleep(0)
                yield Event(author=self.name, content=f"{said}+{further}")
                self._note(f"{said}+{further} goes on")
        finally:
            self._note(f"{said} ends")

    def _note(self, what: str) -> None:
        if self.log is not None:
            self.log.append(what)


class Silent(BaseAgent):
    """Says nothing."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        return
        yield


def short(event: Event) -> str:
    """An event in the notation of loop_agent/SEMANTICS.md, 8. Notation."""
    state = event.actions.agent_state
    if state is not None:
        return f"CK({event.author},{state.get('current_sub_agent')},{state.get('times_looped')})"
    if event.actions.end_of_agent:
        return f"END({event.author})"
    said = event.error_code or event.text or "-"
    marks = {"esc": event.actions.escalate, "pause": event.pauses, "partial": event.partial}
    return said + "".join(f"[{mark}]" for mark, holds in marks.items() if holds)


async def said_in(agent: Any, ctx: InvocationContext | None = None, **fields: Any) -> str:
    """What an invocation says, to its end."""
    return " ".join(short(event) for event in await events_in(agent, ctx or InvocationContext(**fields)))


async def events_in(agent: Any, ctx: InvocationContext, *, upto: int | None = None) -> list[Event]:
    """The events of an invocation; with `upto` it is closed after so many."""
    events: list[Event] = []
    async with aclosing(agent.run_async(ctx)) as stream:
        async for event in stream:
            events.append(event)
            if len(events) == upto:
                break
    return events


def resumed(ctx: InvocationContext) -> InvocationContext:
    """A new context, made from the JSON of the old one's two maps."""
    maps = json.loads(json.dumps({"agent_states": ctx.agent_states, "end_of_agents": ctx.end_of_agents}))
    return InvocationContext(is_resumable=True, **maps)


def said_by(run: Any) -> list[str]:
    """What the agents of a started run have said, as it stands in its journal."""
    return [event.message.content for event in run.events if isinstance(event, MessageAdded) and event.path]
