"""Writing to the context's data: the five output methods (SEMANTICS.md, 2. Messages and data).

The data of an identity is a fold: every write changes what stands at its path, in the order of the writes, and a read
is a look at the result. So a leaf below something that was overwritten is gone, and what was merged is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from agentnb.loops.execution_loop.references import MISSING, copied, step_into


def _set(old: Any, new: Any) -> Any:
    return new


def merged(old: Any, new: Any) -> Any:
    """Objects become one at every depth; everything else is replaced."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    for key, value in new.items():
        old[key] = merged(old.get(key, MISSING), value)
    return old


def _assign(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def _push(old: Any, new: Any) -> Any:
    items = _as_list(old)
    items.append(new)
    return items


def _concat(old: Any, new: Any) -> Any:
    if isinstance(new, str) and (isinstance(old, str) or old is MISSING):
        return new if old is MISSING else old + new
    items = _as_list(old)
    items += new if isinstance(new, list) else [new]
    return items


def _as_list(old: Any) -> list[Any]:
    if isinstance(old, list):
        return old
    return [] if old is MISSING or old is None else [old]


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "set": _set,
    "merge": merged,
    "assign": _assign,
    "push": _push,
    "concat": _concat,
}


def written(root: Any, keys: Sequence[str], value: Any, method: str = "set") -> Any:
    """The data after `value` was written where `keys` lead to; `root` itself is changed. Copies the value."""
    apply, value = METHODS[method], copied(value)
    if not keys:
        return apply(root, value)
    root = container = root if _holds(root, keys[0]) else {}
    for key, below in pairwise(keys):
        child = step_into(container, key)
        if not _holds(child, below):  # what stood there is overwritten
            child = {}
            _put(container, key, child)
        container = child
    _put(container, keys[-1], apply(step_into(container, keys[-1]), value))
    return root


def _holds(container: Any, key: str) -> bool:
    """Whether something may stand under this key: an object takes every key, a list those of its items and the next."""
    if isinstance(container, list):
        return key.isdecimal() and int(key) <= len(container)
    return isinstance(container, dict)


def _put(container: Any, key: str, value: Any) -> None:
    if isinstance(container, dict):
        container[key] = value
    elif int(key) < len(container):
        container[int(key)] = value
    else:
        container.append(value)
