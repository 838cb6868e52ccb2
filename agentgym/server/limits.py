"""Limits of an environment server."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits on sessions and requests."""

    max_sessions: int = 4096
    """Most sessions at the same time; further clients are told to try again later."""
    idle_timeout_s: float = 60.0
    """Seconds without a request or a heartbeat after which a session is closed."""
    step_timeout_s: float = 300.0
    """Seconds within which a reset or a step must finish, unless the environment's own limit is longer."""
    max_steps: int = 10_000
    """Most turns of a session between two resets."""
    max_waiting: int = 64
    """Most requests of one connection that are processed at a time; further frames are read later."""
    max_state_bytes: int = 256 * 1024 * 1024
    """Most bytes of all snapshots together. The oldest are dropped, and their clients replay actions instead."""

    def __post_init__(self) -> None:
        for name in ("max_sessions", "idle_timeout_s", "step_timeout_s", "max_steps", "max_waiting", "max_state_bytes"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, got {getattr(self, name):g}")
