"""Tools of MCP servers, mounted in an environment (extra ``mcp``).

If a server cannot be started, dies or does not answer in time, that is an infrastructure failure. An error that a tool
returns is data for the policy.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from agentgym.env.tool_env import ToolEnv
from agentgym.env.worker_thread import loop_thread
from agentgym.errors import (
    EnvError,
    EnvTimeoutError,
    MissingDataError,
    ToolError,
    UsageError,
    error_text,
    require_extra,
)
from agentgym.json_schema.validation import dangling_reference, schema_error, violations
from agentgym.proxies import by_proxy
from agentgym.settings import Settings
from agentgym.tool import Tool, usage
from agentgym.types import ImagePart, JsonSchema, Observation, Task, ToolCall, ToolSpec

_THREAD: Final = "agentgym mcp"
_CLOSE_S: Final = 10.0
_NOT_SHOWN: Final = "[{} content is not shown]"
_PNG: Final = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer(Settings):
    """An MCP server and the tools of it that an environment mounts.

    Example:
        >>> McpServer(command=("uvx", "mcp-server-time"), only=("convert_time",)).place
        'uvx mcp-server-time'
    """

    command: tuple[str, ...] = ()
    """Command of a server that uses standard input and output. Each environment instance starts one."""
    url: str = ""
    """Address of a server with streamable HTTP, instead of a command."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables of a command. Of those of this process it gets PATH, HOME and few others, never keys."""
    cwd: str = ""
    """Working directory of a command; empty for that of this process."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of every request to a url, such as ``{"Authorization": "Bearer ..."}``."""
    only: tuple[str, ...] = ()
    """Names of the tools to mount; empty for all."""
    timeout_s: float = 30.0
    """Time limit of a call in seconds."""
    start_timeout_s: float = 60.0
    shown: Callable[[str, str], str] | None = None
    """Function of a tool's name and its result text that returns the text for the policy. Use it to remove times and
    ids that differ between runs, so that episodes can be replayed."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise UsageError("an MCP server needs either a command or a url: give one of them")
        for name, given, what in (("env", self.env, "command"), ("headers", self.headers, "url")):
            if given and not getattr(self, what):
                raise UsageError(f"{name} of an MCP server is for a {what}, which {self.place} is not")
            if not all(isinstance(text, str) for pair in given.items() for text in pair):
                raise UsageError(f"{name} of the MCP server {self.place} maps names to texts; a value is no text")
        if self.cwd and not self.command:
            raise UsageError(f"cwd of an MCP server is for a command, which {self.place} is not")
        if self.cwd and not Path(self.cwd).is_dir():
            raise MissingDataError(f"cwd of the MCP server {self.place}: {self.cwd} is no folder")

    @property
    def place(self) -> str:
        """Command or address, for messages."""
        return self.url or " ".join(self.command)


class McpConnection:
    """A client of one MCP server, which runs in a separate thread."""

    def __init__(self, server: McpServer) -> None:
        require_extra(f"the MCP server {server.place}", "mcp", "mcp_types")  # mcp 1 has no such module
        self.server = server
        self.tools: tuple[ToolSpec, ...] = ()
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (closed with it)
        self._thread = loop_thread(_THREAD)
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._running: Future[None] | None = None
        self._has_ended = threading.Event()

    @property
    def is_open(self) -> bool:
        """True while the server is connected."""
        return self._running is not None and not self._running.done() and self._client is not None

    def open(self) -> None:
        """Start the server and list its tools. A running server is left unchanged.

        Raises:
            EnvError: the server cannot be started.
            EnvTimeoutError: it does not answer in time.
            UsageError: the server has no tools, lacks one named in ``only``, or gives one an invalid schema.
        """
        if self.is_open:
            return
        ready: Future[tuple[ToolSpec, ...]] = Future()
        self._has_ended = threading.Event()
        self._running = self._thread.submit(self._serve(ready, self._has_ended))
        try:
            self.tools = self._chosen(ready.result(self.server.start_timeout_s))
        except FutureTimeoutError:
            self.close()
            raise EnvTimeoutError(
                f"{self.server.place} did not start within {self.server.start_timeout_s:g} s"
            ) from None

    async def call(self, name: str, arguments: Mapping[str, object]) -> object:
        """Call a tool and return its texts and images.

        Raises:
            ToolError: the tool reports a failure or rejects the arguments.
            EnvTimeoutError: it does not answer in time.
            EnvError: the server has died or violates the protocol.
        """
        if not self.is_open:
            raise EnvError(f"the MCP server {self.server.place} is not running")
        return await asyncio.wrap_future(self._thread.submit(self._call(name, arguments)))

    def close(self) -> None:
        """End the server's process."""
        if self._running is None:
            return
        if self._client is not None and self._stop is not None:
            self._thread.loop.call_soon_threadsafe(self._stop.set)
        else:
            self._running.cancel()  # the server is still being opened
        if not self._has_ended.wait(_CLOSE_S):
            self._running.cancel()
        self._running = self._client = self._stop = None

    # ---------------------------------------------------------------------------------------------------- private

    async def _serve(self, ready: Future[tuple[ToolSpec, ...]], has_ended: threading.Event) -> None:
        """Hold the connection open in one task, since it must be closed in the task that opened it."""
        self._stop = asyncio.Event()
        try:
            from mcp.client.client import Client
            from mcp.client.stdio import StdioServerParameters, stdio_client

            from agentgym.tools.mcp_direct import http_streams

            server, command = self.server, self.server.command
            target: Any = http_streams(server.url, server.headers, self._log)
            if command:
                started = StdioServerParameters(
                    command=command[0], args=list(command[1:]), env=dict(server.env), cwd=server.cwd or None
                )
                target = stdio_client(started, errlog=self._log)
            async with Client(target) as client:  # the time limits are ours
                specs = await self._listed(client)
                self._client = client
                ready.set_result(specs)
                await self._stop.wait()
        except Exception as error:
            if not ready.done():
                why = f"{_first(error)}{self._last_words()}{by_proxy(self.server.url)}"
                told = f"the MCP server {self.server.place} did not start: {why}"
                ready.set_exception(EnvError(told))
        finally:
            self._client = None
            has_ended.set()

    def _last_words(self) -> str:
        """Return the last line of the server's standard error, or the status of the last message that it refused."""
        self._log.flush()
        self._log.seek(0)
        lines = self._log.read().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" ({last:.300})" if last else ""

    async def _listed(self, client: Any) -> tuple[ToolSpec, ...]:
        specs: list[ToolSpec] = []
        cursor = None
        seen: set[str] = set()
        while True:
            page = await client.list_tools(cursor=cursor)
            specs += [ToolSpec(one.name, one.description or one.name, one.input_schema) for one in page.tools]
            cursor = page.next_cursor
            if not cursor:  # some servers send an empty one with the last page
                return tuple(specs)
            if cursor in seen:
                raise EnvError(f"it repeats the cursor {cursor!r} in its list of tools")
            seen.add(cursor)

    def _chosen(self, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        names = [spec.name for spec in specs]
        if not names:
            raise UsageError(f"the MCP server {self.server.place} lists no tools")
        if missing := [name for name in self.server.only if name not in names]:
            raise UsageError(f"{self.server.place} has no tool {missing[0]!r}; it has {', '.join(names)}")
        chosen = tuple(spec for spec in specs if not self.server.only or spec.name in self.server.only)
        for spec in chosen:
            self._check_schema(spec)
        return chosen

    def _check_schema(self, spec: ToolSpec) -> None:
        schema = dict(spec.parameters)
        if wrong := schema_error(schema):
            raise UsageError(
                f"the MCP server {self.server.place} gives the tool {spec.name!r} an invalid schema: {wrong}; name the "
                "tools to mount by only="
            )
        if dangling := dangling_reference(schema):
            raise UsageError(
                f"the MCP server {self.server.place} gives the tool {spec.name!r} a schema whose $ref {dangling!r} "
                "refers to nothing in it; name the tools to mount by only="
            )

    async def _call(self, name: str, arguments: Mapping[str, object]) -> object:
        import mcp_types
        from mcp.shared.exceptions import MCPError

        client = self._client
        try:
            async with asyncio.timeout(self.server.timeout_s):
                result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.error.code == mcp_types.INVALID_PARAMS:
                raise ToolError(error.error.message, "invalid_arguments") from error
            if error.error.code == mcp_types.REQUEST_TIMEOUT:
                raise EnvTimeoutError(f"{self.server.place}: {name}: {error.error.message}") from error
            if error.error.code == mcp_types.CONNECTION_CLOSED and self._stop is not None:
                self._client = None  # the server has died; the next episode starts another one
                self._stop.set()
            raise EnvError(f"{self.server.place}: {name}: {error.error.message}{self._last_words()}") from error
        except TimeoutError as error:
            raise EnvTimeoutError(f"{self.server.place}: {name}: no answer in {self.server.timeout_s:g} s") from error
        except (RuntimeError, ValueError) as error:  # a result that breaks its output schema or the protocol
            raise EnvError(f"{self.server.place}: {name}: {error}") from error
        parts: list[object] = [_part(one) for one in result.content]
        if not parts and result.structured_content is not None:
            parts = [json.dumps(result.structured_content, ensure_ascii=False)]
        if result.is_error:
            texts = [_NOT_SHOWN.format("image") if isinstance(part, ImagePart) else str(part) for part in parts]
            raise ToolError("\n".join(texts) or "the tool failed")
        if self.server.shown is not None:
            parts = [self.server.shown(name, part) if isinstance(part, str) else part for part in parts]
        return parts if any(isinstance(part, ImagePart) for part in parts) else "\n".join(map(str, parts))


def _part(content: Any) -> str | ImagePart:
    if content.type == "image":
        return ImagePart(content.data) if _is_png(content.data) else _NOT_SHOWN.format(content.mime_type)
    if content.type == "resource" and hasattr(content.resource, "text"):
        return str(content.resource.text)
    return str(content.text) if content.type == "text" else _NOT_SHOWN.format(content.type)


def _is_png(data: str) -> bool:
    """Return True if a text is a PNG image in base64, the one kind that an :class:`ImagePart` holds."""
    try:
        return base64.b64decode(data, validate=True).startswith(_PNG)
    except (binascii.Error, ValueError):
        return False


class _Noise(logging.Filter):
    """One line in a process about output of servers that is no message, in place of a traceback for each."""

    def __init__(self) -> None:
        super().__init__()
        self._is_said = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info is None:
            return True
        if not self._is_said:
            self._is_said = True
            _LOG.warning(
                "an MCP server prints to standard output what is no message; it is ignored, and belongs to stderr"
            )
        return False


_LOG = logging.getLogger("mcp.client.stdio")
_LOG.addFilter(_Noise())


def _first(error: BaseException) -> str:
    """Return the first cause in a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error_text(error)


@dataclass(frozen=True)
class McpTool(Tool):
    """A tool of an MCP server, with the server's schema."""

    parameters: JsonSchema = field(default_factory=dict)

    @cached_property
    def spec(self) -> ToolSpec:
        """Name, description and schema from the server."""
        return ToolSpec(self.name, self.description, self.parameters, self.is_parallel_safe, self.timeout_s)

    def arguments(self, call: ToolCall) -> dict[str, Any]:
        """Return the call's arguments after checking them against the server's schema.

        Raises:
            ToolError: of type ``invalid_arguments``, if they do not fit.
        """
        if wrong := violations(dict(call.arguments), self.parameters):
            raise ToolError(f"{wrong[0].message}. Usage: {usage(self.spec)}", "invalid_arguments")
        return dict(call.arguments)


class McpToolEnv(ToolEnv):
    """An environment with tools of MCP servers in addition to its own ``@tool`` methods.

    Subclasses set :attr:`servers`. An instance starts its servers when it is made, and restarts dead ones before the
    next episode. Episodes can be replayed only if the servers' answers can (:attr:`McpServer.shown`). A reset of the
    episode does not reset state in a server.

    Raises:
        EnvError: a server cannot be started.
        UsageError: two tools have the same name.
        MissingExtraError: the package ``mcp`` is not installed.
    """

    servers: ClassVar[Sequence[McpServer]] = ()

    def __init__(self, *, max_turns: int | None = None, render_mode: str | None = None) -> None:
        self._connections = [McpConnection(server) for server in self.servers]
        try:
            self._mount()
        except BaseException:
            self.stop()
            raise
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, after restarting dead servers."""
        self._mount()
        return super().reset(seed=seed, options=options)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        """Begin an episode, as :meth:`reset` does."""
        await asyncio.to_thread(self._mount)
        return await super().areset(seed=seed, options=options)

    def start(self, task: Task) -> str | Observation:
        """Set up the state for a task and return the first observation."""
        raise NotImplementedError(f"{type(self).__name__} must implement start(task)")

    def stop(self) -> None:
        """End the servers' processes. Subclasses that override this method must call it."""
        for connection in self._connections:
            connection.close()

    def _mount(self) -> None:
        if self._connections and all(connection.is_open for connection in self._connections):
            return
        tools = dict(type(self)._tools)
        for connection in self._connections:
            connection.open()
            for spec in connection.tools:
                if spec.name in tools:
                    raise UsageError(f"{type(self).__name__} has two tools {spec.name!r}; name those to mount by only=")
                tools[spec.name] = McpTool(
                    spec.name, _caller(connection, spec.name), spec.description, parameters=spec.parameters
                )
        self._tools = tools


def _caller(connection: McpConnection, name: str) -> Callable[..., object]:
    async def call(env: ToolEnv, /, **arguments: object) -> object:
        return await connection.call(name, arguments)

    return call
