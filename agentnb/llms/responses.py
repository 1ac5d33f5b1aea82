"""OpenAI's Responses API, and servers that speak it: when it is used, and the requests.

A conversation is a list of items: messages, reasoning, calls, results. The server wants to be sent the items of its
answers again, unchanged and in their order, because the model continues from its reasoning. `store=False` leaves
nothing on the server: the whole conversation is sent with every request, with the reasoning in encrypted form. An item
is sent to the server that made it; any other one is sent the text, the calls and the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentnb.core.errors import UsageError
from agentnb.core.messages import parts_in_order
from agentnb.llms.conversion import (
    MessageCache,
    Picture,
    all_text_of,
    attachment,
    chosen_tool,
    is_provider_tool,
    is_strict,
    name_and_arguments,
    name_and_description,
    picture,
    provider_schema,
    safe_name,
    short_id,
    strict_schema,
)
from agentnb.llms.reader import Reader, strict_json
from agentnb.llms.responses_reader import ResponseReader

if TYPE_CHECKING:
    from agentnb.llms.protocol import JsonObject, Message, ToolSpecification

ENCRYPTED = "reasoning.encrypted_content"
ID_LENGTH = 64
"""The maximum number of characters that OpenAI accepts in the id of a call."""

_REASONS = re.compile(r"(ft:)?(o\d|codex|computer-use|gpt-([5-9]|\d\d)(?!\d*(\.\d+)?-chat$|-chat-latest$))")
"""The names of OpenAI's models that reason."""
_CHAT_ONLY_MODEL = re.compile("audio|search-(preview|api)")
CHAT_ONLY = frozenset(
    {
        *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "modalities", "n", "prediction"),
        *("presence_penalty", "seed", "stop", "web_search_options"),
    }
)
"""Options of chat completions that the Responses API does not have."""
RESPONSES_ONLY = frozenset(
    {"include", "instructions", "max_output_tokens", "max_tool_calls", "prompt", "reasoning", "text", "truncation"}
)
"""Options of the Responses API that chat completions do not have."""
CUSTOM_ARGUMENT = "input"
"""The argument that has the text of a call of a custom tool, if its tool names no other one."""
_NEEDS_STATE = {
    "previous_response_id": "agentnb sends the whole conversation with each request",
    "conversation": "agentnb sends the whole conversation with each request",
    "background": "an answer is always streamed",
}


def choose_api(
    model: str,
    base: str,
    server: str,
    options: Mapping[str, Any],
    *,
    has_responses: bool,
    in_schema: bool,
    chosen: Literal["auto", "chat", "responses"] = "auto",
) -> tuple[Literal["chat", "responses"], str | None]:
    """Return the API that a client uses, and the reason if it was not chosen by the user.

    base: the base URL. server: the server's name, for the reason. has_responses: True for a server that is known to
    have the Responses API for OpenAI's models: OpenAI's own, and Bedrock's.
    in_schema: True if calls are made in the text of a reply. chosen: the user's choice.
    """
    if chosen != "auto":
        return chosen, None
    path = base.partition("?")[0].rstrip("/")
    chat_only = [name for name in options if name in CHAT_ONLY and options[name] is not None]
    responses_only = [name for name in options if name in RESPONSES_ONLY and options[name] is not None]
    if path.endswith("/responses"):
        return "responses", "base_url ends with /responses"
    if path.endswith("/chat/completions"):
        return "chat", "base_url ends with /chat/completions"
    if in_schema:
        return "chat", 'tool_calls="schema"'
    if not has_responses:
        return "chat", f"{server} is not OpenAI's own server"
    if chat_only:
        return "chat", f"the Responses API has no option {chat_only[0]}"
    if _CHAT_ONLY_MODEL.search(model):
        return "chat", f"OpenAI has {model} in chat completions only"
    if responses_only:
        return "responses", f"chat completions have no option {responses_only[0]}"
    if is_reasoning_model(model):
        return "responses", f"{model} reasons, and is sent its reasoning again by this API only"
    return "chat", f"{model} is not known to reason"


def check_responses_options(options: Mapping[str, Any], where: str, server: str) -> None:
    """Raise UsageError for an option that the Responses API does not have.

    where: the call that has the options. server: the server's name.
    """
    for name, value in options.items():
        if value is None:
            continue
        if name in CHAT_ONLY:
            raise UsageError(
                f"{name} is not an option of {where}: the Responses API of {server} does not have it."
                ' OpenAI(..., api="chat") uses chat completions.'
            )
        if name in _NEEDS_STATE:
            raise UsageError(f"{name} is not an option of {where}: {_NEEDS_STATE[name]}.")


def is_reasoning_model(model: str) -> bool:
    """Return True for the name of a model of OpenAI that reasons."""
    return _REASONS.match(model.rpartition("openai.")[2]) is not None  # Bedrock's names are `openai.gpt-5.6-terra`


def response_options(given: Mapping[str, Any], *, encrypted: bool) -> dict[str, Any]:
    """Return options as the Responses API names them: `max_tokens` becomes `max_output_tokens`.

    encrypted: True to ask for encrypted reasoning in addition to what `include` asks for, if nothing is stored.
    """
    options = dict(given)
    for name in ("max_tokens", "max_completion_tokens"):
        if (most := options.pop(name, None)) is not None:
            options.setdefault("max_output_tokens", most)
    if (effort := options.pop("reasoning_effort", None)) is not None:
        options["reasoning"] = {"effort": effort, **(options.get("reasoning") or {})}
    text = dict(options.pop("text", None) or {})
    if (verbosity := options.pop("verbosity", None)) is not None:
        text.setdefault("verbosity", verbosity)
    if isinstance(form := options.pop("response_format", None), Mapping):
        inside = form.get("json_schema")
        text.setdefault("format", {"type": form["type"], **inside} if isinstance(inside, Mapping) else dict(form))
    if text:
        options["text"] = text
    if isinstance(streaming := options.get("stream_options"), Mapping):  # the usage always comes
        rest = {name: value for name, value in streaming.items() if name != "include_usage"}
        options["stream_options"] = rest or None
    if options.pop("logprobs", None) or options.get("top_logprobs"):
        options["include"] = [*(options.get("include") or ()), "message.output_text.logprobs"]
        options.setdefault("top_logprobs", 0)
    if isinstance(choice := options.get("tool_choice"), Mapping) and isinstance(choice.get("function"), Mapping):
        options["tool_choice"] = {"type": "function", "name": choice["function"].get("name")}

    # What is not stored can only be sent again if it comes in encrypted form.
    included = options.get("include")
    if encrypted and included is not None and options.get("store") is False and ENCRYPTED not in included:
        options["include"] = [*included, ENCRYPTED]
    return {name: value for name, value in options.items() if value is not None}


class ResponseRequests:
    """Makes the bodies of the requests of one client.

    server: the server's name. is_own: True for OpenAI's own server. images: False for models that accept no pictures.
    """

    def __init__(self, server: str, *, is_own: bool, images: bool) -> None:
        self._server = server
        convert = partial(_items, server=server, id_length=ID_LENGTH if is_own else None, images=images)
        self._messages: MessageCache[list[JsonObject]] = MessageCache(convert)

    def prepare(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Callable[[], Reader]]:
        """Return the body of a request, and a function that makes a reader for its answer."""
        body = dict(options)

        # A custom tool of the client's options replaces the loop's tool of its name, which performs it.
        given = [_flat(tool) for tool in body.pop("tools", None) or ()]
        named = {tool.get("name"): tool for tool in given if tool.get("type") == "custom"}
        arguments = {tool["name"]: _text_argument(tool) for tool in tools if tool["name"] in named}
        if (name := chosen_tool(body.get("tool_choice"), tools)) is not None:
            body["tool_choice"] = {"type": "custom" if name in named else "function", "name": safe_name(name)}
        elif isinstance(choice := body.get("tool_choice"), Mapping) and choice.get("type") in ("auto", "any", "none"):
            body["tool_choice"] = "required" if choice["type"] == "any" else choice["type"]  # in Anthropic's form
        offered = [*given, *(_tool(tool) for tool in tools if tool["name"] not in named)]
        if offered:
            body["tools"] = offered

        # Convert the history. A result is that of a custom tool if its call is.
        items: list[JsonObject] = []
        custom: set[str] = set()
        is_stored = body.get("store") is not False
        for item in (one for converted in self._messages.convert(messages) for one in converted):
            if item.get("type") == "custom_tool_call":
                custom.add(item["call_id"])
            elif item.get("type") == "function_call_output" and item["call_id"] in custom:
                item = {**item, "type": "custom_tool_call_output"}
            elif item.get("type") == "reasoning" and not (
                is_stored or item.get("encrypted_content") or item.get("content")
            ):
                continue  # the server has not stored it, so it cannot find it by its id
            items.append(item)

        if schema is not None:
            form: JsonObject = {"type": "json_schema", "name": "answer", "schema": dict(schema)}
            if is_strict(schema):  # OpenAI enforces a schema only if asked to, and then rejects other schemas
                form["strict"] = True
            body["text"] = {"format": form, **body.get("text", {})}
        return body | {"input": items, "stream": True}, partial(
            ResponseReader, self._server, dict.fromkeys(map(str, named), CUSTOM_ARGUMENT) | arguments
        )


# Tools.


def _tool(tool: ToolSpecification) -> JsonObject:
    if is_provider_tool(tool):
        return dict(tool)
    # Without `strict`, the server makes optional arguments required.
    function = {"type": "function", **name_and_description(tool), "parameters": provider_schema(tool)}
    function["strict"] = bool(tool.get("strict"))
    if function["strict"] and not is_strict(function["parameters"]):
        function["parameters"] = strict_schema(function["parameters"])
    return function | ({"defer_loading": tool["defer_loading"]} if tool.get("defer_loading") is not None else {})


def _flat(tool: Mapping[str, Any]) -> JsonObject:
    """Return a tool of the client's options, which may have the form of chat completions."""
    kind = tool.get("type")
    inside = tool.get(kind) if kind in ("function", "custom") else None
    return {"type": kind, **inside} if isinstance(inside, Mapping) else dict(tool)


def _text_argument(tool: ToolSpecification) -> str:
    """Return the argument of a loop's tool that gets the text of a custom tool's call: its only required one."""
    parameters = tool.get("parameters") or {}
    names = list(parameters.get("required") or parameters.get("properties") or ())
    return str(names[0]) if len(names) == 1 else CUSTOM_ARGUMENT


# Items.


def _items(message: Message, *, server: str, id_length: int | None, images: bool) -> list[JsonObject]:
    """Return a message as items."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        output: Any = all_text_of(content)
        blocks = content if isinstance(content, list | tuple) else ()
        has_files = any(attachment(block) is not None for block in blocks)
        if has_files or (images and any(picture(block) is not None for block in blocks)):
            output = [_part(block, images) for block in blocks]
        if message.get("is_error"):  # there is no flag for a failure, so the text has to say it
            is_text = isinstance(output, str)
            output = f"Error: {output}" if is_text else [{"type": "input_text", "text": "Error:"}, *output]
        call_id = short_id(message["tool_call_id"], id_length)
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    if role != "assistant":
        if isinstance(content, list | tuple):
            return [{"role": role, "content": [_part(block, images) for block in content]}]
        return [{"role": role, "content": all_text_of(content)}]
    parts = parts_in_order(message)
    if parts is None:
        text = all_text_of(content)
        parts = [
            *({"type": "reasoning", "reasoning": block} for block in message.get("reasoning") or ()),
            *([{"type": "text", "text": text}] if text else ()),
            *({"type": "call", "call": call} for call in message.get("tool_calls") or ()),
        ]

    items: list[JsonObject] = []
    for part in parts:
        own = part.get("item") or {} if part.get("server") == server else {}
        if part["type"] == "reasoning":
            provider = part["reasoning"].get("provider") or {}
            if provider.get("server") == server and "item" in provider:
                items.append(dict(provider["item"]))
        elif part["type"] == "block":
            if part.get("server") == server:  # other servers cannot read it
                items.append(dict(part["block"]))
        elif part["type"] == "call":
            items.append(_call(part["call"], own, id_length))
        elif part["text"]:
            _add_text(items, part, own)
    while items and items[-1].get("type") == "reasoning":  # the server rejects reasoning that nothing follows
        items.pop()
    return items


def _add_text(items: list[JsonObject], part: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Add a part of a message: to the last item if it is of the same one."""
    if not own:
        items.append({"role": "assistant", "content": part["text"]})
        return
    fields = {name: value for name, value in own.items() if name not in ("refusal", "logprobs")}
    if own.get("refusal"):
        said: JsonObject = {"type": "refusal", "refusal": part["text"]}
    else:
        said = {"type": "output_text", "text": part["text"], "annotations": part.get("citations") or []}
        said |= {"logprobs": own["logprobs"]} if "logprobs" in own else {}
    last = items[-1] if items else {}
    if fields.get("id") and last.get("type") == "message" and last.get("id") == fields["id"]:
        items[-1] = {**last, **fields, "content": [*last["content"], said]}
    else:
        items.append({"type": "message", "role": "assistant", "status": "completed", **fields, "content": [said]})


def _call(call: Mapping[str, Any], own: Mapping[str, Any], id_length: int | None) -> JsonObject:
    name, arguments = name_and_arguments(call)
    text = arguments if isinstance(arguments, str) else strict_json(arguments)
    made = {"call_id": short_id(call["id"], id_length), "name": safe_name(name)}
    if own.get("type") != "custom_tool_call":
        return {"type": "function_call", **own, **made, "arguments": text}
    values = list(arguments.values()) if isinstance(arguments, Mapping) else []
    given = values[0] if len(values) == 1 and isinstance(values[0], str) else text
    return {**own, **made, "input": given}


def _part(block: object, images: bool) -> JsonObject:
    """Return a block of content as a part of the input."""
    if (found := picture(block)) is not None:
        return _image(block, found) if images else {"type": "input_text", "text": found.placeholder}
    if isinstance(block, Mapping) and str(block.get("type")).startswith("input_"):  # in this API's own form
        return dict(block)
    if (found_file := attachment(block)) is not None and found_file.kind == "document":
        if found_file.url:
            return {"type": "input_file", "file_url": found_file.url}
        name = found_file.name or "document.pdf"
        return {"type": "input_file", "filename": name, "file_data": found_file.address}
    if found_file is not None:
        return {"type": "input_text", "text": found_file.placeholder("the Responses API takes no sound")}
    if isinstance(block, Mapping) and isinstance(file := block.get("file"), Mapping):  # in that of chat completions
        return {"type": "input_file", **file}
    return {"type": "input_text", "text": all_text_of([block])}


def _image(block: object, shown: Picture) -> JsonObject:
    inside = block.get("image_url") if isinstance(block, Mapping) else None
    detail = inside.get("detail") if isinstance(inside, Mapping) else None
    return {"type": "input_image", "image_url": shown.address, "detail": detail or "auto"}
