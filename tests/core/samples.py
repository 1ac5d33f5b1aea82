"""A strategy for each event type, with values that are hard to distinguish in JSON."""

from __future__ import annotations

from hypothesis import strategies as st

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall

words = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.sampled_from(["t1", "echo", "a b", "é", "\u2028", ""])
floats = st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | floats | words
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(words, json_values, max_size=3)

tool_calls = st.builds(ToolCall, id=names, name=names, arguments=objects, malformed=st.none() | words)
blocks = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": words}), max_size=2)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool", "note"]),
    content=words | blocks,
    tool_calls=st.lists(tool_calls, max_size=2),
    tool_call_id=st.none() | names,
    is_error=st.booleans(),
    name=st.none() | names,
    details=st.none() | words | objects.filter(bool),
    stop_reason=st.none() | words,
)
errors = st.builds(e.ErrorInfo, type=words, message=words, traceback=st.none() | words)

stamps = {
    "seq": st.integers(-1, 10**6),
    "time": floats,
    "run_id": words,
    "path": words,
    "phase": st.none() | words,
}
queues = st.sampled_from(["input", "steering", "follow_up"])
counts = st.integers(0, 10)

EVENTS = {
    e.RunStart: {
        "loop": names,
        "name": names,
        "fingerprint": words,
        "config": objects,
        "input": json_values,
        "history": st.lists(messages, max_size=2),
        "queued": st.dictionaries(queues, st.lists(messages, max_size=2), max_size=2),
    },
    e.PhaseChange: {"source": words},
    e.MessageAdded: {"message": messages, "origin": st.sampled_from(["input", "steering", "follow_up", "loop"])},
    e.Queued: {"queue": queues, "message": messages},
    e.Withdrawn: {"queue": queues, "count": counts, "first": counts},
    e.StateUpdate: {"values": objects},
    e.ModelStart: {"turn": counts, "attempt": counts, "options": objects},
    e.ModelEnd: {
        "message": messages,
        "stop_reason": st.none() | words,
        "usage": st.dictionaries(words, floats, max_size=2),
        "timing": st.lists(st.lists(counts, min_size=2, max_size=2), max_size=2),
        "sequential": st.booleans(),
        "provisional": st.booleans(),
    },
    e.ModelFailed: {"error": errors, "partial": words},
    e.CallProposed: {"call": tool_calls, "hidden": st.booleans()},
    e.ApprovalRequest: {
        "call_id": names,
        "name": names,
        "arguments": objects,
        "reason": words,
        "deadline": st.none() | floats,
        "unknown": st.booleans(),
    },
    e.ApprovalDecision: {
        "call_id": names,
        "decision": st.sampled_from(["approve", "reject", "edit", "replace", "answer", "ask"]),
        "by": words,
        "name": st.none() | names,
        "arguments": st.none() | objects,
        "reason": words,
        "result": json_values,
        "remember": st.none() | st.sampled_from(["tool", "arguments"]),
        "earlier": st.none() | counts,
    },
    e.CallStart: {"call_id": names, "name": names, "arguments": objects, "attempt": counts},
    e.CallEnd: {
        "call_id": names,
        "name": names,
        "result": json_values,
        "is_error": st.booleans(),
        "outcome": st.sampled_from(["returned", "raised", "skipped", "aborted"]),
        "details": json_values,
        "terminate": st.booleans(),
        "error": st.none() | errors,
    },
    e.RunPaused: {"reason": words},
    e.RunResumed: {},
    e.CancelRequested: {"reason": words},
    e.RunEnd: {
        "reason": st.sampled_from(["completed", "cancelled", "error", "limit"]),
        "output": json_values,
        "error": st.none() | errors,
    },
}


def event_of(kind: type[e.Event]) -> st.SearchStrategy[e.Event]:
    """Events of one kind, as the constructor makes them."""
    return st.builds(kind, **stamps, **EVENTS[kind])


any_event = st.one_of([event_of(kind) for kind in EVENTS])
