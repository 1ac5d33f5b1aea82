"""The scripted model of the laboratory, the same for all loops. It is not a language model.

Its sentences are written in advance, but its numbers are read from the results of the tools. Each answer is computed
from the request: the offered tools, the requested schema, and the results so far. The results may be in messages of a
tool, in data of a context, or in a message of another agent. So the model makes native calls for one loop, a Solution
for another, a plan for the third, and a draft or a review for the fourth. It is as slow as a remote model (`FIRST`
seconds to the first token, `PACE` seconds for each further one), and counts its tokens, so that the loops can be
compared.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

Messages = Sequence[Mapping[str, Any]]
Found = dict[str, Any]
Calls = list[tuple[str, dict[str, Any]]]

FIRST, PACE = 0.4, 0.005
"""Seconds to the first token, and from one token to the next."""

NEEDS: dict[str, tuple[str, ...]] = {
    "find_break": (),
    "compare": ("find_break",),
    "shuffle_test": ("find_break",),
    "extremes": (),
}
"""The calculations, each with the calculations whose results it needs."""
KNOWN = (*NEEDS, "mean_between")

TASKS = {
    "find_break": "Find the first year of the new level in {file}.",
    "extremes": "Look up the extreme years in {file}.",
    "compare": "Compare the levels before and after that year in {file}.",
    "shuffle_test": "Test by shuffling whether such a step in {file} could be chance.",
    "write_report": "Write the report on {file}.",
}
"""The calculations and the report as tasks of a plan."""

DEMAND = "The draft does not say whether it could be chance. Test that before it is printed."


class Analyst:
    """The model, for each of the loops."""

    async def stream(
        self, messages: Messages, *, tools: Messages | None = None, schema: Mapping[str, Any] | None = None, **_: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the answer token by token, then its calls, then the number of tokens."""
        words, calls = answer(messages, {str(tool["name"]) for tool in tools or ()}, schema or {})
        spent = 0
        await asyncio.sleep(FIRST)
        for token in tokens(words):
            await asyncio.sleep(PACE)
            spent += 1
            yield {"type": "text_delta", "content": token}
        for name, arguments in calls:
            cost = len(tokens(name + json.dumps(arguments)))
            await asyncio.sleep(cost * PACE)
            spent += cost
            yield {"type": "tool_call", "id": "", "name": name, "arguments": arguments}
        read = json.dumps([list(messages), list(tools or ()), schema or {}], ensure_ascii=False, default=str)
        yield {"type": "usage", "input_tokens": len(tokens(read)), "output_tokens": spent}


def tokens(text: str) -> list[str]:
    """Split a text into pieces of about the size of tokens: words with the space before them, digits, signs."""
    return re.findall(r"\s?\w{1,6}|\s?[^\w\s]|\s", text)


def answer(messages: Messages, tools: set[str], schema: Mapping[str, Any]) -> tuple[str, Calls]:
    """Return the text and the calls of the answer to a request."""
    said = [message for message in messages if message["role"] != "system"]
    found, properties = found_in(said), schema.get("properties", {})
    if "tasks" in properties:
        return plan(said), []
    if "calls" in properties:
        return solution(said, found), []
    if (problem := problem_in(said)) is not None:
        return f"I cannot go on. A tool failed: {problem}", []
    if "exit_loop" in tools:
        return review(said, found)
    if (task := task_in(said)) is not None:
        return work(task, said, found)
    return converse(said, tools, found)


# -- the request -----------------------------------------------------------------------------------------------------


def found_in(messages: Messages) -> Found:
    """Return the results of the tools by name, from results of calls and from JSON in other messages."""
    names = {made["id"]: made["name"] for message in messages for made in message.get("tool_calls", ())}
    found: Found = {}
    for message in messages:
        if message["role"] != "tool":
            for value in objects_in(str(message["content"])):
                found |= {name: value[name] for name in KNOWN if name in value}
        elif names[message["tool_call_id"]] in KNOWN and not message.get("is_error"):
            found[names[message["tool_call_id"]]] = json.loads(message["content"])
        elif names[message["tool_call_id"]] == "write_report":
            found["write_report"] = message["content"]
    return found


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text, and the objects directly inside them (data of a context has an envelope)."""
    position = text.find("{")
    while position >= 0:
        try:
            value, position = json.JSONDecoder().raw_decode(text, position)
        except ValueError:
            position += 1
        else:
            yield value
            yield from (part for part in value.values() if isinstance(part, dict))
        position = text.find("{", position)


def problem_in(messages: Messages) -> str | None:
    """Return the error of the last calculation that failed, or None."""
    names = {made["id"]: made["name"] for message in messages for made in message.get("tool_calls", ())}
    failed = [m for m in messages if m.get("is_error") and names[m["tool_call_id"]] != "write_report"]
    return str(failed[-1]["content"]) if failed else None


def file_in(messages: Messages) -> str:
    """Return the name of the table in question."""
    return next(iter(re.findall(r"\w+\.csv", str([message["content"] for message in messages]))), "data.csv")


def task_in(messages: Messages) -> str | None:
    """Return the name of the task that the first message describes, or None if it is not a task of a plan."""
    file, first = file_in(messages), messages[0]["content"]
    return next((name for name, words in TASKS.items() if words.format(file=file) == first), None)


def asked_about(messages: Messages, found: Found) -> int | None:
    """Return a year after the break that a user message asks about, or None."""
    asked = [int(year) for m in messages if m["role"] == "user" for year in re.findall(r"\b1[89]\d\d\b", m["content"])]
    return next((year for year in asked if "find_break" in found and year > found["find_break"]["year"]), None)


# -- the answers -----------------------------------------------------------------------------------------------------


def converse(messages: Messages, tools: set[str], found: Found) -> tuple[str, Calls]:
    """Answer with native calls: all calculations that are possible now, then the report (or a draft)."""
    writes = "write_report" in tools
    wanted = [name for name in NEEDS if name not in found]
    if not writes and not any("chance" in message["content"] for message in messages[1:]):
        wanted = [name for name in wanted if name != "shuffle_test"]  # the first draft forgets this question
    if ready := [name for name in wanted if set(NEEDS[name]) <= set(found)]:
        return f"Next: {' and '.join(ready)}.", [(name, arguments_of(name, messages, found)) for name in ready]
    if not writes:
        return f"{finding(found)}\n{json.dumps(found)}", []
    year = asked_about(messages, found)
    if year is not None and "mean_between" in tools and "mean_between" not in found:
        given = {"file": file_in(messages), "since": found["find_break"]["year"], "until": year}
        return f"The years from the change up to {year} will tell.", [("mean_between", given)]
    if "write_report" not in found:
        return "That is enough for a report.", [("write_report", report(messages, found))]
    return f"{finding(found)}\n{found['write_report']}", []


def solution(messages: Messages, found: Found) -> str:
    """Return a Solution as JSON: first all calculations, each with the path of its result, then report and output."""
    errors = [value["data"] for m in messages for value in objects_in(m["content"]) if value.get("kind") == "error"]
    if errors:
        return json.dumps({"calls": [], "output": f"I cannot go on. A call failed: {errors[-1]['error']}"})
    if not set(NEEDS) <= set(found):
        later = {"find_break": {"year": "†state.find_break.year"}}
        calls = [{"_tool": name, **arguments_of(name, messages, later)} for name in NEEDS]
        calls = [{**call, "_outputPath": f"†state.{call['_tool']}"} for call in calls]
        return json.dumps({"calls": calls, "output": None}, ensure_ascii=False)
    calls = [{"_tool": "write_report", **report(messages, found)}]
    return json.dumps({"calls": calls, "output": finding(found)}, ensure_ascii=False)


def plan(messages: Messages) -> str:
    """Return a plan as JSON: the tasks, each with its dependencies."""
    file, needs = file_in(messages), {**NEEDS, "write_report": tuple(NEEDS)}
    tasks = []
    for number, (name, before) in enumerate(needs.items()):
        description = TASKS[name].format(file=file)
        tasks.append({"id": name, "description": description, "priority": number, "dependencies": before})
    return json.dumps({"tasks": tasks})


def work(task: str, messages: Messages, found: Found) -> tuple[str, Calls]:
    """Answer a task of a plan: first its call, then the result, for the tasks that depend on it."""
    if task == "write_report":
        if "write_report" not in found:
            return "", [("write_report", report(messages, found))]
        return f"{finding(found)}\n{found['write_report']}", []
    if task not in found:
        return "", [(task, arguments_of(task, messages, found))]
    return json.dumps({task: found[task]}), []


def review(messages: Messages, found: Found) -> tuple[str, Calls]:
    """Review a draft: send it back if it leaves a question open, otherwise print it."""
    if "shuffle_test" not in found:
        return DEMAND, []
    if "write_report" not in found:
        return "This can be printed.", [("write_report", report(messages, found)), ("exit_loop", {})]
    return f"{finding(found)}\n{found['write_report']}", []


def arguments_of(name: str, messages: Messages, found: Found) -> dict[str, Any]:
    """Return the arguments of a calculation."""
    year = {"year": found["find_break"]["year"]} if NEEDS[name] else {}
    return {"file": file_in(messages), **year}


def report(messages: Messages, found: Found) -> dict[str, Any]:
    """Return the arguments of the call that writes the report."""
    extremes = found["extremes"]
    low, high = extremes["lowest"], extremes["highest"]
    text = f"# The flow in {file_in(messages)}\n\n{finding(found)}\nLowest: {low}. Highest: {high}.\n"
    return {"name": "five_loops.md", "text": text}


def finding(found: Found) -> str:
    """Return the text of the finding, as far as it is known."""
    year, levels = found["find_break"]["year"], found["compare"]
    change = levels["after"] / levels["before"] - 1
    words = [f"The level changed in {year}: from {levels['before']:.0f} to {levels['after']:.0f}, {change:+.0%}."]
    if test := found.get("shuffle_test"):
        words.append(f"Of {test['rounds']:,} shuffled series {test['as_large'] or 'none'} had so large a step.")
    if later := found.get("mean_between"):
        mean, until = later["mean"], later["until"]
        is_new = abs(mean - levels["after"]) < abs(mean - levels["before"])
        verdict = f"so it was not what came in {until}" if is_new else f"so it may have been what came in {until}"
        words.append(f"From {year} to {until - 1} the mean was {mean:.0f}, {verdict}.")
    return " ".join(words)
