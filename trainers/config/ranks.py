"""How long the processes of one run wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksConfig:
    """Timeouts of the ranks that torchrun starts; one process alone never waits."""

    wait_timeout_s: float = 86_400.0
    """Longest time that the other ranks wait while the first one plays, evaluates or writes. This limit is for a rank
    that hangs: one that dies is noticed at once, by its closed connection."""
    collective_timeout_s: float = 600.0
    """Longest time of one collective operation on tensors, in which all ranks take part at once."""

    def __post_init__(self) -> None:
        for name in ("wait_timeout_s", "collective_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"ranks.{name} must be above 0, got {getattr(self, name)}")
