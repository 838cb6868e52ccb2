"""How many steps of RL trained anything, and the likeliest reason where few did."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentgym.trainers.types import StateDict

AVERAGED = ("invalid_share", "success", "dropped/zero_variance", "dropped/too_few_valid")
MOST, FEWEST = 0.95, 0.02
"""Shares of turns, or of episodes, that count as nearly all and nearly none."""


class TrainedSteps:
    """Counts the steps that trained a token, and averages what explains the others.

    Args:
        has_demos: the policy had a warm start, which was too short for it.

    Example:
        >>> trained = TrainedSteps()
        >>> trained.add({"trained_tokens": 0.0, "invalid_share": 1.0, "success": 0.0})
        >>> trained.conclusion()[:47]
        '0 of 1 steps trained: 100% of turns are invalid'
    """

    def __init__(self, *, has_demos: bool = False) -> None:
        self._has_demos = has_demos
        self.num_steps = self.num_trained = 0
        self._sums = dict.fromkeys(AVERAGED, 0.0)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Count a step by its metrics."""
        self.num_steps += 1
        if metrics.get("trained_tokens", 0.0) > 0:
            self.num_trained += 1
            return
        for name in AVERAGED:
            value = metrics.get(name, 0.0)
            self._sums[name] += value if math.isfinite(value) else 0.0

    def conclusion(self) -> str:
        """Return a line that says why fewer than half of the steps trained; empty if more did."""
        num_idle = self.num_steps - self.num_trained
        if 2 * self.num_trained >= self.num_steps or not num_idle:
            return ""
        return f"{self.num_trained} of {self.num_steps} steps trained: {self._reason(num_idle)}"

    def _reason(self, num_idle: int) -> str:
        mean = {name: total / num_idle for name, total in self._sums.items()}
        if mean["invalid_share"] >= MOST:
            return (
                f"{mean['invalid_share']:.0%} of turns are invalid; {self._teach()} or a model that knows tool calls "
                "(model.path)"
            )
        if mean["dropped/too_few_valid"] > mean["dropped/zero_variance"]:
            return "groups have fewer than group.min_valid valid episodes; see the errors of the failed episodes"
        if mean["success"] >= 1 - FEWEST:
            return "all episodes succeed and earn the same; take harder tasks (env.kwargs)"
        if mean["success"] <= FEWEST:
            return (
                f"{mean['success']:.0%} of episodes succeed and the episodes of a group earn the same; "
                f"{self._teach()}, easier tasks (env.kwargs) or a larger group.group_size"
            )
        return "the episodes of a group earn the same; raise group.group_size or sampling.temperature"

    def _teach(self) -> str:
        if self._has_demos:
            return (
                "give more demonstrations (sft.num_demos) or epochs (sft.num_epochs), calls in one line "
                "(model.codec=compact), a worked example in the prompt (context.example_turns=1)"
            )
        return (
            "give demonstrations (sft.num_demos, sft.files), a worked example in the prompt (context.example_turns=1)"
        )

    def state_dict(self) -> StateDict:
        """Return what a checkpoint keeps."""
        return {"num_steps": self.num_steps, "num_trained": self.num_trained, "sums": dict(self._sums)}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned; an empty state is that of a new run."""
        self.num_steps, self.num_trained = state.get("num_steps", 0), state.get("num_trained", 0)
        self._sums = dict.fromkeys(AVERAGED, 0.0) | state.get("sums", {})
