"""evolve: how an event changes the state of a run. Nothing else changes it.

Folding the first n events of a journal returns the state at n. A snapshot is therefore a position, restoring is a fold,
and replaying is a fold that shows each step.

A state is mutated in place: copying the history at every event would make the cost of a run quadratic. To get an
earlier state, fold a prefix of the events (`fold`).

The changes made by events about calls, and the order in which results enter the history, are in `agentnb.core.calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

from agentnb.core import calls
from agentnb.core import events as e
from agentnb.core.conversation import messages_in_order
from agentnb.core.errors import ImpossibleEvent
from agentnb.core.messages import input_messages
from agentnb.core.state import NestedMessages, State


def fold(events: Iterable[e.Event]) -> State:
    """Return the state after these events."""
    state = State()
    for event in events:
        evolve(state, event)
    return state


def evolve(state: State, event: e.Event, *, nested: bool = False) -> None:
    """Apply `event` to the state.

    `state` is the state of the run; with `nested`, that of the nested loop that the event belongs to. Raises
    ImpossibleEvent if the event cannot follow the earlier ones; the state is then unchanged.
    """
    handler = _HANDLERS.get(type(event))
    if handler is None:
        raise ImpossibleEvent(
            f"Unknown event type {event.type!r} (seq {event.seq}). Use the events of agentnb.core.events."
        )
    if state.stop_reason is not None:
        raise ImpossibleEvent(f"The run has ended ({state.stop_reason}); {event.type} cannot follow.")
    if event.path and not nested:
        _evolve_nested(state, event)
    else:
        handler(state, event)
        if event.phase is not None:
            state.phase = event.phase
    state.position += 1


def _evolve_nested(state: State, event: e.Event) -> None:
    """Apply an event to the state of its nested loop, and add its usage to the loops around it."""
    # Find the loops around the nested one, the outermost first.
    *above, name = event.path.split("/")
    around = [state]
    for outer in above:
        around.append(_child(around[-1], outer, event))
    parent = around[-1]

    # Apply the event to the nested loop, with a new state at its start.
    if isinstance(event, e.RunStart):
        parent.children[name] = _new_state_at(state, event.path)
    child = _child(parent, name, event)
    evolve(child, event, nested=True)
    if isinstance(event, e.RunStart) and not parent.listens:
        parent.inside.append(NestedMessages(len(parent.messages), child.messages, child.inside, child.broken_off, name))
    # Add requests, usage, calls, failures and rules to the loops around it.
    if (add := _ADDS_UP.get(type(event))) is not None:
        for loop in around:
            add(loop, event)


def _new_state_at(state: State, path: str) -> State:
    """Return the state of a loop that begins at this path of the run, possibly not for the first time."""
    fresh = State()
    if (at_path := state.by_path.get(path)) is None:
        state.by_path[path] = fresh.at_path
    else:
        at_path.runs += 1
        fresh.at_path = at_path
    return fresh


def _child(state: State, name: str, event: e.Event) -> State:
    child = state.children.get(name)
    if child is None:
        raise ImpossibleEvent(f"No loop is running at {event.path!r} ({event.type}, seq {event.seq}).")
    return child


def walk(events: Iterable[e.Event]) -> Iterator[tuple[e.Event, State]]:
    """Yield each event with the state of its loop right after it. The state is the same object each time."""
    state = State()
    for event in events:
        evolve(state, event)
        yield event, nested(state, event.path)


def nested(state: State, path: str) -> State:
    """Return the state of the loop at `path`; the state itself for `""`. Raises KeyError if there is no such loop."""
    names = path.split("/") if path else []
    return reduce(lambda outer, name: outer.children[name], names, state)


def _run_start(state: State, event: e.RunStart) -> None:
    if state.started is not None:
        raise ImpossibleEvent(f"The run has already started (seq {event.seq}).")
    state.run_id = event.run_id
    state.loop = event.loop
    state.name = event.name
    state.input = event.input
    state.call = event.call
    state.listens = event.listens
    state.approve, state.limits, state.model_options = event.approve, event.limits, event.model_options
    state.on_limit = event.on_limit
    state.max_result_chars = event.max_result_chars
    state.started = event.time
    state.messages = list(event.history)
    state.queues.update({queue: list(messages) for queue, messages in event.queued.items()})
    given = input_messages(event.input)
    is_plain = not any(message.tool_calls or message.role == "tool" for message in given)
    state.queues["input"] = given if is_plain else messages_in_order(given)


def _phase_change(state: State, event: e.PhaseChange) -> None:
    state.entered.append(event.phase if event.phase is not None else state.phase or "")


def _message(state: State, event: e.MessageAdded) -> None:
    if state.open:
        calls.refuse_with_open_calls(state, "A message cannot enter the history", visible=True)
    if state.unsaid:
        calls.add_results(state)
    if event.origin != "loop":
        del state.queues[event.origin][:1]
    state.heard.append(event.origin)
    state.messages.append(event.message)


def _queued(state: State, event: e.Queued) -> None:
    state.queues[event.queue].append(event.message)


def _withdrawn(state: State, event: e.Withdrawn) -> None:
    del state.queues[event.queue][event.first : event.first + event.count]


def _state_update(state: State, event: e.StateUpdate) -> None:
    state.values.update(event.values)


def _model_start(state: State, event: e.ModelStart) -> None:
    if event.attempt == 1:  # another attempt keeps the calls that the interrupted answer had made
        if state.open or state.unsaid:
            calls.close_turn(state, "A model request cannot start")
        state.calls = dict(state.open) if state.open else {}
    state.turn = event.turn
    state.attempt = event.attempt
    state.model = "asked"
    state.options = event.set_by_loop
    state.reply = None
    state.broken_off.clear()
    state.heard = []
    _count_request(state, event)


def _count_request(state: State, event: e.ModelStart) -> None:
    state.requests += event.attempt == 1


def _model_end(state: State, event: e.ModelEnd) -> None:
    if state.model != "asked":
        raise ImpossibleEvent(f"The model was not asked for this answer (seq {event.seq}).")
    message = event.message
    state.model = "idle"
    state.reply = event
    state.messages.append(message)
    for call in message.tool_calls:
        state.has_called = True
        if call["id"] not in state.calls:
            calls.open_call(state, call, hidden=False)
    _add_usage(state, event)
    if len(state.open) == state.detached:
        calls.settle(state)


def _add_usage(state: State, event: e.ModelEnd | e.ModelFailed | e.RunEnd | e.RunResumed) -> None:
    for name, amount in event.usage.items():
        state.usage[name] = state.usage.get(name, 0) + amount
        if not event.inherited:
            state.own_usage[name] = state.own_usage.get(name, 0) + amount


def _model_error(state: State, event: e.ModelFailed) -> None:
    state.model = "idle"
    if event.answer is not None:
        calls.break_off(state, event.answer)
    _note_failure(state, event)


def _note_failure(state: State, event: e.ModelFailed) -> None:
    state.failure = event.error
    _add_usage(state, event)


def _run_paused(state: State, event: e.RunPaused) -> None:
    state.paused = True


def _run_resumed(state: State, event: e.RunResumed) -> None:
    state.paused = False
    _add_usage(state, event)
    if event.approve is not None:
        state.approve = event.approve
    if event.limits is not None:
        state.limits = event.limits
    if event.model_options is not None:
        state.model_options = event.model_options
    if event.on_limit is not None:
        state.on_limit = event.on_limit
    _ask_again(state)
    if event.suspended:
        _forget_done(state)
    for path, ids in event.again.items():
        loop = nested(state, path)
        for id in ids:
            calls.open_again(loop, id)


def _forget_done(state: State) -> None:
    """Forget the completed hidden calls of the loop that was suspended, at any depth, so that it makes them again.

    A loop that was suspended while a person was asked resumes from that question instead.
    """
    if any(call.status == "asking" for call in state.open.values()):
        return
    # If a nested loop was suspended, only that loop forgets its calls.
    running = [child for child in state.children.values() if child.call in state.open and child.stop_reason is None]
    for child in running:
        _forget_done(child)
    if not running:
        state.calls = {call.id: call for call in state.calls.values() if not (call.hidden and call.end is not None)}


def _ask_again(state: State) -> None:
    """Repeat the request of each model that has failed: in this loop, or in the nested loops that failed."""
    if state.failure is not None:
        state.failure = None
        state.broken_off.clear()
        failed = [child for child in state.children.values() if child.failure is not None]
        for child in failed:
            _ask_again(child)
        if not failed:
            state.model = "asked"


def _cancel(state: State, event: e.CancelRequested) -> None:
    state.cancelled = event.reason
    state.model = "idle"
    for child in state.children.values():
        if child.stop_reason is None:
            _cancel(child, event)


def _run_end(state: State, event: e.RunEnd) -> None:
    if event.answer is not None:
        calls.break_off(state, event.answer)
    _add_usage(state, event)
    if event.reason != "suspended":
        if state.detached:
            raise ImpossibleEvent(f"A run cannot end while detached calls are running: {', '.join(state.open)}.")
        calls.close_turn(state, "A run cannot end")
    state.stop_reason = event.reason
    state.output = event.output
    state.error = event.error
    state.model = "idle"
    state.paused = False


_HANDLERS: dict[type[e.Event], Callable[[State, Any], None]] = {
    e.RunStart: _run_start,
    e.PhaseChange: _phase_change,
    e.MessageAdded: _message,
    e.Queued: _queued,
    e.Withdrawn: _withdrawn,
    e.StateUpdate: _state_update,
    e.ModelStart: _model_start,
    e.ModelEnd: _model_end,
    e.ModelFailed: _model_error,
    e.CallProposed: calls.call_proposed,
    e.ApprovalRequest: calls.approval_request,
    e.ApprovalDecision: calls.approval_decision,
    e.CallStart: calls.call_start,
    e.CallEnd: calls.call_end,
    e.RunPaused: _run_paused,
    e.RunResumed: _run_resumed,
    e.CancelRequested: _cancel,
    e.RunEnd: _run_end,
}

_ADDS_UP: dict[type[e.Event], Callable[[State, Any], None]] = {
    e.ModelStart: _count_request,
    e.ModelEnd: _add_usage,
    e.ModelFailed: _note_failure,
    e.RunEnd: _add_usage,
    e.ApprovalDecision: calls.note_rule,
    e.CallStart: calls.count_call,
}
