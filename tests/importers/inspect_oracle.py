"""Logs of Inspect, read by agentnb and by Inspect's own library: the counts of both, and where they differ.

    python -m tests.importers.inspect_oracle LOG...

Needs `pip install inspect_ai`, which is not a dependency of the tests. Without LOG, logs are written by Inspect: with
tools, decisions about calls, errors, a limit, sub-agents and a model that grades. Exits with 1 if a count differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentnb import Snapshot

Counts = dict[str, Any]
SUBMIT = "submit"
"""The tool by which an agent of Inspect ends. The messages of a sample do not have its result; its events do."""


def by_the_library(path: Path) -> Iterator[tuple[str, Counts]]:
    """Yield the id of each sample, and what it has according to Inspect's library."""
    from inspect_ai.log import read_eval_log

    log: Any = read_eval_log(str(path), resolve_attachments="full")
    for sample in log.samples or []:
        events = list(_flat(sample.events))
        models = [event for event in events if event.event == "model"]
        tools = [event for event in events if event.event == "tool"]
        usages = [event.output.usage for event in models if event.output.usage and not event.error]
        yield (
            f"{sample.id}/{sample.epoch}",
            {
                "requests": len(models),
                "calls": Counter(event.function for event in tools),
                "failed calls": sum(event.error is not None for event in tools),
                "decisions": Counter(event.decision for event in events if event.event == "approval"),
                "scores": sum(event.event == "score" for event in events),
                "tokens": sum(usage.input_tokens + usage.output_tokens for usage in usages),
                "results": sorted(
                    message.error.message if message.error else message.text
                    for message in sample.messages
                    if message.role == "tool"
                ),
                "asked": [message.text for message in sample.messages if message.role == "user"],
            },
        )


def _flat(events: Sequence[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        if event.event in ("tool", "subtask"):
            yield from _flat(event.events or [])


def by_agentnb(path: Path) -> Iterator[tuple[str, Counts]]:
    """Yield the id of each sample, and what its recording has."""
    names = {"edit": "modify"}
    for snapshot in Snapshot.load_all(path):
        events: Any = snapshot.events
        hidden = {event.call.id for event in events if event.type == "call_proposed"}  # of a scorer
        ends = [event for event in events if event.type == "call_end" and event.call_id not in hidden]
        ends = [event for event in ends if event.outcome != "aborted"]  # the log has no result
        told = [event for event in ends if not event.path and event.name != SUBMIT]
        yield (
            snapshot.start.config["imported"]["id"],
            {
                "requests": sum(event.type in ("model_end", "model_error") for event in events),
                "calls": Counter(event.name for event in ends),
                "failed calls": sum(event.error is not None or event.outcome == "rejected" for event in ends),
                "decisions": Counter(
                    names.get(event.decision, event.decision) for event in events if event.type == "approval_decision"
                ),
                "scores": sum(event.type == "state_update" and "score" in event.values for event in events),
                "tokens": sum(
                    int(event.usage.get("input_tokens", 0) + event.usage.get("output_tokens", 0))
                    for event in events
                    if event.type == "model_end"
                ),
                "results": sorted(str(event.result) for event in told),
                "asked": [_text(message.content) for message in snapshot.state.messages if message.role == "user"],
            },
        )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text")) for part in content if part.get("type") == "text")


def differences(path: Path) -> list[str]:
    """Return what differs between the two readings of a log, one line for each count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = list(by_the_library(path))
        ours = list(by_agentnb(path)) if theirs else []  # a log without samples is refused
    if [id for id, _ in theirs] != [id for id, _ in ours]:
        return [f"samples: {[id for id, _ in theirs]} and {[id for id, _ in ours]}"]
    return [
        f"{id}: {kind}: the library has {one[kind]}, agentnb {other[kind]}"
        for (id, one), (_, other) in zip(theirs, ours, strict=True)
        for kind in one
        if one[kind] != other[kind]
    ]


def write_logs(folder: Path) -> list[Path]:
    """Write logs by Inspect itself, with a model that answers from a list, and return their paths."""
    import inspect_ai
    import tiktoken
    from inspect_ai.agent import agent, as_tool, handoff, react
    from inspect_ai.approval import Approval, ApprovalPolicy, approver
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.scorer import includes, model_graded_qa
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    class Letters:
        """An encoding that needs no download."""

        def encode(self, text: str, **options: Any) -> list[str]:
            return list(text)

    tiktoken.get_encoding = tiktoken.encoding_for_model = lambda name: Letters()

    @tool
    def addition() -> Any:
        async def execute(x: int, y: int) -> int:
            """Add two numbers.

            Args:
                x: The first.
                y: The second.
            """
            if x > 90:
                raise inspect_ai.tool.ToolError("too big")
            return x + y

        return execute

    @approver
    def strict() -> Any:
        async def approve(message: str, call: Any, view: Any, history: Any) -> Approval:
            if call.arguments.get("x") == 7:
                return Approval(decision="reject", explanation="not seven")
            if call.arguments.get("x") == 8:
                other = call.__class__(**{**vars(call), "arguments": {"x": 80, "y": 0}})
                return Approval(decision="modify", modified=other, explanation="changed")
            return Approval(decision="approve")

        return approve

    @agent
    def helper() -> Any:
        return react(name="helper", description="Helps.", prompt="Help.", tools=[addition()])

    def say(text: str) -> Any:
        return ModelOutput.from_content("mockllm/model", text)

    def call(name: str, **arguments: Any) -> Any:
        return ModelOutput.for_tool_call("mockllm/model", name, arguments)

    add, done = call("addition", x=1, y=1), call("submit", answer="2")
    tools = [use_tools(addition()), generate()]
    judge = get_model("mockllm/model", custom_outputs=[say("GRADE: C")])
    reader, delegate = react(tools=[handoff(helper())]), react(tools=[as_tool(helper())])
    tasks: list[tuple[Any, Any, list[Any], dict[str, Any]]] = [
        (tools, includes(), [add, say("2")], {}),
        (tools, includes(), [call("addition", x=7, y=1), call("addition", x=8, y=1), add, say("2")],
         {"approval": [ApprovalPolicy(strict(), "*")]}),
        (tools, includes(), [call("addition", x=99, y=1), call("nothing", x=1), say("Sorry.")], {}),
        (tools, includes(), [add] * 10, {"message_limit": 5}),
        (react(tools=[addition()]), includes(), [add, done], {}),
        (reader, includes(), [call("transfer_to_helper"), add, done, say("So."), done], {}),
        (delegate, includes(), [call("helper", input="1+1"), add, done, done], {}),
        ([generate()], model_graded_qa(model=judge), [say("2")], {}),
    ]  # fmt: skip
    for number, (solver, scorer, outputs, options) in enumerate(tasks):
        task = inspect_ai.Task([Sample("What is 1 + 1?", target="2")], solver=solver, scorer=scorer, name=f"t{number}")
        model = get_model("mockllm/model", custom_outputs=outputs)
        for kind in ("eval", "json") if number < 2 else ("eval",):
            model = get_model("mockllm/model", custom_outputs=list(outputs))
            judge.api.outputs = iter([say("GRADE: C")])  # type: ignore[attr-defined]
            inspect_ai.eval(task, model=model, log_dir=str(folder), log_format=kind, display="none", **options)
    return sorted(folder.iterdir())


def main(words: Sequence[str] | None = None) -> int:
    """Print the differences for each log."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.importers.inspect_oracle", description=__doc__.splitlines()[0]
    )
    parser.add_argument("logs", nargs="*", type=Path)
    logs: list[Path] = parser.parse_args(words).logs
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("INSPECT_DISPLAY", "none")
        found = {path: differences(path) for path in logs or write_logs(Path(folder))}
    for path, lines in found.items():
        print(f"{path.name}: {'equal' if not lines else ''}")
        for line in lines:
            print(f"    {line}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
