"""ModelRequests the model: the one place where a loop's model is called.

`ask` streams the answer and ends by making it, or its failure, a fact. For a consumer that pulls it shows every delta
before it takes the next, so that nobody's task or queue stands between a token and its reader.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from agentnb.core.errors import ModelProtocolError
from agentnb.core.events import CallProposed, Delta, Event, ModelEnd, ModelFailed, ModelStart
from agentnb.core.loop import Design
from agentnb.core.maybe_async import Inside, settled
from agentnb.core.messages import ROLES, Message, is_broken_off, plain_message, to_plain
from agentnb.core.reply import Reply
from agentnb.core.running import act_for
from agentnb.core.state import State
from agentnb.core.threads import working_for
from agentnb.core.views import COPY_LIMIT
from agentnb.llms.adapt import as_model, in_one_piece
from agentnb.llms.description import described
from agentnb.llms.protocol import Model
from agentnb.run.frame import Frame
from agentnb.run.inline_task import is_thrown_in, show, task_here
from agentnb.run.journal import Journal
from agentnb.run.portable import error_info
from agentnb.run.tasks import InFlight
from agentnb.run.wakeup import RETRY_SECONDS

HELD_UP = 0.005
"""Seconds for which a model may keep the event loop to itself. One that takes longer has its next request, and all
that came before it, on disk first: if its process is killed meanwhile, no finished call is lost. To commit before
each request would take a third as long again as the whole loop, and over a network the event loop has its turn."""

MAX_PAUSES = 20
"""How often a model may pause one answer: each time its provider's own tools have run some ten times."""


class ModelRequests:
    """Asks the model of one loop of a run."""

    def __init__(self, frame: Frame, journal: Journal, inflight: InFlight) -> None:
        self._design = frame.design
        self._frame = frame
        self._journal = journal
        self._inflight = inflight
        self._sequential = {name for name, tool in frame.tools.items() if tool.sequential}
        self._options = frame.design.request_options(list(frame.tools.values()))
        kind = type(frame.design)
        self._sends_history = kind.messages_for is Design.messages_for and kind.amended is Design.amended
        self._history = PlainHistory(frame.design.system_prompt)
        self._model: Model | None = None
        self.error: BaseException | None = None
        """The exception behind the last failure, for whoever raises RunFailed from it."""
        self._paused: tuple[int, Reply] | None = None
        self._holds_up = False
        """Whether the last answer was computed in the event loop, and for long: nothing is written meanwhile."""

    def describe(self, request: ModelStart) -> ModelStart:
        """Return a request that is not recorded yet with who is asked, and with which options."""
        if self._design.llm is None:
            return request
        said = described(self._design.llm, self._options_with(request.set_by_loop))
        return replace(
            request,
            loop_options=request.set_by_loop,
            options=said.options,
            provider=said.provider,
            model=said.model,
        )

    @property
    def has_paused(self) -> bool:
        """Whether the model has paused its answer, and is to be asked to go on with it."""
        return self._paused is not None and self._paused[0] == self._frame.state.turn

    @property
    def used(self) -> Mapping[str, float]:
        """What the requests for the paused answer have used so far."""
        return self._paused[1].used if self._paused is not None and self.has_paused else {}

    async def ask(self, *, pulled: bool = False) -> None:
        """One request to the model, from the stream's start to its end."""
        state = self._frame.state
        reply, started = self._design.new_reply(state), time.monotonic()
        if self._paused is not None and self.has_paused:
            reply = self._paused[1]
            reply.resume()
        partial = to_plain(reply.message()) if reply.pauses else None
        self._paused = None
        self._frame.reply = reply
        stream: Any = None
        end: ModelEnd | None = None
        task = asyncio.current_task(self._inflight.wakeup.loop)  # a third of the time that without it takes below 3.12
        act_for(self._journal, self._frame.path)  # each request has a context of its own
        working_for.set((self._journal.run_id, self._frame.path, ""))
        # The store may be locked.
        while self._holds_up and not self._inflight.wakeup.flush() and self._inflight.crash is None:  # noqa: ASYNC110 - it writes
            await asyncio.sleep(RETRY_SECONDS)
        try:
            prepared = await self._prepared() if self._design.prepare is not None else None
            if state.cancelled is not None:  # by the code that prepared them
                return
            stream = self._open(prepared, state, partial)
            if not hasattr(stream, "__aiter__"):
                if not inspect.isawaitable(stream):
                    raise in_one_piece(stream)
                stream = await stream
            if isinstance(stream, AsyncGenerator):
                stream = Inside(stream)
            async for chunk in stream:
                delta = reply.feed(chunk, int((time.monotonic() - started) * 1000))
                if delta is not None:
                    if self._journal.watchers:
                        self._tell(delta)
                    if pulled:
                        await show()
                if reply.proposed:
                    await self._propose(reply)
                if state.model != "asked":  # whoever was told may have cancelled
                    break
            else:
                stream = None  # it has come to its end, and there is nothing to close
                if not reply.is_paused:
                    end = reply.end()
            if self._holds_up or self._inflight.wakeup.is_due:  # one that was itself held up pays once
                self._holds_up = time.monotonic() - started > HELD_UP
        except asyncio.CancelledError as error:
            here = task_here()  # another than it was asked in, where each event is taken in one
            if state.model != "asked" or here is None or here.cancelling():
                raise
            self._failed(error, reply)  # its own: nobody has cancelled it
        except BaseException as error:  # it pauses the run (ARCHITECTURE.md, 3. Three kinds of failure)
            if is_thrown_in(error, task):
                raise
            if state.open:  # the calls that it has already made get their results first
                await self._inflight.calls_end(self._frame)
            self._failed(error, reply)
        else:
            if not reply.is_paused:
                self._end(end)
            elif reply.pauses < MAX_PAUSES:
                # Still asked: the pump asks again, when whoever may hold the run back has had a say.
                self._paused = state.turn, reply
            else:
                words = f"The model has paused its answer {MAX_PAUSES + 1} times, and not come to its end."
                self._failed(ModelProtocolError(words), reply)
        finally:
            if stream is not None and hasattr(stream, "aclose"):
                await stream.aclose()

    async def _propose(self, reply: Reply) -> None:
        """Make the calls that are complete facts; each may start before the next is looked at."""
        while reply.proposed:
            self._post(CallProposed(call=reply.proposed.pop(0)))
            await asyncio.sleep(0)

    async def _prepared(self) -> Sequence[Mapping[str, Any]]:
        """The messages as the design wants them sent."""
        assert self._design.prepare is not None
        shown = self._history.shown(self._frame.state.messages)
        return self._history.prepared(await settled(self._design.prepare(shown)))

    def _open(
        self, prepared: Sequence[Mapping[str, Any]] | None, state: State, partial: Mapping[str, Any] | None
    ) -> Any:
        model = self._model
        if model is None:
            if self._design.llm is None:
                raise ModelProtocolError(f"{self._design.name} has no model: give it one by llm=.")
            model = self._model = as_model(self._design.llm)
        if prepared is not None:
            messages: Sequence[Any] = prepared
        elif self._sends_history:
            messages = self._history.of(state.messages)
        elif (own := self._design.messages_for(state)) is not None:
            own[:0] = self._history.prefix  # to copy a long list takes as long as the rest of a turn
            messages = own
        else:
            messages = self._history.of(state.messages, self._design.amended(state))
        if partial is not None:
            messages = [*messages, partial]
        return model.stream(messages, **self._options_with(state.options))

    def _options_with(self, set_by_loop: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a request carries beside the messages.

        Where every request is to make a call (`tool_choice="required"` of the model, or of the loop), that ends with
        the first call: the run would not come to an end. What the loop sets for one request is followed.
        """
        options = {**self._options, **set_by_loop}
        if self._frame.state.has_called and "tool_choice" not in set_by_loop and options.get("tools"):
            own = getattr(self._design.llm, "options", None)
            choice = {**(own if isinstance(own, Mapping) else {}), **options}.get("tool_choice")
            if isinstance(choice, Mapping) and choice.get("type") == "any":  # Anthropic's may say more than that
                options["tool_choice"] = {**choice, "type": "auto"}
            elif choice not in (None, "auto", "none") and not (
                isinstance(choice, Mapping) and choice.get("type") in ("auto", "none")
            ):
                options["tool_choice"] = "auto"
        return options

    def _end(self, end: ModelEnd | None) -> None:
        if end is None:  # nobody wants the answer any more
            return
        fields = self._design.after_reply(end)
        if self._sequential and not self._sequential.isdisjoint(call.name for call in end.message.tool_calls):
            fields = {**fields, "sequential": True}
        self._post(replace(end, **fields) if fields else end)

    def _failed(self, error: BaseException, reply: Reply) -> None:
        self.error = error
        told = error_info(error)
        answer = reply.broken_off("error", told.message)
        self._post(ModelFailed(error=told, partial=reply.text, answer=answer))

    def _post(self, fact: Event) -> None:
        """Make it a fact, unless nobody wants the answer any more."""
        with self._journal.lock:
            if self._frame.state.model == "asked":
                if not isinstance(fact, CallProposed):
                    self._frame.reply = None
                self._journal.append(fact, self._frame)

    def _tell(self, delta: Delta) -> None:
        delta.run_id = self._journal.run_id
        delta.path = self._frame.path
        self._journal.tell(delta)
        self._inflight.wakeup.wake()  # a consumer that pulls the run waits for it to move


# -- the history as a model gets it ------------------------------------------------------------------------------------


_NOTHING: Mapping[int, dict[str, Any]] = {}


class PlainHistory:
    """Keeps the plain form of a growing list of messages; roles that no provider knows are left out, and answers that
    broke off with their results.

    A model gets a list each time, because that is what can be written as JSON and added to another one: a list of its
    own up to COPY_LIMIT messages, and the one that is kept here beyond it, which will grow.
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
        """Whether the last answer broke off: its results follow it."""

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """The messages for a hook that prepares what is sent: copies, made once; the record stays as it is."""
        self._shown += (message.model_copy(deep=True) for message in messages[len(self._shown) :])
        return self._shown.copy()

    def prepared(self, messages: Sequence[Message | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages that a hook has put together, as plain dicts; made once for as long as the hook gives the same."""
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
        """The messages as plain dicts, with what is `amended` in place of those at its positions."""
        if len(self._plain) != self._length:  # a model has put something into what it was given
            self._start_over()
        plain = self._plain
        for message in messages[self._seen :]:
            role = message.role
            if role != "tool":
                self._skips = is_broken_off(message)
            if role in ROLES and not self._skips:
                plain.append(to_plain(message))  # a copy: a model may change it
            else:
                self._left_out.append(len(plain) - len(self.prefix) + len(self._left_out))
        self._seen, self._length = len(messages), len(plain)
        if amended:
            instead_of = plain.copy()
            for position, instead in amended.items():
                instead_of[len(self.prefix) + position - bisect_left(self._left_out, position)] = instead
            return instead_of
        return plain.copy() if self._length <= COPY_LIMIT else plain
