"""The agents' routes over MCP's streamable HTTP. An agent token identifies a session."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

import agentgym
from agentgym.errors import InfrastructureError, UsageError
from agentgym.server.mcp_stdio import OVER, as_content, has_error, listed
from agentgym.server.session import EnvSession
from agentgym.server.sessions import Sessions


class McpSessions:
    """An ASGI app that answers each request as the MCP server of the session with the request's agent token.

    It does not use MCP's own sessions, since the token identifies the episode in every version of the protocol.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = Request(scope).headers.get("authorization", "").removeprefix("Bearer ")
        server = _server(self._sessions.of_agent(token), self._sessions)
        manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def _server(session: EnvSession, sessions: Sessions) -> Server[Any]:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return listed(session.tools)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        sessions.counts["steps"] += 1
        try:
            replies, is_over = await session.act(params.name, dict(params.arguments or {}))
        except UsageError as error:  # no episode is running, or another call is in progress
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        except InfrastructureError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=f"the environment failed: {error}") from error
        content = as_content(replies)
        if is_over:
            content.append(types.TextContent(text=OVER))
        return types.CallToolResult(content=content, is_error=has_error(replies))

    return Server(
        f"agentgym {session.env_id}",
        version=agentgym.__version__,
        instructions="\n".join(message.text for message in session.opening) or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
