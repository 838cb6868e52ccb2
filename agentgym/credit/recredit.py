"""Credit of recorded episodes computed anew, by several estimators, and how their advantages differ.

The estimators see what the trainer's saw: the groups of a step, and the memory of the steps before. What was recorded
is the column that all are compared with.
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
"""Name of the credit that a run was trained with, among those of estimators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """The groups of one training step, and the credit they were trained with."""

    step: int
    """Counted from 0."""
    groups: tuple[TrajectoryGroup, ...]
    credit: tuple[GroupCredit, ...] = ()
    """One :data:`GroupCredit` per group, ``()`` for a group that has none; empty if nothing is recorded."""
    dropped: tuple[str | None, ...] = ()
    """Per group, why it was not trained."""
    columns: Mapping[str, object] = field(default_factory=dict)
    """What credit read beside the episodes, as :func:`compose.credit_groups` takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCredit:
    """A step's credit by name, :data:`RECORDED` first, then each estimator's."""

    batch: RecordedBatch
    credit: Mapping[str, CreditColumns]
    """Over the turns of the valid trajectories; NaN where the record has no credit."""
    results: Mapping[str, CreditResult]
    """All that the pipeline said, by estimator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditSummary:
    """The credit that one estimator gives all recorded turns; shares are between 0 and 1.

    ``None`` stands for what is not defined: a correlation with a constant, anchors of an estimator without states.
    """

    name: str
    num_turns: int
    credited_share: float
    """Turns with ``|A| > 1e-8``."""
    zero_advantage_share: float
    left_out_share: float
    """Turns of loss weight 0."""
    flat_group_share: float
    """Groups whose returns, before shaping, are equal; the same for all estimators."""
    uncredited_group_share: float
    """Groups in which no turn is credited."""
    phantom_share: float
    """Turns that are credited in a group where no member succeeded or had an outcome above 0."""
    anchor_share: float | None
    """Turns whose state another turn of the group shared."""
    anchor_size: float | None
    """Mean size of these turns' anchor groups."""
    advantage_std: float
    """Standard deviation of the advantages over all turns (``ddof=0``)."""
    correlation: float | None
    """Pearson's, with the recorded advantages."""
    sign_agreement: float | None
    """Of the turns that are credited here or in the record, the share with the same sign in both."""
    largest_gap: float | None
    """Largest difference to a recorded advantage."""


def missing_columns(config: CreditConfig, held: Collection[str] = ()) -> tuple[str, ...]:
    """Columns that the configuration reads and that records of episodes do not hold.

    Args:
        held: columns that the run recorded beside its episodes.

    Example:
        >>> missing_columns(CreditConfig(estimator="turn_gae"))
        ('value',)
    """
    return tuple(name for name in config.columns() if name not in (*FROM_GROUPS, *held))


def has_memory(config: CreditConfig) -> bool:
    """Return True if a step's credit depends on the steps before it, beyond their number.

    Example:
        >>> [has_memory(CreditConfig(estimator=name)) for name in ("spo", "gigpo")]
        [True, False]
    """
    return any(component.reads("memory") for component, _ in config.components())


def recredit(
    batches: Iterable[RecordedBatch], configs: Mapping[str, CreditConfig], *, first_step: int = 0
) -> Iterator[BatchCredit]:
    """Credit every step by every configuration, memory carried from step to step as the trainer does.

    Args:
        batches: in order of step. What has a memory (:func:`has_memory`) needs all steps from the run's first on.
        first_step: steps before it are credited for the sake of memories alone, and not given.

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
    """Sums up :class:`BatchCredit` after :class:`BatchCredit`; keeps a few numbers per turn, no episodes.

    Example:
        >>> tally = CreditTally()
        >>> for credit in recredit([RecordedBatch(step=0, groups=())], {"grpo": CreditConfig(estimator="grpo")}):
        ...     tally.add(credit)
        >>> [(summary.name, summary.num_turns) for summary in tally.summaries()]
        [('recorded', 0), ('grpo', 0)]
    """

    num_groups: int = 0
    num_turns: int = 0
    """Turns of episodes that are evidence."""
    _flat: list[bool] = field(default_factory=list)
    _columns: dict[str, list[tuple[np.ndarray, ...]]] = field(default_factory=dict)

    def add(self, credit: BatchCredit) -> None:
        """Count one step in."""
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
        """One per name, in the order of :class:`BatchCredit`."""
        joined = {
            name: [np.concatenate(column) for column in zip(*parts, strict=True)]
            for name, parts in self._columns.items()
        }
        flat = _mean(np.array(self._flat))
        return tuple(_summary(name, columns, joined[RECORDED][0], flat) for name, columns in joined.items())


def is_won(group: TrajectoryGroup) -> bool:
    """Return True if some member succeeded, or had an outcome above 0."""
    return any(t.success or outcome_of(t) > 0 for t in group.valid)


def _spread(returns: list[float]) -> float:
    return float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0


def _summary(name: str, columns: Sequence[np.ndarray], recorded: Floats, flat: float) -> CreditSummary:
    """Sum up what :class:`CreditTally` keeps of one estimator; turns without credit are NaN in ``[N]`` columns."""
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
