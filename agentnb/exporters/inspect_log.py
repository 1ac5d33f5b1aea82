"""Inspect: the log of an evaluation with one sample, as JSON (`.json`; Inspect reads and converts it).

A request is a model event, a call a tool event in a span, a decision an approval event. The events of a nested loop are
in the span of its call. Requests refer to the messages of the sample, which the log has once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from agentnb.core.events import ApprovalDecision, Event
from agentnb.core.messages import Content, Message, ToolCall, text_of
from agentnb.exporters.turns import Asked, Called, Loop, Said, Update, count_parts, known_time, loops_of

name = "Inspect"

Json = dict[str, Any]
_USAGE = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "input_tokens_cache_read",
    "cache_write_tokens": "input_tokens_cache_write",
    "reasoning_tokens": "reasoning_tokens",
    "cost": "total_cost",
}
_DECISIONS = {"approve": "approve", "edit": "modify", "reject": "reject"}
_STOPS = {"length": "max_tokens", "content_filter": "content_filter", "refusal": "content_filter"}
_ERRORS = {"timed_out": "timeout", "invalid": "parsing", "rejected": "approval", "aborted": "cancelled"}
_CONFIG = frozenset({"temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty"})


def written(events: Sequence[Event], lost: Counter[str]) -> bytes:
    """Return the log as JSON."""
    loop = loops_of(events, lost)
    sample = _Sample(lost)
    made = sample.events_of(loop)
    end, about = loop.end, loop.about
    started, ended = _time(loop.start), _time(end)
    answers = [event for event in made if event["event"] == "model" and event["output"]["choices"]]
    models = [event["model"] for event in answers]
    output: Json = {**answers[-1]["output"]} if answers else {"model": "unknown", "choices": []}
    if end is not None and isinstance(end.output, str):
        message = {"role": "assistant", "content": end.output}
        output["choices"] = [{"message": message, "stop_reason": "stop"}]
    if end is not None and end.output is not None and not isinstance(end.output, str):
        lost["outputs that are not text"] += 1
    has_failed = end is not None and end.reason in ("error", "cancelled")
    task, model = str(about.get("task") or loop.start.name), str(about.get("model") or next(iter(models), "unknown"))
    entry: Json = {
        "id": loop.start.run_id,
        "epoch": 1,
        "input": _input(loop, sample),
        "target": about.get("target") if isinstance(about.get("target"), (str, list)) else "",
        "messages": sample.pool[: sample.outer],
        "output": output,
        "metadata": about.get("metadata") if isinstance(about.get("metadata"), Mapping) else {},
        "store": {},
        "events": made,
        "events_data": {"messages": sample.pool, "calls": []},
        "attachments": {},
        "model_usage": {},
        "started_at": started,
        "completed_at": ended,
        "scores": sample.scores or None,
    }
    if has_failed:
        assert end is not None
        words = f"{end.error.type}: {end.error.message}" if end.error is not None else end.reason
        entry["error"] = {"message": words, "traceback": "", "traceback_ansi": ""}
    elif end is not None and end.reason != "completed":
        entry["limit"] = {"type": "custom", "limit": 0, "reason": end.reason}
    status = "started" if end is None else "error" if has_failed else "success"
    created = started or _iso(0.0)
    dataset = {"name": task, "samples": 1, "sample_ids": [loop.start.run_id]}
    whole: Json = {
        "version": 2,
        "status": status,
        "eval": {
            "eval_id": loop.start.run_id,
            "run_id": loop.start.run_id,
            "created": created,
            "task": task,
            "task_id": loop.start.run_id,
            "dataset": dataset,
            "model": model,
            "config": {},
            **({} if end is not None else {"metadata": {"agentnb": {"ended": False}}}),
        },
        "stats": {"started_at": started or "", "completed_at": ended or ""},
        "samples": [{key: value for key, value in entry.items() if value is not None}],
    }
    if has_failed:
        whole["error"] = entry["error"]
    return to_json(whole, indent=1) + b"\n"


def _input(loop: Loop, sample: _Sample) -> Any:
    if isinstance(loop.start.input, str):
        return loop.start.input
    return sample.pool[: sample.before] or ""


class _Sample:
    """The events of the sample. `pool` has the messages of all requests, to which they refer."""

    def __init__(self, lost: Counter[str]) -> None:
        self.lost = lost
        self.pool: list[Json] = []
        self.outer = 0
        """The number of messages of the outermost loop, which are the first of the pool."""
        self.before = 0
        """The number of messages before its first request."""
        self.scores: Json = {}
        self._places: dict[int, int] = {}
        self._spans = 0

    def events_of(self, loop: Loop, span: str = "") -> list[Json]:
        """Return the events of a loop. Its messages follow each other in the pool."""
        begin = len(self.pool)
        if loop.system_prompt:
            self.pool.append({"role": "system", "content": loop.system_prompt})
        # First the messages: a nested loop has its own, after those of the loop around it.
        for step in loop.steps:
            if isinstance(step, Said):
                self._add(self._said(step.message))
            elif isinstance(step, Asked):
                self._places[id(step)] = len(self.pool)
                self.before = self.before or len(self.pool)
                if step.end is not None:
                    self._add(self._answer(step.end.message, step.end.model))
                    for call in step.results:
                        self._add(self._result(call))
        if not span:
            self.outer = len(self.pool)
        made: list[Json] = []
        for step in loop.steps:
            if isinstance(step, Asked):
                made.append(self._model(step, begin, span))
                for call in sorted(step.calls, key=_order):
                    made += self._called(call, span)
            elif isinstance(step, Called):
                made += self._called(step, span)
            elif isinstance(step, Update):
                made += self._update(step, span)
        return made

    def _add(self, message: Json) -> None:
        self.pool.append({"id": f"m{len(self.pool)}", **message})

    def _update(self, update: Update, span: str) -> list[Json]:
        values = update.event.values
        if values.keys() == {"scores"} and isinstance(values["scores"], Mapping) and not span:
            self.scores = dict(values["scores"])
            return []
        if values.keys() == {"score"} and isinstance(values["score"], Mapping):
            return [self._event("score", update.event, span, score=values["score"])]
        return [self._event("info", update.event, span, source="agentnb", data=values)]

    # -- requests --------------------------------------------------------------------------------------------------

    def _model(self, asked: Asked, begin: int, span: str) -> Json:
        start, end = asked.start, asked.end
        given = end.model if end is not None and end.model else start.model
        model = f"{start.provider}/{start.model}" if start.provider and start.model else given or "unknown"
        options = {key: value for key, value in start.options.items() if key in _CONFIG}
        self.lost["options of requests"] += bool(start.options.keys() - _CONFIG)
        made = self._event(
            "model",
            start,
            span,
            completed=_time(end or asked.failed),
            model=model,
            input=[],
            input_refs=[[begin, self._places[id(asked)]]],
            tools=[],
            tool_choice="auto",
            config=options,
            output={"model": given or "unknown", "choices": []},
        )
        if end is None:
            failed = asked.failed
            words = f"{failed.error.type}: {failed.error.message}" if failed is not None else "There is no answer."
            return {**made, "error": words}
        reason = end.finish_reason if end.finish_reason in ("stop", "tool_calls", "max_tokens") else None
        stop = reason or _STOPS.get(end.stop_reason or "", "unknown")
        usage = {_USAGE[name]: amount for name, amount in end.usage.items() if name in _USAGE}
        self.lost["counts of usage"] += len(end.usage) - len(usage)
        made["output"]["choices"] = [{"message": self.pool[self._places[id(asked)]], "stop_reason": stop}]
        if usage:
            known = {"input_tokens", "output_tokens"} <= usage.keys()  # what is not known is not 0
            total = {"total_tokens": usage["input_tokens"] + usage["output_tokens"]} if known else {}
            made["output"]["usage"] = {**total, **usage}
        if end.finish_reason not in (None, stop) or end.stop_reason is not None:
            made["output"]["metadata"] = {
                "agentnb": {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
            }
        if end.response_id:
            made["output"]["response_id"] = end.response_id
        return made

    # -- messages --------------------------------------------------------------------------------------------------

    def _said(self, message: Message) -> Json:
        if message.role == "assistant":
            return self._answer(message, None)
        if message.role == "tool":
            return {"role": "tool", "content": self._content(message.content), "tool_call_id": message.tool_call_id}
        self.lost["details of messages"] += message.details is not None
        self.lost["roles of messages"] += message.role not in ("user", "system")
        role = "user" if message.role == "user" else "system"
        return {"role": role, "content": self._content(message.content)}

    def _answer(self, message: Message, model: str | None) -> Json:
        count_parts(message, self.lost, signatures=False)
        content = self._content(message.content)
        if message.reasoning:
            parts: list[Json] = []
            for block in message.reasoning:
                part = {"type": "reasoning", "reasoning": block.get("redacted") or block.get("text") or ""}
                if block.get("signature"):
                    part["signature"] = block["signature"]
                parts.append({**part, "redacted": True} if block.get("redacted") else part)
            texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            content = [*parts, *(text for text in texts if text != {"type": "text", "text": ""})]
        made: Json = {"role": "assistant", "content": content, "source": "generate"}
        if model:
            made["model"] = model
        if message.tool_calls:
            made["tool_calls"] = [_call(call) for call in message.tool_calls]
        return made

    def _result(self, call: Called) -> Json:
        made = {"role": "tool", "content": self._content(call.content), "tool_call_id": call.call.id}
        return {**made, "function": call.call.name, **_error(call)}

    def _content(self, content: Content) -> Any:
        if isinstance(content, str):
            return content
        blocks: list[Json] = []
        for block in content:
            if block.get("type") == "text" and isinstance(block.get("text"), str):
                blocks.append({"type": "text", "text": block["text"]})
            else:
                self.lost["blocks that are not text, written as data"] += 1
                blocks.append({"type": "data", "data": block})
        return blocks

    # -- calls -----------------------------------------------------------------------------------------------------

    def _called(self, call: Called, above: str) -> list[Json]:
        """Return the events of a call: its span, the decisions, the call, and the loops inside it."""
        if not call.has_result and not call.start and not call.decided and not call.loops:
            self.lost["questions to a person"] += len(call.asked)
            return []
        self._spans += 1
        span = f"tool-{self._spans}"
        first = call.start or call.end
        parent = {"parent_id": above} if above else {}
        made = [self._event("span_begin", first, span, id=span, type="tool", name=call.call.name, **parent)]
        for decided in call.decided:
            made += self._decided(call, decided, span)
        self.lost["questions that no person answered"] += max(
            0, len(call.asked) - sum(d.by == "human" for d in call.decided)
        )
        arguments = call.start.arguments if call.start is not None else call.call.arguments
        end = call.end if call.has_result else None
        event = self._event(
            "tool",
            first,
            span,
            completed=_time(end),
            id=call.call.id,
            function=call.call.name,
            type="function",
            arguments=arguments,
            result=self._content(call.content) if end is not None else "",
            **_error(call),
        )
        if end is None:
            event["pending"] = True
        if end is not None and end.details is not None:
            self.lost["details of results"] += 1
        if call.loops:
            event["agent"] = call.loops[-1].start.name
        made.append(event)
        for loop in call.loops:
            made += self.events_of(loop, span)
            self.lost["reasons of ends"] += loop.end is not None
        return [*made, self._event("span_end", end, span, id=span)]

    def _decided(self, call: Called, decided: ApprovalDecision, span: str) -> list[Json]:
        kind = _DECISIONS.get(decided.decision)
        if kind is None:
            self.lost[f"decisions {decided.decision}"] += 1
            return []
        self.lost["notes of policies"] += bool(decided.note)
        self.lost["names of reviewers"] += decided.reviewer is not None
        event = self._event(
            "approval",
            decided,
            span,
            message="",
            call=_call(call.call),
            approver=decided.by or "approver",
            decision=kind,
            explanation=decided.reason or None,
        )
        if kind == "modify":
            edited = decided.arguments if decided.arguments is not None else call.call.arguments
            event["modified"] = {**_call(call.call), "arguments": edited, "function": decided.name or call.call.name}
        return [event]

    @staticmethod
    def _event(kind: str, event: Event | None, span: str, **fields: Any) -> Json:
        made = {"event": kind, "timestamp": _time(event), "working_start": 0.0, "span_id": span or None, **fields}
        return {key: value for key, value in made.items() if value is not None}


def _order(call: Called) -> int:
    return call.end.seq if call.end is not None else 1 << 60


def _call(call: ToolCall) -> Json:
    made = {"id": call.id, "function": call.name, "arguments": call.arguments, "type": "function"}
    return {**made, "parse_error": call.malformed} if call.malformed is not None else made


def _error(call: Called) -> Json:
    """Return the error of a call as a field of its event and of its message."""
    end = call.end
    if end is None or not end.is_error or not call.has_result:
        return {}
    words = end.error.message if end.error is not None else text_of(call.content)
    return {"error": {"type": _ERRORS.get(end.outcome, "unknown"), "message": words}}


def _time(event: Event | None) -> str | None:
    time = known_time(event)
    return _iso(time) if time else None


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()
