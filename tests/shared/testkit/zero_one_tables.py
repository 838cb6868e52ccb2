"""Every component of credit at its defaults, and tables of rewards of 0 and 1 for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from agentgym.credit.component import ESTIMATORS, MODULATORS, SELECTIONS, SHAPERS
from agentgym.credit.shapers.information_gain import InformationGainOptions
from agentgym.credit.table import TurnTable

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
        moment=table.turn,
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
