"""Settings of rendering a model's conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, Self

from agentgym.errors import unknown_name
from agentgym.settings import Settings, checked

ToolsStyle = Literal["schema", "compact"]
"""Style of tool descriptions: the template's JSON schemas, or one line per tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig(Settings):
    """Settings of rendering a model's conversations. The defaults follow the model's chat template.

    Example:
        >>> ChatConfig().changed({"codec": "hermes", "template_args": {"enable_thinking": False}}).codec
        'hermes'
    """

    codec: str = "auto"
    """Tool-call format; ``auto`` uses the format of the template's family."""
    template_args: Mapping[str, object] = field(default_factory=dict)
    """Variables for the chat template, for instance ``{"enable_thinking": False}``."""
    tools_style: ToolsStyle = "schema"
    """``compact`` describes each tool in one line of the first message, for models with a short context."""
    keeps_history: bool = False
    """Continue a segment even if the template would change earlier messages, for instance drop old thinking."""

    @property
    def chat(self) -> ChatConfig:
        """These settings without those that a subclass adds."""
        return ChatConfig(**{part.name: getattr(self, part.name) for part in fields(ChatConfig)})

    def changed(self, values: Mapping[str, object]) -> Self:
        """Return a copy with some values replaced.

        Raises:
            ConfigError: a key is unknown, or a value has the wrong type.
        """
        known = {part.name: getattr(self, part.name) for part in fields(self)}
        if unknown := sorted(set(values) - set(known)):
            raise unknown_name("key", f"chat.{unknown[0]}", [f"chat.{name}" for name in known])
        return checked(type(self), known | dict(values), "chat")
