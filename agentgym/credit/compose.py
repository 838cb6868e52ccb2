"""The credit pipeline: compute the credit of every turn from groups of episodes and a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from agentgym.credit import rules
from agentgym.credit.anchors import shared_share, start_states_agree
from agentgym.credit.columns import FROM_GROUPS, turn_table
from agentgym.credit.component import ESTIMATORS, MODULATORS, SELECTIONS, SHAPERS, CreditComponent
from agentgym.credit.config import STATE_COMPARING, CreditConfig
from agentgym.credit.credited import CreditColumns, GroupCredit, turn_credits
from agentgym.credit.inputs import read_only
from agentgym.credit.parts import outcome_reward
from agentgym.credit.results import checked_advantages, checked_modulation, checked_selection, checked_shaping
from agentgym.credit.state import CreditState
from agentgym.credit.statistics import FLAT, dense, group_statistics, per_trajectory, require_finite, trajectories
from agentgym.credit.table import Bools, Floats, TurnAdvantages, TurnTable
from agentgym.errors import ConfigError, check_type
from agentgym.types import TrajectoryGroup

__all__ = ["CreditConfig", "CreditResult", "GroupCredit", "assign_credit", "credit_groups", "credit_turns"]

ZERO = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditResult(CreditColumns):
    """The credit of a batch and the pipeline's report about it.

    Rows are those of the table; after :meth:`TurnTable.from_rows` they are in the order of the rows given to it.
    """

    table: TurnTable
    """The turns with their shaped rewards, sorted by trajectory and turn."""
    token_return: Floats | None
    """``[M]`` targets of a token-level critic; None for other estimators."""
    state: CreditState
    """The memory to pass to :func:`credit_turns` with the next batch."""
    diagnostics: Mapping[str, float]
    """Metrics of the batch by name; ``changed/NAME`` is the share of turns (or tokens) that a component changed."""
    statistics: Mapping[str, str]
    """For each selection, the members that group statistics are taken over: ``full`` or ``kept`` (rule 9)."""
    warnings: tuple[str, ...]
    """Warnings that depend on the data: a wrong state key (composition rule 7), selections that drop every group."""


def credit_turns(table: TurnTable, config: CreditConfig, state: CreditState | None = None) -> CreditResult:
    """Run the credit pipeline over a table.

    Args:
        table: the turns of a batch, with the optional columns that ``config.columns()`` names.
        config: the components to run.
        state: the memory after the previous batch; None starts with an empty one.

    Raises:
        ConfigError: a component needs a column that the table lacks, or a reward is not finite.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0]], states=[["a", "b"], ["a"]], group_of_trajectory=[0, 0])
        >>> result = credit_turns(table, CreditConfig(estimator="grpo"))
        >>> np.round(result.advantage, 4).tolist(), result.state.step
        ([0.7071, 0.7071, -0.7071], 1)
    """
    check_type("table", table, TurnTable, "as TurnTable.from_lists returns it")
    check_type("config", config, CreditConfig, "as in CreditConfig(estimator='gigpo')")
    check_type("state", CreditState() if state is None else state, CreditState, "as in state=result.state")
    require_finite(table, "reward", "part_values", by="credit")
    if table.source_row is None:
        return _credit(table, config, CreditState() if state is None else state)
    # Components may add columns to the sorted rows, so they do not see the order in which the rows were given.
    result = _credit(replace(table, source_row=None), config, CreditState() if state is None else state)
    names = {field.name for field in fields(CreditColumns)} | {"token_return"}
    given = {name: table.in_given_order(getattr(result, name)) for name in names}
    return replace(result, **given, table=replace(result.table, source_row=table.source_row))


def _credit(table: TurnTable, config: CreditConfig, state: CreditState) -> CreditResult:
    """Run the pipeline over the rows in the table's order."""
    table = table.read_only() if has_own(config) else table
    diagnostics: dict[str, float] = {}
    kept, mask, statistics = _select_before(table, config, state, diagnostics)
    shaped, gate_open, state = _shape(table, config, state, diagnostics)
    batch = shaped if kept.all() else shaped.take(kept)
    entry = ESTIMATORS[config.estimator]
    values = {"table": batch, "step": state.step, **asdict(config.shared)}
    credited, memory = entry.run(values, config.estimator_options, state.memory)
    credited = checked_advantages(entry, credited, batch)
    state = replace(state, memory=memory)
    credited, token_keep = _modulate(batch, config, credited, diagnostics)
    credited, chosen = _select_after(batch, config, credited, state, diagnostics)
    token_keep = _both(token_keep, chosen)
    advantage = _put(credited.advantage, kept)
    weight = _put(np.ones(len(batch)) if credited.loss_weight is None else credited.loss_weight, kept) * mask
    diagnostics |= _shares(table, advantage, weight)
    tokens = None if table.num_tokens is None or kept.all() else np.repeat(kept, table.num_tokens)
    sizes = np.zeros(len(batch), dtype=np.int64) if credited.anchor_size is None else credited.anchor_size
    groups = np.full(len(batch), -1, dtype=np.int64) if credited.anchor_group is None else credited.anchor_group
    return CreditResult(
        table=shaped,
        shaped_reward=shaped.reward,
        num_tokens=shaped.num_tokens,
        advantage=advantage,
        return_to_go=_put(credited.return_to_go, kept),
        loss_weight=weight,
        gate_open=gate_open,
        anchor_group=_put(groups, kept, fill=-1),
        anchor_size=_put(sizes, kept),
        token_advantage=_put_tokens(credited.token_advantage, tokens),
        token_return=_put_tokens(credited.token_return, tokens),
        token_keep=_put_tokens(token_keep, tokens),
        state=replace(state, step=state.step + 1),
        diagnostics=diagnostics,
        statistics=statistics,
        warnings=(*_dropped(table, config, kept & mask, diagnostics), *_data_warnings(batch, config, diagnostics)),
    )


def _shares(table: TurnTable, advantage: Floats, weight: Floats) -> dict[str, float]:
    """Compute diagnostics about how the credit is distributed, as shares between 0 and 1.

    * ``zero_advantage_share``: turns whose advantage is 0.
    * ``left_out_share``: turns with a loss weight of 0.
    * ``flat_group_share``: groups whose returns are equal, so that a comparison within the group gives no signal.
    * ``phantom_share``: turns with an advantage in groups where no member had an outcome above 0. Their advantage
      comes from shaping alone.
    """
    if not len(table):
        return {}
    view = trajectories(table)
    returns = group_statistics(per_trajectory(table, table.reward, view), view.group)
    group = dense(view.group)
    has_won = per_trajectory(table, outcome_reward(table), view) > 0
    num_won = np.bincount(group, weights=has_won)[group][view.of_row]
    has_advantage = np.abs(advantage) >= ZERO
    first_of_group = np.unique(group, return_index=True)[1]
    return {
        "zero_advantage_share": float(1.0 - has_advantage.mean()),
        "left_out_share": float((weight == 0).mean()),
        "flat_group_share": float((returns.std < FLAT)[first_of_group].mean()),
        "phantom_share": float((has_advantage & (num_won == 0)).mean()),
    }


def assign_credit(
    groups: Sequence[TrajectoryGroup], config: CreditConfig, *, columns: Mapping[str, object] | None = None
) -> tuple[GroupCredit, ...]:
    """Credit every turn of every valid trajectory.

    Args:
        groups: recorded episodes; failed rollouts get no credit and do not affect the others.
        config: the components to run.
        columns: optional columns that episodes do not record, over the turns of valid trajectories in order, as
            :meth:`TurnTable.with_columns` takes them.

    Returns:
        one :data:`GroupCredit` per group, in order.
    """
    return turn_credits(groups, credit_groups(groups, config, columns=columns))


def credit_groups(
    groups: Sequence[TrajectoryGroup],
    config: CreditConfig,
    *,
    columns: Mapping[str, object] | None = None,
    state: CreditState | None = None,
) -> CreditResult:
    """Credit groups as :func:`assign_credit` does, but with ``state``, and return columns instead of objects.

    Rows are the turns of valid trajectories in order.
    """
    check_type("config", config, CreditConfig, "as in CreditConfig(estimator='gigpo')")
    if isinstance(groups, TrajectoryGroup):
        raise ConfigError("groups is one TrajectoryGroup, expected a list, as in [group]")
    for number, group in enumerate(groups):
        check_type(f"groups[{number}]", group, TrajectoryGroup, "as collect_rollouts returns them")
    supplied = {} if columns is None else dict(columns)
    # Reward parts are always read: diagnostics take success from the outcome parts, because shaping changes the reward.
    optional = (name for part, _ in config.components() for name in part.optional_columns)
    names = dict.fromkeys(("part_values", *config.columns(), *optional))
    recorded = [name for name in names if name in FROM_GROUPS and name not in supplied]
    return credit_turns(turn_table(groups, recorded).with_columns(**supplied), config, state)


def has_own(config: CreditConfig) -> bool:
    """Return True if a user's component is among those of the configuration."""
    return any(component.is_own for component, _ in config.components())


def _select_before(
    table: TurnTable, config: CreditConfig, state: CreditState, diagnostics: dict[str, float]
) -> tuple[Bools, Bools, Mapping[str, str]]:
    """Run the selections over raw rewards.

    Returns:
        the rows that statistics are taken over ``[N]``, the rows that train ``[N]``, and for each selection ``full``
        or ``kept``, as in :attr:`CreditResult.statistics`.
    """
    kept, mask = np.ones(len(table), dtype=np.bool_), np.ones(len(table), dtype=np.bool_)
    statistics: dict[str, str] = {}
    for options in config.selections:
        component = SELECTIONS[options.kind]
        statistics[options.kind] = getattr(options, "statistics", "full")
        if component.is_after:
            continue
        rows, _ = _selected(component, options, table, table.reward, state.step)
        diagnostics[f"changed/{component.name}"] = _share(~rows)
        # Dynamic sampling drops whole groups. That changes no other group's statistics and saves computing them.
        if statistics[options.kind] == "kept" or options.kind == "dynamic_sampling":
            kept &= rows
        mask &= rows
    return kept, mask, statistics


def _shape(
    table: TurnTable, config: CreditConfig, state: CreditState, diagnostics: dict[str, float]
) -> tuple[TurnTable, Bools, CreditState]:
    gate_open = np.ones(len(table), dtype=np.bool_)
    merged = not ESTIMATORS[config.estimator].keeps_parts
    for options in config.effective_shapers:
        values = {"table": table, "step": state.step, "merged": merged}
        component = SHAPERS[options.kind]
        result, memory = component.run(values, options, state.memory)
        shaped = checked_shaping(component, result, table)
        state = replace(state, memory=memory)
        diagnostics[f"changed/{component.name}"] = _share(_shaped_rows(table, shaped.table))
        table = shaped.table.read_only() if component.is_own else shaped.table
        diagnostics |= shaped.diagnostics
        if shaped.gate_open is not None:
            gate_open &= shaped.gate_open
    return table, gate_open, state


def _shaped_rows(before: TurnTable, after: TurnTable) -> Bools:
    """Return the turns whose reward a shaper changed, or that it gave an information gain other than 0."""
    changed = before.reward != after.reward
    if after.info_gain is not None and before.info_gain is not after.info_gain:
        changed = changed | (np.nan_to_num(after.info_gain) != 0)
    return np.asarray(changed, dtype=np.bool_)


def _share(rows: Bools) -> float:
    return float(rows.mean()) if len(rows) else 0.0


def _modulate(
    table: TurnTable, config: CreditConfig, credited: TurnAdvantages, diagnostics: dict[str, float]
) -> tuple[TurnAdvantages, Bools | None]:
    token_keep: Bools | None = None
    for options in config.modulators:
        values = {
            "table": table,
            "advantage": read_only(credited.advantage),
            "token_advantage": read_only(credited.token_advantage),
        }
        component = MODULATORS[options.kind]
        result = checked_modulation(component, component.run(values, options, {})[0], table)
        weight = credited.loss_weight
        changed = result.advantage != credited.advantage
        if result.loss_weight is not None:
            changed = changed | (result.loss_weight != 1)
        if result.token_advantage is not None and result.token_advantage is not credited.token_advantage:
            changed = np.ones_like(changed)  # every turn has advantages per token now
        diagnostics[f"changed/{component.name}"] = _share(changed)
        if result.loss_weight is not None:
            weight = result.loss_weight if weight is None else weight * result.loss_weight
        token_keep = _both(token_keep, result.token_keep)
        credited = replace(
            credited, advantage=result.advantage, token_advantage=result.token_advantage, loss_weight=weight
        )
    return credited, token_keep


def _both(one: Bools | None, other: Bools | None) -> Bools | None:
    """Return the tokens that both keep; None keeps all."""
    return other if one is None else one if other is None else one & other


def _select_after(
    table: TurnTable, config: CreditConfig, credited: TurnAdvantages, state: CreditState, diagnostics: dict[str, float]
) -> tuple[TurnAdvantages, Bools | None]:
    token_keep: Bools | None = None
    for options in config.selections:
        component = SELECTIONS[options.kind]
        if not component.is_after:
            continue
        rows, chosen = _selected(component, options, table, credited.advantage, state.step)
        token_keep = _both(token_keep, chosen)
        left_out = ~rows if chosen is None else ~chosen
        diagnostics[f"changed/{component.name}"] = _share(left_out)
        weight = np.ones(len(table)) if credited.loss_weight is None else credited.loss_weight
        credited = replace(credited, loss_weight=np.where(rows, weight, 0.0))
    return credited, token_keep


def _selected(
    component: CreditComponent, options: Any, table: TurnTable, advantage: Floats, step: int
) -> tuple[Bools, Bools | None]:
    """Return the rows that train, and the tokens that train if the selection chooses tokens."""
    chosen, _ = component.run({"table": table, "advantage": advantage, "step": step}, options, {})
    return checked_selection(component, chosen, table)


def _dropped(table: TurnTable, config: CreditConfig, trains: Bools, diagnostics: dict[str, float]) -> tuple[str, ...]:
    """Add the share of groups of which no turn trains to the diagnostics; return a warning if it is all of them."""
    if not config.selections or not len(table):
        return ()
    group = dense(table.group)
    diagnostics["dropped_group_share"] = float((np.bincount(group, weights=trains) == 0).mean())
    if diagnostics["dropped_group_share"] < 1.0:
        return ()
    names = ", ".join(part.kind for part in config.selections)
    return (
        f"the selections ({names}) drop every group of this batch: its gradient is 0; check that the tasks are neither "
        "always solved nor never solved",
    )


def _data_warnings(table: TurnTable, config: CreditConfig, diagnostics: dict[str, float]) -> tuple[str, ...]:
    if config.estimator not in STATE_COMPARING or not len(table):
        return ()
    if config.estimator_options.kind == "gigpo" and config.estimator_options.anchors == "similarity":
        return ()
    diagnostics["shared_anchor_share"] = shared_share(table)
    findings = rules.anchors(diagnostics["shared_anchor_share"], starts_agree=start_states_agree(table))
    return tuple(str(finding) for finding in findings)


def _put(value: Any, kept: Bools, *, fill: float = 0) -> Any:
    """Place the values of the kept rows among all rows, with ``fill`` elsewhere."""
    if kept.all():
        return value
    everywhere = np.full(len(kept), fill, dtype=value.dtype)
    everywhere[kept] = value
    return everywhere


def _put_tokens(value: object, kept: Bools | None) -> Any:
    return value if value is None or kept is None else _put(value, kept)
