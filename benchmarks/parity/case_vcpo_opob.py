"""VCPO's baseline of a group compared with its release, given the norms of the gradients."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from released import Case, Release, gap, load

from agentgym.trainers.losses.opob import opob_baselines

RELEASE = Release("mit-han-lab/vcpo", "c7f030f")
FILE = "recipe/fully_async_policy/staleness_utils.py"


def baseline(folder: Path, rng: np.random.Generator) -> float:
    """Draw one to four groups of one to six trajectories, some without a gradient."""
    sizes = rng.integers(1, 7, int(rng.integers(1, 5)))
    group = np.repeat(np.arange(len(sizes)), sizes)
    num = len(group)
    norm = rng.exponential(2.0, num) * rng.choice([0.0, 1.0, 1.0, 1.0], num)
    log_weight, reward = rng.normal(0, 1.5, num), rng.choice([0.0, 0.0, 1.0, 0.5, -1.0], num)
    records = [
        SimpleNamespace(
            group_uid=int(group[at]), reward_scalar=reward[at], grad_norm_unscaled=norm[at],
            rollout_seq_is=float(np.exp(log_weight[at])), response_length=1,
        )
        for at in range(num)
    ]  # fmt: skip
    released = load(folder / FILE, "get_weighted_mean", "compute_opob_baseline", namespace={"torch": torch})
    theirs = [released["compute_opob_baseline"](records, int(uid)) for uid in group]
    ours = opob_baselines(*(torch.tensor(values) for values in (reward, log_weight, norm**2, group)))
    return gap(ours.numpy(), theirs)


CASES = [Case(component="vcpo", variant="baseline", release=RELEASE, file=FILE, largest_gap=baseline)]
