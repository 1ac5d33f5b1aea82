"""Model requests: the only place in which the model of a loop is called.

`ask` streams the answer, and records it or its failure. For a consumer that pulls, it shows every delta before it
requests the next, so that no task and no queue is between a token and its reader.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from agentnb.core.errors import ModelProtocolError, UsageError
from agentnb.core.events import CallProposed, Delta, Event, ModelEnd, ModelFailed, ModelStart
from agentnb.core.json import copy_of, to_plain
from agentnb.core.maybe_async import InnerGenerator, settled
from agentnb.core.messages import ROLES, Message, is_broken_off, plain_message
from agentnb.core.place import act_for
from agentnb.core.prefix import COPY_LIMIT
from agentnb.core.reply import Reply
from agentnb.core.state import State
from agentnb.llms.adapt import as_model, in_one_piece, with_options
from agentnb.llms.conversion import named_tool
from agentnb.llms.description import Described, Describer
from agentnb.llms.protocol import Model, usage_told_to
from agentnb.run.event_data import error_info
from agentnb.run.frame import Frame
from agentnb.run.inline_task import is_thrown_in, show, task_here
from agentnb.run.journal import Journal
from agentnb.run.spending import SentTokens, with_cost, with_tokens
from agentnb.run.tasks import InFlight
from agentnb.run.wakeup import RETRY_SECONDS
from agentnb.threads import working_for

HELD_UP = 0.005
"""The seconds for which a model may block the event loop. If an answer took longer, all events are written to disk
before the next request, so that no finished call is lost if the process is killed during that request. A write before
every request would cost a third of the time of an iteration, and a model behind a network does not block the loop."""

MAX_PAUSES = 20
"""The number of times a model may pause one answer; the provider's own tools run about ten times in between."""


class ModelRequests:
    """Sends the requests of one loop of a run to its model."""

    def __init__(self, frame: Frame, journal: Journal, inflight: InFlight) -> None:
        self._design = frame.design
        self._requests = frame.requests
        self._frame = frame
        self._journal = journal
        self._inflight = inflight
        self._sequential = {name for name, tool in frame.tools.items() if tool.sequential}
        self._options = frame.requests.options()
        self._describer = Describer()
        self._described: Mapping[str, Any] = {}
        """The options of the request that was described last: it is sent with them."""
        self._history = PlainHistory(frame.requests.system_prompt)
        self._model: Model | None = None
        self._asked: Described | None = None
        """The description of the request that was described last."""
        self._sent = SentTokens()
        self._chosen: tuple[Any, Mapping[str, Any], Any] = (None, {}, None)
        """The loop's model, the options of the run, and the model with these options."""
        self.error: BaseException | None = None
        """The exception behind the last failure, as the cause of RunFailed."""
        self._paused: tuple[int, Reply] | None = None
        self._holds_up = False
        """Whether the last answer has blocked the event loop. Events are not written while the loop is blocked."""

    def describe(self, request: ModelStart) -> ModelStart:
        """Return a request, which is not recorded yet, with its provider, model and options."""
        set_by_loop = request.set_by_loop
        try:
            llm = self._llm
        except UsageError:  # the request fails with this error
            llm = self._design.llm
        self._described = self._options_with(set_by_loop, llm)
        if llm is None:
            return request
        description = self._asked = self._describer.describe(llm, self._described)
        return replace(
            request,
            loop_options=set_by_loop,
            options=description.options,
            provider=description.provider,
            model=description.model,
        )

    @property
    def _llm(self) -> Any:
        """The loop's model, asked with the options of the run. Raises UsageError if it does not take one of them."""
        llm, options = self._design.llm, self._journal.state.model_options
        if self._chosen[0] is not llm or self._chosen[1] is not options:
            self._chosen = llm, options, with_options(llm, options)
        return self._chosen[2]

    @property
    def has_paused(self) -> bool:
        """Whether the model has paused its answer, and another request has to continue it."""
        return self._paused is not None and self._paused[0] == self._frame.state.turn

    @property
    def used(self) -> Mapping[str, float]:
        """The usage of the requests for the paused answer so far."""
        if self._paused is None or not self.has_paused:
            return {}
        reply = self._paused[1]
        return self._with_estimates(reply.used, reply.message(), "")

    async def ask(self, *, pulled: bool = False) -> None:
        """Send one request, and record the answer or the failure. pulled: show each delta to the consumer."""
        state = self._frame.state
        reply, started = self._requests.new_reply(state), time.monotonic()
        if self._paused is not None and self.has_paused:
            reply = self._paused[1]
            reply.resume()
        partial = to_plain(reply.message()) if reply.pauses else None
        self._paused = None
        self._frame.reply = reply
        stream: Any = None
        end: ModelEnd | None = None
        task = asyncio.current_task(self._inflight.wakeup.loop)  # three times as fast as without it
        act_for(self._journal, self._frame.path, self._frame.inside)  # each request has a context of its own
        working_for.set((self._journal.run_id, self._frame.path, ""))
        usage_told_to.set(reply.tell_usage)
        # The store may be locked.
        while self._holds_up and not self._inflight.wakeup.flush() and self._inflight.crash is None:  # noqa: ASYNC110 - it writes
            await asyncio.sleep(RETRY_SECONDS)
        try:
            prepared = await self._prepared() if self._requests.prepare is not None else None
            if state.cancelled is not None:  # by the code that has prepared the messages
                return
            stream = self._open(prepared, state, partial)
            if not hasattr(stream, "__aiter__"):
                if not inspect.isawaitable(stream):
                    raise in_one_piece(stream)
                stream = await stream
            if isinstance(stream, AsyncGenerator):
                stream = InnerGenerator(stream)
            async for chunk in stream:
                delta = reply.feed(chunk, int((time.monotonic() - started) * 1000))
                if delta is not None:
                    if self._journal.watchers:
                        self._tell(delta)
                    if pulled:
                        await show()
                if reply.proposed:
                    await self._propose(reply)
                if state.model != "asked":  # a watcher may have cancelled the run
                    break
            else:
                stream = None  # it has ended, and need not be closed
                if not reply.is_paused:
                    end = reply.end()
            if self._holds_up or self._inflight.wakeup.is_due:  # at most one extra write if other code blocked
                self._holds_up = time.monotonic() - started > HELD_UP
        except asyncio.CancelledError as error:
            here = task_here()  # not the task of the request, if a consumer takes each event in another task
            if state.model != "asked" or here is None or here.cancelling():
                raise
            self._failed(error, reply)  # raised by the model itself: nothing has cancelled the request
        except BaseException as error:  # it pauses the run (ARCHITECTURE.md, 3. Three kinds of failure)
            if is_thrown_in(error, task):
                raise
            if state.open:  # calls that the answer has already made get their results first
                await self._inflight.calls_end(self._frame)
            self._failed(error, reply)
        else:
            if not reply.is_paused:
                self._end(end)
            elif reply.pauses < MAX_PAUSES:
                # The request stays open: the scheduler repeats it, unless the gate or a limit objects.
                self._paused = state.turn, reply
            else:
                words = f"The model has paused its answer {MAX_PAUSES + 1} times, and has not completed it."
                self._failed(ModelProtocolError(words), reply)
        finally:
            if stream is not None and hasattr(stream, "aclose"):
                await stream.aclose()

    async def _propose(self, reply: Reply) -> None:
        """Record the calls that are complete; each may start before the next is recorded."""
        while reply.proposed:
            self._record(CallProposed(call=reply.proposed.pop(0)))
            await asyncio.sleep(0)

    async def _prepared(self) -> Sequence[Mapping[str, Any]]:
        """Return the messages that the loop's `prepare` hook returns, as plain dicts."""
        assert self._requests.prepare is not None
        shown = self._history.shown(self._frame.state.messages)
        return self._history.prepared(await settled(self._requests.prepare(shown)))

    def _open(
        self, prepared: Sequence[Mapping[str, Any]] | None, state: State, partial: Mapping[str, Any] | None
    ) -> Any:
        model = self._model
        if model is None:
            if self._design.llm is None:
                raise ModelProtocolError(f"{self._design.name} has no model. Set the loop's `llm`, then resume.")
            model = self._model = as_model(self._llm)
        if prepared is not None:
            messages: Sequence[Any] = prepared
        elif (own := self._requests.messages(state)) is not None:
            own[:0] = self._history.prefix  # to copy a long list takes as long as the rest of a turn
            messages = own
        else:
            messages = self._history.of(state.messages, self._requests.replacements(state))
        if partial is not None:
            messages = [*messages, partial]
        if self._journal.state.limits.keys() & {"tokens", "cost"}:
            self._sent.take(messages)
        return model.stream(messages, **self._described)

    def _options_with(self, set_by_loop: Mapping[str, Any], llm: Any) -> Mapping[str, Any]:
        """Return the options of a request.

        An option that forces a call in every request (`tool_choice="required"` of the model or of the run) is dropped
        after the first call: otherwise the run would never end. It is also dropped in a request without tools, and in
        a nested loop that does not have the tool that it names. An option that the loop sets for one request is kept.
        """
        options = {**self._options, **set_by_loop}
        own = getattr(llm, "options", None) or {}
        own = own if isinstance(own, Mapping) else {}
        choice = options["tool_choice"] if "tool_choice" in options else own.get("tool_choice")
        if choice is None or "tool_choice" in set_by_loop:
            return options
        if not options.get("tools"):
            if not own.get("tools"):
                options["tool_choice"] = None
            return options
        name = named_tool(choice)
        if self._frame.path and name is not None and name not in self._frame.tools:
            options["tool_choice"] = None
        elif self._frame.state.has_called:
            if isinstance(choice, Mapping):
                if choice.get("type") == "any":  # Anthropic's choice may have more keys
                    options["tool_choice"] = {**choice, "type": "auto"}
                elif choice.get("type") not in ("auto", "none"):
                    options["tool_choice"] = "auto"
            elif choice not in ("auto", "none"):
                options["tool_choice"] = "auto"
        return options

    def _end(self, end: ModelEnd | None) -> None:
        if end is None:  # the answer is no longer needed
            return
        end = replace(end, usage=self._with_estimates(end.usage, end.message, end.model or ""))
        fields = self._requests.after_reply(end)
        if self._sequential and not self._sequential.isdisjoint(call.name for call in end.message.tool_calls):
            fields = {**fields, "sequential": True}
        self._record(replace(end, **fields) if fields else end)

    def _with_estimates(self, usage: Mapping[str, float], answer: Message, model: str) -> dict[str, float]:
        """Return the usage of an answer with what the server has not reported, for the limits of tokens and cost.

        model: the name of the model that has answered, "" if it is not known.
        """
        limits = self._journal.state.limits
        if not limits.keys() & {"tokens", "cost"}:
            return dict(usage)
        return self._with_cost(with_tokens(usage, sent=self._sent, answer=answer.to_json()), model)

    def _with_cost(self, usage: Mapping[str, float], model: str) -> dict[str, float]:
        """Return the usage with its estimated cost, if the run has a limit of cost and the server has reported none."""
        if "cost" in self._journal.state.limits and (asked := self._asked) is not None:
            server = str(asked.options.get("server") or "")
            return with_cost(usage, provider=asked.provider, model=model or asked.model, server=server)
        return dict(usage)

    def _failed(self, error: BaseException, reply: Reply) -> None:
        self.error = error
        info = error_info(error)
        answer = reply.broken_off("error", info.message)
        paid = self._with_cost(reply.paid, "")
        self._record(ModelFailed(error=info, partial=reply.text, answer=answer, usage=paid))

    def _record(self, event: Event) -> None:
        """Record an event of the request, unless the answer is no longer needed."""
        with self._journal.lock:
            if self._frame.state.model == "asked":
                if not isinstance(event, CallProposed):
                    self._frame.reply = None
                self._journal.append(event, self._frame)

    def _tell(self, delta: Delta) -> None:
        delta.run_id = self._journal.run_id
        delta.path = self._frame.path
        self._journal.tell(delta)
        self._inflight.wakeup.wake()  # a consumer that pulls waits for it


# -- the history as a model gets it ------------------------------------------------------------------------------------


_NOTHING: Mapping[int, dict[str, Any]] = {}


class PlainHistory:
    """The messages of a loop as plain dicts, in a list that grows with them.

    Messages with a role that no provider knows are left out, and so are interrupted answers with their results.

    A model is passed a list, because a list can be written as JSON and concatenated. Up to COPY_LIMIT messages this is
    a copy; beyond that it is the list that is kept here, which will grow.
    """

    def __init__(self, system_prompt: str | None = None) -> None:
        self.prefix = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._copies: dict[int, tuple[Message, dict[str, Any]]] = {}
        self._shown: list[Message] = []
        self._start_over()

    def _start_over(self) -> None:
        self._plain: list[dict[str, Any]] = list(self.prefix)
        self._length = len(self._plain)
        self._seen = 0
        self._left_out: list[int] = []
        self._skips = False
        """Whether the last answer was interrupted. The results of its calls are then skipped too."""

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages for the `prepare` hook: copies, made once, so that the record is not changed."""
        self._shown += (message.model_copy(deep=True) for message in messages[len(self._shown) :])
        return self._shown.copy()

    def prepared(self, messages: Sequence[Message | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages of the `prepare` hook as plain dicts; an unchanged message is converted once."""
        kept, self._copies = self._copies, {}
        plain = list(self.prefix)
        skips = False
        for given in messages:
            message = given if isinstance(given, Message) else plain_message(given)
            if message.get("role") != "tool":
                skips = is_broken_off(message)
            if skips:
                continue
            if isinstance(message, Message):
                _, copy = self._copies[id(message)] = kept.get(id(message)) or (message, to_plain(message))
            else:
                copy = to_plain(message)
            plain.append(copy)
        return plain

    def of(self, messages: Sequence[Message], amended: Mapping[int, dict[str, Any]] = _NOTHING) -> list[dict[str, Any]]:
        """Return the messages as plain dicts. amended: replacements by position."""
        if len(self._plain) != self._length:  # a model has changed the list that it was given
            self._start_over()
        plain = self._plain
        for message in messages[self._seen :]:
            role = message["role"]
            if role != "tool":
                self._skips = is_broken_off(message)
            if role in ROLES and not self._skips:
                plain.append(copy_of(message))  # a copy: a model may change it
            else:
                self._left_out.append(len(plain) - len(self.prefix) + len(self._left_out))
        self._seen, self._length = len(messages), len(plain)
        if amended:
            instead_of = plain.copy()
            for position, instead in amended.items():
                instead_of[len(self.prefix) + position - bisect_left(self._left_out, position)] = instead
            return instead_of
        return plain.copy() if self._length <= COPY_LIMIT else plain
