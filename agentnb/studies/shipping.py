"""Shipping a study to its workers: it is pickled by cloudpickle, and what cannot be pickled is named.

cloudpickle sends functions and classes of a notebook by value. A lock, an open file, a connection or a store cannot be
sent. The error of pickle names the lock, but not where it is; here the part of the study is found that has it.
"""

from __future__ import annotations

import inspect
import os
import pickle
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError, printable
from agentnb.core.secrets import names_a_secret
from agentnb.core.tools import Tool
from agentnb.run.validation import shown
from agentnb.studies.recipe import Recipe

DEPTH = 6
"""The maximum number of steps from a part of the study to what cannot be pickled in it."""

SHORTEST_KEY = 12
"""The minimum length of a key of an environment variable that is looked for in what is sent to the workers."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker receives once: the recipe, the store, and who decides if no person is present.

    place: the path or the address of the store. policy, after: as declared by `agentnb.headless` in the notebook.
    """

    recipe: Recipe
    place: str
    policy: Any
    after: float


def pickled(plan: Plan) -> bytes:
    """Return the plan as bytes. Raises UsageError, which names the part that cannot be pickled, or that has a key."""
    try:
        import cloudpickle
    except ImportError:
        raise UsageError("executor= needs cloudpickle: pip install 'agentnb-toolkit[executors]'.") from None
    try:
        data = bytes(cloudpickle.dumps(plan))
    except Exception as error:  # of the objects themselves, as by __reduce__
        where, cause = _culprit(plan, error)
        raise UsageError(
            f"The study cannot be sent to the workers, because a part of it cannot be pickled: {where}:"
            f" {type(cause).__name__}: {printable(str(cause)).rstrip('.')}. Make it inside the function that makes the"
            " loop, so that each worker makes its own."
        ) from cause
    for variable, key in os.environ.items():
        is_key = names_a_secret(variable) and len(key) >= SHORTEST_KEY and not os.path.isabs(key)  # PWD is a folder
        if is_key and key.encode("utf-8", "replace") in data:
            where = next(
                (name for name, part in _parts(plan) if key.encode() in cloudpickle.dumps(part)), "a part of it"
            )
            raise UsageError(
                f"The study cannot be sent to the workers: {where} has the key in the environment variable {variable},"
                " and keys are not sent. Set the variable for the workers, and read it by os.environ in the function"
                " that makes the loop."
            )
    return data


def unpickled(plan: bytes) -> Plan:
    """Return a plan that `pickled` returned, in the process of a worker."""
    import cloudpickle

    found: Plan = cloudpickle.loads(plan)
    return found


def _culprit(plan: Plan, error: Exception) -> tuple[str, Exception]:
    """Return the innermost part of a study that cannot be pickled, as text, and its error."""
    for name, value in _parts(plan):
        if (failed := _failure(value)) is None:
            continue
        where = [name]
        for _ in range(DEPTH):
            inner = next(((n, v, e) for n, v in _inside(value) if (e := _failure(v)) is not None), None)
            if inner is None:
                break
            name, value, failed = inner
            where.append(f"{name} ({_described(value)})")
        return ", its ".join(where), failed
    return "the study", error


def _parts(plan: Plan) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a study that a person has given, each with its name."""
    grid = plan.recipe.grid
    yield f"make_loop ({grid.factory_name})", grid.make_loop
    for factor, values in grid.factors.items():
        yield from ((f"arms[{factor!r}], {label!r}", value) for label, value in values)
    yield from ((f"inputs[{number}]", input) for number, input in enumerate(grid.inputs))
    yield from ((f"{name}=", value) for name, value in grid.options.items())
    yield "the policy of agentnb.headless", plan.policy


def _failure(value: Any) -> Exception | None:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value consists of, each with its name."""
    if isinstance(value, types.MethodType):
        yield "object", value.__self__
    elif isinstance(value, types.FunctionType):
        try:
            found = inspect.getclosurevars(value)
        except ValueError:  # a variable that has no value yet
            return
        for name, used in {**found.nonlocals, **found.globals}.items():
            if not isinstance(used, types.ModuleType):
                yield f"variable {name}", used
        for number, default in enumerate(value.__defaults__ or ()):
            yield f"default {number}", default
    elif isinstance(value, Mapping):
        yield from ((f"item {key!r}", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"item {number}", item) for number, item in enumerate(value))
    elif not isinstance(value, type):
        try:
            reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:  # the object itself refuses
            return
        state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
        if isinstance(state, Mapping):
            yield from ((f"attribute {name}", item) for name, item in state.items())


def _described(value: Any) -> str:
    if isinstance(value, Tool):
        return f"the tool {value.name!r}"
    if hasattr(value, "stream") and not isinstance(value, type):
        return f"the model {shown(value)}"
    return shown(value)
