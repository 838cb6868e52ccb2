"""What a shaper gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentgym.credit.table import Bools, TurnTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """The table with its new rewards, and what there is to say about them."""

    table: TurnTable
    gate_open: Bools | None = None
    """``[N]`` for shapers with a gate: whether all of the trajectory's gates were open."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
