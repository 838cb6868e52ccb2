"""The HTTP server of the endpoint, which runs on the event loop of the sampling process.

A request names its episode by the path (``/s/ID/v1/...``), the header ``X-Session-Id``, or the API key
(``sk-agentgym-ID``).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from agentgym.canonical import MAX_DEPTH, encodable_json, read_json
from agentgym.endpoint.calls import CallRefusedError
from agentgym.endpoint.session import EpisodeSession
from agentgym.endpoint.wire import anthropic, gemini, openai_chat, openai_responses
from agentgym.errors import AgentGymError, InfrastructureError, UsageError
from agentgym.sandboxes.run_folder import shared_folder
from agentgym.web_guard import Access, WebGuard

MODEL: Final = "policy"
"""Name of the model; agents may also send any other name."""
KEY_PREFIX: Final = "sk-agentgym-"
MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_BODY_DEPTH: Final = 2 * MAX_DEPTH
"""Deepest nesting of a request: that of a policy's arguments, and of the objects around them."""
WIRES: Final[Mapping[str, ModuleType]] = {
    "chat/completions": openai_chat,
    "responses": openai_responses,
    "messages": anthropic,
}
"""APIs by their path after ``/v1/``. Gemini's paths hold the model: ``/v1beta/models/MODEL:generateContent``."""
_GEMINI = "/v1beta/models/{action:path}"
_GEMINI_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_CONTAINER_NAMES: Final = ("host.docker.internal", "host.containers.internal")
"""Names under which containers reach this machine."""
_PATIENCE_S = 5.0


class Gateway:
    """A server that answers the requests of many episodes.

    Args:
        host: address to listen on; agents in containers need one that they can reach.
        port: port to listen on; 0 chooses a free one.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host, self.port = host, port
        self._sessions: dict[str, EpisodeSession] = {}
        self._servers: list[tuple[_GatewayServer, asyncio.Task[None]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.socket_path = ""
        """Path of the Unix socket on which it listens, too; empty if there is none."""
        self.noted: set[str] = set()
        """Fields of requests that have been reported as overridden or ignored."""

    @property
    def url(self) -> str:
        """Base URL, as in ``http://127.0.0.1:8123``."""
        return f"http://{self._host}:{self.port}"

    async def start(self, *, has_socket: bool = False) -> None:
        """Start listening; a second call does nothing.

        Args:
            has_socket: listen on a Unix socket, too, for agents in sandboxes without network.

        Raises:
            UsageError: it cannot listen on the address.
        """
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._servers, self.socket_path = asyncio.get_running_loop(), [], ""
        if not self._servers:
            listening = _listening(self._host, self.port)
            self.port = listening.getsockname()[1]
            self._serve(listening)
        if has_socket and not self.socket_path:
            listening, self.socket_path = _listening_socket()
            self._serve(listening)
        for server, serving in self._servers:
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            if serving.done():
                serving.result()
                raise InfrastructureError("the policy's endpoint stopped while it started")

    def _serve(self, listening: socket.socket) -> None:
        # agents write JSON by any content type; what keeps forms of other sites out is the session's id
        access = Access(host=self._host, names=_CONTAINER_NAMES, needs_json=False)
        app = WebGuard(make_app(self._sessions), access)
        config = uvicorn.Config(app, log_level="error", lifespan="off", loop="none")
        server = _GatewayServer(config)
        self._servers.append((server, asyncio.create_task(server.serve(sockets=[listening]))))

    def open(self, session: EpisodeSession) -> None:
        """Begin to answer requests of an episode."""
        self._sessions[session.id] = session

    def forget(self, session: EpisodeSession) -> None:
        """Answer later requests of an episode with 404."""
        self._sessions.pop(session.id, None)

    async def close(self) -> None:
        """Stop listening; a second call does nothing."""
        servers, self._servers = self._servers, []
        path, self.socket_path = self.socket_path, ""
        for server, _ in servers:
            server.should_exit = server.force_exit = True
        for _, serving in servers:
            with contextlib.suppress(asyncio.CancelledError):
                done, _ = await asyncio.wait([serving], timeout=_PATIENCE_S)
                if not done:
                    serving.cancel()
        if path:
            Path(path).unlink(missing_ok=True)


def new_session_id() -> str:
    """Return an unguessable id, so that an agent cannot write into the episode of another."""
    return secrets.token_hex(12)


def make_app(sessions: Mapping[str, EpisodeSession]) -> FastAPI:
    """Return the web application that serves the open sessions, given by id."""
    app = FastAPI(openapi_url=None)

    app.add_exception_handler(HTTPException, _no_such_path)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    @app.get("/s/{session_id}/v1/models")
    async def models(session_id: str = "") -> dict[str, Any]:
        row = {"id": MODEL, "object": "model", "created": 0, "owned_by": "agentgym"}
        return {"object": "list", "data": [row]}

    @app.post("/s/{session_id}/tools/{name}")
    async def tool(request: Request, name: str) -> Response:
        try:
            session = _session(sessions, request)
            if session.call_tool is None:
                raise CallRefusedError("unsupported", "This session has no tools.")
            return JSONResponse({"content": await session.call_tool(name, await _body(request))})
        except CallRefusedError as refused:
            return JSONResponse(openai_chat.error(refused), status_code=refused.http_status)
        except AgentGymError as error:
            return JSONResponse({"error": {"message": str(error), "type": "tool_error"}}, status_code=503)

    for path, wire in WIRES.items():
        endpoint = _endpoint(sessions, wire)
        app.add_api_route(f"/v1/{path}", endpoint, methods=["POST"], response_model=None)
        app.add_api_route(f"/s/{{session_id}}/v1/{path}", endpoint, methods=["POST"], response_model=None)
    for prefix in ("", "/s/{session_id}"):
        count = _counting(sessions, anthropic)
        app.add_api_route(f"{prefix}/v1/messages/count_tokens", count, methods=["POST"], response_model=None)
        app.add_api_route(prefix + _GEMINI, _gemini(sessions), methods=["POST"], response_model=None)
    return app


async def _no_such_path(request: Request, error: Exception) -> Response:
    """Answer a request for a path or a method that does not exist, in OpenAI's format."""
    paths = ", ".join(f"POST /v1/{path}" for path in WIRES)
    what = (
        f"No {request.method} {request.url.path} here; the endpoint answers {paths}, "
        "POST /v1beta/models/MODEL:generateContent and GET /v1/models."
    )
    status = error.status_code if isinstance(error, HTTPException) else 404
    return JSONResponse(openai_chat.error(CallRefusedError("invalid", what)), status_code=status)


def _endpoint(sessions: Mapping[str, EpisodeSession], wire: ModuleType) -> Any:
    async def answer(request: Request) -> Response:
        try:
            session = _session(sessions, request)
            call = wire.parse(await _body(request))
            found = await session.answer(call, request.is_disconnected)
        except CallRefusedError as refused:
            return JSONResponse(wire.error(refused), status_code=refused.http_status)
        if not call.is_stream:
            return JSONResponse(wire.response(found, MODEL))
        if wire is openai_chat:
            written = openai_chat.events(found, MODEL, has_usage=call.has_usage_event)
        else:
            written = wire.events(found, MODEL)
        return StreamingResponse(written, media_type="text/event-stream")

    return answer


def _counting(sessions: Mapping[str, EpisodeSession], wire: ModuleType) -> Any:
    """Return a handler that counts the tokens of a prompt without sampling."""

    async def count(request: Request) -> Response:
        try:
            session = _session(sessions, request)
            num_tokens = session.count(wire.parse_count(await _body(request)))
        except CallRefusedError as refused:
            return JSONResponse(wire.error(refused), status_code=refused.http_status)
        return JSONResponse(wire.count_response(num_tokens))

    return count


def _gemini(sessions: Mapping[str, EpisodeSession]) -> Any:
    """Return a handler of Gemini's methods, whose names end the path."""

    async def answer(request: Request, action: str) -> Response:
        method = action.rpartition(":")[2]
        if method not in _GEMINI_METHODS:
            return await _no_such_path(request, HTTPException(404))
        if method == "countTokens":
            return cast(Response, await _counting(sessions, gemini)(request))
        try:
            session = _session(sessions, request)
            found = await session.answer(gemini.parse(await _body(request)), request.is_disconnected)
        except CallRefusedError as refused:
            return JSONResponse(gemini.error(refused), status_code=refused.http_status)
        if method == "generateContent":
            return JSONResponse(gemini.response(found, MODEL))
        if request.query_params.get("alt") != "sse":
            return JSONResponse([gemini.response(found, MODEL)])
        return StreamingResponse(gemini.events(found, MODEL), media_type="text/event-stream")

    return answer


def _session(sessions: Mapping[str, EpisodeSession], request: Request) -> EpisodeSession:
    headers = request.headers
    key = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
    key = key or headers.get("x-goog-api-key", "") or request.query_params.get("key", "")
    named = request.path_params.get("session_id") or headers.get("x-session-id")
    id = named or key.removeprefix(KEY_PREFIX)
    session = sessions.get(id)
    if session is None:
        raise CallRefusedError(
            "unknown_session",
            "No such session. Use the base URL or the API key that the harness was given; sessions end with their "
            "episode.",
        )
    return session


async def _body(request: Request) -> Mapping[str, Any]:
    held = bytearray()
    async for piece in request.stream():
        held += piece
        if len(held) > MAX_BODY_BYTES:
            raise CallRefusedError("invalid", f"The request is larger than {MAX_BODY_BYTES} bytes.")
    try:
        body = encodable_json(read_json(bytes(held)), MAX_BODY_DEPTH)
    except ValueError as error:
        raise CallRefusedError("invalid", f"The request cannot be read as JSON: {error}.") from error
    if not isinstance(body, dict):
        raise CallRefusedError("invalid", "The request must be a JSON object.")
    return body


class _GatewayServer(uvicorn.Server):
    """A server that does not install signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listening_socket() -> tuple[socket.socket, str]:
    """Return a Unix socket to which every user may connect, and its path."""
    path = shared_folder() / f"{secrets.token_hex(4)}.sock"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(0o666)
    except OSError as error:
        listening.close()
        raise UsageError(f"{path}: cannot listen there ({error}); set AGENTGYM_STATE to a shorter path") from error
    return listening, str(path)


def _listening(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UsageError(f"harness.host={host} harness.port={port}: cannot listen there ({error})") from error
    return listening
