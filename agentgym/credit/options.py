"""What the options of every component share: frozen, told apart by ``kind``, and strict about unknown keys.

The classes are plain dataclasses. The two names that begin with ``__`` are hooks by which pydantic, where a trainer
uses it to read a configuration, picks the class by its ``kind`` instead of trying all; credit itself never loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from agentgym.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one component; subclasses add ``kind`` and their keys."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    def check(self, *, is_ok: bool, message: str) -> None:
        """Refuse a value.

        Raises:
            ConfigError: with the component's kind in front of the message.
        """
        if not is_ok:
            raise ConfigError(f"{getattr(self, 'kind', type(self).__name__)}: {message}")


class ByKind:
    """Mark of a union of options: ``Annotated[A | B, ByKind()]`` is read by the key ``kind``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        choices = {member.__dataclass_fields__["kind"].default: handler(member) for member in get_args(source)}
        return {"type": "tagged-union", "choices": choices, "discriminator": kind}


def kind(value: Any) -> Any:
    """What a component calls itself, whether it is read from a file or made already."""
    return value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
