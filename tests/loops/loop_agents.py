"""Stub agents and their notation (loop_agent/SEMANTICS.md, 9. Notation): `K#n`, `CK(L,K,n)`, `END(L)`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from agentnb.core.events import MessageAdded
from agentnb.loops.loop_agent import BaseAgent, Event, EventActions, InvocationContext


def pausing(author: str, said: str, *, id: str = "lr") -> Event:
    """Return an event with a call that is answered later."""
    parts = [{"text": said}, {"function_call": {"id": id, "name": "ask", "args": {}}}]
    return Event(author=author, content={"role": "model", "parts": parts}, long_running_tool_ids={id})


class K(BaseAgent):
    """An agent that emits `K#n` in its n-th run. Keywords give the runs in which it does more (`"all"`: each run).

    says: the number of further events (`K#n+1`, `K#n+2`). log: a list of what its code has done.
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
    """An agent without events."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        return
        yield


def short(event: Event) -> str:
    """Return an event in the notation of loop_agent/SEMANTICS.md, 9. Notation."""
    state = event.actions.agent_state
    if state is not None:
        return f"CK({event.author},{state.get('current_sub_agent')},{state.get('times_looped')})"
    if event.actions.end_of_agent:
        return f"END({event.author})"
    said = event.error_code or event.text or "-"
    marks = {"esc": event.actions.escalate, "pause": event.pauses, "partial": event.partial}
    return said + "".join(f"[{mark}]" for mark, holds in marks.items() if holds)


async def said_in(agent: Any, ctx: InvocationContext | None = None, **fields: Any) -> str:
    """Return the events of an invocation up to its end, in short notation."""
    return " ".join(short(event) for event in await events_in(agent, ctx or InvocationContext(**fields)))


async def events_in(agent: Any, ctx: InvocationContext, *, upto: int | None = None) -> list[Event]:
    """Return the events of an invocation. It is closed after `upto` events, if given."""
    events: list[Event] = []
    async with aclosing(agent.run_async(ctx)) as stream:
        async for event in stream:
            events.append(event)
            if len(events) == upto:
                break
    return events


def resumed(ctx: InvocationContext) -> InvocationContext:
    """Return a new context with copies of the two state mappings of the old one, by way of JSON."""
    maps = json.loads(json.dumps({"agent_states": ctx.agent_states, "end_of_agents": ctx.end_of_agents}))
    return InvocationContext(is_resumable=True, **maps)


def said_by(run: Any) -> list[str]:
    """Return the texts of the agents of a started run, from its journal."""
    return [event.message.content for event in run.events if isinstance(event, MessageAdded) and event.path]
