"""SPIRAL's split of a game's result over its players."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.estimators.rae import turns_from_end
from agentgym.credit.parts import Shaped, replace_reward
from agentgym.credit.statistics import require_finite
from agentgym.credit.table import TurnTable
from agentgym.plugins import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class SpiralSplitOptions(Options):
    """The split has no keys."""

    kind: Literal["spiral_split"] = "spiral_split"


@shaper(
    "spiral_split",
    paper="SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn RL",
    parity="spiral-rl/spiral@a02d0ed:train_spiral.py",
    options=SpiralSplitOptions,
    columns=("role", "player_outcome"),
)
def spiral_split(table: TurnTable) -> Shaped:
    """Experimental (reconstructed): each player's result on that player's last turn, in place of all rewards.

    A trajectory may hold one player's turns or all players'. What earlier turns get is the estimator's business: RAE
    discounts from the player's end. Needs the columns ``role`` and ``player_outcome``.

    Source: "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning" (``train_spiral.py``; the shaper's form, apart
    from the estimator's, is ours).

    Example (one game of two players who move in turn):
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 0, 0]], group_of_trajectory=[0])
        >>> table = table.with_columns(role=[0, 1, 0, 1], player_outcome=[1, -1, 1, -1])
        >>> spiral_split(table).table.reward.tolist()
        [0.0, 0.0, 1.0, -1.0]
    """
    table.require("role", "player_outcome", by="spiral_split")
    require_finite(table, "player_outcome", by="spiral_split")
    assert table.role is not None and table.player_outcome is not None
    pairs = table.trajectory * (int(table.role.max(initial=0)) + 1) + table.role
    unit = np.unique(pairs, return_inverse=True)[1].reshape(-1)
    value = np.where(turns_from_end(unit) == 0, table.player_outcome, 0.0)
    return Shaped(table=replace_reward(table, "player_outcome", value))
