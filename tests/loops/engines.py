"""Common parts of the tests of ConversationEngine: a planner, scripted tasks, and a notation for events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from agentnb.loops.conversation_engine import ConversationEngine, EngineEvent

TWO = [{"id": "b", "description": "B", "priority": 2}, {"id": "a", "description": "A", "priority": 1}]
"""The plan of conversation_engine/SEMANTICS.md, 9. Scenarios of the tests."""

PLANNED = [
    *("SC(idle>receiving)", "SC(receiving>context_fetching)", "CONTEXT(0,0,0)", "SC(context_fetching>decomposing)"),
    *("DECOMPOSED(b,a)", "SC(decomposing>scheduling)", "SCHEDULED a", "SCHEDULED b", "SC(scheduling>executing)"),
]
WHOLE = [
    *PLANNED,
    *("STARTED a", "COMPLETED a=A(0.5)", "STARTED b", "COMPLETED b=B(1.0)", "SC(executing>completed)", "DONE(2,2)"),
]
"""CE-01."""


class World:
    """A coordinator, planner and executor. It records its calls and calls a function of the test during each."""

    def __init__(self, plan: Any = TWO, context: Any = None) -> None:
        self.plan = plan
        self.context = context
        self.asked: list[str] = []
        self.ran: list[str] = []
        self.during: dict[str, Callable[[], Any]] = {}

    async def get_context_async(self, user_input: str) -> Any:
        return await self._do("context", self.context or SimpleNamespace(rules=[], tools=[], knowledge=[]))

    async def decompose_goal(self, user_input: str) -> Any:
        return await self._do("plan", self.plan)

    async def execute(self, task: Any) -> str:
        self.ran.append(task.id)
        return await self._do(task.id, task.id.upper())

    async def _do(self, name: str, result: Any) -> Any:
        self.asked.append(name)
        if name in self.during:
            done = self.during[name]()
            if asyncio.iscoroutine(done):
                await done
        return result

    def engine(self, **options: Any) -> ConversationEngine:
        return ConversationEngine(**{"coordinator": self, "llm": self, "execute": self.execute, **options})


def boom() -> None:
    raise RuntimeError("boom")


def in_words(event: EngineEvent) -> str:
    """Return an event in short notation."""
    data = event.data
    json.dumps(data)
    words: Mapping[str, Callable[[], str]] = {
        "state_changed": lambda: f"SC({data['from']}>{data['to']})",
        "context_received": lambda: "CONTEXT({rules_count},{tools_count},{knowledge_count})".format(**data),
        "task_decomposed": lambda: f"DECOMPOSED({','.join(task['id'] for task in data['tasks'])})",
        "tasks_truncated": lambda: f"TRUNCATED({','.join(data['dropped'])})",
        "task_scheduled": lambda: f"SCHEDULED {data['task_id']}",
        "task_started": lambda: f"STARTED {data['task_id']}",
        "task_completed": lambda: "COMPLETED {task_id}={result}({progress})".format(**data),
        "task_failed": lambda: "FAILED {task_id}:{error}:{phase}".format(**data),
        "engine_paused": lambda: f"PAUSED({data['progress']})",
        "engine_resumed": lambda: f"RESUMED({data['progress']})",
        "engine_completed": lambda: f"DONE({','.join(str(count) for count in data.values())})",
        "engine_error": lambda: "ERROR({error},{phase})".format(**data),
    }
    return words[event.event_type]()


def notation(events: Iterable[EngineEvent]) -> list[str]:
    """Return the events in short notation."""
    return [in_words(event) for event in events]


async def take(stream: AsyncGenerator[EngineEvent, None], until: str | int) -> list[str]:
    """Return the next events in short notation: a number of them, or up to and including this one."""
    said: list[str] = []
    while len(said) < until if isinstance(until, int) else not said or said[-1] != until:
        said.append(in_words(await anext(stream)))
    return said


async def rest(stream: AsyncGenerator[EngineEvent, None]) -> list[str]:
    """Return all remaining events in short notation."""
    return notation([event async for event in stream])


async def is_waiting(pulled: asyncio.Task[Any]) -> bool:
    """Return whether the task still waits after all other tasks have had several turns of the event loop."""
    for _ in range(30):
        await asyncio.sleep(0)
    return not pulled.done()


def portable(snapshot: Mapping[str, Any]) -> Any:
    """Return a snapshot after a round trip through JSON."""
    return json.loads(json.dumps(snapshot))


def without_pauses(said: Sequence[str]) -> list[str]:
    """Return the events without those of pauses, and assert that each pause has its start and its end."""
    left, position = [], 0
    while position < len(said):
        if said[position].endswith(">paused)"):
            state, progress = said[position][3:].split(">")[0], said[position + 1].removeprefix("PAUSED")
            told = [f"SC({state}>paused)", f"PAUSED{progress}", f"SC(paused>{state})", f"RESUMED{progress}"]
            assert said[position : position + 4] == told
            position += 4
        else:
            left.append(said[position])
            position += 1
    return left


def is_chain(said: Sequence[str], state: str = "idle") -> bool:
    """Return whether every change of state starts at the state where the previous one ended."""
    for words in said:
        if words.startswith("SC("):
            source, target = words[3:-1].split(">")
            if source != state:
                return False
            state = target
    return True
