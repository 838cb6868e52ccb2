"""Limits of an evaluation, at a time and in all: options that change no result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.evals.budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits of an evaluation."""

    num_envs: int
    """Episodes played at the same time."""
    max_minutes: float = 0.0
    """By the clock; 0 for no limit."""
    max_tokens: int = 0
    """Sampled; 0 for no limit."""

    def budget(self, folder: Path) -> Budget:
        """Return a budget for the evaluation in a folder, of which nothing is spent."""
        from agentgym.evals.budget import Budget

        return Budget(self.max_minutes, self.max_tokens, f"agentgym eval --resume {folder}")
