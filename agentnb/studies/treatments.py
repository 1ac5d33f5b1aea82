"""Treatments: what is done to the inputs of one arm of a study, as far as a recording can tell.

A treatment has parts, each with a short text: the settings of the loop, the system prompt, the tools, the model, nested
loops, the options of `start`, and the values of the arm. Two runs are of one arm only if their parts are equal. Most
parts are in the first event of a run (`RunStart`); the others, such as the model, are in its data.

A part that depends on the seed of a run, as the factory makes it, is left out. A function can only be compared by its
name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentnb.core.events import RunStart
from agentnb.core.json import is_json, same_json
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.llms.description import described
from agentnb.run.approvals.recorded_policy import recorded_policy
from agentnb.run.frame import Frame
from agentnb.run.gate.names import designs_in
from agentnb.run.validation import checked_options

LONGEST = 60
"""The number of characters up to which a part is kept as it is. Of a longer one the beginning and a hash are kept."""

DATA = "treatment"
"""The name of the treatment in the data of a run: a mapping with `id` and the `parts` that its first event lacks."""

Parts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Treatment:
    """The parts that the first event of a run has, and the others, which are in its data."""

    in_start: Parts
    others: Parts

    @property
    def id(self) -> str:
        """The short text by which tables tell treatments apart."""
        every = json.dumps({**self.in_start, **self.others}, sort_keys=True)
        return hashlib.sha256(every.encode()).hexdigest()[:8]

    def differences(self, start: RunStart) -> list[str]:
        """Return a text for each part that differs from that of a recorded run. Parts of one side only do not count.

        (A recording of an older version has fewer parts, and one of a newer version has more settings.)
        """
        now = {**self.in_start, **self.others}
        return [
            f"{name} was {before or 'empty'} and is {now[name] or 'empty'}"
            for name, before in _recorded_parts(start).items()
            if name in now and now[name] != before
        ]


def treatment_of(loop: Design, options: Mapping[str, Any], values: Mapping[str, Any]) -> Treatment:
    """Return the treatment of a run of this loop. options: those of `start`. values: the values of the arm."""
    frame = Frame(loop, State())
    in_start = _parts_of_loop(loop.config(), frame.requests.system_prompt, frame.fingerprints)
    in_start |= {
        "approve": _brief(recorded_policy(options.get("approve"))),
        "limits": _brief(dict(options.get("limits") or {})),
        "on_limit": options.get("on_limit") or "end",
        "options": _brief(checked_options(options.get("options"))),
    }
    others = {"model": _model(loop)}
    for inner in list(designs_in(loop))[1:]:
        of_inner = Frame(inner, State())
        parts = _parts_of_loop(inner.config(), of_inner.requests.system_prompt, of_inner.fingerprints)
        parts["model"] = _model(inner)
        others |= {f"{name} of {inner.name}": text for name, text in parts.items()}
    others |= {f"the value of {factor}": _value(value) for factor, value in values.items()}
    return Treatment(in_start, others)


def common_treatment(treatments: Sequence[Treatment]) -> Treatment:
    """Return the parts that are equal in all treatments."""
    first = treatments[0]

    def common(name: Literal["in_start", "others"]) -> Parts:
        of_others = [getattr(one, name) for one in treatments[1:]]
        return {
            part: text for part, text in getattr(first, name).items() if all(one.get(part) == text for one in of_others)
        }

    return Treatment(common("in_start"), common("others"))


def _recorded_parts(start: RunStart) -> Parts:
    """Return the parts of the treatment of a recorded run. One of an older version may have fewer."""
    prompt = start.system_prompt if start.system_prompt is not None else start.config.get("system_prompt")
    found = _parts_of_loop(start.config, prompt, start.tools) | {
        "approve": _brief(start.approve),
        "limits": _brief(start.limits),
        "on_limit": start.on_limit,
        "options": _brief(start.model_options),
    }
    more = start.data.get(DATA)
    parts = more.get("parts") if isinstance(more, Mapping) else None
    return {**found, **parts} if isinstance(parts, Mapping) else found


def _parts_of_loop(config: Mapping[str, Any], system_prompt: Any, tools: Mapping[str, str]) -> Parts:
    parts = {f"setting {name}": _brief(value) for name, value in config.items() if name != "system_prompt"}
    parts["system prompt"] = _brief(system_prompt)
    parts["tools"] = _brief(sorted(tools)) if tools else ""
    return parts | {f"tool {name}": fingerprint for name, fingerprint in tools.items()}


def _model(loop: Design) -> str:
    if loop.llm is None:
        return ""
    provider, model, given = described(loop.llm, {})
    return _brief([provider, model, *([given] if given else [])])


def _value(value: Any) -> str:
    """Return the value of an arm as text: of an object that is not JSON, its name or its type."""
    if is_json(value):
        return _brief(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__


def _brief(value: Any) -> str:
    if value is None or same_json(value, {}):
        return ""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    if len(text) <= LONGEST:
        return repr(text) if isinstance(value, str) else text
    return f"{text[:LONGEST]!r}... (#{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]})"
