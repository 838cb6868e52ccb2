"""Write a credit estimator, try it on plain arrays, and train with it.

The estimator compares a turn's return with the mean return of its group at the same turn. Run it with
`python examples/own_estimator.py`. It takes about a minute on one CPU core.
"""

from __future__ import annotations

import argparse

import numpy as np

import agentgym
from agentgym.credit.component import estimator
from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.statistics import returns_to_go
from agentgym.credit.table import TurnAdvantages, TurnTable


@estimator("same_turn", paper="ours", granularity="turn", compares_groups=True)
def same_turn(table: TurnTable, gamma: float) -> TurnAdvantages:
    """Return each turn's return-to-go minus its mean over the group's turns with the same number, ``[N]``."""
    returns = returns_to_go(table, gamma)
    # one integer per pair of group and turn: episodes that ended before this turn are not in its mean
    _, place = np.unique(np.stack([table.group, table.turn]), axis=1, return_inverse=True)
    place = place.reshape(-1)
    means = np.bincount(place, weights=returns) / np.bincount(place)
    return TurnAdvantages(advantage=returns - means[place], return_to_go=returns)


def show() -> None:
    """Credit two episodes of one task that differ from their second turn on."""
    table = TurnTable.from_lists(
        rewards=[[0, 0, 1], [0, 0]],
        states=[["door", "hall", "desk"], ["door", "hall"]],
        group_of_trajectory=[0, 0],
    ).with_parts(outcome=("outcome", [[0, 0, 1], [0, 0]]))
    print("advantages:", credit_turns(table, CreditConfig(estimator="same_turn", gamma=0.9)).advantage.round(2))


def main() -> None:
    """Credit arrays, then train a small model on a maze. The run's config.json names this file."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--demos", type=int, default=800)
    given = arguments.parse_args()
    show()
    result = agentgym.train(
        "tiny",
        {
            "env.id": "agentgym/Maze-v0",
            "env.kwargs": {"size": 2},
            "credit.estimator": f"{__file__}:same_turn",
            "credit.gamma": 0.9,
            "sft.num_demos": given.demos,
            "eval.num_episodes": 64,
            "num_steps": given.steps,
        },
    )
    print(f"success {result.success_before} -> {result.success_after}; the report: {result.run_dir}/report.html")


if __name__ == "__main__":
    main()
