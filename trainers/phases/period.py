"""A training step that begins before its last group is in: periodic mode.

All groups of the step (the period) are sampled by one version of the policy. The gradient of each is taken as soon as
it is done, at the weights that sampled it, while the others are still played; the optimizer makes its step when all are
in, and only then do the engine's weights change. So every token is trained by the version that sampled it, and the step
is that of sync mode up to the order of additions: denominators of the loss are known at the end, and divide the summed
gradient then.

What it costs: the step still waits for its slowest episode, so it saves the time of training at most; groups that
come one by one fill micro-batches badly; and what must see the whole step before the first gradient is refused.

Source: "Periodic Asynchrony: An On-Policy Approach for Accelerating LLM Reinforcement Learning" (arXiv 2511.18871),
where the weights are synchronised at the beginning of each iteration and groups are trained in order of completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from agentgym.credit.credited import CreditColumns
from agentgym.credit.state import CreditState
from agentgym.errors import RunStoppedError
from agentgym.trainers.data.samples import GroupVerdict, build_samples
from agentgym.trainers.phases.credit import judged, split_by_env
from agentgym.trainers.phases.optimizer_step import AddGradient
from agentgym.trainers.phases.update import PartialUpdate, UpdateResult
from agentgym.trainers.reporting.token_scores import places_of
from agentgym.trainers.run_env import RunEnv
from agentgym.types import TrajectoryGroup


class Period:
    """The gradient of one step, summed over groups in the order in which they come.

    Args:
        memory: that of each environment's credit before the step; parts see it, and the whole will move it on.
        update: the models, the settings and the sums.
        step: the step of RL, counted from 0.
    """

    def __init__(
        self, envs: Sequence[RunEnv], memory: Mapping[str, CreditState], update: PartialUpdate, step: int = 0
    ) -> None:
        self._envs, self._memory, self._update, self._step = envs, dict(memory), update, step
        self._credit: dict[int, CreditColumns] = {}
        """By ordinal, what the gradient was taken with."""

    def add(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Add the gradient of groups that are done."""
        parts = [judged(env, own, self._memory[env.key], self._step) for env, own in split_by_env(self._envs, groups)]
        verdicts = [verdict for found, _ in parts for verdict in found]
        self._credit |= {verdict.group.ordinal: verdict.credit for verdict in verdicts}
        samples = build_samples(verdicts)
        if samples:
            self._update.add(samples, places_of(verdicts))

    def finish(self, verdicts: Sequence[GroupVerdict], add_gradient: AddGradient | None = None) -> UpdateResult:
        """Make the optimizer's step.

        Args:
            verdicts: of the whole step, its credit computed at once.
            add_gradient: adds another loss before the step.

        Raises:
            RunStoppedError: credit of the whole is not that of the parts, which the gradient was taken with; or the
                gradient is not finite.
        """
        for verdict in verdicts:
            if not _trains_alike(verdict.credit, self._credit[verdict.group.ordinal]):
                raise RunStoppedError(
                    f"the credit of group {verdict.group.ordinal} depends on the other groups of its step, which "
                    "pipeline.mode=periodic has not seen when it trains it; use mode=sync, or credit.* that compares "
                    "within groups alone"
                )
        return self._update.finish(add_gradient)


def _trains_alike(one: CreditColumns, other: CreditColumns) -> bool:
    """Return True if two credits of a group give the same gradient, up to rounding."""
    names = ("advantage", "loss_weight", "token_advantage", "token_keep")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-6) for a, b in pairs if a is not None)
