"""Settings of a run's environment, model, critic and evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgym.errors import ConfigError
from agentgym.settings import Count, Natural, NonNegative, Positive, PositiveFraction, Settings, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig(Settings):
    """The environment and its arguments."""

    id: str
    """Registered id, ``module:Id`` or ``file.py:Id``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_train_tasks: Natural = 0
    """Number of training tasks to use, the first of the split, over and over; 0 uses all. Trackers per task (SPO) need
    tasks that come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig(Settings):
    """The critic of token_gae, poad, turn_gae, bi_level_gae and archer, and the progress estimator of spa.

    The trainer creates it only if one of these components is configured.
    """

    trunk: Literal["copy", "shared"] = "copy"
    """``copy``: a separate network, initialised with the policy after the warm start (with LoRA only its adapters are
    trained). ``shared``: a small head over the policy's hidden states, which is cheap and does not change them."""
    by_role: bool = False
    """Give the policy and each trained role a critic of its own over its own turns, as MARFT does; False: one critic
    reads the turns of all."""
    lr: Positive = 5e-4
    num_updates: Count = 4
    """Optimizer steps per RL step, each over all rows of the step or (archer) over a batch from the replay buffer."""
    fit_updates: Natural = 50
    """Progress estimator of spa: largest number of updates on the first step's episodes before they are credited. They
    end when the loss is a tenth of what it was. 0: no fit."""
    value_clip: NonNegative = 0.5
    """Largest change of a value within an RL step, as in PPO's clipped value loss; 0 for no limit (archer has none)."""
    max_grad_norm: Positive = 1.0
    tokens_per_microbatch: Count = 8192
    """Number of padded tokens in a forward pass; gradients do not depend on it."""
    polyak: PositiveFraction = 0.1
    """Weight of the trained network in the moving average that is archer's target network."""
    replay_episodes: Count = 512
    """Number of latest episodes in the replay buffer of archer's critic."""
    replay_batch: Count = 16
    """Number of episodes per update of archer's critic."""

    def __post_init__(self) -> None:
        check_ranges(self, "critic.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvalConfig(Settings):
    """Evaluation before and after RL, on held-out tasks."""

    num_episodes: Count = 200
    """Number of tasks, the first of the split."""
    repeats: Count = 1
    """Number of episodes of each task. With several, pass@k before and after RL shows whether the policy solves new
    tasks, or only solves the same tasks more often."""
    split: str = "test"
    temperature: float = 1.0
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that differ from training, such as the opponent in a game trained by self-play."""
    every: Natural = 0
    """Number of RL steps between further evaluations, for a learning curve; 0 for none."""

    base: bool = False
    """Also evaluate the model before any training."""
    keep_best: bool = False
    """Keep the model with the highest success of all evaluations in ``best/``, beside the last one in ``model/``."""
    patience: Natural = 0
    """End RL after this number of evaluations in a row that are not better than the best before; 0 for never."""

    def __post_init__(self) -> None:
        check_ranges(self, "eval.")
        for name in ("keep_best", "patience"):
            if getattr(self, name) and not self.every:
                raise ConfigError(f"eval.{name} compares evaluations during RL: set eval.every above 0, too")


EvalConfig = RunEvalConfig
"""The name by which scripts import the settings; all options of ``agentgym eval`` are another class of this name."""
