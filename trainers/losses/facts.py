"""Numbers about a whole update that must be known before its first gradient.

They are computed once, from log-probabilities without gradient. Gradients then do not depend on how the update is split
into micro-batches, and ranks that share an update have one place to reduce the numbers. Components that need such
numbers compute them in their ``prepare`` (:mod:`agentgym.trainers.losses.component`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.columns import COLUMNS
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.losses.batch_columns import called_column
from agentgym.trainers.losses.component import CORRECTIONS, LossComponent
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.correction import log_rho, weight_of
from agentgym.trainers.losses.policy import log_ratio_per_token
from agentgym.trainers.losses.trial import prepared

if TYPE_CHECKING:
    from agentgym.trainers.losses.token_masks import TokenChoice

Prepared = Mapping[tuple[str, str], Mapping[str, Any]]
"""For each component by family and name, the values that its ``prepare`` returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatistics:
    """Numbers about one update, over its ``M`` trained tokens. The defaults have no effect."""

    num_tokens: int = 1
    """Number of trained tokens of the update, the divisor of regularisers that average over tokens."""
    share: Tensor | None = None
    """``[M]`` weight of each token in the loss, if corrections remove tokens from its denominators."""
    lr_scale: float = 1.0
    """Product of the factors of the learning rate that components return."""
    last_turn: int = 0
    """Highest turn index of the update."""
    prepared: Prepared = field(default_factory=dict)
    """Values of the components' ``prepare``; tensors ``[M]`` in the order of the micro-batches."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """The memory of all components after this update, by family and name."""

    def share_of(self, batch: Batch) -> Tensor:
        """Return the weights of a micro-batch's tokens in the update's loss, ``[N]``."""
        return batch["loss_weight"] if self.share is None else self.share[batch.first : batch.first + batch.num_tokens]

    def of(self, component: LossComponent, batch: Batch) -> dict[str, Any]:
        """Return what a component prepared, with the part of a micro-batch in place of the update's tensors."""
        here = slice(batch.first, batch.first + batch.num_tokens)
        return {
            name: value.values[here] if isinstance(value, PerToken) else value
            for name, value in self.prepared.get((component.family, component.name), {}).items()
        }


@dataclass(frozen=True, slots=True)
class PerToken:
    """A value of a ``prepare`` with a number for each token, ``[M]`` in the order of the micro-batches."""

    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLogprobs:
    """Scores of a micro-batch's tokens, ``[N]`` each: with gradient in its loss, without before an update."""

    logprob: Tensor
    """Log-probability under the trained policy."""
    logprob_old: Tensor
    """Log-probability under the old policy of the ratio."""
    entropy: Tensor
    """Entropy in nats; with gradient if a regulariser needs it."""
    logprob_ref: Tensor | None = None
    """Log-probability under the policy before RL or a teacher, if a component reads it."""
    choice: TokenChoice | None = None
    """The token masks of the micro-batch, if any."""
    terms: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)
    """What the components' functions of the whole vocabulary returned, by family and name."""

    def to(self, device: torch.device | str) -> BatchLogprobs:
        """Return scores without gradient on a device."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in self.columns.items() if v is not None}
        return replace(self, terms={key: term.to(device) for key, term in self.terms.items()}, **moved)

    def measured_by(self, component: LossComponent) -> dict[str, Tensor]:
        """Return the value ``measured`` of a component that has a measure."""
        return {"measured": self.terms[component.family, component.name]} if component.measure else {}

    @property
    def columns(self) -> dict[str, Tensor | None]:
        """The scores by name."""
        names = ("logprob", "logprob_old", "entropy", "logprob_ref")
        return {name: getattr(self, name) for name in names}


class UpdateTokens(Mapping[str, Any]):
    """The columns of an update's tokens by name, ``[M]`` each, computed when they are asked for.

    Tokens are in the order of the update's rows, so that no result depends on the split into micro-batches.

    Args:
        batches: the micro-batches of the update.
        frozen: scores of each micro-batch.
    """

    def __init__(self, batches: Sequence[Batch], frozen: Sequence[BatchLogprobs]) -> None:
        self._batches, self._frozen = batches, frozen
        self._sizes = [batch.num_tokens for batch in batches]
        rows = [torch.tensor(batch.rows)[batch.row.cpu()] for batch in batches]
        self._row = torch.cat(rows)
        self._order = self._row.argsort(stable=True)  # stable: the tokens of a row are adjacent and in order
        self._back = self._order.argsort()
        self._made: dict[str, Any] = {}

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate values of each micro-batch's tokens in the update's order."""
        return torch.cat(list(parts))[self._order]

    def unordered(self, values: Tensor) -> Tensor:
        """Return values in the order of the micro-batches."""
        return values[self._back]

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """Undo :meth:`join`."""
        return torch.split(self.unordered(values), self._sizes)

    def add(self, name: str, value: Any) -> None:
        """Add a further value."""
        self._made[name] = value

    def add_measured(self, component: LossComponent) -> None:
        """Add the value ``measured`` of a component."""
        self.add("measured", self.join([tokens.measured_by(component)["measured"] for tokens in self._frozen]))

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._computed(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return sum(self._sizes)

    def __contains__(self, name: object) -> bool:
        return True  # whatever is asked for was resolved with the configuration

    def _computed(self, name: str) -> Any:
        device = self._batches[0].row.device
        match name:
            case "logprob" | "logprob_old" | "entropy" | "logprob_ref":
                return self.join([getattr(tokens, name) for tokens in self._frozen])
            case "row":
                return torch.unique_consecutive(self._row[self._order], return_inverse=True)[1].to(device)
            case "turn":
                return _counted(self["row"], self.join([batch["turn"] for batch in self._batches]))
            case "log_rho_M":
                return log_rho(self["logprob_old"], self["logprob_rollout"])
            case "ratio":
                return log_ratio_per_token(self["logprob"], self["logprob_old"]).exp()
        made = COLUMNS._all().get(name)
        if made is not None and made.phase == "update":
            return called_column(made, self)
        return self.join([batch[name] for batch in self._batches])


def _counted(row: Tensor, turn: Tensor) -> Tensor:
    """Number the turns of an update from 0; tokens of a turn are adjacent, and none goes on in another row."""
    if not len(row):
        return row
    is_new = torch.ones_like(row, dtype=torch.bool)
    is_new[1:] = (row[1:] != row[:-1]) | (turn[1:] != turn[:-1])
    return is_new.cumsum(0) - 1


def update_facts(
    batches: Sequence[Batch],
    frozen: Sequence[BatchLogprobs],
    config: LossConfig,
    memory: Mapping[str, Any] | None = None,
) -> UpdateStatistics:
    """Compute the facts about an update.

    Args:
        batches: the micro-batches of the update.
        frozen: scores of each micro-batch; empty if no component needs the whole update.
        config: the loss's configuration.
        memory: the memory of the components, by family and name.

    Raises:
        ConfigError: a component's ``prepare`` raised an error, or returned something else than its values.
    """
    facts = UpdateStatistics(
        num_tokens=max(1, sum(batch.num_tokens for batch in batches)),
        last_turn=max((int(batch["turn_index"].max()) for batch in batches if batch.num_tokens), default=0),
        memory=dict(memory or {}),
    )
    if not frozen or not sum(batch.num_tokens for batch in batches):
        return facts
    tokens = UpdateTokens(batches, frozen)
    weighing = next((part for part in config.corrections if CORRECTIONS[part.kind].weighs), None)
    corrections = [(CORRECTIONS[part.kind], part) for part in config.corrections]
    for component, options in sorted(corrections, key=lambda part: not part[0].weighs):
        facts = _prepared(component, options, tokens, facts)
        if options is weighing:
            _add_weighing(tokens, batches, frozen, options, facts)
    if config.shrinks_denominators:
        facts = replace(facts, share=_shares(batches, frozen, config, facts))
    for component, options in config.parts():
        if component.family in ("loss", "regulariser"):
            facts = _prepared(component, options, tokens, facts)
    return facts


def _prepared(
    component: LossComponent, options: Any, tokens: UpdateTokens, facts: UpdateStatistics
) -> UpdateStatistics:
    """Return the facts with those of a component's ``prepare``, if it has one."""
    if not component.prepare:
        return facts
    if component.measure:
        tokens.add_measured(component)
    # a component of another family may have the same name; runs of before kept memories by name alone
    name = f"{component.family} {component.name}"
    kept_memory = facts.memory.get(name, facts.memory.get(component.name, {}))
    values, memory = prepared(component, options, tokens, kept_memory)
    kept = {name: _kept(value, tokens) for name, value in values.items()}
    return replace(
        facts,
        prepared={**facts.prepared, (component.family, component.name): kept},
        lr_scale=facts.lr_scale * float(values.get("lr_scale", 1.0)),
        memory={**facts.memory, name: memory} if memory else facts.memory,
    )


def _kept(value: Any, tokens: UpdateTokens) -> Any:
    """Return a value of a ``prepare`` as the facts keep it: without gradient, in the order of the micro-batches."""
    if isinstance(value, Tensor) and value.shape == (len(tokens),):
        return PerToken(tokens.unordered(value.detach()))
    return value.detach() if isinstance(value, Tensor) else value


def _add_weighing(
    tokens: UpdateTokens,
    batches: Sequence[Batch],
    frozen: Sequence[BatchLogprobs],
    options: Any,
    facts: UpdateStatistics,
) -> None:
    """Add the weights of the correction that weighs, and the unit that it weighs: None for the token."""
    weights = [
        weight_of(
            log_rho(one.logprob_old, batch["logprob_rollout"]),
            batch,
            options,
            facts.of(CORRECTIONS[options.kind], batch),
        )
        for batch, one in zip(batches, frozen, strict=True)
    ]
    level = getattr(options, "level", "token")
    tokens.add("weighing_weight", tokens.join(weights))
    tokens.add("weighing_unit", None if level == "token" else tokens["turn" if level == "turn" else "row"])


def _shares(
    batches: Sequence[Batch], frozen: Sequence[BatchLogprobs], config: LossConfig, facts: UpdateStatistics
) -> Tensor:
    """Return the weights of :func:`token_weights` over the tokens that are not rejected, and 0 for the others."""
    pieces = []
    for batch, tokens in zip(batches, frozen, strict=True):
        rho = log_rho(tokens.logprob_old, batch["logprob_rollout"])
        is_kept = torch.ones_like(batch.row, dtype=torch.bool)
        for options in config.corrections:
            if getattr(options, "denominator", "all") == "kept":
                is_kept &= weight_of(rho, batch, options, facts.of(CORRECTIONS[options.kind], batch)) > 0
        pieces.append(is_kept)
    is_kept, unit = torch.cat(pieces), torch.cat([batch["unit"] for batch in batches])
    weights = token_weights(unit[is_kept].cpu().numpy(), config.mean, config.norm_length)
    shares = torch.zeros_like(torch.cat([batch["loss_weight"] for batch in batches]))
    shares[is_kept] = torch.tensor(weights, dtype=shares.dtype, device=shares.device)
    return shares
