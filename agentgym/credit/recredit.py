"""Recompute the credit of recorded episodes with several estimators, and compare their advantages.

The estimators receive the same input as in training: the groups of a step, and the memory of the steps before. All are
compared with the recorded credit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agentgym.credit.columns import FROM_GROUPS, outcome_of
from agentgym.credit.compose import ZERO, CreditConfig, CreditResult, GroupCredit, credit_groups
from agentgym.credit.credited import CreditColumns, credit_columns
from agentgym.credit.state import CreditState
from agentgym.credit.statistics import FLAT
from agentgym.credit.table import Floats
from agentgym.errors import ConfigError
from agentgym.types import TrajectoryGroup

RECORDED = "recorded"
"""Name of the recorded credit, with which the run was trained, among the names of estimators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """The groups of one training step, and the credit they were trained with."""

    step: int
    """Counted from 0."""
    groups: tuple[TrajectoryGroup, ...]
    credit: tuple[GroupCredit, ...] = ()
    """One :data:`GroupCredit` per group, ``()`` for a group that has none; empty if nothing is recorded."""
    dropped: tuple[str | None, ...] = ()
    """For each group the reason why it was not trained, or None."""
    columns: Mapping[str, object] = field(default_factory=dict)
    """Further columns that the credit was computed from, as :func:`compose.credit_groups` takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCredit:
    """A step's credit by name, :data:`RECORDED` first, then each estimator's."""

    batch: RecordedBatch
    credit: Mapping[str, CreditColumns]
    """By name; rows are the turns of valid trajectories, NaN where the record has no credit."""
    results: Mapping[str, CreditResult]
    """The full results of the pipeline, by estimator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditSummary:
    """Statistics of the credit that one estimator gives to all recorded turns; shares are between 0 and 1.

    ``None`` means not defined: the correlation with a constant, or anchors of an estimator that compares no states.
    """

    name: str
    num_turns: int
    credited_share: float
    """Share of turns with ``|A| > 1e-8``."""
    zero_advantage_share: float
    left_out_share: float
    """Share of turns whose loss weight is 0."""
    flat_group_share: float
    """Share of groups whose returns before shaping are equal; the same for all estimators."""
    uncredited_group_share: float
    """Share of groups in which no turn has an advantage above 1e-8 in size."""
    phantom_share: float
    """Share of turns with such an advantage in a group where no member succeeded or had an outcome above 0."""
    anchor_share: float | None
    """Share of turns whose state occurs in another turn of the group."""
    anchor_size: float | None
    """Mean size of the anchor groups of these turns."""
    advantage_std: float
    """Standard deviation of the advantages over all turns (``ddof=0``)."""
    correlation: float | None
    """Pearson correlation with the recorded advantages."""
    sign_agreement: float | None
    """Share of turns with the same sign in both, among the turns that are credited here or in the record."""
    largest_gap: float | None
    """Largest absolute difference from a recorded advantage."""


def missing_columns(config: CreditConfig, held: Collection[str] = ()) -> tuple[str, ...]:
    """Return the columns that the configuration reads and that recorded episodes do not contain.

    Args:
        held: names of the columns that the run recorded in addition to its episodes.

    Example:
        >>> missing_columns(CreditConfig(estimator="turn_gae"))
        ('value',)
    """
    return tuple(name for name in config.columns() if name not in (*FROM_GROUPS, *held))


def has_memory(config: CreditConfig) -> bool:
    """Return True if a step's credit depends on the content of earlier steps, not only on their number.

    Example:
        >>> [has_memory(CreditConfig(estimator=name)) for name in ("spo", "gigpo")]
        [True, False]
    """
    return any(component.reads("memory") for component, _ in config.components())


def recredit(
    batches: Iterable[RecordedBatch], configs: Mapping[str, CreditConfig], *, first_step: int = 0
) -> Iterator[BatchCredit]:
    """Credit every step with every configuration, carrying memory from step to step as the trainer does.

    Args:
        batches: the steps in order. Configurations with a memory (:func:`has_memory`) need all steps of the run.
        configs: a configuration for each name in the result.
        first_step: the first step to yield. Earlier steps are credited only to fill the memories.

    Raises:
        ConfigError: a configuration needs a column that records do not hold, or cannot credit a batch.

    Example:
        >>> batches = [RecordedBatch(step=step, groups=()) for step in range(3)]
        >>> [credit.batch.step for credit in recredit(batches, {"gigpo": CreditConfig()}, first_step=1)]
        [1, 2]
    """
    states = dict.fromkeys(configs, CreditState())
    for batch in batches:
        results: dict[str, CreditResult] = {}
        recorded = credit_columns(batch.groups, batch.credit or ((),) * len(batch.groups))
        credit: dict[str, CreditColumns] = {RECORDED: recorded}
        is_asked = batch.step >= first_step
        for name, config in configs.items():
            if not is_asked and not has_memory(config):
                continue
            credit[name] = results[name] = _credited(name, batch, config, replace(states[name], step=batch.step))
            states[name] = results[name].state
        if is_asked:
            yield BatchCredit(batch=batch, credit=credit, results=results)


def _credited(name: str, batch: RecordedBatch, config: CreditConfig, state: CreditState) -> CreditResult:
    size = max((len(group.trajectories) for group in batch.groups), default=2)
    try:
        config.check_group_size(size)
        return credit_groups(batch.groups, config, columns=batch.columns, state=state)
    except ConfigError as error:
        raise ConfigError(f"{name}, step {batch.step + 1}: {error}") from error


@dataclass(slots=True)
class CreditTally:
    """A running summary over many :class:`BatchCredit`. It keeps a few numbers per turn, and no episodes.

    Example:
        >>> tally = CreditTally()
        >>> for credit in recredit([RecordedBatch(step=0, groups=())], {"grpo": CreditConfig(estimator="grpo")}):
        ...     tally.add(credit)
        >>> [(summary.name, summary.num_turns) for summary in tally.summaries()]
        [('recorded', 0), ('grpo', 0)]
    """

    num_groups: int = 0
    num_turns: int = 0
    """Number of turns of valid episodes."""
    _flat: list[bool] = field(default_factory=list)
    _columns: dict[str, list[tuple[np.ndarray, ...]]] = field(default_factory=dict)

    def add(self, credit: BatchCredit) -> None:
        """Add the credit of one step."""
        groups = [group for group in credit.batch.groups if any(t.turns for t in group.valid)]
        self.num_groups += len(credit.batch.groups)
        self.num_turns += sum(len(t.turns) for group in groups for t in group.valid)
        self._flat += [_spread([t.reward or 0.0 for t in group.valid if t.turns]) < FLAT for group in groups]
        lost = np.array([not is_won(group) for group in groups for t in group.valid for _ in t.turns], dtype=np.bool_)
        group = np.array([index for index, group in enumerate(groups) for t in group.valid for _ in t.turns], np.int64)
        for name, given in credit.credit.items():
            by_group = np.bincount(group, weights=np.abs(given.advantage) > ZERO, minlength=len(groups)) > 0
            columns = (given.advantage, given.loss_weight, given.anchor_size, lost, by_group)
            self._columns.setdefault(name, []).append(columns)

    def summaries(self) -> tuple[CreditSummary, ...]:
        """Return one summary per name, in the order of :class:`BatchCredit`."""
        joined = {
            name: [np.concatenate(column) for column in zip(*parts, strict=True)]
            for name, parts in self._columns.items()
        }
        flat = _mean(np.array(self._flat))
        return tuple(_summary(name, columns, joined[RECORDED][0], flat) for name, columns in joined.items())


def is_won(group: TrajectoryGroup) -> bool:
    """Return True if a member of the group succeeded, or had an outcome above 0."""
    return any(t.success or outcome_of(t) > 0 for t in group.valid)


def _spread(returns: list[float]) -> float:
    return float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0


def _summary(name: str, columns: Sequence[np.ndarray], recorded: Floats, flat: float) -> CreditSummary:
    """Summarise the columns ``[N]`` that :class:`CreditTally` keeps of one estimator; NaN means no credit."""
    advantage, weight, anchor_size, is_lost, is_group_credited = columns
    known, both = np.isfinite(advantage), np.isfinite(advantage) & np.isfinite(recorded)
    credited = np.abs(advantage[known]) > ZERO
    sizes = anchor_size[known]
    shared = sizes[sizes >= 2]
    correlation, agreement = _agreement(advantage[both], recorded[both])
    gaps = np.abs(advantage[both] - recorded[both])
    return CreditSummary(
        name=name,
        num_turns=int(known.sum()),
        credited_share=_mean(credited),
        zero_advantage_share=_mean(~credited),
        left_out_share=_mean(weight[known] == 0),
        flat_group_share=flat,
        uncredited_group_share=_mean(~is_group_credited),
        phantom_share=_mean(credited & is_lost[known]),
        anchor_share=_mean(sizes >= 2) if (sizes > 0).any() else None,
        anchor_size=float(shared.mean()) if len(shared) else None,
        advantage_std=float(advantage[known].std()) if known.any() else 0.0,
        correlation=correlation,
        sign_agreement=agreement,
        largest_gap=float(gaps.max()) if len(gaps) else None,
    )


def _agreement(one: Floats, other: Floats) -> tuple[float | None, float | None]:
    signs = [np.where(np.abs(values) > ZERO, np.sign(values), 0.0) for values in (one, other)]
    either = (signs[0] != 0) | (signs[1] != 0)
    agreement = float((signs[0] == signs[1])[either].mean()) if either.any() else None
    if len(one) < 2 or min(one.std(), other.std()) < ZERO:
        return None, agreement
    return float(np.corrcoef(one, other)[0, 1]), agreement


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
