"""The loss of a training run: one policy loss, corrections, regularisers; refused where they cannot be together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from agentgym.credit import rules
from agentgym.errors import ConfigError
from agentgym.plugins import ByKind
from agentgym.settings import Count, Natural, NonNegative, check_ranges
from agentgym.trainers.losses.component import (
    CORRECTIONS,
    POLICY_LOSSES,
    REGULARISERS,
    TOKEN_MASKS,
    Aggregation,
    LossComponent,
    RatioLevel,
)
from agentgym.trainers.losses.options import TokenTisOptions

MAX_LOGITS = 1 << 25
"""Logits that exist at once, 128 MiB of float32."""
LayoutKind = Literal["rows", "prefix", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Keys left at None take the values the loss was published with (:mod:`agentgym.trainers.losses.catalogue`).

    Example:
        >>> config = LossConfig(kind="gspo")
        >>> config.clip, config.level, config.unit, config.mean
        ((0.0003, 0.0004), 'turn', 'turn', 'seq-mean-token-mean')
    """

    kind: str = "ppo_clip"
    """Name of a registered policy loss, ``module:name`` or ``file.py:name``."""
    clip_low: float | None = None
    """Ratios are clipped to ``[1 - clip_low, 1 + clip_high]``."""
    clip_high: float | None = None
    dual_clip: float | None = None
    """Bound c of a loss with a negative advantage, ``-A c``; above 1, or 0 for none."""
    ratio_level: RatioLevel | None = None
    """Unit of one ratio: each token, or the geometric mean of a turn or of a row."""
    options: Annotated[Any, ByKind(POLICY_LOSSES)] | None = None
    """The loss's own settings."""
    aggregation: Aggregation | None = None
    """Average over tokens, see :func:`agentgym.trainers.data.batch.token_weights`."""
    aggregation_unit: Literal["trajectory", "turn"] | None = None
    """Row of the ``seq-mean`` aggregations. ``turn`` weighs every turn alike, so long episodes more."""
    norm_length: int = 1024
    """The constant divisor of ``seq-mean-token-sum-norm``."""
    mode: Literal["decoupled", "bypass"] = "decoupled"
    """Old policy of the ratio: the trainer's before the update (decoupled), or the engine's log-probs (bypass)."""
    weight: NonNegative = 1.0
    """Weight of the policy loss beside the regularisers; 0 learns by those alone."""
    echo: NonNegative = 0.0
    """Weight of the cross-entropy of what the environment answers (ECHO); 0 for none."""
    corrections: tuple[Annotated[Any, ByKind(CORRECTIONS)], ...] = (TokenTisOptions(),)
    """For the gap between the trainer's and the engine's probabilities, in decoupled mode."""
    token_masks: tuple[Annotated[Any, ByKind(TOKEN_MASKS)], ...] = ()
    """Tokens that are trained, left out or penalised, by entropy or covariance: see
    :mod:`agentgym.trainers.losses.token_masks`."""
    regularisers: tuple[Annotated[Any, ByKind(REGULARISERS)], ...] = ()
    num_updates: Count = 1
    """Optimizer steps per epoch: the batch of rollouts is cut into so many minibatches. Denominators are those of the
    minibatch."""
    num_epochs: Count = 1
    """Passes over the batch of rollouts. Epochs after the first shuffle it. Ratios of all updates compare with one
    policy: the trainer's before the step's first update in mode ``decoupled`` (computed once), the one that sampled in
    mode ``bypass``. Advantages are computed once, too."""
    minibatch: Literal["episodes", "tokens", "rows"] = "episodes"
    """``episodes``: minibatches of whole groups. ``tokens``: minibatches of single episodes with about equal numbers of
    trained tokens; groups are split. ``rows``: minibatches of ``rows_per_update`` rows, as many as there are; episodes
    are split, too. See :func:`agentgym.trainers.data.minibatches.plan_minibatches`."""
    rows_per_update: Natural = 0
    """Rows (context windows) of a minibatch where ``minibatch`` is ``rows``: verl's ``ppo_mini_batch_size``."""
    max_kl: float | None = None
    """Stop a step's remaining updates when the policy is this far from the one that sampled: mean k3 KL over the
    tokens of the next minibatch. The first update is always made. None: no limit."""
    tokens_per_microbatch: Count = 8192
    """Tokens forwarded at a time, padding included; gradients do not depend on it."""
    layout: LayoutKind = "prefix"
    """Layout of the forward pass, see :mod:`agentgym.trainers.data.layout`; gradients do not depend on it either."""
    precision: Literal["auto", "bfloat16", "float32", "float32_ieee"] = "auto"
    """What the policy's matrices are multiplied in, forwards and backwards, the warm start included. ``auto``: bfloat16
    on a GPU, float32 on a CPU. ``float32``: on a GPU in TF32; ``float32_ieee``: nowhere rounded. Weights, gradients and
    AdamW's moments stay float32, and critics and columns that the model makes are computed in it (TF32 on a GPU)."""
    recompute_activations: bool = False
    """Keep the states between layers alone and compute what is inside a layer again for the gradient: a third slower,
    and several times the tokens in the same memory. Rows then do not share prefixes, unless they are packed."""
    compile: bool = False
    """Compile the policy's layers by ``torch.compile`` for an update's passes. Needs ``layout`` ``rows`` or ``packed``,
    one rank, and a compiler for C++ on a CPU. The gradient is the same up to rounding."""

    def __post_init__(self) -> None:
        low, high = self.clip
        if not 0 <= low <= 1 or high < 0:
            raise ConfigError("clip_low must be in [0, 1] and clip_high at least 0")
        check_ranges(self, "loss.")
        self._check_updates()
        self._check_compile()
        if self.dual and self.dual <= 1:
            raise ConfigError(f"dual_clip must be above 1, got {self.dual}")
        if self.options is not None and POLICY_LOSSES[self.options.kind].name != self.component.name:
            raise ConfigError(f"loss {self.kind!r} comes with options of {self.options.kind!r}")
        for stage in (self.corrections, self.token_masks, self.regularisers):
            kinds = [part.kind for part in stage]
            if twice := sorted({kind for kind in kinds if kinds.count(kind) > 1}):
                raise ConfigError(f"{', '.join(twice)} is named twice")
        rules.refuse_errors(self.findings())
        self._check_parts()
        if self.weight == 0 and not self.regularisers and not self.echo:
            raise ConfigError("weight=0 leaves nothing to learn from: name a regulariser, such as distill, or set echo")
        if self.teacher and self.regulariser("kl"):
            raise ConfigError("distill and kl would each score a model of their own; name one of them")

    def _check_compile(self) -> None:
        if self.compile and self.layout == "prefix":
            raise ConfigError("compile=true needs layout=rows or packed: layers that share a prefix are not compiled")
        if self.compile and self.recompute_activations:
            raise ConfigError("compile=true cannot go with recompute_activations=true; set one of them to false")

    def _check_updates(self) -> None:
        if self.minibatch != "episodes" and self.has_opob:
            raise ConfigError("vcpo's baseline compares the trajectories of a group: set minibatch=episodes")
        if (self.minibatch == "rows") != (self.rows_per_update > 0):
            raise ConfigError("minibatch=rows and rows_per_update=N, which is at least 1, go together")
        if self.minibatch == "rows" and self.num_updates > 1:
            raise ConfigError("minibatch=rows makes as many updates as there are rows for: leave num_updates at 1")
        if self.minibatch == "tokens" and self.num_updates == 1:
            raise ConfigError("minibatch=tokens cuts an epoch into num_updates minibatches: set num_updates above 1")
        if self.max_kl is None:
            return
        if self.max_kl <= 0:
            raise ConfigError(f"max_kl must be above 0, got {self.max_kl}; leave it out for no limit")
        if not self.has_several_updates:
            raise ConfigError("max_kl stops updates after a step's first: set num_updates or num_epochs above 1")

    def _check_parts(self) -> None:
        defaults, kinds = self.component, self.correction_kinds
        if defaults.clip_low is None and (self.clip_low is not None or self.clip_high is not None):
            raise ConfigError(f"loss {self.kind!r} reads no clip_low or clip_high; its settings are in options")
        if self.dual and not defaults.may_dual_clip:
            raise ConfigError(f"loss {self.kind!r} has no dual clip")
        if self.kind == "gspo" and self.mean != "seq-mean-token-mean":
            raise ConfigError("gspo averages over sequences: aggregation must be seq-mean-token-mean (section 5.6)")
        if self.level != "token" and not defaults.takes_any_level:
            raise ConfigError(f"loss {self.kind!r} works on ratios per token")
        weighing = [kind for kind in kinds if CORRECTIONS[kind].weighs]
        if len(weighing) > 1:
            raise ConfigError(f"{' and '.join(weighing)} weigh by the same ratio twice (composition rule 3)")
        if "batch_normalise" in kinds and not weighing:
            able = ", ".join(name for name, known in CORRECTIONS.items() if known.weighs)
            raise ConfigError(f"batch_normalise needs weights to normalise: one of {able}")

    def findings(self) -> rules.Findings:
        """The composition rules that this loss breaks by itself; :meth:`findings_with` needs to know the credit."""
        gates = [name for name, value in (("dual_clip", self.dual_clip), ("ppo_clip", self.clip_high)) if value]
        on_ratio = [kind for kind in self.correction_kinds if kind != "vcpo"]
        is_on_policy = self.mode == "decoupled" and not self.has_several_updates
        chosen = self.kind not in ("ppo_clip", "reinforce") or (self.clip_low, self.clip_high) != (None, None)
        waiting = tuple(part.name for part, _ in self.parts() if part.needs_several_updates)
        return (
            *rules.one_gate(self.kind, [*gates, *(["decoupled"] if "decoupled" in on_ratio else [])]),
            *rules.rollout_correction(self.mode, on_ratio),
            *rules.one_update(is_on_policy=is_on_policy, parts=waiting, gate=self.kind if chosen else ""),
            *(
                finding
                for part, options in self.parts()
                if options is not None
                for finding in rules.idle_component(part.name, options.idle())
            ),
        )

    def findings_with(self, granularity: str, modulators: tuple[str, ...]) -> rules.Findings:
        """The composition rules between a loss and the credit it is given."""
        kinds = tuple(part.kind for part in self.regularisers)
        return (
            *rules.ratio_level(self.kind, self.level, granularity),
            *rules.entropy_signs(modulators, kinds),
        )

    # ------------------------------------------------------------------------------------- with defaults filled in

    @property
    def component(self) -> LossComponent:
        """The policy loss."""
        return POLICY_LOSSES[self.kind]

    def parts(self) -> tuple[tuple[LossComponent, Any], ...]:
        """Every part of the loss with its settings, in the order they act."""
        return (
            (self.component, self.loss_options),
            *((CORRECTIONS[part.kind], part) for part in self.corrections),
            *((TOKEN_MASKS[part.kind], part) for part in self.token_masks),
            *((REGULARISERS[part.kind], part) for part in self.regularisers),
        )

    @property
    def clip(self) -> tuple[float, float]:
        """Distances that a ratio may go below and above 1; zeros where the loss reads no clip."""
        defaults = self.component
        low = defaults.clip_low if self.clip_low is None else self.clip_low
        high = defaults.clip_high if self.clip_high is None else self.clip_high
        return low or 0.0, high or 0.0

    @property
    def dual(self) -> float:
        """Bound of the dual clip, 0 for none."""
        return self.component.dual_clip if self.dual_clip is None else self.dual_clip

    @property
    def level(self) -> RatioLevel:
        """Unit of one ratio."""
        return self.ratio_level or self.component.ratio_level

    @property
    def mean(self) -> Aggregation:
        """Average over tokens."""
        return self.aggregation or self.component.aggregation

    @property
    def unit(self) -> Literal["trajectory", "turn"]:
        """The row of the averages: what the ratio is taken over, else the trajectory."""
        return self.aggregation_unit or ("turn" if self.level == "turn" else "trajectory")

    @property
    def loss_options(self) -> Any:
        """The loss's own settings, its defaults if none are given."""
        made = self.component.options
        return self.options if self.options is not None or made is None else made()

    @property
    def correction_kinds(self) -> tuple[str, ...]:
        """Names of the corrections."""
        return tuple(part.kind for part in self.corrections)

    def correction(self, kind: str) -> Any:
        """Settings of the correction of that kind, None if there is none."""
        return next((part for part in self.corrections if part.kind == kind), None)

    def regulariser(self, kind: str) -> Any:
        """Settings of the regulariser of that kind, None if there is none."""
        return next((part for part in self.regularisers if part.kind == kind), None)

    @property
    def teacher(self) -> str:
        """The source of the model that the policy is distilled from, empty if there is none."""
        distill = self.regulariser("distill")
        return distill.teacher if distill is not None else ""

    @property
    def has_opob(self) -> bool:
        """True if VCPO's baseline is subtracted from the advantages."""
        vcpo = self.correction("vcpo")
        return vcpo is not None and vcpo.baseline != "none"

    @property
    def has_several_updates(self) -> bool:
        """True if a step makes more than one optimizer update, so that ratios move away from 1."""
        return self.minibatch == "rows" or self.num_updates * self.num_epochs > 1

    @property
    def shrinks_denominators(self) -> bool:
        """True if rejected tokens leave the loss's denominators."""
        return any(getattr(part, "denominator", "all") == "kept" for part in self.corrections)

    @property
    def needs_whole_update(self) -> bool:
        """True if something must see all tokens of an update before the first gradient."""
        if self.shrinks_denominators or self.token_masks:
            return True
        return any(component.needs_whole_update for component, _ in self.parts())
