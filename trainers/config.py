"""What a training run is: one frozen dataclass per stage, joined into :class:`TrainConfig`.

A recipe is a function that returns one. Overrides (``a.b=value``) and the copy saved with each run go through
:mod:`agentgym.trainers.overrides`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgym.credit.columns import FROM_GROUPS
from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """Which environment, with what arguments."""

    id: str
    """Registered id, ``module:Id`` or ``file.py:Id``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters through peft; rank 0 trains all weights."""

    rank: int = 0
    alpha: int = 16
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The policy's model: a folder or hub name, or a small model built from scratch."""

    path: str = ""
    """What ``from_pretrained`` takes; empty builds a Qwen3-shaped model and trains a tokenizer on the env's texts."""
    codec: str = "auto"
    """Tool-call format; ``auto`` takes the one the chat template asks for."""
    hidden_size: int = 128
    num_layers: int = 4
    head_dim: int = 32
    vocab_size: int = 1024
    initializer_range: float = 0.06
    max_context_tokens: int = 512
    """Longest conversation in tokens, for the engine and for a model built from scratch."""
    lora: LoraSettings = LoraSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW with warm-up and a schedule over the phase's steps."""

    lr: float = 2e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    final_lr_share: float = 0.1
    """Learning rate at the end of a linear or cosine schedule, as a share of ``lr``."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-5
    """Adam's epsilon. With 1e-8 the tiny gradients of words the policy never says are scaled up to whole steps, and a
    policy pushed away from its mistakes drifts into them; 1e-5 is what PPO implementations settled on."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ConfigError(f"lr must be above 0, got {self.lr}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """Warm start by supervised fine-tuning on the environment's oracle."""

    num_demos: int = 0
    """Episodes of the oracle to learn from; 0 leaves the phase out."""
    noise: float = 0.15
    """Share of the oracle's actions replaced by random ones, so that the policy learns to recover."""
    num_epochs: int = 2
    batch_size: int = 16
    observation_weight: float = 0.3
    """Loss weight of observation tokens; sampled tokens weigh 1. Small models learn to copy from them."""
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=3e-3, schedule="linear", warmup_steps=20, weight_decay=0.01, eps=1e-8
    )

    def __post_init__(self) -> None:
        if not 0 <= self.noise < 1:
            raise ConfigError(f"noise must be in [0, 1), got {self.noise}")
        if self.batch_size < 1 or self.num_epochs < 1 or self.num_demos < 0:
            raise ConfigError("batch_size and num_epochs must be at least 1, num_demos at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """PPO-clip with clip-higher, truncated importance sampling against the engine, and an optional KL term."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    norm_length: int = 1024
    """The constant divisor of ``seq-mean-token-sum-norm``."""
    tis_cap: float = 2.0
    """Cap of the token-level weight pi_trainer / pi_engine; 0 turns the correction off."""
    kl_coef: float = 0.0
    """Weight of the k3 estimate of KL(policy || reference), the reference being the policy before RL."""
    num_updates: int = 1
    """Optimizer steps per batch of rollouts; the batch is split by groups."""
    tokens_per_microbatch: int = 8192
    """Padded tokens forwarded at a time; gradients do not depend on it."""

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1 or self.clip_high < 0:
            raise ConfigError("clip_low must be in [0, 1) and clip_high at least 0")
        if self.num_updates < 1 or self.tokens_per_microbatch < 1:
            raise ConfigError("num_updates and tokens_per_microbatch must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Evaluation before and after RL, on tasks the policy was not trained on."""

    num_episodes: int = 200
    split: str = "test"
    temperature: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole run."""

    recipe: str
    env: EnvConfig
    seed: int = 0
    num_threads: int = 1
    """Threads torch computes with. Two on busy cores are many times slower than one."""
    model: ModelConfig = ModelConfig()
    sft: SftConfig = SftConfig()
    num_steps: int = 100
    """RL steps; each plays ``groups_per_step`` groups and trains on them."""
    groups_per_step: int = 8
    group: GroupConfig = GroupConfig()
    sampling: SamplingParams = SamplingParams()
    credit: CreditConfig = CreditConfig()
    zero_variance_filter: Literal["advantage", "return", "off"] = "advantage"
    """Which groups teach nothing and are left out: all advantages zero, all returns equal, or none."""
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint_every: int = 20
    """Steps between checkpoints, in both phases."""
    wandb_project: str = ""
    """Also log to this Weights & Biases project (extra ``wandb``)."""

    def __post_init__(self) -> None:
        self.credit.check_group_size(self.group.group_size)
        _check_credit(self.credit)
        if self.sampling.top_p != 1.0 or self.sampling.top_k != 0:
            raise ConfigError(
                "training samples with top_p=1 and top_k=0: the trainer's probabilities are those of the whole "
                "distribution, and a ratio to those of a cut one would be wrong (composition rule 4)"
            )
        if self.sampling.temperature == 0:
            raise ConfigError("training needs a temperature above 0: greedy episodes of a group would all be the same")
        for name in ("num_steps", "groups_per_step", "num_threads", "checkpoint_every"):
            if getattr(self, name) < (0 if name == "num_steps" else 1):
                raise ConfigError(f"{name} is too small: {getattr(self, name)}")


def _check_credit(credit: CreditConfig) -> None:
    """Refuse components whose input this trainer does not record, rather than train without it."""
    missing = [name for name in credit.columns() if name not in FROM_GROUPS]
    if missing:
        raise ConfigError(
            f"credit needs the columns {', '.join(missing)}, which the trainer does not record yet; "
            "the component works on plain arrays (docs/credit.md)"
        )
    if credit.granularity == "token":
        raise ConfigError("the trainer spreads one advantage over a turn's tokens; choose a component of turns")
