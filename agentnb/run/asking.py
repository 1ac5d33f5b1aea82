"""Asking the model: the one place where a loop's model is called.

`ask` is an async generator that yields after every delta, so that whoever drives the run by pulling takes the model's
stream at their own pace, and nobody's task or queue stands between a token and its reader. It ends by making the
answer, or its failure, a fact.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator
from typing import Any

from agentnb.core.errors import ModelProtocolError
from agentnb.core.events import Delta, Event, ModelFailed
from agentnb.core.loop import Design
from agentnb.core.messages import to_plain
from agentnb.core.reply import Reply
from agentnb.core.tools import Tool, specification
from agentnb.llms.adapt import as_model
from agentnb.llms.protocol import Model
from agentnb.run.history import PlainHistory
from agentnb.run.journal import Journal
from agentnb.run.portable import error_info


class Asking:
    """Asks the design's model on behalf of one run."""

    def __init__(self, design: Design, journal: Journal, tools: dict[str, Tool]) -> None:
        self._design = design
        self._journal = journal
        self._sequential = {name for name, tool in tools.items() if tool.sequential}
        self._specifications = [specification(tool) for tool in tools.values()]
        self._history = PlainHistory(design.system_prompt)
        self._model: Model | None = None
        self.error: BaseException | None = None
        """The exception behind the last failure, for whoever raises RunFailed from it."""

    async def ask(self) -> AsyncGenerator[None, None]:
        """One request to the model, from the stream's start to its end; yields after every delta."""
        reply, started = Reply(self._journal.state.turn), time.monotonic()
        stream: Any = None
        try:
            stream = await self._open(self._journal.state.options)
            async for chunk in stream:
                delta = reply.feed(chunk, int((time.monotonic() - started) * 1000))
                if delta is not None:
                    self._tell(delta)
                    yield
                if not self._is_wanted():  # whoever was told may have cancelled
                    break
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self._is_wanted() or task is None or task.cancelling():
                raise
            self._failed(error, reply.text)  # its own: nobody has cancelled it
        except Exception as error:  # the model's failure pauses the run, whatever it is (DESIGN 1)
            self._failed(error, reply.text)
        else:
            self._end(reply)
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()

    def _is_wanted(self) -> bool:
        return self._journal.state.model == "asked"

    async def _open(self, options: dict[str, Any]) -> Any:
        design = self._design
        if design.llm is None:
            raise ModelProtocolError(f"{design.name} has no model: give it one by llm=.")
        if design.prepare is None:
            state = self._journal.state
            messages: Any = self._history.of(state.messages, design.amended(state))
        else:
            messages = design.prepare(self._journal.state.messages)
            if inspect.isawaitable(messages):
                messages = await messages
            messages = [*self._history.prefix, *map(to_plain, messages)]
        if self._specifications:
            options = {"tools": self._specifications, **options}
        if self._model is None:
            self._model = as_model(design.llm)
        stream: Any = self._model.stream(messages, **options)
        return stream if hasattr(stream, "__aiter__") else await stream

    def _end(self, reply: Reply) -> None:
        end = reply.end()
        fields = self._design.after_reply(end)
        if self._sequential and not self._sequential.isdisjoint(call.name for call in end.message.tool_calls):
            fields = {**fields, "sequential": True}
        end.__dict__.update(fields)  # still unstamped, nobody else has seen it
        self._post(end)

    def _failed(self, error: BaseException, partial: str) -> None:
        self.error = error
        self._post(ModelFailed.make(error=error_info(error), partial=partial))

    def _post(self, fact: Event) -> None:
        """Make it a fact, unless nobody wants the answer any more."""
        with self._journal.lock:
            if self._is_wanted():
                self._journal.append(fact)

    def _tell(self, delta: Delta) -> None:
        if self._journal.watchers:
            delta.run_id = self._journal.run_id
            self._journal.tell(delta)
