"""OpenAI's client: which API a request uses, and the requests of chat completions (those of `responses` are there).

Many servers speak chat completions (vLLM, llama.cpp, Ollama, OpenRouter, Gemini, Bedrock). OpenAI's models that reason
are sent their reasoning again by the Responses API only. `tool_calls="native"` sends tools as the API defines them.
`tool_calls="schema"` is for servers that ignore tools (see `schema_tools`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from agentnb.core.errors import UsageError
from agentnb.llms.client import MAX_RETRIES, HttpModel, base_address, check_known, endpoint
from agentnb.llms.conversion import (
    Attachment,
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
from agentnb.llms.keys import is_at, is_bedrock, is_gemini, key_for, usual_variable
from agentnb.llms.openai_reader import THINK, ChatCompletionReader
from agentnb.llms.reader import Reader, strict_json
from agentnb.llms.responses import (
    ENCRYPTED,
    ResponseRequests,
    check_responses_options,
    choose_api,
    is_reasoning_model,
    response_options,
)
from agentnb.llms.schema_tools import (
    ReplyReader,
    choose_tools,
    message_without_tools,
    plain_turns,
    union_schema,
    with_bounded_texts,
)
from agentnb.llms.transport import READ_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification
    from agentnb.llms.sse import ServerSentEvent

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_HOST = "api.openai.com"
KEY_VARIABLE = "OPENAI_API_KEY"
_PATHS: Mapping[Literal["chat", "responses"], str] = {"chat": "/chat/completions", "responses": "/responses"}
OPENAI_ID_LENGTH = 40
"""The maximum number of characters that OpenAI accepts in the id of a call. Ids from vLLM have 46. Ids are shortened
for OpenAI's own server only, because some proxies store data in their ids that they need later.
"""


_OPTIONS = frozenset(
    {
        *(
            "audio",
            "frequency_penalty",
            "function_call",
            "functions",
            "logit_bias",
            "logprobs",
            "max_completion_tokens",
        ),
        *("max_tokens", "metadata", "modalities", "moderation", "n", "parallel_tool_calls", "prediction"),
        *("presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        *("reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store"),
        *("stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity"),
        *("web_search_options",),
        # The Responses API.
        *("context_management", "include", "instructions", "max_output_tokens", "max_tool_calls", "prompt"),
        *("reasoning", "text", "truncation"),
        # vLLM, llama.cpp, Ollama, OpenRouter and other servers.
        *("cache_prompt", "chat_template_kwargs", "enable_thinking", "grammar", "guided_choice", "guided_grammar"),
        *("guided_json", "guided_regex", "ignore_eos", "include_reasoning", "keep_alive", "length_penalty", "min_p"),
        *("min_tokens", "mirostat", "mirostat_eta", "mirostat_tau", "models", "num_ctx", "options", "plugins"),
        *("provider", "random_seed", "repeat_last_n", "repeat_penalty", "repetition_penalty", "route", "safe_prompt"),
        *("search_parameters", "skip_special_tokens", "stop_token_ids", "structured_outputs", "think", "thinking"),
        *("top_a", "top_k", "transforms", "typical_p", "usage"),
    }
)
"""The options of OpenAI's two APIs, and those that other servers add."""


class OpenAI(HttpModel):
    """A model behind an OpenAI-compatible server.

    model: the model's name.
    base_url: the address of the server; by default the one in the environment variable OPENAI_BASE_URL, else OpenAI's
        own.
    api_key_env: the environment variable that has the API key, read for each request. By default OpenAI's own host is
        sent the key in OPENAI_API_KEY, Gemini's that in GEMINI_API_KEY, Bedrock's that in AWS_BEARER_TOKEN_BEDROCK, and
        any other server, including one on this machine, is sent no key.
    api: "responses" for OpenAI's Responses API, "chat" for chat completions, or "auto": the Responses API for a model
        of OpenAI that reasons, on OpenAI's own server or on Bedrock, chat completions otherwise. An option that only
        one of the two has decides, and so does a base_url that ends with the path of one. The recording of a run has
        the choice and its reason.
    tool_calls: "schema" for servers that ignore tools: the model makes calls as JSON in its reply.
    images: False for models that accept no pictures; a placeholder is sent in place of each.
    timeout: the longest silence in seconds (300), None for no limit; or an `httpx.Timeout`, whose limits are used.
    http_client: an `httpx.AsyncClient` of your own, for a proxy, certificates or hooks:
        `httpx.AsyncClient(proxy=..., verify=...)`. It is used as it is, and you close it. transport: a transport of
        httpx for a client that is made for you, such as `httpx.MockTransport` in a test.
    max_retries: the number of attempts after the first one (3). Waits for a rate limit do not count, unless it is 0.
    headers: headers of every request, as a gateway may require them.
    options: fields of the body of every request: `temperature=0`, `max_tokens=500`, `tool_choice="required"`,
        `extra_body={...}`. None leaves out a field that a server rejects, such as `stream_options=None`. In a run,
        `tool_choice="required"`, or the name of a tool, applies until the model has made a call; then it is "auto". The
        Responses API is sent `store=False` unless another value is given, and options of chat completions under its own
        names. For Gemini, `thinking=8000` is a budget of tokens for thinking (False for none, True to let the model
        choose).

    Raises UsageError if an argument is not valid.
    """

    provider = "openai"
    known_options = _OPTIONS

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api: Literal["auto", "chat", "responses"] = "auto",
        api_key_env: str | None = None,
        tool_calls: Literal["native", "schema"] = "native",
        images: bool = True,
        timeout: Any = READ_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
        transport: Any = None,
        **options: Any,
    ) -> None:
        if tool_calls not in ("native", "schema"):
            raise UsageError(f'tool_calls must be "native" or "schema", not {tool_calls!r}')
        if api not in ("auto", "chat", "responses"):
            raise UsageError(f'api must be "auto", "chat" or "responses", not {api!r}')
        base = base_address(base_url, "OPENAI_BASE_URL", OPENAI_URL)
        is_own = base == OPENAI_URL or is_at(base, OPENAI_HOST)
        known_variable = usual_variable(base)
        key_variable = known_variable or KEY_VARIABLE
        self._is_gemini = is_gemini(base)
        self._is_bedrock = is_bedrock(base)

        self._server = _server_name(base)
        self._is_own = is_own
        self._given = dict(options)
        self._wants_encrypted = not is_own or is_reasoning_model(str(model))  # OpenAI refuses it for the other models

        # Choose the API.
        in_schema = tool_calls == "schema"
        self._choose_api = partial(
            choose_api,
            str(model),
            base,
            self._server,
            has_responses=is_own or self._is_bedrock,
            in_schema=in_schema,
            chosen=api,
        )
        self.api: Literal["chat", "responses"]
        self.api, self._api_reason = self._choose_api(options)
        if self.api == "responses" and in_schema:
            raise UsageError('tool_calls="schema" needs api="chat": the Responses API has tool calls.')
        url = endpoint(base, _PATHS[self.api])
        super().__init__(
            model,
            url,
            key=key_for(
                key_variable,
                api_key_env=api_key_env,
                is_own=is_own or known_variable is not None,
                header="authorization",
                prefix="Bearer ",
            ),
            key_variable=key_variable,
            own_headers={},
            headers=headers,
            timeout=timeout,
            max_retries=max_retries,
            http_client=http_client,
            transport=transport,
            options=self._defaults() | options,
        )
        self._endpoints = {api: endpoint(base, path) for api, path in _PATHS.items()}
        self._responses = ResponseRequests(self._transport.server, is_own=is_own, images=images)
        self._in_schema = tool_calls == "schema"
        self._images = images
        native = partial(
            _native_message,
            server=self._transport.server,
            id_length=OPENAI_ID_LENGTH if is_own else None,
            developer="developer" if is_own else "system",
            images=images,
            needs_signature=self._is_gemini and _SIGNS_CALLS.match(str(model)) is not None,
        )
        self._messages: MessageCache[list[JsonObject]] = MessageCache(_plain if self._in_schema else native)

    def with_options(self, **options: Any) -> Self:
        """Return a client for the same model with these options, in addition to those of this client.

        Both use the same connections. None removes an option. With `api="auto"`, the API is chosen again.

            exact = llm.with_options(temperature=0, seed=7)

        Raises UsageError for an option that is not known, or not valid. `extra_body` has other fields.
        """
        where = f"{type(self).__name__}.with_options(...)"
        check_known(options, self.known_options, where, self._server)
        made = copy.copy(self)
        made._given = self._given | options
        made.api, made._api_reason = self._choose_api(made._given)
        made.options = made._defaults() | made._given
        made._check_options(made.options, where)
        if made.api != self.api:
            made._transport = self._transport.at(self._endpoints[made.api])
        return made

    def _defaults(self) -> JsonObject:
        """Return the options that a request of this API has unless others are given."""
        if self.api == "chat":
            return {"stream_options": {"include_usage": True}}
        return {"store": False} | ({"include": [ENCRYPTED]} if self._wants_encrypted else {})

    @property
    def _base_url_hint(self) -> str:
        hint = "; most servers need a base_url that ends with /v1"
        return hint + (', and some have chat completions only: OpenAI(..., api="chat")' * (self.api == "responses"))

    def describe(self, **options: Any) -> JsonObject:
        """Return what a run records of a request with these options: `provider`, `model` and `options`.

        The options have the API that is used, and, if `api` is "auto", the reason for that choice.
        """
        description = super().describe(**options)
        chosen = {"api": self.api} | ({"api_reason": self._api_reason} if self._api_reason is not None else {})
        return description | {"options": description["options"] | chosen}

    @property
    def _form(self) -> JsonObject:
        return ({"images": False} if not self._images else {}) | ({"tool_calls": "schema"} if self._in_schema else {})

    @property
    def _schema_as(self) -> str:
        return "text.format" if self.api == "responses" else "response_format"

    def _check_options(self, options: Mapping[str, Any], where: str) -> None:
        super()._check_options(options, where)
        if isinstance(thinking := options.get("thinking"), int) and not self._is_gemini:
            raise UsageError(
                f"thinking={thinking} is not an option of {where}: {self._server} has no budget of thinking tokens that"
                ' agentnb knows. reasoning_effort="low" limits the thinking of OpenAI\'s models; extra_body={...} has'
                " fields of other servers."
            )
        if self.api == "responses":
            check_responses_options(options, where, self._server)

    def _advice(self, message: str, body: JsonObject) -> list[str]:
        advice = []
        if "messages" in body and re.search("v1/responses|responses api", message, re.IGNORECASE):
            advice.append('OpenAI(..., api="responses") uses that API')
        if "include" in body and re.search("encrypted", message, re.IGNORECASE):
            advice.append("include=None asks for no encrypted reasoning")
        if self._is_bedrock and "on this route" in message:
            advice.append("Bedrock has some models at base_urls that end with /openai/v1, and the others at /v1")
        if self.api == "responses":
            return advice
        if "tools" in body and re.search("tool|function", message, re.IGNORECASE):
            advice.append('OpenAI(..., tool_calls="schema") works with servers that do not support tools')
        if "response_format" in body and re.search("response_format|json_schema", message):  # DeepSeek
            advice.append('OpenAI(..., response_format={"type": "json_object"}) asks for JSON and enforces no schema')
        return advice

    def _prepare(
        self,
        messages: Sequence[Message],
        tools: list[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Callable[[], Reader]]:
        if self.api == "responses":
            renamed = response_options(options, encrypted=self._wants_encrypted)
            return self._responses.prepare(messages, tools, schema, renamed)
        if self._is_gemini and isinstance(thinking := options.get("thinking"), int):
            del options["thinking"]
            options["extra_body"] = {"google": {"thinking_config": _thinking_config(thinking)}}
        keep_logprobs = bool(options.get("logprobs") or options.get("top_logprobs"))
        tag = None if self._is_own or self._is_gemini or self._is_bedrock else THINK
        new_reader: Callable[[], Reader] = partial(
            ChatCompletionReader,
            self._transport.server,
            [tool["name"] for tool in tools],
            keep_logprobs=keep_logprobs,
            tag=tag,
        )
        # Many servers reject an answer with neither content nor calls.
        sent = [
            message
            for message in messages
            if message["role"] != "assistant" or message.get("content") or message.get("tool_calls")
        ]
        if self._in_schema:
            tools, may_answer = choose_tools(tools, options.pop("tool_choice", None))
            converted = plain_turns([one for (one,) in self._messages.convert(sent)], tools)
            if tools:
                schema = union_schema(tools, (schema or {"type": "string"}) if may_answer else None)
                new_reader = partial(
                    _SchemaReader, self._transport.server, [tool["name"] for tool in tools], keep_logprobs, tag
                )
        else:
            converted = _in_order(self._messages.convert(sent))
            if (name := chosen_tool(options.get("tool_choice"), tools)) is not None:
                options["tool_choice"] = {"type": "function", "function": {"name": safe_name(name)}}
            elif isinstance(choice := options.get("tool_choice"), Mapping) and choice.get("type") in _CHOICES:
                options["tool_choice"] = _CHOICES[choice["type"]]  # in Anthropic's form
            native_tools = [_native_tool(tool, is_own=self._is_own) for tool in tools]
            if offered := [*options.pop("tools", ()), *native_tools]:
                options = {"tools": offered} | options
        if schema is not None:
            if self._longest_string is not None:
                schema = with_bounded_texts(schema, self._longest_string)
            form: JsonObject = {"name": "answer", "schema": schema}
            if is_strict(schema):  # OpenAI enforces a schema only if asked to, and then rejects other schemas
                form["strict"] = True
            options = {"response_format": {"type": "json_schema", "json_schema": form}} | options
        return options | {"messages": converted, "stream": True}, new_reader

    _longest_string: int | None = None
    """The maximum length of a string in a reply that follows a schema, None for no limit. `Local` has one."""


class _SchemaReader:
    """Passes the text that the reader of the stream finds to a `ReplyReader`."""

    def __init__(self, server: str, tools: Sequence[str], keep_logprobs: bool, tag: str | None) -> None:
        self._inner = ChatCompletionReader(server, keep_logprobs=keep_logprobs, tag=tag)
        self._reply = ReplyReader(tools)

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        chunks: list[Chunk] = []
        for chunk in self._inner.read(event):
            chunks += self._reply.feed(chunk["content"]) if chunk["type"] == "text_delta" else [chunk]
        return chunks

    def is_done(self) -> bool:
        return self._inner.is_done()

    @property
    def usage(self) -> Chunk | None:
        return self._inner.usage

    def finish(self) -> list[Chunk]:
        *chunks, stop = self._inner.finish()
        *rest, last = self._reply.finish(stop["reason"])
        return [*rest, *chunks, last]


def _server_name(base: str) -> str:
    """Return the host and the port of an address, for texts."""
    try:
        return urlsplit(base).netloc.rpartition("@")[2]
    except ValueError:  # not an address, which the transport reports
        return ""


def _thinking_config(thinking: int) -> JsonObject:
    """Return Gemini's form of the option `thinking`: a budget of tokens, True for the model's choice, or False."""
    if thinking is False:
        return {"thinking_budget": 0}
    return {"include_thoughts": True} | ({} if thinking is True else {"thinking_budget": thinking})


def _plain(message: Message) -> list[JsonObject]:
    return [message_without_tools(message)]


def _native_message(
    message: Message, *, server: str, id_length: int | None, developer: str, images: bool, needs_signature: bool
) -> list[JsonObject]:
    """Convert a message. A tool's result with pictures becomes two; the second one belongs after all results of the
    turn.

    needs_signature: True for a model of Gemini that rejects calls without a signature.
    """
    role, content = message["role"], message.get("content")
    if role == "tool":
        # Results are text in this dialect: a text refers to each picture, which the user then shows after the last
        # result of the turn. There is no flag for a failure, so the text has to say it.
        blocks = content if isinstance(content, list | tuple) else [content]
        pictures = [found for block in blocks if (found := picture(block)) is not None]
        attached = [file for block in blocks if (file := attachment(block)) is not None]
        files = [file for file in attached if _file_part(file) is not None]
        parts: list[object] = []
        for block in blocks:
            if (found := picture(block)) is not None:
                position = f"[image {pictures.index(found) + 1} of {len(pictures)}: in the next message of the user]"
                parts.append(position if images else found.placeholder)
            elif (file := attachment(block)) is None:
                parts.append(block)
            elif file in files:
                parts.append(f"[file {files.index(file) + 1} of {len(files)}: in the next message of the user]")
            else:
                parts.append(file.placeholder(_NO_FORM))
        text = all_text_of(parts) if isinstance(content, list | tuple) else all_text_of(content)
        result = {
            "role": "tool",
            "tool_call_id": short_id(message["tool_call_id"], id_length),
            "content": f"Error: {text}" if message.get("is_error") else text,
        }
        shown = [*(map(_image_part, pictures) if images else ()), *filter(None, map(_file_part, files))]
        if not shown:
            return [result]
        name = message.get("name") or message["tool_call_id"]
        heading = {"type": "text", "text": f"{'Files' if files else 'Images'} in the result of {name}:"}
        return [result, {"role": "user", "content": [heading, *shown]}]
    if isinstance(content, list | tuple):
        content = [_content_part(block, images) for block in content]
    converted: JsonObject = {"role": developer if role == "developer" else role}
    converted["content"] = content if content is not None else ""  # some servers reject null
    for call in message.get("tool_calls") or ():
        name, arguments = name_and_arguments(call)
        text = arguments if isinstance(arguments, str) else strict_json(arguments)
        function = {"name": safe_name(name), "arguments": text}
        native = {"id": short_id(call["id"], id_length), "type": "function", "function": function}
        converted.setdefault("tool_calls", []).append(native)
    # What the server wants to be sent again: its reasoning, and its signatures of calls (see `openai_reader`).
    for thought in message.get("reasoning") or ():
        provider = thought.get("provider")
        if not provider or provider.get("server") != server:
            continue
        if field := provider.get("field"):
            converted[field] = "".join(thought.get("text") or "" for thought in message["reasoning"])
        if tag := provider.get("tag"):
            converted["content"] = f"<{tag}>{thought.get('text') or ''}</{tag}>{converted['content']}"
        if details := provider.get("reasoning_details"):
            converted["reasoning_details"] = details
        if extra := provider.get("message_extra_content"):
            converted["extra_content"] = extra
        for index, extra in (provider.get("extra_content") or {}).items():
            if int(index) < len(converted.get("tool_calls", ())):
                converted["tool_calls"][int(index)]["extra_content"] = extra
    calls = converted.get("tool_calls")
    if needs_signature and calls and not any("extra_content" in one for one in (converted, *calls)):
        calls[0]["extra_content"] = _UNSIGNED
    return [converted]


def _in_order(converted: Sequence[list[JsonObject]]) -> list[JsonObject]:
    """Put the pictures of a turn's results after the last result, because results have to follow their calls."""
    messages: list[JsonObject] = []
    pictures: list[JsonObject] = []
    for first, *of_results in converted:
        if first["role"] != "tool" and pictures:
            messages.append({"role": "user", "content": pictures})
            pictures = []
        messages.append(first)
        pictures = [*pictures, *(part for one in of_results for part in one["content"])]
    return [*messages, {"role": "user", "content": pictures}] if pictures else messages


def _content_part(block: object, images: bool) -> object:
    file = attachment(block)
    if file is not None:
        if isinstance(block, Mapping) and block.get("type") in ("file", "input_audio"):  # in this dialect's own form
            return block
        return _file_part(file) or {"type": "text", "text": file.placeholder(_NO_FORM)}
    if (found := picture(block)) is None:
        if isinstance(block, Mapping) and block.get("type") == "document":
            return {"type": "text", "text": all_text_of([block])}
        return block
    if not images:
        return {"type": "text", "text": found.placeholder}
    # A picture in this dialect's own form may have more fields, such as `detail`.
    return block if isinstance(block, Mapping) and block.get("type") == "image_url" else _image_part(found)


_NO_FORM = "chat completions have no form for it"


def _file_part(file: Attachment) -> JsonObject | None:
    """Return a document or a sound in this dialect's form; None if it has none."""
    if file.kind == "audio":
        form = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}.get(file.media_type)
        return {"type": "input_audio", "input_audio": {"data": file.data, "format": form}} if form else None
    if not file.data:
        return None
    return {"type": "file", "file": {"filename": file.name or "document.pdf", "file_data": file.address}}


def _image_part(shown: Picture) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": shown.address}}


_SIGNS_CALLS = re.compile(r"(models/|google/)?gemini-([3-9]|\d\d)")
"""The names of Gemini's models that reject a call of theirs without its signature."""
_UNSIGNED: JsonObject = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""What Gemini's documentation gives for a call that another model has made."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _native_tool(tool: ToolSpecification, *, is_own: bool) -> JsonObject:
    if is_provider_tool(tool):
        return dict(tool)
    function = name_and_description(tool) | {"parameters": provider_schema(tool)}
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    if tool.get("strict") and not is_strict(function["parameters"]):
        function["parameters"] = strict_schema(function["parameters"])
    # OpenAI's own server caches without being asked to, and rejects the field.
    extra_fields = ("defer_loading",) if is_own else ("cache_control", "defer_loading")
    extra = {name: tool[name] for name in extra_fields if tool.get(name) is not None}
    return {"type": "function", "function": function} | extra
