"""Every component of credit at its defaults, on rewards of 0 and 1: finite, bounded, and successes above failures.

The rows are kinds of groups, the columns components. Where a comparison is possible (a group has a success and a
failure), the mean advantage of successes must exceed that of failures, per turn and per sampled token, unless the
component warns when the configuration is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from testkit.zero_one_tables import KINDS, TOKENS, configs, table_of

from agentgym.credit.compose import CreditConfig, CreditResult, credit_turns
from agentgym.credit.estimators.group_relative import McGrpoOptions
from agentgym.credit.shapers.progress import SpaOptions
from agentgym.errors import ConfigError

LARGEST = 20.0
"""Bound of an advantage; the largest group has eight members."""
FLAT = ("all failures", "all successes", "groups of one")


def verdict(kind: str, result: CreditResult) -> str:
    """Return what is wrong with the credit of a kind of groups, empty if nothing is."""
    lengths, wins, groups = KINDS[kind]
    tokens = np.repeat(result.advantage, TOKENS) if result.token_advantage is None else result.token_advantage
    if not np.isfinite(tokens).all():
        return "not finite"
    if np.abs(tokens).max() > LARGEST:
        return f"an advantage of {np.abs(tokens).max():g}"
    trains = np.repeat(result.loss_weight > 0, TOKENS)
    won, group = (np.repeat(np.repeat(column, lengths), TOKENS) for column in (wins, groups))
    if kind in FLAT or not trains.any():
        return ""
    is_success, is_failure = (trains & (won == flag) & (group == 0) for flag in (1, 0))
    if is_success.any() and is_failure.any() and tokens[is_success].mean() <= tokens[is_failure].mean():
        return f"successes {tokens[is_success].mean():.3f}, failures {tokens[is_failure].mean():.3f}"
    return ""


def test_every_component_at_its_defaults_points_from_failures_to_successes() -> None:
    wrong, num_cells, num_warned, num_refused = [], 0, 0, 0
    for label, keys in configs():
        try:
            config = CreditConfig(**keys)
        except ConfigError:  # two components that do not go together: rules of composition
            num_refused += 1
            continue
        for kind, groups in KINDS.items():
            found = verdict(kind, credit_turns(table_of(groups), config))
            num_cells += 1
            if found and config.warnings:
                num_warned += 1
            elif found:
                wrong.append(f"{label}, {kind}: {found}")
    assert not wrong, "\n".join(wrong)
    assert (num_cells, num_warned, num_refused) == COUNTS


COUNTS = (2057, 8, 9)
"""Cells of the table, cells whose component warns instead, and pairs of components that are refused."""


@pytest.mark.parametrize(
    "keys",
    [
        {"estimator": "grpo", "shapers": (SpaOptions(grounding=0.5, remainder="dropped"),)},
        {"estimator": "mc_grpo", "options": McGrpoOptions(least_mad=0.0)},
    ],
)
def test_released_settings_are_caught_by_this_table(keys: dict[str, Any]) -> None:
    config = CreditConfig(**keys)
    assert any(verdict(kind, credit_turns(table_of(groups), config)) for kind, groups in KINDS.items())
