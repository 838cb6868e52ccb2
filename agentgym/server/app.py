"""The web app of an environment server: WebSocket and HTTP routes for trainers, and routes for agents."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib.util
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Header, Request, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Route

from agentgym.canonical import is_whole
from agentgym.errors import AgentGymError, ClosedError, InfrastructureError, ResetNeededError, ToolError, UsageError
from agentgym.remote import wire
from agentgym.remote.wire import BusyError, ForbiddenError, NoSessionError, NoStateError
from agentgym.server.metrics import Durations, prometheus_text
from agentgym.server.session import EnvSession
from agentgym.server.sessions import Sessions
from agentgym.tools.retrieval.body_limits import BodyLimits

Answer = Callable[..., Awaitable[Response]]
_log: Final = logging.getLogger("uvicorn.error")
REAP_EVERY_S: Final = 1.0
MAX_UNSENT_BYTES: Final = 4 * wire.MAX_FRAME_BYTES
"""Most bytes of replies that wait for a client. Further requests of its connection are read later."""
MAX_ID_CHARS: Final = 100
_STATUS: Final = (
    (BusyError, 503),
    (NoSessionError, 404),
    (NoStateError, 404),
    (ForbiddenError, 401),
    (ToolError, 422),
    (ResetNeededError, 409),
    (ClosedError, 409),
    (UsageError, 400),
    (InfrastructureError, 502),
)
"""HTTP status by error class; the first match counts."""


class Body(BaseModel):
    """A request body; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid")


class OpenBody(Body):
    """``POST /sessions``."""

    env: str = Field(max_length=500)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    key: str | None = Field(
        default=None, max_length=100, description="A repeated request with it gets the same session."
    )


class AboutBody(Body):
    """``POST /describe``."""

    env: str = Field(max_length=500)
    kwargs: dict[str, Any] = Field(default_factory=dict)


class TasksBody(AboutBody):
    """``POST /tasks``."""

    split: str = Field(default="train", max_length=100)
    start: int = Field(default=0, ge=0, le=2**53)
    stop: int = Field(default=100, ge=0, le=2**53)


class ResetBody(Body):
    """``POST /sessions/{session}/reset``."""

    task: dict[str, Any] | str | int | None = Field(
        default=None, description="A task, its id, or its place in the split."
    )
    split: str | None = Field(default=None, max_length=100)
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1)
    seq: int | None = Field(default=None, ge=1, le=2**53)


class StepBody(Body):
    """``POST /sessions/{session}/step``."""

    action: str | dict[str, Any] | list[dict[str, Any]] = Field(description="Text, a tool call, calls, or a message.")
    seq: int | None = Field(default=None, ge=1, le=2**53)


class RestoreBody(Body):
    """``POST /sessions/{session}/restore``."""

    state: str = Field(max_length=100)
    seq: int | None = Field(default=None, ge=1, le=2**53)


class CallBody(Body):
    """``POST /agent/call``."""

    name: str = Field(max_length=200)
    arguments: dict[str, Any] = Field(default_factory=dict)


def make_app(sessions: Sessions, token: str = "") -> FastAPI:
    """Return the web app.

    Args:
        sessions: the sessions to serve.
        token: control token; empty for no token.
    """
    durations = Durations()
    app = FastAPI(title="agentgym environments", lifespan=_lifespan(sessions))
    app.add_middleware(BodyLimits, max_bytes=wire.MAX_FRAME_BYTES)
    _add_errors(app, sessions)
    app.include_router(_control_routes(sessions, token, durations))
    _add_agent(app, sessions)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return the server's status and its environments."""
        status = "draining" if sessions.is_draining else "ok"
        return {"status": status, "version": wire.VERSION, "envs": sessions.env_ids, "num_sessions": len(sessions)}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Return metrics in Prometheus' text format."""
        return prometheus_text(len(sessions), sessions.counts, durations)

    @app.websocket("/ws")
    async def stream(socket: WebSocket) -> None:
        if not _is_token(token, socket.headers.get("authorization", "")):
            await socket.close()  # rejected before it is accepted, which gives 403
            return
        await socket.accept()
        await _Conversation(socket, sessions, durations).run()

    return app


def _lifespan(sessions: Sessions) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        reaper = asyncio.create_task(_reap(sessions))
        try:
            yield
        finally:
            reaper.cancel()
            await sessions.close_all()

    return lifespan


async def _reap(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(min(REAP_EVERY_S, sessions.limits.idle_timeout_s / 4))
        try:
            await sessions.reap()
        except Exception:  # the next sweep may do better; without sweeps the server would fill up
            sessions.counts["errors"] += 1
            _log.exception("idle sessions could not be closed")


def _is_token(token: str, authorization: str) -> bool:
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())


# ----------------------------------------------------------------------------------------------------- control plane


def _control_routes(sessions: Sessions, token: str, durations: Durations) -> APIRouter:
    async def control(authorization: Annotated[str, Header()] = "") -> None:
        if not _is_token(token, authorization):
            raise ForbiddenError("the control token is missing or wrong: Authorization: Bearer TOKEN")

    async def answer(op: str, **fields: Any) -> Response:
        began = time.perf_counter()
        found = await sessions.ask({"op": op, **fields})
        durations.add(time.perf_counter() - began)
        return Response(wire.encode_reply(found, repr(op)), media_type="application/json")

    routes = APIRouter(dependencies=[Depends(control)])
    _add_env_routes(routes, answer)
    _add_session_routes(routes, answer, sessions)
    return routes


def _add_env_routes(routes: APIRouter, answer: Answer) -> None:
    @routes.post("/describe")
    async def describe(body: AboutBody) -> Response:
        """Return the facts that hold for every episode of an environment, including its tools."""
        return await answer("describe", **body.model_dump())

    @routes.post("/tasks")
    async def tasks(body: TasksBody) -> Response:
        """Return some tasks of a split and the number of all its tasks."""
        return await answer("tasks", **body.model_dump())

    @routes.post("/sessions")
    async def open_session(body: OpenBody) -> Response:
        """Open a session: one environment instance."""
        return await answer("open", **body.model_dump())


def _add_session_routes(routes: APIRouter, answer: Answer, sessions: Sessions) -> None:
    @routes.post("/sessions/{session}/reset")
    async def reset(session: str, body: ResetBody) -> Response:
        """Begin an episode."""
        return await answer("reset", session=session, **body.model_dump())

    @routes.post("/sessions/{session}/step")
    async def step(session: str, body: StepBody) -> Response:
        """Take a turn."""
        return await answer("step", session=session, **body.model_dump())

    @routes.post("/sessions/{session}/snapshot")
    async def snapshot(session: str) -> Response:
        """Save the state; ``state`` is null if only a replay can restore it."""
        return await answer("snapshot", session=session)

    @routes.post("/sessions/{session}/restore")
    async def restore(session: str, body: RestoreBody) -> Response:
        """Restore a saved state in this or another session of the same environment."""
        return await answer("restore", session=session, **body.model_dump())

    @routes.get("/sessions/{session}/grade")
    async def grade(session: str) -> Response:
        """Return the rewards of the episode so far."""
        return await answer("grade", session=session)

    @routes.post("/sessions/{session}/heartbeat")
    async def heartbeat(session: str) -> Response:
        """Keep a session alive."""
        sessions.find(session)
        return await answer("heartbeat", sessions=[session])

    @routes.delete("/sessions/{session}")
    async def close(session: str) -> Response:
        """Close a session."""
        return await answer("close", session=session)


class _Conversation:
    """A trainer's WebSocket, which receives frames of requests and sends frames of replies when they are ready."""

    def __init__(self, socket: WebSocket, sessions: Sessions, durations: Durations) -> None:
        self._socket, self._sessions, self._durations = socket, sessions, durations
        self._replies: list[bytes] = []
        self._num_unsent = 0
        """Bytes of replies that the client has not taken yet."""
        self._has_replies, self._has_room = asyncio.Event(), asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer requests until the client disconnects. Its sessions stay open until they are idle for too long."""
        self._sender = asyncio.create_task(self._send())
        self._sender.add_done_callback(lambda _: self._has_room.set())
        try:
            while True:
                frame = await self._socket.receive()
                if frame["type"] == "websocket.disconnect":
                    return
                await self._take(frame.get("text") or frame.get("bytes") or "")
        except WebSocketDisconnect:
            return
        finally:
            self._sender.cancel()

    async def _take(self, text: str | bytes) -> None:
        try:
            requests = wire.decode(text)
        except UsageError as error:
            self._reply(_error_reply(None, error))
            return
        for request in requests if isinstance(requests, list) else [requests]:
            while len(self._working) >= self._most_at_once:
                await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)
            while (
                self._num_unsent > MAX_UNSENT_BYTES and not self._sender.done()
            ):  # the client does not read; only its own requests wait
                self._has_room.clear()
                await self._has_room.wait()
            task = asyncio.create_task(self._answer(request))
            self._working.add(task)
            task.add_done_callback(self._working.discard)

    @property
    def _most_at_once(self) -> int:
        """Return the number of concurrent requests: one per session, so that a long one does not block the others."""
        return len(self._sessions) + self._sessions.limits.max_waiting

    async def _answer(self, request: Any) -> None:
        began = time.perf_counter()
        number = None
        try:
            number = _number_of(request)
            found = await self._sessions.ask(request)
            self._reply(wire.encode_reply({"id": number, "ok": found}, repr(request.get("op"))[:60]))
        except Exception as error:
            self._sessions.counts["errors"] += 1
            self._reply(_error_reply(number, error))
        self._durations.add(time.perf_counter() - began)

    def _reply(self, encoded: bytes) -> None:
        self._replies.append(encoded)
        self._num_unsent += len(encoded)
        self._has_replies.set()

    async def _send(self) -> None:
        """Send all replies since the last frame, in as few frames as their size allows."""
        try:
            while True:
                await self._has_replies.wait()
                self._has_replies.clear()
                replies, self._replies = self._replies, []
                for frame in wire.joined_frames(replies):
                    await self._socket.send_text(frame)
                self._num_unsent -= sum(map(len, replies))
                self._has_room.set()
        except (WebSocketDisconnect, RuntimeError):
            pass
        except Exception:  # the client would wait for its replies; it connects again, and asks again
            with contextlib.suppress(RuntimeError):
                await self._socket.close(1011)  # an internal error
            raise


def _number_of(request: Any) -> int | str | None:
    """Return the id of a request, which its reply repeats."""
    if not isinstance(request, Mapping):
        raise UsageError("a request is an object with id and op")
    number = request.get("id")
    is_short = number is None or (isinstance(number, str) and len(number) <= MAX_ID_CHARS)
    if not is_short and not (is_whole(number) and abs(number) < 2**63):
        raise UsageError(f"the id of a request is a whole number of 64 bits or a text of {MAX_ID_CHARS} characters")
    return number


def _error_reply(number: Any, error: Exception) -> bytes:
    return wire.encode({"id": number, "error": wire.error_as_json(error)})


# ------------------------------------------------------------------------------------------------------- agent plane


def _add_agent(app: FastAPI, sessions: Sessions) -> None:
    def own(authorization: str) -> EnvSession:
        return sessions.of_agent(authorization.removeprefix("Bearer "))

    @app.get("/agent/tools")
    async def tools(authorization: Annotated[str, Header()] = "") -> list[dict[str, Any]]:
        """List the tools, as OpenAI's function schemas."""
        return [tool.as_function() for tool in own(authorization).tools]

    @app.post("/agent/call")
    async def call(body: CallBody, authorization: Annotated[str, Header()] = "") -> Response:
        """Call a tool. The answer contains its messages and whether the episode is over."""
        session = own(authorization)
        sessions.counts["steps"] += 1
        messages, is_over = await session.act(body.name, body.arguments)
        found = {"messages": wire.messages_as_json(messages), "is_over": is_over}
        return Response(wire.encode_reply(found, "a call"), media_type="application/json")

    if importlib.util.find_spec("mcp_types") is not None:  # mcp 1 has no such module
        from agentgym.server.mcp_http import McpSessions

        app.router.routes.append(Route("/agent/mcp", McpSessions(sessions), methods=["POST"]))


# ------------------------------------------------------------------------------------------------------------ errors


def _fault(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a body. FastAPI reads JSON only with its content type, and calls the rest no object."""
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']}"
    if tuple(error["loc"]) == ("body",) and error["type"] != "missing":
        return "expected a JSON object, sent with the header Content-Type: application/json"
    return str(error["msg"])


def _add_errors(app: FastAPI, sessions: Sessions) -> None:
    @app.exception_handler(AgentGymError)
    async def failed(_: Request, error: AgentGymError) -> JSONResponse:
        sessions.counts["errors"] += 1
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 502)
        headers = {"Retry-After": str(max(1, round(error.retry_after_s)))} if isinstance(error, BusyError) else {}
        if isinstance(error, ForbiddenError):
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": wire.error_as_json(error)}, status_code=status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def unreadable(_: Request, error: RequestValidationError) -> JSONResponse:
        faults = [
            {"loc": [str(at)[:100] for at in one["loc"]], "msg": _fault(one)[:200]} for one in error.errors()[:10]
        ]
        return JSONResponse({"detail": faults}, status_code=422)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        sent = {"type": "UsageError", "message": str(error.detail)}
        return JSONResponse({"error": sent}, status_code=error.status_code, headers=error.headers)
