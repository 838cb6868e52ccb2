"""SPA's progress estimator: one number per turn, whose sum over an episode is trained to equal the reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentgym.credit.compose import CreditResult
from agentgym.credit.table import Floats
from agentgym.trainers.config.train import CriticConfig
from agentgym.trainers.critics.critic import Critic, after_turns, optimizer_step, read_values
from agentgym.trainers.data.outline import tokens_of
from agentgym.trainers.data.spread import RankBatches
from agentgym.trainers.scoring.tokens import segments_of
from agentgym.trainers.types import CausalLM, StateDict
from agentgym.types import TrajectoryGroup


class ProgressEstimator(Critic):
    """An estimator of each turn's contribution c_t, computed at the turn's last token from history and action.

    It minimises ``mean over episodes of (R - sum_t c_t)^2``, where R is the recorded return. It is fitted to the first
    step's episodes whose returns differ before they are credited, since an estimator of zeros credits nothing. In later
    steps the estimates come from the network before it has trained on that step's episodes.

    Source: "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution" (``prm/train_our_progress_model.py``).
    The paper trains the estimator once before RL, on episodes of its own; this one also trains during RL, because the
    policy changes.
    """

    def __init__(self, policy: CausalLM, config: CriticConfig, *, seed: int) -> None:
        super().__init__(policy, config, seed=seed)
        self._is_fitted = config.fit_updates == 0

    def columns(self, groups: Sequence[TrajectoryGroup]) -> dict[str, Floats]:
        """Return the column ``progress``, ``[N]`` over the turns of valid trajectories; fit the network before RL."""
        if not self._is_fitted:
            self._fit(self._step(groups))
        return {"progress": read_values(self._network, self._policy, self._read(groups))[:, 0]}

    def learn(self, groups: Sequence[TrajectoryGroup], credited: CreditResult) -> dict[str, float]:
        """Train on the step's episodes; return the loss before and after the updates, and the gradient norm."""
        step = self._step(groups)
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
        return super().state_dict() | {"is_fitted": self._is_fitted}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._is_fitted = bool(state.get("is_fitted", True))

    def _step(self, groups: Sequence[TrajectoryGroup]) -> _Step:
        """Plan the micro-batches of the episodes that have turns. All ranks must call this."""
        episodes = [trajectory for group in groups for trajectory in group.valid if trajectory.turns]
        return _Step(
            reading=self._read(groups),
            returns=np.array([sum(turn.reward for turn in episode.turns) for episode in episodes]),
            episode_of_turn=np.repeat(np.arange(len(episodes)), [len(episode.turns) for episode in episodes]),
        )

    def _read(self, groups: Sequence[TrajectoryGroup]) -> RankBatches:
        return self._reading([(tokens_of(segment), list(after_turns(segment))) for segment in segments_of(groups)])

    def _update(self, step: _Step) -> tuple[float, float]:
        """Make one optimizer step; return the loss before it and the gradient's norm."""
        network, reading = self._network, step.reading
        progress = read_values(network, self._policy, reading)[:, 0]
        gap = np.bincount(step.episode_of_turn, weights=progress, minlength=len(step.returns)) - step.returns
        # An episode's windows may lie in different micro-batches. The gradient of (R - sum c)^2 in c_t is
        # 2 (sum c - R), the same for all its turns, so each turn's share can be added by itself.
        slope = torch.tensor(2 * gap[step.episode_of_turn] / len(step.returns), dtype=torch.float32)
        self.optimizer.zero_grad()
        for index, scale in reading.share:
            batch = reading.batches[index]
            values = network(network.inputs(self._policy, batch))[:, 0]
            ((values * slope.to(values.device)[batch["place"]]).sum() * scale).backward()
        return float((gap**2).mean()), optimizer_step(network, self.optimizer, self._config.max_grad_norm)


@dataclass(frozen=True, slots=True)
class _Step:
    """The episodes of a step, as the estimator trains on them."""

    reading: RankBatches
    returns: Floats
    """Recorded return of each episode: the shaper spa replaces the rewards of the credit table."""
    episode_of_turn: np.ndarray
