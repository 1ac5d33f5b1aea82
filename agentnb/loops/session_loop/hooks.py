"""Adapters from SessionLoop's hooks to those of the core (SEMANTICS.md, 6. Hooks). Sync hooks run in a thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.core.call_events import name_of_function
from agentnb.core.events import CallEnd
from agentnb.core.json import to_plain
from agentnb.core.messages import Message, ToolCall, is_message_object
from agentnb.core.state import CallState, State
from agentnb.loops import functions


def copies(hook: str, state: State) -> list[Message]:
    """Return copies of the messages for one hook. Each message is copied once, and the copy is kept.

    A change that a hook makes is visible only to the same hook, at its next call.
    """
    kept: dict[str, list[Message]] = state.memo if isinstance(state.memo, dict) else {}
    state.memo = kept
    made = kept.setdefault(hook, [])
    made += (message.model_copy(deep=True) for message in state.messages[len(made) :])
    return made.copy()


@dataclass(frozen=True)
class ToolCallContext:
    """The argument of hooks around a call: the call, its arguments and the messages; after the call, its result too.

    All values are copies. `args` is an exception: if `before_tool_call` changes it, the call runs with the changes.
    """

    tool_call: ToolCall
    args: dict[str, Any]
    messages: list[Message]
    result: Any = None
    is_error: bool = False

    @classmethod
    def of(cls, call: CallState, messages: list[Message], end: CallEnd | None = None) -> ToolCallContext:
        """Return the context of a call in its current state; with its end, the context of a finished call."""
        made = ToolCall(id=call.id, name=call.name, arguments=to_plain(call.arguments))
        if end is None:
            return cls(made, call.arguments, messages)
        return cls(made, call.arguments, messages, to_plain(end.result), end.is_error)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class TurnContext(list[Message]):
    """The argument of `should_stop_after_turn`: a list of the messages, with those of the last turn as attributes."""

    @property
    def messages(self) -> list[Message]:
        """All messages, as in the contexts of the other hooks."""
        return self

    @property
    def message(self) -> Message:
        """The turn's answer."""
        return self[self._answer_at()]

    @property
    def tool_results(self) -> list[Message]:
        """The results of the turn's calls."""
        return self[self._answer_at() + 1 :]

    def _answer_at(self) -> int:
        return next(at for at in range(len(self) - 1, -1, -1) if self[at].role == "assistant")


def _dict_or_none(hook: str, returned: Any, keys: Collection[str]) -> Mapping[str, Any]:
    """Return the dict that a hook has returned, empty for None.

    Raises TypeError for another type or an unknown key. A misspelt `block` would otherwise allow the call.
    """
    if returned is not None and not isinstance(returned, Mapping):
        raise TypeError(f"{hook} returned {returned!r}; it returns None or a dict.")
    if unknown := [name for name in returned or {} if name not in keys]:
        raise TypeError(f"{hook} returned a dict with {unknown[0]!r}; it may have {', '.join(keys)}.")
    return returned or {}


def before_call(hook: Callable[[ToolCallContext], Any]) -> Callable[[CallState, State], Any]:
    """Return a `before_call` hook of the core that calls the session's `before_tool_call`.

    hook: returns None, or a dict with `block`, `reason` and `terminate`.
    """

    async def before(call: CallState, state: State) -> CallEnd | None:
        context = ToolCallContext.of(call, copies("before_tool_call", state))
        returned = _dict_or_none(
            "before_tool_call", await functions.call(hook, context), ("block", "reason", "terminate")
        )
        if not returned.get("block"):
            return None
        why = returned.get("reason") or "Tool execution was blocked"
        return CallEnd(
            call_id=call.id,
            name=call.name,
            result=why,
            is_error=True,
            outcome="blocked",
            terminate=bool(returned.get("terminate")),
        )

    before.__name__ = name_of_function(hook)  # an edit of the arguments is recorded under this name
    return before


def after_call(hook: Callable[[ToolCallContext], Any]) -> Callable[[CallState, CallEnd, State], Any]:
    """Return an `after_call` hook of the core that calls the session's `after_tool_call`.

    hook: returns None, or a dict that replaces fields of the result: `content`, `details`, `is_error`, `terminate`.
    """
    names = {"content": "result", "details": "details", "is_error": "is_error", "terminate": "terminate"}

    async def after(call: CallState, end: CallEnd, state: State) -> dict[str, Any]:
        context = ToolCallContext.of(call, copies("after_tool_call", state), end)
        returned = _dict_or_none("after_tool_call", await functions.call(hook, context), names)
        flags = {"is_error", "terminate"}  # any true value counts, as in the result of a tool
        return {names[k]: bool(value) if k in flags else value for k, value in returned.items() if value is not None}

    return after


def _messages(hook: str, returned: Any) -> list[Any]:
    is_list = isinstance(returned, Iterable) and not isinstance(returned, (str, bytes, Mapping))
    messages = list(returned) if is_list else None
    if messages is None or not all(isinstance(message, Mapping) or is_message_object(message) for message in messages):
        raise TypeError(f"{hook} returned {returned!r:.200}. It must return a list of messages.")
    return messages


def preparation(transform: Any, convert: Any) -> Callable[[Sequence[Message]], Any]:
    """Return a function that applies `transform_context`, then `convert_to_llm`, to the messages of one request.

    The result is not written back to the history. The function raises TypeError if a hook does not return messages.
    """

    async def prepare(messages: Sequence[Message]) -> Sequence[Any]:
        made: list[Any] = list(messages)
        for name, step in (("transform_context", transform), ("convert_to_llm", convert)):
            if step is not None:
                made = _messages(name, await functions.call(step, made))
        return made

    return prepare
