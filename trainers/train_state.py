"""The state of a training run: all that training changes, and a checkpoint holds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from agentgym.credit.state import CreditState
from agentgym.rollout.plan import PlanState
from agentgym.rollout.stream import StreamState
from agentgym.trainers.config.roles import POLICY
from agentgym.trainers.critics.columns import ColumnMaker
from agentgym.trainers.distributed.reference import Reference, reference_of
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.reporting.activity import Activity
from agentgym.trainers.types import CausalLM

Phase = Literal["sft", "start", "rl"]


@dataclass(slots=True, kw_only=True)
class Learner:
    """A model that is trained, with all that its updates change: the policy, or another trained role."""

    model: CausalLM
    optimizer: torch.optim.Optimizer
    has_base: bool = True
    """False if checkpoints contain a model's adapters alone, since its other weights are those of ``model.path``."""
    has_adapters: bool = False
    """True if its reference is the model itself with the adapters that it had before RL."""
    reference: Reference | None = None
    """The model before RL, if the loss has a KL penalty."""
    entropy_history: EntropyHistory = field(default_factory=EntropyHistory)
    loss_memory: Mapping[str, Any] = field(default_factory=dict)
    """The memory of the loss's components, by name."""

    def refer_to_itself(self) -> None:
        """Make the model as it is now the reference."""
        self.reference = reference_of(self.model, has_adapters=self.has_adapters)


@dataclass(slots=True, kw_only=True)
class TrainState(Learner):
    """The complete state of training after ``step`` steps of ``phase``; its model is the policy.

    Task order, sampling and data order are functions of the seed and the step, so they need no further state.
    """

    phase: Phase
    step: int = 0
    roles: Mapping[str, Learner] = field(default_factory=dict)
    """The other trained roles, by name."""
    past_results: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)
    """By role, the policy's successes against each of its own versions, and the number of episodes."""
    columns: Mapping[str, ColumnMaker]
    """Column makers by environment, which contain the critic and the last response to each task."""
    activity: Activity
    credit: dict[str, CreditState]
    stream: StreamState | None = None
    """State of the rollout stream; None before the first RL step."""
    plan: PlanState | None = None
    """The planned groups and the results of tasks; None before the first RL step."""
    success_before: float | None = None
    """Success rate before RL; None before it has been evaluated."""
    num_trajectories: int = 0
    started: float = field(default_factory=time.perf_counter)
    """Start of the run on the clock of ``time.perf_counter``, minus the time of earlier processes of the run."""

    @property
    def learners(self) -> dict[str, Learner]:
        """All trained models by the name of their role, the policy first."""
        return {POLICY: self, **self.roles}

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds that the run has taken, over all its processes."""
        return time.perf_counter() - self.started
