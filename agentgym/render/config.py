"""Choose how conversations are rendered for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, Self

from agentgym.errors import unknown_name
from agentgym.settings import checked

ToolsStyle = Literal["schema", "compact"]
"""How tools are described: by their JSON schemas, as the template does, or by one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """Settings by which a model's conversations become text. The defaults follow the model's chat template.

    Example:
        >>> ChatConfig().changed({"codec": "hermes", "template_args": {"enable_thinking": False}}).codec
        'hermes'
    """

    codec: str = "auto"
    """Tool-call format; ``auto`` takes that of the template's family."""
    template_args: Mapping[str, object] = field(default_factory=dict)
    """Further variables of the chat template, for instance ``{"enable_thinking": False}``."""
    tools_style: ToolsStyle = "schema"
    """``compact`` describes each tool in one line of the first message, for models with a short context."""
    keeps_history: bool = False
    """Continue a segment even where the template would change earlier messages, for instance drop old thinking."""

    @property
    def chat(self) -> ChatConfig:
        """These settings alone, for classes that add some of their own."""
        return ChatConfig(**{part.name: getattr(self, part.name) for part in fields(ChatConfig)})

    def changed(self, values: Mapping[str, object]) -> Self:
        """Return a copy with some values replaced.

        Raises:
            ConfigError: an unknown key, or a value of the wrong type.
        """
        known = {part.name: getattr(self, part.name) for part in fields(self)}
        if unknown := sorted(set(values) - set(known)):
            raise unknown_name("key", f"chat.{unknown[0]}", [f"chat.{name}" for name in known])
        return checked(type(self), known | dict(values), "chat")
