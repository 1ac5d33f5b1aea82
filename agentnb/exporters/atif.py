"""ATIF: trajectories of Harbor (Agent Trajectory Interchange Format, version 1.7).

A request with its calls and their results is a step of the agent. A nested loop is an embedded trajectory, to which the
result of its call refers. The field `extra` has what ATIF has no field for: how a call ended, and who answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from agentnb.core.errors import UsageError
from agentnb.core.events import Event
from agentnb.core.messages import Content, Message
from agentnb.exporters.turns import Asked, Called, Loop, Said, Update, known_time, loops_of

name = "ATIF"
VERSION = "ATIF-v1.7"

Json = dict[str, Any]
_METRICS = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens", "cache_read_tokens": "cached_tokens"}
_STEP_FIELDS = ("is_copied_context", "llm_call_count", "extra")
"""The fields of a step of any source that an imported message has in its details; an answer also has the next."""
_ANSWER_FIELDS = ("reasoning_effort", *_STEP_FIELDS)
_METRIC_FIELDS = frozenset({"prompt_token_ids", "completion_token_ids", "logprobs", "extra"})


def written(events: Sequence[Event], lost: Counter[str]) -> bytes:
    """Return the trajectory as JSON."""
    document = _trajectory(loops_of(events, lost), lost, "")
    if not document["steps"]:
        raise UsageError("The recording has no messages, so it cannot be written as a trajectory.")
    return to_json(document, indent=1) + b"\n"


def _trajectory(loop: Loop, lost: Counter[str], id: str) -> Json:
    """Return the trajectory of a loop. id: its id among the embedded trajectories; "" for the outermost loop."""
    about = loop.about if "agent" in loop.about else {}  # of an imported trajectory
    steps = _Steps(loop, lost)
    if loop.system_prompt:
        steps.add("system", loop.system_prompt)
    for step in loop.steps:
        if isinstance(step, Said):
            steps.said(step)
        elif isinstance(step, Asked):
            steps.asked(step)
        elif isinstance(step, Called):
            steps.called(step)
        else:
            assert isinstance(step, Update)
            lost["values of the loop"] += 1
    if loop.end is not None:
        lost["reasons of ends"] += not about
    document: Json = {
        "schema_version": VERSION,
        "session_id": (about.get("id") or loop.start.run_id or None) if not id else None,
        "trajectory_id": id or None,
        "agent": steps.agent,
        "steps": steps.steps,
        **{name: about.get(name) for name in ("notes", "final_metrics", "extra")},
        "continued_trajectory_ref": about.get("continues_in"),
        "subagent_trajectories": steps.embedded or None,
    }
    return {name: value for name, value in document.items() if value is not None}


class _Steps:
    """The steps of one trajectory."""

    def __init__(self, loop: Loop, lost: Counter[str]) -> None:
        self.lost = lost
        self.steps: list[Json] = []
        self.embedded: list[Json] = []
        given = loop.about.get("agent")
        agent = dict(given) if isinstance(given, Mapping) else {"name": loop.start.name}
        models = {step.end.model for step in loop.steps if isinstance(step, Asked) and step.end is not None}
        shared = models.pop() if len(models) == 1 else None  # a step without a model has that of the agent
        self.model = agent.get("model_name") if isinstance(given, Mapping) else shared
        tools = {"tool_definitions": loop.tools} if loop.tools else {}
        self.agent = {"version": "unknown", **agent, **({"model_name": self.model} if self.model else {}), **tools}

    def add(self, source: str, message: Any, event: Event | None = None, **fields: Any) -> Json:
        """Add a step, and return it."""
        step = {"step_id": len(self.steps) + 1, "source": source, "message": message, **fields}
        if time := known_time(event):
            step["timestamp"] = datetime.fromtimestamp(time, UTC).isoformat()
        self.steps.append(step)
        return step

    def said(self, said: Said) -> None:
        """Add a message of the user or the system, or what the environment said, which belongs to the step before."""
        message, given = said.message, said.message.details
        details: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        if details.get("source") == "observation" and self.steps:
            self._observed(self.steps[-1], {"content": self._content(message.content)})
        elif message.role == "tool":  # of an earlier run
            self._observed(self.steps[-1] if self.steps else self.add("system", ""), self._earlier_result(message))
        elif message.role == "assistant":
            self._answer(message, said.event)
        else:
            source = "user" if message.role == "user" else "system"
            self.lost["roles of messages"] += message.role not in ("user", "system")
            kept = {name: details[name] for name in _STEP_FIELDS if name in details}
            self.add(source, self._content(message.content), said.event, **kept)

    def _earlier_result(self, message: Message) -> Json:
        known = {call["tool_call_id"] for call in self.steps[-1].get("tool_calls", ())}
        source = {"source_call_id": message.tool_call_id} if message.tool_call_id in known else {}
        return {**source, "content": self._content(message.content)}

    def asked(self, asked: Asked) -> None:
        """Add a request with its calls and their results."""
        if asked.end is None:
            self.lost["failed requests" if asked.failed is not None else "requests without an answer"] += 1
            return
        end = asked.end
        self.lost["times of requests"] += bool(known_time(asked.start)) and asked.start.time != end.time
        self.lost["options of requests"] += bool(asked.start.options)
        self.lost["names of providers"] += bool(asked.start.provider)
        step = self._answer(end.message, end, known_time(end) and end.time)
        if end.model and end.model != self.model:
            step["model_name"] = end.model
        metrics = {_METRICS[name]: amount for name, amount in end.usage.items() if name in _METRICS}
        if "cost" in end.usage:
            metrics["cost_usd"] = end.usage["cost"]
        details = end.message.details if isinstance(end.message.details, Mapping) else {}
        given = details.get("metrics")
        kept = (
            {name: value for name, value in given.items() if name in _METRIC_FIELDS}
            if isinstance(given, Mapping)
            else {}
        )
        rest = {name: amount for name, amount in end.usage.items() if name not in _METRICS and name != "cost"}
        if rest:
            kept["extra"] = {**rest, **(kept.get("extra") or {})}
        if metrics or kept:
            step["metrics"] = {**metrics, **kept}
        facts = {name: getattr(end, name) for name in ("finish_reason", "stop_reason", "response_id")}
        if facts := {name: fact for name, fact in facts.items() if fact is not None}:
            step["extra"] = {**facts, **(step.get("extra") or {})}
        for call in asked.calls:
            self._count(call, end.time)
        for call in asked.results:
            self._result(step, call)

    def _answer(self, message: Message, event: Event | None, time: float = 0.0) -> Json:
        given = message.details
        details: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        fields: Json = {name: details[name] for name in _ANSWER_FIELDS if name in details}
        other = {name: value for name, value in details.items() if name not in (*_ANSWER_FIELDS, "metrics")}
        if other:
            fields["extra"] = {**other, **(fields.get("extra") or {})}
        texts = [str(block.get("text") or "") for block in message.reasoning]
        if any(texts):
            fields["reasoning_content"] = "\n".join(texts)
        self.lost["blocks of reasoning joined"] += len(texts) > 1
        self.lost["signatures of reasoning"] += any(len(block) > 1 for block in message.reasoning)
        self.lost["orders of the parts of answers"] += bool(message.order)
        if message.tool_calls:
            fields["tool_calls"] = [
                {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
                for call in message.tool_calls
            ]
            self.lost["malformed arguments"] += sum(call.malformed is not None for call in message.tool_calls)
        return self.add("agent", self._content(message.content), event, **fields)

    def called(self, call: Called) -> None:
        """Add a call of the loop itself, as a step that no model made."""
        made = {"tool_call_id": call.call.id, "function_name": call.call.name, "arguments": call.call.arguments}
        step = self.add("agent", "", call.start or call.end, llm_call_count=0, tool_calls=[made])
        self._count(call, known_time(call.start))
        if call.has_result:
            self._result(step, call)

    def _count(self, call: Called, time: float) -> None:
        self.lost["questions to a person"] += len(call.asked)
        self.lost["decisions"] += len(call.decided)
        times = {known_time(event) for event in (call.start, call.end)} - {0.0, time}
        self.lost["times of calls"] += bool(times)
        self.lost["results that are not text or blocks"] += bool(
            call.has_result and call.end is not None and not isinstance(call.end.result, (str, list, type(None)))
        )

    def _result(self, step: Json, call: Called) -> None:
        """Add the result of a call, with references to the loops that performed it."""
        end = call.end
        assert end is not None
        result: Json = {"source_call_id": call.call.id, "content": self._content(call.content)}
        if call.loops:
            refs = []
            for loop in call.loops:
                id = f"{loop.start.path}@{loop.start.seq}"
                embedded = _trajectory(loop, self.lost, id)
                if not embedded["steps"]:
                    self.lost["sub-agents without messages"] += 1
                    continue
                self.embedded.append(embedded)
                refs.append({"trajectory_id": id})
            if refs:
                result["subagent_trajectory_ref"] = refs
        extra: Json = dict(end.details) if isinstance(end.details, Mapping) else {}
        self.lost["details of results"] += end.details is not None and not isinstance(end.details, Mapping)
        if end.is_error:
            extra["is_error"] = True
        if end.outcome not in ("returned", "raised"):
            extra["outcome"] = end.outcome
        if end.error is not None:
            extra["error"] = f"{end.error.type}: {end.error.message}"
        if extra:
            result["extra"] = extra
        self._observed(step, result)

    @staticmethod
    def _observed(step: Json, result: Json) -> None:
        step.setdefault("observation", {"results": []})["results"].append(result)

    def _content(self, content: Content) -> Any:
        """Return content as ATIF has it: text, or parts that are text, pictures or sound in files."""
        if isinstance(content, str):
            return content
        parts = []
        for block in content:
            kind, source = block.get("type"), block.get("source")
            if kind == "text" and isinstance(block.get("text"), str):
                parts.append({"type": "text", "text": block["text"]})
            elif kind in ("image", "audio") and isinstance(source, Mapping) and {"media_type", "path"} <= source.keys():
                parts.append(block)
            else:
                self.lost[f"blocks of type {kind}"] += 1
                parts.append({"type": "text", "text": f"[{kind}]"})
        return parts
