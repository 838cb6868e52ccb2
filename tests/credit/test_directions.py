"""Every component of credit at its defaults, on rewards of 0 and 1: finite, bounded, and successes above failures.

The rows are kinds of groups, the columns components. Where a comparison is possible (a group has a success and a
failure), the mean advantage of successes must exceed that of failures, per turn and per sampled token, unless the
component warns when the configuration is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from agentgym.credit.component import ESTIMATORS, MODULATORS, SELECTIONS, SHAPERS
from agentgym.credit.compose import CreditConfig, CreditResult, credit_turns
from agentgym.credit.estimators.group_relative import McGrpoOptions
from agentgym.credit.shapers.information_gain import InformationGainOptions
from agentgym.credit.shapers.progress import SpaOptions
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError

LARGEST = 20.0
"""Bound of an advantage; the largest group has eight members."""
Kind = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Number of turns, success and group of each trajectory."""
KINDS: dict[str, Kind] = {
    "failures are longer": ([2, 2, *[6] * 6] * 2, [1, 1, *[0] * 6] * 2, [0] * 8 + [1] * 8),
    "failures are much longer": ([2, 2, *[24] * 6], [1, 1, *[0] * 6], [0] * 8),
    "failures are shorter": ([6, 6, *[2] * 6] * 2, [1, 1, *[0] * 6] * 2, [0] * 8 + [1] * 8),
    "failures are much shorter": ([24, 24, *[2] * 6], [1, 1, *[0] * 6], [0] * 8),
    "one success": ([2, *[6] * 7], [1, *[0] * 7], [0] * 8),
    "one failure": ([2] * 7 + [6], [1] * 7 + [0], [0] * 8),
    "two members": ([2, 6], [1, 0], [0, 0]),
    "a flat group beside": ([2, 6, 3, 3], [1, 0, 0, 0], [0, 0, 1, 1]),
    "all failures": ([3, 4, 5, 2], [0] * 4, [0] * 4),
    "all successes": ([3, 4, 5, 2], [1] * 4, [0] * 4),
    "groups of one": ([2, 3, 4, 2], [1, 0, 0, 1], [0, 1, 2, 3]),
}
FLAT = ("all failures", "all successes", "groups of one")
TOKENS = 4
BASES = ("grpo", "gigpo", "rloo", "turn_gae", "reinforce_pp", "returns")
"""Estimators under each shaper, modulator and selection."""


def table_of(kind: Kind) -> TurnTable:
    """Return a table with every column, as a new policy fills them: critics of zeros, valid turns, one call a turn."""
    lengths, wins, groups = kind
    rewards = [[0.0] * (n - 1) + [float(won)] for n, won in zip(lengths, wins, strict=True)]
    table = TurnTable.from_lists(
        rewards=rewards, states=[[f"s{at}" for at in range(n)] for n in lengths], group_of_trajectory=groups
    )
    rng, size = np.random.default_rng(0), len(table)
    is_last = np.array([at == n - 1 for n in lengths for at in range(n)])
    zeros, no = np.zeros(size), np.zeros(size, dtype=bool)
    return table.with_parts(outcome=("outcome", rewards)).with_columns(
        **dict.fromkeys(("value", "q_value", "progress", "drift"), zeros),
        **dict.fromkeys(("is_void", "is_patched", "is_faulty", "is_truncated"), no),
        **dict.fromkeys(("num_errors", "segment", "role", "branch_turn", "num_shared_tokens"), zeros.astype(int)),
        **dict.fromkeys(("parent", "invocation"), zeros.astype(int) - 1),
        num_tokens=np.full(size, TOKENS),
        num_calls=np.ones(size, dtype=int),
        num_answers=is_last.astype(int),
        answer=np.where(is_last, np.arange(size), -1),
        action=rng.integers(0, 3, size),
        entropy=rng.uniform(0.1, 1, size),
        token_value=np.zeros(TOKENS * size),
        token_entropy=rng.uniform(0.1, 1, TOKENS * size),
        player_outcome=np.repeat(np.array(wins, dtype=float), lengths),
        group_keys=[f"task {group}" for group in range(max(groups) + 1)],
        observation=[f"seen {at}" for n in lengths for at in range(n)],
        answer_logprobs=[np.linspace(-2, -2 + won, n)[:, None] for n, won in zip(lengths, wins, strict=True)],
        answer_lengths=[np.array([3]) for _ in lengths],
    )


def configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every component at its defaults, shapers, modulators and selections with each of ``BASES``."""
    for name in ESTIMATORS:
        yield name, {"estimator": name, "shapers": (InformationGainOptions(),) if name == "igpo" else ()}
    families = (("shapers", SHAPERS), ("modulators", MODULATORS), ("selections", SELECTIONS))
    for (key, family), base in product(families, BASES):
        for name, component in family.items():
            assert component.options is not None
            yield f"{name} with {base}", {"estimator": base, key: (component.options(),)}


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


COUNTS = (1793, 8, 9)
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
