"""The tree of agents: each has a name, and sub-agents with no other parent (SEMANTICS.md, 2. Vocabulary)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import get_annotations
from typing import Any, Self

from pydantic.fields import FieldInfo, ModelPrivateAttr

from agentnb.core.errors import InvalidArguments
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.callback_context import CallbackContext

logger = logging.getLogger("agentnb")

Callback = Callable[[CallbackContext], Any]
Callbacks = Callback | Sequence[Callback] | None

_OWN = ("name", "description", "sub_agents", "before_agent_callback", "after_agent_callback")
"""The attributes that every agent is made with."""

_OF_WORKFLOWS = (
    *("rerun_on_resume", "wait_for_output", "retry_config", "timeout"),
    *("input_schema", "output_schema", "state_schema"),
)
"""The attributes of ADK's agents that its workflows use, and nothing else."""


class AgentInTree(Loop):
    """What an agent is made of: its name, what it is for, its sub-agents, and the callbacks around it."""

    rerun_on_resume: Any = False
    wait_for_output: Any = False
    retry_config: Any = None
    timeout: Any = None
    input_schema: Any = None
    output_schema: Any = None
    state_schema: Any = None

    def __init__(
        self,
        name: str | None = None,
        sub_agents: Sequence[Any] = (),
        *,
        description: str = "",
        before_agent_callback: Callbacks = None,
        after_agent_callback: Callbacks = None,
        **attributes: Any,
    ) -> None:
        super().__init__(name=name)
        for attribute, value in _declared(type(self)).items():
            setattr(self, attribute, value)
        _check_name(name if name == "" else self.name)
        self.description = description
        if isinstance(sub_agents, (str, Loop)) or not isinstance(sub_agents, Iterable):
            raise InvalidArguments(f"sub_agents= of {self.name} takes a list of agents, not {sub_agents!r}.")
        if others := [agent for agent in sub_agents if not isinstance(agent, Loop)]:
            raise InvalidArguments(f"A sub-agent of {self.name} is an agent or another loop, not {others[0]!r}.")
        self.sub_agents: list[Loop] = list(sub_agents)
        self.parent_agent: AgentInTree | None = None
        callbacks: list[object] = [*each_of(before_agent_callback), *each_of(after_agent_callback)]
        if odd := [callback for callback in callbacks if not callable(callback)]:
            raise InvalidArguments(f"A callback of {self.name} is a function, or a list of them, not {odd[0]!r}.")
        self.before_agent_callback = before_agent_callback
        self.after_agent_callback = after_agent_callback
        self._check_declared(attributes)
        for attribute, value in attributes.items():
            setattr(self, attribute, value)
        self._adopt()
        self._bind()
        self.model_post_init(None)

    def model_post_init(self, context: Any, /) -> None:
        """Do what a subclass has to do once the agent is made."""

    def _adopt(self) -> None:
        names = [agent.name for agent in self.sub_agents]
        for agent in self.sub_agents:
            if names.count(agent.name) > 1:
                raise InvalidArguments(f"Two sub-agents of {self.name} are called {agent.name}.")
            if isinstance(agent, AgentInTree) and agent.parent_agent is not None:
                raise InvalidArguments(f"{agent.name} has a parent already: {agent.parent_agent.name}.")
        for agent in self.sub_agents:
            if isinstance(agent, AgentInTree):
                agent.parent_agent = self
        names = [self.name, *(agent.name for agent in self._below())]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            logger.warning("Agents of %s share a name (%s): where they stand is kept by name.", self.name, twice)

    def _below(self) -> Iterator[Loop]:
        for agent in self.sub_agents:
            yield agent
            if isinstance(agent, AgentInTree):
                yield from agent._below()

    def _check_declared(self, attributes: Mapping[str, Any]) -> None:
        """Raise InvalidArguments for a keyword that no class of the agent declares: it is probably misspelt."""
        kind = type(self)
        if getattr(kind, "model_config", {}).get("extra") == "allow":
            return
        declared = [*_fields_of(kind), *self._more_fields]
        for attribute in attributes:
            is_of_workflows = attribute in _OF_WORKFLOWS and attribute not in declared
            if is_of_workflows and attributes[attribute] != getattr(kind, attribute):
                raise InvalidArguments(f"{attribute}= is for ADK's workflows, which are not part of agentnb.")
            if attribute not in declared and callable(getattr(kind, attribute, max)):
                close = get_close_matches(attribute, [*_OWN, *declared], 1)
                meant = f"; {close[0]}= is probably meant" if close else ""
                raise InvalidArguments(
                    f"{kind.__name__} takes no {attribute}={meant}. An attribute of your own is declared in the class:"
                    f" `{attribute}: Any`."
                )
        missing = [name for name in _fields_of(kind) if name not in attributes and not hasattr(self, name)]
        if missing and not _has_own_init(kind):
            raise InvalidArguments(f"{kind.__name__} needs {missing[0]}=: the class declares it without a default.")

    _more_fields: tuple[str, ...] = ()
    """The attributes that this kind of agent is made with, besides those that every agent has."""

    @property
    def root_agent(self) -> AgentInTree:
        """The outermost of the agents around it; itself where it has no parent."""
        return list(self.around())[-1] if self.parent_agent is not None else self

    def clone(self, update: Mapping[str, Any] | None = None) -> Self:
        """Copy the agent, and the agents below it; the copy has no parent. Loops of other designs are not copied.

        update: other values of attributes, by name. A callback that is a method of the agent becomes the copy's.

        Raises InvalidArguments for `parent_agent`, and for an attribute that the agent is not made with.
        """
        changed = dict(update or {})
        fields = (*_OWN, *self._more_fields, *_fields_of(type(self)))
        if "parent_agent" in changed:
            raise InvalidArguments(
                "Cannot update `parent_agent` field in clone: a copy gets its parent where it is made a sub-agent."
            )
        if unknown := [name for name in changed if name not in fields]:
            kind, has = type(self).__name__, ", ".join(fields)
            raise InvalidArguments(f"Cannot update nonexistent fields in {kind}: {unknown}; it has {has}.")
        cloned = copy.copy(self)
        for name, value in vars(self).items():
            setattr(cloned, name, _bound_to(cloned, self, value))
        cloned.parent_agent = None
        cloned.sub_agents = [agent.clone() if isinstance(agent, AgentInTree) else agent for agent in self.sub_agents]
        for name, value in changed.items():
            setattr(cloned, name, list(value) if name == "sub_agents" else value)
        _check_name(cloned.name)
        cloned._adopt()
        cloned._bind()
        return cloned

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Copy the agent alone: the copy has the same parent and the same sub-agents. `clone` copies those below too.

        update: other values of attributes, by name.
        """
        copied = copy.copy(self)
        for name, value in (update or {}).items():
            setattr(copied, name, value)
        _check_name(copied.name)
        copied._bind()
        return copied

    def _bind(self) -> None:
        """Set what refers to this very object."""

    def find_agent(self, name: str) -> Loop | None:
        """The agent of that name, here or below."""
        return self if name == self.name else self.find_sub_agent(name)

    def find_sub_agent(self, name: str) -> Loop | None:
        """The agent of that name, below."""
        return next((agent for agent in self._below() if agent.name == name), None)

    def reach(self, scope: str | None) -> int:
        """How far out an escalation of this agent leaves: None is none, and a name that is not around it all."""
        if scope is None:
            return -1
        names = ["nearest", *(agent.name for agent in self.around())]
        return names.index(scope) if scope in names else len(names)

    def around(self) -> Iterator[AgentInTree]:
        """The agents whose sub-agent it is, from the inside out."""
        agent = self.parent_agent
        while agent is not None:
            yield agent
            agent = agent.parent_agent


def each_of(callbacks: Callbacks) -> Sequence[Callback]:
    """The callbacks, in the order in which they are asked."""
    if callbacks is None:
        return ()
    return callbacks if isinstance(callbacks, (list, tuple)) else (callbacks,)


def _check_name(name: str) -> None:
    if not name.isidentifier() or name == "user":
        raise InvalidArguments(f"An agent's name is an identifier, and not 'user'; {name!r} is none.")


def _fields_of(kind: type) -> list[str]:
    """The attributes that the classes of an agent declare, by their annotations."""
    bases = [base for base in kind.__mro__ if base not in AgentInTree.__mro__]
    declared = {name: kind for base in bases for name, kind in get_annotations(base).items()}
    return [name for name, kind in declared.items() if "ClassVar" not in str(kind) and not name.startswith("_")]


def _has_own_init(kind: type) -> bool:
    """Whether a class is made in a way of its own, which may give it its attributes later."""
    own = next(base for base in kind.__mro__ if "__init__" in vars(base))
    return not own.__module__.startswith("agentnb.loops.loop_agent")


def _bound_to(cloned: AgentInTree, agent: AgentInTree, value: Any) -> Any:
    """A value for a copy: what is a method of the agent itself becomes the copy's."""
    if isinstance(value, list):
        return [_bound_to(cloned, agent, item) for item in value]
    return value.__func__.__get__(cloned) if getattr(value, "__self__", None) is agent else value


def _declared(kind: type) -> dict[str, Any]:
    """The defaults of the attributes that a subclass declares as a pydantic model does: no two agents share one."""
    declared: dict[str, Any] = {}
    for base in reversed([base for base in kind.__mro__ if base not in AgentInTree.__mro__]):  # which declare none
        for attribute, value in vars(base).items():
            if isinstance(value, FieldInfo) and not value.is_required():
                declared[attribute] = value.get_default(call_default_factory=True, validated_data={})
            elif isinstance(value, ModelPrivateAttr):
                declared[attribute] = _private_default(value)
            elif isinstance(value, (list, dict, set)) and _is_a_field(base, attribute):
                declared[attribute] = copy.deepcopy(value)
    return declared


def _is_a_field(kind: type, attribute: str) -> bool:
    annotation = get_annotations(kind).get(attribute)
    return annotation is not None and "ClassVar" not in str(annotation)


def _private_default(value: ModelPrivateAttr) -> Any:
    factory: Callable[[], Any] | None = value.default_factory  # type: ignore[assignment]  # not one that takes the model
    return factory() if factory is not None else copy.deepcopy(value.default)
