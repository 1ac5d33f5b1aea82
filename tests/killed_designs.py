"""The process that is killed at an event: a run of one of the designs. Its calls write their ids to a file.

Run as a warm server: it imports agentnb once and forks a child for each line on its standard input, because starting
Python for every event of every design would take longer than everything else.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema  # noqa: F401 - takes a fifth of a second, which the children are to find done

from agentnb import Agent, ConversationEngine, ExecutionLoop, LoopAgent, SessionLoop, Store, tool
from agentnb.loops import want
from agentnb.loops.base import Loop
from agentnb.testing import call
from tests.designs import Answers, Plans

TURNS = 2
PER_TURN = 3


def _effects(path: Path) -> Callable[..., Any]:
    """Return a tool that writes its argument, and the name of the loop that called it, to a file."""

    def of(loop: str, *, detached: bool = False) -> Any:
        @tool(detached=detached)
        async def effect(id: str) -> str:
            for _ in range(20 if detached else 1):
                await asyncio.sleep(0)
            with path.open("a") as file:
                file.write(f"{loop}:{id}\n")
            await asyncio.sleep(0)
            return f"did {id}"

        return effect

    return of


def _turns() -> list[list[Mapping[str, Any]]]:
    """Return turns of concurrent calls."""
    ids = [[f"c{turn}_{n}" for n in range(PER_TURN)] for turn in range(TURNS)]
    return [[call("effect", {"id": id}, id=id) for id in turn] for turn in ids]


class Solves:
    """A model that answers with Solutions: three calls, the last of which depends on the others; then the output."""

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        calls: list[Mapping[str, Any]] = [
            {"_tool": "effect", "id": "†state.a && †state.b && †input.last", "_outputPath": "†state.c"},
            {"_tool": "effect", "id": "c0_0", "_outputPath": "†state.a"},
            {"_tool": "effect", "id": "c0_1", "_outputPath": "†state.b"},
        ]
        solved = any("did c0_2" in str(message["content"]) for message in messages)
        text = json.dumps({"calls": [] if solved else calls, "output": "solved" if solved else None})
        for start in range(0, len(text), 30):
            await asyncio.sleep(0)
            yield {"type": "text_delta", "content": text[start : start + 30]}


def _top_to_bottom(given: Any) -> Generator[Any, Any, Any]:
    reply = yield want.ask("go")
    while reply.tool_calls:
        reply = yield want.ask()
    return (yield [want.call("effect", id=f"own_{n}") for n in range(PER_TURN)])


def make_loop(design: str, path: Path) -> Loop:
    """Return the loop of the killed process, and of the process that restores its run."""
    effect = _effects(path)

    def session(name: str) -> SessionLoop:
        return SessionLoop(Answers(*_turns()), [effect(name)], name=name)

    def agent(name: str) -> Agent:
        return Agent(Answers(*_turns()), [effect(name)], tool_execution="parallel", name=name)

    def execution(name: str) -> ExecutionLoop:
        context = [{"type": "data", "kind": "input", "data": {"last": "c0_2"}}]
        return ExecutionLoop(Solves(), [effect(name)], context=context, name=name)

    def detached() -> ExecutionLoop:
        """Return a loop with detached calls, the last of which is delegated."""
        steps = [
            [{"_tool": "effect", "id": f"c0_{n}", "_outputPath": f"†state.{n}"} for n in range(2)],
            [{"_tool": "effect", "id": "c1_0"}, {"_tool": "hand_on", "id": "c1_1"}],
        ]
        helper = ExecutionLoop(
            Plans([{"_tool": "effect", "id": "†input.id"}]), [effect("helper")], plan="eager", name="helper"
        )
        hand_on = {"_tool": "hand_on", "properties": {"id": {"type": "string"}}, "_delegate": "helper"}
        tools = [effect("detached", detached=True), hand_on]
        return ExecutionLoop(Plans(*steps), tools, plan="lazy", delegates={"helper": helper}, name="detached")

    both = [call("one", {"input": "go"}, id="c0_0"), call("two", {"input": "go"}, id="c0_1")]
    made: dict[str, Callable[[], Loop]] = {
        "session": lambda: session("session"),
        "agent": lambda: agent("agent"),
        "engine": lambda: ConversationEngine(execute=session("worker")),
        "loop_agent": lambda: LoopAgent("outer", [session("first"), LoopAgent("inner", [agent("second")], 1)], 1),
        "execution": lambda: execution("execution"),
        "detached": detached,
        "session_of_agents": lambda: SessionLoop(Answers(both), [agent("one"), agent("two")]),
        "generator": lambda: Loop.from_generator(
            _top_to_bottom, Answers(*_turns()), [effect("generator")], name="generator"
        ),
    }
    return made[design]()


DESIGNS = ("session", "agent", "engine", "execution", "detached", "loop_agent", "session_of_agents", "generator")


async def drive(design: str, database: str, effects: str, fatal: str) -> None:
    """Run until the event `fatal` has happened, and kill this process at it."""
    run = make_loop(design, Path(effects)).start("go", name="run", store=Store(database))
    run.watch(lambda event: event.seq == int(fatal) and os.kill(os.getpid(), signal.SIGKILL))
    await run


def serve() -> None:
    """Fork for every line `design database effects event`; print how the child ended."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(drive(*line.split()))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "over", flush=True)


if __name__ == "__main__":
    serve()
