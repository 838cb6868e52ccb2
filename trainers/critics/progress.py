"""SPA's progress estimator: one number per turn, whose sum over an episode is trained to equal the reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentgym.credit.compose import CreditResult
from agentgym.credit.table import Floats
from agentgym.trainers.config.train import CriticConfig
from agentgym.trainers.critics.critic import ReadingPlan, ValueNetwork, after_turns, optimizer_step, read_values
from agentgym.trainers.data.outline import tokens_of
from agentgym.trainers.distributed.sharding import load_optimizer
from agentgym.trainers.scoring.hidden import ReadRow
from agentgym.trainers.scoring.tokens import segments_of
from agentgym.trainers.types import CausalLM, StateDict
from agentgym.types import TrajectoryGroup


class ProgressEstimator:
    """An estimator of each turn's contribution c_t, computed at the turn's last token from history and action.

    It minimises ``mean over episodes of (R - sum_t c_t)^2``, where R is the recorded return. It is fitted to the first
    step's episodes whose returns differ before they are credited, since an estimator of zeros credits nothing. In later
    steps the estimates come from the network before it has trained on that step's episodes.

    Source: "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution" (``prm/train_our_progress_model.py``).
    The paper trains the estimator once before RL, on episodes of its own; this one also trains during RL, because the
    policy changes.
    """

    def __init__(self, policy: CausalLM, config: CriticConfig, *, seed: int) -> None:
        self._policy, self._config = policy, config
        self._network = ValueNetwork(policy, config, 1, seed)
        self.optimizer = self._network.make_optimizer(config)
        self._is_fitted = config.fit_updates == 0

    def columns(self, groups: Sequence[TrajectoryGroup]) -> dict[str, Floats]:
        """Return the column ``progress``, ``[N]`` over the turns of valid trajectories; fit the network before RL."""
        if not self._is_fitted:
            self._fit(_Step.of(groups, self._policy, self._config.tokens_per_microbatch))
        reading = ReadingPlan.of(_rows(groups), self._policy, self._config.tokens_per_microbatch)
        return {"progress": read_values(self._network, self._policy, reading)[:, 0]}

    def learn(self, groups: Sequence[TrajectoryGroup], credited: CreditResult) -> dict[str, float]:
        """Train on the step's episodes; return the loss before and after the updates, and the gradient norm."""
        step = _Step.of(groups, self._policy, self._config.tokens_per_microbatch)
        if not len(step.returns):
            return {}
        losses, norms = zip(*(self._update(step) for _ in range(self._config.num_updates)), strict=True)
        names = ("progress_loss", "progress_loss_last", "progress_grad_norm")
        return dict(zip(names, (losses[0], losses[-1], sum(norms) / len(norms)), strict=True))

    def _fit(self, step: _Step) -> None:
        """Train until the loss is a tenth of what it was, if there are returns to tell apart."""
        if not len(step.returns) or np.ptp(step.returns) == 0:
            return
        self._is_fitted = True
        first, _ = self._update(step)
        for _ in range(self._config.fit_updates - 1):
            loss, _ = self._update(step)
            if loss <= first / 10:
                break

    def state_dict(self) -> StateDict:
        """Return the state for a checkpoint."""
        return {
            "network": self._network.own_state(),
            "optimizer": self.optimizer.state_dict(),
            "is_fitted": self._is_fitted,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._network.load_state_dict(state["network"], strict=False)
        load_optimizer(self.optimizer, state["optimizer"])
        self._is_fitted = bool(state.get("is_fitted", True))

    def _update(self, step: _Step) -> tuple[float, float]:
        """Make one optimizer step; return the loss before it and the gradient's norm."""
        network, reading = self._network, step.reading
        progress = read_values(network, self._policy, reading)[:, 0]
        gap = np.bincount(step.episode_of_turn, weights=progress, minlength=len(step.returns)) - step.returns
        # An episode's windows may lie in different micro-batches. The gradient of (R - sum c)^2 in c_t is
        # 2 (sum c - R), the same for all its turns, so each turn's share can be added by itself.
        slope = torch.tensor(2 * gap[step.episode_of_turn] / len(step.returns), dtype=torch.float32)
        self.optimizer.zero_grad()
        for (number, scale), some in zip(reading.share, reading.rows, strict=True):
            at = [turn for index in reading.batches[number] for turn in step.turns[index]]
            values = network(network.inputs(self._policy, some))[:, 0]
            ((values * slope[at].to(values.device)).sum() * scale).backward()
        return float((gap**2).mean()), optimizer_step(network, self.optimizer, self._config.max_grad_norm)


@dataclass(frozen=True, slots=True)
class _Step:
    """The episodes of a step, as the estimator trains on them."""

    reading: ReadingPlan
    turns: list[range]
    """The turns of each row, numbered over the step."""
    returns: Floats
    """Recorded return of each episode: the shaper spa replaces the rewards of the credit table."""
    episode_of_turn: np.ndarray

    @classmethod
    def of(cls, groups: Sequence[TrajectoryGroup], policy: CausalLM, tokens_per_microbatch: int) -> _Step:
        """Plan the micro-batches of the episodes that have turns. All ranks must call this."""
        episodes = [trajectory for group in groups for trajectory in group.valid if trajectory.turns]
        rows = _rows(groups)
        ends = np.cumsum([len(row.at) for row in rows]).tolist()
        return cls(
            reading=ReadingPlan.of(rows, policy, tokens_per_microbatch),
            turns=[range(end - len(row.at), end) for row, end in zip(rows, ends, strict=True)],
            returns=np.array([sum(turn.reward for turn in episode.turns) for episode in episodes]),
            episode_of_turn=np.repeat(np.arange(len(episodes)), [len(episode.turns) for episode in episodes]),
        )


def _rows(groups: Sequence[TrajectoryGroup]) -> list[ReadRow]:
    return [ReadRow(tokens_of(segment), tuple(after_turns(segment))) for segment in segments_of(groups)]
