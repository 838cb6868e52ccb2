"""Configuration of a training run: :class:`TrainConfig` joins one frozen dataclass per stage.

A recipe is a function that returns one. Overrides (``a.b=value``) and the copy saved with each run go through
:mod:`agentgym.trainers.config.overrides`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from agentgym.credit import rules
from agentgym.credit.compose import CreditConfig
from agentgym.endpoint.harness import HarnessConfig
from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, unknown_name
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.mixture import MixtureConfig
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.settings import Count, Natural, NonNegative, Settings, check_ranges, checked
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.config.columns import ColumnsConfig
from agentgym.trainers.config.combinations import check_combinations
from agentgym.trainers.config.idle import idle_settings
from agentgym.trainers.config.pipeline import PipelineConfig
from agentgym.trainers.config.roles import POLICY, RoleConfig, check_roles, for_role
from agentgym.trainers.config.schedules import check_schedules
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.stages import CriticConfig, EnvConfig, EvalConfig, RunEvalConfig
from agentgym.trainers.distributed.config import RanksConfig
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.judges.config import RUBRIC, JudgeConfig
from agentgym.trainers.kinds import ImageRoute
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.optimizer import OptimizerConfig

# -------------------------------------------------------------------- the environments of a run that trains on several


CHANGEABLE = ("credit", "columns", "group", "context", "strategy", "judge", "sampling", "sft", "eval")
"""Parts of the configuration that each environment of a mixture may override."""
OF_SFT = ("num_demos", "noise", "keep", "without_oracle")
"""The keys of ``sft`` that an environment may override: those of its demonstrations, not those of the phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedEnv(EnvConfig):
    """One environment of a mixture. Its ``credit``, ``group`` and so on override single values of the run's.

    Example:
        >>> MixedEnv(id="agentgym/WikiWorld-v0", weight=2, credit={"estimator": "igpo"}).name
        'wikiworld'
    """

    name: str = ""
    """Name in metrics and folders; by default derived from the id."""
    weight: NonNegative = 1.0
    """Share of the groups, relative to the weights of the other environments."""
    final_weight: NonNegative | None = None
    """Weight at the last step; the weight changes linearly towards it. None keeps it constant."""
    credit: Mapping[str, object] = field(default_factory=dict)
    group: Mapping[str, object] = field(default_factory=dict)
    context: Mapping[str, object] = field(default_factory=dict)
    strategy: Mapping[str, object] = field(default_factory=dict)
    judge: Mapping[str, object] = field(default_factory=dict)
    sampling: Mapping[str, object] = field(default_factory=dict)
    sft: Mapping[str, Any] = field(default_factory=dict)
    """Only ``num_demos``, ``noise``, ``keep`` and ``without_oracle``."""
    eval: Mapping[str, object] = field(default_factory=dict)
    columns: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.id))
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise ConfigError(f"envs: name {self.name!r} must be letters, digits, '_', '.' and '-'")
        check_ranges(self, f"envs.{self.name}.")
        if other := sorted(set(self.sft) - set(OF_SFT)):
            raise ConfigError(f"envs.{self.name}.sft.{other[0]}: an environment sets {', '.join(OF_SFT)} alone")

    @property
    def changes(self) -> dict[str, Mapping[str, object]]:
        """The values that override the run's, by part of the configuration."""
        return {part: getattr(self, part) for part in CHANGEABLE if getattr(self, part)}

    def weight_at(self, step: int, num_steps: int) -> float:
        """Return the weight at a step of the run."""
        if self.final_weight is None or num_steps < 2:
            return self.weight
        done = min(step, num_steps - 1) / (num_steps - 1)
        return self.weight + (self.final_weight - self.weight) * done


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyEnv(MixedEnv):
    """The environment of a run on one, which ``env`` sets. It has no name, and the run's values are its own."""

    def __post_init__(self) -> None:
        pass


def check_mixture(envs: Sequence[MixedEnv]) -> None:
    """Check names and weights of a mixture's environments.

    Raises:
        ConfigError: two have one name, or all weights are 0 at the start or at the end.
    """
    names = [env.name for env in envs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"envs: {', '.join(twice)} is the name of two environments; give each a 'name' of its own")
    for when, step in (("the first", 0), ("the last", 1)):
        if envs and not sum(env.weight_at(step, 2) for env in envs):
            raise ConfigError(f"envs: all weights are 0 at {when} step; give one environment a weight above 0")


def _name_of(env_id: str) -> str:
    """Return a short name, as in ``wikiworld`` for ``agentgym/WikiWorld-v0``."""
    bare = re.sub(r"-v\d+$", "", re.split(r"[/:]", env_id)[-1])
    return re.sub(r"[^a-z0-9_.-]", "-", bare.lower()).lstrip("_.-") or "env"


__all__ = ["ColumnsConfig", "CriticConfig", "EnvConfig", "EvalConfig", "LoraSettings", "ModelConfig", "TrainConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(Settings):
    """Configuration of a training run."""

    recipe: str
    env: EnvConfig
    """The environment of a run on one."""
    envs: tuple[MixedEnv, ...] = ()
    """The environments to train on. Without several, that of ``env`` is the only one (:class:`OnlyEnv`)."""
    mixture: MixtureConfig = MixtureConfig()
    """Shares of the environments of ``envs`` in a step's groups."""
    seed: int = 0
    num_threads: Count = 1
    """Number of threads that torch computes with. Set as many as there are idle cores. The command line makes waiting
    threads sleep (``OMP_WAIT_POLICY=passive``); where they spin, two on busy cores are many times slower than one."""
    model: ModelConfig = ModelConfig()
    sft: SftConfig = SftConfig()
    num_steps: Natural = 100
    """Number of RL steps; each samples ``groups_per_step`` groups and trains on them."""
    groups_per_step: Count = 8
    group: GroupConfig = GroupConfig()
    sampling: SamplingParams = SamplingParams()
    context: ContextConfig = ContextConfig()
    harness: HarnessConfig = HarnessConfig()
    """An agent program that runs the episodes instead of agentgym's own loop."""
    strategy: StrategyConfig = StrategyConfig()
    """The choice of tasks, the sizes of their groups, and the lengths of their episodes."""
    roles: Mapping[str, RoleConfig] = field(default_factory=dict)
    """Models that play sub-agents or players of the environments, by the name of their role."""
    judge: JudgeConfig = JudgeConfig()
    """A model that grades episodes; the grade is part of their reward."""
    engine: EngineConfig = EngineConfig()
    cluster: ClusterConfig = ClusterConfig()
    ranks: RanksConfig = RanksConfig()
    credit: CreditConfig = CreditConfig()
    zero_variance_filter: Literal["advantage", "return", "off"] = "advantage"
    """Groups that are left out of training: those with only zero advantages, those with equal returns, or none."""
    columns: ColumnsConfig = ColumnsConfig()
    critic: CriticConfig = CriticConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    pipeline: PipelineConfig = PipelineConfig()
    schedules: tuple[Mapping[str, Any], ...] = ()
    """Numbers that change over the steps of RL, each with ``key``, ``from``, ``to``, ``steps`` and ``form``
    (:mod:`agentgym.trainers.config.schedules`). They hold in every environment, and not in evaluations."""
    eval: RunEvalConfig = RunEvalConfig()
    checkpoint_every: Count = 20
    """Steps between checkpoints; :attr:`sft.checkpoint_every <agentgym.trainers.config.sft.SftConfig>` sets the warm
    start's."""
    checkpoint_write: Literal["auto", "background", "blocking"] = "auto"
    """``background``: copy the state to the machine's memory and write it while training continues; each rank needs
    memory for its share of a checkpoint. ``blocking``: training waits. ``auto``: ``background`` on a GPU and
    ``blocking`` on a CPU, where the copy would need the same memory as the model."""
    wandb_project: str = ""
    """Also log to this Weights & Biases project (extra ``wandb``)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_ranges(self.env, "env.")
        check_combinations(self)
        if not self.is_mixture:
            env = self.env
            only = OnlyEnv(id=env.id, kwargs=env.kwargs, num_train_tasks=env.num_train_tasks)
            object.__setattr__(self, "envs", (only,))
        check_mixture(self.envs)
        for env in self.envs:
            self._check_shared(env, self.for_env(env))
        check_schedules(self)
        check_roles(self)

    @property
    def is_mixture(self) -> bool:
        """True if ``envs`` names the environments, and False if ``env`` does."""
        return bool(self.envs) and not isinstance(self.envs[0], OnlyEnv)

    def for_env(self, env: MixedEnv) -> TrainConfig:
        """Return the configuration with the overrides of one environment of a mixture.

        Raises:
            ConfigError: a value is wrong, or does not fit the others; the message names the environment.
        """
        if isinstance(env, OnlyEnv):
            return self
        own: dict[str, Any] = {}
        for part, changes in env.changes.items():
            where = f"envs.{env.name}.{part}"
            kind, values = type(getattr(self, part)), asdict(getattr(self, part))
            if unknown := sorted(set(changes) - set(values)):
                raise unknown_name("key", f"{where}.{unknown[0]}", [f"{where}.{name}" for name in values])
            own[part] = checked(kind, {**values, **changes}, where)
        alone = EnvConfig(id=env.id, kwargs=env.kwargs, num_train_tasks=env.num_train_tasks)
        try:
            return replace(self, env=alone, envs=(), **own)
        except ConfigError as error:
            raise ConfigError(f"envs.{env.name}: {error}") from error

    def for_role(self, name: str) -> TrainConfig:
        """Return the configuration by which a trained role is sampled from and trained.

        Raises:
            ConfigError: a value is wrong, or does not fit the others; the message names the role.
        """
        return for_role(self, name)

    @property
    def parts_of_roles(self) -> frozenset[str]:
        """Names of the sub-agents and players that roles play; ``opponent`` may be among them."""
        return frozenset(part for name, role in self.roles.items() if name != POLICY for part in role.parts(name))

    def _check_shared(self, env: MixedEnv, own: TrainConfig) -> None:
        """Check that an environment does not override values that must be equal in all, such as those of the loss."""
        if own.sampling.temperature != self.sampling.temperature:
            raise ConfigError(
                f"envs.{env.name}.sampling.temperature={own.sampling.temperature:g} differs from the run's "
                f"{self.sampling.temperature:g}, which the loss uses for all rows; set sampling.temperature"
            )
        if env.sft.get("num_demos") and not self.sft.num_demos:
            raise ConfigError(f"envs.{env.name}.sft.num_demos: the run plays none; set sft.num_demos above 0 too")
        if own.group.num_envs != self.group.num_envs:
            raise ConfigError(
                f"envs.{env.name}.group.num_envs: the episodes of all environments are counted together; set "
                "group.num_envs"
            )

    @property
    def by_env(self) -> dict[str, TrainConfig]:
        """The configuration of each environment by its name. A run on one environment has itself under ``""``."""
        return {env.name: self.for_env(env) for env in self.envs}

    def findings(self) -> rules.Findings:
        """Return the composition rules that credit, loss and sampling break together."""
        modulators = tuple(part.kind for part in self.credit.modulators)
        has_gain = "answer_logprobs" in self.credit.columns()
        return (
            *self.loss.findings_with(self.credit.granularity, modulators),
            *rules.rewarded_length(
                "judge.grades=turns",
                "set judge.grades=episodes, or a judge.weight far below the outcome's reward divided by the turns",
                is_paid=self.judge.is_on and self.judge.grades == "turns" and self.judge.pays > 0,
            ),
            *rules.baseline_once(
                self.credit.estimator,
                self.loss.recrediting,
                subtracts_mean=self.credit.estimator != "returns",
            ),
            *rules.reference_answers(
                has_gain=has_gain, has_reference=True, is_sampling_policy=self.pipeline.is_on_policy
            ),
        )

    @property
    def criteria(self) -> tuple[str, ...]:
        """Lines of the checklist that ``strategy.guidance=rubric`` shows: its own, or those of the judge's rubric."""
        given = self.judge.rubric if self.judge.is_on and self.judge.rubric != RUBRIC else ""
        text = getattr(self.strategy.guidance, "text", "") or given
        return tuple(line.strip() for line in text.splitlines() if line.strip())

    @property
    def needs_no_second_model(self) -> bool:
        """True if the reference of the KL penalty is the policy itself with the adapters it had before RL."""
        return self.model.lora.rank > 0

    @property
    def image_route(self) -> ImageRoute:
        """Engine that gets images, from the process that renders the prompts."""
        if self.cluster.plays or self.starts_servers:
            return ""
        if self.engine.traits.is_served:
            return "" if self.engine.weight_sync == "lora" else "vllm"
        return "embedded" if self.engine.traits.is_embedded else ""

    @property
    def starts_servers(self) -> bool:
        """True if Ray starts vLLM servers from which the trainer's ranks sample."""
        is_on = bool(self.cluster.address) and not self.cluster.plays
        return is_on and self.engine.traits.is_served and not self.engine.urls

    def samples_from_copy(self, *, on_gpu: bool) -> bool:
        """Return True if a single rank samples from a copy of the model, because a training step changes the model
        while rollouts run, and the engine reads its weights then.
        """
        reads_later = self.cluster.plays or not self.engine.has_own_weights(on_gpu=on_gpu)
        return reads_later and not self.pipeline.is_on_policy

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings to print at the start: risky combinations, components that are reconstructions, settings
        without effect.
        """
        of_loss = rules.refuse_errors((*self.loss.findings(), *self.findings()))
        notes = (component.note for component, _ in self.loss.parts() if component.note)
        return (*self.credit.warnings, *of_loss, *notes, *self._slow_start(), *self._few_groups(), *idle_settings(self))

    def _slow_start(self) -> tuple[str, ...]:
        warmup = self.optimizer.warmup_steps
        if not 0 < self.num_steps < warmup:
            return ()
        return (f"num_steps={self.num_steps} ends within optimizer.warmup_steps={warmup}: the full rate is never used",)

    def _few_groups(self) -> tuple[str, ...]:
        num_updates, groups = self.loss.num_updates, self.groups_per_step
        if self.loss.minibatch != "episodes" or num_updates <= groups:
            return ()
        return (
            f"loss.num_updates={num_updates} makes {groups} updates at most: with loss.minibatch=episodes each has "
            f"whole groups, and a step has groups_per_step={groups}",
        )
