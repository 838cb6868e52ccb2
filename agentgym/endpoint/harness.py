"""Harnesses: components that run an agent program for one episode.

A harness is an async function of ``episode`` (:class:`AgentEpisode`) and of the keys of its options::

    @harness("my_agent")
    async def my_agent(episode: AgentEpisode) -> None:
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

from agentgym.errors import ConfigError, require_extra
from agentgym.plugins import Component, F, Options, Registry, read_options
from agentgym.rollout.context import ContextConfig
from agentgym.settings import Settings, checked
from agentgym.types import JsonObject, Observation, ToolSpec


class AgentEpisode(Protocol):
    """One episode as a harness sees it."""

    @property
    def base_url(self) -> str:
        """Base URL of OpenAI clients, ending in ``/v1``; it names the episode."""
        ...

    @property
    def root_url(self) -> str:
        """Base URL of Anthropic clients, which has no ``/v1``."""
        ...

    @property
    def api_key(self) -> str:
        """API key, which also names the episode."""
        ...

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    @property
    def observation(self) -> Observation:
        """The environment's first messages."""
        ...

    @property
    def instruction(self) -> str:
        """Text of the environment's first messages."""
        ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools of the environment."""
        ...

    @property
    def env(self) -> Any:
        """The environment, for harnesses that are written for a particular one."""
        ...

    @property
    def is_over(self) -> bool:
        """True once the environment has ended the episode."""
        ...

    @property
    def socket_path(self) -> str:
        """Path of the endpoint's Unix socket, for harnesses whose agent runs in the environment's sandbox; empty for
        others.
        """
        ...

    @property
    def sampling_s(self) -> float:
        """Seconds that the episode's completions have taken so far."""
        ...

    @property
    def is_cut(self) -> bool:
        """True if the token limit ended the last completion. Some agents then end with an error."""
        ...

    async def act(self, message: JsonObject) -> list[dict[str, Any]]:
        """Step the environment with an assistant message as the chat API returned it.

        Returns:
            The environment's reply as messages of the chat API.
        """
        ...

    async def call_tool(self, name: str, arguments: JsonObject) -> str:
        """Step the environment with one tool call and return the text of its reply.

        The reward goes to the last completion that contains this call, or else to the last completion.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness(Component):
    """A registered harness."""

    prepare: Callable[..., None] | None = None
    """Called with environment and settings before each reset. Needed by harnesses whose agent runs in the environment's
    sandbox."""
    require: Callable[..., None] | None = None
    """Called with the settings before a run begins; raises an error if the agent is not installed."""


HARNESSES: Final[Registry[Harness]] = Registry("harness", "agentgym.endpoint.harnesses", ("episode",))


def harness(
    name: str,
    *,
    options: type[Options] | None = None,
    prepare: Callable[..., None] | None = None,
    require: Callable[..., None] | None = None,
) -> Callable[[F], F]:
    """Register an async function of ``episode`` as a harness.

    Args:
        options: class of its settings, ``harness.KEY=VALUE``.
        prepare, require: see :class:`Harness`.
    """

    def register(function: F) -> F:
        HARNESSES.add(
            Harness(name=name, family="harness", function=function, options=options, prepare=prepare, require=require)
        )
        return function

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessConfig(Settings):
    """Settings of the harness that runs episodes. With an empty ``name``, agentgym's own loop runs them."""

    name: str = ""
    """``openai_loop``, ``command``, ``sandbox_command``, ``mini_swe_agent``, ``smolagents``, or ``file.py:name``."""
    timeout_s: float = 1800.0
    """Seconds after which an episode counts as an infrastructure failure."""
    max_calls: int = 200
    """Most completions of an episode, after which it ends as ``truncated_turns``."""
    host: str = "127.0.0.1"
    """Address on which the endpoint listens; agents in containers need one that they can reach."""
    port: int = 0
    """Port of the endpoint; 0 for a free one. Of several ranks that play, each takes the port plus its number."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the named harness."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.max_calls < 1:
            raise ConfigError("harness.timeout_s must be above 0 and harness.max_calls at least 1")
        if self.options and not self.name:
            raise ConfigError(f"harness.options={dict(self.options)} needs harness.name")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> HarnessConfig:
        """Return the configuration for ``harness.KEY=VALUE`` settings. Keys that are not fields here go into
        ``options``.

        Raises:
            ConfigError: the harness is unknown, or a key or value is wrong.

        Example:
            >>> HarnessConfig.of({"name": "openai_loop", "max_calls": 5}).max_calls
            5
        """
        own = {one.name for one in fields(cls)} - {"options"}
        options = {**given.get("options", {}), **{k: v for k, v in given.items() if k not in own | {"options"}}}
        made = checked(cls, {**{k: v for k, v in given.items() if k in own}, "options": options}, "harness")
        made.check()
        return made

    def check(self) -> None:
        """Raise an error for an unknown harness or wrong settings.

        Raises:
            ConfigError: the harness or a setting is wrong; the message names those that exist.
        """
        if self.name:
            self.read_options()

    def require_packages(self) -> None:
        """Raise an error if the endpoint or the harness needs a package that is not installed.

        Raises:
            MissingExtraError: the endpoint needs one.
            UsageError: the agent is not installed; the message says how to install it.
        """
        if not self.name:
            return
        require_extra("harness.name", "serve", "fastapi", "uvicorn")
        component = HARNESSES[self.name]
        if component.require is not None:
            component.require(self.read_options())

    def read_options(self) -> Options | None:
        """Return the settings of the harness, or None if it has none."""
        component = HARNESSES[self.name]
        if component.options is None:
            if self.options:
                raise ConfigError(f"harness {self.name!r} has no setting {sorted(self.options)[0]!r}")
            return None
        return read_options(HARNESSES, self.name, self.options, "harness")

    @property
    def is_in_sandbox(self) -> bool:
        """True if the agent runs in the environment's sandbox."""
        return bool(self.name) and HARNESSES[self.name].prepare is not None

    def prepare(self, env: object) -> None:
        """Prepare an environment for the harness before its reset."""
        component = HARNESSES[self.name]
        if component.prepare is not None:
            component.prepare(env, self.read_options())

    async def run(self, episode: AgentEpisode) -> None:
        """Run the agent for an episode."""
        component = HARNESSES[self.name]
        await component.call(**component.arguments({"episode": episode}, self.read_options()))


def check_context(context: ContextConfig) -> None:
    """Raise an error if a context policy is set, since the agent itself writes its prompts.

    Raises:
        ConfigError: a context policy is set; the message names the keys.
    """
    if context.policy != "full" or context.turns_left or context.example_turns:
        raise ConfigError(
            "a harness writes its own prompts: remove context.policy, context.turns_left and context.example_turns"
        )
