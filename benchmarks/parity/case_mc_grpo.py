"""MC-GRPO compared with its authors' trainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import random_table, with_outcomes_only
from released import Case, Release, gap, run_lines

from agentgym.credit.estimators.group_relative import mc_grpo
from agentgym.credit.statistics import per_trajectory, trajectories

AUTHORS = Release("lotusroot-kim/MC-GRPO", "da07745")
FILE = "src/open_r1/grpo_trainer_gsm.py"


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare advantages, and how many rollouts with what advantage are left out.

    Which of several median rollouts is left out is up to ``torch.median``; all of them have advantage 0.
    """
    size = int(rng.integers(1, 9))
    table = with_outcomes_only(random_table(rng, size=size))
    view = trajectories(table)
    own = SimpleNamespace(
        args=SimpleNamespace(mc=True, signflip_percent=0.0), accelerator=SimpleNamespace(is_main_process=False)
    )
    rewards = torch.as_tensor(per_trajectory(table, table.reward))
    scope: dict[str, Any] = {"self": own, "torch": torch, "rewards": rewards, "actual_num_generations": size}
    scope |= {"mode": "train", "use_extra_rollout": True, "num_generations": size - 1, "hasattr": hasattr}
    run_lines(folder / FILE, "median_mask = None", 'if self.scale_rewards in ["group"', scope)
    ours = mc_grpo(table, least_mad=0.0)
    assert ours.loss_weight is not None
    advantage, is_out = ours.advantage[view.first], ours.loss_weight[view.first] == 0
    median = scope["median_mask"].numpy()
    left_out = [np.bincount(view.group, weights=out) for out in (is_out, median)]
    of_median = [np.sort(per_trajectory(table, table.reward)[out]) for out in (is_out, median)]
    return max(gap(advantage, scope["advantages"]), gap(*left_out), gap(*of_median))


CASES = (Case(component="mc_grpo", variant="as released", release=AUTHORS, file=FILE, largest_gap=largest_gap),)
