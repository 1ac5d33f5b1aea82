"""How the calls of a turn change the state of a loop, and how their results enter its history.

The rule that keeps a history valid for every provider is implemented here: the results of a turn's calls enter
`messages` together, one per call, in the order in which the model made the calls, as soon as the last result is known
and before anything else (`add_results`). While a turn has calls without results, nothing else can enter the history. A
detached call is the exception: the history has a message that says that it still runs, and the loop reports its result
later.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from agentnb.core import events as e
from agentnb.core.blocks import INSIDE, blocks_in, with_pictures
from agentnb.core.errors import ImpossibleEvent
from agentnb.core.json import to_plain
from agentnb.core.messages import Content, Message, ToolCall
from agentnb.core.resume_point import ABORTED
from agentnb.core.state import CallState, State

RUNS_ON = "It has started, and runs on by itself."
"""The text that the model is sent for a detached call in place of a result."""

NOT_MADE = "Not executed: the answer that made this call was broken off."
"""The result of a call in an answer that was interrupted before its calls were examined."""


_FOR_NOTE = 100
"""The number of characters that are enough for the note about omitted text."""


def render(result: Any, most: int | None = None) -> Content:
    """Return a call's result as the content of the message for the model: text, blocks, or JSON as text.

    most: the maximum number of characters of text that the model is sent; a note in the text gives the number of
    omitted characters. None for no limit.
    """
    if isinstance(result, str):
        return _shortened(result, most)
    if result is None:
        return ""
    blocks = blocks_in(result)
    if blocks is None:
        text = to_json(result).decode()
        blocks = with_pictures(result) if INSIDE in text else None
        if blocks is None:
            return _shortened(text, most)
    return blocks if most is None else _shortened_blocks(blocks, most)


def _shortened(text: str, most: int | None) -> str:
    if most is None or len(text) <= most:
        return text
    kept = max(most - _FOR_NOTE, 0)
    note = f"\n[{len(text) - kept:,} of the {len(text):,} characters of this result are left out here.]"
    return f"{text[:kept]}{note}"[:most]


def _shortened_blocks(blocks: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the blocks with at most `most` characters of text. Pictures do not count as text."""
    shortened = []
    for block in blocks:
        if block["type"] == "text":
            block = {**block, "text": _shortened(block["text"], most)}
            most = max(most - len(block["text"]), 0)
        shortened.append(block)
    return shortened


def call_proposed(state: State, event: e.CallProposed) -> None:
    """Open a call that the loop makes itself, or that the model makes before its answer is complete."""
    if event.call.id in state.open:
        raise ImpossibleEvent(
            f"The call {event.call.id!r} is already open (seq {event.seq}). Give each call its own id."
        )
    if state.model == "idle" and not state.open:  # the loop has examined its own earlier calls by now
        state.calls = {call.id: call for call in state.calls.values() if not call.hidden}
    open_call(state, event.call, hidden=event.hidden)


def open_call(state: State, call: ToolCall, *, hidden: bool) -> None:
    """Add a new call to the open calls."""
    opened = CallState(call, hidden)
    id = opened.id
    state.calls[id] = state.open[id] = opened
    state.at_path.ids.add(id)
    if hidden:
        state.own_calls.append(opened)
    else:
        state.unsaid = True


def open_again(state: State, id: str) -> None:
    """Open a failed call again as if it had just been made. The number of its attempts is kept."""
    call = state.calls[id]
    call.status, call.end, call.approval, call.decision = "proposed", None, None, None
    state.open[id] = call


def approval_request(state: State, event: e.ApprovalRequest) -> None:
    """Record that a person is asked about a call."""
    call = _the_open(state, event)
    call.status = "asking"
    state.asking[call.id] = call
    call.approval = event
    call.decision = None


def approval_decision(state: State, event: e.ApprovalDecision) -> None:
    """Apply a decision about a call, or withdraw a decision."""
    if event.decision == "ask":
        _withdraw_decision(state, event)
        return
    call = _the_open(state, event)
    note_rule(state, event)
    call.decision = event
    state.asking.pop(call.id, None)
    call.status = "proposed" if event.is_checked_again else "ready"
    # Keep the call as it was, so that the decision can be withdrawn, and change its name and arguments.
    if event.decision in ("edit", "replace"):
        call.undecided = ToolCall(id=call.id, name=call.name, arguments=call.arguments, malformed=call.malformed)
        call.name = event.name if event.name is not None else call.name
        if event.arguments is not None:  # a copy: a reader that changes the decision does not change the call
            call.arguments = to_plain(event.arguments)
            if event.unchecked:
                call.unchecked = call.arguments
        call.malformed = None
        if event.is_checked_again:
            call.replaced = ToolCall(id=call.id, name=call.name, arguments=call.arguments)


def _withdraw_decision(state: State, event: e.ApprovalDecision) -> None:
    """Withdraw the decision `earlier`. A call that it approved, and that has not started, waits for a new one."""
    note_rule(state, event)
    call = state.open.get(event.call_id)
    if call is None or call.status != "ready" or call.decision is None or call.decision.seq != event.earlier:
        return
    # Restore the name and arguments if the decision changed them.
    if call.undecided is not None and call.decision.decision in ("edit", "replace"):
        before = call.undecided
        call.name, call.arguments, call.malformed = before.name, before.arguments, before.malformed
    call.decision = call.undecided = None
    # Set the status immediately, so that the call cannot run before the next question, and drop the old question, so
    # that an answer to it has no effect.
    call.status = "asking"
    state.asking[call.id] = call
    call.approval = None


def note_rule(state: State, event: e.ApprovalDecision) -> None:
    """Remember a decision if it is to be remembered, or forget the earlier one that it withdraws."""
    if event.decision == "ask":
        state.rules = [rule for rule in state.rules if rule.seq != event.earlier]
    elif event.remember is not None:
        state.rules = [*state.rules, event]


def call_start(state: State, event: e.CallStart) -> None:
    """Mark a call as running, possibly not for the first time."""
    call = _the_open(state, event)
    call.status = "running"
    state.asking.pop(call.id, None)
    call.attempt = event.attempt
    call.arguments = event.arguments
    state.calls_started += not event.own
    if event.detached and not call.detached:
        call.detached = True
        state.detached += 1
        if len(state.open) == state.detached:
            settle(state)


def count_call(state: State, event: e.CallStart) -> None:
    """Count a started tool call of a nested loop."""
    state.calls_started += not event.own


def call_end(state: State, event: e.CallEnd) -> None:
    """Record the result of a call."""
    id = event.call_id
    call = state.calls.get(id)
    if call is None or (call.status == "ended" and (event.outcome != "skipped" or not state.unsaid)):
        raise ImpossibleEvent(f"The call {id!r} is not waiting for a result (seq {event.seq}).")
    call.status = "ended"
    state.asking.pop(id, None)
    call.end = event
    if state.open.pop(id, None) is not None and call.detached:
        state.detached -= 1
    if state.broken_off:  # a person was asked about the call when the answer was interrupted
        break_off(state, state.broken_off[0])
    if len(state.open) == state.detached:
        settle(state)


def _the_open(state: State, event: e.ApprovalRequest | e.ApprovalDecision | e.CallStart) -> CallState:
    call = state.open.get(event.call_id)
    if call is None:
        raise ImpossibleEvent(f"There is no open call {event.call_id!r} ({event.type}, seq {event.seq}).")
    return call


def settle(state: State) -> None:
    """Add the results to the history, now that every call of the turn has one, unless the loop may still replace them.

    Results are also deferred while the answer that made the calls is not complete. If that answer never arrives, the
    end of the run adds them.
    """
    if state.reply is None or not state.unsaid or state.failure is not None:
        return
    if not state.reply.provisional:
        add_results(state)


def close_turn(state: State, what: str) -> None:
    """Add the remaining results to the history. Raises ImpossibleEvent, with `what` in it, if calls have no result."""
    if state.open:
        refuse_with_open_calls(state, what)
    if state.unsaid:
        add_results(state)


def refuse_with_open_calls(state: State, what: str, *, visible: bool = False) -> None:
    """Raise ImpossibleEvent if calls have no result; with `visible`, only calls of the model count."""
    waiting = [call.id for call in state.open.values() if not (call.detached or (visible and call.hidden))]
    if waiting:
        raise ImpossibleEvent(f"{what} while calls have no result: {', '.join(waiting)}.")


def add_results(state: State) -> None:
    """Add one message per call to the history, in the order of the calls, after the answer that made them."""
    state.unsaid = False
    if state.reply is None:  # the answer was interrupted after its calls had started, and the model was not asked again
        if state.broken_off:  # these messages already have the results
            return
        made = [call.proposed for call in state.calls.values() if not (call.hidden or call.let_go)]
        state.messages.append(Message(role="assistant", tool_calls=made))
    for call in state.calls.values():
        if call.hidden or call.let_go:
            continue
        if call.end is not None:
            state.messages.append(result_message(call, call.end, state.max_result_chars))
        elif call.detached:
            call.let_go = True
            state.messages.append(Message(role="tool", content=RUNS_ON, tool_call_id=call.id, name=call.name))


def break_off(state: State, answer: Message) -> None:
    """End the conversation with an answer that was interrupted, and a result for each of its calls."""
    # Add the calls that have started to those of the answer.
    known = {call.id for call in answer.tool_calls}
    started = [call.proposed for call in state.calls.values() if not (call.hidden or call.let_go)]
    made = [*answer.tool_calls, *(call for call in started if call.id not in known)]
    if len(made) > len(answer.tool_calls):
        answer = answer.model_copy(update={"tool_calls": made})
    # Give each call its result, or an error if it has none.
    text = ABORTED if answer.stop_reason == "aborted" else NOT_MADE
    state.broken_off[:] = [answer]
    for called in made:
        call = state.calls.get(called.id)
        if call is not None and call.end is not None and not call.hidden:
            state.broken_off.append(result_message(call, call.end, state.max_result_chars))
        else:
            state.broken_off.append(
                Message(role="tool", content=text, tool_call_id=called.id, name=called.name, is_error=True)
            )


def result_message(call: CallState, end: e.CallEnd, most: int | None) -> Message:
    """Return the message that tells the model the result of a call.

    most: the maximum number of characters of text; None for no limit.
    """
    return Message(
        role="tool",
        content=render(end.result, most),
        tool_call_id=call.id,
        name=call.name,
        is_error=end.is_error,
        details=end.details,
    )
