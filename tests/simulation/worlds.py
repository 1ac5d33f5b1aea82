"""Random worlds: a loop of one of the designs, nested loops down to the third level, their models and their tools.

A world is first drawn as a `Plan` of plain data, and then built as often as needed: a restored or replayed run gets a
new loop. The behaviour of tools and models follows from the plan and from their arguments, and `Notes` records their
calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentnb import Agent, ConversationEngine, ExecutionLoop, LoopAgent, SessionLoop, ToolError, tool
from agentnb.core.tools import current_call
from agentnb.loops import want
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent import BaseAgent, Event, EventActions
from tests.simulation.choices import Choices
from tests.worlds import provider_faults

DEPTH = 3
KINDS = ("session", "agent", "execution", "native", "engine", "loop_agent", "generator")

Chunk = tuple[Any, ...]
"""A part of a model's answer: ("say",), ("wait", seconds), ("call", id, name, arguments) or ("fail",)."""


@dataclass(frozen=True)
class Plan:
    """A loop: its design, its name, its tools by name, the answers of its model, its nested loops, and options."""

    kind: str
    name: str
    tools: tuple[str, ...] = ()
    turns: tuple[tuple[Chunk, ...], ...] = ()
    inside: tuple[Plan, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of parts of the world."""
        return 1 + sum(len(turn) for turn in self.turns) + sum(loop.size for loop in self.inside)

    def lines(self, indent: str = "") -> Iterator[str]:
        """Describe the plan in text."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        yield f"{indent}{self.name}: {self.kind}({options}) with {', '.join(self.tools) or 'no tools'}"
        for number, turn in enumerate(self.turns):
            yield f"{indent}  turn {number}: {' '.join(map(_words, turn))}"
        for loop in self.inside:
            yield from loop.lines(indent + "    ")


def _words(chunk: Chunk) -> str:
    return f"[{' '.join(str(part) for part in chunk)}]"


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw_plan(choices: Choices, name: str = "L", depth: int = 1) -> Plan:
    """Draw a loop and its nested loops."""
    kind = choices.pick(*KINDS)
    inside = _draw_inside(choices.part("inside"), kind, name, depth)
    options = _draw_options(choices.part("options"), kind)
    tools = tuple(choices.part("tools").some(TOOLS))
    turns: tuple[tuple[Chunk, ...], ...] = ()
    model = choices.part("model")
    if kind in ("session", "agent", "native", "generator"):
        loops = tuple(loop.name for loop in inside if kind != "generator")
        turns = tuple(_draw_turn(turn, number, (*tools, *loops * 3)) for number, turn in enumerate(model.many(4, 80)))
    elif kind == "execution":
        if choices.chance(30):
            tools = (*tools, "later")
        turns = (_draw_solution(model, tools, [_name_inside(loop.name, options) for loop in inside]),)
    elif kind in ("engine", "loop_agent", "says"):
        tools = ()
    return Plan(kind, name, tools, turns, inside, options)


def _name_inside(name: str, options: Mapping[str, Any]) -> str:
    """Return the tool with which an ExecutionLoop's model calls a nested loop: the loop, or a delegated tool."""
    return f"to_{name}" if options["delegates"] else name


def _draw_inside(choices: Choices, kind: str, name: str, depth: int) -> tuple[Plan, ...]:
    most = {"loop_agent": 3}.get(kind, 2) if depth < DEPTH else 0
    loops = [draw_plan(one, f"{name}{number}", depth + 1) for number, one in enumerate(choices.many(most, 65))]
    if kind == "loop_agent":
        for number, one in enumerate(choices.part("says").many(2, 60)):
            said = tuple(_draw_said(event) for event in one.many(3))
            loops.insert(one.below(len(loops) + 1), Plan("says", f"{name}s{number}", turns=(said,)))
        if not loops:
            loops.append(Plan("says", f"{name}s", turns=((("say",),),)))
    return tuple(loops)


def _draw_said(choices: Choices) -> Chunk:
    says, waits, pauses = ("say",), ("wait", choices.pick(0.0, 0.7)), ("pause", choices.pick("lr", "lr", "other"))
    return choices.pick(says, waits, waits, says, ("escalate",), pauses)


def _draw_turn(choices: Choices, number: int, tools: Sequence[str]) -> tuple[Chunk, ...]:
    """Draw a turn of a model that calls tools; a turn without calls would be the last."""
    turn: list[Chunk] = []
    if choices.chance(80):
        turn.append(("say",))
    for place, one in enumerate(choices.many(4, 85)):
        if one.chance(30):
            turn.append(("wait", one.pick(0.0, 0.1, 0.6)))
        name = one.pick(*tools)
        made: Any = one.below(21)
        if name not in MADE:
            arguments: dict[str, Any] = {"input": f"go {made}"}
        else:
            arguments = {"n": one.pick(*[made] * 18, str(made), "not a number")}
        if one.chance(4):
            name = "missing"
        turn.append(("call", one.pick(f"c{place}", f"c{place}", f"c{number}_{place}", "same", ""), name, arguments))
    if choices.chance(12):
        turn.insert(choices.below(len(turn) + 1), ("fail",))
    return tuple(turn)


def _draw_solution(choices: Choices, tools: Sequence[str], loops: Sequence[str]) -> tuple[Chunk, ...]:
    """Draw the first answer of an ExecutionLoop's model: calls that write data, some of which need data of others."""
    calls: list[Chunk] = []
    for place, one in enumerate(choices.many(4, 85)):
        n: Any = f"†state.v{one.below(4)}" if one.chance(35) else one.below(21)
        if n == f"†state.v{place}":
            n = place
        given: dict[str, Any] = {"n": n}
        name = one.pick(*tools, *loops * 2)
        if name not in MADE:
            given = {"input": "go"}
        calls.append(("call", "", name, {**given, "_outputPath": f"†state.v{place}"}))
    if choices.chance(15):
        calls.append(("fail",))
    return tuple(calls)


def _draw_options(choices: Choices, kind: str) -> dict[str, Any]:
    pick = choices.pick
    if kind == "session":
        return {
            "tool_execution": pick("parallel", "sequential"),
            "steering_mode": pick("after_batch", "skip_pending", "discard"),
            "drain": pick("one-at-a-time", "all"),
            "max_turns": pick(None, None, 6),
            "before": [pick(None, None, "edit", "wait", "block", "fail") for _ in range(5)]
            if choices.chance(40)
            else [],
            "after": [pick(None, None, None, "wait", "change", "fail") for _ in range(5)] if choices.chance(30) else [],
            "transforms": choices.chance(20),
        }
    if kind == "agent":
        retrieves, most = choices.chance(30), pick(10, 10, 2)
        return {"tool_execution": pick("sequential", "parallel"), "max_iterations": most, "retrieves": retrieves}
    if kind in ("execution", "native"):
        confirms = [pick(True, True, True, False, "wait", "edit") for _ in range(5)] if choices.chance(25) else []
        concurrency = pick(None, None, 1, 2)
        return {
            "confirms": confirms,
            "max_concurrency": concurrency,
            "piece": pick(1000, 30, 7),
            "delegates": kind == "execution" and choices.chance(40),
        }
    if kind == "engine":
        return {
            "tasks": 1 + choices.below(3),
            "planner": pick("code", "model", "loop"),
            "on_task_error": pick("continue", "fail"),
            "slow": choices.chance(50),
        }
    if kind == "loop_agent":
        return {"max_iterations": pick(1, 2)}
    if kind == "generator":
        steps = [
            one.pick("ask", "call", "calls", "loops", "loops", "phase", "function", "say", "all", "part")
            for one in choices.many(5, 85)
        ]
        return {"steps": steps}
    return {}


# -- notes of tools and models -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """The start of a tool's function: for which call, and with which arguments."""

    run_id: str
    path: str
    call_id: str
    name: str
    arguments: Mapping[str, Any]
    time: float


@dataclass
class Asked:
    """A model request: its loop, the answer so far, and how it ended: whole, failed or broken off."""

    loop: str
    is_over: Callable[[], bool]
    text: str = ""
    end: str = "broken off"
    is_counted: bool = False
    """Whether the usage has been consumed: then it must be counted, and before that it may be counted."""

    def says(self, text: str) -> Mapping[str, Any]:
        """Return a part of the answer. It is noted first, because the consumer may interrupt the request."""
        if not self.is_over():
            self.text += text
        return {"type": "text_delta", "content": text}

    def finish(self) -> Iterator[Mapping[str, Any]]:
        """Yield the end of the answer, with its usage."""
        self.end = "whole"
        yield {"type": "usage", **USAGE}
        self.is_counted = True


USAGE = {"input_tokens": 3, "output_tokens": 1}
"""The usage of each request."""


class Notes:
    """The notes of the tools and models of a world. `label` is in every answer of a model."""

    def __init__(self, label: str = "first") -> None:
        self.label = label
        self.ran: list[Ran] = []
        self.running = 0
        self.asked: list[Asked] = []
        self.failed: set[tuple[str, int]] = set()
        self.edits: list[tuple[str, int]] = []
        """The edits of hooks: the id of the call, and its new `n`."""
        self.problems: list[str] = []
        self.is_over: Callable[[], bool] = lambda: False
        """Whether the run has ended; later text of a model belongs to no answer."""
        self.before_effect: Callable[[Ran], None] = lambda ran: None

    @contextmanager
    def asks(self, loop: str, messages: Sequence[Mapping[str, Any]]) -> Iterator[Asked]:
        """Note a request, and its faults that a provider would refuse."""
        if faults := provider_faults(messages):
            self.problems.append(f"a model is sent what no provider takes ({loop}): {faults[:3]}")
        asked = Asked(loop, lambda: self.is_over())
        self.asked.append(asked)
        self.running += 1
        try:
            yield asked
        finally:
            self.running -= 1

    def fail_once(self, asked: Asked, number: int) -> None:
        """Fail the request, unless the answer of this number has failed before."""
        if (asked.loop, number) not in self.failed:
            self.failed.add((asked.loop, number))
            asked.end = "failed"
            raise ConnectionError("The line is cut.")


NOTES: dict[str, Notes] = {}
"""The notes of each run by its id. Tools are shared by all runs, because constructing them takes longer than a run."""


@contextmanager
def _runs(name: str, **arguments: Any) -> Iterator[None]:
    """Note the start of a tool's function, and count it while it runs."""
    call = current_call.get()
    assert call is not None
    run_id, path, call_id, _ = call
    notes = NOTES[run_id]
    ran = Ran(run_id, path, call_id, name, arguments, asyncio.get_running_loop().time())
    notes.ran.append(ran)
    notes.before_effect(ran)
    notes.running += 1
    try:
        yield
    finally:
        notes.running -= 1


# -- building ----------------------------------------------------------------------------------------------------------


def build(plan: Plan, notes: Notes) -> Loop:
    """Build the loop of a plan."""
    inside: list[Any] = [build(loop, notes) for loop in plan.inside]
    tools: list[Any] = [MADE[name] for name in plan.tools]
    options = dict(plan.options)
    match plan.kind:
        case "session":
            before, after, transforms = (options.pop(name) for name in ("before", "after", "transforms"))
            hooks: dict[str, Any] = {"transform_context": _transformed} if transforms else {}
            if before:
                hooks["before_tool_call"] = _hook(notes, before, {"block": True, "reason": "The hook says no."})
            if after:
                hooks["after_tool_call"] = _hook(notes, after, {"content": CHANGED})
            return SessionLoop(_Speaks(plan, notes), [*tools, *inside], name=plan.name, **options, **hooks)
        case "agent":
            retriever = _retrieve if options.pop("retrieves") else None
            return Agent(_Speaks(plan, notes), [*tools, *inside], name=plan.name, retriever=retriever, **options)
        case "execution" | "native":
            confirm = _confirm(confirms) if (confirms := options.pop("confirms")) else None
            piece = options.pop("piece")
            if options.pop("delegates"):
                options["delegates"] = {loop.name: loop for loop in inside}
                tools += [_delegated(f"to_{loop.name}", loop.name) for loop in inside]
            else:
                tools += inside
            native = plan.kind == "native"
            model = _Speaks(plan, notes) if native else _Solves(plan, notes, piece)
            return ExecutionLoop(
                model, tools, name=plan.name, native=native, confirm=confirm, max_requests=8, **options
            )
        case "engine":
            planner: Any = _Plans(plan, notes)
            if options["planner"] == "code":
                planner = planner.decompose
            elif options["planner"] == "loop":
                planner = Agent(planner, name="planner")
            execute, *coordinator = inside or [_executes(options["slow"])]
            return ConversationEngine(
                *(coordinator or [None]), planner, execute, on_task_error=options["on_task_error"], name=plan.name
            )
        case "loop_agent":
            return LoopAgent(plan.name, inside, options["max_iterations"])
        case "says":
            return _Says(plan.name, said=plan.turns[0])
        case _:
            return _generator(plan, notes, tools, inside)


async def _work(n: int) -> None:
    """Wait for a time that depends on `n`; for most values, no time."""
    if (kind := n % 7) in (1, 2):
        for _ in range(kind):
            await asyncio.sleep(0)
    elif kind > 4:
        await asyncio.sleep((kind - 4) * 0.37)


@tool
async def good(n: int) -> int:
    with _runs("good", n=n):
        await _work(n)
        return n


@tool
async def bad(n: int) -> int:
    with _runs("bad", n=n):
        await _work(n)
        raise RuntimeError(f"bad {n}")


@tool(approve=True)
async def asking(n: int) -> int:
    with _runs("asking", n=n):
        await _work(n)
        return n


@tool(idempotent=True)
async def idem(n: int) -> int:
    with _runs("idem", n=n):
        await _work(n)
        return n


@tool(timeout=0.5)
async def late(n: int) -> int:
    with _runs("late", n=n):
        await asyncio.sleep(10)
        return n


@tool(sequential=True)
async def alone(n: int) -> int:
    with _runs("alone", n=n):
        await _work(n)
        return n


@tool
async def slow(n: int) -> int:
    """Cleans up when it is cancelled."""
    with _runs("slow", n=n):
        try:
            await asyncio.sleep(3)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            raise
        return n


@tool
async def deaf(n: int) -> int:
    """Runs on for 4 s when it is cancelled."""
    with _runs("deaf", n=n):
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(4)
        return n


@tool(approve=True, idempotent=True)
async def telling(n: int, progress: Any) -> int:
    with _runs("telling", n=n):
        for done in range(3):
            progress({"done": done})
            await asyncio.sleep(0.1)
        return n


@tool
def plain(n: int) -> int:
    with _runs("plain", n=n):
        return n


@tool(approve=True)
def plain_asking(n: int) -> int:
    with _runs("plain_asking", n=n):
        return n


@tool
def yielding(n: int) -> Iterator[int]:
    with _runs("yielding", n=n):
        yield from range(min(n, 3))


@tool(detached=True)
async def later(n: int) -> int:
    with _runs("later", n=n):
        await asyncio.sleep(0.9)
        return n


MADE = {
    one.name: one
    for one in (good, asking, bad, idem, late, alone, slow, telling, plain, plain_asking, yielding, deaf, later)
}
TOOLS = tuple(name for name in MADE if name != "later")
"""All tools except the detached one, which only an ExecutionLoop accepts."""
CHANGED = "The hook has changed it."
ASKING = frozenset({"asking", "telling", "plain_asking"})
IDEMPOTENT = frozenset({"idem", "telling"})


class _Speaks:
    """A model whose n-th answer in a conversation is the n-th turn of the plan; later answers are only text."""

    def __init__(self, plan: Plan, notes: Notes) -> None:
        self._plan = plan
        self._notes = notes

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        plan, notes = self._plan, self._notes
        number = sum(message["role"] == "assistant" for message in messages)
        turn: Sequence[Chunk] = plan.turns[number] if number < len(plan.turns) else [("say",)]
        with notes.asks(plan.name, messages) as asked:
            await asyncio.sleep(0)
            for chunk in turn:
                match chunk:
                    case ("say",):
                        yield asked.says(f"{notes.label} {plan.name} says {len(notes.asked)}. ")
                    case ("wait", seconds):
                        await asyncio.sleep(seconds)
                    case ("call", id, name, arguments):
                        yield {"type": "tool_call", "id": id, "name": name, "arguments": dict(arguments)}
                    case ("fail",):
                        notes.fail_once(asked, number)
            for chunk in asked.finish():
                yield chunk


class _Solves:
    """A model that answers with two Solutions in JSON: the first has the calls of the plan, the second an output."""

    def __init__(self, plan: Plan, notes: Notes, piece: int) -> None:
        self._plan = plan
        self._notes = notes
        self._piece = piece

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        plan, notes = self._plan, self._notes
        told = [str(message["content"]) for message in messages]
        is_first = not any('"kind":"state"' in text or '"kind":"error"' in text for text in told)
        turn = plan.turns[0] if is_first else ()
        calls = [{"_tool": chunk[2], **chunk[3]} for chunk in turn if chunk[0] == "call"]
        text = json.dumps({"calls": calls, "output": None if calls else "solved"}, ensure_ascii=False)
        with notes.asks(plan.name, messages) as asked:
            for start in range(0, len(text), self._piece):
                await asyncio.sleep(0.05 if start % 3 else 0)
                if ("fail",) in turn and start >= len(text) // 2:
                    notes.fail_once(asked, 0)
                yield asked.says(text[start : start + self._piece])
            for chunk in asked.finish():
                yield chunk


class _Says(BaseAgent):
    """A custom agent. It asks and pauses, at most twice, until it gets an answer."""

    said: tuple[Chunk, ...] = ()

    async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Event]:
        before = [event for event in ctx.session.events if event.author == self.name]
        answered = {answer.id for event in ctx.session.events for answer in event.get_function_responses()}
        for number, chunk in enumerate(self.said):
            content: Any = f"{self.name} {number}"
            match chunk:
                case ("wait", seconds):
                    await asyncio.sleep(seconds)
                case ("pause", id) if id not in answered and sum(event.pauses for event in before) < 2:
                    call = {"function_call": {"id": id, "name": "ask", "args": {}}}
                    content = {"role": "model", "parts": [{"text": content}, call]}
                    yield Event(author=self.name, content=content, long_running_tool_ids={id})
                    return
                case _:
                    yield Event(
                        author=self.name, content=content, actions=EventActions(escalate=chunk[0] == "escalate")
                    )


class _Plans:
    """The planner of an engine: as a function, as a model, or as the model of a loop."""

    def __init__(self, plan: Plan, notes: Notes) -> None:
        self._name = plan.name
        self._notes = notes
        tasks = enumerate("abc"[: plan.options["tasks"]])
        self._tasks = [{"id": id, "description": f"do {id}", "priority": n, "dependencies": []} for n, id in tasks]

    async def decompose(self, goal: str) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        return self._tasks

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        with self._notes.asks(self._name, messages) as asked:
            text = json.dumps({"tasks": self._tasks})
            for start in range(0, len(text), 90):
                await asyncio.sleep(0.02)
                yield asked.says(text[start : start + 90])
            for chunk in asked.finish():
                yield chunk


def _executes(slow: bool) -> Callable[[Any], Any]:
    async def execute(task: Any) -> str:
        await asyncio.sleep(0.4 if slow else 0)
        if task.id == "b" and slow:
            raise RuntimeError("The task fails.")
        return str(task.id)

    return execute


async def _retrieve(query: str) -> list[str]:
    await asyncio.sleep(0)
    return ["a document"]


def _hook(notes: Notes, table: Sequence[str | None], changes: Mapping[str, Any]) -> Callable[[Any], Any]:
    async def hook(context: Any) -> Any:
        n = context.args.get("n")
        what = table[n % len(table)] if isinstance(n, int) else None
        context.messages.clear()  # this changes only a copy
        match what:
            case "wait":
                await asyncio.sleep(0.3)
            case "fail":
                raise ValueError("The hook fails.")
            case "edit" if n != 3:
                context.args["n"] = 3
                notes.edits.append((context.tool_call.id, 3))
            case "block" | "change":
                return changes
        return None

    return hook


def _transformed(messages: list[Any]) -> list[Any]:
    """Return the same messages, and empty the given list, which is a copy."""
    kept = list(messages)
    messages.clear()
    return kept


def _delegated(name: str, delegate: str) -> dict[str, Any]:
    """Return a tool of an ExecutionLoop whose calls are delegated to a loop."""
    return {"_tool": name, "properties": {"input": {"type": "string"}}, "_delegate": delegate}


def _confirm(table: Sequence[Any]) -> Callable[[Any], Any]:
    async def confirm(call: Any) -> Any:
        given = dict(call)
        n = given.get("n")
        what = table[n % len(table)] if isinstance(n, int) else True
        if what == "wait":
            await asyncio.sleep(0.3)
            return True
        return {**given, "n": 0} if what == "edit" else what

    return confirm


def _generator(plan: Plan, notes: Notes, tools: Sequence[Any], inside: Sequence[Loop]) -> Loop:
    """Build a generator loop that performs the steps of the plan."""

    async def double(n: int) -> int:
        await asyncio.sleep(0.1 * (n % 2))
        return 2 * n

    def part(number: int) -> Generator[Any, Any, Any]:
        yield want.say(f"part {number}")
        return (yield want.call(double, number))

    def written(given: Any) -> Generator[Any, Any, Any]:
        results: list[Any] = []
        for number, step in enumerate(plan.options["steps"]):
            try:
                match step:
                    case "say":
                        yield want.say(f"step {number}")
                    case "ask":
                        reply = yield want.ask(f"step {number}")
                        while reply.tool_calls:
                            reply = yield want.ask()
                        results.append(reply.content)
                    case "call":
                        results.append((yield want.call(tools[number % len(tools)], n=number)))
                    case "calls":
                        results.append((yield [want.call(one, n=number + n) for n, one in enumerate(tools[:3])]))
                    case "function":
                        results.append((yield [want.call(double, number), want.call(len, "four")]))
                    case "loops" if inside:
                        results.append((yield [want.call(loop, "go") for loop in inside]))
                    case "all":
                        calls = [want.call(one, n=number) for one in tools[:2]]
                        results.append(
                            (yield [*calls, want.call(double, n=2), *(want.call(loop, "go") for loop in inside)])
                        )
                    case "part":
                        results.append((yield from part(number)))
                    case "phase":
                        yield want.phase("second")
            except ToolError as error:
                results.append(str(error))
        return results

    return Loop.from_generator(written, _Speaks(plan, notes), tools, name=plan.name, phases=["second"])
