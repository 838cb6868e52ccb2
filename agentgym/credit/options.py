"""Options of components of loss, told apart by ``kind``."""

from __future__ import annotations

from typing import Any, get_args

from agentgym.plugins import Options, kind

__all__ = ["ByKind", "Options", "kind"]


class ByKind:
    """Mark of a union of options: ``Annotated[A | B, ByKind()]`` is read by the key ``kind``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        choices = {member.__dataclass_fields__["kind"].default: handler(member) for member in get_args(source)}
        return {"type": "tagged-union", "choices": choices, "discriminator": kind}
