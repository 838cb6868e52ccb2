"""An environment with OpenEnv's protocol, served by OpenEnv's server (extra ``openenv``)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from openenv.core.env_server.types import Observation as OpenEnvObservation
from openenv.core.env_server.types import State

from agentgym.env.env import Env, TypedStep
from agentgym.errors import ToolError, UsageError
from agentgym.types import ToolCall
from agentgym.web_guard import Access, WebGuard


class FirstObservation(OpenEnvObservation):  # type: ignore[misc]
    """The first observation of an episode."""

    text: str
    task_id: str


class Stepped(CallToolObservation):  # type: ignore[misc]
    """The result of a tool; ``success`` is set at the end of an episode."""

    is_valid: bool = True
    success: bool | None = None


class OpenEnvEnvironment(Environment):  # type: ignore[misc]
    """An agentgym environment for OpenEnv's server. An action is a tool call, and a reward is the reward of its turn.

    A failure of the environment becomes an error of the server, which its clients raise, and gives no reward.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: Env) -> None:
        super().__init__()
        self._env = env
        self._episode_id: str | None = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> FirstObservation:
        """Begin an episode. ``task`` and ``split`` choose the task; without them the seed draws one."""
        said, _ = self._env.reset(seed=seed, options=options)
        return self._begun(said, episode_id)

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> FirstObservation:
        """Begin an episode, as :meth:`reset` does."""
        said, _ = await self._env.areset(seed=seed, options=options)
        return self._begun(said, episode_id)

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        """List the tools, or call one."""
        if isinstance(action, ListToolsAction):
            return self._listed()
        call = ToolCall(action.tool_name, dict(action.arguments), "0")
        try:
            observation, reward, terminated, truncated, info = self._env.step(call)
        except ToolError as error:
            return self._ended_by(call, error)
        return _stepped(call, (observation, reward, terminated, truncated, info))  # type: ignore[arg-type]

    async def step_async(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        """List the tools or call one, as :meth:`step` does."""
        if isinstance(action, ListToolsAction):
            return self._listed()
        call = ToolCall(action.tool_name, dict(action.arguments), "0")
        try:
            return _stepped(call, await self._env.astep(call))
        except ToolError as error:
            return self._ended_by(call, error)

    @property
    def state(self) -> State:
        """Id of the episode and number of turns."""
        return State(episode_id=self._episode_id, step_count=self._env.turn)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _begun(self, said: Any, episode_id: str | None) -> FirstObservation:
        self._episode_id = episode_id
        return FirstObservation(text="\n\n".join(message.text for message in said), task_id=self._env.task.id)

    def _listed(self) -> ListToolsObservation:
        specs = self._env.tools
        tools = [Tool(name=s.name, description=s.description, input_schema=dict(s.parameters)) for s in specs]
        return ListToolsObservation(tools=tools)

    def _ended_by(self, call: ToolCall, error: ToolError) -> Stepped:
        return Stepped(tool_name=call.name, result=str(error), done=True, reward=0.0, is_valid=False, success=False)


def _stepped(call: ToolCall, step: TypedStep) -> Stepped:
    observation, reward, terminated, truncated, info = step
    return Stepped(
        tool_name=call.name,
        result="\n".join(message.text for message in observation),
        reward=reward,
        done=terminated or truncated,
        is_valid=info["is_valid"],
        success=info.get("success"),
    )


def make_app(make_env: Callable[[], Env], max_sessions: int) -> FastAPI:
    """Return OpenEnv's web app for an environment. Each WebSocket connection gets its own instance.

    Raises:
        UsageError: the environment has no tools.
    """
    probe = make_env()
    try:
        if not probe.tools:
            probe.reset(seed=0)
        if not probe.tools:
            raise UsageError(f"{probe.env_id} has no tools; OpenEnv's clients can only call tools here")
    finally:
        probe.close()
    app: FastAPI = create_fastapi_app(
        lambda: OpenEnvEnvironment(make_env()), CallToolAction, Stepped, max_concurrent_envs=max_sessions
    )
    return app


def serve(listening: socket.socket, app: FastAPI, access: Access) -> None:
    """Serve on a bound socket until Ctrl-C or SIGTERM."""
    guarded = WebGuard(app, access)
    config = uvicorn.Config(guarded, log_level="warning", timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listening])
