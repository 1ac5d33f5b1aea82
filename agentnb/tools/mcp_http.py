"""MCP over HTTP: tells a call what happened to its request, so that it is known whether the call can be repeated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from agentnb.tools.mcp_wire import NOT_SENT, OURS, SESSION_EXPIRED, SESSION_REFUSED

REFUSED = -32098
"""The code of the error for a request that was answered with an HTTP error status."""

_SECONDS = httpx2.Timeout(30, read=300)  # those of the library's own client


@asynccontextmanager
async def over_http(address: str, headers: Mapping[str, str] | None) -> AsyncIterator[Any]:
    """Open the library's transport for an address, with these headers on every request."""
    async with (
        _HttpClient(headers=dict(headers or {}), timeout=_SECONDS) as client,
        streamable_http_client(address, http_client=client) as streams,
    ):
        yield streams


class _HttpClient(httpx2.AsyncClient):
    """An HTTP client that answers with a JSON-RPC error if the server does not, so that the error reaches the call."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request. If it cannot be sent, or fails with a status, return a JSON-RPC error as its response."""
        if request.method != "POST":
            return await super().send(request, **options)
        try:
            response = await super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return _error(request, 503, NOT_SENT, f"{type(error).__name__}: {error}".removesuffix(": "))
        if response.status_code < 400:
            return response
        body = await response.aread()
        await response.aclose()
        is_in_session = "mcp-session-id" in request.headers
        if is_in_session and response.status_code == HTTPStatus.NOT_FOUND:  # the protocol's sign
            return _error(request, response.status_code, SESSION_EXPIRED, "The server no longer knows the session")
        status = f"{response.status_code} {response.reason_phrase}".strip()
        if is_in_session and response.status_code == HTTPStatus.BAD_REQUEST and b"session" in body.lower():
            message = f"The server answered {status}, perhaps because it no longer knows the session"
            return _error(request, response.status_code, SESSION_REFUSED, message)
        if _is_rpc_error(body) or response.status_code == HTTPStatus.NOT_FOUND:  # of an unknown method
            headers = {"content-type": response.headers.get("content-type", "text/plain")}
            return httpx2.Response(response.status_code, headers=headers, content=body, request=request)
        return _error(request, response.status_code, REFUSED, f"The server answered {status}")


def _error(request: httpx2.Request, status: int, code: int, message: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, "data": OURS}}
    return httpx2.Response(status, json=body, request=request)


def _is_rpc_error(body: bytes) -> bool:
    try:
        payload = json.loads(body)
    except ValueError:
        return False
    return isinstance(payload, dict) and "jsonrpc" in payload and isinstance(payload.get("error"), dict)
