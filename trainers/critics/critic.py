"""Critics: networks that map the policy's hidden states to values, and the critic of GAE's estimators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from agentgym.credit.compose import CreditResult
from agentgym.credit.table import Bools, Floats
from agentgym.trainers.config.train import CriticConfig
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.outline import tokens_of
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.spread import RankBatches, RankRows
from agentgym.trainers.distributed.clipping import clipped_norm
from agentgym.trainers.distributed.sharding import (
    copy_weights,
    give_memory,
    load_optimizer,
    mesh_of,
    parameters_of,
    ranks_of,
    run_whole,
    shard_module,
    trunk_for_copy,
)
from agentgym.trainers.models.blocks import blocks_of, width_of
from agentgym.trainers.models.head import frozen, trunk_of
from agentgym.trainers.models.seeding import seeded_weights
from agentgym.trainers.scoring.tokens import segments_of
from agentgym.trainers.types import CausalLM, StateDict
from agentgym.types import Segment, TrajectoryGroup

BETAS, EPS = (0.9, 0.95), 1e-5
FLAT = 1e-12


class ValueNetwork(torch.nn.Module):
    """A network with ``num_values`` outputs per state: a head over a copy of the policy's trunk, or over its states.

    The head is initialised with zeros, so all values begin at 0. If the policy is sharded, the network is too.
    """

    def __init__(self, policy: CausalLM, config: CriticConfig, num_values: int, seed: int) -> None:
        super().__init__()
        own = trunk_of(policy)
        self.trunk = trunk_for_copy(policy) if config.trunk == "copy" else None
        of_policy = {id(weight) for weight in own.parameters()}
        self._shared = {name for name, weight in self.named_parameters() if id(weight) in of_policy}
        """Frozen weights that are the policy's."""
        self.num_values = num_values
        hidden_size = width_of(policy.config)
        with seeded_weights(seed):
            last = torch.nn.Linear(hidden_size, num_values)
            layers = [] if self.trunk is not None else [torch.nn.Linear(hidden_size, hidden_size), torch.nn.GELU()]
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
        self.head = torch.nn.Sequential(*layers, last).to(next(own.parameters()).device)
        self.eval()  # trained without dropout, if the policy has any
        if isinstance(policy, FSDPModule):
            shard_module(self, [] if self.trunk is None else blocks_of(self.trunk), ranks_of(policy), mesh_of(policy))
            if self.trunk is not None:
                give_memory(self, next(own.parameters()).device)
                parameters_of(policy)  # its embedding may still be gathered, which belongs to no part of the trunk
                copy_weights(own, self.trunk)

    def own_state(self) -> StateDict:
        """Return the state for a checkpoint, without weights that are the policy's."""
        return {name: value for name, value in self.state_dict().items() if name not in self._shared}

    def inputs(self, policy: CausalLM, batch: Batch) -> Tensor | Batch:
        """Return the input of :meth:`forward`: the rows, or the policy's states at their positions (no gradient)."""
        if self.trunk is not None:
            return batch
        with frozen(policy):
            return run_whole(policy, lambda whole: batch.states(trunk_of(whole)))

    def forward(self, inputs: Tensor | Batch) -> Tensor:
        """Return the values ``[n, num_values]`` at the rows' positions, or of the states ``[n, hidden]``."""
        if not isinstance(inputs, Tensor):
            assert self.trunk is not None
            inputs = inputs.states(self.trunk)
        values: Tensor = self.head(inputs.float())
        return values

    def make_optimizer(self, config: CriticConfig) -> torch.optim.Optimizer:
        """Return AdamW over the trained parameters; for a policy with adapters, those of their copy and the head."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=config.lr, betas=BETAS, eps=EPS, weight_decay=0.0)


def read_values(network: ValueNetwork, policy: CausalLM, reading: RankBatches) -> Floats:
    """Return the values ``[n, num_values]`` at the rows' positions, row by row, without gradients.

    Each rank computes its share of the rows and receives the values of all.
    """
    made = []
    with frozen(network):
        for index, _ in reading.share:
            batch = reading.batches[index]
            made.append(batch.split(network(network.inputs(policy, batch)).cpu()))
    found: dict[int, Tensor] = {}
    joined = ranks_of(policy).joined(made, len(reading.plan.batches))
    for planned, of_rows in zip(reading.plan.batches, joined, strict=True):
        found |= zip(planned.rows, of_rows, strict=True)
    none = np.empty((0, network.num_values))
    return np.concatenate([none, *(found[row].double().numpy() for row in range(len(reading.plan.rows)))])


def value_loss(value: Tensor, old: Tensor, target: Tensor, clip: float) -> Tensor:
    """Compute ``1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)`` per position; c = 0 switches clipping off.

    Like PPO's clipped policy loss, the maximum keeps a value from moving further than c from its old value in one step.

    Source: PPO's reference implementation; verl ``compute_value_loss``.

    Example:
        >>> loss = value_loss(torch.tensor([1.0, 0.2]), torch.zeros(2), torch.ones(2), 0.5)
        >>> [round(x, 4) for x in loss.tolist()]
        [0.125, 0.32]
    """
    plain = (value - target) ** 2
    if not clip:
        return 0.5 * plain
    clipped = (torch.clamp(value, old - clip, old + clip) - target) ** 2
    return 0.5 * torch.maximum(plain, clipped)


def optimizer_step(network: ValueNetwork, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> float:
    """Clip the gradients, make an optimizer step, and return the norm before clipping.

    Raises:
        RunStoppedError: the norm is not finite.
    """
    norm = clipped_norm(network.parameters(), max_grad_norm, "the norm of the critic's gradient", "lower critic.lr")
    optimizer.step()
    return norm


class Critic(ABC):
    """A network that fills columns of the credit table, and learns from the targets that credit returns.

    All ranks call its methods with the same groups. On other ranks than its own a group may be an outline.
    """

    def __init__(self, policy: CausalLM, config: CriticConfig, *, seed: int, num_values: int = 1) -> None:
        self._policy, self._config = policy, config
        self._network = ValueNetwork(policy, config, num_values, seed)
        self.optimizer = self._network.make_optimizer(config)
        """The critic's optimizer; its state is ``optimizer`` in :meth:`state_dict`."""

    @abstractmethod
    def columns(self, groups: Sequence[TrajectoryGroup]) -> dict[str, Floats]:
        """Return columns over the turns or sampled tokens of valid trajectories."""

    @abstractmethod
    def learn(self, groups: Sequence[TrajectoryGroup], credited: CreditResult) -> dict[str, float]:
        """Train on a step's rollouts and return metrics. Call :meth:`columns` with the same groups before."""

    def state_dict(self) -> StateDict:
        """Return the state for a checkpoint."""
        return {"network": self._network.own_state(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._network.load_state_dict(state["network"], strict=False)
        load_optimizer(self.optimizer, state["optimizer"])

    def _reading(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> RankBatches:
        """Plan the micro-batches of rows, and receive tokens from the ranks that have them. All ranks must call this.

        The column ``place`` counts the states that are read over all rows.

        Args:
            rows: token ids, and the positions whose hidden states are read; the same on all ranks, except that tokens
                of another rank are ``RemoteValues``.
        """
        ends = np.cumsum([len(at) for _, at in rows], dtype=np.int64).tolist()
        known = [
            Row(token_ids=ids, positions=1 + np.array(at, np.int64), columns={"place": np.arange(end - len(at), end)})
            for (ids, at), end in zip(rows, ends, strict=True)
        ]
        ranks, device = ranks_of(self._policy), next(self._policy.parameters()).device
        size = self._config.tokens_per_microbatch
        return RankBatches.read(RankRows.known(known), ranks, device, tokens_per_microbatch=size)


class ValueCritic(Critic):
    """The critic of GAE: one value before each sampled token, or one before each turn (at its last prompt token).

    Args:
        role: the role whose turns it reads, empty for the policy; None for all turns. Its column is NaN elsewhere.
    """

    def __init__(
        self, policy: CausalLM, config: CriticConfig, *, is_per_token: bool, seed: int, role: str | None = None
    ) -> None:
        super().__init__(policy, config, seed=seed)
        self._is_per_token, self._role = is_per_token, role
        self._places = before_tokens if is_per_token else before_turns

    def columns(self, groups: Sequence[TrajectoryGroup]) -> dict[str, Floats]:
        is_read = self._is_read(groups)
        values = np.full(len(is_read), np.nan)
        if is_read.any():
            values[is_read] = read_values(self._network, self._policy, self._read(groups))[:, 0]
        return {"token_value" if self._is_per_token else "value": values}

    def learn(self, groups: Sequence[TrajectoryGroup], credited: CreditResult) -> dict[str, float]:
        """Regress on the estimator's targets; turns that do not train are left out."""
        table, is_kept = credited.table, credited.loss_weight > 0
        old, target = table.value, credited.return_to_go
        if self._is_per_token:
            assert credited.token_return is not None and table.num_tokens is not None
            old, target, is_kept = table.token_value, credited.token_return, np.repeat(is_kept, table.num_tokens)
        assert old is not None
        is_read = self._is_read(groups)
        old, target, is_kept = old[is_read], target[is_read], is_kept[is_read]
        if not is_kept.any():
            return {}
        losses, norms = self._fit(self._read(groups), old, target, is_kept)
        spread = float(target[is_kept].var())
        learnt = {
            "critic_loss": losses[0],
            "critic_loss_last": losses[-1],
            "critic_grad_norm": sum(norms) / len(norms),
            "value_mean": float(old[is_kept].mean()),
            "explained_variance": 1.0 - float((target - old)[is_kept].var()) / spread if spread > FLAT else 0.0,
        }
        return {f"role/{self._role}/{name}" if self._role else name: value for name, value in learnt.items()}

    def _reads(self, segment: Segment) -> bool:
        return self._role is None or segment.role == self._role

    def _is_read(self, groups: Sequence[TrajectoryGroup]) -> Bools:
        """Mark the rows of the column that it reads."""
        every = segments_of(groups)
        counts = [sum(1 for _ in self._places(segment)) for segment in every]
        return np.repeat(np.array([self._reads(segment) for segment in every], np.bool_), counts)

    def _read(self, groups: Sequence[TrajectoryGroup]) -> RankBatches:
        own = filter(self._reads, segments_of(groups))
        return self._reading([(tokens_of(segment), list(self._places(segment))) for segment in own])

    def _fit(
        self, reading: RankBatches, old: Floats, target: Floats, is_kept: Bools
    ) -> tuple[list[float], list[float]]:
        """Return loss and gradient norm of each update; every update uses all rows."""
        network, config, ranks = self._network, self._config, ranks_of(self._policy)
        device = next(network.head.parameters()).device
        # The denominator counts all rows of the step, so that gradients do not depend on the micro-batches.
        columns = torch.tensor(np.stack([old, target, is_kept / is_kept.sum()]), dtype=torch.float32, device=device)
        inputs = [network.inputs(self._policy, reading.batches[index]) for index, _ in reading.share]
        losses, norms = [], []
        for _ in range(config.num_updates):
            self.optimizer.zero_grad()
            total = 0.0
            for (index, scale), read in zip(reading.share, inputs, strict=True):
                was, goal, weight = columns[:, reading.batches[index]["place"].to(device)]
                loss = (value_loss(network(read)[:, 0], was, goal, config.value_clip) * weight).sum()
                (loss * scale).backward()
                total += loss.item() if scale else 0.0
            losses.append(sum(ranks.gathered(total)))
            norms.append(optimizer_step(network, self.optimizer, config.max_grad_norm))
        return losses, norms


def before_tokens(segment: Segment) -> Iterator[int]:
    """Return the position before each sampled token, whose hidden state predicts the token."""
    return (at - 1 for at, is_sampled in enumerate(segment.loss_mask) if is_sampled)


def before_turns(segment: Segment) -> Iterator[int]:
    """Return the position of the last prompt token of each turn."""
    end = 0
    for turn in segment.turns:
        yield end + len(turn.prompt_ids) - 1
        end += len(turn.prompt_ids) + len(turn.completion.token_ids)


def after_turns(segment: Segment) -> Iterator[int]:
    """Return the position of each turn's last sampled token, or of its last prompt token if it sampled none."""
    end = 0
    for turn in segment.turns:
        end += len(turn.prompt_ids) + len(turn.completion.token_ids)
        yield end - 1
