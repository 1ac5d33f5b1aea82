"""ATIF: trajectories of Harbor and of the agents that it runs (Agent Trajectory Interchange Format, 1.0 to 1.8).

A step of the agent is a request, its calls and their results. An observation without a call is a message from the
environment. Embedded trajectories of sub-agents (version 1.7) become nested loops. A reference to another file is
counted in `lost`: no path in a file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from agentnb.core.errors import VersionMismatch
from agentnb.core.events import Event, Outcome
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.content import content_of, openai_usage
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, numbers, seconds

name = "ATIF"
id_of = id
NEWEST = (1, 8)


def recognises(file: ForeignFile) -> bool:
    """Return True for a JSON object with ATIF's schema version and steps."""
    document = file.document
    return isinstance(document, dict) and str(document.get("schema_version", "")).upper().startswith("ATIF")


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of a trajectory."""
    document = file.document
    version = str(document["schema_version"])
    number = tuple(int(part) for part in version.upper().removeprefix("ATIF-V").split(".") if part.isdigit())
    if not number or number[0] != NEWEST[0]:
        raise VersionMismatch(f"{file.path} is of the version {version}; agentnb reads ATIF-v1.0 to v1.8.")
    if not isinstance(document.get("steps"), list):
        raise file.refused("it is a trajectory without a list of steps.")
    about = _about(document)
    writer = Writer(file.lost, name=_name(document), about=about)
    yield from _trajectory(file, document, writer, above=())
    yield from writer.start()


def _name(document: Mapping[str, Any]) -> str:
    agent = document.get("agent")
    return str(agent.get("name") or "agent") if isinstance(agent, Mapping) else "agent"


def _about(document: Mapping[str, Any]) -> dict[str, Any]:
    given = document.get("agent")
    agent: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    about = {
        "version": document.get("schema_version"),
        "id": document.get("trajectory_id") or document.get("session_id"),
        "agent": {key: value for key, value in agent.items() if key != "tool_definitions"},
        "tools": agent.get("tool_definitions"),
        "notes": document.get("notes"),
        "final_metrics": document.get("final_metrics"),
        "extra": document.get("extra"),
        "usage": openai_usage(_totals(document.get("final_metrics"))),
        "continues_in": document.get("continued_trajectory_ref"),
    }
    kept: dict[str, Any] = to_json_data({key: value for key, value in about.items() if value not in (None, {}, [])})
    return kept


def _totals(given: Any) -> dict[str, Any]:
    """Return the totals of a trajectory under the names of the metrics of a step."""
    totals: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    return {str(name).removeprefix("total_"): amount for name, amount in totals.items()}


def _trajectory(
    file: ForeignFile, document: Mapping[str, Any], writer: Writer, above: tuple[int, ...]
) -> Iterator[Event]:
    """Yield the events of a trajectory. above: the identities of the trajectories around it."""
    found = document.get("subagent_trajectories")
    embedded = {
        str(one.get("trajectory_id") or one.get("session_id")): one
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, Mapping) and id_of(one) not in above
    }
    used: set[str] = set()
    agent = document.get("agent")
    model = agent.get("model_name") if isinstance(agent, Mapping) else None
    steps = document.get("steps")
    for number, step in enumerate(steps if isinstance(steps, list) else (), 1):
        if not isinstance(step, Mapping):
            file.damaged(f"step {number} is not an object", "damaged steps")
            continue
        time = seconds(step.get("timestamp"), file.lost)
        if step.get("source") == "agent":
            yield from _agent_step(file, step, number, writer, time, model)
        else:
            role = "system" if step.get("source") == "system" else "user"
            details = _details(step)
            yield from writer.message(
                Message(role=role, content=content_of(step.get("message")), details=details), time
            )
        yield from _observation(file, document, step, number, writer, time, (embedded, used), above)
    for _ in range(len(embedded) - len(used)):
        file.lost["sub-agents that no call refers to"] += 1


def _agent_step(
    file: ForeignFile, step: Mapping[str, Any], number: int, writer: Writer, time: float, model: Any
) -> Iterator[Event]:
    """Yield the request of a step of the agent and its answer."""
    calls: list[Call] = []
    given = step.get("tool_calls")
    for call in given if isinstance(given, list) else ():
        if not isinstance(call, Mapping):
            file.lost["calls that are not objects"] += 1
            continue
        id, name = call.get("tool_call_id"), call.get("function_name")
        calls.append(
            Call(id=str(id or f"step_{number}_{len(calls) + 1}"), name=str(name or ""), arguments=call.get("arguments"))
        )
    metrics = step.get("metrics") if isinstance(step.get("metrics"), Mapping) else {}
    assert isinstance(metrics, Mapping)
    usage = {
        "input_tokens": metrics.get("prompt_tokens"),
        "output_tokens": metrics.get("completion_tokens"),
        "cache_read_tokens": metrics.get("cached_tokens"),
        "cost": metrics.get("cost_usd"),
    }
    # What the vocabulary of events has no field for is kept as details of the answer.
    rest = {key: value for key, value in metrics.items() if key not in _USAGE and value not in (None, [], {})}
    if isinstance(more := rest.get("extra"), Mapping):  # ATIF has no fields for these counts
        counts = numbers({name: more[name] for name in ("reasoning_tokens", "cache_write_tokens") if name in more})
        usage |= counts
        rest["extra"] = {name: value for name, value in more.items() if name not in counts}
        rest = {key: value for key, value in rest.items() if value}
    details = {**({"metrics": rest} if rest else {}), **(_details(step) or {})}
    extra, facts = details.get("extra"), {}
    if isinstance(extra, Mapping):
        facts = {name: extra[name] for name in _FACTS if isinstance(extra.get(name), str)}
        details["extra"] = {name: value for name, value in extra.items() if name not in facts}
        details = {name: value for name, value in details.items() if value}
    thoughts = step.get("reasoning_content")
    answer = Answer(
        content=content_of(step.get("message")),
        calls=calls,
        reasoning=[{"text": thoughts}] if isinstance(thoughts, str) and thoughts else [],
        details=to_json_data(details) if details else None,
        usage={key: value for key, value in usage.items() if value is not None},
        model=str(step.get("model_name") or model or "") or None,
        **facts,
    )
    yield from writer.answer(answer, time)


_USAGE = frozenset({"prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd"})
_FACTS = ("finish_reason", "stop_reason", "response_id")
"""What agentnb's exporter, and others, write of an answer in `extra`."""
_DETAILS = ("reasoning_effort", "is_copied_context", "llm_call_count", "extra")


def _details(step: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a step has and a message has no field for; None if there is nothing."""
    given = {key: step[key] for key in _DETAILS if key in step}
    kept = {key: value for key, value in given.items() if value not in (None, [], {}) and value is not False}
    details: dict[str, Any] = to_json_data(kept)
    return details or None


def _observation(
    file: ForeignFile,
    document: Mapping[str, Any],
    step: Mapping[str, Any],
    number: int,
    writer: Writer,
    time: float,
    embedded: tuple[dict[str, Mapping[str, Any]], set[str]],
    above: tuple[int, ...],
) -> Iterator[Event]:
    """Yield the results of a step's calls, with the sub-agents that performed them, and what the environment said."""
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, Mapping) else None
    for result in results if isinstance(results, list) else ():
        if not isinstance(result, Mapping):
            file.lost["results that are not objects"] += 1
            continue
        id = str(result.get("source_call_id") or "")
        refs = result.get("subagent_trajectory_ref")
        refs = refs if isinstance(refs, list) else [refs] if refs else []
        for ref in refs:
            yield from _sub_agent(file, ref, id, writer, embedded, (*above, id_of(document)))
        if id and writer.is_open(id):
            extra = result.get("extra")
            extras: Mapping[str, Any] = extra if isinstance(extra, Mapping) else {}
            outcome = extras.get("outcome") if extras.get("outcome") in get_args(Outcome) else None
            content, is_error = content_of(result.get("content")), extras.get("is_error") is True
            read = [*["is_error"] * is_error, *["outcome"] * (outcome is not None)]
            details = {key: value for key, value in extras.items() if key not in read} or (None if extras else extra)
            yield from writer.result(id, content, time, is_error=is_error, outcome=outcome, details=details)
        elif result.get("content") not in (None, "", []):
            # Without a call, it is what the environment tells the agent.
            said = Message(role="user", content=content_of(result["content"]), details={"source": "observation"})
            yield from writer.message(said, time)


def _sub_agent(
    file: ForeignFile,
    ref: Any,
    call: str,
    writer: Writer,
    embedded: tuple[dict[str, Mapping[str, Any]], set[str]],
    above: tuple[int, ...],
) -> Iterator[Event]:
    """Yield the events of an embedded sub-agent."""
    known, used = embedded
    ids = [str(ref.get(key)) for key in ("trajectory_id", "session_id")] if isinstance(ref, Mapping) else []
    id = next((one for one in ids if one in known and one not in used), None)
    if id is None:
        file.lost["sub-agents in other files"] += 1
        return
    if not writer.is_open(call):
        return  # counted at the end, as one that no call refers to
    used.add(id)
    yield from writer.begin(call)
    inside = writer.nested(call, _name(known[id]), _about(known[id]))
    if inside is not None:
        yield from _trajectory(file, known[id], inside, above)
        yield from inside.end("completed")
