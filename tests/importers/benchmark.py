"""Time and memory to open large files of other tools, and to add many of them to a store.

    python -m tests.importers.benchmark [--megabytes 10] [--words 100] [--files 1000] [--only FORMAT...]

Of each format a file is written and opened in a process of its own. Prints a table in Markdown: the time until the
panel is there (`open`: until `agentnb.replay` returns, `panel`: until its panel is made), in seconds of the clock and
of the processor, next to the time in which `json.loads` decodes the same file; and the most memory that Python used
while the file was opened, as a multiple of the file. Of an archive, its content counts. --words is the length of each
text of the conversation. A file of short texts is harder: it has more events.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import agentnb
from agentnb import Store
from tests.importers import files
from tests.importers.files import Json, claude_line, codex_line, document, inspect_archive, inspect_log, lines

ASKED: Json = {"role": "user", "content": "Find the mistake."}


class Conversation:
    """The turns of a conversation: in each one call, its result, and an answer in words."""

    def __init__(self, turns: int, words: int) -> None:
        self.turns = range(turns)
        self.text = "thinking " * words
        self.result = "result " * words

    def call(self, turn: int, name: str = "name", arguments: str = "arguments", *, as_text: bool = True) -> Json:
        """Return a call with the names of its fields in a format."""
        given = {"path": f"src/module_{turn}.py"}
        return {"id": f"c{turn}", name: "read", arguments: json.dumps(given) if as_text else given}

    def chat(self) -> list[Json]:
        """Return the messages in the format of OpenAI."""
        found = [ASKED]
        for turn in self.turns:
            call = {"id": f"c{turn}", "type": "function", "function": self.call(turn)}
            found.append({"role": "assistant", "content": self.text, "tool_calls": [call]})
            found.append({"role": "tool", "tool_call_id": f"c{turn}", "content": self.result})
        return found


def _time(turn: int) -> str:
    return f"2026-01-01T{turn // 3600 % 24:02}:{turn // 60 % 60:02}:{turn % 60:02}Z"


def _atif(told: Conversation) -> bytes:
    steps: list[Json] = [{"step_id": 1, "source": "user", "message": ASKED["content"]}]
    for turn in told.turns:
        call = told.call(turn, "function_name", as_text=False)
        call["tool_call_id"] = call.pop("id")
        observed = {"results": [{"source_call_id": call["tool_call_id"], "content": told.result}]}
        step = {"source": "agent", "message": told.text, "tool_calls": [call], "observation": observed}
        steps.append({"step_id": turn + 2, **step, "timestamp": _time(turn)})
    return document({**files.ATIF, "steps": steps})


def _claude(told: Conversation) -> bytes:
    rows = [claude_line(0, "user", ASKED["content"], uuid="u0", parentUuid=None, timestamp=_time(0))]
    for turn in told.turns:
        for place, kind in ((2 * turn + 1, "assistant"), (2 * turn + 2, "user")):
            if kind == "assistant":
                call = {"type": "tool_use", **told.call(turn, arguments="input", as_text=False)}
                content: list[Json] = [{"type": "text", "text": told.text}, call]
            else:
                content = [{"type": "tool_result", "tool_use_id": f"c{turn}", "content": told.result}]
            ids = {"uuid": f"u{place}", "parentUuid": f"u{place - 1}", "timestamp": _time(turn)}
            rows.append(claude_line(place, kind, content, **ids))
    return lines(rows)


def _codex(told: Conversation) -> bytes:
    rows = [codex_line(0, "session_meta", id="s"), codex_line(0, "response_item", type="message", **ASKED)]
    for turn in told.turns:
        said = [{"type": "output_text", "text": told.text}]
        call = told.call(turn)
        call["call_id"] = call.pop("id")
        rows.append(codex_line(1, "response_item", type="message", role="assistant", content=said))
        rows.append(codex_line(1, "response_item", type="function_call", **call))
        rows.append(
            codex_line(1, "response_item", type="function_call_output", call_id=call["call_id"], output=told.result)
        )
    return lines(rows)


def _pi(told: Conversation) -> bytes:
    rows = files.PI[:2]
    for turn in told.turns:
        call = {"type": "toolCall", **told.call(turn, as_text=False)}
        answer = {"role": "assistant", "content": [{"type": "text", "text": told.text}, call]}
        result = {"role": "toolResult", "toolCallId": f"c{turn}", "content": [{"type": "text", "text": told.result}]}
        for place, message in ((2 * turn + 2, answer), (2 * turn + 3, result)):
            entry = {"type": "message", "id": f"{place}", "parentId": f"{place - 1}", "timestamp": _time(turn)}
            rows = [*rows, {**entry, "message": message}] if place < 3 else rows
            if place >= 3:
                rows.append({**entry, "message": message})
    return lines(rows)


def _ag_ui(told: Conversation) -> bytes:
    rows = files.AG_UI[:1]
    for turn in told.turns:
        id = f"m{turn}"
        rows.append({"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"})
        third = len(told.text) // 3 + 1
        for begin in range(0, len(told.text), third):
            delta = told.text[begin : begin + third]
            rows.append({"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": delta})
        call = {"toolCallId": f"c{turn}", "toolCallName": "read", "parentMessageId": id}
        rows.append({"type": "TOOL_CALL_START", **call})
        rows.append({"type": "TOOL_CALL_ARGS", "toolCallId": f"c{turn}", "delta": told.call(turn)["arguments"]})
        rows.append(
            {"type": "TOOL_CALL_RESULT", "toolCallId": f"c{turn}", "messageId": f"r{turn}", "content": told.result}
        )
    return lines(rows)


def _inspect(told: Conversation) -> Json:
    events: list[Json] = []
    pool: list[Json] = [ASKED]
    for turn in told.turns:
        call = {"type": "function", **told.call(turn, "function", as_text=False)}
        answer: Json = {"role": "assistant", "content": told.text, "tool_calls": [call]}
        asked = files.inspect_model(1, [], answer)
        events.append({**asked, "input_refs": [[0, len(pool)]], "timestamp": _time(turn), "completed": _time(turn)})
        events.append({**files.INSPECT_EVENTS[3], **call, "event": "tool", "result": told.result})
        pool += [answer, {"role": "tool", "tool_call_id": call["id"], "content": told.result}]
    return files.inspect_sample(events, events_data={"messages": pool})


def _otel(told: Conversation) -> bytes:
    spans: list[Json] = []
    history: list[Json] = [files.OTEL_ASKED]
    for turn in told.turns:
        parts = [{"type": "text", "content": told.text}, {"type": "tool_call", **told.call(turn, as_text=False)}]
        answer = {"role": "assistant", "parts": parts}
        values = {"input__messages": json.dumps(history), "output__messages": json.dumps([answer])}
        spans.append(files.otel_span(2 * turn, "chat", id=f"a{turn}", **values))
        named = {"tool__name": "read", "tool__call__id": f"c{turn}", "tool__call__result": told.result}
        spans.append(files.otel_span(2 * turn + 1, "execute_tool", id=f"b{turn}", **named))
        history += [answer, files.parts("tool", type="tool_call_response", id=f"c{turn}", response=told.result)]
    return document(files.otlp(spans))


def _agents(told: Conversation) -> bytes:
    messages = told.chat()
    spans: list[Json] = files.OPENAI_AGENTS[:1]
    for turn in told.turns:
        asked, answer = messages[: 2 * turn + 1], messages[2 * turn + 1]
        spans = [*spans, {**files.agents_span(1, type="generation", input=asked, output=[answer], model="m")}]
        made = {"name": "read", "input": told.call(turn)["arguments"], "output": told.result}
        spans.append({**files.agents_span(1, type="function", **made), "id": f"s{turn}"})
    return document(spans)


def _langgraph(told: Conversation) -> bytes:
    messages: list[Json] = [{"type": "human", "id": "0", "content": "Find the mistake."}]
    states = []
    for turn in told.turns:
        calls = [told.call(turn, arguments="args", as_text=False)]
        messages.append({"type": "ai", "id": f"a{turn}", "content": told.text, "tool_calls": calls})
        messages.append({"type": "tool", "id": f"t{turn}", "content": told.result, "tool_call_id": f"c{turn}"})
        states.append(files.langgraph_state(turn % 60, list(messages)))
    return document(states[::-1])


def _swe_agent(told: Conversation) -> bytes:
    history = [{**message, "agent": "main"} for message in told.chat()]
    return document({**files.SWE_AGENT, "history": history})


def _anthropic(told: Conversation) -> bytes:
    messages: list[Json] = [ASKED]
    for turn in told.turns:
        call = {"type": "tool_use", **told.call(turn, arguments="input", as_text=False)}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": told.text}, call]})
        result = {"type": "tool_result", "tool_use_id": f"c{turn}", "content": told.result}
        messages.append({"role": "user", "content": [result]})
    return document({**files.ANTHROPIC, "messages": messages})


FORMATS: dict[str, tuple[str, Callable[[Conversation], bytes]]] = {
    "ATIF": ("json", _atif),
    "Claude Code": ("jsonl", _claude),
    "Inspect": ("eval", lambda told: inspect_archive(_inspect(told))),
    "Inspect as JSON": ("json", lambda told: document(inspect_log(_inspect(told)))),
    "Codex CLI": ("jsonl", _codex),
    "pi": ("jsonl", _pi),
    "LangGraph": ("json", _langgraph),
    "AG-UI": ("jsonl", _ag_ui),
    "OpenAI Agents": ("json", _agents),
    "OpenTelemetry": ("json", _otel),
    "SWE-agent": ("traj", _swe_agent),
    "messages of OpenAI": ("json", lambda told: document(told.chat())),
    "messages of Anthropic": ("json", _anthropic),
}
HEADS = ("format", "MB", "events", "open", "panel", "both, CPU", "json.loads, CPU", "memory")


def of_size(name: str, size: int, words: int) -> bytes:
    """Return the content of a file of a format, of at least the size and not much more."""
    made = {"Inspect": "Inspect as JSON"}.get(name, name)
    turns = 8
    while len(data := FORMATS[made][1](Conversation(turns, words))) < size:
        turns = max(turns + 1, min(2 * turns, int(turns * size / len(data) * 1.02)))
    return data if made == name else FORMATS[name][1](Conversation(turns, words))


def measure(path: Path) -> dict[str, Any]:
    """Return the times and the memory to open a file, in a process that has opened nothing yet but one small file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            texts = [archive.read(name) for name in archive.namelist()]
    else:
        texts = path.read_bytes().splitlines()
    size = sum(map(len, texts))
    began = time.process_time()
    decoded = [json.loads(text) for text in texts]
    seconds = time.process_time() - began
    del decoded, texts
    gc.collect()
    began, began_cpu = time.perf_counter(), time.process_time()
    recorded = agentnb.replay(path)
    opened = time.perf_counter() - began
    recorded.panel()
    shown, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    events = len(recorded.recording)
    del recorded
    gc.collect()
    tracemalloc.start()
    agentnb.replay(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "MB": f"{size / 1e6:.1f}",
        "events": f"{events:,}",
        "open": f"{opened:.2f} s",
        "panel": f"{shown - opened:.2f} s",
        "both, CPU": f"{cpu:.2f} s",
        "json.loads, CPU": f"{seconds:.2f} s",
        "memory": f"{peak / size:.1f}",
    }


def many(folder: Path, count: int) -> str:
    """Return how long files of 50 events take to be added to a store."""
    logs = folder / "logs"
    logs.mkdir()
    for number in range(count):
        told = Conversation(12, 10).chat()
        told[0] = {"role": "user", "content": f"Find mistake {number}."}
        (logs / f"{number:05}.json").write_bytes(document(told))
    events = len(agentnb.replay(logs / "00000.json").recording)
    store = Store(folder / "runs.db")
    began, began_cpu = time.perf_counter(), time.process_time()
    added = len(store.add(logs, tags=["benchmark"]))
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    store.close()
    return f"{added:,} files of {events} events are added to a store in {wall:.1f} s (CPU {cpu:.1f} s)."


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.importers.benchmark", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=list(FORMATS))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # the process of one file
    given = parser.parse_args(words)
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return 0
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            path = Path(folder) / f"large.{FORMATS[name][0]}"
            path.write_bytes(of_size(name, int(given.megabytes * 1e6), given.words))
            command = [sys.executable, "-m", "tests.importers.benchmark", "--measure", str(path)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"| {' | '.join([name, *(found[head] for head in HEADS[1:])])} |", flush=True)
            path.unlink()
        if given.files:
            print(many(Path(folder), given.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
