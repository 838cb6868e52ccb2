"""Periodic mode: a training step that begins before its last group is complete.

All groups of the step (the period) are sampled by one version of the policy. The gradient of each group is computed as
soon as the group is complete, while others are still sampled. The optimizer steps after the last group, and only then
the engine's weights change. Training is therefore on-policy, and the step equals that of sync mode up to the order of
additions. The denominators of the loss are known at the end, and divide the summed gradient then.

Limits: the step still waits for its slowest episode, so at most the time of training is saved. Groups that arrive one
by one fill micro-batches badly. Components that need the whole step before the first gradient are refused.

Source: "Periodic Asynchrony: An On-Policy Approach for Accelerating LLM Reinforcement Learning" (arXiv 2511.18871),
where the weights are synchronised at the beginning of each iteration and groups are trained in order of completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from agentgym.credit.credited import CreditColumns
from agentgym.credit.state import CreditState
from agentgym.errors import RunStoppedError
from agentgym.trainers.data.samples import FilteredGroup, build_samples
from agentgym.trainers.phases.credit import judged, split_by_env
from agentgym.trainers.phases.optimizer_step import AddGradient
from agentgym.trainers.phases.update import PartialUpdate, UpdateResult
from agentgym.trainers.reporting.token_scores import places_of
from agentgym.trainers.run.env import RunEnv
from agentgym.types import TrajectoryGroup


class Period:
    """The gradient of one step, accumulated over groups in order of completion.

    Args:
        memory: the memory of each environment's credit before the step. Parts read it; the whole step updates it.
        update: the models, the settings and the sums.
        step: the step of RL, counted from 0.
    """

    def __init__(
        self, envs: Sequence[RunEnv], memory: Mapping[str, CreditState], update: PartialUpdate, step: int = 0
    ) -> None:
        self._envs, self._memory, self._update, self._step = envs, dict(memory), update, step
        self._credit: dict[int, CreditColumns] = {}
        """Credit with which the gradient of each group was computed, by ordinal."""

    def add(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Add the gradient of complete groups."""
        parts = [judged(env, own, self._memory[env.key], self._step) for env, own in split_by_env(self._envs, groups)]
        verdicts = [verdict for found, _ in parts for verdict in found]
        self._credit |= {verdict.group.ordinal: verdict.credit for verdict in verdicts}
        self._update.add(build_samples(verdicts, self._update.columns), places_of(verdicts))

    def finish(self, verdicts: Sequence[FilteredGroup], add_gradient: AddGradient | None = None) -> UpdateResult:
        """Make the optimizer step.

        Args:
            verdicts: the verdicts of the whole step, whose credit was computed at once.
            add_gradient: adds another loss before the step.

        Raises:
            RunStoppedError: the credit of the whole step differs from that of the parts, with which the gradient was
                computed; or the gradient is not finite.
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
    # a missing token_keep keeps all tokens
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(
        np.allclose(True if a is None else a, True if b is None else b, rtol=1e-9, atol=1e-6)
        for a, b in pairs
        if a is not None or b is not None
    )
