"""No component returns NaN or infinite credit for finite rewards, whatever the optional columns hold."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.credit_tables import Batch, batch_table, batches, table_of

from agentgym.credit.component import FAMILIES, CreditComponent, Shared
from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.parts import Modulated, Shaped, on_last_turn
from agentgym.credit.statistics import per_trajectory, trajectories
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.errors import ConfigError

steady = settings(max_examples=20, deadline=None, derandomize=True)
COMPONENTS = [component for family in FAMILIES.values() for component in family.values()]
SIZES = [0.0, 1.0, 1e-9, 1e12, 1e200]
"""Factors of rewards."""
BAD = [np.nan, -np.inf, np.inf]
CLEAN = ["is_valid", "reward", "part_values"]
"""Columns that hold what they must: the rewards, which are finite."""


def whole_table(table: TurnTable) -> TurnTable:
    """Fill every column that ``batch_table`` leaves out."""
    view, size = trajectories(table), len(table)
    rng = np.random.default_rng(size)
    logprobs = [rng.normal(-2, 1, size=(n, 2)) for n in view.num_turns.tolist()]
    return table.with_columns(
        segment=table.turn // 2,
        num_answers=table.turn % 2,
        parent=np.full(size, -1),
        branch_turn=np.zeros(size),
        observation=[f"state {anchor}" for anchor in table.anchor.tolist()],
        answer=table.turn % 3 - 1,
        progress=rng.normal(size=size),
        is_executed=table.turn % 2 == 0,
        player_outcome=rng.normal(size=size),
        drift=rng.exponential(size=size),
        answer_logprobs=logprobs,
        answer_lengths=[[1, 2]] * len(view.first),
    )


def spoiled(table: TurnTable, bad: float, seed: int) -> TurnTable:
    """Put one value that is not finite into every optional column of floats."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for field in fields(table):
        column = getattr(table, field.name)
        if field.name in CLEAN or column is None:
            continue
        if field.name == "answer_logprobs":
            columns[field.name] = [row.copy() for row in column]
            chosen = columns[field.name][rng.integers(len(column))]
            chosen[rng.integers(len(chosen))] = bad
        elif isinstance(column, np.ndarray) and column.dtype == np.float64 and len(column):
            columns[field.name] = column.copy()
            columns[field.name][rng.integers(len(column))] = bad
    return table.with_columns(**columns)


def outputs(component: CreditComponent, table: TurnTable) -> Iterator[Any]:
    """Run a component and yield every array that it returns."""
    options = component.options and component.options()
    advantage = np.clip(table.reward, -1e6, 1e6)
    values = {"table": table, "step": 0, "advantage": advantage, "token_advantage": None}
    for merged in (False, True) if component.family == "shaper" else (False,):
        shared = asdict(Shared(invalid_penalty=0.1))
        result, memory = component.run({**values, **shared, "merged": merged}, options, {})
        yield [number for kept in memory.values() for number in kept.values()]
        if isinstance(result, Shaped):
            yield from (result.table.reward, result.table.part_values, list(result.diagnostics.values()))
        elif isinstance(result, TurnAdvantages):
            yield from (result.advantage, result.return_to_go, result.token_advantage, result.token_return)
            yield result.loss_weight
        elif isinstance(result, Modulated):
            yield from (result.advantage, result.token_advantage, result.loss_weight)
        else:
            assert component.family == "selection"
            yield from result if isinstance(result, tuple) else (result,)


def assert_finite(component: CreditComponent, table: TurnTable) -> None:
    """Fail if an output is NaN or infinite; a component may refuse the table instead."""
    try:
        for output in outputs(component, table):
            if output is not None:
                assert np.isfinite(np.asarray(output, dtype=np.float64)).all(), component.name
    except ConfigError:
        return


def with_wins(table: TurnTable) -> TurnTable:
    """Replace rewards by successes, for components that take nothing else."""
    return replace(table, reward=on_last_turn(table, (per_trajectory(table, table.reward) > 0).astype(np.float64)))


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.name)
@steady
@given(batch=batches, size=st.sampled_from(SIZES), bad=st.sampled_from([None, *BAD]), seed=st.integers(0, 9))
def test_credit_is_finite(component: CreditComponent, batch: Batch, size: float, bad: float | None, seed: int) -> None:
    table = whole_table(batch_table(batch, scale=size))
    for each in (table, with_wins(table)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # an overflow is an infinity on its way
            assert_finite(component, each if bad is None else spoiled(each, bad, seed))


EDGES: dict[str, TurnTable] = {
    "constant group": batch_table([(0, [(1.0, "a", 1, 2)])] * 4),
    "constant group of 0.1": batch_table([(0, [(1.0, "a", 1, 2)])] * 3, scale=0.1),
    "group of one": batch_table([(0, [(1.0, "a", 1, 2), (2.0, "b", 0, 1)])]),
    "groups of one": batch_table([(group, [(float(group), "a", 1, 1)]) for group in range(3)]),
    "almost equal rewards": batch_table([(0, [(float(at), "a", 1, 1)]) for at in range(4)], scale=1e-12),
    "huge and opposite": batch_table([(0, [(1.0, "a", 1, 1)]), (0, [(-1.0, "a", 1, 1)])], scale=1e250),
    "huge in one group alone": batch_table([(0, [(1.0, "a", 1, 1)]), (0, [(0.0, "a", 1, 1)]), (1, [(2.0, "a", 1, 1)])]),
    "zero tokens": table_of([[1, 0], [0]], num_tokens=[0] * 3, token_value=[], token_entropy=[], num_calls=[0] * 3),
}


@pytest.mark.parametrize("edge", sorted(EDGES))
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.name)
def test_credit_is_finite_at_the_edges(component: CreditComponent, edge: str) -> None:
    table = whole_table(EDGES[edge])
    for each in (table, with_wins(table), *(spoiled(table, bad, 0) for bad in BAD)):
        assert_finite(component, each)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("column", ["reward", "part_values"])
def test_rewards_that_are_not_finite_are_refused_with_their_place(column: str, bad: float) -> None:
    table = TurnTable.from_lists(rewards=[[0.0], [0.0, 1.0]], group_of_trajectory=[0, 1])
    table = table.with_parts(outcome=("outcome", [0.0, 0.0, 1.0]), cost=("cost", [0.0, 0.0, 0.0]))
    getattr(table, column)[2] = bad
    with pytest.raises(ConfigError, match=f"column '{column}' is {bad} in group 1, trajectory 1, turn 1 "):
        credit_turns(table, CreditConfig(estimator="grpo"))
