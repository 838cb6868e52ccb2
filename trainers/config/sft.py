"""Configuration of supervised fine-tuning: the sources of demonstrations, and the training on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.engine import ENDPOINT
from agentgym.errors import ConfigError
from agentgym.settings import Count, Fraction, Natural, NonNegative, Settings, check_ranges
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.types.messages import Role

LossRole = Role
Keep = Literal["all", "success", "best"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SftMixConfig(Settings):
    """Demonstrations during RL: every optimizer step of RL adds the SFT loss of a batch of demonstrations."""

    weight: NonNegative = 0.0
    """Factor of the SFT loss; 0 switches it off."""
    schedule: Literal["constant", "linear"] = "constant"
    """``linear`` decreases the weight with every RL step, to 0 after the last."""
    batch_size: Count = 8
    """Rows per optimizer step."""

    def __post_init__(self) -> None:
        check_ranges(self, "sft.mix.")

    def weight_at(self, step: int, num_steps: int) -> float:
        """Return the factor of a 0-based step of RL.

        Example:
            >>> [SftMixConfig(weight=0.5, schedule="linear").weight_at(step, 4) for step in (0, 2, 3)]
            [0.5, 0.25, 0.125]
        """
        return self.weight * (1 - step / num_steps) if self.schedule == "linear" else self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig(Settings):
    """Supervised fine-tuning before RL, and during it (``mix``). The demonstrations of all given sources are joined."""

    num_demos: Natural = 0
    """Number of training tasks to demonstrate, by the environment's oracle or by ``teacher``; 0 for none."""
    noise: Fraction = 0.15
    """Share of the oracle's actions that are replaced by random ones, so that the policy learns to recover. 1 needs no
    oracle; such demonstrations teach only the format of actions."""
    noise_weight: NonNegative = 1.0
    """Loss weight of the random actions' tokens. With 0 the policy sees how to continue after a mistake and is not
    trained to make it ("DART: Noise Injection for Robust Imitation Learning", Laskey et al., 2017). With ``noise=1``
    all actions have weight 1."""
    without_oracle: Literal["refuse", "random"] = "refuse"
    """Behaviour in an environment without an oracle: an error, or demonstrations by random well-formed calls, which
    teach only the format of actions."""
    files: tuple[str, ...] = ()
    """Files of conversations (``.jsonl`` or ``.parquet``), with the columns ``messages`` and ``tools`` of OpenAI and
    TRL."""
    runs: tuple[str, ...] = ()
    """Folders of training runs and evaluations whose recorded episodes serve as demonstrations."""
    teacher: str = ""
    """``openai:URL?model=NAME``: the endpoint that plays the demonstrations instead of the oracle."""
    teacher_max_new_tokens: Count = 1024
    """Largest length of an answer of the teacher, in its own tokens."""
    episodes_per_task: Count = 1
    """Number of episodes that the teacher plays of each task."""
    keep: Keep = "success"
    """Valid episodes of runs and of the teacher that become demonstrations: ``all``, those with ``success``, or of each
    task the ``best`` by return (the first among equals)."""
    num_epochs: Natural = 2
    """Passes over the demonstrations before RL; 0 skips the phase, for demonstrations that only ``mix`` uses."""
    batch_size: Count = 16
    checkpoint_every: Count | None = None
    """Optimizer steps between checkpoints; by default that of the run. A small model's steps take less time than a
    checkpoint."""
    loss_roles: tuple[LossRole, ...] = ("assistant",)
    """Roles whose messages have weight 1 in the loss; all other tokens have ``observation_weight``."""
    observation_weight: NonNegative = 0.3
    """Loss weight of the other tokens, from which small models learn to copy. Set 0 for a pretrained model."""
    trainer: Literal["own", "trl"] = "own"
    """``own`` or ``trl``, which runs the phase in TRL's SFTTrainer (extra ``trl``)."""
    mix: SftMixConfig = SftMixConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=3e-3, schedule="linear", warmup_steps=20, weight_decay=0.01, eps=1e-8
    )

    def __post_init__(self) -> None:
        check_ranges(self, "sft.")
        if not (self.loss_roles or self.observation_weight):
            raise ConfigError("sft.observation_weight must be above 0 where sft.loss_roles is empty")
        self._check_teacher()
        if self.mix.weight and not self.has_source:
            raise ConfigError(
                "sft.mix.weight adds a loss of demonstrations, and there are none: set sft.files, sft.runs or "
                "sft.num_demos"
            )
        if self.has_source and not self.num_epochs and not self.mix.weight:
            raise ConfigError(
                "sft.num_epochs=0 leaves the warm start out, so the demonstrations would not be used: set "
                "sft.num_epochs to at least 1, or sft.mix.weight above 0"
            )
        for name in ("observation_weight", "noise_weight") if self.trainer == "trl" else ():
            if getattr(self, name) not in (0.0, 1.0):
                raise ConfigError(
                    f"sft.trainer=trl masks tokens and does not weigh them, got sft.{name}={getattr(self, name):g}: "
                    "set it to 0 or 1"
                )

    def _check_teacher(self) -> None:
        if self.teacher and not self.teacher.startswith(ENDPOINT):
            raise ConfigError(f"sft.teacher must be {ENDPOINT}URL?model=NAME, got {self.teacher!r}")
        if self.teacher and not self.num_demos:
            raise ConfigError("sft.teacher plays sft.num_demos training tasks: set sft.num_demos")
        if self.episodes_per_task > 1 and not self.teacher:
            raise ConfigError("sft.episodes_per_task counts the teacher's episodes: set sft.teacher too")

    @property
    def has_source(self) -> bool:
        """True if there are demonstrations."""
        return bool(self.num_demos or self.files or self.runs)

    @property
    def has_phase(self) -> bool:
        """True if the policy is fine-tuned before RL."""
        return self.has_source and self.num_epochs > 0
