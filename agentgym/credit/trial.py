"""A trial of a user's components of credit on made-up turns, before a run warms up and plays."""

from __future__ import annotations

import numpy as np

from agentgym.credit.compose import credit_turns, has_own
from agentgym.credit.config import CreditConfig
from agentgym.credit.table import Floats, TurnTable
from agentgym.errors import ConfigError

_REWARDS = [[0.0, 1.0], [0.0], [0.5, 0.0, 0.0], [1.0]]
_TOKENS = 2


def check_own_components(config: CreditConfig) -> None:
    """Run a user's own components on a few made-up turns, so that their errors show before training starts.

    Raises:
        ConfigError: a component does not return what its family returns, finite and of the right shape, or the
            advantages are not equal within the unit that the components declare.
    """
    if has_own(config):
        table = trial_table()
        _check_granularity(config, table, credit_turns(table, config).advantage)


def trial_table() -> TurnTable:
    """Return seven turns of two groups with every column of a table."""
    table = TurnTable.from_lists(
        rewards=_REWARDS, states=[["a", "b"], ["a"], ["a", "b", "a"], ["a"]], group_of_trajectory=[0, 0, 1, 1]
    )
    size, lengths = len(table), [len(row) for row in _REWARDS]
    numbers, none, no = np.arange(size), np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_)
    return table.with_parts(outcome=("outcome", _REWARDS)).with_columns(
        **dict.fromkeys(("entropy", "value", "q_value", "progress", "info_gain", "drift"), numbers / 10),
        **dict.fromkeys(("is_void", "is_patched", "is_faulty", "is_truncated"), no),
        **dict.fromkeys(("num_errors", "segment", "role", "branch_turn", "num_shared_tokens"), none),
        **dict.fromkeys(("parent", "invocation"), none - 1),
        moment=table.turn,
        **dict.fromkeys(("num_calls", "num_answers"), none + 1),
        **dict.fromkeys(("action", "answer", "final_anchor"), numbers % 3),
        is_executed=~no,
        num_tokens=none + _TOKENS,
        token_value=np.arange(_TOKENS * size) / 10,
        token_entropy=np.arange(_TOKENS * size) / 10,
        player_outcome=np.repeat([sum(row) for row in _REWARDS], lengths),
        group_keys=["one task", "another task"],
        observation=[f"text {number}" for number in numbers],
        answer_logprobs=[np.linspace(-2, -1, n)[:, None] for n in lengths],
        answer_lengths=[np.array([3]) for _ in lengths],
    )


def _check_granularity(config: CreditConfig, table: TurnTable, advantage: Floats) -> None:
    differs = (np.diff(advantage) != 0) & (np.diff(table.trajectory) == 0)
    if config.granularity == "trajectory" and differs.any():
        own = (one for one, _ in config.components() if one.is_own and one.family in ("estimator", "modulator"))
        names = " or ".join(f"{one.family} {one.name!r}" for one in own) or f"estimator {config.estimator!r}"
        raise ConfigError(
            f"{names} gives turns of one episode different advantages ({advantage[:2].tolist()}): declare it with "
            "granularity='turn' in its decorator"
        )
