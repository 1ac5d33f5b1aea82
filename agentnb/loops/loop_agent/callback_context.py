"""CallbackContext: the argument of the callbacks before and after an agent (SEMANTICS.md, 2. Vocabulary)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from agentnb.core.errors import InvalidArguments
from agentnb.loops.loop_agent.context import InvocationContext, Session
from agentnb.loops.loop_agent.event import Event, EventActions
from agentnb.tools.context import State


class ToolConfirmation(BaseModel):
    """A question to a person about a call: a hint, the answer, and additional data."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)

    hint: str = ""
    confirmed: bool = False
    payload: Any = None

    @classmethod
    def from_response_dict(cls, response: dict[str, Any]) -> ToolConfirmation:
        """Read the answer from the response of a function call. A client may send it as text in `response`."""
        is_text = response.keys() == {"response"} and isinstance(response["response"], str)
        return cls.model_validate_json(response["response"]) if is_text else cls.model_validate(response)


class ReadonlyContext:
    """Read access to an invocation."""

    def __init__(self, invocation_context: InvocationContext) -> None:
        self._invocation_context = invocation_context

    @property
    def user_content(self) -> Any:
        """The user's input, with which the invocation started."""
        return self._invocation_context.user_content

    @property
    def invocation_id(self) -> str:
        """The id of the invocation."""
        return self._invocation_context.invocation_id

    @property
    def agent_name(self) -> str:
        """The name of the running agent."""
        agent = self._invocation_context.agent
        return str(agent.name) if agent is not None else "unknown"

    @property
    def state(self) -> Any:
        """The state of the session, read-only."""
        return MappingProxyType(self._invocation_context.session.state)

    @property
    def session(self) -> Session:
        """The session."""
        return self._invocation_context.session

    @property
    def user_id(self) -> str:
        """The id of the session's user."""
        return self._invocation_context.user_id

    @property
    def run_config(self) -> Any:
        """The given `run_config`, or None."""
        return self._invocation_context.run_config

    @property
    def custom_metadata(self) -> Mapping[str, Any]:
        """The metadata of the invocation, read-only."""
        return MappingProxyType(self._invocation_context._custom_metadata)

    @property
    def is_aborted(self) -> bool:
        """True if the invocation was aborted."""
        return self._invocation_context.is_aborted

    def get_credential(self, key: str) -> Any:
        """Return the credential of this key in `credential_by_key`, or None."""
        return self._invocation_context.credential_by_key.get(key)


class CallbackContext(ReadonlyContext):
    """The argument `callback_context` of a callback before or after an agent.

    `state` is the state of the session. Changes to it are emitted in an event of the agent; `actions` are the actions
    of that event. The attributes of the `InvocationContext` can be read here, too, and `end_invocation` can be set.
    function_call_id, tool_confirmation: the call that the context is about, and a person's answer about it. The methods
    for artifacts, credentials and memory call the services of the `InvocationContext`; they raise InvalidArguments, a
    ValueError, if a service is missing. Attributes of the published workflows (`node`, `attempt_count` and others) have
    the values that they have outside of a workflow.
    """

    def __init__(
        self,
        invocation_context: InvocationContext,
        *,
        event_actions: EventActions | None = None,
        function_call_id: str | None = None,
        tool_confirmation: ToolConfirmation | None = None,
        parent_ctx: Any = None,
        node: Any = None,
        node_path: str | None = None,
        run_id: str = "",
        resume_inputs: dict[str, Any] | None = None,
        attempt_count: int = 1,
    ) -> None:
        super().__init__(invocation_context)
        self._event_actions = event_actions if event_actions is not None else EventActions()
        self._state = State(invocation_context.session.state, self._event_actions.state_delta)
        self.function_call_id = function_call_id
        self.tool_confirmation = tool_confirmation
        self.parent_ctx, self.node = parent_ctx, node
        self.node_path = node_path or invocation_context.node_path or ""
        self.run_id = run_id or "1"
        self.resume_inputs = resume_inputs or {}
        self.attempt_count = attempt_count
        self.isolation_scope = invocation_context.isolation_scope
        self.event_author = ""
        self.interrupt_ids: set[str] = set()
        self.error: Exception | None = None
        self.error_node_path = ""
        self.route: Any = None
        self._output: Any = None

    @property
    def output(self) -> Any:
        """A value that a callback can set once. The loops do not use it."""
        return self._output

    @output.setter
    def output(self, value: Any) -> None:
        if self._output is not None:
            raise InvalidArguments("output is already set, and can be set only once.")
        self._output = value

    @property
    def state(self) -> State:
        """The state of the session. A change becomes part of the callback's event."""
        return self._state

    @property
    def actions(self) -> EventActions:
        """The actions of the callback's event."""
        self._state.note_changes_inside()
        return self._event_actions

    @property
    def custom_metadata(self) -> dict[str, Any]:
        """The metadata of the invocation."""
        return self._invocation_context._custom_metadata

    def request_confirmation(self, *, hint: str | None = None, payload: Any = None) -> None:
        """Ask a person about the call: add the question to the actions. Raises InvalidArguments if there is no call."""
        if not self.function_call_id:
            raise InvalidArguments(
                "request_confirmation requires function_call_id, which this context does not have. Pass"
                " function_call_id= to CallbackContext."
            )
        asked = ToolConfirmation(hint=hint or "", payload=payload)
        self._event_actions.requested_tool_confirmations[self.function_call_id] = asked

    def render_ui_widget(self, ui_widget: Any) -> None:
        """Add a widget to the actions. Raises InvalidArguments if they already have a widget with this id."""
        widgets = self._event_actions.render_ui_widgets = self._event_actions.render_ui_widgets or []
        if any(widget.id == ui_widget.id for widget in widgets):
            raise InvalidArguments(f"The actions already have a widget {ui_widget.id!r}.")
        widgets.append(ui_widget)

    # -- services --------------------------------------------------------------------------------------------------

    async def load_artifact(self, filename: str, version: int | None = None) -> Any:
        """Load an artifact from the artifact service."""
        service = self._service("artifact")
        return await service.load_artifact(**self._scope, filename=filename, version=version)

    async def save_artifact(self, filename: str, artifact: Any, custom_metadata: dict[str, Any] | None = None) -> int:
        """Save an artifact in the artifact service. Returns its version, which is also added to the actions."""
        given = {"filename": filename, "artifact": artifact, "custom_metadata": custom_metadata}
        version: int = await self._service("artifact").save_artifact(**self._scope, **given)
        self._event_actions.artifact_delta[filename] = version
        return version

    async def get_artifact_version(self, filename: str, version: int | None = None) -> Any:
        """Return the artifact service's description of a version of an artifact."""
        service = self._service("artifact")
        return await service.get_artifact_version(**self._scope, filename=filename, version=version)

    async def list_artifacts(self) -> list[str]:
        """Return the names of the session's artifacts in the artifact service."""
        names: list[str] = await self._service("artifact").list_artifact_keys(**self._scope)
        return names

    async def save_credential(self, auth_config: Any) -> None:
        """Save a credential in the credential service."""
        await self._service("credential").save_credential(auth_config, self)

    async def load_credential(self, auth_config: Any) -> Any:
        """Load a credential from the credential service."""
        return await self._service("credential").load_credential(auth_config, self)

    def get_auth_response(self, auth_config: Any) -> Any:
        """Raise InvalidArguments: agentnb does not include logins of users."""
        raise InvalidArguments("get_auth_response is for ADK's logins, which agentnb does not include.")

    def request_credential(self, auth_config: Any) -> None:
        """Raise InvalidArguments: agentnb does not include logins of users."""
        raise InvalidArguments("request_credential is for ADK's logins, which agentnb does not include.")

    async def add_session_to_memory(self) -> None:
        """Add the session to the memory service."""
        await self._service("memory").add_session_to_memory(self.session)

    async def add_events_to_memory(
        self, *, events: Sequence[Event], custom_metadata: Mapping[str, object] | None = None
    ) -> None:
        """Add events to the memory service."""
        service = self._service("memory")
        await service.add_events_to_memory(**self._scope, events=events, custom_metadata=custom_metadata)

    async def add_memory(self, *, memories: Sequence[Any], custom_metadata: Mapping[str, object] | None = None) -> None:
        """Add memories to the memory service."""
        given = {"memories": memories, "custom_metadata": custom_metadata}
        await self._service("memory").add_memory(**self._app_and_user, **given)

    async def search_memory(self, query: str) -> Any:
        """Search the memory service."""
        return await self._service("memory").search_memory(**self._app_and_user, query=query)

    async def delete_memory(self, memory_id: str | None = None) -> None:
        """Delete a memory from the memory service."""
        await self._service("memory").delete_memory(**self._app_and_user, memory_id=memory_id)

    async def run_node(self, node: Any, node_input: Any = None, **options: Any) -> Any:
        """Raise InvalidArguments: agentnb has no workflows."""
        raise InvalidArguments(
            "run_node is for ADK's workflows, which agentnb does not include. Use agent.run_async(ctx)."
        )

    def _service(self, kind: str) -> Any:
        service = getattr(self._invocation_context, f"{kind}_service")
        if service is None:
            raise InvalidArguments(f"There is no {kind} service. Pass one by InvocationContext({kind}_service=...).")
        return service

    @property
    def _app_and_user(self) -> dict[str, str]:
        return {"app_name": self.session.app_name, "user_id": self.session.user_id}

    @property
    def _scope(self) -> dict[str, str]:
        return {**self._app_and_user, "session_id": self.session.id}

    @property
    def branch(self) -> str | None:
        """The branch of the invocation."""
        return self._invocation_context.branch

    @property
    def end_invocation(self) -> bool:
        """True if the invocation is to end after the current agent."""
        return self._invocation_context.end_invocation

    @end_invocation.setter
    def end_invocation(self, value: bool) -> None:
        self._invocation_context.end_invocation = value

    def get_invocation_context(self) -> InvocationContext:
        """Return the context of the invocation."""
        return self._invocation_context

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._invocation_context, name)
