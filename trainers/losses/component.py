"""The families of loss components, each with a decorator: policy losses, corrections, token masks, regularisers and
auxiliary losses.

As in credit (:mod:`agentgym.credit.component`), a component is a function that receives the values its parameters name.
Tensors are flat over the ``N`` sampled tokens of a micro-batch::

    @policy_loss("half_clip", paper="...")
    def half_clip(ratio: Tensor, advantage: Tensor, high: float) -> tuple[Tensor, Tensor]:
        return -advantage * ratio.clamp(max=high), ratio > high

Every family may read all columns of a token: those of :data:`OF_TOKENS`, agentgym's own of
:mod:`agentgym.trainers.data.own_columns`, and columns of one's own (:func:`agentgym.trainers.data.columns.column`).

A component that compares episodes has a ``prepare``, which sees the columns of the whole update at once, ``[M]`` each
and equal on all ranks, before the first gradient. It returns values by name, which the component then reads: a tensor
``[M]`` has a value for each token, and anything else is handed on as it is::

    def spread(reward, trajectory, memory): ...

    @policy_loss("pairwise", prepare=spread)
    def pairwise(logprob, factor, value): ...

With a parameter ``memory`` (a dict of plain values, empty at first) it returns a pair: the values and the new memory,
which checkpoints keep. The value ``lr_scale`` multiplies the learning rate of the update.

This module does not import torch: agentgym's own functions are listed by name, and imported when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any, Literal

from agentgym.errors import ConfigError
from agentgym.plugins import Component, F, Options, Registry, Status, checked_options, parameters_of
from agentgym.trainers.data.columns import COLUMNS

Family = Literal["loss", "correction", "token mask", "regulariser", "auxiliary loss"]
RatioLevel = Literal["token", "turn", "sequence"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComponent(Component):
    """A component of the loss: its function, and the properties that the trainer needs to know."""

    clip_low: float | None = 0.2
    """Policy losses: default of ``loss.clip_low``; None if the loss has no clip."""
    clip_high: float | None = 0.28
    dual_clip: float = 0.0
    may_dual_clip: bool = False
    is_bounded: bool = True
    """Policy losses: False if the weight of a token with a negative advantage grows with its ratio without a bound,
    unless there is a dual clip."""
    ratio_level: RatioLevel = "token"
    takes_any_level: bool = False
    """Policy losses: True if the ratio may also be that of a turn or of a sequence."""
    aggregation: Aggregation = "token-mean"
    weighs: bool = False
    """Corrections: True if it multiplies by ``pi_old / mu``; two of them would do so twice."""
    prepare: Callable[..., Any] | str = ""
    """Function over the whole update, or its ``module:function``; empty if the component needs none."""
    phase: Literal["update", "vocabulary"] = "update"
    """Regularisers: ``vocabulary`` if the function itself reads ``log_distribution``, the policy's log-probabilities of
    the whole vocabulary, ``[n, V]`` for a few tokens at a time."""
    measure: Callable[..., Any] | str = ""
    """Policy losses and regularisers: a function of the whole vocabulary, or its ``module:function``. It takes
    ``log_distribution``, for a few tokens at a time, and columns, and returns a number for each token ``[n]``, or
    several ``[n, k]``. The component and its ``prepare`` read them as ``measured``: with gradient, and before the
    update."""
    effect: Literal["keep", "leave_out", "penalise"] = "keep"
    """Token masks: what happens to the tokens that the function marks. ``keep``: only these train, and the loss
    averages over them. ``leave_out``: they do not train, and denominators stay. ``penalise``: ``coef`` times
    ``|log pi_theta / pi_old|`` is added to their loss."""
    recredit: Callable[..., Any] | str = ""
    """Function that changes the advantages of a minibatch before its first gradient, or its ``module:function``; it
    acts where ``recredits`` of the component's options is True."""
    scores: Callable[..., Any] | str = ""
    """Function by which a model computes the column ``logprob_teacher`` of a step's episodes, or its
    ``module:function``; empty if the component needs none."""
    scales_rate: bool = False
    """Corrections: it acts on the learning rate, not on weights."""
    raises_entropy: bool = False
    """True if it rewards a high entropy."""
    needs_whole_update: bool = False
    """True if it must see all tokens of an update before its first gradient; one with ``prepare`` always does."""
    compares_siblings: bool = False
    """Policy losses: True if it compares turns that were sampled in the same state, so that episodes must branch."""
    needs_several_updates: bool = False
    """True if it compares with the policy before the step's first update, and therefore is 0 in that update."""
    needs_full_context: bool = False
    """True if it reads whole histories, so that ``context.policy`` must be ``full``."""
    sign: float = 1.0
    """Regularisers: sign of the term in the loss, -1 for a bonus."""
    is_scaled: bool = False
    """Regularisers: True if the function applies the coefficient itself; else the loss multiplies by ``coef``."""
    averages_over: Literal["loss", "tokens"] = "loss"
    """Regularisers: average like the policy loss (``loss.aggregation``), or over all trained tokens."""
    metric: str = ""
    """Regularisers: name of its mean among the metrics; by default the component's name."""

    @property
    def prepares(self) -> bool:
        """True if the component sees the whole update before its first gradient."""
        return bool(self.prepare) or self.needs_whole_update or self.family == "token mask"

    @property
    def compares_members(self) -> bool:
        """True if its ``prepare`` compares the trajectories of a group."""
        return "group" in self.read_by_prepare()

    @property
    def compares_windows(self) -> bool:
        """True if its ``prepare`` compares the context windows of a trajectory."""
        return "trajectory" in self.read_by_prepare()

    @property
    def further(self) -> tuple[str, ...]:
        """Names that a function of this family may take in addition to columns and to the values of its ``prepare``."""
        measured = ("measured",) if self.measure else ()
        return (*OF_UPDATE[self.family], *measured, *(OF_VOCABULARY if self.phase == "vocabulary" else ()))

    @property
    def of_vocabulary(self) -> Callable[..., Any] | str:
        """The function that is called with the whole vocabulary, empty if the component has none."""
        return self.function if self.phase == "vocabulary" else self.measure

    @property
    def unknown_to_it(self) -> Mapping[str, str]:
        """Columns of tokens that its function cannot read, each with the reason."""
        if self.family == "auxiliary loss":
            return dict.fromkeys((*OF_TOKENS, *COLUMNS._all()), "an auxiliary loss reads the step's episodes")
        if self.family == "correction":
            return dict.fromkeys(
                ("logprob", "entropy", "logprob_ref"), "a correction weighs by the policies before the step"
            )
        return UNKNOWN_BESIDE_VOCABULARY if self.phase == "vocabulary" else {}

    def read_by_function(self) -> list[str]:
        """Return the names that the function takes and that no option fills."""
        return self._unfilled(self.function)

    def read_by_prepare(self) -> list[str]:
        """Return the names that ``prepare`` takes and that no option fills."""
        return self._unfilled(self.prepare) if self.prepare else []

    def called_on_vocabulary(self, values: Mapping[str, Any], options: Any) -> Any:
        """Call :attr:`of_vocabulary` with values by name.

        Raises:
            ConfigError: a user's function raised an error of its own; the message names the component.
        """
        return replace(self, function=self.of_vocabulary).invoke(values, options)

    def read_of_vocabulary(self) -> list[str]:
        """Return the names that :attr:`of_vocabulary` takes and that no option fills."""
        return self._unfilled(self.of_vocabulary) if self.of_vocabulary else []

    def _unfilled(self, function: Callable[..., Any] | str) -> list[str]:
        own = {"options", *(field.name for field in fields(self.options))} if self.options else {"options"}
        return [name for name, is_required in parameters_of(function).items() if is_required and name not in own]

    def reads(self, name: str) -> bool:
        """Return True if the function or its ``prepare`` has a parameter of that name that no option fills."""
        own = {field.name for field in fields(self.options)} if self.options else set()
        prepare = parameters_of(self.prepare) if self.prepare else {}
        return name not in own and (name in parameters_of(self.function) or name in prepare)


OF_TOKENS: Mapping[str, str] = {
    "logprob": "log-probability under the trained policy, with gradient",
    "logprob_old": "log-probability under the old policy of the ratio",
    "logprob_rollout": "log-probability under the distribution that sampled",
    "logprob_ref": "log-probability under the policy before RL, which is then kept, or the teacher of distillation",
    "logprob_teacher": "log-probability under the policy that sees a demonstration, NaN where nobody scored it",
    "entropy": "entropy in nats, with gradient",
    "advantage": "advantage of the token",
    "loss_weight": "weight of the token in the update's loss",
    "row": "number of the token's row (a context window)",
    "turn": "number of the token's turn",
    "trajectory": "number of the token's trajectory",
    "turn_index": "position of the token's turn in its trajectory",
    "demonstrated": "True for tokens of the oracle's episodes",
    "token": "id of the token",
}
"""Columns of tokens that the trainer has for every component, with their meaning."""
OF_UPDATE: Mapping[str, tuple[str, ...]] = {
    "loss": ("ratio", "low", "high", "dual"),
    "correction": ("log_rho_N", "unit"),
    "token mask": ("covariance", "was_gated", "seed"),
    "regulariser": ("historical", "phase"),
    "auxiliary loss": ("episodes", "renderer"),
}
"""Further values that the functions of one family read."""
OF_VOCABULARY = ("log_distribution",)
"""Values that a function of the whole vocabulary reads beside columns."""
UNKNOWN_BESIDE_VOCABULARY = dict.fromkeys(
    ("logprob", "logprob_old", "entropy", "logprob_ref"), "it is computed beside the whole vocabulary"
)
"""Columns that a function of the whole vocabulary cannot read, each with the reason."""
OF_PREPARE = ("memory", "ratio", "log_rho_M", "weighing_weight", "weighing_unit")
"""Further values that a ``prepare`` reads: its memory, ratios to the old policy, ``log pi_old / mu``, and the weight
and the unit of the correction that weighs."""
CATALOGUE = "agentgym.trainers.losses.catalogue"
COLUMNS.reserve(
    {
        *OF_TOKENS,
        *OF_PREPARE,
        *(name for names in OF_UPDATE.values() for name in names),
        *OF_VOCABULARY,
        "measured",
        "is_trained",
    }
)


class LossRegistry(Registry[LossComponent]):
    """The components of one family. What they read is resolved with the configuration, when all columns are known."""

    def unfilled(self, component: LossComponent) -> list[str]:
        """Return nothing: columns of one's own may be declared after a component that reads them."""
        return []


POLICY_LOSSES = LossRegistry("policy loss", CATALOGUE, ())
CORRECTIONS = LossRegistry("correction", CATALOGUE, ())
REGULARISERS = LossRegistry("regulariser", CATALOGUE, ())
TOKEN_MASKS = LossRegistry("token mask", CATALOGUE, ())
AUXILIARIES = LossRegistry("auxiliary loss", CATALOGUE, ())
FAMILIES: Mapping[Family, Registry[LossComponent]] = {
    "loss": POLICY_LOSSES,
    "correction": CORRECTIONS,
    "token mask": TOKEN_MASKS,
    "regulariser": REGULARISERS,
    "auxiliary loss": AUXILIARIES,
}


def policy_loss(name: str, **metadata: object) -> Callable[[F], F]:
    """Register a policy loss: a function that returns the loss per token ``[N]``, and where its gate acted ``[N]``.

    The gate is the function that limits the importance ratio, such as a clip. In addition to columns a policy loss may
    take ``ratio`` (to the old policy, with gradient), ``low``, ``high`` and ``dual`` (bounds of the ratio), the values
    of its ``prepare``, and the keys of its options.

    Args:
        name: its name in ``loss.kind`` and in ``agentgym list --credit``.
        metadata: fields of :class:`LossComponent`.
    """
    return _decorator("loss", name, metadata)


def correction(name: str, **metadata: object) -> Callable[[F], F]:
    """Register a correction of the mismatch with the sampling policy: a function that returns detached weights ``[N]``.

    In addition to columns it may take ``log_rho_N`` (log pi_old / mu, detached), ``unit`` (the turn if its option
    ``level`` is ``turn``, else the row), the values of its ``prepare``, and the keys of its options. For ``metadata``
    see :class:`LossComponent`.
    """
    return _decorator("correction", name, metadata)


def token_mask(name: str, **metadata: object) -> Callable[[F], F]:
    """Register a token mask: a function over the tokens of the whole update that marks some of them, ``[M]`` booleans.

    Its ``effect`` says what happens to marked tokens. In addition to columns it may take ``covariance`` (each token's
    part of the covariance of advantage and log-probability), ``was_gated`` (True where the loss's gate acted), ``seed``
    and the keys of its options. For ``metadata`` see :class:`LossComponent`.
    """
    return _decorator("token mask", name, metadata)


def regulariser(name: str, **metadata: object) -> Callable[[F], F]:
    """Register a regulariser: a function that returns a term per token ``[N]``.

    The loss adds the average of the term times ``coef`` of its options (1 without that key). In addition to columns it
    may take ``historical`` (mean entropy of the token's turn over the steps so far, NaN before there are any),
    ``phase`` (EPO's weight of the step, from the options ``phase_steps`` and ``from_turn`` if it has them) and the
    values of its ``prepare``. With ``phase="vocabulary"`` it may take ``log_distribution``. For ``metadata`` see
    :class:`LossComponent`.
    """
    return _decorator("regulariser", name, metadata)


def auxiliary_loss(name: str, **metadata: object) -> Callable[[F], F]:
    """Register an auxiliary loss: a function that makes rows of tokens to predict from the episodes of a step.

    Every optimizer step of RL adds ``coef`` of its options (1 without that key) times the mean cross-entropy of the
    rows' weighted tokens. The function takes ``episodes`` (the valid ones of this process, also of groups without
    credit), ``renderer`` (the chat renderer that made their token ids) and the keys of its options. It returns rows:
    :func:`agentgym.trainers.data.weighted_row.WeightedRow`. For ``metadata`` see :class:`LossComponent`.
    """
    return _decorator("auxiliary loss", name, metadata)


def _decorator(family: Family, name: str, metadata: dict[str, object]) -> Callable[[F], F]:
    known = dict(metadata)
    named = known.pop("options", None)

    def register(function: F) -> F:
        options = checked_options(family, name, function, named)
        _check_vocabulary(family, name, function, known)
        add(family, name, function, options=options, **known)
        return function

    return register


def _check_vocabulary(family: Family, name: str, function: Callable[..., Any], metadata: Mapping[str, Any]) -> None:
    """Refuse a component that wants the whole vocabulary where it is not known."""
    reads_all = "log_distribution" in signature(function).parameters
    if reads_all != (metadata.get("phase") == "vocabulary"):
        raise ConfigError(
            f"{family} {name!r}: log_distribution and phase='vocabulary' go together, since the whole vocabulary "
            "is known for a few tokens at a time"
        )
    if reads_all and family != "regulariser":
        raise ConfigError(f"{family} {name!r} reads log_distribution, which regularisers alone can: give it a measure")
    if metadata.get("measure") and (reads_all or family not in ("loss", "regulariser")):
        raise ConfigError(f"{family} {name!r}: a measure is for policy losses, and for regularisers of other phases")


def add(
    family: Family,
    name: str,
    function: Callable[..., Any] | str,
    *,
    options: type[Options] | None = None,
    **metadata: Any,
) -> None:
    """Register a component, given as a function or as the dotted name of one."""
    status: Status = metadata.pop("status", "verified" if metadata.get("parity") else "user")
    component = LossComponent(name=name, family=family, function=function, options=options, status=status, **metadata)
    FAMILIES[family].add(component)


def loss_table() -> tuple[LossComponent, ...]:
    """Return every component of the loss, after those of :func:`agentgym.credit.component.credit_table`.

    Example:
        >>> [component.name for component in loss_table() if component.status == "experimental"]
        ['minpro', 'refuel', 'kl_convex', 'self_distill']
    """
    return tuple(component for family in FAMILIES.values() for component in family.values())
