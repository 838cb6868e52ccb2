"""ScalingInter: short episodes first, longer ones later.

Source: ScalingInter-RL of "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through Multi-Turn
Reinforcement Learning", ``verl/agent_trainer/ppo/ray_trainer.py`` of its release: at step s, counted from 1, an episode
may have ``rounds[min(s // steps, len(rounds) - 1)]`` turns. An episode that reaches the limit counts as a failure of
the policy and is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import horizon
from agentgym.settings import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingInterOptions(Options):
    """Stages of the turn limit."""

    kind: str = "scaling_inter"
    rounds: tuple[int, ...] = (10, 20, 30)
    """Most turns in each stage; the environment's own limit holds, too."""
    steps: Count = 100
    """Training steps per stage; the last stage has no end."""

    def check_together(self) -> None:
        self.check(is_ok=bool(self.rounds) and min(self.rounds) >= 1, message="rounds must be numbers of at least 1")

    def idle(self) -> str:
        """Return the reason why the stages have no effect, or an empty text."""
        return "" if len(set(self.rounds)) > 1 else "all rounds are equal: set env.kwargs.max_turns instead"


@horizon(
    "scaling_inter",
    paper="AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through Multi-Turn Reinforcement Learning",
    status="reproduced",
    test="tests/rollout/test_strategies.py::test_scaling_inter_stages",
    options=ScalingInterOptions,
)
def scaling_inter(step: int, rounds: tuple[int, ...], steps: int) -> int:
    """Return the most turns of an episode at a step, counted from 0.

    Example:
        >>> [scaling_inter(step, (5, 10, 20), 2) for step in range(6)]
        [5, 10, 10, 20, 20, 20]
    """
    return rounds[min((step + 1) // steps, len(rounds) - 1)]  # the release counts steps from 1
