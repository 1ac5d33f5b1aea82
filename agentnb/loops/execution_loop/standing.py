"""What an execution loop says of itself, and the stream of its own events: the loop as seen from outside of its run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from agentnb.core.errors import UsageError
from agentnb.core.events import RunStart
from agentnb.core.messages import Message, input_messages
from agentnb.core.running import Frame
from agentnb.core.state import State
from agentnb.core.tools import Tool
from agentnb.loops.base import Loop
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.dataflow import Dataflow
from agentnb.loops.execution_loop.messages import to_context, to_input
from agentnb.loops.execution_loop.plan import MODES, Mode, check_plans
from agentnb.loops.execution_loop.projection import ExecutionEvent
from agentnb.loops.execution_loop.reply import read_again
from agentnb.loops.execution_loop.stream import ExecutionStream
from agentnb.loops.execution_loop.values import Call, ErrorMessage, Solution
from agentnb.loops.options import StartOptions
from agentnb.loops.streaming import Telling


class ExecutionStanding(Loop):
    """What ExecutionLoop is besides its decision."""

    def __init__(
        self,
        llm: Any,
        tools: Sequence[Any] | Mapping[str, Any] | None,
        given: Sequence[Any],
        *,
        plan: Mode | None,
        name: str | None,
    ) -> None:
        """`given`: the context of every run."""
        super().__init__(llm, tools, name=name)
        if plan is not None and plan not in MODES:
            raise UsageError(f"plan must be None or one of {', '.join(MODES)}, not {plan!r}.")
        if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
            raise UsageError(f"context= takes a list of messages, not {given!r:.80}.")
        self.plan = plan
        self.tools_by_name: dict[str, Tool] | None = None
        """The tools of a run, by name; None before there was one."""
        self._given: list[Message] = [to_context(message) for message in given]
        self._before = State(messages=self._given)
        self._frame: Frame | None = None
        self._telling: Telling[ExecutionEvent] | None = None
        self._reading: tuple[State, Context] | None = None
        self._lock = threading.Lock()

    def begin(self, input: Any, history: Sequence[Message] = ()) -> RunStart:
        """The run's first fact: the context it has, and its input as messages."""
        given = None if input is None else to_input(input)
        start = super().begin(given, [*self._given, *history])
        check_plans([*start.history, *map(to_context, given or ())])
        return start

    def hears_as(self, input: Any) -> list[Message]:
        """An object is the loop's parameters, as where it is started on its own."""
        try:
            return to_input(input)
        except UsageError:  # it was meant for others
            return input_messages(input)

    def flow(self, state: State) -> Dataflow:
        """How the calls stand of a run that stands there."""
        return Dataflow(state, self.tools_by_name, lazy=self.plan == "lazy")

    def run(self, input: Any = None, **options: Unpack[StartOptions]) -> ExecutionStream:
        """Run the loop; the stream of its ten kinds of events. Raises UsageError while one is open.

        options: as for `start`.
        """
        if self._telling is not None and self._telling.is_open:
            raise UsageError("This loop is running; go on with its stream, or close it.")
        stream = ExecutionStream(self.start(input, **options), self)
        self._telling = stream.telling
        return stream

    @property
    def state(self) -> dict[str, Any]:
        """The data of the kind `state`, as the log folds to by now."""
        whole: dict[str, Any] = self._read().whole("state")
        return whole

    @property
    def context(self) -> list[dict[str, Any]]:
        """The log: what the run was given, and every data message and error since, oldest first."""
        return self._read().log(self._stands())

    @property
    def output(self) -> Any:
        """What the run came to; None until it is over."""
        return self._frame.state.output if self._frame is not None else None

    @property
    def solution(self) -> Solution | None:
        """The last answer of the model as a Solution; None before the first."""
        reply = self._stands().reply
        if reply is None:
            return None
        said = reply.message.details or read_again(reply.message, native=False)
        calls = [Call.made_of(call.name, call.arguments) for call in reply.message.tool_calls]
        output, done = said.get("output"), said.get("done") is True
        return Solution(meta=said.get("meta"), calls=calls, output=output, done=done)

    @property
    def errors(self) -> list[ErrorMessage]:
        """The errors of the last tick that has ended."""
        return [ErrorMessage(data=error.get("data")) for error in self._read().errors]

    def _stands(self) -> State:
        """Where the latest run stands; before it has begun, what it will be given is all there is."""
        if self._frame is None or self._frame.state.started is None:
            return self._before
        return self._frame.state

    def _read(self) -> Context:
        """The context of the latest run, for whoever asks from outside of it, in whatever thread."""
        state = self._stands()
        with self._lock:
            if self._reading is None or self._reading[0] is not state:
                self._reading = state, Context()
            self._reading[1].catch_up(state)
            return self._reading[1]
