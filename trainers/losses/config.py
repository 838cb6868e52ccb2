"""Configuration of the loss: one policy loss, corrections, token masks and regularisers. Invalid ones are refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from agentgym.credit import rules
from agentgym.errors import ConfigError
from agentgym.plugins import ByKind
from agentgym.settings import Count, Natural, NonNegative, Settings, check_ranges
from agentgym.trainers.data.columns import COLUMNS, Column, read_by_columns, resolve
from agentgym.trainers.kinds import UNPLANNED_TOKENS, LayoutKind, Precision
from agentgym.trainers.losses.component import (
    AUXILIARIES,
    CORRECTIONS,
    OF_PREPARE,
    OF_TOKENS,
    OF_VOCABULARY,
    POLICY_LOSSES,
    REGULARISERS,
    TOKEN_MASKS,
    UNKNOWN_BESIDE_VOCABULARY,
    Aggregation,
    LossComponent,
    RatioLevel,
)
from agentgym.trainers.losses.options import EchoOptions, TokenTisOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig(Settings):
    """The loss and its settings. None means the published value (:mod:`agentgym.trainers.losses.catalogue`).

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
    """Upper bound ``-A c`` of the loss at negative advantages; c is above 1, or 0 for no bound."""
    ratio_level: RatioLevel | None = None
    """Unit of the importance ratio: a token, or the geometric mean over a turn or over a row."""
    options: Annotated[Any, ByKind(POLICY_LOSSES)] | None = None
    """The loss's own settings."""
    aggregation: Aggregation | None = None
    """Kind of average over tokens, see :func:`agentgym.trainers.data.batch.token_weights`."""
    aggregation_unit: Literal["trajectory", "turn"] | None = None
    """Sequence of the ``seq-mean`` aggregations. With ``turn`` all turns have equal weight, so long episodes count
    more."""
    norm_length: int = 1024
    """The constant divisor of ``seq-mean-token-sum-norm``, beside the number of sequences."""
    mode: Literal["decoupled", "bypass"] = "decoupled"
    """Old policy of the ratio: the trainer's policy before the step (``decoupled``), or the engine's log-probs
    (``bypass``)."""
    weight: NonNegative = 1.0
    """Weight of the policy loss relative to the regularisers; 0 trains on the regularisers only."""
    auxiliaries: tuple[Annotated[Any, ByKind(AUXILIARIES)], ...] = ()
    """Additional losses over tokens of the step's episodes, such as the environment's answers."""
    echo: NonNegative = 0.0
    """Short form of the auxiliary loss ``echo`` with this ``coef``; 0 switches it off."""
    corrections: tuple[Annotated[Any, ByKind(CORRECTIONS)], ...] = (TokenTisOptions(),)
    """Corrections of the mismatch between the trainer's and the engine's probabilities, in decoupled mode."""
    token_masks: tuple[Annotated[Any, ByKind(TOKEN_MASKS)], ...] = ()
    """Tokens that are trained, left out or penalised, by entropy or covariance: see
    :mod:`agentgym.trainers.losses.token_masks`."""
    regularisers: tuple[Annotated[Any, ByKind(REGULARISERS)], ...] = ()
    num_updates: Count = 1
    """Optimizer steps per epoch: the batch of rollouts is split into this many minibatches. Averages are taken over
    the minibatch."""
    num_epochs: Count = 1
    """Passes over the batch of rollouts; epochs after the first shuffle it. All updates compare with the same old
    policy: in mode ``decoupled`` the trainer's before the step's first update, in mode ``bypass`` the one that sampled.
    Its log-probabilities and the advantages are computed once."""
    minibatch: Literal["episodes", "tokens", "rows"] = "episodes"
    """``episodes``: minibatches of whole groups. ``tokens``: minibatches of single episodes with about equal numbers of
    trained tokens; groups are split. ``rows``: minibatches of ``rows_per_update`` rows; episodes are split, too. See
    :func:`agentgym.trainers.phases.minibatches.plan_minibatches`."""
    rows_per_update: Natural = 0
    """Number of rows (context windows) of a minibatch if ``minibatch`` is ``rows``: verl's ``ppo_mini_batch_size``."""
    max_kl: float | None = None
    """Skip a step's remaining updates when the KL to the sampling policy (mean k3 over the tokens of the next
    minibatch) exceeds this. The first update is always made. None: no limit."""
    tokens_per_microbatch: Count | Literal["auto"] = "auto"
    """Number of tokens in a forward pass, padding included; gradients do not depend on it. ``auto``: a run chooses it
    for its model and device (:mod:`agentgym.trainers.planning.microbatch`)."""
    layout: LayoutKind = "prefix"
    """Layout of the forward pass, see :mod:`agentgym.trainers.data.layout`; gradients do not depend on it either."""
    precision: Precision = "auto"
    """Precision of the policy's matrix products, forwards and backwards, also in the warm start. ``auto``: bfloat16 on
    a GPU, float32 on a CPU. ``float32``: TF32 on a GPU. ``float32_ieee``: full float32. Weights, gradients and AdamW's
    moments are always float32; critics and columns are computed in float32 (TF32 on a GPU)."""
    recompute_activations: bool = False
    """Gradient checkpointing: store only the states between layers and recompute the rest for the gradient. Training
    is a third slower, and several times the tokens fit in memory. Rows share no prefixes then, unless packed."""
    compile: bool = False
    """Compile the policy's layers with ``torch.compile`` for training. Needs ``layout`` ``rows`` or ``packed``, one
    rank and, on a CPU, a C++ compiler. The gradient is the same up to rounding."""

    def __post_init__(self) -> None:
        low, high = self.clip
        if not 0 <= low <= 1 or high < 0:
            raise ConfigError(f"clip_low must be in [0, 1] and clip_high at least 0, got {low} and {high}")
        check_ranges(self, "loss.")
        self._check_updates()
        self._check_compile()
        if self.dual and self.dual <= 1:
            raise ConfigError(f"dual_clip must be above 1, got {self.dual}")
        if self.options is not None and POLICY_LOSSES[self.options.kind].name != self.component.name:
            raise ConfigError(
                f"loss {self.kind!r} comes with options of {self.options.kind!r}: set loss.kind, or the options' kind, "
                "so that both name one loss"
            )
        for stage in (self.corrections, self.token_masks, self.regularisers, self.auxiliary_losses):
            kinds = [part.kind for part in stage]
            if twice := sorted({kind for kind in kinds if kinds.count(kind) > 1}):
                raise ConfigError(f"{', '.join(twice)} is named twice; list each component once")
        self.columns()
        rules.refuse_errors(self.findings())
        self._check_siblings()
        self._check_parts()
        if self.weight == 0 and not self.regularisers and not self.auxiliary_losses:
            raise ConfigError(
                "weight=0 leaves nothing to learn from: name a regulariser, such as distill, or an auxiliary loss"
            )
        if self.teacher and self.needs_reference:
            raise ConfigError("distill and kl each need a second model, and only one is scored: name one of them")

    def _check_compile(self) -> None:
        if self.compile and self.layout == "prefix":
            raise ConfigError("compile=true needs layout=rows or packed: layers that share a prefix are not compiled")
        if self.compile and self.recompute_activations:
            raise ConfigError("compile=true cannot go with recompute_activations=true; set one of them to false")

    def _check_updates(self) -> None:
        if self.minibatch != "episodes" and self.recrediting:
            raise ConfigError(
                f"{self.recrediting}'s baseline compares the trajectories of a group: set minibatch=episodes"
            )
        for part, _ in self.parts() if self.minibatch != "episodes" else ():
            if part.compares_members or (part.compares_windows and self.minibatch == "rows"):
                whole = "groups" if part.compares_members else "episodes"
                raise ConfigError(
                    f"{part.family} {part.name!r} compares tokens of whole {whole}, which "
                    f"loss.minibatch={self.minibatch} splits: set loss.minibatch=episodes"
                )
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

    def _check_siblings(self) -> None:
        if not self.component.compares_siblings:
            return
        beside = [
            *(["loss.corrections"] if self.corrections else []),
            *(["loss.token_masks"] if self.token_masks else []),
        ]
        if beside:
            raise ConfigError(f"{self.kind} is a sum over the tokens of two turns: set {' and '.join(beside)} to []")
        if self.minibatch != "episodes":
            raise ConfigError(f"{self.kind} compares episodes of a group: set loss.minibatch=episodes")

    def _check_parts(self) -> None:
        defaults, kinds = self.component, self.correction_kinds
        if defaults.clip_low is None and (self.clip_low is not None or self.clip_high is not None):
            raise ConfigError(
                f"loss {self.kind!r} reads no clip_low or clip_high: leave them out; its settings are in loss.options"
            )
        if self.dual and not defaults.may_dual_clip:
            raise ConfigError(f"loss {self.kind!r} has no dual clip: leave dual_clip out")
        if self.kind == "gspo" and self.mean != "seq-mean-token-mean":
            raise ConfigError(
                f"gspo averages over sequences: loss.aggregation must be seq-mean-token-mean, got {self.mean}"
            )
        if self.level != "token" and not defaults.takes_any_level:
            raise ConfigError(f"loss {self.kind!r} works on ratios per token: set ratio_level=token, or loss.kind=gspo")
        weighing = [kind for kind in kinds if CORRECTIONS[kind].weighs]
        if len(weighing) > 1:
            raise ConfigError(
                f"{' and '.join(weighing)} multiply by the same ratio twice: name one of them (composition rule 3)"
            )
        for part, options in self.parts():
            if defaults.prepare and getattr(options, "takes_gradients", False):
                raise ConfigError(
                    f"{part.name} takes the gradient of one trajectory at a time, and the loss {self.kind!r} compares "
                    "the whole update: set its baseline to proxy, or name another loss"
                )
        if "batch_normalise" in kinds and not weighing:
            able = ", ".join(name for name, known in CORRECTIONS.items() if known.weighs)
            raise ConfigError(f"batch_normalise needs weights to normalise: one of {able}")

    def findings(self) -> rules.Findings:
        """Return the composition rules that this loss breaks by itself; :meth:`findings_with` adds those of credit."""
        gates = [name for name, value in (("dual_clip", self.dual_clip), ("ppo_clip", self.clip_high)) if value]
        on_ratio = [kind for kind in self.correction_kinds if not CORRECTIONS[kind].scales_rate]
        is_on_policy = self.mode == "decoupled" and not self.has_several_updates
        chosen = self.kind not in ("ppo_clip", "reinforce", "opmd") or (self.clip_low, self.clip_high) != (None, None)
        is_regression = self.component.compares_siblings  # which takes no correction
        has_gate = not {"ratio", "logprob_old"}.isdisjoint(self.component.read_by_function())
        waiting = tuple(part.name for part, _ in self.parts() if part.needs_several_updates)
        return (
            *rules.one_gate(self.kind, [*gates, *(["decoupled"] if "decoupled" in on_ratio else [])]),
            *(() if is_regression else rules.rollout_correction(self.mode, on_ratio)),
            *rules.bounded_weights(
                self.kind,
                self.mode,
                is_bounded=self.component.is_bounded or self.dual > 0,
                may_clip=self.component.may_dual_clip,
            ),
            *rules.one_update(
                is_on_policy=is_on_policy,
                parts=waiting,
                gate=self.kind if chosen and has_gate and not is_regression else "",
            ),
            *(
                finding
                for part, options in self.parts()
                if options is not None
                for finding in rules.idle_component(part.name, options.idle())
            ),
        )

    def findings_with(self, granularity: str, modulators: tuple[str, ...]) -> rules.Findings:
        """Return the composition rules that this loss breaks together with the credit."""
        raise_entropy = [part.name for part, _ in self.parts() if part.raises_entropy]
        return (
            *rules.ratio_level(self.kind, self.level, granularity),
            *rules.entropy_signs(modulators, raise_entropy),
        )

    # ------------------------------------------------------------------------------------- with defaults filled in

    @property
    def component(self) -> LossComponent:
        """The registered policy loss."""
        return POLICY_LOSSES[self.kind]

    def parts(self) -> tuple[tuple[LossComponent, Any], ...]:
        """Return every part of the loss with its settings, in the order in which they act."""
        return (
            (self.component, self.loss_options),
            *((CORRECTIONS[part.kind], part) for part in self.corrections),
            *((TOKEN_MASKS[part.kind], part) for part in self.token_masks),
            *((REGULARISERS[part.kind], part) for part in self.regularisers),
            *((AUXILIARIES[part.kind], part) for part in self.auxiliary_losses),
        )

    @property
    def auxiliary_losses(self) -> tuple[Any, ...]:
        """The auxiliary losses with their settings, also that of the short form."""
        return (*self.auxiliaries, *([EchoOptions(coef=self.echo)] if self.echo else []))

    @property
    def microbatch_tokens(self) -> int:
        """Number of tokens of a micro-batch."""
        return UNPLANNED_TOKENS if self.tokens_per_microbatch == "auto" else self.tokens_per_microbatch

    @property
    def clip(self) -> tuple[float, float]:
        """Distances by which a ratio may be below and above 1; zeros if the loss has no clip."""
        defaults = self.component
        low = defaults.clip_low if self.clip_low is None else self.clip_low
        high = defaults.clip_high if self.clip_high is None else self.clip_high
        return low or 0.0, high or 0.0

    @property
    def dual(self) -> float:
        """Factor c of the dual clip's bound, 0 for none."""
        return self.component.dual_clip if self.dual_clip is None else self.dual_clip

    @property
    def level(self) -> RatioLevel:
        """Unit of the importance ratio."""
        return self.ratio_level or self.component.ratio_level

    @property
    def mean(self) -> Aggregation:
        """Kind of average over tokens."""
        return self.aggregation or self.component.aggregation

    @property
    def unit(self) -> Literal["trajectory", "turn"]:
        """Sequence of the ``seq-mean`` aggregations: by default the turn for a ratio per turn, else the trajectory."""
        return self.aggregation_unit or ("turn" if self.level == "turn" else "trajectory")

    @property
    def loss_options(self) -> Any:
        """The policy loss's own settings, or its defaults if none are given."""
        made = self.component.options
        return self.options if self.options is not None or made is None else made()

    @property
    def correction_kinds(self) -> tuple[str, ...]:
        """Names of the corrections."""
        return tuple(part.kind for part in self.corrections)

    def correction(self, kind: str) -> Any:
        """Return the settings of the correction of that kind, None if there is none."""
        return next((part for part in self.corrections if part.kind == kind), None)

    def regulariser(self, kind: str) -> Any:
        """Return the settings of the regulariser of that kind, None if there is none."""
        return next((part for part in self.regularisers if part.kind == kind), None)

    @property
    def teacher(self) -> str:
        """The source of the model that the policy is distilled from, empty if there is none."""
        return next((options.teacher for _, options in self.parts() if getattr(options, "teacher", "")), "")

    @property
    def needs_reference(self) -> bool:
        """True if a component compares with the policy before RL; one that names a teacher compares with that."""
        return self.reads("logprob_ref")

    def columns(self) -> tuple[Column, ...]:
        """Return the columns that the components read and that episodes or other columns give, in order of need.

        Raises:
            ConfigError: nothing provides a name that a component reads.
        """
        found: dict[str, Column] = {}
        for part, _ in self.parts():
            given = {*OF_TOKENS, *part.further}
            names = part.read_by_function()
            if part.prepare:  # what is no column is a value of its own ``prepare``, which the trial calls
                names = [name for name in names if name in given or name in COLUMNS._all()]
                known = {*OF_TOKENS, *OF_PREPARE, *part.further}
                found |= {one.name: one for one in _resolved(part, part.read_by_prepare(), known)}
            if part.measure:
                columns = _resolved(part, part.read_of_vocabulary(), {*OF_TOKENS, *OF_VOCABULARY})
                _check_known(part, (*part.read_of_vocabulary(), *read_by_columns(columns)), UNKNOWN_BESIDE_VOCABULARY)
                found |= {one.name: one for one in columns}
            columns = _resolved(part, names, given)
            _check_known(part, (*names, *read_by_columns(columns)), part.unknown_to_it)
            found |= {one.name: one for one in columns}
        return tuple(found.values())

    def reads(self, name: str) -> bool:
        """Return True if a component reads a column, itself or through columns; a teacher's column is its own."""
        direct = any(part.reads(name) for part, options in self.parts() if not hasattr(options, "teacher"))
        return direct or name in read_by_columns(self.columns())

    def reads_before(self, name: str) -> bool:
        """Return True if a component reads a column of the whole update, itself or through columns."""
        names = {one for part, _ in self.parts() for one in part.read_by_prepare()}
        if self.token_masks:  # which read the whole update, and call the policy loss for where its gate acts
            parts = (self.component, *(TOKEN_MASKS[mask.kind] for mask in self.token_masks))
            names |= {one for part in parts for one in part.read_by_function()}
        known = [one for one in names if one in COLUMNS._all()]
        return name in names or name in read_by_columns(resolve(known, {*OF_TOKENS, *OF_PREPARE}))

    @property
    def tracks_entropy(self) -> bool:
        """True if a regulariser compares with the entropies of earlier steps."""
        return any(REGULARISERS[part.kind].reads("historical") for part in self.regularisers)

    @property
    def recrediting(self) -> str:
        """Name of the part that changes the advantages of each minibatch, empty if none does."""
        return next((part.name for part, options in self.parts() if part.recredit and options.recredits), "")

    @property
    def restart_at(self) -> int:
        """Number of RL steps after which the policy so far becomes the reference, 0 for never."""
        return max((getattr(options, "restart_at", 0) for _, options in self.parts()), default=0)

    @property
    def has_several_updates(self) -> bool:
        """True if a step makes more than one optimizer update, so that ratios move away from 1."""
        return self.minibatch == "rows" or self.num_updates * self.num_epochs > 1

    @property
    def shrinks_denominators(self) -> bool:
        """True if rejected tokens do not count in the loss's denominators."""
        return any(getattr(part, "denominator", "all") == "kept" for part in self.corrections)

    @property
    def needs_whole_update(self) -> bool:
        """True if a component must see all tokens of an update before the first gradient."""
        if self.shrinks_denominators or self.token_masks:
            return True
        return any(component.prepares for component, _ in self.parts())


def _check_known(part: LossComponent, names: Iterable[str], unknown: Mapping[str, str]) -> None:
    for name in names:
        if why := unknown.get(name):
            raise ConfigError(f"{part.family} {part.name!r} cannot read {name}: {why}")


def _resolved(part: LossComponent, names: Sequence[str], given: Collection[str]) -> tuple[Column, ...]:
    try:
        return resolve(names, given)
    except ConfigError as error:
        raise ConfigError(f"{part.family} {part.name!r}: {error}") from error
