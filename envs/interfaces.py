"""Base class of environments that take either tool calls or free text, for text worlds and small models."""

from __future__ import annotations

from typing import Literal

from agentgym.env.tool_env import ToolEnv
from agentgym.errors import UsageError
from agentgym.types import Message, Observation, ToolSpec

Interface = Literal["tools", "text"]
INTERFACES = ("tools", "text")


def checked_interface(name: Interface) -> Interface:
    """Return the name of an interface after checking it.

    Raises:
        UsageError: there is no such interface.
    """
    if name not in INTERFACES:
        raise UsageError(f"interface must be one of {', '.join(INTERFACES)}, got {name!r}")
    return name


class InterfaceEnv(ToolEnv):
    """An environment that takes calls of its tools, or text. Subclasses implement :meth:`respond_to_text`.

    Args:
        interface: ``tools`` or ``text``; with ``text`` the environment offers no tool.
    """

    def __init__(
        self, *, interface: Interface = "tools", max_turns: int | None = None, render_mode: str | None = None
    ) -> None:
        self.interface = checked_interface(interface)
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def respond_to_text(self, action: Message) -> str:
        """Execute a message of the text interface and return the answer."""
        raise NotImplementedError(f"{type(self).__name__} must implement respond_to_text(action)")

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._specs if self.interface == "tools" else ()

    @property
    def _specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools, even if the interface does not offer them."""
        return super().tools

    def respond(self, action: Message) -> str | Observation:
        return self.respond_to_text(action) if self.interface == "text" else super().respond(action)

    async def arespond(self, action: Message) -> str | Observation:
        if self.interface == "tools":
            return await super().arespond(action)
        if self.is_blocking:
            return await self._in_thread(self.respond_to_text, action)
        return self.respond_to_text(action)
