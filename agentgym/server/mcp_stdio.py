"""One episode of an environment as an MCP server, over standard input and output, or over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, TextIO

import mcp_types as types
from anyio import EndOfStream, wrap_file
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

import agentgym
from agentgym.env.env import Env
from agentgym.errors import InfrastructureError, ToolError, UsageError, error_text
from agentgym.types import ImagePart, Message, RewardPart, ToolCall, ToolSpec
from agentgym.web_guard import Access, WebGuard

OVER = "The episode is over."


class McpEpisode:
    """An episode whose agent is an MCP client.

    The client sees the tools and their results. Rewards, answers and the grader's state stay on the server, in
    :attr:`record`.

    Args:
        env: an environment with tools.
        options: options of its reset.

    Raises:
        UsageError: the environment has no tools.
    """

    def __init__(self, env: Env, *, seed: int | None, options: dict[str, Any]) -> None:
        observation, _ = env.reset(seed=seed, options=options)
        if not env.tools:
            raise UsageError(f"{env.env_id} has no tools; an MCP client can only call tools")
        self._env = env
        self._lock = asyncio.Lock()
        self._parts: list[RewardPart] = []
        self._is_over, self._success, self._error = False, False, ""
        self._calls: list[dict[str, Any]] = []
        self.instructions = "\n".join(message.text for message in observation)

    @property
    def record(self) -> dict[str, Any]:
        """Result of the episode: task, calls, rewards. If the environment failed, reward and success are None."""
        return {
            "env": self._env.env_id,
            "task_id": self._env.task.id,
            "seed": self._env.episode.seed,
            "is_over": self._is_over,
            "success": None if self._error else self._success,
            "reward": None if self._error else sum(part.value for part in self._parts),
            "reward_parts": [[part.name, part.value, part.role] for part in self._parts],
            "error": self._error,
            "calls": self._calls,
        }

    def server(self) -> Server[Any]:
        """Return the MCP server."""
        return Server(
            f"agentgym {self._env.env_id}",
            version=agentgym.__version__,
            instructions=self.instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def run(self, stdin: TextIO | None = None, stdout: TextIO | None = None) -> None:
        """Serve on two streams until the client closes them; by default on standard input and output."""
        server = self.server()
        given = [None if stream is None else wrap_file(stream) for stream in (stdin, stdout)]
        async with stdio_server(*given) as (incoming, outgoing):
            await server.run(_Refused(incoming, outgoing), outgoing, server.create_initialization_options())

    async def run_http(self, listening: socket.socket) -> None:
        """Serve streamable HTTP at ``/mcp`` on a bound socket until Ctrl-C or SIGTERM."""
        import uvicorn

        host = listening.getsockname()[0]
        # no sessions of MCP, since all requests belong to the one episode
        app = self.server().streamable_http_app(json_response=True, stateless_http=True, host=host)
        guarded = WebGuard(app, Access(host=host))  # the protocol's clients have no token
        config = uvicorn.Config(guarded, log_level="warning", timeout_graceful_shutdown=5)
        await uvicorn.Server(config).serve(sockets=[listening])

    async def _list_tools(self, context: Any, params: Any) -> types.ListToolsResult:
        return listed(self._env.tools)

    async def _call_tool(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        async with self._lock:  # the turns of an episode run one at a time
            if self._is_over:
                return types.CallToolResult(content=[types.TextContent(text=OVER)], is_error=True)
            call = ToolCall(params.name, dict(params.arguments or {}), str(len(self._calls)))
            return await self._step(call)

    async def _step(self, call: ToolCall) -> types.CallToolResult:
        try:
            replies, _, terminated, truncated, info = await self._env.astep(Message("assistant", calls=(call,)))
        except ToolError as error:
            self._is_over = True
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        except (InfrastructureError, OSError, RuntimeError) as error:
            self._is_over, self._error = True, error_text(error)
            raise MCPError(code=types.INTERNAL_ERROR, message=f"the environment failed: {error}") from error
        self._parts += info["reward_parts"]
        self._is_over, self._success = terminated or truncated, bool(info.get("success", False))
        self._calls.append({"name": call.name, "arguments": dict(call.arguments), "is_valid": info["is_valid"]})
        content = as_content(replies)
        if self._is_over:
            content.append(types.TextContent(text=OVER))
        return types.CallToolResult(content=content, is_error=has_error(replies))


class _Refused:
    """A stream of messages that answers what is none with an error of JSON-RPC. mcp alone would drop it."""

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incoming, name)  # mcp reads the sender's context, too

    async def receive(self) -> Any:
        while isinstance(item := await self._incoming.receive(), Exception):
            if (error := _error_for(item)) is not None:
                answer = types.JSONRPCError(jsonrpc="2.0", id=None, error=error)
                await self._outgoing.send(SessionMessage(answer))
        return item

    def __aiter__(self) -> _Refused:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Refused:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._incoming.aclose()


def _error_for(wrong: Exception) -> types.ErrorData | None:
    """Return the error for a line that is no message, None for an empty line."""
    first: Any = wrong.errors()[0] if isinstance(wrong, ValidationError) else {}
    if isinstance(first.get("input"), str) and not first["input"].strip():
        return None
    if first.get("type") == "json_invalid":
        return types.ErrorData(code=types.PARSE_ERROR, message=f"the line is not JSON: {first['ctx']['error']}")
    wanted = 'expected an object with "jsonrpc": "2.0", and a method or a result'
    return types.ErrorData(code=types.INVALID_REQUEST, message=f"the line is no message of JSON-RPC; {wanted}")


def listed(tools: Sequence[ToolSpec]) -> types.ListToolsResult:
    """Convert tools to an MCP list of tools."""
    return types.ListToolsResult(
        tools=[
            types.Tool(name=spec.name, description=spec.description, input_schema=dict(spec.parameters))
            for spec in tools
        ]
    )


def has_error(replies: Sequence[Message]) -> bool:
    """Return True if a tool returned an error."""
    return any(message.result is not None and message.result.is_error for message in replies)


def as_content(replies: Sequence[Message]) -> list[Any]:
    """Convert the text and images of replies to MCP content."""
    found: list[Any] = []
    for message in replies:
        if message.text:
            found.append(types.TextContent(text=message.text))
        parts = () if isinstance(message.content, str) else message.content
        images = (part for part in parts if isinstance(part, ImagePart))
        found += [types.ImageContent(data=image.png_base64, mime_type="image/png") for image in images]
    return found
