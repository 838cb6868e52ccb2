"""ArCHer's critic: values of states and of whole turns, learned off-policy from the latest episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from agentgym.credit.compose import CreditResult
from agentgym.credit.table import Floats
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.train import CriticConfig
from agentgym.trainers.critics.critic import (
    Critic,
    ValueNetwork,
    after_turns,
    before_turns,
    optimizer_step,
    read_values,
)
from agentgym.trainers.data.outline import RemoteValues, tokens_of
from agentgym.trainers.distributed.sharding import own_part, parameters_of, ranks_of
from agentgym.trainers.types import CausalLM, StateDict
from agentgym.types import Trajectory, TrajectoryGroup

NUM_VALUES = 4
"""Two critics (double Q-learning), each with Q(s, a) and V(s): outputs 0 and 1 are Q, 2 and 3 are V."""


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """An episode in the replay buffer: its context windows, the positions of its turns, and their rewards."""

    windows: tuple[Sequence[int], ...]
    """Token ids; ``RemoteValues`` if another rank has them."""
    at: tuple[tuple[int, ...], ...]
    """Per window, two positions per turn: the last prompt token (state) and the last sampled token (action)."""
    rewards: tuple[float, ...]

    @property
    def is_here(self) -> bool:
        """False if another rank has the tokens."""
        return not any(isinstance(window, RemoteValues) for window in self.windows)

    def left_out(self) -> StoredTrajectory:
        """Return the episode without its tokens."""
        return replace(self, windows=tuple(RemoteValues(len(window)) for window in self.windows))

    @property
    def rows(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        return list(zip(self.windows, self.at, strict=True))


class TwinCritic(Critic):
    """Two critics of turns with a target network, after ArCHer.

    ``Q(s_t, a_t)`` regresses on ``r_t + gamma V'(s_{t+1})`` and ``V(s_t)`` on ``Q'(s_t, a_t)``. Primes mark the target
    network, and each critic uses its own target. After each update the target moves towards the trained network by
    ``polyak``. The columns ``q_value`` and ``value`` come from the target network; of the two V the smaller is used.
    V regresses on the recorded turn, where the paper samples a new turn from the current policy.

    Each rank keeps the tokens of the episodes that it played, and receives those that it reads.

    Source: "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL".
    """

    def __init__(self, policy: CausalLM, config: CriticConfig, *, gamma: float, seed: int) -> None:
        super().__init__(policy, config, seed=seed, num_values=NUM_VALUES)
        self._gamma, self._seed = gamma, seed
        self._target = ValueNetwork(policy, config, NUM_VALUES, seed)  # begins equal
        self._episodes: list[StoredTrajectory] = []
        self._num_updates = 0

    def columns(self, groups: Sequence[TrajectoryGroup]) -> dict[str, Floats]:
        rows = [row for episode in _episodes(groups) for row in _episode(episode, ()).rows]
        reading = self._reading(rows)
        values = _by_turn(read_values(self._target, self._policy, reading))
        return {"q_value": values[:, 1, :2], "value": values[:, 0, 2:].min(axis=1)}

    def learn(self, groups: Sequence[TrajectoryGroup], credited: CreditResult) -> dict[str, float]:
        """Add the step's episodes with their shaped rewards to the replay buffer, and train on batches from it."""
        rewards = iter(credited.table.reward.tolist())
        new = [_episode(each, tuple(next(rewards) for _ in each.turns)) for each in _episodes(groups)]
        self._episodes = [*self._episodes, *new][-self._config.replay_episodes :]
        if not self._episodes:
            return {}
        sums = np.zeros(3)
        for _ in range(self._config.num_updates):
            rng = np.random.default_rng(derive_seed(self._seed, "replay", self._num_updates))
            size = min(self._config.replay_batch, len(self._episodes))
            chosen = rng.choice(len(self._episodes), size=size, replace=False)
            sums += self._update([self._episodes[int(index)] for index in chosen])
            self._num_updates += 1
        q_loss, v_loss, norm = (sums / self._config.num_updates).tolist()
        return {
            "critic_loss": q_loss,
            "critic_v_loss": v_loss,
            "critic_grad_norm": norm,
            "replay_episodes": float(len(self._episodes)),
        }

    def state_dict(self) -> StateDict:
        return super().state_dict() | {
            "target": self._target.own_state(),
            "num_updates": self._num_updates,
            "episodes": [asdict(episode) for episode in self._whole_episodes()],
        }

    def _whole_episodes(self) -> list[StoredTrajectory]:
        held = {at: episode for at, episode in enumerate(self._episodes) if episode.is_here}
        every = {at: episode for share in ranks_of(self._policy).gathered(held) for at, episode in share.items()}
        return [every[at] for at in range(len(self._episodes))]

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._target.load_state_dict(state["target"], strict=False)
        self._num_updates = state["num_updates"]
        ranks, episodes = ranks_of(self._policy), [StoredTrajectory(**row) for row in state["episodes"]]
        self._episodes = [
            episode if at % ranks.count == ranks.rank else episode.left_out() for at, episode in enumerate(episodes)
        ]

    def _update(self, episodes: Sequence[StoredTrajectory]) -> tuple[float, float, float]:
        """Make one optimizer step and move the target; return the losses of Q and V and the gradient norm."""
        rows = [row for episode in episodes for row in episode.rows]
        reading = self._reading(rows)
        targets = torch.tensor(
            self._targets(episodes, _by_turn(read_values(self._target, self._policy, reading))),
            dtype=torch.float32,
            device=next(self._network.head.parameters()).device,
        )
        self.optimizer.zero_grad()
        q_loss = v_loss = 0.0
        for index, scale in reading.share:
            batch = reading.batches[index]
            turns = batch["place"][::2].to(targets.device) // 2  # two places per turn
            values = self._network(self._network.inputs(self._policy, batch)).reshape(-1, 2, NUM_VALUES)
            of_q = _half_square(values[:, 1, :2] - targets[turns, :2]) / len(targets)
            of_v = _half_square(values[:, 0, 2:] - targets[turns, 2:]) / len(targets)
            ((of_q + of_v) * scale).backward()  # type: ignore[no-untyped-call]
            if scale:
                q_loss, v_loss = q_loss + of_q.item(), v_loss + of_v.item()
        norm = optimizer_step(self._network, self.optimizer, self._config.max_grad_norm)
        self._move_target()
        q_losses, v_losses = zip(*ranks_of(self._policy).gathered((q_loss, v_loss)), strict=True)
        return sum(q_losses), sum(v_losses), norm

    def _targets(self, episodes: Sequence[StoredTrajectory], values: Floats) -> Floats:
        """Return the regression targets ``[N, 4]`` of each turn's Q and V, from the target network's ``[N, 2, 4]``."""
        rewards = np.array([reward for episode in episodes for reward in episode.rewards])
        is_last = np.zeros(len(rewards), dtype=np.bool_)
        is_last[np.cumsum([len(episode.rewards) for episode in episodes]) - 1] = True
        # V'(s_{t+1}) is the state value (axis 1, index 0) of the following row; an episode's last turn has none.
        following = np.where(is_last[:, None], 0.0, np.roll(values[:, 0, 2:], -1, axis=0))
        return np.concatenate([rewards[:, None] + self._gamma * following, values[:, 1, :2]], axis=1)

    @torch.no_grad()
    def _move_target(self) -> None:
        for slow, fast in zip(parameters_of(self._target), parameters_of(self._network), strict=True):
            if slow is not fast:  # both share the policy's frozen weights
                own_part(slow).lerp_(own_part(fast), self._config.polyak)


def _half_square(difference: Tensor) -> Tensor:
    return 0.5 * (difference**2).sum()


def _by_turn(values: Floats) -> Floats:
    """Reshape ``[2 N, 4]``, in the order of the rows, to ``[N, 2, 4]``: state and action of each turn."""
    return values.reshape(-1, 2, NUM_VALUES)


def _episodes(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.valid if trajectory.turns]


def _episode(trajectory: Trajectory, rewards: tuple[float, ...]) -> StoredTrajectory:
    segments = trajectory.segments
    turns = [zip(before_turns(segment), after_turns(segment), strict=True) for segment in segments]
    places = tuple(tuple(chain.from_iterable(own)) for own in turns)
    return StoredTrajectory(tuple(tokens_of(segment) for segment in segments), places, rewards)
