"""CompactionRL: a worked example of its discount over windows, its edges, and a run with summaries that it changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from testkit.acting import metrics_after, weights_after
from testkit.credit_tables import assert_close, table_of

from agentgym.credit.estimators.compaction_gae import CompactionGaeOptions, compaction_gae
from agentgym.credit.estimators.gae import token_gae
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError

TESTKIT = Path(__file__).parents[1] / "shared" / "testkit"
HALF = CompactionGaeOptions(horizon=0.4, whitened=False)
"""A lambda of 0.5 for trajectories of five tokens."""


def made(segment: list[int], value: float = 0.0, reward: float = 1.0) -> TurnTable:
    table = table_of([[0.0, reward]])
    return table.with_columns(num_tokens=[3, 2], segment=segment, token_value=[value] * 5)


def test_compaction_gae() -> None:
    """Both windows end with the reward; the first window's tokens are two tokens further from the end."""
    credited = compaction_gae(made([0, 1]), options=HALF)
    assert_close(credited.token_advantage, [0.0625, 0.125, 0.25, 0.5, 1.0])
    assert_close(credited.advantage, [0.4375 / 3, 0.75])
    assert_close(credited.token_return, [0.25, 0.5, 1.0, 0.5, 1.0], 1e-9)


def test_values_end_with_their_window() -> None:
    """delta is 0 inside a window of equal values, and 1 - 0.5 at its end."""
    credited = compaction_gae(made([0, 1], value=0.5), options=HALF)
    assert_close(credited.token_advantage, [0.03125, 0.0625, 0.125, 0.25, 0.5])


def test_one_window_is_gae_over_tokens() -> None:
    table = made([0, 0]).with_columns(token_value=[0.3, -0.2, 0.1, 0.6, 0.2])
    expected = token_gae(table, gamma=1.0, lam=0.5)
    assert_close(
        compaction_gae(table, options=CompactionGaeOptions(horizon=0.4)).token_advantage, expected.token_advantage
    )


def test_trajectories_have_lambdas_of_their_own() -> None:
    table = table_of([[0.0, 1.0], [1.0]]).with_columns(num_tokens=[3, 2, 2], segment=[0, 1, 0], token_value=[0.0] * 7)
    credited = compaction_gae(table, options=HALF)
    assert credited.token_advantage is not None
    assert_close(credited.token_advantage[5:], [0.0, 1.0])  # 1 - 1 / 0.8 is below 0
    assert np.isfinite(credited.token_advantage).all()


def test_it_needs_windows() -> None:
    with pytest.raises(ConfigError, match="segment"):
        compaction_gae(table_of([[1.0]]).with_columns(num_tokens=[2], token_value=[0.0, 0.0]))


def test_it_acts_in_a_run_with_summaries() -> None:
    windows = [
        f"env.id={TESTKIT / 'long_env.py'}:Stairs-v0",
        *(
            "context.policy=summarise",
            "context.window_tokens=110",
            "context.summary_tokens=12",
            "sampling.max_new_tokens=8",
        ),
    ]
    chosen = (*windows, "credit.estimator=compaction_gae")
    (first, second) = metrics_after(*chosen)
    assert first["num_summaries"] >= 1 and first["grad_norm"] > 0 and second["grad_norm"] > 0
    # a lambda of 0: only the last token of the last window is credited by the return
    assert weights_after(*chosen) != weights_after(
        *chosen, 'credit.options={"kind": "compaction_gae", "horizon": 0.001}'
    )
