"""``agentgym/OpenEnv-v0``: an environment on a server of OpenEnv (package openenv-core)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from agentgym.env.tool_env import ToolEnv
from agentgym.errors import EnvError, EnvTimeoutError, ToolError, UsageError, error_text
from agentgym.proxies import by_proxy, direct_loopback
from agentgym.tools.mcp import McpTool
from agentgym.types import Task, ToolSpec

ACT: Final = "act"
"""Name of the tool of an environment that lists no tools: its single action, with the fields that the server describes.
"""
_OF_TRANSPORT: Final = ("transport_error", "timeout")


class OpenEnvEnv(ToolEnv):
    """An environment on any server of OpenEnv.

    Its tools are those that the server lists. If the server lists none, there is one tool, ``act``, with the fields of
    its action. Tasks are seeds for the server's ``reset``. Each reward is a part of the outcome, ``done`` ends the
    episode, and an episode is a success if its rewards sum to at least ``success_reward``.

    An error of the server or of the connection is an infrastructure failure, never a reward. The policy sees errors
    that the server reports for a call.

    Args:
        base_url: ``http://HOST:PORT``.
        success_reward: smallest sum of rewards of a success.
        timeout_s: time limit of a reset or a step in seconds.
        max_turns: turns after which an episode is truncated.

    Raises:
        UsageError: the address is malformed.
        EnvError: no server answers.
    """

    is_blocking: ClassVar[bool] = True

    def __init__(
        self,
        *,
        base_url: str,
        success_reward: float = 1.0,
        timeout_s: float = 60.0,
        max_turns: int | None = 30,
        render_mode: str | None = None,
    ) -> None:
        from openenv.core.generic_client import GenericEnvClient

        if not base_url.startswith(("http://", "https://", "ws://", "wss://")):
            raise UsageError(f"base_url={base_url!r} is no address of an OpenEnv server; expected http://HOST:PORT")
        self.success_outcome = success_reward  # type: ignore[misc]
        self.longest_step_s = timeout_s
        self._url = base_url
        self._make_client: Callable[[], Any] = lambda: GenericEnvClient(
            base_url=base_url, connect_timeout_s=timeout_s, message_timeout_s=timeout_s
        ).sync()
        self._client: Any = None
        self._tools = {spec.name: self._tool(spec) for spec in self._listed()}
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def start(self, task: Task) -> str:
        """Reset the server's environment with the episode's seed."""
        result = self._ask("reset", seed=self.episode.seed % 2**31)
        return _text(result.observation) or "The episode has begun."

    def stop(self) -> None:
        """Close the connection, upon which the server closes its environment."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except Exception:  # the server may be gone
                return

    # ---------------------------------------------------------------------------------------------------- private

    def _listed(self) -> list[ToolSpec]:
        try:
            listed = self._ask("step", {"type": "list_tools"}).observation.get("tools")
        except EnvError:
            self.stop()  # servers whose environment defines its own action reject this one
            listed = None
        if listed:
            return [ToolSpec(t["name"], t.get("description") or t["name"], t["input_schema"]) for t in listed]
        return [ToolSpec(ACT, "Act in the environment.", self._action_schema())]

    def _action_schema(self) -> Mapping[str, Any]:
        import httpx

        from agentgym.http_limits import limited_client

        url = self._url.replace("ws://", "http://").replace("wss://", "https://").rstrip("/")
        try:
            with limited_client(to=url, timeout=self.longest_step_s) as client:
                schema = dict(client.get(f"{url}/schema").raise_for_status().json()["action"])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise EnvError(f"{url} is no OpenEnv server that answers: {error!r:.300}{by_proxy(url)}") from error
        schema["properties"] = {k: v for k, v in schema.get("properties", {}).items() if k != "metadata"}
        return schema

    def _tool(self, spec: ToolSpec) -> McpTool:
        def call(env: OpenEnvEnv, **arguments: Any) -> str:
            listed = {"type": "call_tool", "tool_name": spec.name, "arguments": arguments}
            return env._took(env._ask("step", arguments if spec.name == ACT else listed))

        return McpTool(spec.name, call, spec.description, parameters=spec.parameters)

    def _took(self, result: Any) -> str:
        observation = result.observation
        error = observation.get("error")
        if isinstance(error, Mapping) and error.get("error_type") in _OF_TRANSPORT:
            raise EnvError(f"{self._url}: {error.get('message', '')}")
        if result.reward is not None:
            self.award(float(result.reward))
        if result.done:
            self.finish()
        if isinstance(error, Mapping):
            raise ToolError(str(error.get("message", "")), str(error.get("error_type", "execution_error")))
        return _text(observation) or "Done."

    def _ask(self, op: str, *arguments: Any, **named: Any) -> Any:
        try:
            if self._client is None:
                self._client = self._make_client()
                with direct_loopback(self._url):
                    self._client.connect()
            return getattr(self._client, op)(*arguments, **named)
        except TimeoutError as error:
            self.stop()
            raise EnvTimeoutError(f"{self._url}: no answer to {op}") from error
        except Exception as error:  # the client does not convert exceptions of its dependencies
            self.stop()
            raise EnvError(f"{self._url}: {op}: {error_text(error):.300}") from error


def _text(observation: Mapping[str, Any]) -> str:
    """Return the text of an observation: a tool's result, the field ``text``, or all fields as JSON."""
    said = observation.get("result", observation.get("text"))
    if isinstance(said, Mapping):  # the format of FastMCP's results
        said = said.get("data", said)
    if isinstance(said, str):
        return said
    shown = said if said is not None else {k: v for k, v in observation.items() if k not in ("metadata", "error")}
    return json.dumps(shown, ensure_ascii=False, default=str) if shown else ""
