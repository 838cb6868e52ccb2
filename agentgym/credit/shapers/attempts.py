"""UFO's reward for repeated attempts, where earlier success pays more; and SPIRAL's split of a game's result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, on_last_turn, outcome_reward, replace_reward
from agentgym.credit.statistics import finite_column, trajectories, turns_from_end
from agentgym.credit.table import TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class UfoOptions(Options):
    """Keys of UFO."""

    kind: Literal["ufo"] = "ufo"
    decay: Fraction = 0.5
    """Factor by which each earlier well-formed answer reduces the reward of a success."""
    repetition_penalty: float = 0.5
    """The paper's lambda: penalty times the share of well-formed answers that repeat an earlier one."""
    malformed_reward: Annotated[float, Range(at_most=0)] = -0.1
    """The paper's eta: reward of each attempt without a well-formed answer (``format_penalty`` in the release)."""
    least_success: float | None = 0.01
    """Smallest reward of a success, since failures earn 0 or less (ours). None: penalties have no limit, as in the
    release."""


@shaper(
    "ufo",
    paper="A Simple 'Try Again' Can Elicit Multi-Turn LLM Reasoning",
    parity="lichengliu03/unary-feedback@b9eb4bd:ragen/env/metamathqa/env.py",
    columns=("part_values", "answer"),
    limits="the release has least_success=null",
)
def ufo(table: TurnTable, options: UfoOptions = UfoOptions()) -> Shaped:
    """``decay^(n-1) - lambda (1 - E / n) + eta * malformed`` on the last turn, 0 on the others; replaces all rewards.

    Every turn is one attempt. n is the number of well-formed answers, E the number of different ones, ``malformed`` the
    number of other attempts. The first term is 0 for a failure, and the second is 0 for n = 0. A success ends the
    episode, so the episode succeeded if the outcome reward of its last turn is above 0. A success earns at least
    ``least_success``. Needs the column ``answer``.

    Source: "A Simple 'Try Again' Can Elicit Multi-Turn LLM Reasoning" (``ragen/env/metamathqa/env.py``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 0, 1]], group_of_trajectory=[0])
        >>> np.round(ufo(table.with_columns(answer=[0, 0, 0, 1])).table.reward, 6).tolist()
        [0.0, 0.0, 0.0, 0.01]
    """
    answer = table.column("answer", by="ufo")
    view = trajectories(table)
    is_malformed = answer < 0
    rows = np.flatnonzero(~is_malformed)
    pairs = np.stack([view.of_row[rows], answer[rows]], axis=1)
    num_different = np.bincount(np.unique(pairs, axis=0)[:, 0], minlength=len(view.first))
    num_malformed = np.bincount(view.of_row[is_malformed], minlength=len(view.first))
    is_success = outcome_reward(table)[view.last] > 0
    num_answers = view.num_turns - num_malformed
    value = np.where(is_success, options.decay ** np.maximum(num_answers - 1.0, 0.0), 0.0)
    repeated = np.where(num_answers > 0, 1.0 - num_different / np.maximum(num_answers, 1), 0.0)
    value = value - options.repetition_penalty * repeated + options.malformed_reward * num_malformed
    if options.least_success is not None:
        value = np.where(is_success, np.maximum(value, options.least_success), value)
    tries = float(view.num_turns[is_success].mean()) if is_success.any() else 0.0
    shaped = replace_reward(table, "ufo", on_last_turn(table, value))
    return Shaped(table=shaped, diagnostics={"attempts_to_success_mean": tries})


# ----------------------------------------------------------------- SPIRAL's split of a game's result among its players


@dataclass(frozen=True, slots=True, kw_only=True)
class SpiralSplitOptions(Options):
    """Options of SPIRAL's split, which has no settings."""

    kind: Literal["spiral_split"] = "spiral_split"


@shaper(
    "spiral_split",
    paper="SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn RL",
    parity="spiral-rl/spiral@a02d0ed:train_spiral.py",
    options=SpiralSplitOptions,
    columns=("role", "player_outcome"),
)
def spiral_split(table: TurnTable) -> Shaped:
    """Place each player's result on that player's last turn; replaces all rewards.

    A trajectory may contain the turns of one player or of all. Credit for earlier turns is left to the estimator: RAE
    discounts from the player's last turn. Needs the columns ``role`` and ``player_outcome``.

    Source: "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning" (``train_spiral.py``). The release does this
    within its estimator; the separate shaper is ours.

    Example (one game of two players who move in turn):
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 0, 0]], group_of_trajectory=[0])
        >>> table = table.with_columns(role=[0, 1, 0, 1], player_outcome=[1, -1, 1, -1])
        >>> spiral_split(table).table.reward.tolist()
        [0.0, 0.0, 1.0, -1.0]
    """
    role = table.column("role", by="spiral_split")
    pairs = table.trajectory * (int(role.max(initial=0)) + 1) + role
    unit = np.unique(pairs, return_inverse=True)[1].reshape(-1)
    value = np.where(turns_from_end(unit) == 0, finite_column(table, "player_outcome", by="spiral_split"), 0.0)
    return Shaped(table=replace_reward(table, "player_outcome", value))
