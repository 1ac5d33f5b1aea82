"""What an execution loop asks of its model, and how its calls are made ready to run: the loop towards its driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentnb.core.loop import Design
from agentnb.core.messages import Message
from agentnb.core.reply import Reply
from agentnb.core.running import Frame
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Tool
from agentnb.loops.execution_loop import prompt
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.delegates import Delegates, delegate_input
from agentnb.loops.execution_loop.messages import returned
from agentnb.loops.execution_loop.reply import SolutionReply, read_again
from agentnb.loops.execution_loop.standing import ExecutionStanding
from agentnb.loops.execution_loop.tools import SchemaTool, is_detached
from agentnb.loops.execution_loop.values import as_it_runs


class ExecutionRequests(ExecutionStanding):
    """How ExecutionLoop asks its model and performs calls."""

    native: bool
    delegates: Delegates
    _output_check: prompt.OutputCheck
    _words: str | None

    def taken_up(self, frame: Frame) -> None:
        """What the loop says of its run is of this one from here on."""
        self._frame = frame

    def has_tools(self, tools: dict[str, Tool]) -> None:
        """Take the tools, and tell the model of them."""
        self.tools_by_name = tools
        how = [
            prompt.REFERENCES if self.native else prompt.instructions(list(tools.values()), self._output_check.schema)
        ]
        if self.plan is not None:
            how += [prompt.PLANS[mode] for mode in dict.fromkeys(("eager", self.plan))]
        self.system_prompt = "\n\n".join([*([self._words] if self._words else []), "\n".join(how)])

    def request_options(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """The tools, or the schema of a Solution that names them."""
        if self.native:
            return {"tools": prompt.native_specifications(tools)} if tools else {}
        return {"schema": prompt.solution_schema(tools, self._output_check.schema)}

    def messages_for(self, state: State) -> list[dict[str, Any]]:
        """The context, and not the answers (SEMANTICS.md, 2. Messages and data)."""
        return self.sends(state, {"native": self.native})

    @classmethod
    def sends(cls, state: State, config: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The context; the calls and their results too where the model makes them by the provider's own means."""
        folded = Context.of(state)
        return folded.messages(native=config.get("native", False) or folded.native)

    def new_reply(self, state: State) -> Reply:
        """A Solution; a repeated request takes up the calls it has made before."""
        folded = Context.of(state)
        earlier = [call.proposed for call in state.calls.values() if not call.let_go]
        made, native = folded.calls_made + len(earlier), self.native or folded.native
        tools = (self.tools_by_name or {}).values()
        constants = {tool.name: tool.constants for tool in tools if isinstance(tool, SchemaTool) and tool.constants}
        return SolutionReply(state.turn, made, earlier, native=native, run=state.place.runs, constants=constants)

    def read_again(self, message: Message) -> Message:
        """An answer whose text is another: so is the output in it."""
        native = self.native or bool(message.details and message.details.get("native"))
        return message.model_copy(update={"details": read_again(message, native=native)})

    # -- calls -----------------------------------------------------------------------------------------------------

    def arguments(self, call: CallState, state: State) -> dict[str, Any]:
        """The call's parameters with data in place of its references."""
        return self.flow(state).arguments(call)

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """Activities get the whole call and the context; latent tools the result that the model has given."""
        delegate = self.delegates.name_for(tool, call)
        if not isinstance(tool, SchemaTool):
            return tool.bind(arguments)
        delegated = self.delegates.loop_for(tool, call) is not None
        isolated = delegate is not None
        return tool.prepare(
            as_it_runs(call, arguments), lambda: self._seen(tool, call, state, isolated=isolated), delegated=delegated
        )

    def _seen(self, tool: SchemaTool, call: CallState, state: State, *, isolated: bool) -> list[dict[str, Any]]:
        """The part of the context that the call is performed with (`scopes`)."""
        made = as_it_runs(call, call.arguments)
        scopes = tool.scopes_of(made)
        if scopes is None and not isolated:
            return Context.of(state).log(state)
        return Context.of(state).view(scopes or (), made.get("_instance"))

    def outcome(self, value: Any) -> dict[str, Any]:
        """A tool may return a message: a data message, or text for the model."""
        return returned(value)

    def detaches(self, call: CallState) -> bool:
        """Whether its tool is detached (SEMANTICS.md, 10. Detached tools)."""
        return is_detached((self.tools_by_name or {}).get(call.name))

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """The delegate that performs the call, where one does."""
        return self.delegates.loop_for((self.tools_by_name or {}).get(call.name), call)

    def input_for(self, call: CallState, state: State) -> Any:
        """The call's parameters, and what its scopes let a delegate see."""
        tool, delegate = (self.tools_by_name or {}).get(call.name), self.loop_for(call, state)
        if delegate is None or not isinstance(tool, SchemaTool):
            return super().input_for(call, state)
        return delegate_input(delegate, call.arguments, self._seen(tool, call, state, isolated=True))
