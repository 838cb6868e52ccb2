"""The families of loss components, each with a registry and a decorator: policy losses, corrections and regularisers.

As in credit (:mod:`agentgym.credit.component`), a component is a function that receives the values its parameters name.
Tensors are flat over the ``N`` sampled tokens of a micro-batch::

    @policy_loss("half_clip", paper="...")
    def half_clip(ratio: Tensor, advantage: Tensor, high: float) -> tuple[Tensor, Tensor]:
        return -advantage * ratio.clamp(max=high), ratio > high

This module does not import torch: agentgym's own functions are listed by name, and imported when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

from agentgym.errors import ConfigError
from agentgym.plugins import Component, F, Options, Registry, Status, checked_options

Family = Literal["loss", "correction", "token mask", "regulariser"]
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
    needs_whole_update: bool = False
    """True if it must see all tokens of an update before its first gradient."""
    compares_siblings: bool = False
    """Policy losses: True if it compares turns that were sampled in the same state, so that episodes must branch."""
    needs_several_updates: bool = False
    """True if it compares with the policy before the step's first update, and therefore is 0 in that update."""
    sign: float = 1.0
    """Regularisers: sign of the term in the loss, -1 for a bonus."""
    is_scaled: bool = False
    """Regularisers: True if the function applies the coefficient itself; else the loss multiplies by ``coef``."""
    averages_over: Literal["loss", "tokens"] = "loss"
    """Regularisers: average like the policy loss (``loss.aggregation``), or over all trained tokens."""
    metric: str = ""
    """Regularisers: name of its mean among the metrics; by default the component's name."""


OF_TOKENS = ("logprob", "logprob_old", "logprob_rollout", "entropy", "advantage", "row", "turn", "demonstrated")
CATALOGUE = "agentgym.trainers.losses.catalogue"
POLICY_LOSSES = Registry[LossComponent](
    "policy loss", CATALOGUE, (*OF_TOKENS, "ratio", "low", "high", "dual", "ratio_bounds", "regression")
)
CORRECTIONS = Registry[LossComponent](
    "correction", CATALOGUE, ("log_rho_N", "unit", "row", "turn", "is_in_m2po", "mean_weight")
)
REGULARISERS = Registry[LossComponent](
    "regulariser", CATALOGUE, (*OF_TOKENS, "logprob_ref", "logprob_teacher", "turn_index", "historical", "phase")
)
TOKEN_MASKS = Registry[LossComponent]("token mask", CATALOGUE, (), is_open=False)
"""Only agentgym's own masks: a mask sees the whole update, see :mod:`agentgym.trainers.losses.token_masks`."""
_INNER: Mapping[Family, Mapping[str, str]] = {
    "correction": {"is_in_m2po": "m2po", "mean_weight": "batch_normalise"},
    "regulariser": {"logprob_teacher": "self_distill"},
}
"""Parameters that are filled for one of agentgym's own components alone, by family."""
FAMILIES: Mapping[Family, Registry[LossComponent]] = {
    "loss": POLICY_LOSSES,
    "correction": CORRECTIONS,
    "token mask": TOKEN_MASKS,
    "regulariser": REGULARISERS,
}


def policy_loss(name: str, **facts: object) -> Callable[[F], F]:
    """Register a policy loss: a function that returns the loss per token ``[N]``, and where its gate acted ``[N]``.

    The gate is the function that limits the importance ratio, such as a clip. A policy loss may take ``ratio`` (to the
    old policy, with gradient), ``logprob``, ``logprob_old``, ``logprob_rollout``, ``advantage``, ``entropy``, ``row``
    and ``turn`` (indices of each token's row and turn), ``demonstrated`` (True for the oracle's tokens), ``low``,
    ``high`` and ``dual`` (bounds of the ratio), ``ratio_bounds`` (BAPO's bounds for the update), ``regression``
    (REFUEL's; it must set ``compares_siblings``), and the keys of its options.

    Args:
        name: its name in ``loss.kind`` and in ``agentgym list --credit``.
        facts: fields of :class:`LossComponent`.
    """
    return _decorator("loss", name, facts)


def correction(name: str, **facts: object) -> Callable[[F], F]:
    """Register a correction of the mismatch with the sampling policy: a function that returns detached weights ``[N]``.

    It may take ``log_rho_N`` (log pi_old / mu, detached), ``row``, ``turn``, ``unit`` (the turn if its option ``level``
    is ``turn``, else the row), and the keys of its options. For ``facts`` see :class:`LossComponent`.
    """
    return _decorator("correction", name, facts)


def regulariser(name: str, **facts: object) -> Callable[[F], F]:
    """Register a regulariser: a function that returns a term per token ``[N]``.

    The loss adds the average of the term times ``coef`` of its options (1 without that key). A regulariser may take
    the same values per token as a policy loss, ``turn_index`` (position of the token's turn in its episode), and
    ``logprob_ref`` (of the policy before RL, which is then kept), ``historical`` (mean entropy of the token's turn over
    the steps so far, NaN before there are any) and ``phase`` (EPO's weight of the step, from the options
    ``phase_steps`` and ``from_turn`` if it has them). For ``facts`` see :class:`LossComponent`.
    """
    return _decorator("regulariser", name, facts)


def _decorator(family: Family, name: str, facts: dict[str, object]) -> Callable[[F], F]:
    known = dict(facts)
    named = known.pop("options", None)

    def register(function: F) -> F:
        options = checked_options(family, name, function, named)
        _check_inner(family, name, function)
        if "regression" in signature(function).parameters and not known.get("compares_siblings"):
            raise ConfigError(
                f"loss {name!r} takes regression, which compares turns sampled in one state: declare it with "
                "compares_siblings=True"
            )
        add(family, name, function, options=options, **known)
        return function

    return register


def _check_inner(family: Family, name: str, function: Callable[..., object]) -> None:
    """Refuse parameters that are filled for another component alone."""
    inner = _INNER.get(family, {})
    if taken := [parameter for parameter in signature(function).parameters if parameter in inner]:
        whose = ", ".join(f"{parameter} (for {inner[parameter]})" for parameter in taken)
        raise ConfigError(f"{family} {name!r} takes {whose}, which nothing fills for another {family}")


def add(
    family: Family,
    name: str,
    function: Callable[..., Any] | str,
    *,
    options: type[Options] | None = None,
    **facts: Any,
) -> None:
    """Register a component, given as a function or as the dotted name of one."""
    status: Status = facts.pop("status", "verified" if facts.get("parity") else "user")
    component = LossComponent(name=name, family=family, function=function, options=options, status=status, **facts)
    FAMILIES[family].add(component)


def loss_table() -> tuple[LossComponent, ...]:
    """Return every component of the loss, after those of :func:`agentgym.credit.component.credit_table`.

    Example:
        >>> [component.name for component in loss_table() if component.status == "experimental"]
        ['minpro', 'refuel', 'kl_convex', 'self_distill']
    """
    return tuple(component for family in FAMILIES.values() for component in family.values())
