"""Plain lists of chat messages, in the formats of OpenAI and Anthropic, also as a request log or a cassette.

A file is a JSON list of messages, an object that has such a list (`messages`, `traj`, `conversation`, `input`), a body
of a request with its response, or JSON lines: of messages, or of such objects, each of which is a recording of its own.
A cassette (of VCR.py, as JSON or YAML) has the requests of a test with their responses. In a log of requests whose
messages continue each other, each request is one of the same conversation, with what is new in it and its response.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.content import anthropic_answer, content_of, openai_answer
from agentnb.importers.conversation import answer_of_items, said, usage_of
from agentnb.importers.source import ForeignFile, decode
from agentnb.importers.writer import Writer, error_of, seconds

name = "chat messages"

_LISTS = ("messages", "traj", "conversation", "conversations", "trajectory", "history", "input")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "human", "gpt", "ai", "model"})


_CASSETTE = b"interactions:"
_PARALLEL = 20
"""The maximum number of conversations in a log that are looked at to find the one that a request continues."""


def recognises(file: ForeignFile) -> bool:
    """Return True for messages with roles."""
    if file.data.startswith(_CASSETTE) or _is_cassette(file.document):
        return True
    if file.document is not None:
        value = file.document
        is_one = _is_messages(value) or _messages_in(value) is not None
        return is_one or _is_list_of_objects(value) or _simulations(value) is not None
    first = file.first
    return _is_message(first) or _messages_in(first) is not None


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of a conversation, or of one conversation after the other."""
    is_cassette = file.data.startswith(_CASSETTE) or _is_cassette(file.document)
    given: list[tuple[int, Any]]
    if is_cassette:
        given = list(enumerate(_cassette(file), 1))
    elif _is_list_of_objects(file.document):
        given = [(0, one) for one in file.document]
    elif (simulations := _simulations(file.document)) is not None:
        given = [(0, one) for one in simulations]
    elif file.document is not None:
        value = file.document
        yield from _conversation(file, [value if isinstance(value, Mapping) else {"messages": value}])
        return
    elif _is_message(file.first):
        yield from _conversation(file, [{"messages": [value for _, value in file.lines()]}])
        return
    else:
        given = list(file.lines())
    # The requests of each conversation: one that continues another follows it.
    conversations: list[list[Mapping[str, Any]]] = []
    for number, one in given:
        if _messages_in(one) is None:
            if is_cassette:
                file.lost["requests without messages"] += 1  # such as one for the list of models
            else:
                place = f"line {number} has no messages" if number else "an entry has no messages"
                file.damaged(place, "damaged lines")
            continue
        latest = reversed(conversations[-_PARALLEL:])
        found = next((requests for requests in latest if _continues(requests[-1], one)), None)
        if found is not None:
            found.append(one)
        else:
            conversations.append([one])
    for requests in conversations:
        yield from _conversation(file, requests)


def _is_cassette(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("interactions"), list)


def _cassette(file: ForeignFile) -> Iterator[Mapping[str, Any]]:
    """Yield the requests of a cassette with their responses, as a log of requests has them."""
    value = file.document if file.document is not None else _yaml(file)
    interactions = value.get("interactions") if isinstance(value, Mapping) else None
    for number, one in enumerate(interactions if isinstance(interactions, list) else (), 1):
        if isinstance(one, Mapping):
            yield {field: _body(file, one.get(field), f"{field} {number}") for field in ("request", "response")}
        else:
            file.damaged(f"interaction {number} is not an object", "damaged requests")


def _body(file: ForeignFile, side: Any, place: str) -> Any:
    """Return the JSON value of the body of a request or a response; None if it has none."""
    if not isinstance(side, Mapping):
        return None
    body = side.get("parsed_body", side.get("body"))
    if isinstance(body, Mapping) and body.keys() <= {"string", "base64_string", "encoding"}:
        body = body.get("string")
    if not isinstance(body, (str, bytes)) or not body:
        return body or None
    try:
        return decode(body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body)
    except ValueError:
        file.lost[f"bodies of a {place.split()[0]} that are not JSON"] += 1
        return None


def _yaml(file: ForeignFile) -> Any:
    """Return the data of a cassette in YAML. Nothing is constructed but plain data."""
    try:
        yaml: Any = import_module("yaml")
    except ImportError:
        raise UsageError(f"{file.path} is a cassette in YAML. Install a library for it: pip install pyyaml.") from None
    try:
        value = yaml.load(file.data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise file.refused(f"it is a damaged cassette: {' '.join(str(error).split())}.") from error
    # Aliases may repeat a value many times: a short text can be an endless one.
    if _extent(value, {}) > 10 * len(file.data) + 1000:
        raise file.refused("its aliases repeat too much.")
    return value


def _extent(value: Any, known: dict[int, float]) -> float:
    """Return the size of data when all that it repeats is written out; infinite if it contains itself."""
    if not isinstance(value, (dict, list)):
        return len(value) if isinstance(value, (str, bytes)) else 1
    if id(value) not in known:
        known[id(value)] = float("inf")
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_extent(one, known) for one in inner)
    return known[id(value)]


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    role, author, kind = (value.get(name) for name in ("role", "from", "type"))
    return (
        (isinstance(role, str) and role in _ROLES and bool(value.keys() & {"content", "tool_calls", "parts"}))
        or (isinstance(author, str) and author in _ROLES and "value" in value)
        or (isinstance(kind, str) and kind in ("function_call", "function_call_output"))
    )


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and _is_message(value[0]) and all(map(_is_message, value[:5]))


def _messages_in(value: Any) -> list[Any] | None:
    """Return the messages of an object that has a list of messages; None if it has none."""
    if not isinstance(value, Mapping):
        return None
    for field in ("request", "body", "request_body"):  # a request log
        if isinstance(inner := value.get(field), Mapping):
            if (found := _messages_in(inner)) is not None:
                return found
            if isinstance(inner.get("input"), str) and "model" in inner:  # of OpenAI's Responses
                return [{"role": "user", "content": inner["input"]}]
    return next((value[name] for name in _LISTS if _is_messages(value.get(name))), None)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and _messages_in(value[0]) is not None


def _simulations(value: Any) -> list[Any] | None:
    """Return the simulations in a file of results of tau2-bench, each with its reward and its model; else None."""
    found = value.get("simulations") if isinstance(value, Mapping) else None
    if not _is_list_of_objects(found) or not isinstance(found, list):
        return None
    about = value.get("info")
    agent = about.get("agent_info") if isinstance(about, Mapping) else None
    model = agent.get("llm") if isinstance(agent, Mapping) else None
    made: list[Any] = []
    for one in found:
        if isinstance(one, Mapping):
            judged = one.get("reward_info")
            reward = {"reward": judged["reward"]} if isinstance(judged, Mapping) and "reward" in judged else {}
            one = {**one, **reward, "model": model}
        made.append(one)
    return made


def _request(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(
        (value[name] for name in ("request", "body", "request_body") if isinstance(value.get(name), Mapping)), value
    )


def _continues(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Return True if a request of a log repeats the messages of an earlier one, or refers to its response."""
    if not any(name in later for name in ("request", "body", "response", "model")):
        return False
    if (id := _request(later).get("previous_response_id")) is not None:
        return bool(id == _response_of(earlier).get("id"))
    one, other = _messages_in(earlier) or [], _messages_in(later) or []
    return len(other) > len(one) and other[: len(one)] == one


def _response_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of the response of a logged request; empty if it has none."""
    response = value.get("response")
    body = response.get("body") if isinstance(response, Mapping) and "body" in response else response
    return body if isinstance(body, Mapping) else {}


def _conversation(file: ForeignFile, requests: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    """Yield the events of one conversation: of an object that has its messages, or of its logged requests."""
    file.begin()
    value = requests[0]
    request = _request(value)
    about: dict[str, Any] = {
        "id": value.get("id"),
        "tools": request.get("tools") or request.get("functions"),
        "other": {key: one for key, one in value.items() if key not in _READ and one not in (None, [], {})},
    }
    about["fields"] = {key: one for key, one in about["other"].items() if _is_field(one)}
    about["label"] = _label(value)
    # A judge has seen the whole conversation: nothing follows.
    about["ended"] = any(name in value for name in ("reward", "score", "success", "passed"))
    if request is not value:
        about["request"] = {key: one for key, one in request.items() if key not in _READ and one not in (None, [], {})}
    kept = to_json_data({key: value for key, value in about.items() if value not in (None, [], {}, "", False)})
    writer = Writer(file.lost, name="chat", about=kept)
    for place in ("system", "instructions"):  # of the system prompt, at Anthropic and in OpenAI's Responses
        if request.get(place) not in (None, "", []):
            yield from writer.message(Message(role="system", content=content_of(request[place])))
    known, has_answer = 0, False
    for value in requests:
        request = _request(value)
        messages = _messages_in(value) or []
        # What is new in the request. It may repeat the answer that the response before it was.
        new = messages if request.get("previous_response_id") is not None else messages[known:]
        while has_answer and new and _is_answer(new[0]):
            new = new[1:]
        known = len(messages)
        model = request.get("model")
        yield from said(file, new, writer, model if isinstance(model, str) else None)
        has_answer = isinstance(value.get("response"), Mapping)
        if has_answer:
            has_answer = yield from _response(file, _response_of(value), writer, request)
    yield from writer.start()


def _is_field(value: Any) -> bool:
    """Return True for a value that is a column of a table of runs: a number, or a short text."""
    return isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= 200)


def _label(value: Mapping[str, Any]) -> str:
    """Return the name by which a person knows one conversation among many: its task and its trial."""
    words = []
    for kind, names in (("task", _TASKS), ("trial", _TRIALS)):
        found = next((value[name] for name in names if isinstance(value.get(name), (int, str))), None)
        if found is not None:
            words.append(f"{kind} {found}" if str(found).isdigit() else str(found))
    return " ".join(words)


_TASKS = ("task_id", "instance_id", "problem_id", "question_id", "task", "id")
_TRIALS = ("trial", "epoch", "attempt")


def _is_answer(given: Any) -> bool:
    """Return True for a message of the model, or for an item of its answer."""
    kinds = ("function_call", "reasoning")
    return isinstance(given, Mapping) and (given.get("role") == "assistant" or given.get("type") in kinds)


_READ = frozenset(
    {*_LISTS, "request", "body", "request_body", "response", "tools", "functions", "system", "model", "id"}
)


_PLACE = frozenset({"stream", "stream_options", "store", "user", "previous_response_id", "instructions", "metadata"})
"""The fields of a request that are no options: how the answer was sent, and what belongs to the conversation."""


def _options(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a logged request: its fields, without the conversation. Of tools only the names."""
    kept = {key: one for key, one in request.items() if key not in _READ | _PLACE and one not in (None, [], {})}
    if "response" in request:  # an object that has other fields beside those of the request
        kept = {key: one for key, one in kept.items() if key in _OPTIONS}
    options: dict[str, Any] = to_json_data(kept)
    return options


_OPTIONS = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "max_output_tokens", "seed"}
    | {"stop", "stop_sequences", "frequency_penalty", "presence_penalty", "tool_choice", "parallel_tool_calls", "n"}
    | {"logprobs", "logit_bias", "response_format", "reasoning", "reasoning_effort", "thinking", "service_tier"}
    | {"verbosity", "text"}
)


def _response(
    file: ForeignFile, body: Mapping[str, Any], writer: Writer, request: Mapping[str, Any]
) -> Generator[Event, None, bool]:
    """Yield the answer in the response of a logged request. Returns False if its format is not known."""
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
        answer = openai_answer(message if isinstance(message, Mapping) else {}, file.lost)
        reason = choices[0].get("finish_reason")
        if len(choices) > 1:
            file.lost["alternative answers"] += len(choices) - 1
    elif isinstance(body.get("content"), list):
        answer, reason = anthropic_answer(body["content"]), body.get("stop_reason")
    elif isinstance(body.get("output"), list):
        answer, reason = answer_of_items(file, body["output"]), body.get("status")
    elif isinstance(error := body.get("error"), Mapping):
        kind = error.get("type") or error.get("code") or "ModelError"
        yield from writer.failure(error_of(str(kind), error.get("message")))
        return False
    else:
        file.lost["responses of an unknown format"] += 1
        return False
    answer.options = _options(request)
    answer.usage = usage_of(body.get("usage"))
    answer.model = body["model"] if isinstance(body.get("model"), str) else None
    answer.response_id = body["id"] if isinstance(body.get("id"), str) else None
    answer.finish_reason = reason if isinstance(reason, str) else None
    yield from writer.answer(answer, seconds(body.get("created") or body.get("created_at"), file.lost))
    return True
