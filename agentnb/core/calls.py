"""How the calls of a turn change where a loop stands, and how their results enter its history.

The rule that keeps a history valid for every provider lives here: the results of a turn's calls enter `messages`
together, one per call, in the order the model made the calls, as soon as the last of them is known and before anything
else (`say_results`). While a turn has calls without results nothing else can enter the history. A call that is
detached is the exception: that it runs on is all the history says of it, and what comes of it is for the loop to say.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from agentnb.core import events as e
from agentnb.core.blocks import INSIDE, blocks_in, with_pictures
from agentnb.core.ending import ABORTED
from agentnb.core.errors import ImpossibleEvent
from agentnb.core.messages import Content, Message, ToolCall, to_plain
from agentnb.core.state import CallState, State

RUNS_ON = "It has started, and runs on by itself."
"""What the model is told of a detached call in place of a result."""

NOT_MADE = "Not executed: the answer that made this call was broken off."
"""The result of a call in an answer that broke off before its calls were looked at."""


_FOR_NOTE = 100
"""Characters that are enough for the words about what is left out."""


def render(result: Any, most: int | None = None) -> Content:
    """A call's result as the content of the message that tells the model: text, blocks, or JSON as text.

    most: the characters of text that the model is sent at most; what is left out is said in the text. None for all.
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
    """The blocks with no more text than the model is sent; pictures are no text."""
    shortened = []
    for block in blocks:
        if block["type"] == "text":
            block = {**block, "text": _shortened(block["text"], most)}
            most = max(most - len(block["text"]), 0)
        shortened.append(block)
    return shortened


def call_proposed(state: State, event: e.CallProposed) -> None:
    """The loop has a call of its own, or the model one before its answer is complete."""
    if event.call.id in state.open:
        raise ImpossibleEvent(f"The call {event.call.id!r} is open already (seq {event.seq}).")
    if state.model == "idle" and not state.open:  # the loop's own earlier calls have been looked at by now
        state.calls = {call.id: call for call in state.calls.values() if not call.hidden}
    open_call(state, event.call, hidden=event.hidden)


def open_call(state: State, call: ToolCall, *, hidden: bool) -> None:
    """A call is open from here on."""
    opened = CallState(call, hidden)
    id = opened.id
    state.calls[id] = state.open[id] = opened
    state.place.ids.add(id)
    if hidden:
        state.own_calls.append(opened)
    else:
        state.unsaid = True


def open_again(state: State, id: str) -> None:
    """A call that had failed is open as if it had just been made; how often it was started stays known."""
    call = state.calls[id]
    call.status, call.end, call.approval, call.decision = "proposed", None, None, None
    state.open[id] = call


def approval_request(state: State, event: e.ApprovalRequest) -> None:
    """A person is asked about a call."""
    call = _the_open(state, event)
    call.status = "asking"
    state.asking[call.id] = call
    call.approval = event
    call.decision = None


def approval_decision(state: State, event: e.ApprovalDecision) -> None:
    """A call is decided, or a decision taken back."""
    if event.decision == "ask":
        _take_back(state, event)
        return
    call = _the_open(state, event)
    note_rule(state, event)
    call.decision = event
    state.asking.pop(call.id, None)
    call.status = "proposed" if event.is_checked_again else "ready"
    if event.decision in ("edit", "replace"):
        call.undecided = ToolCall(id=call.id, name=call.name, arguments=call.arguments, malformed=call.malformed)
        call.name = event.name if event.name is not None else call.name
        if event.arguments is not None:  # a copy: a reader who changes the decision has not changed what runs
            call.arguments = to_plain(event.arguments)
            if event.unchecked:
                call.unchecked = call.arguments
        call.malformed = None
        if event.is_checked_again:
            call.replaced = ToolCall(id=call.id, name=call.name, arguments=call.arguments)


def _take_back(state: State, event: e.ApprovalDecision) -> None:
    """The decision `earlier` stands no more. A call that it let run, and that has not begun, waits for another."""
    note_rule(state, event)
    call = state.open.get(event.call_id)
    if call is None or call.status != "ready" or call.decision is None or call.decision.seq != event.earlier:
        return
    if call.undecided is not None and call.decision.decision in ("edit", "replace"):
        before = call.undecided
        call.name, call.arguments, call.malformed = before.name, before.arguments, before.malformed
    call.decision = call.undecided = None
    # At once, so that nothing can run it before it is asked about; and no answer to the old question counts any more.
    call.status = "asking"
    state.asking[call.id] = call
    call.approval = None


def note_rule(state: State, event: e.ApprovalDecision) -> None:
    """Remember a decision, or forget the one that is taken back."""
    if event.decision == "ask":
        state.rules = [rule for rule in state.rules if rule.seq != event.earlier]
    elif event.remember is not None:
        state.rules = [*state.rules, event]


def call_start(state: State, event: e.CallStart) -> None:
    """A call begins, maybe not for the first time."""
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
    """What of a nested loop's call adds up."""
    state.calls_started += not event.own


def call_end(state: State, event: e.CallEnd) -> None:
    """A call has its result."""
    id = event.call_id
    call = state.calls.get(id)
    if call is None or (call.status == "ended" and (event.outcome != "skipped" or not state.unsaid)):
        raise ImpossibleEvent(f"The call {id!r} has no result to wait for (seq {event.seq}).")
    call.status = "ended"
    state.asking.pop(id, None)
    call.end = event
    if state.open.pop(id, None) is not None and call.detached:
        state.detached -= 1
    if state.broken_off:  # it was asked about when the answer broke off
        break_off(state, state.broken_off[0])
    if len(state.open) == state.detached:
        settle(state)


def _the_open(state: State, event: e.ApprovalRequest | e.ApprovalDecision | e.CallStart) -> CallState:
    call = state.open.get(event.call_id)
    if call is None:
        raise ImpossibleEvent(f"There is no open call {event.call_id!r} ({event.type}, seq {event.seq}).")
    return call


def settle(state: State) -> None:
    """Tell the history the results, now that the turn's last call has its own, unless the loop may replace them.

    Nor while the answer that made the calls is not there: where it never comes, the end of the run tells them.
    """
    if state.reply is None or not state.unsaid or state.failure is not None:
        return
    if not state.reply.provisional:
        say_results(state)


def close_turn(state: State, what: str) -> None:
    """Tell the history what it has not been told. Raises ImpossibleEvent where calls have no result."""
    if state.open:
        refuse_with_open_calls(state, what)
    if state.unsaid:
        say_results(state)


def refuse_with_open_calls(state: State, what: str, *, visible: bool = False) -> None:
    """Raise where calls have no result; with `visible` only the model's count, of which the history tells."""
    waiting = [call.id for call in state.open.values() if not (call.detached or (visible and call.hidden))]
    if waiting:
        raise ImpossibleEvent(f"{what} while calls have no result: {', '.join(waiting)}.")


def say_results(state: State) -> None:
    """One message per call, in the order the model made the calls, behind the answer that made them."""
    state.unsaid = False
    if state.reply is None:  # it broke off after its calls had begun, and nobody asked again
        if state.broken_off:  # which tells it
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
    """End the conversation with an answer that broke off, and a result for each of its calls."""
    known = {call.id for call in answer.tool_calls}
    begun = [call.proposed for call in state.calls.values() if not (call.hidden or call.let_go)]
    made = [*answer.tool_calls, *(call for call in begun if call.id not in known)]
    if len(made) > len(answer.tool_calls):
        answer = answer.model_copy(update={"tool_calls": made})
    why = ABORTED if answer.stop_reason == "aborted" else NOT_MADE
    state.broken_off[:] = [answer]
    for called in made:
        call = state.calls.get(called.id)
        if call is not None and call.end is not None and not call.hidden:
            state.broken_off.append(result_message(call, call.end, state.max_result_chars))
        else:
            state.broken_off.append(
                Message(role="tool", content=why, tool_call_id=called.id, name=called.name, is_error=True)
            )


def result_message(call: CallState, end: e.CallEnd, most: int | None) -> Message:
    """The message that tells the model how a call came out, in `most` characters of text; None for all."""
    return Message(
        role="tool",
        content=render(end.result, most),
        tool_call_id=call.id,
        name=call.name,
        is_error=end.is_error,
        details=end.details,
    )
