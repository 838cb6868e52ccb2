"""RAE and the split of a game's result compared with SPIRAL."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from released import Case, Release, gap, load

from agentgym.credit.estimators.rae import RaeOptions, rae
from agentgym.credit.shapers.attempts import spiral_split
from agentgym.credit.table import TurnTable

AUTHORS = Release("spiral-rl/spiral", "a02d0ed")
FILE, UTILS = "train_spiral.py", "spiral/utils.py"


@cache
def code(folder: Path) -> dict[str, Any]:
    made = {"TrajectoryData": SimpleNamespace, "logging": logging}
    scope = load(folder / FILE, "SelfPlayActor.prepare_trajectories", namespace=made)
    return load(folder / UTILS, "EMA", namespace=scope)


def games(rng: np.random.Generator) -> tuple[TurnTable, list[list[int]], list[tuple[float, float]]]:
    """Draw games of two players, one trajectory per game, with who moved at each turn and the players' results."""
    movers, results = [], []
    for _ in range(int(rng.integers(1, 6))):
        num_turns = int(rng.integers(2, 7))
        order = rng.integers(0, 2, num_turns) if rng.random() < 0.3 else np.arange(num_turns) % 2
        order[:2] = (0, 1)  # each player moves
        movers.append(order.tolist())
        won = float(rng.choice([-1.0, 0.0, 1.0, 0.5]))
        results.append((won, -won))
    table = TurnTable.from_lists(rewards=[[0.0] * len(row) for row in movers], group_of_trajectory=[0] * len(movers))
    outcome = [result[player] for row, result in zip(movers, results, strict=True) for player in row]
    return table.with_columns(role=movers, player_outcome=outcome), movers, results


def released(
    folder: Path, movers: list[list[int]], results: list[tuple[float, float]], gamma: float, use_baseline: bool
) -> np.ndarray:
    """Return the release's reward of each turn, NaN for a turn that it leaves out."""
    made = code(folder)
    args = SimpleNamespace(
        fixed_opponent=False, reward_scaling=1.0, use_role_baseline=use_baseline, use_intermediate_rewards=True,
        gamma=gamma, filter_zero_adv=True, ignore_no_eos=False,
    )  # fmt: skip
    own = SimpleNamespace(
        args=args,
        role_baseline_ema={0: made["EMA"](0.95), 1: made["EMA"](0.95)},
        compute_token_level_rewards=lambda ids, reward: reward,
    )
    rewards = []
    for row, (first, second) in zip(movers, results, strict=True):
        said = {"prompt": "", "prompt_ids": [], "response": "", "response_ids": [1], "response_is_truncated": False}
        said |= {"action_is_valid": True}
        of = {player: [said | {"turn": at} for at, who in enumerate(row) if who == player] for player in (0, 1)}
        game = SimpleNamespace(get_player_trajectories=of.__getitem__, turn_count=len(row))
        per_turn = np.full(len(row), np.nan)
        for each in made["prepare_trajectories"](own, game, {0: first, 1: second}, ""):
            per_turn[each.info["actor/current_turn"]] = each.rewards
        rewards.append(per_turn)
    return np.concatenate(rewards)


def rae_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare advantages over several games, and which turns are left out."""
    table, movers, results = games(rng)
    gamma = float(rng.choice([1.0, 0.9]))
    credited, _ = rae(spiral_split(table).table, {}, RaeOptions(gamma=gamma))
    ours = np.where(credited.loss_weight == 0, np.nan, credited.advantage)
    return gap(ours, released(folder, movers, results, gamma, use_baseline=True))


def split_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare each player's return, without baselines; the release leaves turns of return 0 out."""
    table, movers, results = games(rng)
    shaped = spiral_split(table).table
    own = [np.bincount(row, weights=part, minlength=2)[row] for row, part in zip(
        movers, np.split(shaped.reward, np.cumsum([len(row) for row in movers])[:-1]), strict=True)]  # fmt: skip
    theirs = np.nan_to_num(released(folder, movers, results, 1.0, use_baseline=False))
    return gap(np.concatenate(own), theirs)


CASES = (
    Case(component="rae", release=AUTHORS, file=FILE, largest_gap=rae_gap),
    Case(component="spiral_split", release=AUTHORS, file=FILE, largest_gap=split_gap),
)
